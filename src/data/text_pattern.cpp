#include "hrm/data/text_pattern.h"

#include "data/pcre2_support.h"
#include "data/tokenizer/unicode.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

constexpr uint32_t kMostKibibytes = 64 << 10;

struct MatchData {
  pcre2_match_data* data;
  pcre2_match_context* context;

  explicit MatchData(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (context == nullptr) return;
    pcre2_set_match_limit(context, kMostSearchSteps);
    pcre2_set_heap_limit(context, kMostKibibytes);
  }
  ~MatchData() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
};

}  // namespace

struct TextPattern::Code {
  std::string pattern;
  pcre2_code* compiled = nullptr;

  Code() = default;
  ~Code() { pcre2_code_free(compiled); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

TextPattern::TextPattern(std::string_view pattern, const std::string& origin, ExitCode code) {
  require(is_utf8(pattern), code, origin, ": the pattern '", printable_start(pattern), "' is not UTF-8");
  auto made = std::make_unique<Code>();
  made->pattern = pattern;
  int error = 0;
  PCRE2_SIZE at = 0;
  // \C would split characters.
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_DOTALL | PCRE2_NEVER_BACKSLASH_C;
  made->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), kOptions, &error, &at, nullptr);
  require(made->compiled != nullptr, code, origin, ": the pattern '", printable_start(pattern),
          "' is not a regular expression: ", pcre2_error_text(error), " at byte ", at);
  code_ = std::move(made);
}

TextPattern::~TextPattern() = default;
TextPattern::TextPattern(TextPattern&&) noexcept = default;

const std::string& TextPattern::pattern() const {
  return code_->pattern;
}

TextPattern::Answer TextPattern::matches(std::string_view text) const {
  std::string mended;
  if (!is_utf8(text)) {
    append_utf8_lossy(text, /*complete=*/true, mended);
    text = mended;
  }
  const MatchData match(code_->compiled);
  require(match.data != nullptr && match.context != nullptr, ExitCode::environment,
          "there is no memory to compare a text with a pattern");
  // Anchored at both ends, so that a pattern's first alternative does not hide a longer one.
  const int found = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                                PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NO_UTF_CHECK, match.data, match.context);
  if (found >= 0) return Answer::yes;
  return found == PCRE2_ERROR_NOMATCH ? Answer::no : Answer::gave_up;
}

}  // namespace hrm::data
