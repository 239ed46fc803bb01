#include "models/bert_weights.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/dtype.h"
#include "hrm/formats/tensor_names.h"
#include "hrm/nn/init.h"

namespace hrm::models {
namespace {

const std::string kPrefix = "bert.";
// Errors list at most this many weights and count the rest: one wrong size affects every layer.
constexpr size_t kMostNamed = 24;

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes expected_shapes(const BertOptions& o) {
  Shapes shapes;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    shapes[name + ".weight"] = {out, in};
    shapes[name + ".bias"] = {out};
  };
  const auto norm = [&](const std::string& name) { shapes[name + ".weight"] = shapes[name + ".bias"] = {o.width}; };
  shapes["embeddings.word_embeddings.weight"] = {o.vocabulary, o.width};
  shapes["embeddings.position_embeddings.weight"] = {o.positions, o.width};
  shapes["embeddings.token_type_embeddings.weight"] = {o.token_types, o.width};
  norm("embeddings.LayerNorm");
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string layer = cat("encoder.layer.", i, ".");
    for (const char* part : {"query", "key", "value"}) linear(layer + "attention.self." + part, o.width, o.width);
    linear(layer + "attention.output.dense", o.width, o.width);
    norm(layer + "attention.output.LayerNorm");
    linear(layer + "intermediate.dense", o.inner, o.width);
    linear(layer + "output.dense", o.width, o.inner);
    norm(layer + "output.LayerNorm");
  }
  return shapes;
}

// Renames "...LayerNorm.gamma", as in the first BERT, to "...LayerNorm.weight".
std::string todays_name(std::string name) {
  for (const auto& [before, now] : {std::pair{"LayerNorm.gamma", "weight"}, std::pair{"LayerNorm.beta", "bias"}}) {
    if (name.ends_with(before)) name.replace(name.rfind('.') + 1, std::string::npos, now);
  }
  return name;
}

}  // namespace

BertWeights checked_bert_weights(const BertOptions& options, const BertWeights& weights, const std::string& source) {
  std::vector<std::string> wrong;
  const Shapes shapes = expected_shapes(options);
  const bool prefixed = std::any_of(weights.begin(), weights.end(), [](const auto& entry) {
    return core_tensor_name(entry.first).starts_with(kPrefix);
  });
  BertWeights read;
  for (const auto& [theirs, tensor] : weights) {
    const std::string core = core_tensor_name(theirs);
    if (prefixed && !core.starts_with(kPrefix)) continue;
    const std::string name = todays_name(prefixed ? core.substr(kPrefix.size()) : core);
    if (name.starts_with("pooler.") || name == "embeddings.position_ids") continue;
    const auto shape = shapes.find(name);
    if (shape == shapes.end()) {
      wrong.push_back(cat("'", printable(theirs), "' is not a weight of BERT"));
    } else if (!read.emplace(name, tensor).second) {
      wrong.push_back(cat("'", name, "' occurs twice"));
    } else if (tensor.sizes() != at::IntArrayRef(shape->second)) {
      wrong.push_back(
          cat("'", name, "' has the shape ", shape_text(tensor.sizes().vec()), ", not ", shape_text(shape->second)));
    } else if (!tensor.is_floating_point()) {
      wrong.push_back(
          cat("'", name, "' holds ", at::toString(tensor.scalar_type()), " values, not floating-point ones"));
    }
  }
  for (const auto& [name, shape] : shapes) {
    if (read.count(name) == 0) wrong.push_back(cat("'", name, "' is missing"));
  }
  if (wrong.empty()) return read;
  std::string list;
  for (size_t i = 0; i < std::min(wrong.size(), kMostNamed); ++i) list += (i == 0 ? "" : ", ") + wrong[i];
  if (wrong.size() > kMostNamed) list += cat(", and ", wrong.size() - kMostNamed, " more");
  fail(ExitCode::checkpoint, source, " does not fit a BERT of ", options.vocabulary, " tokens, width ", options.width,
       ", ", options.layers, " layers, inner width ", options.inner, ", ", options.positions, " positions and ",
       options.token_types, " token types: ", list, "; set the sizes of these weights, or use other weights");
}

BertWeights random_bert_weights(const BertOptions& options, uint64_t seed) {
  BertWeights weights;
  for (const auto& [name, shape] : expected_shapes(options)) {
    const at::Tensor tensor = at::zeros(shape);
    if (shape.size() == 2) nn::trunc_normal_(tensor, 0.02, seed, name);
    if (name.ends_with("LayerNorm.weight")) tensor.fill_(1);
    weights.emplace(name, tensor);
  }
  return weights;
}

}  // namespace hrm::models
