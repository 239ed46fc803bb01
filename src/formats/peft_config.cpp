#include "hrm/formats/peft_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

using nlohmann::json;

// Whether a member is there and says something.
bool says(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return !(found->is_object() || found->is_array()) || !found->empty();
}

}  // namespace

std::string PeftConfig::target_list() const {
  std::string text;
  for (const std::string& name : targets) text += (text.empty() ? "" : ",") + name;
  return text;
}

PeftConfig parse_peft_config(std::string_view text, const std::string& origin, ExitCode code) {
  const json config = parse_json(text, origin, code);
  require(config.is_object(), code, origin, ": must be an object");
  const auto text_of = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  require(text_of("peft_type") == "LORA", code, origin, ": 'peft_type' is '", printable_start(text_of("peft_type")),
          "'; this program reads LORA");
  require(!says(config, "bias") || text_of("bias") == "none", code, origin,
          ": 'bias' must be none; this program's layers have no biases");
  for (const char* key : {"use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "lora_bias",
                          "layers_to_transform", "exclude_modules", "target_parameters", "trainable_token_indices",
                          "use_qalora", "use_bdlora", "alora_invocation_tokens", "layer_replication"}) {
    require(!says(config, key), code, origin, ": '", key, "' asks for what this program's adapters do not have");
  }
  // Those that take something out of the base (PiSSA, OLoRA, LoftQ, CorDA) leave an adapter that is for the rest of it.
  const std::string start = text_of("init_lora_weights");
  require(start.empty() || start == "gaussian" || start == "eva" || start == "orthogonal", code, origin,
          ": 'init_lora_weights' is '", printable_start(start),
          "', which may change the frozen model too; convert the adapter to plain LoRA in PEFT and set it to true");
  const auto rslora = config.find("use_rslora");
  require(rslora == config.end() || rslora->is_null() || rslora->is_boolean(), code, origin,
          ": 'use_rslora' must be true or false");
  const auto base = config.find("base_model_name_or_path");
  require(base == config.end() || base->is_null() || base->is_string(), code, origin,
          ": 'base_model_name_or_path' must be a text");
  const auto number = [&](const char* key, double least) {
    const auto found = config.find(key);
    require(found != config.end() && found->is_number() && std::isfinite(found->get<double>()) &&
                found->get<double>() >= least,
            code, origin, ": '", key, "' must be a number of at least ", least);
    return found->get<double>();
  };
  PeftConfig out;
  const double r = number("r", 1);
  require(r == std::floor(r) && r <= 4096, code, origin, ": 'r' must be a whole number up to 4,096");
  out.r = static_cast<int64_t>(r);
  out.alpha = number("lora_alpha", 0);
  out.dropout = config.contains("lora_dropout") ? number("lora_dropout", 0) : 0;
  out.rslora = says(config, "use_rslora");
  out.base_model = text_of("base_model_name_or_path");
  const auto targets = config.find("target_modules");
  require(targets != config.end() && targets->is_array() && !targets->empty(), code, origin,
          ": 'target_modules' must be a list of names");
  for (const json& target : *targets) {
    require(target.is_string(), code, origin, ": 'target_modules' must be a list of names");
    out.targets.push_back(target.get<std::string>());
  }
  std::sort(out.targets.begin(), out.targets.end());
  return out;
}

}  // namespace hrm
