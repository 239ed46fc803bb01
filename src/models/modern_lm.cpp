// The parts of the modern HRM-LM, and the model built from them.
#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/memory_blocks.h"
#include "hrm/nn/transformer_block.h"

namespace hrm::models {
namespace {

// Of a part of the model, the result is whole, and what follows is computed alike by every part.
struct TransformerEncoder : PromptEncoder, nn::HasPartialGradients {
  TransformerEncoder(const ModernLmOptions& o, at::Device device)
      : across(o.decoder.across),
        rotary(nn::make_rotary_table(o.max_prompt, o.decoder.head_dim, o.decoder.rope_theta, device)) {
    const DecoderOptions& d = o.decoder;
    const nn::Cut cut = across ? across->cut() : nn::Cut{};
    embed_tokens =
        register_module("embed_tokens", std::make_shared<nn::Embedding>(d.vocabulary, d.width, device, "weight", cut));
    embed_tokens->set_rounded();
    layers = add_blocks(*this, o.enc_layers, d, /*cross=*/false, o.enc_feed_forward, device);
    norm = register_module("norm", std::make_shared<nn::RmsNorm>(d.width, d.eps, device));
  }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, at::ScalarType dtype) override {
    const int64_t length = ids.size(1);
    require(length <= rotary.cos.size(0), ExitCode::usage, "a prompt of ", length, " tokens is longer than the ",
            rotary.cos.size(0), " that the model was built for; shorten it");
    nn::AttentionPass pass;
    pass.rotary = {rotary.cos.narrow(0, 0, length), rotary.sin.narrow(0, 0, length)};
    if (mask.defined()) pass.mask = mask.unsqueeze(1).unsqueeze(1);
    pass.causal = false;
    pass.rows = ids.size(0);
    pass.positions = length;
    at::Tensor h = embed_tokens->forward(ids, dtype);
    if (across) h = ops::add_pieces({}, across->leave(h.flatten(0, -2)));
    for (const auto& layer : layers) h = layer->forward(h, pass);
    h = norm->forward(h);
    return across ? across->enter_whole(h, ids.numel()).view({ids.size(0), length, -1}) : h;
  }
  bool has_partial_gradients() const override { return across != nullptr; }
  int64_t max_prompt() const override { return rotary.cos.size(0); }

  std::shared_ptr<const nn::TensorAcross> across;
  nn::RotaryTable rotary;
  std::shared_ptr<nn::Embedding> embed_tokens;
  TransformerBlocks layers;
  std::shared_ptr<nn::RmsNorm> norm;
};

// Keeps the residual stream in float32.
struct Mamba2Encoder : PromptEncoder {
  Mamba2Encoder(const ModernLmOptions& o, at::Device device) {
    const DecoderOptions& d = o.decoder;
    nn::Mamba2Options options = o.mamba2;
    options.width = d.width;
    embed_tokens =
        register_module("embed_tokens", std::make_shared<nn::Embedding>(d.vocabulary, d.width, device, "weight"));
    const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < o.enc_layers; ++i) {
      layers.push_back(list->register_module(std::to_string(i), std::make_shared<nn::Mamba2Block>(options, device)));
    }
    norm = register_module("norm", std::make_shared<nn::RmsNorm>(d.width, d.eps, device));
  }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, at::ScalarType dtype) override {
    at::Tensor h = embed_tokens->forward(ids, at::kFloat);
    for (const auto& layer : layers) h = layer->forward(h, mask, dtype);
    return norm->forward(h, dtype);
  }

  std::shared_ptr<nn::Embedding> embed_tokens;
  std::vector<std::shared_ptr<nn::Mamba2Block>> layers;
  std::shared_ptr<nn::RmsNorm> norm;
};

// norm(blocks(state + pos)); pos is initially zero.
struct ModernLevel : MemoryLevel, nn::HasOwnInit, nn::ReadsBlocksTogether {
  ModernLevel(int64_t length, int64_t depth, const DecoderOptions& o, at::Device device) {
    layers = add_blocks(*this, depth, o, /*cross=*/false, {}, device);
    norm = register_module("norm", std::make_shared<nn::RmsNorm>(o.width, o.eps, device));
    pos = register_parameter("pos", at::empty({length, o.width}, at::device(device)));
  }

  at::Tensor recur(const at::Tensor& state, const at::Tensor& extra, int64_t steps) const override {
    return nn::memory_blocks(layers, *norm, state, extra, pos, steps);
  }
  void init_own(uint64_t, const std::string&) override { pos.zero_(); }

  TransformerBlocks layers;
  std::shared_ptr<nn::RmsNorm> norm;
  at::Tensor pos;
};

struct ModernDecoder : AnswerDecoder {
  ModernDecoder(const ModernLmOptions& o, at::Device device)
      : kind(o.lm.bridge),
        model(register_module("model", std::make_shared<Decoder>(o.decoder, kind == Bridge::cross_attention, device))) {
  }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& memory) override {
    if (kind == Bridge::prefix) return model->forward(ids, memory.scalar_type(), {}, memory);
    return model->forward(ids, memory.scalar_type(), {}, {}, memory);
  }
  const nn::LmHead& head() const override { return model->head(); }
  int64_t positions() const override { return model->positions(); }
  Decoder* cached() override { return model.get(); }
  Bridge bridge() const override { return kind; }

  Bridge kind;
  std::shared_ptr<Decoder> model;
};

}  // namespace

std::shared_ptr<HrmLm> make_modern_lm(const ModernLmOptions& options, at::Device device) {
  ModernLmOptions o = options;
  o.decoder = resolve(o.decoder);
  const HrmCoreOptions& core = o.lm.core;
  require(o.decoder.width == core.width, ExitCode::usage, "the decoder's width ", o.decoder.width,
          " must equal the width of the reasoning core, ", core.width);
  std::shared_ptr<PromptEncoder> encoder;
  if (o.encoder == EncoderKind::transformer) {
    encoder = std::make_shared<TransformerEncoder>(o, device);
  } else {
    encoder = std::make_shared<Mamba2Encoder>(o, device);
  }
  DecoderOptions of_levels = o.decoder;
  of_levels.across = nullptr;  // the core stays whole
  const auto level = [&](int64_t length, int64_t layers) {
    return std::make_shared<ModernLevel>(length, layers, of_levels, device);
  };
  return std::make_shared<HrmLm>(
      o.lm, std::move(encoder),
      std::make_shared<HrmCore>(core, level(core.h_len, o.h_layers), level(core.l_len, o.l_layers),
                                std::make_shared<nn::RmsNorm>(core.width, o.decoder.eps, device), device),
      std::make_shared<ModernDecoder>(o, device), device);
}

}  // namespace hrm::models
