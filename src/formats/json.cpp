#include "hrm/formats/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"

namespace hrm {

nlohmann::json parse_json(std::string_view text, const std::string& origin, ExitCode code, const JsonLimits& limits) {
  using Event = nlohmann::json::parse_event_t;
  refuse_foreign_file(as_bytes(text), origin, code);
  require(text.size() <= limits.bytes, code, origin, ": a JSON text of ", human_bytes(text.size()),
          " is too long; at most ", human_bytes(limits.bytes), " are read");
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      require(depth < limits.depth, code, origin, ": the JSON text nests more than ", limits.depth, " deep");
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const std::string& key = value.get_ref<const std::string&>();
      require(keys.back().insert(key).second, code, origin, ": the key '", printable_start(key), "' occurs twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& error) {
    // Without the library's name in front: "[json.exception.parse_error.101] ".
    const std::string_view what = error.what();
    const size_t prefix = what.find("] ");
    fail(code, origin, ": is not valid JSON: ",
         printable_start(prefix == std::string_view::npos ? what : what.substr(prefix + 2), 200));
  }
}

}  // namespace hrm
