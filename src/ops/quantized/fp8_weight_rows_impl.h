#pragma once
// What the files of fp8_weight_rows share: the input checks and the plain ATen reference.

#include "hrm/ops/fp8_rows.h"

namespace hrm::ops {

// Throws c10::Error with the op's name and the shapes.
void check_quantize_fp8_weight_rows(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute);

// Gives wide slots the scale of their amax, which stays.
void scale_of_amax(const at::Tensor& slots);

namespace reference {

void quantize_fp8_weight_rows_(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute);

}  // namespace reference
}  // namespace hrm::ops
