#pragma once
// Which elements of a tensor this process holds, where several ranks share it out.

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hrm {

// A box of elements: where it begins here and in the whole tensor, and how far it extends along each dimension. All
// three have as many numbers as the tensor has dimensions. With one number each, where the tensor has several, the box
// is a run of elements that follow each other in C order, here and in the whole. With one number in `here` alone, the
// box is packed: its elements follow each other here, in C order, from that element on.
struct StateBox {
  std::vector<int64_t> here, there, sizes;
  bool operator==(const StateBox&) const = default;
};

// Either the whole tensor (the default), or boxes of it. Several ranks may hold the same boxes: then they are replicas
// of each other. Boxes that differ between two ranks do not overlap, and those of all ranks cover the whole.
struct StatePart {
  bool split = false;
  std::vector<int64_t> sizes;   // of the whole tensor, if split
  std::vector<StateBox> boxes;  // if split; none: this rank holds nothing of it

  bool operator==(const StatePart&) const = default;
};

// Neighbouring rows of a tensor cut along dimension 0: those that begin at `first` of `rows` in all. `here`: the sizes
// of the part.
StatePart rows_part(c10::IntArrayRef here, int64_t first, int64_t rows);

// The box at `there` of a whole of `sizes`, all of the part, whose sizes are `here`.
StatePart box_part(c10::IntArrayRef here, std::vector<int64_t> there, std::vector<int64_t> sizes);

// `count` elements from the element `first` on, in C order, of a whole of `sizes`. The part has one dimension. A count
// of 0: nothing.
StatePart run_part(std::vector<int64_t> sizes, int64_t first, int64_t count);

// Elements that follow each other in C order, both here and in the whole.
struct StateRun {
  int64_t here = 0, there = 0, size = 0;
  bool operator==(const StateRun&) const = default;
};

// The part as runs, sorted by their place in the whole, as few as there can be. `here`: the sizes of the tensor that
// holds the part. Throws Error(unexpected) with the reason when a box leaves the tensor or the whole, or two overlap.
std::vector<StateRun> runs_of(const StatePart& part, c10::IntArrayRef here);

// The number of elements of a tensor of these sizes.
int64_t count_of(c10::IntArrayRef sizes);

// Whether the part is all of the tensor.
bool holds_all(const StatePart& part, c10::IntArrayRef here);

// "8x64 0,0>4,0:4x64": the sizes of the whole, then each box as here>there:sizes. Empty for a whole tensor. Parsing
// returns false for any other text.
std::string part_text(const StatePart& part);
bool parse_part(std::string_view text, StatePart& part);

}  // namespace hrm
