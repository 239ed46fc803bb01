#pragma once
// A model whose gradients are summed over ranks.

#include <ATen/ATen.h>

#include <memory>
#include <string>

#include "hrm/models/puzzle_model.h"

namespace hrm::test {

// Three blocks of L, and with hrm two of H.
inline std::shared_ptr<models::PuzzleModel> build(const std::string& arch, at::ScalarType compute_dtype = at::kFloat) {
  config::ModelConfig c;
  c.arch = config::value_of_name<config::PuzzleArch>(arch);
  c.hidden_size = 16;
  c.num_heads = 2;
  c.L_layers = 3;
  c.H_layers = arch == "hrm" ? 2 : 0;
  c.H_cycles = 1;
  c.L_cycles = 2;
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = 9;
  return models::make_puzzle_model(c, models::resolve_dims(c, meta), 0, at::kCPU, compute_dtype);
}

// Forward and backward pass over rows that depend on `sample` alone.
inline void pass(models::PuzzleModel& model, int64_t sample) {
  const int64_t B = 2, P = model.dims().puzzle_emb_len, S = model.dims().seq_len, D = model.config().hidden_size;
  const auto values = [&](at::IntArrayRef sizes) {
    return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * (1.3 + static_cast<double>(sample)))
        .view(sizes);
  };
  const at::Tensor tokens = (at::arange(B * S, at::kInt) * (sample + 2) % 11).view({B, S});
  const auto out = model.segment({values({B, P + S, D}), values({B, P + S, D})}, tokens,
                                 values({B, model.dims().puzzle_emb_ndim}).requires_grad_());
  (out.logits.square().sum() + out.q.square().sum()).backward();
}

}  // namespace hrm::test
