#pragma once
// The key-value store of LibTorch, as our Store and for its Gloo group.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <mutex>

#include "hrm/parallel/rendezvous.h"

namespace hrm::parallel {

std::chrono::milliseconds milliseconds(double seconds);

// What LibTorch's exceptions say, in one line: without the stack of calls.
std::string first_line(const std::exception& error);

}  // namespace hrm::parallel
