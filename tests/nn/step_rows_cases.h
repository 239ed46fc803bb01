#pragma once
// Blocks whose decoding steps are compared with whole rows, on every device.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/nn/lora.h"
#include "hrm/nn/transformer_block.h"
#include "support/random.h"

namespace hrm::nn::testing {

struct StepCase {
  AttentionSizes attention;
  int64_t inner = 0;
  WeightFormat format = WeightFormat::f32;
  LoraMode mode = LoraMode::off;
  bool dora = false;
  SwigluForm form = {};
};

inline std::string describe(const StepCase& c) {
  return cat(name(c.format),
             c.mode == LoraMode::off ? ""
             : c.dora                ? ", DoRA"
                                     : ", adapters",
             c.attention.bias ? ", bias" : "", c.attention.wide_qk_norm ? ", wide norms" : "",
             c.form.gelu ? ", gelu" : "");
}

// Two blocks, the second one's norm following the first one's output.
struct BlockPair : torch::nn::Module {
  BlockPair(const StepCase& c, at::Device device) {
    for (const char* block : {"first", "second"}) {
      const auto mlp = std::make_shared<SwigluFeedForward>(c.attention.width, c.inner, device, c.format, c.form);
      const TransformerBlockOptions options{.attention = c.attention, .weights = c.format};
      blocks.push_back(register_module(block, std::make_shared<TransformerBlock>(options, mlp, device)));
    }
  }
  std::vector<std::shared_ptr<TransformerBlock>> blocks;
};

// The same with an adapter on each layer.
class SteppedBlocks {
 public:
  SteppedBlocks(const StepCase& c, at::ScalarType dtype, at::Device device)
      : dtype_(dtype), device_(device), model_(std::make_shared<BlockPair>(c, device)) {
    set_ = std::make_unique<LoraSet>(*model_, LoraOptions{.rank = 8, .alpha = 6, .dora = c.dora}, device);
    const at::NoGradGuard no_grad;
    uint64_t seed = 20;
    const auto values = [&](const at::Tensor& like) {
      return test::numbers(like.sizes(), ++seed) / std::sqrt(static_cast<double>(like.size(-1)));
    };
    for (const auto& item : model_->named_parameters()) {
      const bool is_norm = item.key().find("norm") != std::string::npos;
      if (item.value().is_meta() || item.key().find("lora") != std::string::npos) continue;
      item.value().copy_(is_norm ? 1 + 0.2 * values(item.value()) : values(item.value()));
    }
    for (const QuantizedLayer& layer : quantized_layers(*model_)) {
      layer.linear->hold_quantized(values(layer.linear->weight()), layer.weight);
    }
    set_->initialise(3);  // DoRA's magnitudes are those of the weights
    for (const LoraAdapter::Pair& pair : set_->pairs()) pair.B.copy_(values(pair.B));
    keep_frozen_as(*model_, dtype);
    share_quantized_workspace(*model_, dtype);
    parameters_.build(*model_, dtype);
    set_->set_mode(c.mode);
    rotary_ = make_rotary_table(kLength, c.attention.head_dim, 10000, device);
    for (int i = 0; i < 2; ++i) {
      const auto zeros = [&] {
        return at::zeros({kRows, c.attention.kv_heads, kLength, c.attention.head_dim}, at::device(device).dtype(dtype));
      };
      caches_.push_back({zeros(), zeros()});
    }
  }

  // (rows, T, D) by one pass, and position by position.
  at::Tensor by_rows(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    at::Tensor h = x;
    for (const auto& block : model_->blocks) h = block->forward(h, {.rotary = rotary_});
    return h;
  }
  at::Tensor by_steps(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < kLength; ++i) {
      const at::Tensor place = at::full({kRows}, i, at::device(device_).dtype(at::kLong));
      StepRows h{x.narrow(1, i, 1).contiguous()};
      for (size_t b = 0; b < 2; ++b) {
        h = model_->blocks[b]->step(h, {.rotary = rotary_, .place = place}, nullptr, caches_[b],
                                    b == 0 ? model_->blocks[1].get() : nullptr);
        if (h.ahead.pairs.defined()) ++pairs_handed_on_;
      }
      all.push_back(h.x);
    }
    return at::cat(all, 1);
  }

  // How often a block has handed its rows to the next one in pairs.
  int64_t pairs_handed_on() const { return pairs_handed_on_; }

  at::Tensor input() const {
    return test::numbers({kRows, kLength, model_->blocks[0]->parameters().front().size(0)}, 7).to(device_, dtype_);
  }

  static constexpr int64_t kRows = 3, kLength = 4;

 private:
  at::ScalarType dtype_;
  at::Device device_;
  std::shared_ptr<BlockPair> model_;
  std::unique_ptr<LoraSet> set_;
  ParameterSet parameters_;
  RotaryTable rotary_;
  std::vector<LayerCache> caches_;
  int64_t pairs_handed_on_ = 0;
};

// Counts calls of ops whose name begins so, during its lifetime.
class OpCount {
 public:
  explicit OpCount(const std::string& begin) {
    prefix() = begin;
    counter() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                      if (std::string(function.name()).starts_with(prefix())) ++counter();
                                      return std::unique_ptr<at::ObserverContext>();
                                    }).scopes({at::RecordScope::FUNCTION}));
  }
  ~OpCount() { at::removeCallback(handle_); }
  OpCount(const OpCount&) = delete;
  OpCount& operator=(const OpCount&) = delete;

  int64_t count() const { return counter(); }

 private:
  static std::string& prefix() {
    static std::string text;
    return text;
  }
  static std::atomic<int64_t>& counter() {
    static std::atomic<int64_t> number{0};
    return number;
  }
  at::CallbackHandle handle_ = 0;
};

// tolerance: of the largest number.
inline void expect_steps_as_rows(const StepCase& c, at::ScalarType dtype, at::Device device, double tolerance) {
  SteppedBlocks blocks(c, dtype, device);
  const at::Tensor x = blocks.input(), rows = blocks.by_rows(x).to(at::kFloat),
                   steps = blocks.by_steps(x).to(at::kFloat);
  ASSERT_TRUE(at::isfinite(rows).all().item<bool>()) << describe(c);
  EXPECT_GT((rows - x).abs().max().item<double>(), 0.1 * x.abs().max().item<double>()) << describe(c);
  EXPECT_LE((steps - rows).abs().max().item<double>(), tolerance * rows.abs().max().item<double>())
      << describe(c) << " " << dtype;
}

}  // namespace hrm::nn::testing
