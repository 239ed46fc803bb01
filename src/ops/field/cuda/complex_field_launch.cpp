#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <limits>

#include "ops/cuda/launcher.h"
#include "ops/field/complex_field_impl.h"
#include "ops/field/cuda/complex_field.h"

namespace hrm::ops {
namespace {

constexpr int64_t kMaxCells = std::numeric_limits<int32_t>::max();

// Kernels read a complex value at once.
bool whole_values(const at::Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % (2 * sizeof(float)) == 0;
}

bool whole_values(const OptionalTensor& tensor) {
  return !tensor || whole_values(*tensor);
}

bool counts_fit(const at::Tensor& field) {
  return field.size(0) <= kMaxCells && field.size(1) <= kMaxCells;
}

// Of a field with values.
cuda::ComplexFieldShape field_shape(const at::Tensor& field, bool periodic) {
  return {.nx = static_cast<int>(field.size(0)),
          .ny = static_cast<int>(field.size(1)),
          .inner = field.numel() / (2 * field.size(0) * field.size(1)),
          .periodic = periodic};
}

void verlet_cuda(const FieldVerletCall& call) {
  const c10::cuda::CUDAGuard guard(call.field.device());
  if (call.field.numel() == 0) return;
  const FieldVerlet& s = call.settings;
  if (!cuda::use_kernel(call.field) || !counts_fit(call.field) || !cuda::fits(field_shape(call.field, s.periodic)) ||
      !whole_values(call.field) || !whole_values(call.momentum) || !whole_values(call.equilibrium) ||
      !whole_values(call.nudge)) {
    return reference::complex_field_verlet_(call);
  }
  const cuda::ComplexFieldVerlet params{
      .field = call.field.mutable_data_ptr<float>(),
      .momentum = call.momentum.mutable_data_ptr<float>(),
      .equilibrium = s.potential == FieldPotential::zero ? nullptr : call.equilibrium.const_data_ptr<float>(),
      .nudge = cuda::optional_floats(call.nudge),
      .skip = cuda::optional_floats(call.skip),
      .shape = field_shape(call.field, s.periodic),
      .steps = call.steps,
      .kick = static_cast<float>(s.dt / 2),
      .drift = static_cast<float>(s.dt / s.mass),
      .laplace = static_cast<float>(s.hbar * s.hbar / (2 * s.mass)),
      .stiffness = static_cast<float>(s.stiffness),
      .potential = s.potential};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
}

void dissipative_cuda(const FieldDissipativeCall& call) {
  const c10::cuda::CUDAGuard guard(call.field.device());
  const FieldDissipative& s = call.settings;
  if (!cuda::use_kernel(call.field) || call.previous || call.field.numel() == 0 || !counts_fit(call.field) ||
      !cuda::fits(field_shape(call.field, s.periodic)) || !whole_values(call.field) || !whole_values(call.source)) {
    return reference::complex_field_dissipative_(call);
  }
  const cuda::ComplexFieldShape shape = field_shape(call.field, s.periodic);
  at::Tensor parts;
  if (call.magnitudes) parts = at::empty({call.steps, cuda::magnitude_parts_of(shape)}, call.field.options());
  const cuda::ComplexFieldDissipative params{
      .field = call.field.mutable_data_ptr<float>(),
      .history = call.history.mutable_data_ptr<int64_t>(),
      .source = cuda::optional_floats(call.source),
      .skip = cuda::optional_floats(call.skip),
      .shape = shape,
      .steps = call.steps,
      .turn = static_cast<float>(s.dt / s.hbar),
      .laplace = s.hbar / (2 * s.mass),
      .memory_gain = s.memory_gain,
      .history_capacity = s.history_capacity,
      .magnitude_parts = parts.defined() ? parts.mutable_data_ptr<float>() : nullptr,
      .magnitudes = call.magnitudes ? call.magnitudes->mutable_data_ptr<float>() : nullptr};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
}

at::Tensor energies_cuda(const FieldEnergiesCall& call) {
  const c10::cuda::CUDAGuard guard(call.field.device());
  const FieldVerlet& s = call.settings;
  if (!cuda::use_kernel(call.field) || call.field.numel() == 0 || !counts_fit(call.field) ||
      !whole_values(call.field) || !whole_values(call.momentum) || !whole_values(call.equilibrium)) {
    return reference::complex_field_energies(call);
  }
  const int64_t blocks = (call.field.numel() / 2 + cuda::kFieldEnergyBlock - 1) / cuda::kFieldEnergyBlock;
  const at::Tensor partial = at::empty({blocks, 3}, call.field.options().dtype(at::kDouble));
  const at::Tensor energies = at::empty({3}, partial.options());
  const cuda::ComplexFieldEnergies params{.field = call.field.const_data_ptr<float>(),
                                          .momentum = call.momentum.const_data_ptr<float>(),
                                          .equilibrium = call.equilibrium.const_data_ptr<float>(),
                                          .partial = partial.mutable_data_ptr<double>(),
                                          .energies = energies.mutable_data_ptr<double>(),
                                          .shape = field_shape(call.field, s.periodic),
                                          .blocks = blocks,
                                          .kinetic = 1 / (2 * s.mass),
                                          .stiffness = s.stiffness,
                                          .gradient = s.hbar * s.hbar / (4 * s.mass),
                                          .potential = s.potential};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return energies;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("complex_field_verlet_", &field_verlet_kernel<verlet_cuda>);
  m.impl("complex_field_dissipative_", &field_dissipative_kernel<dissipative_cuda>);
  m.impl("complex_field_energies", &field_energies_kernel<energies_cuda>);
}

}  // namespace hrm::ops
