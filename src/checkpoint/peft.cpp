#include "hrm/checkpoint/peft.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/contradictions.h"
#include "checkpoint/output_folder.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";

// Whether a member is there and says something.
bool says(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return !(found->is_object() || found->is_array()) || !found->empty();
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

}  // namespace

std::string PeftConfig::target_list() const {
  return list_of(targets);
}

bool is_peft_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kConfig, ignored);
}

PeftConfig read_peft_config(const fs::path& folder) {
  constexpr ExitCode kCode = ExitCode::checkpoint;
  const fs::path file = folder / kConfig;
  require(is_peft_folder(folder), kCode, "'", folder.string(), "' is no folder of an adapter: ", kConfig,
          " is not there");
  const std::string origin = file.string();
  const json config = parse_json(read_text(file, kCode), origin, kCode);
  require(config.is_object(), kCode, origin, ": must be an object");
  const auto text = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  require(text("peft_type") == "LORA", kCode, origin, ": 'peft_type' is '", printable_start(text("peft_type")),
          "'; this program reads LORA");
  require(!says(config, "bias") || text("bias") == "none", kCode, origin,
          ": 'bias' must be none; this program's layers have no biases");
  for (const char* key : {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "lora_bias",
                          "layers_to_transform", "exclude_modules", "target_parameters", "trainable_token_indices",
                          "use_qalora", "use_bdlora", "alora_invocation_tokens", "layer_replication"}) {
    require(!says(config, key), kCode, origin, ": '", key, "' asks for what this program's adapters do not have");
  }
  // Those that take something out of the base (PiSSA, OLoRA, LoftQ, CorDA) leave an adapter that is for the rest of it.
  const std::string start = text("init_lora_weights");
  require(start.empty() || start == "gaussian" || start == "eva" || start == "orthogonal", kCode, origin,
          ": 'init_lora_weights' is '", printable_start(start),
          "', which may change the frozen model too; convert the adapter to plain LoRA in PEFT and set it to true");
  const auto rslora = config.find("use_rslora");
  require(rslora == config.end() || rslora->is_null() || rslora->is_boolean(), kCode, origin,
          ": 'use_rslora' must be true or false");
  const auto base = config.find("base_model_name_or_path");
  require(base == config.end() || base->is_null() || base->is_string(), kCode, origin,
          ": 'base_model_name_or_path' must be a text");
  const auto number = [&](const char* key, double least) {
    const auto found = config.find(key);
    require(found != config.end() && found->is_number() && std::isfinite(found->get<double>()) &&
                found->get<double>() >= least,
            kCode, origin, ": '", key, "' must be a number of at least ", least);
    return found->get<double>();
  };
  PeftConfig out;
  const double r = number("r", 1);
  require(r == std::floor(r) && r <= 4096, kCode, origin, ": 'r' must be a whole number up to 4,096");
  out.r = static_cast<int64_t>(r);
  out.alpha = number("lora_alpha", 0);
  out.dropout = config.contains("lora_dropout") ? number("lora_dropout", 0) : 0;
  out.rslora = says(config, "use_rslora");
  out.base_model = text("base_model_name_or_path");
  const auto targets = config.find("target_modules");
  require(targets != config.end() && targets->is_array() && !targets->empty(), kCode, origin,
          ": 'target_modules' must be a list of names");
  for (const json& target : *targets) {
    require(target.is_string(), kCode, origin, ": 'target_modules' must be a list of names");
    out.targets.push_back(target.get<std::string>());
  }
  std::sort(out.targets.begin(), out.targets.end());
  return out;
}

