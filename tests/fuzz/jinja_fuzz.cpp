// Templates of chats, run on a conversation. Whatever a template is, it ends within its limits, the same each time.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/base/text.h"
#include "hrm/formats/jinja.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(R"({
      "messages": [{"role": "system", "content": "Be \u00fc <brief>."},
                   {"role": "user", "content": [{"type": "text", "text": " a\nb "}]},
                   {"role": "assistant", "content": "", "tool_calls": [
                       {"id": "a1", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true], "y": {}}}}]},
                   {"role": "tool", "content": "42"}, {"role": "assistant", "content": "<think>\nt\n</think>\n\n4"}],
      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}],
      "documents": null, "bos_token": "<s>", "add_generation_prompt": true})");
  // Less than a training's, so that a second holds many inputs.
  const JinjaOptions options{.steps = 50'000, .output = size_t{1} << 18, .year = 2026, .month = 11, .day = 25};
  fuzz::parses(ExitCode::data, [&] {
    const JinjaTemplate one(fuzz::text_of(data, size), "t.jinja", ExitCode::data);
    const JinjaOutput output = one.render(variables, options);
    fuzz::check(is_utf8(output.text), "the output is UTF-8");
    fuzz::check(output.text.size() <= options.output, "the output keeps its limit");
    size_t before = 0;
    for (const auto& [begin, end] : output.generated) {
      fuzz::check(before <= begin && begin <= end && end <= output.text.size(), "spans in order, within the text");
      before = begin;
    }
    fuzz::check(output.generated.empty() || one.marks_generation(), "spans of a template that has such blocks");
    const JinjaOutput again = JinjaTemplate(fuzz::text_of(data, size), "t.jinja").render(variables, options);
    fuzz::check(again.text == output.text && again.generated == output.generated, "the same output");
  });
  return 0;
}
