#include "hrm/checkpoint/peft.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "checkpoint/contradictions.h"
#include "checkpoint/hf_names.h"
#include "checkpoint/output_folder.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/hf_config.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/formats/tensor_names.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kTorchWeights = "adapter_model.bin";
constexpr const char* kPrefix = "base_model.model.";
constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
constexpr std::string_view kSavedPart = ".modules_to_save";

// "layers.0.self_attn.q_proj.lora_A.weight", whatever wrappers and adapters' names are in a tensor's name.
std::string adapter_core(const std::string& name) {
  std::string core = core_tensor_name(name);
  if (const size_t saved = core.find(kSavedPart); saved != std::string::npos) core.erase(saved, kSavedPart.size());
  for (const std::string_view part : {".lora_A.", ".lora_B."}) {
    const size_t at = core.find(part);
    if (at == std::string::npos || !core.ends_with(".weight")) continue;
    core = core.substr(0, at + part.size()) + "weight";
  }
  if (const size_t at = core.find(kMagnitude); at != std::string::npos) core.resize(at + kMagnitude.size());
  return core;
}

// The file's names by those; without what modules that were trained whole were before.
std::map<std::string, std::string> adapter_names(const SafetensorsSet& weights, const PeftConfig& config) {
  std::map<std::string, std::string> names;
  for (const std::string& name : weights.names()) {
    if (!config.modules_to_save.empty() && name.find(".original_module.") != std::string::npos) continue;
    const auto [first, is_new] = names.emplace(adapter_core(name), name);
    require(is_new, ExitCode::checkpoint, "'", weights.origin(), "' holds two adapters: both '",
            printable_start(first->second), "' and '", printable_start(name), "'; keep one of them");
  }
  return names;
}

// Layers that have an adapter, in a file and in a model.
std::set<std::string> layers_of(const std::map<std::string, std::string>& stored) {
  std::set<std::string> layers;
  for (const auto& [core, name] : stored) {
    if (const size_t at = core.find(".lora_"); at != std::string::npos) layers.insert(core.substr(0, at));
  }
  return layers;
}
std::set<std::string> layers_of(const nn::LoraSet& lora) {
  std::set<std::string> layers;
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) layers.insert(core_tensor_name(pair.name));
  return layers;
}

// What PEFT keeps of such an adapter, by PEFT's names; of a model that is cut, this part of it.
struct AdapterTensor {
  std::string name;
  at::Tensor tensor;
  nn::ParameterCut cut = {};
};
std::vector<AdapterTensor> adapter_tensors(const nn::LoraSet& lora) {
  std::vector<AdapterTensor> tensors;
  for (const nn::LoraAdapter::Pair& pair : lora.pairs()) {
    tensors.push_back({cat(kPrefix, pair.name, ".lora_A.weight"), pair.A, pair.A_cut});
    tensors.push_back({cat(kPrefix, pair.name, ".lora_B.weight"), pair.B, pair.B_cut});
    if (pair.magnitude.defined()) tensors.push_back({cat(kPrefix, pair.name, kMagnitude), pair.magnitude});
  }
  for (const auto& [name, tensor] : lora.saved()) {
    tensors.push_back({kPrefix + (name == kOurHead ? kTheirHead : name), tensor.detach(), lora.saved_cut(tensor)});
  }
  return tensors;
}

nlohmann::ordered_json peft_targets(const nn::LoraOptions& o) {
  if (o.wants) return o.pattern;
  if (o.targets == std::vector<std::string>{kAllLinear}) return kAllLinear;
  return o.targets;
}

fs::path weights_of(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {kWeights, kTorchWeights}) {
    if (fs::exists(folder / name, ignored)) return folder / name;
  }
  fail(ExitCode::checkpoint, "'", folder.string(), "' holds no ", kWeights, " and no ", kTorchWeights,
       "; save the adapter with model.save_pretrained");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

void check_same_kind(const fs::path& folder, const PeftConfig& theirs, const nn::LoraOptions& o, bool same_layers) {
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> targets = o.targets, saved = o.modules_to_save;
  std::sort(targets.begin(), targets.end());
  std::sort(saved.begin(), saved.end());
  const double scale = nn::lora_scale({.rank = theirs.r, .alpha = theirs.alpha, .rslora = theirs.rslora});
  // Targets may be written in several ways: what counts are the layers, unless both sides say the same.
  const bool same_targets = same_layers || o.wants || targets == theirs.targets;
  if (theirs.r == o.rank && scale == nn::lora_scale(o) && theirs.dora == o.dora && saved == theirs.modules_to_save &&
      same_targets) {
    return;
  }
  const auto list = [](const std::vector<std::string>& names) {
    return names.empty() ? std::string("none") : joined(names);
  };
  fail(ExitCode::checkpoint, "the adapter of '", folder.string(), "' has rank ", theirs.r, ", alpha ", theirs.alpha,
       theirs.rslora ? " (rslora)" : "", theirs.dora ? ", DoRA" : "", ", targets (", printable(theirs.target_list()),
       ") and modules_to_save (", list(theirs.modules_to_save), "), which are not lora.r = ", o.rank,
       ", lora.alpha = ", o.alpha, ", lora.rslora = ", flag(o.rslora), ", lora.dora = ", flag(o.dora),
       ", lora.targets = ", o.wants ? "a pattern" : joined(targets), " and lora.modules_to_save = ", list(saved),
       "; set those to the adapter's");
}

}  // namespace

