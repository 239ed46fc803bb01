#include "hrm/checkpoint/official.h"

#include <map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/batch.h"
#include "hrm/formats/dtype.h"

namespace hrm::checkpoint {
namespace {

using TensorMap = std::map<std::string, at::Tensor>;

// Blocks of a module: one more than the largest index in "<prefix><index>.".
int64_t count_layers(const TensorMap& tensors, const std::string& prefix) {
  int64_t layers = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name.rfind(prefix, 0) != 0) continue;
    int64_t index = 0;
    size_t at = prefix.size();
    for (; at < name.size() && name[at] >= '0' && name[at] <= '9' && index < 100000; ++at) {
      index = index * 10 + (name[at] - '0');
    }
    layers = std::max(layers, index + 1);
  }
  return layers;
}

bool any_name_contains(const TensorMap& tensors, const std::string& part) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [&](const auto& entry) { return entry.first.find(part) != std::string::npos; });
}

// What a file of another model holds.
std::string first_names(const TensorMap& tensors) {
  constexpr size_t kShown = 3;
  std::string text = "'";
  size_t count = 0;
  for (const auto& [name, tensor] : tensors) {
    if (count++ < kShown) text += cat(count > 1 ? "', '" : "", printable_start(name));
  }
  if (count == 0) return "; it holds no tensor";
  return cat("; its tensors are called ", text, count > kShown ? "' and so on" : "'");
}

// The size of a matrix; -1 if no matrix has that name.
int64_t size_of(const TensorMap& tensors, const std::string& name, int64_t dim) {
  const auto found = tensors.find(name);
  return found == tensors.end() || found->second.dim() != 2 ? -1 : found->second.size(dim);
}

// Collects what the weights and the configuration say differently.
class ShapeContradictions {
 public:
  template <class Value>
  void compare(const std::string& key, const Value& in_file, const Value& in_config) {
    if (in_file == in_config) return;
    text_ += cat(text_.empty() ? "" : ", ", key, " is ", in_file, " there and ", in_config, " in the configuration");
    remedy_ += cat(" ", key, "=", in_file);
  }
  void refuse(const std::string& source) const {
    if (text_.empty()) return;
    fail(ExitCode::checkpoint, source, " does not fit the configuration: ", text_, "; add", remedy_,
         " or use another configuration");
  }

 private:
  std::string text_, remedy_;
};

void check_against_config(const config::ModelConfig& config, const TensorMap& tensors, const std::string& source) {
  const int64_t width = size_of(tensors, "embed_tokens.embedding_weight", 1);
  require(width > 0, ExitCode::checkpoint, source,
          " holds no HRM, TRM or URM model: the matrix 'embed_tokens.embedding_weight' is missing",
          first_names(tensors));
  const auto truth = [](bool value) { return std::string(value ? "true" : "false"); };
  const bool learned = tensors.count("embed_pos.embedding_weight") != 0;
  const int64_t H_layers = count_layers(tensors, "H_level.layers."), flat_layers = count_layers(tensors, "layers.");
  const int64_t L_layers = flat_layers > 0 ? flat_layers : count_layers(tensors, "L_level.layers.");

  ShapeContradictions contradictions;
  if ((H_layers > 0) != config.facts().h_module || (flat_layers > 0) != config.facts().flat_names) {
    // TRM and the plain Transformer have the same weights.
    const char* const arch = flat_layers > 0 ? "urm" : H_layers > 0 ? "hrm" : "trm";
    contradictions.compare<std::string>("model.arch", arch, name_of(config.arch));
  }
  contradictions.compare("model.hidden_size", width, config.hidden_size);
  contradictions.compare("model.H_layers", H_layers, config.H_layers);
  contradictions.compare("model.L_layers", L_layers, config.L_layers);
  contradictions.compare("model.mlp_t", truth(any_name_contains(tensors, ".mlp_t.")), truth(config.mlp_t));
  if (learned != (config.pos_encodings == config::PositionEncoding::learned)) {
    contradictions.compare<std::string>("model.pos_encodings", learned ? "learned" : (config.mlp_t ? "none" : "rope"),
                                        name_of(config.pos_encodings));
  }
  contradictions.compare("model.puzzle_emb_ndim", std::max<int64_t>(size_of(tensors, "puzzle_emb.weights", 1), 0),
                         config.puzzle_emb_ndim < 0 ? config.hidden_size : config.puzzle_emb_ndim);
  contradictions.refuse(source);
}

// Every parameter and buffer of the model against the weights, by name and shape.
void check_names(models::PuzzleModel& model, const TensorMap& tensors, const std::string& source) {
  TensorMap expected;
  for (const auto& item : model.named_parameters()) expected.emplace(item.key(), item.value());
  for (const auto& item : model.named_buffers()) expected.emplace(item.key(), item.value());
  for (const auto& [name, tensor] : tensors) {
    const auto found = expected.find(name);
    require(found != expected.end(), ExitCode::checkpoint, source, ": the entry '", printable(name),
            "' is unknown to the configured model");
    if (tensor.sizes() != found->second.sizes()) {
      fail(ExitCode::checkpoint, source, ": '", name, "' has the shape ", shape_text(tensor.sizes().vec()),
           ", the configured model needs ", shape_text(found->second.sizes().vec()));
    }
  }
  for (const auto& [name, tensor] : expected) {
    require(tensors.count(name) != 0, ExitCode::checkpoint, source, ": the entry '", name, "' is missing");
  }
}

}  // namespace

models::PuzzleModelDims check_weights(const config::ModelConfig& config,
                                      const std::vector<std::pair<std::string, at::Tensor>>& weights,
                                      const std::string& source) {
  const TensorMap tensors(weights.begin(), weights.end());
  check_against_config(config, tensors, source);

  data::PuzzleMeta meta;
  meta.vocab_size = size_of(tensors, "embed_tokens.embedding_weight", 0);
  meta.num_puzzle_identifiers = std::max<int64_t>(size_of(tensors, "puzzle_emb.weights", 0), 1);
  meta.seq_len = 1;
  models::PuzzleModelDims dims = models::resolve_dims(config, meta);
  // Rows of learned positions, or the width of the token mixing: L = P + S.
  const int64_t positions = config.pos_encodings == config::PositionEncoding::learned
                                ? size_of(tensors, "embed_pos.embedding_weight", 0)
                                : size_of(tensors, "L_level.layers.0.mlp_t.down_proj.weight", 0);
  if (positions >= 0) {
    dims.seq_len = positions - dims.puzzle_emb_len;
    require(dims.seq_len >= 1, ExitCode::checkpoint, source, " is made for ", positions,
            " positions, but model.puzzle_emb_len takes ", dims.puzzle_emb_len, " of them");
  }
  // The shapes do not depend on seq_len where no weight tells it.
  check_names(*models::make_puzzle_model_outline(config, dims), tensors, source);
  if (positions < 0) dims.seq_len = 0;
  return dims;
}

}  // namespace hrm::checkpoint
