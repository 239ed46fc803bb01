#pragma once
// Linear layer with a float32 master weight.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/cut.h"
#include "hrm/nn/frozen_weight.h"
#include "hrm/nn/parameter.h"

namespace hrm::nn {

class Fp8Layer;
class LoraAdapter;

// How a layer stores its weight.
enum class WeightFormat {
  f32,   // a parameter, which may be trained
  nf4,   // NF4 only, frozen
  fp8,   // e4m3 with a scale for each output, frozen (hrm/ops/weight8.h)
  int8,  // int8 with a scale for each output, frozen
};
constexpr bool is_quantized(WeightFormat format) {
  return format != WeightFormat::f32;
}
// "NF4", "e4m3", "int8" or "float32".
const char* name(WeightFormat format);
// Bytes of a weight in this format, with its scales.
int64_t stored_bytes(WeightFormat format, int64_t out, int64_t in);

// y = x weight^T (+ bias). Parameters: `weight` (out, in) and optionally `bias` (out), both float32 and uninitialised.
// An attached low-rank adapter is the submodule lora (hrm/nn/lora.h).
//
// A bias is added to what an adapter or a quantised weight gives, too. In a quantised format the parameter `weight` is
// on the meta device: it has a name and a shape but no storage. Its values come from hold_quantized(), and the buffer
// to dequantise them into from share_quantized_workspace().
class Linear : public torch::nn::Module, public HasComputeWeight, public HasCutParameters {
 public:
  Linear(int64_t in, int64_t out, at::Device device, bool bias = false, WeightFormat format = WeightFormat::f32);

  // (..., in) in the compute dtype -> (..., out). Gradients are accumulated in place in float32 (hrm/ops/linear.h).
  // x_is_kept: something else keeps x for its backward pass (see ops::fp8_linear).
  at::Tensor forward(const at::Tensor& x, bool x_is_kept = false) const;
  // residual + forward(x). Without a bias, the GEMM epilogue adds the residual where the device supports it
  // (ops::linear_add).
  at::Tensor forward_add(const at::Tensor& x, const at::Tensor& residual, bool x_is_kept = false) const;

  // Says that the weight is one part of a larger one. A layer cut by columns, whose results are partial sums, must have
  // no bias; other biases are cut as the rows.
  void set_cut(const ParameterCut& cut);
  const ParameterCut& cut() const { return cut_; }
  std::vector<std::pair<at::Tensor, ParameterCut>> cut_parameters() const override;

  // Freezes the weight and stores it in this dtype, uninitialised.
  void hold_frozen(at::ScalarType dtype);

  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // undefined without a bias

  // The weight that GEMMs read: the compute copy, or the master itself if there is no copy; while an adapter is merged,
  // the merged weight. After ParameterSet::cast_when_read(), a new tensor in each call. Callers that use it instead of
  // forward() must check needs_forward() first.
  at::Tensor compute_weight() const;
  // As compute_weight(), but without any adapter.
  at::Tensor base_weight() const { return casts_weight() ? weight_.detach().to(*cast_dtype_) : compute_weight_; }
  // Whether the layer casts its master wherever a GEMM reads it.
  bool casts_weight() const { return cast_dtype_.has_value(); }
  // base_weight(), of an outline with its values in a new tensor.
  at::Tensor read_base_weight() const;
  at::ScalarType compute_dtype() const { return cast_dtype_.value_or(compute_weight_.scalar_type()); }
  // Whether forward() is more than one GEMM with a fixed weight: there is a bias, the weight is quantised, an adapter
  // is active, or a recorded pass runs in 8 bits.
  bool needs_forward() const {
    return bias_.defined() || is_quantized(format_) || adapter() != nullptr || fp8() != nullptr;
  }

  // Attaches an adapter. Only once.
  void attach(std::shared_ptr<LoraAdapter> adapter);
  // The active adapter. Null if there is none, or if it is switched off or merged. Adapters of quantised layers are
  // never merged.
  const LoraAdapter* adapter() const;

  // Lets recorded passes multiply in 8 bits (hrm/nn/fp8_linears.h); null: no longer.
  void set_fp8(std::shared_ptr<const Fp8Layer> fp8) { fp8_ = std::move(fp8); }

  // Null unless recorded passes multiply in 8 bits now, without a bias and without an active adapter.
  const Fp8Layer* fp8_layer() const;

