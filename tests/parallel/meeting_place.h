#pragma once
// Ranks of one training on this machine.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "hrm/parallel/launch.h"

namespace hrm::parallel {

// LibTorch's recorder of collective operations, one per process, changes a map without a lock: it knows one thread
// only.
inline const bool flight_recorder_is_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 1) == 0;

// Asked of the kernel; free for long enough.
inline int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

inline Launch launch_of(int rank, int ranks, int port) {
  return {.launcher = Launcher::environment,
          .rank = rank,
          .ranks = ranks,
          .local_rank = rank,
          .local_ranks = ranks,
          .port = port};
}

}  // namespace hrm::parallel
