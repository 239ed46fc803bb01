// model.safetensors.index.json. No shard leads out of the folder, and the map is the same when it is written and read
// again.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/base/text.h"
#include "hrm/formats/safetensors_set.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::checkpoint, [&] {
    const auto map = parse_safetensors_index(text, "x.json", ExitCode::checkpoint);
    fuzz::check(!map.empty(), "a tensor");
    for (const auto& [tensor, shard] : map) {
      fuzz::touch(tensor);
      fuzz::check(is_plain_file_name(shard), "the name of a file");
    }
    const nlohmann::json written = {{"weight_map", map}};
    fuzz::check(parse_safetensors_index(written.dump(), "x.json", ExitCode::checkpoint) == map, "the same map");
  });
  return 0;
}
