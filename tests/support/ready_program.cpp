#include "support/ready_program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "support/paths.h"

extern char** environ;

namespace hrm::test {
namespace {

constexpr auto kMostTime = std::chrono::seconds(60);
constexpr int kFiles = 3;

void must(bool good, const char* what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

// The variables of this program, but one CPU thread and no GPU in sight.
std::vector<std::string> variables() {
  std::vector<std::string> all{"CUDA_VISIBLE_DEVICES=", "OMP_NUM_THREADS=1"};
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string variable = *at;
    if (!variable.starts_with("CUDA_VISIBLE_DEVICES=") && !variable.starts_with("OMP_NUM_THREADS=")) {
      all.push_back(variable);
    }
  }
  return all;
}

void send(int link, const std::string& order, const std::array<int, kFiles>& files) {
  union {
    cmsghdr head;
    char bytes[CMSG_SPACE(sizeof files)];
  } control{};
  iovec part{const_cast<char*>(order.data()), order.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof control;
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof files);
  std::memcpy(CMSG_DATA(head), files.data(), sizeof files);
  must(sendmsg(link, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(order.size()), "ready_program: sendmsg");
}

// Waits for the child; 124 if it had to be killed, as `timeout` has it.
int wait_for(pid_t pid) {
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  for (int status = 0;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    must(ended >= 0, "ready_program: waitpid");
    if (ended == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (std::chrono::steady_clock::now() > end) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return 124;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

ReadyProgram::ReadyProgram() {
  std::array<int, 2> ends{};
  must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0, "ready_program: socketpair");
  must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "ready_program: prctl");  // its children become ours
  std::vector<std::string> words = variables();
  words.push_back("LD_PRELOAD=" + binary_dir() + "/tests/ready.so");
  words.push_back("HRM_READY_SOCKET=" + std::to_string(ends[1]));
  std::vector<char*> environment;
  for (std::string& word : words) environment.push_back(word.data());
  environment.push_back(nullptr);
  std::string binary = train_binary();
  std::array<char*, 2> arguments{binary.data(), nullptr};
  link_ = ends[0];
  pid_ = fork();
  must(pid_ >= 0, "ready_program: fork");
  if (pid_ == 0) {
    fcntl(ends[1], F_SETFD, 0);
    execve(binary.c_str(), arguments.data(), environment.data());
    _exit(127);
  }
  close(ends[1]);
}

ReadyProgram::~ReadyProgram() {
  close(link_);
  waitpid(pid_, nullptr, 0);
}

int ReadyProgram::run(const std::vector<std::string>& arguments, const std::filesystem::path& dir) {
  std::vector<std::string> words{std::filesystem::current_path().string(), std::to_string(arguments.size() + 1),
                                 train_binary()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  for (const std::string& variable : variables()) words.push_back(variable);
  std::string order;
  for (const std::string& word : words) order.append(word).push_back('\0');

  const int writes = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const std::array<int, kFiles> files{open((dir / "in").c_str(), O_RDONLY | O_CLOEXEC),
                                      open((dir / "out").c_str(), writes, 0600),
                                      open((dir / "err").c_str(), writes, 0600)};
  for (const int file : files) must(file >= 0, "ready_program: open");
  send(link_, order, files);
  for (const int file : files) close(file);
  pid_t child = 0;
  if (recv(link_, &child, sizeof child, 0) != sizeof child) {
    throw std::runtime_error("ready_program: '" + train_binary() + "' does not answer");
  }
  return wait_for(child);
}

ReadyProgram& ready_program() {
  static ReadyProgram program;
  return program;
}

}  // namespace hrm::test
