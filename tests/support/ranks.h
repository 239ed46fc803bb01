#pragma once
// Several ranks as threads of the test: through shared memory, or over Gloo as in a training of several processes.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <thread>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/rendezvous.h"

namespace hrm::test {

// LibTorch's recorder of collectives adds each new group to a map of the process without a lock
// (FlightRecorderDetail.hpp, LibTorch 2.11), which several groups in one process, as only tests have them, do at the
// same time.
inline const bool kNoFlightRecorder = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1) == 0;

// On which nobody listens, and that Linux gives to no connection (as tests/support/free_port.py).
inline int free_port() {
  static std::minstd_rand random{std::random_device{}()};
  for (int tries = 0; tries < 10000; ++tries) {
    const int port = 10000 + static_cast<int>(random() % 10000), fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    if (free) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

inline parallel::Launch launch_of(int rank, int ranks, int port) {
  return {.launcher = parallel::Launcher::environment,
          .rank = rank,
          .ranks = ranks,
          .local_rank = rank,
          .local_ranks = ranks,
          .port = port};
}

// Each rank in a thread; what a thread throws is thrown here.
inline void on_threads(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // First what went wrong by itself: the others only waited for that rank.
  std::exception_ptr waited;
  for (const auto& error : errors) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& each) {
      if (each.code() != ExitCode::rank_failed) throw;
      if (!waited) waited = error;
    }
  }
  if (waited) std::rethrow_exception(waited);
}

// A pointer to a Comm that lives longer.
inline std::shared_ptr<parallel::Comm> borrowed(parallel::Comm& comm) {
  return {std::shared_ptr<parallel::Comm>(), &comm};
}

enum class Kind { threads, gloo };

struct Ranks {
  Kind kind;
  int count;
};
inline void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.count << (ranks.kind == Kind::gloo ? " over gloo" : " threads");
}

// The body once for each rank, with that rank's Comm.
inline void on_ranks(const Ranks& ranks, const std::function<void(parallel::Comm&)>& body) {
  if (ranks.kind == Kind::threads) {
    const auto comms = parallel::make_thread_comms(ranks.count);
    on_threads(ranks.count, [&](int rank) { body(*comms[static_cast<size_t>(rank)]); });
    return;
  }
  const int port = free_port();
  on_threads(ranks.count, [&](int rank) {
    parallel::Rendezvous rendezvous(launch_of(rank, ranks.count, port), {.meet_timeout_s = 30, .timeout_s = 30});
    const auto comm = rendezvous.make_gloo_comm();
    body(*comm);
    comm->barrier();  // rank 0 serves the store
  });
}

}  // namespace hrm::test
