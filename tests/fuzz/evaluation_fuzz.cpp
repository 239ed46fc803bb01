// eval.json of `eval --report`, and what `report` makes of it. No text of the file becomes markup.
#include <cmath>

#include "commands/answer_report.h"
#include "fuzz/fuzz.h"
#include "hrm/base/text.h"

using namespace hrm;

namespace {

// The bootstrap of more takes too long here.
constexpr size_t kMostPrompts = 2;

size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const commands::ReportedEvaluation one = commands::parse_evaluation(text, "eval.json");
    fuzz::check(!one.prompts.empty(), "a prompt");
    fuzz::check(!one.loss || std::isfinite(*one.loss), "a loss that can be computed with");
    for (const commands::ReportedPrompt& prompt : one.prompts) {
      fuzz::check(prompt.right.empty() || prompt.right.size() == prompt.sampled.size(), "a mark for each answer");
      for (const auto& [metric, value] : prompt.values) fuzz::check(std::isfinite(value), "a number");
      fuzz::check(escaped_markup(prompt.greedy).find_first_of("<>\"'") == std::string::npos, "no markup");
    }
    if (one.prompts.size() > kMostPrompts) return;
    const commands::AnswerReport report = commands::compare_answers({{"<a>", {one}}});
    fuzz::touch(commands::report_markdown(report));
    const std::string page = commands::answers_page(report);
    fuzz::check(count_of(page, "<script") == 0 && count_of(page, "<section>") == count_of(page, "</section>"),
                "the page's own markup alone");
    const commands::Front front = commands::quality_diversity_front(report);
    if (front.missing.empty()) fuzz::touch(commands::front_picture(front));
  });
  return 0;
}
