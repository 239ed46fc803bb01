// The parts of the prototype HRM-LM, and the model built from them.
#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/classic_blocks.h"
#include "hrm/nn/embedding.h"

namespace hrm::models {
namespace {

// Token embeddings plus fixed positions, (B, T, D) in `dtype`.
at::Tensor embed_at_positions(const nn::Embedding& embed, const at::Tensor& positions, const at::Tensor& ids,
                              at::ScalarType dtype) {
  require(ids.size(1) <= positions.size(0), ExitCode::usage, "a row of ", ids.size(1), " tokens is longer than the ",
          positions.size(0), " positions that the model was built for; shorten it");
  return (embed.forward(ids, at::kFloat) + positions.narrow(0, 0, ids.size(1))).to(dtype);
}

struct PrototypeEncoder : PromptEncoder {
  PrototypeEncoder(const PrototypeOptions& o, at::Device device)
      : positions(nn::sinusoidal_positions(o.max_prompt, o.lm.core.width, device)),
        embed(
            register_module("embed", std::make_shared<nn::Embedding>(o.vocabulary, o.lm.core.width, device, "weight"))),
        blocks(register_module("blocks", std::make_shared<nn::ClassicEncoder>(o.enc_layers, o.lm.core.width, o.heads,
                                                                              o.feed_forward, device))) {}

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask, at::ScalarType dtype) override {
    return blocks->forward(embed_at_positions(*embed, positions, ids, dtype), mask);
  }
  int64_t max_prompt() const override { return positions.size(0); }

  at::Tensor positions;
  std::shared_ptr<nn::Embedding> embed;
  std::shared_ptr<nn::ClassicEncoder> blocks;
};

// out_norm(block(state + pos)); pos is initially zero.
struct PrototypeLevel : MemoryLevel, nn::HasOwnInit {
  PrototypeLevel(int64_t length, int64_t layers, int64_t width, int64_t heads, at::Device device)
      : block(register_module(
            "block", std::make_shared<nn::ClassicEncoder>(layers, width, heads, nn::FeedForwardFactory(), device))),
        out_norm(register_module("out_norm", std::make_shared<nn::LayerNorm>(width, nn::kLayerNormEps, device))),
        pos(register_parameter("pos", at::empty({length, width}, at::device(device)))) {}

  at::Tensor recur(const at::Tensor& state, const at::Tensor& extra, int64_t steps) const override {
    const at::Tensor added = extra.unsqueeze(1), low = pos.to(state.scalar_type());
    at::Tensor y = state;
    for (int64_t step = 0; step < steps; ++step) y = out_norm->forward(block->forward(y + added + low));
    return y;
  }
  void init_own(uint64_t, const std::string&) override { pos.zero_(); }

  std::shared_ptr<nn::ClassicEncoder> block;
  std::shared_ptr<nn::LayerNorm> out_norm;
  at::Tensor pos;
};

struct PrototypeDecoder : AnswerDecoder {
  PrototypeDecoder(const PrototypeOptions& o, at::Device device)
      : position_rows(nn::sinusoidal_positions(o.max_answer, o.lm.core.width, device)) {
    const int64_t D = o.lm.core.width;
    embed = register_module("embed", std::make_shared<nn::Embedding>(o.vocabulary, D, device, "weight"));
    const auto list = register_module("layers", std::make_shared<torch::nn::Module>());
    for (int64_t i = 0; i < o.dec_layers; ++i) {
      layers.push_back(
          list->register_module(std::to_string(i), std::make_shared<nn::ClassicDecoderBlock>(D, o.heads, device)));
    }
    norm = register_module("norm", std::make_shared<nn::LayerNorm>(D, nn::kLayerNormEps, device));
    lm_head = register_module("head", std::make_shared<nn::LmHead>(D, o.vocabulary, device));
  }

  at::Tensor forward(const at::Tensor& ids, const at::Tensor& memory) override {
    at::Tensor h = embed_at_positions(*embed, position_rows, ids, memory.scalar_type());
    for (const auto& layer : layers) h = layer->forward(h, memory);
    return norm->forward(h);
  }
  const nn::LmHead& head() const override { return *lm_head; }
  int64_t positions() const override { return position_rows.size(0); }

  at::Tensor position_rows;
  std::shared_ptr<nn::Embedding> embed;
  std::vector<std::shared_ptr<nn::ClassicDecoderBlock>> layers;
  std::shared_ptr<nn::LayerNorm> norm;
  std::shared_ptr<nn::LmHead> lm_head;
};

}  // namespace

std::shared_ptr<HrmLm> make_prototype_lm(const PrototypeOptions& o, at::Device device) {
  const HrmCoreOptions& core = o.lm.core;
  const auto level = [&](int64_t length, int64_t layers) {
    return std::make_shared<PrototypeLevel>(length, layers, core.width, o.heads, device);
  };
  return std::make_shared<HrmLm>(
      o.lm, std::make_shared<PrototypeEncoder>(o, device),
      std::make_shared<HrmCore>(core, level(core.h_len, o.h_layers), level(core.l_len, o.l_layers),
                                std::make_shared<nn::LayerNorm>(core.width, nn::kLayerNormEps, device), device),
      std::make_shared<PrototypeDecoder>(o, device), device);
}

}  // namespace hrm::models
