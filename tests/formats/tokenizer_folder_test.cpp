#include "hrm/formats/tokenizer_folder.h"

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm {
namespace {

using Json = nlohmann::ordered_json;

// vocab.json and merges.txt of the fixture's tokenizer, which has its five added tokens behind its vocabulary.
void write_parts(const TempFolder& folder) {
  const Json model = Json::parse(read_text(fixture("tokenizer/tokenizer.json"), ExitCode::data))["model"];
  write_text_atomic(folder / "vocab.json", "\xEF\xBB\xBF" + model["vocab"].dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : model["merges"]) {
    merges += cat(merge[0].get<std::string>(), " ", merge[1].get<std::string>(), "\r\n");
  }
  write_text_atomic(folder / "merges.txt", merges);
}

Json decoder_entry(const std::string& content, bool special) {
  return {{"content", content}, {"lstrip", false},      {"normalized", false},
          {"rstrip", false},    {"single_word", false}, {"special", special}};
}

TokenizerJson read_parts(const TempFolder& folder) {
  const FolderTokenizer found = read_folder_tokenizer(folder.path());
  EXPECT_EQ(found.file, folder / "vocab.json");
  return parse_tokenizer_json(found.text, "made");
}

TEST(TokenizerFolder, PartsMakeTheWholeFile) {
  const TokenizerJson whole = parse_tokenizer_json(read_text(fixture("tokenizer/tokenizer.json"), ExitCode::data), "f");
  const TempFolder folder;
  write_parts(folder);
  EXPECT_TRUE(has_tokenizer(folder.path()));
  Json config = {{"tokenizer_class", "Qwen2TokenizerFast"}, {"eos_token", "<|im_end|>"}};
  for (const AddedToken& token : whole.added_tokens) {
    config["added_tokens_decoder"][std::to_string(token.id)] = decoder_entry(token.content, token.special);
  }
  write_text_atomic(folder / "tokenizer_config.json", config.dump());
  EXPECT_EQ(read_parts(folder), whole) << "which is one of Qwen";
  // A tokenizer.json is what counts, where it is there.
  write_text_atomic(folder / "tokenizer.json", tokenizer_json_text(whole));
  EXPECT_EQ(read_folder_tokenizer(folder.path()).file, folder / "tokenizer.json");
  EXPECT_EQ(read_tokenizer(folder.path()).text, read_tokenizer(folder / "tokenizer.json").text);
}

TEST(TokenizerFolder, OldFoldersOfGpt2AndQwen) {
  const TempFolder folder;
  write_parts(folder);
  // Nothing beside them: GPT-2, whose only special token is not in this vocabulary.
  TokenizerJson json = read_parts(folder);
  EXPECT_TRUE(json.normalizers.empty());
  ASSERT_EQ(json.pre_tokenizer.size(), 1u);
  EXPECT_TRUE(json.pre_tokenizer[0].use_regex && !json.pre_tokenizer[0].add_prefix_space);
  EXPECT_EQ(json.added_tokens, (std::vector<AddedToken>{{.content = "<|endoftext|>", .id = 1500, .special = true}}));
  // The model's type says that it is Qwen.
  write_text_atomic(folder / "config.json", R"({"model_type": "qwen3"})");
  EXPECT_EQ(read_parts(folder).normalizers.size(), 1u);
  write_text_atomic(folder / "tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
    "add_prefix_space": true, "bos_token": "<s>", "eos_token": {"content": "!"}, "unk_token": null})");
  write_text_atomic(folder / "added_tokens.json", R"({"<two>": 1501, "<s>": 1500})");
  json = read_parts(folder);
  EXPECT_TRUE(json.normalizers.empty() && json.pre_tokenizer[0].add_prefix_space);
  EXPECT_EQ(json.added_tokens, (std::vector<AddedToken>{{.content = "<s>", .id = 1500, .special = true},
                                                        {.content = "<two>", .id = 1501, .normalized = true},
                                                        {.content = "!", .id = 0, .special = true}}));
  ASSERT_TRUE(json.has_template);
  ASSERT_EQ(json.single.size(), 2u);
  EXPECT_EQ(json.single[0].ids, std::vector<int32_t>{1500});
  EXPECT_EQ(json.pair.size(), 2u);
}

TEST(TokenizerFolder, SaysWhatIsMissing) {
  const TempFolder folder;
  const auto refused = [&](const std::vector<std::string>& parts) {
    SCOPED_TRACE(parts[0]);
    EXPECT_FALSE(std::filesystem::exists(folder / "tokenizer.json"));
    expect_error([&] { read_folder_tokenizer(folder.path(), ExitCode::checkpoint); }, ExitCode::checkpoint, parts);
  };
  expect_error([&] { read_folder_tokenizer(folder / "none"); }, ExitCode::data, {"none' is not a folder"});
  const std::string hint = "type 'hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B'";
  expect_error([&] { read_folder_tokenizer("Qwen/Qwen3-0.6B"); }, ExitCode::data,
               {"is not a folder; if that is", hint});
  expect_error([&] { read_tokenizer("Qwen/Qwen3-0.6B"); }, ExitCode::data, {"does not exist; if that is", hint});
  refused({"holds no tokenizer: neither tokenizer.json nor vocab.json and merges.txt"});
  const std::string line = cat("AutoTokenizer.from_pretrained('", folder.path().string(), "').save_pretrained('");
  write_text_atomic(folder / "tokenizer.model", "\n\x0e\n\x05<unk>");
  refused({"tokenizer.model' is of SentencePiece", "make tokenizer.json with: python3 -c", line});
  expect_error([&] { read_tokenizer(folder / "tokenizer.model"); }, ExitCode::data, {"is of SentencePiece", line});
  write_parts(folder);
  EXPECT_TRUE(has_tokenizer(folder.path()));
  for (const char* part : {"vocab.json", "merges.txt"}) {
    expect_error([&] { read_tokenizer(folder / part); }, ExitCode::data,
                 {part, "is one half of a tokenizer; give its"});
  }
  write_text_atomic(folder / "tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  refused({"tokenizer_config.json: the tokenizer_class 'RobertaTokenizer' needs more than", line});
  write_text_atomic(folder / "tokenizer_config.json", R"({"added_tokens_decoder": {"x": {"content": "a"}}})");
  refused({"'added_tokens_decoder' is wrong at 'x'"});
  write_text_atomic(folder / "tokenizer_config.json", R"({"added_tokens_decoder": {"1600": {"content": "<x>"}}})");
  refused({"vocab.json: added_tokens[0]: '<x>' has the id 1600, but the next free id is 1500"});
  write_text_atomic(folder / "tokenizer_config.json", R"({"add_prefix_space": 1})");
  refused({"'add_prefix_space' must be true or false"});
  write_text_atomic(folder / "tokenizer_config.json", "[]");
  refused({"tokenizer_config.json: must be an object"});
  std::filesystem::remove(folder / "tokenizer_config.json");
  write_text_atomic(folder / "merges.txt", "#version: 0.2\n\na b\na b c\n");
  refused({"merges.txt: line 4: 'a b c' is no two tokens"});
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  for (const char* part : {"merges.txt", "tokenizer_config.json"}) {
    const std::string before = std::filesystem::exists(folder / part) ? read_text(folder / part, ExitCode::data) : "{}";
    write_text_atomic(folder / part, pointer);
    refused({cat(part, ": this is a Git LFS pointer"), "git lfs pull"});
    write_text_atomic(folder / part, before);
  }
  write_text_atomic(folder / "merges.txt", "a \xFF\n");
  refused({"merges.txt: is not UTF-8"});
  std::filesystem::remove(folder / "tokenizer.model");
  std::filesystem::remove(folder / "merges.txt");
  refused({"holds vocab.json, but no merges.txt"});
}

}  // namespace
}  // namespace hrm
