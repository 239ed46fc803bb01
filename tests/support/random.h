#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

namespace hrm::test {

// Normal numbers in float32 that depend on the seed alone.
inline at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::kFloat);
}

}  // namespace hrm::test
