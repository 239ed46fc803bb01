#pragma once
// The state registry. Every object that a resume needs lists its tensors and scalars once, in `visit_state`; saving,
// loading, broadcasting at start, replica hashing and resharding all walk that list.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace hrm {

// Where an entry belongs: weights and their average stand in model.pt, all else in state.safetensors.
enum class StateRole { weight, ema, optimizer, carry, loop };

// A slice of a tensor that is split over ranks along dimension 0. Whole tensors: offset 0, global_rows = size(0).
struct StateSlice {
  int64_t offset = 0;
  int64_t global_rows = -1;  // -1: not split
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  // `tensor` must be allocated; loading copies into it in place, so that views and captured graphs stay valid.
  virtual void tensor(const std::string& name, at::Tensor& tensor, StateRole role, StateSlice slice = {}) = 0;
  virtual void integer(const std::string& name, int64_t& value) = 0;
  virtual void real(const std::string& name, double& value) = 0;
};

// Anything with a visit_state. Names are unique over the whole program state, parts joined by dots.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

struct TensorEntry {
  std::string name;
  at::Tensor tensor;
  StateRole role;
  StateSlice slice;
};

// A flat listing of a Stateful, for code that wants to see all entries at once. The tensors alias the object's.
struct StateListing {
  std::vector<TensorEntry> tensors;
  std::vector<std::pair<std::string, int64_t>> integers;
  std::vector<std::pair<std::string, double>> reals;
};

// Throws Error(unexpected) when two entries share a name.
StateListing list_state(Stateful& object);

// Digest (XXH3-128, hex) over names, types, shapes and bytes of all entries, in order. Copies tensors to the CPU.
std::string digest_state(Stateful& object);

}  // namespace hrm
