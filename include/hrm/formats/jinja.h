#pragma once
// Templates of chats in the language of Jinja, as tokenizer_config.json and chat_template.jinja hold them. They are run
// as transformers runs them (trim_blocks, lstrip_blocks, immutable sandbox): the same text for the same values.
//
// Such a template is a foreign program. It sees the values that it is given and nothing else: no file, no attribute of
// an object, no other template. Its steps and its output are limited. Whatever it uses that is not known here is
// refused by line and construct.

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
  // An expression or statement is a step; 256 bytes of text that one makes, or 4 elements of a list, are one more.
  int64_t steps = 1'000'000;
  size_t output = size_t{4} << 20;  // bytes, of the output and of every text that is made on the way
  // What strftime_now() takes for now: the year, month and day; year 0: the clock's local time.
  int year = 0, month = 1, day = 1;
};

struct JinjaOutput {
  std::string text;
  // Bytes [begin, end) that {% generation %} blocks wrote: what the assistant says.
  std::vector<std::pair<size_t, size_t>> generated;
};

namespace jinja {
struct Program;
}

// Copies share the parsed program; several threads may render at a time.
class JinjaTemplate {
 public:
  // Throws Error(code) as "origin, line N: reason": no UTF-8, wrong syntax, a construct that is not known.
  JinjaTemplate(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);

  // `variables`: an object. Throws Error(code) as above where the template fails or raises an exception, or at a limit.
  JinjaOutput render(const nlohmann::ordered_json& variables, const JinjaOptions& options = {}) const;

  // Whether there is a {% generation %} block.
  bool marks_generation() const;
  // Whether the name is in it as a variable, function or member, e.g. strftime_now.
  bool mentions(std::string_view name) const;

 private:
  std::shared_ptr<const jinja::Program> program_;
  std::string origin_;
  ExitCode code_;
};

}  // namespace hrm
