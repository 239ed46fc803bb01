#include "hrm/formats/peft_config.h"

#include <algorithm>
#include <cctype>
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

// PEFT takes it in any case of letters.
bool is_all_linear(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text == kAllLinear;
}

bool is_layer_name(std::string_view name) {
  constexpr std::string_view kOthers = "_-.";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](unsigned char c) {
    return (c < 0x80 && std::isalnum(c)) || kOthers.find(static_cast<char>(c)) != kOthers.npos;
  });
}

}  // namespace

std::string PeftConfig::target_list() const {
  if (!pattern.empty()) return kTargetPattern + pattern;
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
  for (const char* key : {"rank_pattern", "alpha_pattern", "fan_in_fan_out", "lora_bias", "layers_to_transform",
                          "exclude_modules", "target_parameters", "trainable_token_indices", "use_qalora", "use_bdlora",
                          "alora_invocation_tokens", "layer_replication", "kasa_config", "arrow_config"}) {
    require(!says(config, key), code, origin, ": '", key, "' asks for what this program's adapters do not have");
  }
  // Those that take something out of the base (PiSSA, OLoRA, LoftQ, CorDA) leave an adapter that is for the rest of it.
  const std::string start = text_of("init_lora_weights");
  require(start.empty() || start == "gaussian" || start == "eva" || start == "orthogonal", code, origin,
          ": 'init_lora_weights' is '", printable_start(start),
          "', which may change the frozen model too; convert the adapter to plain LoRA in PEFT and set it to true");
  for (const char* key : {"use_rslora", "use_dora"}) {
    const auto flag = config.find(key);
    require(flag == config.end() || flag->is_null() || flag->is_boolean(), code, origin, ": '", key,
            "' must be true or false");
  }
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
  out.dora = says(config, "use_dora");
  out.base_model = text_of("base_model_name_or_path");
  const auto names = [&](const char* key, const json& list) {
    std::vector<std::string> all;
    for (const json& name : list) {
      // A comma stands between the names of lora.targets.
      require(name.is_string() && is_layer_name(name.get_ref<const std::string&>()), code, origin, ": '", key,
              "' must be a list of names, each of letters, digits, '_', '-' and '.'");
      all.push_back(name.get<std::string>());
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  const auto targets = config.find("target_modules");
  const bool is_text = targets != config.end() && targets->is_string() && *targets != "";
  require(is_text || (targets != config.end() && targets->is_array() && !targets->empty()), code, origin,
          ": 'target_modules' must be a list of names, a pattern or \"", kAllLinear, "\"");
  if (!is_text) {
    out.targets = names("target_modules", *targets);
  } else if (is_all_linear(targets->get_ref<const std::string&>())) {
    out.targets = {kAllLinear};
  } else {
    out.pattern = targets->get<std::string>();
  }
  const auto saved = config.find("modules_to_save");
  if (saved != config.end() && !saved->is_null()) {
    require(saved->is_array(), code, origin, ": 'modules_to_save' must be a list of names");
    out.modules_to_save = names("modules_to_save", *saved);
  }
  return out;
}

}  // namespace hrm
