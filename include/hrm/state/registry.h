#pragma once
// The state registry. Every object that a resume needs lists its tensors and scalars once, in `visit_state`. Saving,
// loading, broadcasting at the start, replica hashing and resharding all walk that list.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hrm/state/part.h"

namespace hrm {

// Where an entry belongs: weights and their average are in model.pt, all else in state.safetensors.
enum class StateRole { weight, ema, optimizer, carry, loop };

// The layout of tensors in one flat vector that is split over ranks. Rank r has the r-th of `ranks` equal slices of
// every piece; together they are its shard.
struct FlatLayout {
  struct Member {
    std::string name;
    std::vector<int64_t> sizes;
    int64_t offset = 0;  // in the flat vector, in elements as all that follows
  };
  struct Piece {
    int64_t offset = 0;
    int64_t size = 0;  // a multiple of ranks
  };
  int rank = 0;
  int ranks = 1;
  int64_t size = 0;             // of the flat vector
  std::vector<Member> members;  // do not overlap; what lies between them is zero
  std::vector<Piece> pieces;    // cover the flat vector, in order

  int64_t share() const { return size / ranks; }
  // Where this rank's slice of a piece begins, in the flat vector and in its share; how long it is.
  int64_t slice_offset(const Piece& piece) const { return piece.offset + rank * slice_size(piece); }
  int64_t share_offset(const Piece& piece) const { return piece.offset / ranks; }
  int64_t slice_size(const Piece& piece) const { return piece.size / ranks; }
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  // `tensor` must be allocated; loading copies into it in place, so that views and captured graphs stay valid. `part`:
  // what it is of a tensor that ranks share out; the default is a tensor that every rank holds whole, with the same
  // content.
  virtual void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part = {}) = 0;
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
  StatePart part = {};
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
