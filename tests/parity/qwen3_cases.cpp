// qwen3: a Hugging Face model folder in our decoder: logits, cross-entropy and gradients, rows padded on either side,
// greedy decoding from the cache.

#include <algorithm>

#include "hrm/data/batch.h"
#include "hrm/formats/safetensors.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/objectives/language.h"
#include "hrm/state/tensor_bytes.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using models::DecoderLm;
using nlohmann::json;

// How many positions the prompts with their answers, or the rows take.
int64_t longest_row(const Case& loaded) {
  const int64_t answers = loaded.json.at("config").at("generation").at("max_new_tokens");
  return std::max(loaded.at("right.input_ids").size(1), loaded.at("gen.prompt_ids").size(1) + answers);
}

models::DecoderOptions decoder_options(const Case& loaded) {
  const json& c = loaded.json.at("config");
  return {.vocabulary = c.at("V"),
          .width = c.at("H"),
          .layers = c.at("L"),
          .heads = c.at("num_attention_heads"),
          .kv_heads = c.at("num_key_value_heads"),
          .head_dim = c.at("head_dim"),
          .inner = c.at("I"),
          .positions = longest_row(loaded),
          .rope_theta = c.at("theta"),
          .eps = c.at("rms_norm_eps"),
          .qk_norm = true,
          .tied = c.at("tied")};
}

// The parts of the file that one of our weights is made of, one above the other.
std::vector<std::string> their_names(const std::string& ours) {
  const auto replaced = [&](const std::string& part, const std::vector<std::string>& by) {
    std::vector<std::string> names;
    const size_t at = ours.find(part);
    for (const std::string& name : by) names.push_back(std::string(ours).replace(at, part.size(), name));
    return names;
  };
  if (ours.find("qkv_proj") != std::string::npos) return replaced("qkv_proj", {"q_proj", "k_proj", "v_proj"});
  if (ours.find("gate_up_proj") != std::string::npos) return replaced("gate_up_proj", {"gate_proj", "up_proj"});
  if (ours == "model.lm_head.weight") return {"lm_head.weight"};
  return {ours};
}

std::shared_ptr<DecoderLm> load_model(const Case& loaded, at::ScalarType dtype) {
  const auto model = std::make_shared<DecoderLm>(decoder_options(loaded), device());
  model->initialise(/*seed=*/0, dtype);
  const SafetensorsFile file(loaded.folder / "model.safetensors");
  const at::NoGradGuard no_grad;
  size_t used = 0;
  for (auto& item : model->named_parameters()) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : their_names(item.key())) {
      const ArrayView& view = file.at(name);
      parts.push_back(tensor_from_bytes(view.dtype, view.shape, view.bytes));
      ++used;
    }
    item.value().copy_(at::cat(parts));
  }
  EXPECT_EQ(used, file.names().size()) << "the file has weights that the model has not";
  model->parameter_set().refresh_compute();
  return model;
}

// The gradient of one of their weights, out of ours.
at::Tensor their_gradient(const Case& loaded, const DecoderLm& model, const std::string& theirs) {
  const json& c = loaded.json.at("config");
  const int64_t head = c.at("head_dim"), q_rows = head * c.at("num_attention_heads").get<int64_t>(),
                kv_rows = head * c.at("num_key_value_heads").get<int64_t>();
  for (const auto& item : model.named_parameters()) {
    int64_t row = 0;
    const auto names = their_names(item.key());
    for (const std::string& name : names) {
      const bool in_qkv = item.key().find("qkv_proj") != std::string::npos;
      // The parts of the other weights are of one size.
      const int64_t part = item.value().size(0) / static_cast<int64_t>(names.size());
      const int64_t rows = !in_qkv ? part : name.find(".q_proj.") != std::string::npos ? q_rows : kv_rows;
      if (name == theirs) return item.value().grad().narrow(0, row, rows);
      row += rows;
    }
  }
  ADD_FAILURE() << "no weight " << theirs;
  return {};
}