void load_peft(const fs::path& folder, nn::LoraSet& lora) {
  const PeftConfig config = read_peft_config(folder);
  const nn::LoraOptions& o = lora.options();
  std::vector<std::string> targets = o.targets;
  std::sort(targets.begin(), targets.end());
  const nn::LoraOptions theirs{.rank = config.r, .alpha = config.alpha, .rslora = config.rslora};
  require(config.r == o.rank && nn::lora_scale(theirs) == nn::lora_scale(o) && config.targets == targets,
          ExitCode::checkpoint, "the adapter of '", folder.string(), "' has rank ", config.r, ", alpha ", config.alpha,
          config.rslora ? " (rslora)" : "", " and ", config.targets.size(), " targets (",
          printable(config.target_list()), "), which are not lora.r = ", o.rank, ", lora.alpha = ", o.alpha,
          ", lora.rslora = ", o.rslora ? "true" : "false", " and lora.targets = ", list_of(targets),
          "; set those to the adapter's");
  const fs::path file = folder / kWeights;
  std::error_code ignored;
  require(fs::exists(file, ignored), ExitCode::checkpoint, "'", folder.string(), "' holds no ", kWeights,
          "; save the adapter with safe_serialization=True");
  const SafetensorsFile weights(file, ExitCode::checkpoint);
  std::set<std::string> unused(weights.names().begin(), weights.names().end());
  Contradictions wrong;
  std::vector<std::pair<at::Tensor, std::string>> copies;
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
    for (const auto& [part, to] : {std::pair{"lora_A", pair.A}, std::pair{"lora_B", pair.B}}) {
      const std::string name = cat(kPrefix, pair.name, ".", part, ".weight");
      if (unused.erase(name) == 0) {
        wrong.add("'", name, "' is missing");
        continue;
      }
      const ArrayView& view = weights.at(name);
      const std::vector<int64_t> shape = to.sizes().vec();
      if (view.shape != shape) wrong.add("'", name, "' is ", shape_text(view.shape), ", not ", shape_text(shape));
      if (!floats(view.dtype)) wrong.add("'", name, "' is ", hrm::name(view.dtype), ", no floating-point type");
      copies.emplace_back(to, name);
    }
  }
  for (const std::string& name : unused) wrong.add("'", printable_start(name), "' is unknown");
  require(wrong.none(), ExitCode::checkpoint, "the adapter of '", folder.string(),
          "' is not one of this model: ", wrong.text());
  const at::NoGradGuard no_grad;
  for (auto& [to, name] : copies) {
    const ArrayView& view = weights.at(name);
    to.copy_(tensor_from_bytes(view.dtype, view.shape, view.bytes));
  }
}

void write_peft(const fs::path& folder, const nn::LoraSet& lora, const std::string& base_model) {
  const nn::LoraOptions& o = lora.options();
  const nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                         {"task_type", "CAUSAL_LM"},
                                         {"base_model_name_or_path", base_model},
                                         {"r", o.rank},
                                         {"lora_alpha", o.alpha == std::floor(o.alpha) && std::abs(o.alpha) < 1e15
                                                            ? nlohmann::ordered_json(static_cast<int64_t>(o.alpha))
                                                            : nlohmann::ordered_json(o.alpha)},
                                         {"lora_dropout", o.dropout},
                                         {"use_rslora", o.rslora},
                                         {"use_dora", false},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", false},
                                         {"init_lora_weights", true},
                                         {"inference_mode", true},
                                         {"modules_to_save", nullptr},
                                         {"rank_pattern", nlohmann::ordered_json::object()},
                                         {"alpha_pattern", nlohmann::ordered_json::object()},
                                         {"target_modules", o.targets}};
  std::vector<at::Tensor> hosts;
  std::vector<SafetensorsEntry> entries;
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
    for (const auto& [part, tensor] : {std::pair{"lora_A", pair.A}, std::pair{"lora_B", pair.B}}) {
      const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
      entries.push_back({cat(kPrefix, pair.name, ".", part, ".weight"), dtype_of(host.scalar_type()),
                         host.sizes().vec(), bytes_of(host)});
    }
  }
  write_folder(folder, [&](const fs::path& place) {
    write_safetensors(place / kWeights, entries, {{"format", "pt"}});
    write_file(place / kConfig, as_bytes(config.dump(2) + "\n"));
  });
}

}  // namespace hrm::checkpoint
