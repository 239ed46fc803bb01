#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/common/optional_tensor.h"
#include "ops/cuda/launcher.h"
#include "ops/sequence/cuda/selective_scan.h"
#include "ops/sequence/selective_scan_impl.h"

namespace hrm::ops {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Whether the kernels take these on the current device; else ATen's chunked form does.
bool served(const at::Tensor& x, const at::Tensor& B) {
  if (!cuda::use_kernel(x) || x.scalar_type() == at::kFloat || x.numel() == 0) return false;
  const cudaDeviceProp& device = *at::cuda::getCurrentDeviceProperties();
  return x.size(3) == cuda::kScanChannels && (B.size(3) == 64 || B.size(3) == 128) && device.major >= 8 &&
         device.sharedMemPerBlockOptin >= cuda::kScanSharedBytes && x.size(1) <= INT32_MAX - cuda::kScanChunk &&
         x.size(2) <= INT32_MAX;
}

// Rows of (B, T, heads, width) whose last dimension a kernel can read by 16 bytes; a copy where it cannot.
at::Tensor readable(const at::Tensor& t) {
  bool whole = t.stride(3) == 1 && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  for (int64_t dim = 0; dim < 3; ++dim) {
    whole = whole && (t.size(dim) == 1 || t.stride(dim) * t.element_size() % 16 == 0);
  }
  return whole ? t : cuda::aligned_rows(t);
}

cuda::ScanView view(const at::Tensor& t) {
  return {t.const_data_ptr(), t.size(0) == 1 ? 0 : t.stride(0), t.size(1) == 1 ? 0 : t.stride(1),
          t.size(2) == 1 ? 0 : t.stride(2)};
}

// As many segments as the GPU has room for at once: more would only move more states.
cuda::ScanShape shape_of(const at::Tensor& x, const at::Tensor& B) {
  constexpr int64_t kSegmentsAtOnce = 2;  // on a multiprocessor
  cuda::ScanShape s{};
  s.rows = x.size(0);
  s.length = static_cast<int>(x.size(1));
  s.heads = static_cast<int>(x.size(2));
  s.groups = static_cast<int>(B.size(2));
  s.state = static_cast<int>(B.size(3));
  const int64_t chunks = ceil_div(x.size(1), cuda::kScanChunk);
  const int64_t room = kSegmentsAtOnce * at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const int64_t segments = std::clamp<int64_t>(room / (s.rows * s.heads), 1, chunks);
  s.chunks = static_cast<int>(chunks);
  s.segment_chunks = static_cast<int>(ceil_div(chunks, segments));
  s.segments = static_cast<int>(ceil_div(chunks, s.segment_chunks));
  s.element = cuda::element_of(x);
  return s;
}

// The weights of all chunks.
at::Tensor weigh(const cuda::ScanShape& s, const at::Tensor& dt, const at::Tensor& A) {
  at::Tensor out = at::empty({s.rows * s.chunks * s.heads, sizeof(cuda::ScanWeights) / sizeof(float)}, dt.options());
  cuda::ScanWeigh params{};
  params.shape = s;
  params.dt = view(dt);
  params.A = A.const_data_ptr<float>();
  params.weights = reinterpret_cast<cuda::ScanWeights*>(out.mutable_data_ptr<float>());
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return out;
}
const cuda::ScanWeights* weights_in(const at::Tensor& weights) {
  return reinterpret_cast<const cuda::ScanWeights*>(weights.const_data_ptr<float>());
}

// The state with which each segment begins, in the directions that `states` names. Keeps nothing of its own.
struct Carried {
  at::Tensor totals, decays;
};
Carried carry(const cuda::ScanStates& states, const at::TensorOptions& floats) {
  const cuda::ScanShape& s = states.shape;
  if (s.segments == 1) return {};
  const int64_t places = states.directions * s.rows * s.heads * s.segments;
  Carried out{at::empty({places, cuda::kScanChannels * s.state}, floats), at::empty({places}, floats)};
  cuda::ScanStates fill = states;
  fill.totals = out.totals.mutable_data_ptr<float>();
  fill.decays = out.decays.mutable_data_ptr<float>();
  fill.entries = nullptr;
  C10_CUDA_CHECK(cuda::launch(fill, cuda::current_stream()));
  cuda::ScanPass pass{};
  pass.shape = s;
  pass.first[0] = states.first[0];
  pass.first[1] = states.first[1];
  pass.totals = fill.totals;
  pass.decays = fill.decays;
  pass.directions = states.directions;
  C10_CUDA_CHECK(cuda::launch(pass, cuda::current_stream()));
  return out;
}

OptionalTensor whole(const OptionalTensor& t) {
  return t ? OptionalTensor(cuda::aligned_rows(*t)) : std::nullopt;
}

const float* floats_of(const OptionalTensor& t) {
  return t ? t->const_data_ptr<float>() : nullptr;
}

std::tuple<at::Tensor, at::Tensor> ssd_scan_cuda(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                                 const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                                 int64_t chunk, const OptionalTensor& initial_state) {
  check_ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
  const c10::cuda::CUDAGuard guard(x.device());
  if (backend() == Backend::reference) return reference::ssd_scan_sequential(x, dt, A, B, C, D, initial_state);
  if (!served(x, B)) return reference::ssd_scan_chunked(x, dt, A, B, C, D, chunk, initial_state);

  const at::Tensor xs = readable(x), Bs = readable(B), Cs = readable(C), As = A.contiguous(), Ds = D.contiguous();
  const OptionalTensor first = whole(initial_state);
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor final_state = at::empty({x.size(0), x.size(2), x.size(3), B.size(3)}, dt.options());
  cuda::ScanStates states{};
  states.shape = shape_of(x, B);
  states.left[0] = view(xs);
  states.right[0] = view(Bs);
  const at::Tensor weights = weigh(states.shape, dt, As);
  states.weights = weights_in(weights);
  states.first[0] = floats_of(first);
  states.directions = 1;
  const Carried carried = carry(states, dt.options());
  cuda::ScanOutput out{};
  out.shape = states.shape;
  out.x = states.left[0];
  out.weights = states.weights;
  out.B = states.right[0];
  out.C = view(Cs);
  out.D = Ds.const_data_ptr<float>();
  out.first = states.first[0];
  if (carried.totals.defined()) out.totals = carried.totals.const_data_ptr<float>();
  out.y = y.mutable_data_ptr();
  out.final_state = final_state.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(out, cuda::current_stream()));
  return {y, final_state};
}

