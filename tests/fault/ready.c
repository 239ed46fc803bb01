// Loaded with LD_PRELOAD: the program stops before main(), with its libraries loaded, and each order runs main() in a
// child. Loading torch takes longer than most runs of the campaigns and of test_cli.
//
// An order is a packet on the socket HRM_READY_SOCKET: the folder to work in, the number of arguments, the arguments and
// the variables of the environment, each with a 0 behind it. With it comes one file for stdout and stderr, or three files
// for stdin, stdout and stderr. The answer is the child's pid.
// Its parent is the sender of the order, if that one is a subreaper, and it dies with it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int Main(int, char**, char**);
enum { kMostBytes = 200000, kMostWords = 4096, kMostFiles = 3 };

static Main* real_main;

struct Files {
  int count, numbers[kMostFiles];
};

// One packet; the number of bytes, 0 at the end.
static ssize_t receive(int link, char* data, struct Files* files) {
  union {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(kMostFiles * sizeof(int))];
  } control;
  struct iovec part = {data, kMostBytes};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  const ssize_t size = recvmsg(link, &message, MSG_CMSG_CLOEXEC);
  const struct cmsghdr* head = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
  if (!head || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) return size > 0 ? -1 : size;
  files->count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  memcpy(files->numbers, CMSG_DATA(head), (size_t)files->count * sizeof(int));
  return size;
}

static int redirect(const struct Files* files) {
  const int* numbers = files->numbers;
  if (files->count == 1) return dup2(numbers[0], 1) < 0 || dup2(numbers[0], 2) < 0;
  return files->count != 3 || dup2(numbers[0], 0) < 0 || dup2(numbers[1], 1) < 0 || dup2(numbers[2], 2) < 0;
}

static void close_all(const struct Files* files) {
  for (int i = 0; i < files->count; ++i) close(files->numbers[i]);
}

static int run(int link, char* data, ssize_t size, const struct Files* files, pid_t above) {
  while (getppid() == above) usleep(100);  // until the sender is the parent
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  char* words[kMostWords] = {0};
  int count = 0;
  for (char* at = data; at < data + size && count < kMostWords - 1; at += strlen(at) + 1) words[count++] = at;
  const int arguments = atoi(words[1]);
  memmove(words + 1, words + 2, sizeof(char*) * (kMostWords - 2));
  char** argv = malloc(sizeof(char*) * (size_t)(arguments + 1));
  memcpy(argv, words + 1, sizeof(char*) * (size_t)arguments);
  argv[arguments] = NULL;
  char** variables = malloc(sizeof(char*) * kMostWords);
  memcpy(variables, words + 1 + arguments, sizeof(char*) * (size_t)(kMostWords - 1 - arguments));
  variables[kMostWords - 1 - arguments] = NULL;
  if (chdir(words[0]) != 0 || redirect(files)) _exit(126);
  close_all(files);
  const pid_t self = getpid();
  if (send(link, &self, sizeof self, 0) != sizeof self) _exit(126);
  close(link);
  environ = variables;
  return real_main(arguments, argv, environ);
}

static int serve(int argc, char** argv, char** variables) {
  const char* number = getenv("HRM_READY_SOCKET");
  if (!number) return real_main(argc, argv, variables);
  const int link = atoi(number);
  char* data = malloc(kMostBytes + 1);
  struct Files files;
  for (ssize_t size; (size = receive(link, data, &files)) > 0; close_all(&files)) {
    data[size] = 0;
    const pid_t between = fork();
    if (between == 0) {
      const pid_t above = getpid(), child = fork();
      if (child == 0) return run(link, data, size, &files, above);
      _exit(child < 0);
    }
    if (between < 0 || waitpid(between, NULL, 0) < 0) return 126;
  }
  _exit(0);
}

int __libc_start_main(Main* main, int argc, char** argv, void (*init)(void), void (*fini)(void), void (*rtld)(void), void* stack) {
  typedef int Start(Main*, int, char**, void (*)(void), void (*)(void), void (*)(void), void*);
  real_main = main;
  return ((Start*)dlsym(RTLD_NEXT, "__libc_start_main"))(serve, argc, argv, init, fini, rtld, stack);
}
