// Ids of conversations and marks of what the assistant says against transformers' apply_chat_template, by templates of
// the wheels trl and axolotl (as ChatTemplates of test_formats, which compares the texts). One small tokenizer has the
// special tokens of all templates. tests/formats/make_chat_renderings.py wrote what the library gave.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "data/chat/chat_support.h"
#include "hrm/data/chat_template.h"
#include "support/paths.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRefused = "--------";

Json read_formats_fixture(const std::string& name) {
  return Json::parse(read_text(fixture("formats") / name, ExitCode::data));
}

fs::path template_folder() {
  const char* chosen = std::getenv("HRM_CHAT_TEMPLATES");
  return chosen != nullptr ? chosen : test::site_packages();
}

// The low 32 bits of FNV-1a of 64 bits, in hex, of numbers with spaces between.
template <typename Numbers>
std::string digest_of(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : " ") + std::to_string(number);
  uint64_t value = 0xCBF29CE484222325;
  for (const char byte : text) value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  char hex[9];
  std::snprintf(hex, sizeof hex, "%08x", static_cast<unsigned>(value & 0xFFFFFFFF));
  return hex;
}

// The tokenizer's folder of the fixture, whose post-processor trims offsets or does not.
TokenizerFolder small_tokenizer(const fs::path& folder, bool trim_offsets) {
  fs::create_directories(folder);
  Json tokenizer = read_formats_fixture("chat_tokenizer.json");
  tokenizer["post_processor"]["processors"][0]["trim_offsets"] = trim_offsets;
  write_text(folder / "tokenizer.json", tokenizer.dump());
  write_text(folder / "tokenizer_config.json",
             R"({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"})");
  return open_tokenizer_folder(folder);
}

// Spaces alone: a line end is no white space in GPT-2's alphabet, and is none for the library either.
TEST(ChatIds, PlacesOfTokensLeaveSpacesOut) {
  const test::TempDir dir;
  const TextEncoder trimmed = small_tokenizer(dir / "t", true).encoder,
                    whole = small_tokenizer(dir / "w", false).encoder;
  const auto first_of = [&](const char* text) { return trimmed.encode(text)[0]; };
  using Ends = std::pair<int64_t, int64_t>;
  EXPECT_EQ(trimmed.white_ends(first_of(" a"), false), Ends(1, 0));
  EXPECT_EQ(trimmed.white_ends(first_of(" a"), true), Ends(0, 0)) << "which the tokenizer may have put there";
  EXPECT_EQ(trimmed.white_ends(first_of(" %}\n"), false), Ends(1, 0));
  EXPECT_EQ(trimmed.white_ends(first_of("  "), false), Ends(2, 2));
  EXPECT_EQ(trimmed.white_ends(first_of("  "), true), Ends(1, 2));
  EXPECT_EQ(trimmed.white_ends(first_of("\n"), false), Ends(0, 0));
  EXPECT_EQ(trimmed.white_ends(first_of("<|im_end|>"), false), Ends(0, 0));
  EXPECT_EQ(whole.white_ends(first_of(" a"), false), Ends(0, 0));
}

TEST(ChatIds, EqualTheLibrary) {
  const Json all_ids = read_formats_fixture("chat_ids.json"), all_marks = read_formats_fixture("chat_masks.json");
  const Json conversations = read_formats_fixture("chat_conversations.json");
  ASSERT_GE(all_ids.size(), 18u);
  ASSERT_GE(all_marks.size(), 18u);
  ASSERT_EQ(conversations.size(), 40u);
  const fs::path folder = template_folder();
  if (!fs::exists(folder / all_ids.begin().key())) {
    GTEST_SKIP() << "trl and axolotl are not in " << folder << " (scripts/setup test installs them)";
  }
  const test::TempDir dir;
  const TextEncoder trimmed = small_tokenizer(dir / "t", true).encoder,
                    whole = small_tokenizer(dir / "w", false).encoder;
  // Of a text alone it puts BOS in front, which a template writes itself.
  ASSERT_EQ(trimmed.leading, std::vector<int32_t>{static_cast<int32_t>(trimmed.meta.bos_id)});
  int compared = 0, marked = 0, trims = 0;
  for (const auto& [name, expected] : all_ids.items()) {
    const JinjaTemplate one(read_text(folder / name, ExitCode::data), name);
    ASSERT_EQ(one.marks_generation(), all_marks.contains(name)) << name;
    const auto wanted = [&](const Json& digests, size_t i) { return digests.get<std::string>().substr(8 * i, 8); };
    for (size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(cat(name, ", conversation ", i));
      JinjaOutput output;
      try {
        output = one.render(conversations[i]["variables"], {.year = 2026, .month = 11, .day = 25});
      } catch (const Error&) {
        EXPECT_EQ(wanted(expected, i), kRefused);
        continue;
      }
      const std::vector<int32_t> ids = trimmed.encode(output.text);
      EXPECT_EQ(digest_of(ids), wanted(expected, i));
      ++compared;
      if (!one.marks_generation()) continue;
      const Json& marks = all_marks[name];
      EXPECT_EQ(digest_of(generated_marks(output, ids, trimmed)), wanted(marks["trimmed"], i));
      EXPECT_EQ(digest_of(generated_marks(output, ids, whole)), wanted(marks["whole"], i));
      ++marked;
      trims += wanted(marks["trimmed"], i) != wanted(marks["whole"], i) ? 1 : 0;
    }
  }
  EXPECT_GT(compared, static_cast<int>(all_ids.size()) * 30);
  EXPECT_GT(marked, static_cast<int>(all_marks.size()) * 30);
  EXPECT_GT(trims, 20) << "offsets without white space give other marks";
}

