#pragma once
// Moves rows and partial sums between the parts of a model that is cut over the ranks of one axis.

#include <memory>

#include "hrm/nn/across.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// Part r of as many parts as `comm` has ranks, for rank r. Each operation travels in the dtype of its tensor. On a GPU
// it is ordered into the current stream. Throws as Comm, also in a backward pass.
std::shared_ptr<const nn::TensorAcross> make_tensor_across(std::shared_ptr<Comm> comm);
// Null, for a whole model, if `comm` is null or has only one rank.
std::shared_ptr<const nn::TensorAcross> across_of(std::shared_ptr<Comm> comm);

}  // namespace hrm::parallel
