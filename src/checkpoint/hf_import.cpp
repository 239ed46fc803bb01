#include "hrm/checkpoint/hf_import.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "checkpoint/contradictions.h"
#include "checkpoint/hf_names.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/tensor_names.h"
#include "hrm/nn/linear.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFrequencies = "rotary_emb.inv_freq";

at::Tensor tensor_at(const SafetensorsSet& files, const std::string& name) {
  const ArrayView& view = files.at(name);
  return tensor_from_bytes(view.dtype, view.shape, view.bytes);
}

// Tensors by what transformers calls them, whatever wrappers have added to the names.
class NamedWeights {
 public:
  explicit NamedWeights(const SafetensorsSet& files)
      : files_(files), names_(by_core_name(files.names(), files.origin(), ExitCode::checkpoint)) {}

  bool contains(const std::string& name) const { return names_.count(core_tensor_name(name)) > 0; }
  const ArrayView& view(const std::string& name) const { return files_.at(names_.at(core_tensor_name(name))); }
  at::Tensor tensor(const std::string& name) const { return tensor_at(files_, names_.at(core_tensor_name(name))); }
  // By core names.
  const std::map<std::string, std::string>& all() const { return names_; }

 private:
  const SafetensorsSet& files_;
  std::map<std::string, std::string> names_;
};

// Ends of the names that quantised weights have, as several programs save them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kQuantised{{
    {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},
    {".absmax", "bitsandbytes, 4 bits"},
    {".quant_map", "bitsandbytes, 4 bits"},
    {".SCB", "bitsandbytes, 8 bits"},
    {".weight_scale_inv", "FP8"},
    {".weight_scale", "compressed-tensors or FP8"},
    {".weight_packed", "compressed-tensors"},
    {".input_scale", "FP8"},
}};

// Says what weights of another kind are, instead of a list of all that they lack.
void refuse_other_kinds(const NamedWeights& weights, const std::string& origin,
                        const std::map<std::string, HfWeight>& wanted) {
  for (const auto& [core, name] : weights.all()) {
    for (const auto& [end, method] : kQuantised) {
      require(!name.ends_with(end), ExitCode::checkpoint, "the weights of '", origin, "' are quantised (", method,
              ": it holds '", printable_start(name),
              "'), and this program reads floating-point ones; give the folder of the model that they were made from, "
              "which hf.quantize=nf4 then holds in 4 bits");
    }
  }
  for (const auto& [ours, weight] : wanted) {
    for (const auto& [theirs, rows] : weight.parts) {
      if (weights.contains(theirs)) return;
    }
  }
  std::string names;
  size_t shown = 0;
  for (const auto& [core, name] : weights.all()) {
    if (++shown <= 3) names += cat(shown > 1 ? ", '" : "'", printable_start(name), "'");
  }
  fail(ExitCode::checkpoint, "the weights of '", origin, "' are not those of its config.json: it holds ",
       weights.all().size(), " tensors, ", names, shown > 3 ? " and so on" : "",
       ", and none is called as transformers calls them, such as '", kEmbedding, "'");
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
                          .rope = c.rope,
                          .form = c.form,
                          .experts = c.experts,
                          .qk_norm = c.qk_norm,
                          .tied = c.tied});
}

void load_hf_weights(const SafetensorsSet& files, const models::DecoderOptions& options, models::DecoderLm& model,
                     bool untie) {
  const at::NoGradGuard no_grad;
  std::map<std::string, HfWeight> wanted = hf_weights(options);
  if (untie) wanted.at(kOurHead).parts = {{kEmbedding, options.vocabulary}};
  const NamedWeights weights(files);
  refuse_other_kinds(weights, files.origin(), wanted);
  std::set<std::string> unused;
  for (const auto& [core, name] : weights.all()) unused.insert(core);
  Contradictions wrong;
  for (auto& [ours, weight] : wanted) {
    const bool in_memory = !weight.in_memory.empty() && weights.contains(weight.in_memory);
    if (in_memory) weight.parts = {{weight.in_memory, weight.shape[0]}};
    for (const auto& [theirs, rows] : weight.parts) {
      unused.erase(core_tensor_name(theirs));
      if (!weights.contains(theirs)) {
        wrong.add("'", theirs, "' is missing");
        continue;
      }
      std::vector<int64_t> shape = in_memory ? weight.shape_in_memory : weight.shape;
      if (!in_memory) shape[0] = rows;
      const ArrayView& view = weights.view(theirs);
      if (view.shape != shape) wrong.add("'", theirs, "' is ", shape_text(view.shape), ", not ", shape_text(shape));
      if (!floats(view.dtype)) wrong.add("'", theirs, "' is ", name(view.dtype), ", no floating-point type");
    }
  }
  // Some files also hold the head of a tied model, or the frequencies of the rotation.
  const bool spare_head = (options.tied || untie) && unused.erase(kTheirHead) > 0;
  for (const std::string& core : unused) {
    if (core == kFrequencies || core.ends_with(cat(".", kFrequencies))) continue;
    wrong.add("'", printable_start(weights.all().at(core)), "' is unknown");
  }
  require(wrong.none(), ExitCode::checkpoint, "the weights of '", files.origin(),
          "' are not those of its config.json: ", wrong.text());
  if (spare_head) {
    const at::Tensor head = weights.tensor(kTheirHead), embedding = weights.tensor(kEmbedding);
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
      const at::Tensor to = item.value().narrow(0, row, rows);
      to.copy_(weights.tensor(theirs).view(to.sizes()));
      row += rows;
    }
  }
  // Read, sent to the device in the file's dtype and quantised one by one. Never more than one layer of these weights
  // is unquantised, neither on the host, where files are mapped, nor on the device.
  for (const nn::Nf4Layer& layer : nn::nf4_layers(model)) {
    std::vector<at::Tensor> parts;
    for (const auto& [theirs, rows] : wanted.at(layer.weight).parts) parts.push_back(weights.tensor(theirs));
    layer.linear->hold_nf4(parts.size() == 1 ? parts.front() : at::cat(parts), layer.weight);
  }
}

std::map<std::string, at::Tensor> tensors_of(const SafetensorsSet& files) {
  std::map<std::string, at::Tensor> all;
  for (const std::string& name : files.names()) all.emplace(name, tensor_at(files, name));
  return all;
}

}  // namespace hrm::checkpoint
