#pragma once
// The backward pass of mlp_mix on a Hopper GPU has two ways: one kernel, and two that take turns.

#include "ops/mixing/mlp_mix_impl.h"

namespace hrm::ops::testing {

// While it lives, the kernels that take turns do what the one kernel could do, if `always`.
class MixTurns {
 public:
  explicit MixTurns(bool always) { set_mix_takes_turns(always); }
  ~MixTurns() { set_mix_takes_turns(false); }
  MixTurns(const MixTurns&) = delete;
  MixTurns& operator=(const MixTurns&) = delete;
};

inline const char* way_name(bool takes_turns) {
  return takes_turns ? " in turns" : "";
}

}  // namespace hrm::ops::testing
