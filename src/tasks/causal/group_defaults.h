#pragma once
// How the optimizer treats the parameters of causal models: no decay of vectors, and embedding and head are none of
// Muon's matrices.

#include "hrm/optim/groups.h"

namespace hrm::tasks {

inline optim::GroupDefaults causal_group_defaults() {
  optim::GroupDefaults defaults;
  defaults.decay_vectors = false;
  defaults.not_matrices = {"*embed*", "*head.weight"};
  return defaults;
}

}  // namespace hrm::tasks
