#pragma once
// Small models with random weights, and their answers.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <string>
#include <utility>
#include <vector>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::checkpoint {

// The models are so small that threads would only wait for one another.
inline const bool kOneThread = (at::set_num_threads(1), true);

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The tensors of a model by official name; they alias the model's.
inline NamedTensors tensors_of(models::PuzzleModel& model) {
  NamedTensors tensors;
  for (const auto& item : model.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : model.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

inline void set_weights(models::PuzzleModel& model, const NamedTensors& weights) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> by_name(weights.begin(), weights.end());
  for (auto& [name, tensor] : tensors_of(model)) tensor.copy_(by_name.at(name));
  model.parameter_set().refresh_compute();
}

struct Answers {
  at::Tensor logits;      // (segments, B, S, V)
  at::Tensor q_halt;      // (segments, B)
  at::Tensor q_continue;  // (segments, B)
};

// Every segment's answers from a fresh carry.
inline Answers answers_of(models::PuzzleModel& model, const at::Tensor& inputs, const at::Tensor& identifiers,
                          int64_t segments) {
  const at::NoGradGuard no_grad;
  const models::PuzzleModelDims& dims = model.dims();
  const std::vector<int64_t> shape = {inputs.size(0), dims.puzzle_emb_len + dims.seq_len, model.config().hidden_size};
  models::Carry carry{model.H_init().expand(shape).contiguous(), model.L_init().expand(shape).contiguous()};
  at::Tensor rows;
  if (dims.puzzle_emb_ndim > 0) rows = model.puzzle_embedding().index_select(0, identifiers);
  std::vector<at::Tensor> logits, q_halt, q_continue;
  for (int64_t i = 0; i < segments; ++i) {
    const models::SegmentOutput out = model.segment(carry, inputs, rows);
    carry = out.carry;
    logits.push_back(out.logits);
    q_halt.push_back(out.q_halt);
    q_continue.push_back(out.q_continue);
  }
  return {at::stack(logits), at::stack(q_halt), at::stack(q_continue)};
}

struct Variant {
  std::string name;
  config::ModelConfig config;
};

// One of each kind that the exporter distinguishes.
inline std::vector<Variant> all_variants() {
  config::ModelConfig hrm;
  hrm.hidden_size = 32;
  hrm.num_heads = 2;
  hrm.expansion = 2;
  hrm.H_layers = 2;
  hrm.L_layers = 1;
  hrm.rms_norm_eps = 1e-3;
  hrm.rope_theta = 500;
  std::vector<Variant> variants = {{"hrm_rope", hrm}};
  const auto add = [&](const std::string& name, config::ModelConfig config, auto&& change) {
    change(config);
    variants.push_back({name, config});
  };
  add("hrm_learned", hrm, [](config::ModelConfig& c) { c.pos_encodings = config::PositionEncoding::learned; });
  add("hrm_none_no_puzzle", hrm, [](config::ModelConfig& c) {
    c.pos_encodings = config::PositionEncoding::none;
    c.puzzle_emb_ndim = 0;
  });
  add("hrm_wide_puzzle", hrm, [](config::ModelConfig& c) {
    c.puzzle_emb_ndim = 40;
    c.H_cycles = 1;
    c.L_cycles = 3;
  });
  config::ModelConfig trm = hrm;
  trm.arch = config::PuzzleArch::trm;
  trm.H_layers = 0;
  trm.L_layers = 2;
  trm.H_cycles = 3;
  trm.L_cycles = 2;
  trm.puzzle_emb_len = 5;
  trm.no_ACT_continue = true;
  add("trm_attention", trm, [](config::ModelConfig&) {});
  add("trm_mlp", trm, [](config::ModelConfig& c) {
    c.mlp_t = true;
    c.pos_encodings = config::PositionEncoding::none;
  });
  add("trm_damped", trm, [](config::ModelConfig& c) {
    c.damping = 0.2;
    c.embed_scale = 0.5;
  });
  add("urm", trm, [](config::ModelConfig& c) {
    c.arch = config::PuzzleArch::urm;
    c.H_cycles = 2;
    c.damping = 0.1;
    c.puzzle_emb_len = 0;
  });
  add("transformer", trm, [](config::ModelConfig& c) {
    c.arch = config::PuzzleArch::transformer;
    c.H_cycles = 1;
    c.L_cycles = 1;
    c.puzzle_emb_len = 0;
  });
  return variants;
}

// A model of the variant with 12 tokens, 7 symbols and 4 puzzle identifiers; all weights are random, q_head included.
inline std::shared_ptr<models::PuzzleModel> make_variant(const config::ModelConfig& config, uint64_t seed = 3) {
  data::PuzzleMeta meta;
  meta.vocab_size = 7;
  meta.seq_len = 12;
  meta.num_puzzle_identifiers = 4;
  auto model = models::make_puzzle_model(config, models::resolve_dims(config, meta), seed, at::kCPU, at::kFloat);
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors_of(*model)) {
    if (name == "q_head.weight" || name == "puzzle_emb.weights") {
      tensor.copy_(at::arange(tensor.numel(), at::kFloat).mul(0.7).sin().view(tensor.sizes()));
    }
  }
  model->parameter_set().refresh_compute();
  return model;
}

inline at::Tensor sample_inputs() {
  return at::arange(36, at::kInt).mul(5).add(1).remainder(7).to(at::kInt).view({3, 12});
}
inline at::Tensor sample_identifiers() {
  return at::tensor({2, 0, 3}, at::kInt);
}

}  // namespace hrm::checkpoint
