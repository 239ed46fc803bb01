#include "hrm/formats/host_list.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr size_t kMostText = size_t{1} << 17;
constexpr uint64_t kMostHosts = 1 << 16;
constexpr uint64_t kMostTasks = 1 << 20;
constexpr size_t kLongestHostName = 253;  // of the domain name system
constexpr size_t kMostDigits = 18;        // fits uint64

[[noreturn]] void bad_hostlist(std::string_view list, const char* why) {
  fail(ExitCode::environment, "the list of nodes '", printable_start(list), "' cannot be read: ", why,
       "; set MASTER_ADDR and start the ranks without Slurm's variables");
}

// 08 to 10, with as many digits as the first has.
struct Range {
  uint64_t first, last;
  size_t digits;

  uint64_t count() const { return last - first + 1; }
};

// A piece of a name: text as it is, or the ranges of a bracket.
struct Piece {
  std::string_view text;
  std::vector<Range> ranges;

  uint64_t count() const {
    uint64_t sum = 0;
    for (const Range& range : ranges) sum += range.count();
    return sum;
  }
  size_t longest() const {
    size_t most = text.size();
    for (const Range& range : ranges) most = std::max(most, std::max(range.digits, kMostDigits));
    return most;
  }
};

// "01-03,7", a name's brackets.
std::vector<Range> parse_ranges(std::string_view inside, std::string_view list) {
  std::vector<Range> ranges;
  uint64_t hosts = 0;
  size_t begin = 0;
  while (begin <= inside.size()) {
    const size_t comma = std::min(inside.find(',', begin), inside.size());
    const std::string_view item = inside.substr(begin, comma - begin);
    const size_t dash = item.find('-');
    const std::string_view low = item.substr(0, dash), high = dash == item.npos ? low : item.substr(dash + 1);
    const auto first = whole_number(low), last = whole_number(high);
    if (!first || !last || *last < *first) bad_hostlist(list, "brackets hold numbers and ranges like 01-03");
    if (low.size() > kMostDigits || high.size() > kMostDigits) bad_hostlist(list, "a number has more than 18 digits");
    ranges.push_back({*first, *last, low.size()});
    hosts += std::min(ranges.back().count(), kMostHosts + 1);
    if (hosts > kMostHosts) bad_hostlist(list, "too many nodes");
    begin = comma + 1;
  }
  return ranges;
}

// One name with brackets anywhere.
std::vector<Piece> parse_name(std::string_view name, std::string_view list) {
  const auto plain = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (name.empty()) bad_hostlist(list, "a name is empty");
  std::vector<Piece> pieces;
  uint64_t hosts = 1;
  size_t length = 0;
  for (size_t at = 0; at < name.size();) {
    Piece& piece = pieces.emplace_back();
    if (name[at] == '[') {
      const size_t close = name.find(']', at);
      if (close == name.npos) bad_hostlist(list, "a bracket is not closed");
      piece.ranges = parse_ranges(name.substr(at + 1, close - at - 1), list);
      hosts *= piece.count();  // both at most 2^16
      if (hosts > kMostHosts) bad_hostlist(list, "too many nodes");
      at = close + 1;
    } else {
      piece.text = name.substr(at, std::min(name.find('[', at), name.size()) - at);
      if (!std::all_of(piece.text.begin(), piece.text.end(), plain)) {
        bad_hostlist(list, "names are made of letters, digits, '.', '_' and '-'");
      }
      at += piece.text.size();
    }
    length += piece.longest();
    if (length > kLongestHostName) bad_hostlist(list, "a name is longer than 253 characters");
  }
  return pieces;
}

void expand_name(const std::vector<Piece>& pieces, std::vector<std::string>& out) {
  std::vector<std::string> names = {""};
  for (const Piece& piece : pieces) {
    if (piece.ranges.empty()) {
      for (std::string& name : names) name += piece.text;
      continue;
    }
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const Range& range : piece.ranges) {
        for (uint64_t i = range.first; i <= range.last; ++i) {
          const std::string digits = std::to_string(i);
          const size_t zeros = range.digits > digits.size() ? range.digits - digits.size() : 0;
          longer.push_back(name + std::string(zeros, '0') + digits);
        }
      }
    }
    names = std::move(longer);
  }
  for (std::string& name : names) out.push_back(std::move(name));
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view list) {
  if (list.size() > kMostText) bad_hostlist(list, "it is longer than 128 KiB");
  std::vector<std::vector<Piece>> names;
  uint64_t hosts = 0;
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') inside = true;
    if (i < list.size() && list[i] == ']') inside = false;
    if (i < list.size() && (inside || list[i] != ',')) continue;
    names.push_back(parse_name(list.substr(begin, i - begin), list));
    uint64_t of_name = 1;
    for (const Piece& piece : names.back()) of_name *= piece.ranges.empty() ? 1 : piece.count();
    hosts += of_name;
    if (hosts > kMostHosts) bad_hostlist(list, "too many nodes");
    begin = i + 1;
  }
  std::vector<std::string> out;
  for (const std::vector<Piece>& name : names) expand_name(name, out);
  return out;
}

std::vector<int> expand_counts(std::string_view counts) {
  const auto check = [&](bool good) {
    require(good, ExitCode::environment, "the tasks per node '", printable_start(counts),
            "' cannot be read, they are like 4(x2),1; start the ranks by srun");
  };
  check(counts.size() <= kMostText);
  std::vector<int> out;
  size_t begin = 0;
  while (begin <= counts.size()) {
    const size_t comma = std::min(counts.find(',', begin), counts.size());
    const std::string_view item = counts.substr(begin, comma - begin);
    const size_t open = item.find("(x");
    const auto value = whole_number(item.substr(0, open));
    std::optional<uint64_t> times = 1;
    if (open != item.npos) {
      times = item.back() == ')' ? whole_number(item.substr(open + 2, item.size() - open - 3)) : std::nullopt;
    }
    check(value && times && *value <= kMostTasks && *times >= 1 && *times <= kMostHosts - out.size());
    out.insert(out.end(), *times, static_cast<int>(*value));
    begin = comma + 1;
  }
  return out;
}

}  // namespace hrm
