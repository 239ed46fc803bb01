#include "hrm/checkpoint/hf_import.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <vector>

#include "checkpoint/contradictions.h"
#include "checkpoint/hf_names.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/nn/linear.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

at::Tensor tensor_at(const SafetensorsSet& files, const std::string& name) {
  const ArrayView& view = files.at(name);
  return tensor_from_bytes(view.dtype, view.shape, view.bytes);
}

}  // namespace

models::DecoderOptions decoder_options_of(const HfModelConfig& c, int64_t positions) {
  return models::resolve({.vocabulary = c.vocab_size,
                          .width = c.hidden_size,
                          .layers = c.layers,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .inner = c.intermediate_size,
                          .positions = positions,
                          .window = c.window,
                          .rope_theta = c.rope_theta,
                          .eps = c.rms_norm_eps,
                          .qk_norm = c.qk_norm,
                          .tied = c.tied});
}

void load_hf_weights(const SafetensorsSet& files, const models::DecoderOptions& options, models::DecoderLm& model) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, HfWeight> wanted = hf_weights(options);
  std::set<std::string> unused(files.names().begin(), files.names().end());
  Contradictions wrong;
  for (const auto& [ours, weight] : wanted) {
    for (const auto& [theirs, rows] : weight.parts) {
      if (unused.erase(theirs) == 0) {
        wrong.add("'", theirs, "' is missing");
        continue;
      }
      std::vector<int64_t> shape = weight.shape;
      shape[0] = rows;
      const ArrayView& view = files.at(theirs);
      if (view.shape != shape) wrong.add("'", theirs, "' is ", shape_text(view.shape), ", not ", shape_text(shape));
      if (!floats(view.dtype)) wrong.add("'", theirs, "' is ", name(view.dtype), ", no floating-point type");
    }
  }
  // Some files also hold the head of a tied model, or the frequencies of the rotation.
  const bool spare_head = options.tied && unused.erase(kHead) > 0;
  for (const std::string& theirs : unused) {
    if (!theirs.ends_with(".rotary_emb.inv_freq")) wrong.add("'", printable_start(theirs), "' is unknown");
  }
  require(wrong.none(), ExitCode::checkpoint, "the weights of '", files.origin(),
          "' are not those of its config.json: ", wrong.text());
  if (spare_head) {
    const at::Tensor head = tensor_at(files, kHead), embedding = tensor_at(files, kEmbedding);
    require(head.sizes() == embedding.sizes() && at::equal(head.to(embedding.scalar_type()), embedding),
            ExitCode::checkpoint, "'", files.origin(),
            "' holds a head that is not its embedding, though its config.json ties the two");
  }
  for (auto& item : model.named_parameters()) {
    const auto found = wanted.find(item.key());
    require(found != wanted.end() && item.value().sizes() == found->second.shape, ExitCode::unexpected, "the model's '",
            item.key(), "' is not of these options");
    if (item.value().is_meta()) continue;
    int64_t row = 0;
    for (const auto& [theirs, rows] : found->second.parts) {
      item.value().narrow(0, row, rows).copy_(tensor_at(files, theirs));
      row += rows;
    }
  }
  // Read, sent to the device in the file's dtype and quantised one by one: of these weights there is never more than
  // one layer's beside the codes, neither on the host, where files are mapped, nor on the device.
  for (const nn::Nf4Layer& layer : nn::nf4_layers(model)) {
    std::vector<at::Tensor> parts;
    for (const auto& [theirs, rows] : wanted.at(layer.weight).parts) parts.push_back(tensor_at(files, theirs));
    layer.linear->hold_nf4(parts.size() == 1 ? parts.front() : at::cat(parts), layer.weight);
  }
}

std::map<std::string, at::Tensor> tensors_of(const SafetensorsSet& files) {
  std::map<std::string, at::Tensor> all;
  for (const std::string& name : files.names()) all.emplace(name, tensor_at(files, name));
  return all;
}

}  // namespace hrm::checkpoint
