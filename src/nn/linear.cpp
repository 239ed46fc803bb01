#include "hrm/nn/linear.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"

namespace hrm::nn {

namespace {

// The type of the 8-bit numbers.
at::ScalarType weight8_type(WeightFormat format) {
  return format == WeightFormat::int8 ? at::kChar : at::kFloat8_e4m3fn;
}

}  // namespace

const char* name(WeightFormat format) {
  switch (format) {
    case WeightFormat::nf4:
      return "NF4";
    case WeightFormat::fp8:
      return "e4m3";
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::f32:
      break;
  }
  return "float32";
}

int64_t stored_bytes(WeightFormat format, int64_t out, int64_t in) {
  if (format == WeightFormat::nf4) return ops::nf4_bytes(out * in);
  return is_quantized(format) ? ops::weight8_bytes(out, in) : 4 * out * in;
}

Linear::Linear(int64_t in, int64_t out, at::Device device, bool bias, WeightFormat format)
    : device_(device), format_(format), outlines_(OutlineScope::active()) {
  const bool quantized = is_quantized(format);
  const auto meta = at::device(at::kMeta);
  weight_ =
      register_parameter("weight", quantized ? at::empty({out, in}, meta) : make_weight({out, in}, at::device(device)),
                         /*requires_grad=*/!quantized);
  if (bias) bias_ = register_parameter("bias", at::empty({out}, at::device(device)));
  compute_weight_ = weight_;
}

void Linear::set_cut(const ParameterCut& cut) {
  require(cut.by != CutBy::columns || !bias_.defined(), ExitCode::unexpected,
          "a layer that is cut by its inputs gives partial sums, to which no bias may be added");
  cut_ = cut;
}

std::vector<std::pair<at::Tensor, ParameterCut>> Linear::cut_parameters() const {
  if (cut_.whole()) return {};
  std::vector<std::pair<at::Tensor, ParameterCut>> cuts{{weight_, cut_}};
  if (bias_.defined()) cuts.emplace_back(bias_, cut_);
  return cuts;
}

void Linear::hold_frozen(at::ScalarType dtype) {
  weight_.set_requires_grad(false);
  const at::TensorOptions options = weight_.options().dtype(dtype).requires_grad(false);
  weight_.set_data(is_outline(weight_) ? outline(weight_.sizes(), options) : at::empty(weight_.sizes(), options));
}

at::Tensor Linear::forward(const at::Tensor& x, bool x_is_kept) const {
  const auto with_bias = [&](const at::Tensor& y) { return bias_.defined() ? y + bias_.to(y.scalar_type()) : y; };
  if (const LoraAdapter* lora = adapter()) return with_bias(lora->forward(x, frozen_weight()));
  if (is_quantized(format_)) return with_bias(frozen_linear(x, frozen_weight()));
  if (const Fp8Layer* layer = fp8()) return with_bias(layer->forward(x, *this, {}, x_is_kept));
  return ops::linear(x, compute_weight(), weight_, bias_);
}

at::Tensor Linear::forward_add(const at::Tensor& x, const at::Tensor& residual, bool x_is_kept) const {
  if (bias_.defined()) return residual + forward(x);
  if (const LoraAdapter* lora = adapter()) return lora->forward(x, frozen_weight(), residual);
  if (is_quantized(format_)) return frozen_linear(x, frozen_weight(), residual);
  if (const Fp8Layer* layer = fp8()) return layer->forward(x, *this, residual, x_is_kept);
  return ops::linear_add(x, compute_weight(), weight_, residual);
}

const Fp8Layer* Linear::fp8() const {
  return fp8_ && fp8_->runs() ? fp8_.get() : nullptr;
}

const Fp8Layer* Linear::fp8_layer() const {
  const Fp8Layer* const layer = bias_.defined() || adapter() != nullptr ? nullptr : fp8();
  return layer != nullptr && layer->quantises() ? layer : nullptr;
}

at::Tensor Linear::compute_weight() const {
  require(!is_quantized(format_), ExitCode::unexpected,
          "a quantised layer has no compute weight; use forward() or frozen_weight()");
  return lora_ && lora_->merged() ? lora_->merged_weight() : base_weight();
}

void Linear::attach(std::shared_ptr<LoraAdapter> adapter) {
  require(!lora_, ExitCode::unexpected, "a linear layer accepts only one adapter");
  lora_ = register_module("lora", std::move(adapter));
}

void require_finite(const ops::Nf4Tensor& weight, const std::string& name) {
  // A magnitude that is not finite makes their mean non-finite.
  require(std::isfinite(weight.offset.item<float>()), ExitCode::checkpoint, "'", name,
          "' contains values that are not finite, which NF4 cannot store; set hf.quantize to none");
}

void Linear::hold_quantized(const at::Tensor& weight, const std::string& name) {
  const bool columns = cut_.by == CutBy::columns && !cut_.whole();
  const std::vector<int64_t> sizes = columns ? cut_.whole_sizes(weight_.sizes()) : weight_.sizes().vec();
  require(is_quantized(format_) && weight.sizes() == at::IntArrayRef(sizes), ExitCode::unexpected, "'", name,
          "' has the wrong shape, or its layer was not built with a quantised format");
  const at::NoGradGuard no_grad;
  if (format_ != WeightFormat::nf4) {
    ops::Weight8 whole = ops::quantize_weight8(weight.to(device_), weight8_type(format_));
    // Bytes, since not every operation knows the type of 8-bit floats.
    if (columns) whole.values = cut_.part_of(whole.values.view(at::kByte)).view(weight8_type(format_));
    return hold_weight8(whole, name);
  }
  require(cut_.whole(), ExitCode::unexpected, "'", name, "' is a part, which NF4 cannot store");
  nf4_ = ops::nf4_quantize(weight.to(device_), /*double_quantized=*/!keeps_magnitudes_);
  if (!keeps_magnitudes_) require_finite(nf4_, name);
}

void Linear::hold_weight8(const ops::Weight8& weight, const std::string& name) {
  require(is_quantized(format_) && weight.values.scalar_type() == weight8_type(format_) &&
              format_ != WeightFormat::nf4 && weight.values.sizes() == weight_.sizes(),
          ExitCode::unexpected, "'", name, "' has another shape or format than its layer");
  weight8_ = {.values = weight.values.to(device_), .scales = weight.scales.to(device_)};
  const at::Tensor finite = at::isfinite(weight8_.scales).all();
  const bool has_nan =
      format_ == WeightFormat::fp8 && weight8_.values.view(at::kByte).bitwise_and(0x7f).eq(0x7f).any().item<bool>();
  require(finite.item<bool>() && !has_nan, ExitCode::checkpoint, "'", name,
          "' contains values that are not finite, which ", nn::name(format_),
          " with a scale for each output cannot store; set hf.quantize to none");
}

void Linear::hold_by(Hold hold) {
  if (!outlines_) return hold(*this, 0, weight_.size(0));
  hold_ = std::move(hold);
  const int64_t elements = weight_.numel(), out = weight_.size(0);
  const auto part = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return outline(sizes, at::device(device_).dtype(type));
  };
  if (format_ != WeightFormat::nf4) {
    weight8_ = {.values = part(weight_.sizes(), weight8_type(format_)), .scales = part({out}, at::kFloat)};
    return;
  }
  const int64_t blocks = (elements + ops::kNf4Block - 1) / ops::kNf4Block;
  nf4_ = {.codes = part({(elements + 1) / 2}, at::kByte),
          .absmax = part({blocks}, at::kByte),
          .scales = part({(blocks + ops::kNf4AbsmaxBlock - 1) / ops::kNf4AbsmaxBlock}, at::kFloat),
          .offset = part({1}, at::kFloat)};
}

