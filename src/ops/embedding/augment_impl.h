#pragma once
// What the files of augment share.

#include "hrm/ops/augment.h"

namespace hrm::ops {

struct AugmentArgs {
  const at::Tensor& inputs;
  const at::Tensor& labels;
  const at::Tensor& identifiers;
  const at::Tensor& table_inputs;
  const at::Tensor& table_labels;
  const at::Tensor& picks;
  Augmentation how;
};

// The op's signature, in the order of its schema.
using AugmentSignature = void(const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& identifiers,
                              const at::Tensor& table_inputs, const at::Tensor& table_labels, const at::Tensor& picks,
                              int64_t kind, int64_t seed, int64_t box_rows, int64_t box_cols);

// A kernel of that signature from a function of AugmentArgs.
template <void (*run)(const AugmentArgs&)>
void augment_kernel(const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& identifiers,
                    const at::Tensor& table_inputs, const at::Tensor& table_labels, const at::Tensor& picks,
                    int64_t kind, int64_t seed, int64_t box_rows, int64_t box_cols) {
  run({inputs,
       labels,
       identifiers,
       table_inputs,
       table_labels,
       picks,
       {static_cast<AugmentKind>(kind), static_cast<uint64_t>(seed), box_rows, box_cols}});
}

// Throws c10::Error with the op's name and the shapes that do not fit.
void check_augment(const AugmentArgs& args);

// Rows of a square grid of this many cells; 0 if there are none.
int64_t square_side(int64_t cells);

namespace reference {

// On the host; tensors of other devices are copied there and back.
void augment_rows_(const AugmentArgs& args);

}  // namespace reference
}  // namespace hrm::ops
