// bert_embed: a Hugging Face BERT folder as an encoder of sentences, in float32 and in bfloat16.

#include "hrm/base/file.h"
#include "hrm/formats/safetensors.h"
#include "hrm/models/bert_encoder.h"
#include "hrm/state/tensor_bytes.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

models::BertOptions bert_options(const json& c) {
  return {.vocabulary = c.at("vocab_size"),
          .width = c.at("hidden_size"),
          .layers = c.at("num_hidden_layers"),
          .heads = c.at("num_attention_heads"),
          .inner = c.at("intermediate_size"),
          .positions = c.at("max_position_embeddings"),
          .token_types = c.at("type_vocab_size"),
          .eps = c.at("layer_norm_eps")};
}

models::BertEncoder load_encoder(const Case& loaded, at::ScalarType dtype) {
  const SafetensorsFile file(loaded.folder / "model.safetensors");
  models::BertWeights weights;
  for (const std::string& name : file.names()) {
    const ArrayView& view = file.at(name);
    weights.emplace(name, tensor_from_bytes(view.dtype, view.shape, view.bytes));
  }
  const json config = json::parse(read_text(loaded.folder / "config.json", ExitCode::data));
  return {bert_options(config), weights, device(), dtype, "model.safetensors"};
}

// The rows without their padding, as embed_all takes them.
std::vector<std::vector<int32_t>> sentences_of(const at::Tensor& ids, const at::Tensor& mask) {
  std::vector<std::vector<int32_t>> sentences;
  for (int64_t b = 0; b < ids.size(0); ++b) {
    const at::Tensor row = ids[b].narrow(0, 0, mask[b].sum().item<int64_t>()).contiguous();
    sentences.emplace_back(row.const_data_ptr<int32_t>(), row.const_data_ptr<int32_t>() + row.numel());
  }
  return sentences;
}

void check_bert(const Case& loaded) {
  const json& stated = loaded.json.at("tolerance");
  const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  const at::Tensor ids = loaded.at("input_ids").to(device()), mask = loaded.at("attention_mask").to(device());
  const at::Tensor& want = loaded.at("embedding");
  const auto sentences = sentences_of(loaded.at("input_ids"), loaded.at("attention_mask"));

  const models::BertEncoder encoder = load_encoder(loaded, at::kFloat);
  const at::Tensor hidden = encoder.forward(ids, mask);
  const at::Tensor& first = loaded.at("last_hidden_first8");
  const at::Tensor first_hidden = hidden.narrow(0, 0, first.size(0)) * mask.narrow(0, 0, first.size(0)).unsqueeze(-1);
  expect_close("last hidden", first_hidden, first, tolerance);
  const at::Tensor pooled = models::mean_of_tokens(hidden, mask);
  expect_close("pooled", pooled, loaded.at("pooled"), tolerance);
  expect_close("embedding", models::normalised_rows(pooled), want, tolerance);
  expect_close("embed_all", models::embed_all(encoder, sentences), want, tolerance);
  expect_close("embed_all, small batches", models::embed_all(encoder, sentences, /*max_tokens=*/64), want, tolerance);

  const models::BertEncoder low = load_encoder(loaded, at::kBFloat16);
  expect_within_twice("bf16 embedding", low.embed(ids, mask), want, loaded.json.at("bf16_error_vs_f32"));
  expect_within_twice("bf16 embed_all", models::embed_all(low, sentences), want, loaded.json.at("bf16_error_vs_f32"));
}

const RegisterKind kBert("bert_embed", check_bert);

}  // namespace
}  // namespace hrm::parity