// A layer with the values of rows of this outline.
std::shared_ptr<Linear> Linear::held(int64_t first, int64_t count, bool keeps_magnitudes) const {
  const OutlineScope real(false);
  auto layer = std::make_shared<Linear>(weight_.size(1), count, device_, /*bias=*/false, format_);
  layer->keeps_magnitudes_ = keeps_magnitudes;
  if (cut_.by == CutBy::columns) layer->set_cut(cut_);
  hold_(*layer, first, count);
  layer->set_fp8_products(fp8_products_, weight8_.transposed.defined());
  return layer;
}

std::vector<at::Tensor> Linear::read_quantized(int64_t first, int64_t count) const {
  require(is_outlined() && (rows_are_apart() || count == weight_.size(0)), ExitCode::unexpected,
          "this layer is no outline of a quantised weight, or its rows are not quantised by themselves");
  return held(first, count)->quantized_parts();
}

ops::Nf4Tensor Linear::read_nf4_rows(int64_t first, int64_t count) const {
  require(is_outlined() && has_whole_blocks(), ExitCode::unexpected,
          "this layer is no outline of an NF4 weight, or its rows are no whole blocks");
  return held(first, count, /*keeps_magnitudes=*/true)->nf4();
}

at::Tensor Linear::read_base_weight() const {
  if (!is_outline(weight_)) return base_weight();
  const at::Tensor weight = at::empty(weight_.sizes(), weight_.options().requires_grad(false));
  if (source()) read_elements(source(), weight.size(1), 0, weight.view(-1));
  return weight;
}

