#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "ops/cuda/launcher.h"
#include "ops/geometry/cuda/geometric_retrieval.h"
#include "ops/geometry/geometric_retrieval_impl.h"

namespace hrm::ops {
namespace {

constexpr int64_t kTargetBlocks = 264;  // two for each multiprocessor of an H100
constexpr int64_t kLeastPart = 64;      // candidates, below which a part is not worth its merging
constexpr int64_t kPartStep = 32;       // candidates that a block scores at a time

struct RetrievalSplit {
  int64_t size = kPartStep;  // candidates of a part
  int64_t parts = 0;
};

// So that `groups` times the parts fill the device. Shapes alone decide, so results do not depend on the device.
RetrievalSplit split_candidates(int64_t candidates, int64_t groups) {
  const auto divide = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  if (candidates == 0) return {};
  const int64_t parts = std::clamp<int64_t>(divide(kTargetBlocks, groups), 1, divide(candidates, kLeastPart));
  const int64_t size = divide(divide(candidates, parts), kPartStep) * kPartStep;
  return {size, divide(candidates, size)};
}

at::Tensor contiguous_or_undefined(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.contiguous() : tensor;
}

template <class T>
const T* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<T>() : nullptr;
}

const void* bytes_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

at::Tensor geometric_retrieval_cuda(const at::Tensor& query, const at::Tensor& resilience, const at::Tensor& g,
                                    const OptionalTensor& coords, const OptionalTensor& states,
                                    const OptionalTensor& mask, const OptionalTensor& bank_coords,
                                    const OptionalTensor& bank_states, const OptionalTensor& filled, double beta,
                                    double eps) {
  const RetrievalArgs args =
      retrieval_args(query, resilience, g, coords, states, mask, bank_coords, bank_states, filled, beta, eps);
  check_geometric_retrieval(args);
  const c10::cuda::CUDAGuard guard(query.device());
  const int64_t rows = query.size(0), axes = query.size(1), width = args.width();
  if (!cuda::use_kernel(query) || axes > cuda::kMostRetrievalAxes) return reference::geometric_retrieval(args);
  const RetrievalCandidates& c = args.candidates;
  const int64_t own = args.has_own() ? c.coords.size(1) : 0, slots = args.has_bank() ? c.bank_coords.size(0) : 0;
  if (rows * width * (own + slots) == 0) return at::zeros({rows, width}, query.options());
  const int64_t column_tiles = (width + cuda::retrieval_columns() - 1) / cuda::retrieval_columns();
  const int64_t tiles = (rows + cuda::kRetrievalRows - 1) / cuda::kRetrievalRows;
  const RetrievalSplit own_split = split_candidates(own, rows * column_tiles);
  const RetrievalSplit bank_split = split_candidates(slots, tiles * column_tiles);
  const int64_t parts = own_split.parts + bank_split.parts;
  const at::Tensor q = query.contiguous(), r = resilience.contiguous(), metric = g.contiguous();
  const RetrievalCandidates flat{.coords = contiguous_or_undefined(c.coords),
                                 .states = contiguous_or_undefined(c.states),
                                 .mask = contiguous_or_undefined(c.mask),
                                 .bank_coords = contiguous_or_undefined(c.bank_coords),
                                 .bank_states = contiguous_or_undefined(c.bank_states),
                                 .filled = c.filled};
  at::Tensor y = at::empty({rows, width}, q.options());
  at::Tensor mixes = at::empty({rows, parts, width}, q.options()), sums = at::empty({2, rows, parts}, q.options());
  const cuda::GeometricRetrieval params{.query = q.const_data_ptr<float>(),
                                        .resilience = r.const_data_ptr<float>(),
                                        .metric = metric.const_data_ptr<float>(),
                                        .coords = data_or_null<float>(flat.coords),
                                        .states = bytes_or_null(flat.states),
                                        .mask = data_or_null<bool>(flat.mask),
                                        .bank_coords = data_or_null<float>(flat.bank_coords),
                                        .bank_states = bytes_or_null(flat.bank_states),
                                        .filled = data_or_null<int64_t>(flat.filled),
                                        .mixes = mixes.mutable_data_ptr<float>(),
                                        .largest = sums.mutable_data_ptr<float>(),
                                        .totals = sums.mutable_data_ptr<float>() + rows * parts,
                                        .y = y.mutable_data_ptr<float>(),
                                        .rows = rows,
                                        .axes = axes,
                                        .width = width,
                                        .own = own,
                                        .slots = slots,
                                        .own_part = own_split.size,
                                        .bank_part = bank_split.size,
                                        .own_parts = static_cast<int>(own_split.parts),
                                        .bank_parts = static_cast<int>(bank_split.parts),
                                        .resilience_stride = resilience.dim(),
                                        .beta = static_cast<float>(beta),
                                        .eps = static_cast<float>(eps),
                                        .element = cuda::element_of(args.any_states())};
  C10_CUDA_CHECK(cuda::launch(params, cuda::current_stream()));
  return y;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("geometric_retrieval", &geometric_retrieval_cuda);
}

}  // namespace hrm::ops
