#include "hrm/formats/jsonl.h"

#include <algorithm>
#include <cstring>

#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

JsonlLines::JsonlLines(std::span<const std::byte> bytes, uint64_t offset, size_t number)
    : text_(as_text(bytes)), at_(std::min<uint64_t>(offset, text_.size())), number_(number) {
  if (at_ == 0 && text_.starts_with(kByteOrderMark)) at_ = kByteOrderMark.size();
}

bool JsonlLines::next(JsonlLine& line) {
  while (at_ < text_.size()) {
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    line = {at_, number_, text_.substr(at_, end - at_)};
    at_ = std::min(end + 1, text_.size());
    ++number_;
    if (is_blank(line.text)) continue;
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    return true;
  }
  return false;
}

JsonlLine jsonl_line_at(std::span<const std::byte> bytes, uint64_t offset) {
  JsonlLines lines(bytes, offset, 0);
  JsonlLine line;
  require(offset < bytes.size() && lines.next(line), ExitCode::unexpected, "no line at byte ", offset);
  line.number = 0;
  return line;
}

size_t jsonl_line_number(std::span<const std::byte> bytes, uint64_t offset) {
  const std::string_view before = as_text(bytes).substr(0, offset);
  return 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
}

void check_jsonl_line(std::string_view text, ExitCode code, uint64_t most) {
  require(text.size() <= most, code, "a line of ", human_bytes(text.size()), "; a record has at most ",
          human_bytes(most));
  require(is_utf8(text), code, "the line is not valid UTF-8");
}

}  // namespace hrm
