#include <algorithm>
#include <array>
#include <optional>

#include "formats/jinja/program.h"
#include "formats/jinja/text.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Line breaks of all systems as \n, without the last one.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string source, int& line) : source_(std::move(source)), line_(line) { line_ = 1; }

  std::vector<Token> read() {
    while (at_ < source_.size()) read_data();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  char at(size_t offset = 0) const { return at_ + offset < source_.size() ? source_[at_ + offset] : '\0'; }
  bool sees(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }
  void move(size_t count) {
    for (const size_t end = std::min(at_ + count, source_.size()); at_ < end; ++at_) line_ += source_[at_] == '\n';
    is_line_start_ = at_ > 0 && source_[at_ - 1] == '\n';
  }
  void skip_space() {
    while (at_ < source_.size()) {
      size_t next = at_;
      if (!is_space(next_character(source_, next))) return;
      move(next - at_);
    }
  }

  // The text up to the next tag, then the tag.
  void read_data() {
    size_t begin = at_;
    for (; begin + 1 < source_.size(); ++begin) {
      if (source_[begin] == '{' &&
          (source_[begin + 1] == '{' || source_[begin + 1] == '%' || source_[begin + 1] == '#')) {
        break;
      }
    }
    if (begin + 1 >= source_.size()) {
      const std::string rest = source_.substr(at_);
      add(TokenKind::data, rest);
      move(rest.size());
      return;
    }
    const char kind = source_[begin + 1];
    emit_data(source_.substr(at_, begin - at_), begin + 2 < source_.size() ? source_[begin + 2] : '\0', kind != '{');
    move(begin + 2 - at_);
    // {{+ is the sign of a number.
    if (at() == '-' || (at() == '+' && kind != '{')) move(1);
    if (kind == '#') {
      read_comment();
    } else if (kind == '{') {
      add(TokenKind::variable_begin, "");
      read_code(TokenKind::variable_end);
    } else if (!read_raw()) {
      add(TokenKind::block_begin, "");
      read_code(TokenKind::block_end);
    }
  }

  // `sign`: what follows the tag's brace; `is_block`: lstrip_blocks holds for it.
  void emit_data(std::string text, char sign, bool is_block) {
    if (sign == '-') {
      text = std::string(strip(text, false, true));
    } else if (sign != '+' && is_block) {
      const size_t line_begin = text.rfind('\n') + 1;  // 0 where there is none
      if ((line_begin > 0 || is_line_start_ || at_ == 0) && strip(text.substr(line_begin), true, true).empty()) {
        text.resize(line_begin);
      }
    }
    if (!text.empty()) add(TokenKind::data, std::move(text));
  }

  // Behind a tag: `-` takes white space away, otherwise the line's end goes with a block's tag.
  void end_tag(char sign, bool is_block) {
    move(2);
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && is_block && at() == '\n') {
      move(1);
    }
  }

  void read_comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) throw Fault("a comment {# has no end #}");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    move(end - at_);
    end_tag(sign, true);
  }

  // Whether the tag is {% raw %}; it is read with its content.
  bool read_raw() {
    const size_t saved = at_;
    const int line = line_;
    const auto word = [&](std::string_view name) {
      skip_space();
      if (!sees(name)) return false;
      move(name.size());
      skip_space();
      return true;
    };
    const bool is_raw = word("raw") && (sees("%}") || sees("-%}"));
    if (!is_raw) {
      at_ = saved;
      line_ = line;
      return false;
    }
    const bool strips = at() == '-';
    move(strips ? 3 : 2);
    if (strips) skip_space();
    const size_t begin = at_;
    for (size_t end = source_.find("{%", at_); end != std::string::npos; end = source_.find("{%", end + 2)) {
      at_ = end + 2;
      const char sign = at();
      if (sign == '-' || sign == '+') ++at_;
      if (!word("endraw") || !(sees("%}") || sees("-%}") || sees("+%}"))) continue;
      const size_t behind = at_;
      at_ = begin;
      line_ = line;
      emit_data(source_.substr(begin, end - begin), sign, true);
      move(behind - begin);
      const char last = at();
      if (last != '%') move(1);
      end_tag(last, true);
      return true;
    }
    line_ = line;
    throw Fault("{% raw %} has no {% endraw %}");
  }

  void read_code(TokenKind end) {
    const bool is_block = end == TokenKind::block_end;
    const std::string_view sign = is_block ? "%}" : "}}";
    std::string open;  // brackets; the end does not count inside them
    const int line = line_;
    while (true) {
      skip_space();
      if (at_ >= source_.size()) {
        line_ = line;
        throw Fault(cat("a tag ", is_block ? "{%" : "{{", " has no end ", sign));
      }
      if (open.empty()) {
        const bool has_sign = at() == '-' || (at() == '+' && is_block);
        if (sees(sign) || (has_sign && std::string_view(source_).substr(at_ + 1).starts_with(sign))) {
          add(end, "");
          const char last = at();
          if (has_sign) move(1);
          end_tag(last, is_block);
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = at();
    if (is_name_start(c)) return read_name();
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_text(c);
    static constexpr std::array<std::string_view, 25> kSigns = {"==", "!=", "<=", ">=", "//", "**", "<", ">", "=",
                                                                "+",  "-",  "*",  "/",  "%",  "~",  "(", ")", "[",
                                                                "]",  "{",  "}",  ",",  ":",  ".",  "|"};
    for (const std::string_view sign : kSigns) {
      if (!sees(sign)) continue;
      if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) throw Fault(cat("'", sign, "' closes no bracket"));
        open.pop_back();
      }
      add(TokenKind::sign, std::string(sign));
      move(sign.size());
      return;
    }
    size_t next = at_;
    next_character(source_, next);
    throw Fault(cat("unexpected character '", printable(source_.substr(at_, next - at_)), "'"));
  }

  void read_name() {
    size_t end = at_;
    while (end < source_.size() && (is_name_start(source_[end]) || is_digit(source_[end]))) ++end;
    add(TokenKind::name, source_.substr(at_, end - at_));
    move(end - at_);
  }

  // Digits with single underscores between them.
  size_t digits(size_t from) const {
    size_t end = from;
    while (end < source_.size() &&
           (is_digit(source_[end]) || (source_[end] == '_' && end > from && end + 1 < source_.size() &&
                                       is_digit(source_[end + 1]) && source_[end - 1] != '_'))) {
      ++end;
    }
    return end;
  }

  void read_number() {
    size_t end = digits(at_);
    bool real = false;
    if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      real = true;
      end = digits(end + 1);
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t power = end + 1;
      if (power < source_.size() && (source_[power] == '+' || source_[power] == '-')) ++power;
      if (power < source_.size() && is_digit(source_[power])) {
        real = true;
        end = digits(power);
      }
    }
    if (end < source_.size() && is_name_start(source_[end])) throw Fault("numbers are written in decimal digits alone");
    std::string text = source_.substr(at_, end - at_);
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    const bool padded = !real && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos;
    if (padded) throw Fault(cat("the whole number ", printable_start(text, 20), " begins with 0"));
    const size_t length = end - at_;
    add(real ? TokenKind::real : TokenKind::whole, std::move(text));
    move(length);
  }

  void read_text(char quote) {
    std::string out;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        read_escape(++i, out);
      } else {
        out += source_[i];
      }
    }
    if (i >= source_.size()) throw Fault("a text in quotes has no end");
    add(TokenKind::text, std::move(out));
    move(i + 1 - at_);
  }

  // Python's escapes; i is at the character behind the backslash, then at the escape's last one.
  void read_escape(size_t& i, std::string& out) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i];
    if (c == '\n') return;
    if (const size_t place = kLetters.find(c); place != std::string_view::npos) {
      out += kMeant[place];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_code(number_of(i + 1, count, 16), out);
      i += count;
    } else if (c >= '0' && c <= '7') {
      size_t count = 1;
      while (count < 3 && i + count < source_.size() && source_[i + count] >= '0' && source_[i + count] <= '7') ++count;
      append_code(number_of(i, count, 8), out);
      i += count - 1;
    } else if (c == 'N') {
      throw Fault("the escape \\N is not supported");
    } else {
      out += '\\';
      out += c;
    }
  }
  uint32_t number_of(size_t begin, size_t count, uint32_t base) const {
    uint32_t number = 0;
    for (size_t i = begin; i < begin + count; ++i) {
      const char c = i < source_.size() ? source_[i] : '\0';
      const int digit = is_digit(c)            ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) throw Fault("an escape in a text has too few digits");
      number = number * base + static_cast<uint32_t>(digit);
    }
    return number;
  }
  static void append_code(uint32_t code, std::string& out) {
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) throw Fault("an escape in a text is not a character");
    append_character(code, out);
  }

  std::string source_;
  int& line_;
  size_t at_ = 0;
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source, int& line) {
  return Lexer(with_plain_lines(source), line).read();
}

}  // namespace hrm::jinja
