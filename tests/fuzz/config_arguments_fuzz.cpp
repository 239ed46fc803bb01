// Each line of the input is an argument key=value of the command line.
#include "fuzz/fuzz.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  std::vector<std::string> arguments;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    // An argument ends at its first zero byte.
    arguments.emplace_back(std::string(text.substr(begin, end - begin)).c_str());
    begin = end + 1;
  }
  fuzz::parses(ExitCode::usage, [&] {
    const config::LoadedConfig loaded = config::load_config({}, arguments);
    const config::LoadedConfig again = config::config_from_json_text(loaded.to_json(), "again.json");
    fuzz::check(config::differing_keys(loaded.config, again.config).empty(), "the same configuration");
  });
  return 0;
}
