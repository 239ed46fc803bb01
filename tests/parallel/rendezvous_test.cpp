// Who may join a store: ranks of its own job alone. And what does not answer as a store does ends in time.

#include "hrm/parallel/rendezvous.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "hrm/base/error.h"
#include "parallel/store_client.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr double kLimitS = 1;
constexpr std::chrono::seconds kMayTake{3};  // the limit and 2 s

// A job of two ranks that have met and go on until the end of the test.
class RunningJob {
 public:
  explicit RunningJob(const RendezvousOptions& options) : port_(test::free_port()) {
    for (int rank = 0; rank < 2; ++rank) {
      threads_.emplace_back([this, rank, options] {
        const Rendezvous rendezvous(test::launch_of(rank, 2, port_), options);
        std::unique_lock lock(mutex_);
        ++met_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return over_; });
      });
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return met_ == 2; });
  }
  ~RunningJob() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int port() const { return port_; }

 private:
  int port_, met_ = 0;
  bool over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
};

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

// What the store holds, seen by LibTorch's own client.
std::map<std::string, std::string> content(int port) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = std::chrono::seconds(5);
  c10d::TCPStore store("127.0.0.1", options);
  std::map<std::string, std::string> values;
  for (const std::string& key : store.listKeys()) values[key] = text(store.get(key));
  return values;
}

RendezvousOptions options_of(const std::string& run, const std::string& folder = "/here") {
  return {.meet_timeout_s = kLimitS, .timeout_s = kLimitS, .job = {.run = run, .folder = folder}};
}

TEST(RendezvousStranger, LeavesTheStoreOfAnotherJobUntouched) {
  RendezvousOptions patient = options_of("train runs/first");
  patient.meet_timeout_s = 30;
  const RunningJob first(patient);
  const auto before = content(first.port());
  ASSERT_GE(before.size(), 4u);  // the job, twice, and both ranks

  const Launch rank1 = test::launch_of(1, 2, first.port());
  Launch of_three = test::launch_of(2, 3, first.port()), by_agent = test::launch_of(0, 2, first.port());
  by_agent.agent_store = true;
  struct Stranger {
    Launch launch;
    RendezvousOptions options;
    std::vector<std::string> says;
  };
  const std::vector<std::string> another = {"rank 1 met the store of another job", "train runs/first", "process "};
  for (const Stranger& stranger : std::vector<Stranger>{
           {rank1, options_of("train runs/second"), another},
           {rank1, options_of("doctor"), another},
           {rank1, options_of("train runs/first", "/elsewhere"), another},
           {of_three, options_of("train runs/first"), {"rank 2 met the store of another job", "of 2 ranks", "3 ranks"}},
           {by_agent, options_of("train runs/second"), {"rank 0 met the store of another job"}},
           {rank1, options_of("train runs/first"), {"rank 1 of this job has come", "started twice"}},
           {by_agent, options_of("train runs/first"), {"rank 0 of this job has come", "started twice"}},
       }) {
    const auto start = Clock::now();
    test::expect_error(ExitCode::rank_failed, stranger.says, [&] { Rendezvous(stranger.launch, stranger.options); });
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
    EXPECT_EQ(content(first.port()), before) << stranger.says[0];
  }
  // A second rank 0 with a store of its own.
  test::expect_error(ExitCode::rank_failed, {"rank 0 cannot listen", "MASTER_PORT"},
                     [&] { Rendezvous(test::launch_of(0, 2, first.port()), options_of("train runs/second")); });
  EXPECT_EQ(content(first.port()), before);
}

TEST(RendezvousStranger, LaunchersNamesCountWhereBothHaveOne) {
  const int port = test::free_port();
  Launch server = test::launch_of(0, 1, port), other = server, silent = server;
  server.job = "17.0";
  other.job = "18.0";
  other.agent_store = silent.agent_store = true;
  silent.attempt = "1";
  const Rendezvous first(server, options_of("train runs/a"));
  test::expect_error(ExitCode::rank_failed, {"another job"}, [&] { Rendezvous(other, options_of("train runs/a")); });
  // The next attempt of the same job, on a node whose launcher says nothing.
  const Rendezvous next(silent, options_of("train runs/a"));
  EXPECT_EQ(next.connect()->get("x"), std::nullopt);
}

// A store of another program: a key that ranks wait for never comes.
TEST(RendezvousStranger, StoreOfAnotherProgram) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore theirs("127.0.0.1", options);
  theirs.set("their", bytes("key"));
  const auto before = content(theirs.getPort());
  const auto start = Clock::now();
  test::expect_error(ExitCode::rank_failed, {"after 1 s rank 0 has not come", "another program's store"},
                     [&] { Rendezvous(test::launch_of(1, 2, theirs.getPort()), options_of("train runs/a")); });
  EXPECT_LT(Clock::now() - start, kMayTake);
  EXPECT_EQ(content(theirs.getPort()), before);
}

