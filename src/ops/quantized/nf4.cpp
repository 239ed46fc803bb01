#include "hrm/ops/nf4.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/quantized/nf4_impl.h"

namespace hrm::ops {

int64_t Nf4Tensor::bytes() const {
  return static_cast<int64_t>(codes.nbytes() + absmax.nbytes() + scales.nbytes() + offset.nbytes());
}

int64_t nf4_bytes(int64_t elements) {
  const int64_t blocks = nf4_blocks(elements), scales = (blocks + kNf4AbsmaxBlock - 1) / kNf4AbsmaxBlock;
  return (elements + 1) / 2 + blocks + 4 * scales + 4;
}

void check_nf4_quantize(const at::Tensor& weight) {
  TORCH_CHECK(at::isFloatingType(weight.scalar_type()) && weight.numel() > 0,
              "hrm::nf4_quantize: weight must be of a floating-point dtype and not empty, got ", weight.scalar_type(),
              " of ", weight.sizes());
}

void check_nf4_dequantize(const at::Tensor& out, const Nf4Tensor& from) {
  const int64_t n = out.numel(), blocks = nf4_blocks(n);
  TORCH_CHECK(at::isFloatingType(out.scalar_type()) && out.is_contiguous() && n > 0,
              "hrm::nf4_dequantize_: out must be contiguous, of a floating-point dtype and not empty, got ",
              out.scalar_type(), " of ", out.sizes(), out.is_contiguous() ? "" : ", not contiguous");
  const bool twice = from.absmax.scalar_type() == at::kByte;
  const auto is = [&](const at::Tensor& t, int64_t size, at::ScalarType dtype) {
    return t.dim() == 1 && t.size(0) == size && t.scalar_type() == dtype && t.device() == out.device() &&
           t.is_contiguous();
  };
  TORCH_CHECK(is(from.codes, (n + 1) / 2, at::kByte), "hrm::nf4_dequantize_: codes of ", n, " elements must be ",
              (n + 1) / 2, " contiguous uint8 on ", out.device(), ", got ", from.codes.scalar_type(), " of ",
              from.codes.sizes(), " on ", from.codes.device());
  TORCH_CHECK(is(from.absmax, blocks, twice ? at::kByte : at::kFloat), "hrm::nf4_dequantize_: absmax of ", n,
              " elements must be ", blocks, " contiguous float32 or uint8 on ", out.device(), ", got ",
              from.absmax.scalar_type(), " of ", from.absmax.sizes(), " on ", from.absmax.device());
  const int64_t scales = twice ? (blocks + kNf4AbsmaxBlock - 1) / kNf4AbsmaxBlock : 0;
  TORCH_CHECK(is(from.scales, scales, at::kFloat) && is(from.offset, twice ? 1 : 0, at::kFloat),
              "hrm::nf4_dequantize_: beside ", blocks, " absmax of ", from.absmax.scalar_type(), " must be ", scales,
              " scales and ", twice ? 1 : 0, " offset, contiguous float32 on ", out.device(), ", got ",
              from.scales.scalar_type(), " of ", from.scales.sizes(), " and ", from.offset.scalar_type(), " of ",
              from.offset.sizes());
}

void check_linear_nf4(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                      const OptionalTensor& residual) {
  TORCH_CHECK(workspace.dim() == 2 && x.dim() >= 1 && x.size(-1) == workspace.size(1) &&
                  x.scalar_type() == workspace.scalar_type() && x.device() == workspace.device(),
              "hrm::linear_nf4: x must be (..., in) where the workspace is (out, in), of one dtype and device, got ",
              x.scalar_type(), " of ", x.sizes(), " on ", x.device(), " and ", workspace.scalar_type(), " of ",
              workspace.sizes(), " on ", workspace.device());
  check_nf4_dequantize(workspace, weight);
  TORCH_CHECK(!residual || (residual->sizes().vec() == with_last_size(x, workspace.size(0)) &&
                            residual->scalar_type() == x.scalar_type() && residual->device() == x.device()),
              "hrm::linear_nf4: residual must be (..., out) of x's dtype and device, got ",
              residual ? residual->sizes() : at::IntArrayRef(), " for ", x.sizes(), " and ", workspace.sizes());
}

at::Tensor linear_nf4_dequantized(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                                  const OptionalTensor& residual) {
  const at::NoGradGuard no_grad;
  nf4_dequantize_(workspace, weight);
  return residual ? linear_add(x, workspace, workspace, *residual) : linear(x, workspace, workspace);
}

at::Tensor linear_nf4(const at::Tensor& x, const Nf4Tensor& weight, const at::Tensor& workspace,
                      const std::optional<at::Tensor>& residual) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const OptionalTensor&)>
      op("hrm::linear_nf4");
  return op(x, weight.codes, weight.absmax, weight.scales, weight.offset, workspace, residual);
}

