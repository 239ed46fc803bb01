// adapter_config.json of PEFT. What is accepted is an adapter that can be made, and the same when it is written and
// read again.
#include <cmath>
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/formats/peft_config.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::checkpoint, [&] {
    const PeftConfig one = parse_peft_config(text, "x.json", ExitCode::checkpoint);
    fuzz::check(one.r >= 1 && one.r <= 4096 && one.targets.empty() != one.pattern.empty(),
                "a rank, and targets or a pattern");
    fuzz::check(std::isfinite(one.alpha) && one.alpha >= 0 && std::isfinite(one.dropout) && one.dropout >= 0,
                "numbers that can be computed with");
    nlohmann::json written = {{"peft_type", "LORA"},
                              {"r", one.r},
                              {"lora_alpha", one.alpha},
                              {"lora_dropout", one.dropout},
                              {"use_rslora", one.rslora},
                              {"base_model_name_or_path", one.base_model},
                              {"target_modules", one.targets},
                              {"use_dora", one.dora},
                              {"modules_to_save", one.modules_to_save}};
    if (!one.pattern.empty()) written["target_modules"] = one.pattern;
    if (one.targets == std::vector<std::string>{kAllLinear}) written["target_modules"] = kAllLinear;
    const PeftConfig again = parse_peft_config(written.dump(), "x.json", ExitCode::checkpoint);
    fuzz::check(again.r == one.r && again.alpha == one.alpha && again.dropout == one.dropout &&
                    again.rslora == one.rslora && again.targets == one.targets && again.pattern == one.pattern &&
                    again.dora == one.dora && again.modules_to_save == one.modules_to_save &&
                    again.base_model == one.base_model,
                "the same adapter");
  });
  return 0;
}