// Listens, and does with each connection as `serve` says.
class Port {
 public:
  explicit Port(std::function<void(int fd)> serve) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
        serve(fd);
        kept_.push_back(fd);
      }
    });
  }
  ~Port() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (const int fd : kept_) close(fd);
    close(listener_);
  }
  int number() const { return number_; }

 private:
  int listener_, number_;
  std::thread thread_;
  std::vector<int> kept_;
};

void answer_the_ping(int fd) {
  std::array<char, 10> greeting{};
  if (recv(fd, greeting.data(), greeting.size(), MSG_WAITALL) == 10) send(fd, greeting.data() + 6, 4, MSG_NOSIGNAL);
}

TEST(RendezvousPort, WhatIsNoStoreEndsInTime) {
  struct Kind {
    const char* name;
    std::function<void(int fd)> serve;
    const char* says;
  };
  const std::vector<Kind> kinds = {
      {"silent", [](int) {}, "nothing is answered there for 1 s"},
      {"closing", [](int fd) { shutdown(fd, SHUT_RDWR); }, "each connection is closed there"},
      {"web server", [](int fd) { send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL); },
       "no store answers so"},
      {"slow", [](int fd) { send(fd, "\1", 1, MSG_NOSIGNAL); }, "nothing is answered there for 1 s"},
      {"stopped after the ping", answer_the_ping, "nothing is answered there for 1 s"},
      {"closed after the ping",
       [](int fd) {
         answer_the_ping(fd);
         shutdown(fd, SHUT_RDWR);
       },
       "each connection is closed there"},
  };
  test::on_threads(static_cast<int>(kinds.size()), [&](int index) {
    const Kind& kind = kinds[static_cast<size_t>(index)];
    SCOPED_TRACE(kind.name);
    const Port port(kind.serve);
    const auto start = Clock::now();
    test::expect_error(ExitCode::rank_failed, {"rank 1 found no store at 127.0.0.1:", kind.says, "MASTER_PORT"},
                       [&] { Rendezvous(test::launch_of(1, 2, port.number()), options_of("train runs/a")); });
    EXPECT_LT(Clock::now() - start, kMayTake);
    test::expect_error(ExitCode::rank_failed, {"rank 0 cannot listen on 127.0.0.1:", "MASTER_PORT"},
                       [&] { Rendezvous(test::launch_of(0, 2, port.number()), options_of("train runs/a")); });
  });
}

// All that LibTorch's client does, on LibTorch's server.
TEST(StoreClient, DoesWhatLibTorchsClientDoes) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore theirs("127.0.0.1", options);
  StoreClient ours("127.0.0.1", theirs.getPort(), Clock::now() + std::chrono::seconds(5));
  ours.set_limit(std::chrono::seconds(5));
  ours.set("a", bytes("1"));
  EXPECT_EQ(text(theirs.get("a")), "1");
  const std::string large(100000, 'x');
  theirs.set("large", bytes(large));
  EXPECT_EQ(text(ours.get("large")), large);
  EXPECT_TRUE(ours.check({"a", "large"}));
  EXPECT_FALSE(ours.check({"a", "b"}));
  EXPECT_EQ(text(ours.compareSet("b", bytes(""), bytes("2"))), "2");
  EXPECT_EQ(text(ours.compareSet("b", bytes(""), bytes("3"))), "2");
  EXPECT_EQ(text(ours.compareSet("b", bytes("2"), bytes("3"))), "3");
  EXPECT_EQ(ours.multiGet({"b", "a"}), (std::vector{bytes("3"), bytes("1")}));
  EXPECT_EQ(ours.add("number", 5), 5);
  EXPECT_EQ(ours.add("number", -2), 3);
  EXPECT_EQ(theirs.add("number", 0), 3);
  EXPECT_EQ(ours.getNumKeys(), theirs.getNumKeys());
  EXPECT_TRUE(ours.deleteKey("a"));
  EXPECT_FALSE(ours.deleteKey("a"));
  EXPECT_FALSE(theirs.check({"a"}));
  EXPECT_THROW(ours.wait({"a"}, milliseconds(50)), c10::DistStoreError);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    theirs.set("a", bytes("4"));
  });
  ours.wait({"a", "b"}, milliseconds(5000));
  EXPECT_EQ(text(ours.clone()->get("a")), "4");
  later.join();
}

// What a stopped server leaves open does not hang, and is not taken for the answer to something else.
TEST(StoreClient, EndsWithTheServersSilence) {
  const Port port(answer_the_ping);
  StoreClient client("127.0.0.1", port.number(), Clock::now() + std::chrono::seconds(5));
  client.set_limit(milliseconds(200));
  const auto start = Clock::now();
  EXPECT_THROW(client.check({"a"}), StoreError);
  EXPECT_THROW(client.getNumKeys(), StoreError);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace hrm::parallel
