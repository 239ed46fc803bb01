#pragma once
// From defaults, files and `key.sub=value` arguments to one resolved configuration that knows where each value is from.
//
// Every function here throws Error(usage) with one sentence that names the key, the value, the place (FILE:LINE or the
// argument) and what to do.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "hrm/config/config.h"

namespace hrm::config {

// Longest configuration that is read; a complete one takes about 8 KiB.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Where a value comes from.
struct Origin {
  enum class Kind { standard, file, command_line };
  Kind kind = Kind::standard;
  std::string file;      // as given (file)
  int line = 0;          // from 1 (file)
  std::string argument;  // "model.arch=trm" (command line)
  std::string note;      // why a standard value is not the usual one, e.g. "for model.arch trm"

  // "default", "default for model.arch trm", "FILE:LINE", "command line".
  std::string text() const;
};

struct LoadedConfig {
  Config config;
  std::map<std::string, Origin> origins;  // of every dotted key

  const Origin& origin(const std::string& key) const { return origins.at(key); }
  // Whether nobody has set the key.
  bool by_default(const std::string& key) const { return origin(key).kind == Origin::Kind::standard; }

  // The complete configuration as indented JSON, ending with a newline; loading it gives an equal configuration.
  std::string to_json() const;
};

// Applies defaults, then files, then overrides, each from left to right; a later value wins. Values are checked one by
// one and against each other. Fills in defaults that depend on other values: trm and transformer have no H module
// (H_layers 0), transformer has no cycles (H_cycles and L_cycles 1), and task polychromic has an optimizer and batch
// for fine-tuning. A file's top-level text "$schema" is ignored.
LoadedConfig load_config(const std::vector<std::string>& files, const std::vector<std::string>& overrides);
// The task that files and overrides name, whose values are not checked against each other; empty: they name none.
std::string task_of(const std::vector<std::string>& files, const std::vector<std::string>& overrides);

// The same from a text, e.g. the config.json of a checkpoint; `name` stands for the file in messages.
LoadedConfig config_from_json_text(const std::string& text, const std::string& name,
                                   const std::vector<std::string>& overrides = {});

// Whether the configuration can be trained with: nothing contradicts, data.train is given, and the run has a length.
void validate(const LoadedConfig& loaded);

}  // namespace hrm::config
