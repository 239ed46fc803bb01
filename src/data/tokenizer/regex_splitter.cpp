#include "data/tokenizer/regex_splitter.h"

#include <cctype>
#include <utility>

#include "data/pcre2_support.h"
#include "data/tokenizer/unicode.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

constexpr size_t kStackBegin = size_t{64} << 10, kStackMost = size_t{8} << 20;

// White space in Oniguruma and Rust. PCRE2 also counts U+180E.
constexpr std::string_view kSpaces = R"(\x{9}-\x{D}\x{85}\p{Z})";

// Translates an Oniguruma pattern into an equivalent PCRE2 pattern, or refuses it.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& origin, ExitCode code)
      : pattern_(pattern), origin_(origin), code_(code) {}

  std::string translate() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(/*in_class=*/false);
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        repetition();
      } else if (c == '^' || c == '$' || c == '.') {
        refuse(std::string(1, c));
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail(code_, origin_, ": the pattern '", printable_start(pattern_), "' uses '", printable_start(what),
         "', which this program does not know");
  }

  void escape(bool in_class) {
    if (at_ + 1 == pattern_.size()) refuse("\\");
    const char c = pattern_[at_ + 1];
    if (c == 'p' || c == 'P') {
      const size_t close = pattern_.find('}', at_);
      if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == pattern_.npos ||
          pattern_[at_ + 3] == '^') {
        refuse(std::string(pattern_.substr(at_, 4)));
      }
      out_ += pattern_.substr(at_, close + 1 - at_);
      at_ = close + 1;
      return;
    }
    at_ += 2;
    if (c == 's' && in_class) {
      out_ += kSpaces;
    } else if (c == 's') {
      out_ += cat('[', kSpaces, ']');
    } else if (c == 'S' && !in_class) {
      out_ += cat("[^", kSpaces, ']');
    } else if ((c == 'A' || c == 'z') && !in_class) {  // the beginning and the end of the text
      out_ += '\\';
      out_ += c;
    } else if (c == 'd' || c == 'D' || c == 'r' || c == 'n' || c == 't') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) {
      out_ += '\\';
      out_ += c;
    } else {
      refuse(std::string("\\") + c);
    }
  }

  void character_class() {
    const size_t begin = at_;
    out_ += '[';
    ++at_;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      out_ += '^';
      ++at_;
    }
    bool first = true;
    for (; at_ < pattern_.size(); first = false) {
      const char c = pattern_[at_];
      if (c == ']' && !first) {
        out_ += c;
        ++at_;
        return;
      }
      // In Oniguruma these are an empty class, a nested class, and an intersection.
      if (c == ']' || c == '[' || pattern_.substr(at_, 2) == "&&")
        refuse(std::string(pattern_.substr(begin, at_ + 2 - begin)));
      if (c == '\\') {
        escape(/*in_class=*/true);
      } else {
        out_ += c;
        ++at_;
      }
    }
    refuse(std::string(pattern_.substr(begin)));
  }

  void group() {
    if (pattern_.substr(at_, 2) == "(*") refuse("(*");  // a PCRE2 control verb
    if (pattern_.substr(at_, 2) == "(?") {
      for (const std::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
        if (pattern_.substr(at_, known.size()) != known) continue;
        out_ += known;
        at_ += known.size();
        return;
      }
      refuse(std::string(pattern_.substr(at_, 3)));
    }
    out_ += '(';
    ++at_;
  }

  // {n}, {n,}, {n,m}. A following + makes it possessive in PCRE2 only.
  void repetition() {
    const size_t close = pattern_.find('}', at_);
    if (close == pattern_.npos) refuse("{");
    const std::string_view inside = pattern_.substr(at_ + 1, close - at_ - 1);
    const size_t comma = inside.find(',');
    const std::string_view low = inside.substr(0, comma), high = comma == inside.npos ? low : inside.substr(comma + 1);
    const bool possessive = pattern_.substr(close + 1, 1) == "+";
    if (!whole_number(low) || (!high.empty() && !whole_number(high)) || possessive) {
      refuse(std::string(pattern_.substr(at_, close + 2 - at_)));
    }
    out_ += pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
  }

  std::string_view pattern_;
  const std::string& origin_;
  ExitCode code_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

struct RegexSplitter::Code {
  std::string pattern;
  pcre2_code* compiled = nullptr;

  ~Code() { pcre2_code_free(compiled); }
};

RegexSplitter::RegexSplitter(std::string_view pattern, const std::string& origin, ExitCode code) {
  require(utf8_prefix(pattern) == pattern.size(), code, origin, ": the pattern '", printable_start(pattern),
          "' is not UTF-8");
  const std::string translated = Translator(pattern, origin, code).translate();
  auto made = std::make_shared<Code>();
  made->pattern = pattern;
  int error = 0;
  PCRE2_SIZE at = 0;
  made->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  require(made->compiled != nullptr, code, origin, ": the pattern '", printable_start(pattern),
          "' is not a regular expression: ", pcre2_error_text(error));
  // If the system forbids JIT code, PCRE2 interprets the pattern: slower, with the same matches.
  pcre2_jit_compile(made->compiled, PCRE2_JIT_COMPLETE);
  code_ = std::move(made);
}

RegexSplitter::~RegexSplitter() = default;
RegexSplitter::RegexSplitter(RegexSplitter&&) noexcept = default;

struct RegexSplitter::Matcher::State {
  std::shared_ptr<const Code> code;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::vector<Match> matches;

  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexSplitter::Matcher::Matcher(const RegexSplitter& splitter) : state_(std::make_unique<State>()) {
  state_->code = splitter.code_;
  state_->data = pcre2_match_data_create_from_pattern(state_->code->compiled, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  state_->stack = pcre2_jit_stack_create(kStackBegin, kStackMost, nullptr);
  require(state_->data != nullptr && state_->context != nullptr, ExitCode::environment,
          "there is no memory for the search of a tokenizer's words");
  pcre2_set_match_limit(state_->context, kMostSearchSteps);
  if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

RegexSplitter::Matcher::~Matcher() = default;
RegexSplitter::Matcher::Matcher(Matcher&&) noexcept = default;

void RegexSplitter::Matcher::find(std::string_view text, std::vector<Match>& matches) {
  size_t from = 0, last = SIZE_MAX;  // where the search resumes; where the last match ends
  while (from <= text.size()) {
    const int found = pcre2_match(state_->code->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, state_->data, state_->context);
    if (found == PCRE2_ERROR_NOMATCH) break;
    require(found >= 0, ExitCode::data, "the tokenizer's pattern '", printable_start(state_->code->pattern),
            "' cannot be searched in a text of ", human_bytes(text.size()), ": ", pcre2_error_text(found));
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(state_->data);
    const size_t begin = match[0], end = match[1];
    if (begin < end || begin != last) matches.push_back({begin, end});
    last = end;
    from = end;
    if (begin < end) continue;
    // After an empty match, the search resumes one character later.
    if (begin >= text.size()) break;
    from = begin + character_at(text.data() + begin).bytes;
  }
}

void RegexSplitter::Matcher::split(std::string_view text, std::vector<size_t>& ends) {
  state_->matches.clear();
  find(text, state_->matches);
  size_t last = 0;  // end of the last part
  const auto cut = [&](size_t at) {
    if (at > last) ends.push_back(at);
    last = at;
  };
  for (const Match& match : state_->matches) {
    cut(match.begin);
    cut(match.end);
  }
  cut(text.size());
}

}  // namespace hrm::data
