// A configuration file. What loads gives, as JSON, an equal configuration.
#include "fuzz/fuzz.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(fuzz::text_of(data, size));
  fuzz::parses(ExitCode::usage, [&] {
    const config::LoadedConfig loaded = config::config_from_json_text(text, "x.json");
    const config::LoadedConfig again = config::config_from_json_text(loaded.to_json(), "again.json");
    fuzz::check(config::differing_keys(loaded.config, again.config).empty(), "the same configuration");
    fuzz::parses(ExitCode::usage, [&] { config::validate(loaded); });
  });
  return 0;
}
