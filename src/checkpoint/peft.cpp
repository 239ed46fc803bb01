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
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";

}  // namespace

bool is_peft_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kConfig, ignored);
}

PeftConfig read_peft_config(const fs::path& folder) {
  constexpr ExitCode kCode = ExitCode::checkpoint;
  const fs::path file = folder / kConfig;
  require(is_peft_folder(folder), kCode, "'", folder.string(), "' is no folder of an adapter: ", kConfig,
          " is not there");
  return parse_peft_config(read_text(file, kCode), file.string(), kCode);
}

void load_peft(const fs::path& folder, nn::LoraSet& lora) {
  const PeftConfig config = read_peft_config(folder);
  const nn::LoraOptions& o = lora.options();
  PeftConfig ours;
  ours.targets = o.targets;
  std::sort(ours.targets.begin(), ours.targets.end());
  const nn::LoraOptions theirs{.rank = config.r, .alpha = config.alpha, .rslora = config.rslora};
  require(config.r == o.rank && nn::lora_scale(theirs) == nn::lora_scale(o) && config.targets == ours.targets,
          ExitCode::checkpoint, "the adapter of '", folder.string(), "' has rank ", config.r, ", alpha ", config.alpha,
          config.rslora ? " (rslora)" : "", " and ", config.targets.size(), " targets (",
          printable(config.target_list()), "), which are not lora.r = ", o.rank, ", lora.alpha = ", o.alpha,
          ", lora.rslora = ", o.rslora ? "true" : "false", " and lora.targets = ", ours.target_list(),
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