Nf4Tensor nf4_quantize(const at::Tensor& weight, bool double_quantized) {
  static const Op<Nf4Parts(const at::Tensor&, bool)> op("hrm::nf4_quantize");
  auto [codes, absmax, scales, offset] = op(weight, double_quantized);
  return {.codes = codes, .absmax = absmax, .scales = scales, .offset = offset};
}

void nf4_quantize_magnitudes(Nf4Tensor& quantized) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(
      quantized.absmax.dim() == 1 && quantized.absmax.numel() > 0 && quantized.absmax.scalar_type() == at::kFloat,
      "hrm::nf4_quantize_magnitudes: magnitudes must be one-dimensional float32 and not empty, got ",
      quantized.absmax.scalar_type(), " of ", quantized.absmax.sizes());
  reference::nf4_quantize_absmax(quantized);
}

void nf4_dequantize_(const at::Tensor& out, const Nf4Tensor& from) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>
      op("hrm::nf4_dequantize_");
  op(out, from.codes, from.absmax, from.scales, from.offset);
}

at::Tensor nf4_dequantize(const Nf4Tensor& from, at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor out = at::empty(sizes, at::device(from.codes.device()).dtype(dtype));
  nf4_dequantize_(out, from);
  return out;
}

namespace {

// The reference piece by piece, so that what it keeps between its steps, several times the weight, stays small and in
// the cache. Whole blocks, bytes and groups of magnitudes.
constexpr int64_t kPiece = 16 * kNf4Block * kNf4AbsmaxBlock;

Nf4Parts nf4_quantize_cpu(const at::Tensor& weight, bool double_quantized) {
  check_nf4_quantize(weight);
  const at::Tensor flat = weight.reshape({-1});
  const int64_t n = flat.numel();
  const at::Tensor floats = at::empty({nf4_blocks(n)}, weight.options().dtype(at::kFloat));
  Nf4Tensor q{.codes = at::empty({(n + 1) / 2}, floats.options().dtype(at::kByte)),
              .absmax = floats,
              .scales = at::empty({0}, floats.options()),
              .offset = at::empty({0}, floats.options())};
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = std::min(kPiece, n - first);
    const Nf4Tensor piece = reference::nf4_quantize(flat.narrow(0, first, count), /*double_quantized=*/false);
    q.codes.narrow(0, first / 2, (count + 1) / 2).copy_(piece.codes);
    q.absmax.narrow(0, first / kNf4Block, nf4_blocks(count)).copy_(piece.absmax);
  }
  if (double_quantized) reference::nf4_quantize_absmax(q);
  return {q.codes, q.absmax, q.scales, q.offset};
}

void nf4_dequantize_cpu_(const at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax,
                         const at::Tensor& scales, const at::Tensor& offset) {
  const Nf4Tensor from{.codes = codes, .absmax = absmax, .scales = scales, .offset = offset};
  check_nf4_dequantize(out, from);
  const at::Tensor flat = out.view({-1});
  const int64_t n = flat.numel();
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = std::min(kPiece, n - first), blocks = nf4_blocks(count);
    Nf4Tensor piece = from;
    piece.codes = codes.narrow(0, first / 2, (count + 1) / 2);
    piece.absmax = absmax.narrow(0, first / kNf4Block, blocks);
    if (scales.numel() > 0) {
      piece.scales =
          scales.narrow(0, first / kNf4Block / kNf4AbsmaxBlock, (blocks + kNf4AbsmaxBlock - 1) / kNf4AbsmaxBlock);
    }
    reference::nf4_dequantize_(flat.narrow(0, first, count), piece);
  }
}

at::Tensor linear_nf4_cpu(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& absmax,
                          const at::Tensor& scales, const at::Tensor& offset, const at::Tensor& workspace,
                          const OptionalTensor& residual) {
  const Nf4Tensor weight{.codes = codes, .absmax = absmax, .scales = scales, .offset = offset};
  check_linear_nf4(x, weight, workspace, residual);
  return linear_nf4_dequantized(x, weight, workspace, residual);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "nf4_quantize(Tensor weight, bool double_quantized) -> "
      "(Tensor codes, Tensor absmax, Tensor scales, Tensor offset)");
  m.def("nf4_dequantize_(Tensor(a!) out, Tensor codes, Tensor absmax, Tensor scales, Tensor offset) -> ()");
  m.def(
      "linear_nf4(Tensor x, Tensor codes, Tensor absmax, Tensor scales, Tensor offset, Tensor(a!) workspace, "
      "Tensor? residual) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("nf4_quantize", &nf4_quantize_cpu);
  m.impl("nf4_dequantize_", &nf4_dequantize_cpu_);
  m.impl("linear_nf4", &linear_nf4_cpu);
}

}  // namespace hrm::ops
