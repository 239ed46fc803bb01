#include "hrm/data/chat_open.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

ChatSide read_side(const fs::path& file, const ChatEncoder& encoder, const ChatDataOptions& options) {
  ChatSide side{std::make_shared<ChatDataset>(file, encoder, options), {}};
  side.examples.resize(side.dataset->size());
  std::iota(side.examples.begin(), side.examples.end(), int64_t{0});
  return side;
}

// The names by which an example could be known on another side.
std::vector<std::string> names_of(const ChatExample& example) {
  return {"key " + example.key, "prompt " + example.prompt};
}

}  // namespace

void check_no_leak(const ChatSide& one, const ChatSide& other) {
  if (!one.dataset || !other.dataset) return;
  std::unordered_map<std::string, int64_t> seen;
  for (const int64_t i : one.examples) {
    for (const std::string& name : names_of((*one.dataset)[i])) seen.emplace(name, i);
  }
  for (const int64_t i : other.examples) {
    for (const std::string& name : names_of((*other.dataset)[i])) {
      const auto found = seen.find(name);
      if (found == seen.end()) continue;
      fail(ExitCode::data, other.dataset->place(i), ": its prompt '", printable_start((*other.dataset)[i].prompt, 40),
           "' is also that of ", one.dataset->place(found->second),
           "; leave one of them out, or give a single file to be split");
    }
  }
}

ChatSides open_chat_sides(const fs::path& path, const ChatEncoder& encoder, const ChatDataOptions& options,
                          SplitOptions split, bool stratified) {
  std::error_code ignored;
  ChatSides sides;
  if (fs::exists(path / "train.jsonl", ignored)) {
    sides.train = read_side(path / "train.jsonl", encoder, options);
    if (fs::exists(path / "val.jsonl", ignored)) sides.validation = read_side(path / "val.jsonl", encoder, options);
    if (fs::exists(path / "test.jsonl", ignored)) sides.test = read_side(path / "test.jsonl", encoder, options);
    check_no_leak(sides.train, sides.validation);
    check_no_leak(sides.train, sides.test);
    check_no_leak(sides.validation, sides.test);
    return sides;
  }
  require(split.shares.size() == 3, ExitCode::usage, "a split into training, validation and test has 3 shares, not ",
          split.shares.size());
  const auto dataset = std::make_shared<const ChatDataset>(path, encoder, options);
  if (stratified) split.values = dataset->values();
  std::vector<std::vector<int64_t>> parts = split_groups(dataset->keys(), split);
  sides.train = {dataset, std::move(parts[0])};
  sides.validation = {dataset, std::move(parts[1])};
  sides.test = {dataset, std::move(parts[2])};
  return sides;
}

}  // namespace hrm::data
