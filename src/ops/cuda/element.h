#pragma once
// Element types of the kernels' tensors, named without torch headers.

namespace hrm::ops::cuda {

enum class Element : int { f32, bf16, f16 };

}  // namespace hrm::ops::cuda