  WeightFormat format() const { return format_; }
  at::Device device() const { return device_; }
  // For a quantised format: quantises `weight` (out, in), of any floating-point dtype and device; NF4 with double
  // quantisation. Throws Error(checkpoint) that includes `name` if a value is not finite. Waits for the device.
  // Scales in 8 bits are those of whole rows, so a layer that is cut by columns gets the whole rows, and keeps its part
  // of them. NF4 has no part of a weight.
  void hold_quantized(const at::Tensor& weight, const std::string& name);
  // The same for a weight that is in the format fp8 or int8 already, on any device.
  void hold_weight8(const ops::Weight8& weight, const std::string& name);
  // Calls `hold`, which holds a quantised weight in the layer that it gets: the rows `first` to first + count of this
  // layer's, all that the other has. In an outline (nn/outline.h) only read_quantized() and read_nf4_rows() do, with a
  // layer that lives no longer than that, as often as they are called.
  using Hold = std::function<void(Linear&, int64_t first, int64_t count)>;
  void hold_by(Hold hold);
  // Whether the quantised weight is an outline: quantized_parts() have shapes and types, but no values.
  bool is_outlined() const { return hold_ != nullptr; }
  // Of an outline: quantized_parts() with values, or where rows_are_apart() those of some rows.
  std::vector<at::Tensor> read_quantized() const { return read_quantized(0, weight_.size(0)); }
  std::vector<at::Tensor> read_quantized(int64_t first, int64_t count) const;
  // Of an outline in NF4 where a row is whole blocks (has_whole_blocks()): codes and float32 magnitudes of some rows.
  // These depend on no other rows; ops::nf4_quantize_magnitudes() of all of them gives the rest, and require_finite()
  // checks it.
  ops::Nf4Tensor read_nf4_rows(int64_t first, int64_t count) const;
  bool has_whole_blocks() const { return format_ == WeightFormat::nf4 && weight_.size(1) % ops::kNf4Block == 0; }
  // All parts of the outline have got their values: it is none any more.
  void has_values() { hold_ = nullptr; }
  // Whether quantized_parts() are numbers and scales of rows, which need no other rows.
  bool rows_are_apart() const { return weight8_.defined() && !weight8_.transposed.defined(); }
  bool has_quantized() const { return nf4_.defined() || weight8_.defined(); }
  // The weight that the stored numbers stand for, as a new tensor on the layer's device; also of an outline.
  at::Tensor dequantized(at::ScalarType dtype) const;
  int64_t quantized_bytes() const;
  // All tensors of the stored form, whose contents may be moved by set_data(). Before the weight is held (an outline)
  // tensors of their sizes on the meta device. Empty for a layer of another format.
  std::vector<at::Tensor> quantized_parts() const;
  const ops::Nf4Tensor& nf4() const { return nf4_; }        // undefined before hold_quantized()
  const ops::Weight8& weight8() const { return weight8_; }  // undefined before hold_quantized() or hold_weight8()
  void set_workspace(const at::Tensor& workspace) { compute_weight_ = workspace; }
  // Whether products of many rows with an e4m3 weight are done in 8 bits (ops::linear_weight8), and with a transposed
  // copy for backward passes, on devices that have such products. After the weight is held.
  void set_fp8_products(bool on, bool transposed = false);
  // Whether this layer multiplies x (..., in) in 8 bits now, with no more than a plain adapter beside it: then callers
  // may quantise the rows themselves (hrm/nn/fp8_rows_block.h).
  bool takes_fp8_rows(const at::Tensor& x) const;
  FrozenWeight frozen_weight() const {
    return {.weight = base_weight(), .nf4 = nf4_, .weight8 = weight8_, .fp8_products = fp8_products_};
  }

  at::Tensor master_weight() const override { return weight_; }
  void set_compute_weight(const at::Tensor& weight) override {
    compute_weight_ = weight;
    cast_dtype_.reset();
  }
  void cast_when_read(at::ScalarType compute_dtype) {
    compute_weight_ = weight_;
    cast_dtype_ = compute_dtype;
  }

 private:
  std::shared_ptr<Linear> held(int64_t first, int64_t count, bool keeps_magnitudes = false) const;
  const Fp8Layer* fp8() const;  // null unless this pass runs in 8 bits, or gathers maxima for that

  at::Device device_;
  WeightFormat format_;
  at::Tensor weight_, bias_, compute_weight_;
  ParameterCut cut_;
  std::optional<at::ScalarType> cast_dtype_;  // set: there is no compute copy, and compute_weight_ is the master
  ops::Nf4Tensor nf4_;
  bool keeps_magnitudes_ = false;  // NF4 without double quantisation, of read_nf4_rows()
  ops::Weight8 weight8_;
  bool fp8_products_ = false;
  bool outlines_ = false;  // built in an OutlineScope
  Hold hold_;              // of an outline
  std::shared_ptr<LoraAdapter> lora_;
  std::shared_ptr<const Fp8Layer> fp8_;
};

// Throws Error(checkpoint) that includes `name` if a value of the weight was not finite. Waits for the device.
void require_finite(const ops::Nf4Tensor& weight, const std::string& name);

}  // namespace hrm::nn