// Blocks that share the heads of a group: enough of them to fill the GPU.
int parts_of(const cuda::ScanShape& s) {
  const int64_t in_group = s.heads / s.groups;
  const int64_t room = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const int64_t parts = std::clamp<int64_t>(room / (s.rows * s.chunks * s.groups), 1, in_group);
  return static_cast<int>(ceil_div(in_group, ceil_div(in_group, parts)));
}

SsdScanGradients ssd_scan_backward_cuda(const at::Tensor& grad_y, const OptionalTensor& grad_final_state,
                                        const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                        const at::Tensor& B, const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                        const OptionalTensor& initial_state) {
  check_ssd_scan(x, dt, A, B, C, D, chunk, initial_state);
  check_ssd_scan_backward(grad_y, grad_final_state, x, dt);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!served(x, B) || grad_y.scalar_type() != x.scalar_type()) {
    return reference::ssd_scan_chunked_backward(grad_y, grad_final_state, x, dt, A, B, C, D, chunk, initial_state);
  }

  const at::Tensor grads = readable(grad_y), xs = readable(x), Bs = readable(B), Cs = readable(C);
  const at::Tensor As = A.contiguous(), Ds = D.contiguous();
  const OptionalTensor first = whole(initial_state), last = whole(grad_final_state);
  at::Tensor grad_state = at::empty({x.size(0), x.size(2), x.size(3), B.size(3)}, dt.options());
  cuda::ScanStates states{};
  states.shape = shape_of(x, B);
  const cuda::ScanShape& s = states.shape;
  states.left[0] = view(xs);
  states.left[1] = view(grads);
  states.right[0] = view(Bs);
  states.right[1] = view(Cs);
  const at::Tensor weights = weigh(states.shape, dt, As);
  states.weights = weights_in(weights);
  states.first[0] = floats_of(first);
  states.first[1] = floats_of(last);
  states.directions = 2;
  const Carried carried = carry(states, dt.options());
  at::Tensor entries = at::empty({2, s.rows, s.heads, s.chunks, x.size(3), B.size(3)}, x.options());
  if (carried.totals.defined()) states.totals = carried.totals.mutable_data_ptr<float>();
  states.entries = entries.mutable_data_ptr();
  states.last = grad_state.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(states, cuda::current_stream()));

  const int parts = parts_of(s);
  at::Tensor grad_x = at::empty(x.sizes(), x.options()), grad_dt = at::empty(dt.sizes(), dt.options());
  at::Tensor grad_A = at::empty(A.sizes(), A.options()), grad_D = at::empty(D.sizes(), D.options());
  at::Tensor grad_B = at::empty(B.sizes(), B.options()), grad_C = at::empty(C.sizes(), C.options());
  at::Tensor heads = at::empty({s.rows * s.chunks, s.heads, 2}, dt.options()), partial;
  if (parts > 1) partial = at::empty({2, parts, B.numel()}, dt.options());
  cuda::ScanBackward back{};
  back.shape = s;
  back.grad_y = states.left[1];
  back.x = states.left[0];
  back.weights = states.weights;
  back.B = states.right[0];
  back.C = states.right[1];
  back.A = As.const_data_ptr<float>();
  back.D = Ds.const_data_ptr<float>();
  back.entries = entries.const_data_ptr();
  back.grad_x = grad_x.mutable_data_ptr();
  back.grad_dt = grad_dt.mutable_data_ptr<float>();
  back.grad_B = grad_B.mutable_data_ptr();
  back.grad_C = grad_C.mutable_data_ptr();
  if (parts > 1) {
    back.partial_B = partial.mutable_data_ptr<float>();
    back.partial_C = back.partial_B + parts * B.numel();
  }
  back.partial_heads = reinterpret_cast<float2*>(heads.mutable_data_ptr<float>());
  back.parts = parts;
  C10_CUDA_CHECK(cuda::launch(back, cuda::current_stream()));
  cuda::ScanSums sums{};
  sums.shape = s;
  sums.partial_B = back.partial_B;
  sums.partial_C = back.partial_C;
  sums.grad_B = back.grad_B;
  sums.grad_C = back.grad_C;
  sums.parts = parts;
  sums.partial_heads = back.partial_heads;
  sums.grad_A = grad_A.mutable_data_ptr<float>();
  sums.grad_D = grad_D.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(sums, cuda::current_stream()));
  return {grad_x, grad_dt, grad_A, grad_B, grad_C, grad_D, grad_state};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("ssd_scan", &ssd_scan_cuda);
  m.impl("ssd_scan_backward", &ssd_scan_backward_cuda);
}

}  // namespace hrm::ops