// The same conversations as records of a data set, with their tools and all that their messages have.
TEST(ChatIds, OfRecordsEqualTheLibrary) {
  const Json all_ids = read_formats_fixture("chat_ids.json"), all_marks = read_formats_fixture("chat_masks.json");
  const Json conversations = read_formats_fixture("chat_conversations.json");
  const fs::path folder = template_folder();
  if (!fs::exists(folder / all_ids.begin().key())) {
    GTEST_SKIP() << "trl and axolotl are not in " << folder << " (scripts/setup test installs them)";
  }
  const test::TempDir dir;
  const TokenizerFolder tokenizer = small_tokenizer(dir / "t", true);
  std::vector<std::optional<ChatRecord>> records;
  for (const Json& one : conversations) {
    const Json line = {{"messages", one["messages"]}, {"tools", one["tools"]}};
    try {
      records.emplace_back(parse_chat_record(line.dump(), {}));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("a part of type 'image'"), std::string::npos) << error.what();
      records.emplace_back();
    }
  }
  EXPECT_EQ(std::count(records.begin(), records.end(), std::nullopt), 1);
  int prompts = 0, turns = 0, answers = 0;
  for (const auto& [name, expected] : all_ids.items()) {
    const ModelTemplate own{
        .text = read_text(folder / name, ExitCode::data), .origin = name, .tokens = tokenizer.config};
    const JinjaTemplate one(own.text, name);
    ChatTemplateOptions options{.name = ChatTemplateKind::model,
                                .date = one.mentions("strftime_now") ? "2026-11-25" : ""};
    std::map<std::string, ChatEncoder> encoders;
    for (const auto thinking : {ChatThinking::automatic, ChatThinking::on, ChatThinking::off}) {
      options.thinking = one.mentions("enable_thinking") ? thinking : ChatThinking::automatic;
      encoders.emplace(name_of(thinking), ChatEncoder(tokenizer.encoder, options, own));
    }
    for (size_t i = 0; i < conversations.size(); ++i) {
      const std::string wanted = expected.get<std::string>().substr(8 * i, 8);
      if (!records[i] || wanted == kRefused) continue;
      SCOPED_TRACE(cat(name, ", conversation ", i));
      const Json& settings = conversations[i]["settings"];
      const auto thinks = settings.find("enable_thinking");
      const ChatEncoder& chat = encoders.at(thinks == settings.end() ? "auto" : *thinks == true ? "on" : "off");
      const ChatRecord& record = *records[i];
      const bool has_answer = record.no_response.empty();
      const ChatExtras more{.tools = record.tools, .response = record.response_json};
      if (conversations[i]["add_generation_prompt"] == true) {
        std::vector<ChatMessage> all = record.messages;
        if (has_answer) all.push_back({"assistant", record.response, record.response_json});
        EXPECT_EQ(digest_of(chat.prompt_ids(all, {}, more)), wanted);
        ++prompts;
        continue;
      }
      if (!has_answer) continue;
      try {
        if (chat.marks_turns()) {
          const ChatEncoder::Turns whole = chat.turns(record.messages, record.response, more);
          EXPECT_EQ(digest_of(whole.ids), wanted);
          EXPECT_EQ(digest_of(whole.learned), all_marks[name]["trimmed"].get<std::string>().substr(8 * i, 8));
          ++turns;
        } else {
          const std::string text =
              chat.prompt_text(record.messages, {}, more) + chat.response_text(record.response, record.messages, more);
          EXPECT_EQ(digest_of(chat.encoder().encode(text)), wanted);
          ++answers;
        }
      } catch (const Error& error) {
        // What no training can learn from.
        const std::string what = error.what();
        EXPECT_TRUE(what.find("writes the answer elsewhere than it asks for it") != std::string::npos ||
                    what.find("marks nothing of the last answer") != std::string::npos)
            << what;
      }
    }
  }
  EXPECT_GT(prompts, 1400);
  EXPECT_GT(turns, 750);
  EXPECT_GT(answers, 1400);
}

}  // namespace
}  // namespace hrm::data