at::Tensor Linear::dequantized(at::ScalarType dtype) const {
  if (is_outlined()) return held(0, weight_.size(0))->dequantized(dtype);
  require(has_quantized(), ExitCode::unexpected, "this layer has no quantised weight; call hold_quantized() first");
  return format_ == WeightFormat::nf4 ? ops::nf4_dequantize(nf4_, weight_.sizes(), dtype)
                                      : ops::dequantize_weight8(weight8_, dtype);
}

int64_t Linear::quantized_bytes() const {
  return nf4_.defined() ? nf4_.bytes() : weight8_.defined() ? weight8_.bytes() : 0;
}

std::vector<at::Tensor> Linear::quantized_parts() const {
  std::vector<at::Tensor> parts;
  if (is_quantized(format_) && !has_quantized()) {
    const at::TensorOptions bytes = at::device(at::kMeta).dtype(at::kByte);
    const int64_t elements = weight_.numel(), blocks = (elements + 63) / 64;
    if (format_ != WeightFormat::nf4) return {at::empty({elements}, bytes), at::empty({4 * weight_.size(0)}, bytes)};
    return {at::empty({(elements + 1) / 2}, bytes), at::empty({blocks}, bytes),
            at::empty({4 * ((blocks + 255) / 256)}, bytes), at::empty({4}, bytes)};
  }
  for (const at::Tensor& part : {nf4_.codes, nf4_.absmax, nf4_.scales, nf4_.offset, weight8_.values, weight8_.scales,
                                 weight8_.transposed, weight8_.ones}) {
    if (part.defined() && part.numel() > 0) parts.push_back(part);
  }
  return parts;
}

void Linear::set_fp8_products(bool on, bool transposed) {
  fp8_products_ = on && format_ == WeightFormat::fp8;
  if (!fp8_products_ || !weight8_.defined()) return;
  if (!transposed || !ops::has_fp8_products(device_)) {
    weight8_.transposed = weight8_.ones = at::Tensor();
  } else if (is_outlined()) {
    const int64_t out = weight_.size(0), in = weight_.size(1);
    weight8_.transposed = outline({in, out}, weight8_.values.options());
    weight8_.ones = outline({in}, weight8_.scales.options());
  } else if (!weight8_.transposed.defined()) {
    weight8_ = ops::with_transposed(weight8_);
  }
}

bool Linear::takes_fp8_rows(const at::Tensor& x) const {
  if (!fp8_products_ || bias_.defined() || !weight8_.defined()) return false;
  const LoraAdapter* const lora = adapter();
  return (lora == nullptr || !lora->has_dora()) && ops::takes_fp8_rows(x, weight8_);
}

const LoraAdapter* Linear::adapter() const {
  return lora_ && lora_->active() ? lora_.get() : nullptr;
}

}  // namespace hrm::nn
