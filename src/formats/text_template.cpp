#include "hrm/formats/text_template.h"

#include <algorithm>

#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr size_t kLongestFieldName = 64;

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestFieldName && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  });
}

}  // namespace

TextTemplate::TextTemplate(std::string_view text, const std::string& origin, ExitCode code) {
  const auto literal = [&](std::string_view part) {
    if (pieces_.empty() || pieces_.back().place) pieces_.push_back({false, ""});
    pieces_.back().text += part;
  };
  size_t at = 0;
  while (at < text.size()) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    if (brace > at) literal(text.substr(at, brace - at));
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      literal(text.substr(brace, 1));
      at = brace + 2;
      continue;
    }
    const size_t end = text[brace] == '{' ? text.find('}', brace) : std::string_view::npos;
    require(end != std::string_view::npos, code, origin, ": a single '", text.substr(brace, 1), "' at character ",
            brace + 1, "; a place is written {name}, and a brace of the text twice");
    const std::string_view name = text.substr(brace + 1, end - brace - 1);
    require(is_name(name), code, origin, ": '", printable_start(name), "' at character ", brace + 2,
            " is not a name of a place; a brace of the text itself occurs twice");
    pieces_.push_back({true, std::string(name)});
    if (!has(name)) names_.emplace_back(name);
    at = end + 1;
  }
}

bool TextTemplate::has(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

std::string TextTemplate::fill(const std::function<std::string(const std::string& name)>& value) const {
  std::string text;
  for (const Piece& piece : pieces_) text += piece.place ? value(piece.text) : piece.text;
  return text;
}

}  // namespace hrm
