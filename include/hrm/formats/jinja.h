#pragma once
// Chat templates in the Jinja language, as in tokenizer_config.json and chat_template.jinja. They are executed as in
// transformers (trim_blocks, lstrip_blocks, immutable sandbox), and give the same text for the same values.
//
// A template is untrusted code. It sees only the values passed to it: no file, no object attributes, no other template.
// Its steps and its output are limited. An unsupported construct is an error that names the line and the construct.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct JinjaOptions {
  // Each expression or statement is one step. Each 256 bytes of text or 4 list elements that it creates are one more.
  int64_t steps = 1'000'000;
  size_t output = size_t{4} << 20;  // bytes, for the output and for each intermediate text
  // The date that strftime_now() returns: year, month and day. Year 0: the local time of the clock.
  int year = 0, month = 1, day = 1;
};

struct JinjaOutput {
  std::string text;
  // Byte ranges [begin, end) written by {% generation %} blocks: the assistant's text.
  std::vector<std::pair<size_t, size_t>> generated;
};

namespace jinja {
struct Program;
}

// Copies share the parsed program; several threads may render at the same time.
class JinjaTemplate {
 public:
  // Throws Error(code) as "origin, line N: reason" for invalid UTF-8, a syntax error or an unsupported construct.
  JinjaTemplate(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);

  // `variables`: an object. Throws Error(code) as above if the template fails, raises an exception or hits a limit.
  JinjaOutput render(const nlohmann::ordered_json& variables, const JinjaOptions& options = {}) const;

  // Whether there is a {% generation %} block.
  bool marks_generation() const;
  // Whether the template uses this name as a variable, function or member, e.g. strftime_now.
  bool mentions(std::string_view name) const;

 private:
  std::shared_ptr<const jinja::Program> program_;
  std::string origin_;
  ExitCode code_;
};

}  // namespace hrm
