#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "hrm/parallel/rendezvous.h"

namespace hrm::parallel {

// All ranks of the launch over LibTorch's Gloo. Throws Error(rank_failed) where they do not reach each other,
// Error(environment) where the interface is not there.
std::unique_ptr<Comm> make_gloo_comm(const c10::intrusive_ptr<c10d::Store>& store, const Launch& launch,
                                     const RendezvousOptions& options);

}  // namespace hrm::parallel