bool is_peft_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kConfig, ignored);
}

PeftConfig read_peft_config(const fs::path& folder) {
  constexpr ExitCode kCode = ExitCode::checkpoint;
  std::error_code ignored;
  const fs::path file = folder / kConfig;
  require(is_peft_folder(folder), kCode, "'", folder.string(), "' is not a folder of an adapter: ", kConfig,
          " is not there", fs::exists(folder, ignored) ? "" : hub_name_hint(folder.string()));
  return parse_peft_config(read_text(file, kCode), file.string(), kCode);
}

void load_peft(const fs::path& folder, nn::LoraSet& lora) {
  const PeftConfig config = read_peft_config(folder);
  const nn::LoraOptions& o = lora.options();
  const SafetensorsSet weights = SafetensorsSet::of_file(weights_of(folder), ExitCode::checkpoint);
  const std::map<std::string, std::string> stored = adapter_names(weights, config);
  const std::set<std::string> layers = layers_of(lora);
  check_same_kind(folder, config, o, layers_of(stored) == layers);

  std::set<std::string> unused;
  for (const auto& [core, name] : stored) unused.insert(core);
  Contradictions wrong;
  std::vector<std::pair<AdapterTensor, std::string>> copies;
  const auto wants = [&](const AdapterTensor& to) {
    const auto found = stored.find(adapter_core(to.name));
    if (found == stored.end()) {
      wrong.add("'", to.name, "' is missing");
      return;
    }
    unused.erase(found->first);
    const ArrayView& view = weights.at(found->second);
    const std::vector<int64_t> shape = to.cut.whole_sizes(to.tensor.sizes());
    if (view.shape != shape) {
      wrong.add("'", printable_start(found->second), "' is ", shape_text(view.shape), ", not ", shape_text(shape));
    }
    if (!floats(view.dtype)) {
      wrong.add("'", printable_start(found->second), "' is ", hrm::name(view.dtype), ", no floating-point type");
    }
    copies.emplace_back(to, found->second);
  };
  for (const AdapterTensor& tensor : adapter_tensors(lora)) wants(tensor);
  for (const std::string& core : unused) {
    const std::string& name = stored.at(core);
    const size_t layer_end = core.find(".lora_");
    const bool other_layer = layer_end != std::string::npos && layers.count(core.substr(0, layer_end)) == 0;
    wrong.add("'", printable_start(name),
              other_layer ? "' is of a layer that gets no adapter in this program" : "' is unknown");
  }
  require(wrong.none(), ExitCode::checkpoint, "the adapter of '", folder.string(),
          "' is not one of this model: ", wrong.text());
  const at::NoGradGuard no_grad;
  for (auto& [to, name] : copies) {
    const ArrayView& view = weights.at(name);
    const at::Tensor whole = tensor_from_bytes(view.dtype, view.shape, view.bytes);
    to.tensor.copy_(to.cut.whole() ? whole : to.cut.part_of(whole));
  }
}

void write_peft(const fs::path& folder, const nn::LoraSet& lora, const std::string& base_model) {
  const nn::LoraOptions& o = lora.options();
  const nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base_model},
      {"r", o.rank},
      {"lora_alpha", o.alpha == std::floor(o.alpha) && std::abs(o.alpha) < 1e15
                         ? nlohmann::ordered_json(static_cast<int64_t>(o.alpha))
                         : nlohmann::ordered_json(o.alpha)},
      {"lora_dropout", o.dropout},
      {"use_rslora", o.rslora},
      {"use_dora", o.dora},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"init_lora_weights", true},
      {"inference_mode", true},
      {"modules_to_save",
       o.modules_to_save.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(o.modules_to_save)},
      {"rank_pattern", nlohmann::ordered_json::object()},
      {"alpha_pattern", nlohmann::ordered_json::object()},
      {"target_modules", peft_targets(o)}};
  std::vector<at::Tensor> hosts;
  std::vector<SafetensorsEntry> entries;
  for (const AdapterTensor& adapter : adapter_tensors(lora)) {
    const at::Tensor& host = hosts.emplace_back(host_tensor(adapter.tensor));
    entries.push_back({adapter.name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
  }
  write_folder(folder, [&](const fs::path& place) {
    write_safetensors(place / kWeights, entries, {{"format", "pt"}});
    write_file(place / kConfig, as_bytes(config.dump(2) + "\n"));
  });
}

}  // namespace hrm::checkpoint