void check_rows(const Case& loaded, DecoderLm& model, Tolerance tolerance) {
  const at::Tensor ids = loaded.at("right.input_ids").to(device());
  const at::Tensor mask = loaded.at("right.attention_mask").to(device());
  const models::LanguageOutput output = model.forward({.ids = ids});
  {
    const at::NoGradGuard no_grad;
    expect_close("right.logits", model.logits(output.hidden) * mask.unsqueeze(-1), loaded.at("right.logits"),
                 tolerance);
  }
  // The token that each position shall give is the next one, where both are real.
  const int64_t next = ids.size(1) - 1;
  const at::Tensor real = mask.narrow(1, 1, next).logical_and(mask.narrow(1, 0, next));
  const at::Tensor labels = at::full_like(ids, data::kIgnoreLabel);
  labels.narrow(1, 0, next).copy_(at::where(real, ids.narrow(1, 1, next), labels.narrow(1, 0, next)));
  const objectives::LanguageLoss loss = objectives::language_loss(model, output, labels, {.chunk = 7});
  expect_close("right.ce", loss.loss, loaded.at("right.ce"), tolerance);
  loss.loss.backward();
  const json& stated = loaded.json.at("tolerance").at("grads");
  for (const auto& [name, want] : loaded.group("grad.")) {
    expect_close("grad." + name, their_gradient(loaded, model, name), want,
                 {.rtol = stated.at("rtol"), .atol = stated.at("atol")});
  }

  // Padding in front is another document; rotation is relative, so that the shift of positions does not matter.
  const at::NoGradGuard no_grad;
  const at::Tensor left = model.logits(model
                                           .forward({.ids = loaded.at("left.input_ids").to(device()),
                                                     .documents = loaded.at("left.attention_mask").to(device())})
                                           .hidden);
  const int64_t stored = loaded.at("left.logits").size(1);
  expect_close("left.logits", left.narrow(1, left.size(1) - stored, stored), loaded.at("left.logits"), tolerance);
}

// The cases hold the logits before each fourth token.
constexpr int64_t kStoredEvery = 4;

// Greedy decoding of all prompts together from the cache, rows of different lengths.
void check_decoding(const Case& loaded, DecoderLm& model, Tolerance tolerance) {
  const at::NoGradGuard no_grad;
  const json& generation = loaded.json.at("config").at("generation");
  const int64_t steps = generation.at("max_new_tokens"), forbidden = generation.at("forbidden_token");
  const at::Tensor padded = loaded.at("gen.prompt_ids").to(device());
  const at::Tensor lengths = loaded.at("gen.attention_mask").to(device()).sum(1);
  const int64_t rows = padded.size(0), longest = padded.size(1);
  const at::Tensor ids = at::zeros_like(padded);
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t length = lengths[b].item<int64_t>();
    ids[b].narrow(0, 0, length).copy_(padded[b].narrow(0, longest - length, length));
  }
  models::DecodeCache cache = model.make_cache(rows, longest + steps);
  const at::Tensor hidden = model.prefill({.ids = ids}, lengths, cache);
  at::Tensor last = hidden[0].new_empty({rows, hidden.size(2)});
  for (int64_t b = 0; b < rows; ++b) last[b].copy_(hidden[b][lengths[b].item<int64_t>() - 1]);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor logits = model.logits(last);
    for (int64_t b = 0; b < rows && step % kStoredEvery == 0; ++b) {
      expect_close("gen.logits" + std::to_string(b) + " before token " + std::to_string(step), logits[b],
                   loaded.at("gen.logits" + std::to_string(b))[step / kStoredEvery], tolerance);
    }
    logits.select(1, forbidden).fill_(-1e30);
    const at::Tensor tokens = logits.argmax(-1);
    expect_equal("gen.tokens " + std::to_string(step), tokens, loaded.at("gen.tokens").select(1, step));
    if (step + 1 < steps) last = model.step(tokens, cache);
  }
}

void check_qwen3(const Case& loaded) {
  const json& stated = loaded.json.at("tolerance").at("logits");
  const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  const auto model = load_model(loaded, at::kFloat);
  check_rows(loaded, *model, tolerance);
  check_decoding(loaded, *model, tolerance);

  const at::NoGradGuard no_grad;
  const auto low = load_model(loaded, at::kBFloat16);
  const at::Tensor mask = loaded.at("right.attention_mask").to(device()).unsqueeze(-1);
  const at::Tensor logits = low->logits(low->forward({.ids = loaded.at("right.input_ids").to(device())}).hidden);
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  expect_within_twice("bf16.right.logits", logits.to(at::kFloat) * mask, loaded.at("right.logits"),
                      loaded.json.at("bf16_error_vs_f32"));
}

const RegisterKind kQwen3("qwen3", check_qwen3);

}  // namespace
}  // namespace hrm::parity
