#include "hrm/data/chat_open.h"

#include <set>

#include "data/chat/chat_support.h"
#include "support/packed.h"

namespace hrm::data {
namespace {

using test::TempDir;

std::set<std::string> keys_of(const ChatSide& side) {
  std::set<std::string> keys;
  for (const int64_t i : side.examples) keys.insert((*side.dataset)[i].key);
  return keys;
}

ChatSides open_sides(const std::filesystem::path& path, const ChatDataOptions& options = {}, bool stratified = false) {
  return open_chat_sides(path, byte_chat(), options, {.shares = {0.5, 0.3, 0.2}, .seed = 2}, stratified);
}

TEST(ChatOpen, FoldersThatAreSplitStaySo) {
  const TempDir dir;
  write_text(dir / "d" / "train.jsonl", chat_line("a", "x") + chat_line("a", "y") + chat_line("b", "x"));
  write_text(dir / "d" / "val.jsonl", chat_line("c", "x"));
  write_text(dir / "d" / "other.jsonl", "not read");
  const ChatSides sides = open_sides(dir / "d");
  EXPECT_EQ(sides.train.examples, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(keys_of(sides.validation), (std::set<std::string>{"c"}));
  EXPECT_TRUE(sides.test.dataset == nullptr && sides.test.examples.empty());
}

// Data sets of others call the side otherwise; two files of it would leave open which one counts.
TEST(ChatOpen, ValidationHasOtherNames) {
  for (const char* name : {"validation.jsonl", "valid.jsonl"}) {
    const TempDir dir;
    write_text(dir / "d" / "train.jsonl", chat_line("a", "x"));
    write_text(dir / "d" / name, chat_line("c", "x"));
    EXPECT_TRUE(is_split_chat_folder(dir / "d"));
    EXPECT_FALSE(is_split_chat_folder(dir / "d" / "train.jsonl"));
    EXPECT_EQ(keys_of(open_sides(dir / "d").validation), (std::set<std::string>{"c"})) << name;
    write_text(dir / "d" / "val.jsonl", chat_line("e", "x"));
    expect_error(ExitCode::data, {"val.jsonl and ", name, "keep one of them"}, [&] { open_sides(dir / "d"); });
  }
}

TEST(ChatOpen, SidesMayBeArraysOrCompressed) {
  const TempDir dir;
  const auto folder = dir / "d";
  write_text(folder / "train.json", "[" + chat_line("a", "x") + "]");
  write_text(folder / "test.json.gz", test::gzip_packed("[" + chat_line("b", "x") + "]"));
  write_text(folder / "config.json", "{}");
  EXPECT_TRUE(is_split_chat_folder(folder));
  EXPECT_EQ(keys_of(open_sides(folder).test), (std::set<std::string>{"b"}));
  // What was made of an array comes before the array.
  write_text(folder / "train.jsonl.zst", test::zstd_packed(chat_line("c", "x")));
  const ChatSides sides = open_sides(folder);
  EXPECT_EQ(keys_of(sides.train), (std::set<std::string>{"c"}));
  EXPECT_EQ(sides.test.dataset, nullptr);
  write_text(folder / "train.jsonl", chat_line("d", "x"));
  expect_error(ExitCode::data, {"train.jsonl and train.jsonl.zst", "keep one of them"}, [&] { open_sides(folder); });
}

TEST(ChatOpen, APromptInTwoFilesIsLeakage) {
  const TempDir dir;
  const auto refused = [&](const std::vector<std::string>& parts, const ChatDataOptions& options = {}) {
    expect_error(ExitCode::data, parts, [&] { open_sides(dir / "d", options); });
  };
  write_text(dir / "d" / "train.jsonl", chat_line("a", "x") + chat_line("b", "x"));
  write_text(dir / "d" / "val.jsonl", chat_line("c", "x") + chat_line("b", "z"));
  refused({"val.jsonl:2: its prompt 'b' is also that of", "train.jsonl:2; leave one of them out"});
  write_text(dir / "d" / "val.jsonl", chat_line("c", "x"));
  write_text(dir / "d" / "test.jsonl", chat_line("c", "y"));
  refused({"test.jsonl:1: its prompt 'c' is also that of", "val.jsonl:1"});
  // The same prompt by its id.
  ChatDataOptions options;
  options.fields.id = "id";
  write_text(dir / "d" / "train.jsonl", R"({"id": 7, "prompt": "a", "response": "x"})");
  write_text(dir / "d" / "val.jsonl", R"({"id": 8, "prompt": "b", "response": "x"})");
  write_text(dir / "d" / "test.jsonl", R"({"id": 7, "prompt": "c", "response": "x"})");
  refused({"test.jsonl:1: its prompt 'c' is also that of", "train.jsonl:1"}, options);
}

TEST(ChatOpen, EverythingElseIsSplitByPrompt) {
  const TempDir dir;
  ChatDataOptions options;
  options.fields.value = "n";
  std::string text;
  for (int i = 0; i < 240; ++i) {
    text += cat("{\"prompt\": \"p", i % 80, "\", \"response\": \"r", i, "\", \"n\": ", i % 80, "}\n");
  }
  write_text(dir / "d" / "a.jsonl", text);
  for (const bool stratified : {false, true}) {
    const ChatSides sides = open_sides(dir / "d", options, stratified);
    std::set<std::string> all;
    size_t keys = 0, examples = 0;
    for (const ChatSide* side : {&sides.train, &sides.validation, &sides.test}) {
      const auto here = keys_of(*side);
      EXPECT_EQ(side->dataset, sides.train.dataset);
      EXPECT_EQ(side->examples.size(), 3 * here.size());
      keys += here.size();
      examples += side->examples.size();
      all.insert(here.begin(), here.end());
    }
    EXPECT_EQ(keys, 80u);
    EXPECT_EQ(all.size(), 80u);
    EXPECT_EQ(examples, 240u);
    if (!stratified) continue;
    EXPECT_EQ(keys_of(sides.train).size(), 40u);
    EXPECT_EQ(keys_of(sides.validation).size(), 24u);
  }
  expect_error(ExitCode::usage, {"has 3 shares, not 2"}, [&] {
    open_chat_sides(dir / "d", byte_chat(), options, {.shares = {0.5, 0.5}});
  });
  expect_error(ExitCode::data, {"nothing' does not exist"}, [&] { open_sides(dir / "nothing"); });
}

// Before templates were run, auto was a guess, and plain prompts had no BOS. No such checkpoint has chat.bos.
TEST(ChatOpen, EarlierCheckpointsKeepTheirPrompts) {
  using Settings = std::vector<std::string>;
  const std::map<std::string, std::string> guessed{{kChatTemplate, "chatml"}}, plain{{kChatTemplate, "plain"}};
  const auto kept = settings_of_earlier_chat;
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "auto", "thinking": "auto"}})", guessed, {}),
            (Settings{"chat.template=chatml"}));
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "plain"}})", plain, {}), (Settings{"chat.bos=off"}));
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "chatml"}})", guessed, {}), Settings{});
  // What is asked for holds.
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "auto"}})", guessed, {"chat.template=plain"}),
            (Settings{"chat.bos=off"}));
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "auto"}})", guessed, {"chat.template=model"}),
            Settings{});
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "auto"}})", guessed, {"chat.template=auto"}),
            (Settings{"chat.template=chatml"}));
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "plain"}})", plain, {"chat.template=auto"}),
            (Settings{"chat.bos=off"}));
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "plain"}})", plain, {"chat.bos=auto"}), Settings{});
  EXPECT_EQ(kept(R"({"chat": {"tools_field": "tools", "template": "plain"}})", plain, {"chat.template=model"}),
            Settings{});
  // Checkpoints of this version say all.
  EXPECT_EQ(
      kept(R"({"chat": {"tools_field": "tools", "template": "auto", "bos": "auto"}})", {{kChatTemplate, "model"}}, {}),
      Settings{});
  EXPECT_EQ(kept(R"({"task": "puzzle"})", {}, {}), Settings{});
  EXPECT_EQ(kept(R"({"task": "polychromic", "chat": {"template": "auto", "bos": "auto", "tools_field": "tools"}})",
                 {{kChatTemplate, "model"}}, {}),
            Settings{});
  // Tools of records were passed over.
  EXPECT_EQ(kept(R"({"task": "polychromic", "chat": {"template": "auto"}})", guessed, {}),
            (Settings{"chat.tools_field=", "chat.template=chatml"}));
  EXPECT_EQ(kept(R"({"task": "polychromic", "chat": {"template": "auto", "bos": "auto"}})", {{kChatTemplate, "model"}},
                 {"chat.tools_field=functions"}),
            Settings{});
  EXPECT_EQ(kept(R"({"task": 5, "chat": {"template": null}})", {}, {}), Settings{"chat.tools_field="})
      << "who reads it refuses it";
  expect_error(ExitCode::checkpoint, {"config.json"}, [&] { kept("{", guessed, {}); });
}

}  // namespace
}  // namespace hrm::data
