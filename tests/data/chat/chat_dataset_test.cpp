#include "hrm/data/chat_dataset.h"

#include "data/chat/chat_support.h"
#include "support/packed.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Ids = std::vector<int32_t>;

TEST(ChatDataset, ReadsPromptsAndResponses) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", chat_line("ab", "c") + "\n" + chat_line("\u00e9", "xy"));
  ASSERT_EQ(data->size(), 2);
  const ChatExample& one = (*data)[0];
  EXPECT_EQ(one.prompt_ids, (Ids{'a', 'b'}));
  EXPECT_EQ(one.response_ids, (Ids{'c', 257}));
  EXPECT_EQ(one.prompt, "ab");
  EXPECT_EQ(one.response, "c");
  EXPECT_EQ(one.key, "ab");
  EXPECT_TRUE(one.answers.empty() && std::isnan(one.value));
  EXPECT_EQ((*data)[1].prompt_ids, (Ids{0xC3, 0xA9}));
  EXPECT_EQ(data->place(1), (dir / "a.jsonl").string() + ":3");
  EXPECT_EQ(data->meta().vocab_size, 259);
  EXPECT_EQ(data->counts().text(), "2 records: 2 examples of 2 prompts");
}

TEST(ChatDataset, ReadsMessagesAndAnswers) {
  const TempDir dir;
  const ChatEncoder chat = open_chat_encoder(chat_folder(dir / "m", kQwenConfig), {});
  write_text(dir / "t.jsonl",
             R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                 {"role": "assistant", "content": "a"}], "answers": ["a", "b"]})"
             "\n");
  std::string text = read_text(dir / "t.jsonl", ExitCode::data);
  std::erase(text, '\n');
  write_text(dir / "t.jsonl", text);
  const ChatDataset data(dir / "t.jsonl", chat, {});
  EXPECT_EQ(data[0].prompt, "system: s\nuser: u");
  EXPECT_EQ(data[0].response, "a");
  EXPECT_EQ(data[0].answers, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(chat.encoder().decode(data[0].prompt_ids).find("<|im_start|>system\ns<|im_end|>\n"), 0u);
}

TEST(ChatDataset, ReadsArraysAndCompressedFiles) {
  const TempDir dir;
  const std::string lines = chat_line("ab", "c") + chat_line("d", "ef");
  const std::string array = "[\n" + chat_line("ab", "c") + ",\n" + chat_line("d", "ef") + "]\n";
  const std::vector<std::pair<std::string, std::string>> files = {{"a.json", array},
                                                                  {"a.jsonl.gz", test::gzip_packed(lines)},
                                                                  {"a.jsonl.zst", test::zstd_packed(lines)},
                                                                  {"a.json.zst", test::zstd_packed(array)}};
  for (const auto& [name, bytes] : files) {
    const auto data = byte_dataset(dir / name, bytes);
    ASSERT_EQ(data->size(), 2) << name;
    EXPECT_EQ((*data)[1].response, "ef") << name;
    EXPECT_EQ(data->counts().text(), "2 records: 2 examples of 2 prompts") << name;
  }
  EXPECT_EQ(byte_dataset(dir / "a.json", array)->place(1), (dir / "a.json").string() + ":4");
  expect_error(ExitCode::data, {"a.json:4: the array that the file begins with is not closed"},
               [&] { byte_dataset(dir / "a.json", array.substr(0, array.size() - 4)); });
  // A record that is no record counts as a line that is none.
  ChatDataOptions options;
  options.max_malformed = 1;
  EXPECT_EQ(byte_dataset(dir / "a.json", "[17," + chat_line("a", "b") + "]", options)->counts().malformed, 1);
  expect_error(ExitCode::data, {"a.json:1: record: is not valid JSON", "the file must be one array"},
               [&] { byte_dataset(dir / "a.json", "{\n\"data\": [" + chat_line("a", "b") + "]}"); });
}

TEST(ChatDataset, SaysWhyThereIsNoResponse) {
  const TempDir dir;
  testing::internal::CaptureStderr();
  expect_error(ExitCode::data, {"2 without a response, 1 with an empty response"}, [&] {
    byte_dataset(dir / "a.jsonl", R"({"prompt": "q", "text": "a"})"
                                  "\n"
                                  R"({"messages": [{"role": "user", "content": "u"}]})"
                                  "\n" +
                                      chat_line("q", " "));
  });
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* part : {"a.jsonl:1: has no 'response'; its members are 'prompt', 'text'", "chat.response_field",
                           "a.jsonl:2: the conversation in 'messages' ends with a message of the user",
                           "a.jsonl:3: the response is empty"}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << " is not in\n" << log;
  }
}

TEST(ChatDataset, TemplatesNameMembers) {
  const TempDir dir;
  const ChatEncoder chat = byte_chat({.name = ChatTemplateKind::custom,
                                      .prompt_template = "{lang}|{prompt}|{n}",
                                      .response_template = "{response}{eos}"});
  ChatDataOptions options;
  options.instruction = "{n}/{who}/{prompt}";
  write_text(dir / "t.jsonl", R"({"prompt": "p", "response": "r", "lang": "de", "n": 5, "who": "w"})"
                              "\n");
  const ChatDataset data(dir / "t.jsonl", chat, options);
  EXPECT_EQ(chat.encoder().decode(data[0].prompt_ids), "de|5/w/p|5");
  EXPECT_EQ(data[0].prompt, "de|5/w/p|5");
  // Other members are other prompts, and no duplicates.
  options.deduplicate = true;
  std::string lines;
  for (const char* lang : {"de", "en", "de"}) {
    lines += cat(R"({"prompt": "p", "response": "r", "lang": ")", lang, R"(", "n": 5, "who": "w"})", "\n");
  }
  write_text(dir / "t.jsonl", lines);
  const ChatDataset several(dir / "t.jsonl", chat, options);
  EXPECT_EQ(several.keys(), (std::vector<std::string>{"de|5/w/p|5", "en|5/w/p|5"}));
  EXPECT_EQ(several.counts().prompts, 2);
  EXPECT_EQ(several.counts().duplicates, 1);
  write_text(dir / "t.jsonl", R"({"prompt": "p", "response": "r", "lang": "de", "n": 5})"
                              "\n");
  expect_error(ExitCode::data, {"t.jsonl:1: has no 'who'", "max_malformed: 0"},
               [&] { ChatDataset(dir / "t.jsonl", chat, options); });
  options.instruction = "{n";
  expect_error(ExitCode::usage, {"instruction: a single '{'"}, [&] { ChatDataset(dir / "t.jsonl", chat, options); });
}

TEST(ChatDataset, NothingIsLostWithoutBeingCounted) {
  const TempDir dir;
  ChatDataOptions options;
  options.max_tokens = 8;
  options.max_malformed = 3;
  options.deduplicate = true;
  const std::string text = chat_line("ab", "cd") +        // 1 kept
                           chat_line(" \n", "x") +        // 2 empty prompt
                           chat_line("ab", " ") +         // 3 empty response
                           chat_line("12345678", "x") +   // 4 prompt fills the window
                           chat_line("1234567", "xyz") +  // 5 kept, one id of the response
                           chat_line("ab", "cd") +        // 6 duplicate
                           "{\"prompt\": \"\xFF\"}\n" +   // 7 not UTF-8
                           "{\"prompt\": 1}\n" +          // 8 malformed
                           "{\"prompt\": \"q\"}\n" +      // 9 no response
                           "{\"prompt\": \"q\", \"response\": \"r\", \"answers\": []}\n" +             // 10
                           "{\"prompt\": \"q\", \"response\": \"r\", \"answers\": [\"a\", \"\"]}\n" +  // 11
                           chat_line("ab", "ce") +                                                     // 12 kept
                           "nothing\n";                                                                // 13 malformed
  const auto data = byte_dataset(dir / "a.jsonl", text, options);
  const ChatCounts& counts = data->counts();
  EXPECT_EQ(counts.lines, 13);
  EXPECT_EQ(counts.examples, 3);
  EXPECT_EQ(counts.malformed, 3);
  EXPECT_EQ(counts.bad_utf8, 1);
  EXPECT_EQ(counts.empty_prompt, 1);
  EXPECT_EQ(counts.no_response, 1);
  EXPECT_EQ(counts.empty_response, 1);
  EXPECT_EQ(counts.empty_answers, 2);
  EXPECT_EQ(counts.long_prompt, 1);
  EXPECT_EQ(counts.duplicates, 1);
  EXPECT_EQ(counts.cut_responses, 1);
  EXPECT_EQ(counts.prompts, 2);
  EXPECT_EQ(counts.lines, counts.examples + counts.dropped());
  EXPECT_EQ((*data)[1].response_ids, (Ids{'x'}));
  EXPECT_EQ(counts.text(),
            "13 records: 3 examples of 2 prompts; dropped 10: 3 malformed, 1 with an empty prompt, 1 without a "
            "response, 1 with an empty response, 2 with empty answers, 1 with a prompt as long as the window, 1 that "
            "an earlier line has, too; 1 "
            "of the malformed are not UTF-8; 1 responses cut at the window");
  options.max_malformed = 2;
  expect_error(ExitCode::data, {"a.jsonl:13: the line is not an object", "allowed by data.max_malformed: 2"},
               [&] { byte_dataset(dir / "a.jsonl", text, options); });
  options.max_malformed = 0;
  expect_error(ExitCode::data, {"a.jsonl:7: the line is not valid UTF-8"},
               [&] { byte_dataset(dir / "a.jsonl", text, options); });
}

TEST(ChatDataset, PromptsAloneAreReadWhereNoResponseIsNeeded) {
  const TempDir dir;
  ChatDataOptions options;
  options.need_response = false;
  const auto data = byte_dataset(dir / "a.jsonl", "{\"prompt\": \"q\", \"answers\": [\"r\"]}\n", options);
  EXPECT_TRUE((*data)[0].response_ids.empty());
  EXPECT_EQ((*data)[0].answers, (std::vector<std::string>{"r"}));
}

TEST(ChatDataset, MessagesThatATemplateHasNoPlaceForAreMalformed) {
  const TempDir dir;
  const std::string line =
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]})";
  expect_error(ExitCode::data, {"a.jsonl:1: the chat template plain takes one message of the user", "not 2"},
               [&] { byte_dataset(dir / "a.jsonl", line); });
}

TEST(ChatDataset, IdsOfTheSamePromptAreOneGroup) {
  const TempDir dir;
  ChatDataOptions options;
  options.fields.id = "id";
  const auto line = [](const std::string& id, const std::string& prompt) {
    return "{\"id\": \"" + id + "\", \"prompt\": \"" + prompt + "\", \"response\": \"r\"}\n";
  };
  const std::string text = line("a", "p") + line("b", "q") + line("c", "s") + line("b", "p") + line("", "t");
  const auto data = byte_dataset(dir / "a.jsonl", text, options);
  EXPECT_EQ(data->keys(), (std::vector<std::string>{"a", "a", "c", "a", "t"}));
  EXPECT_EQ(data->counts().joined_keys, 1);
  EXPECT_EQ(data->counts().prompts, 3);
  // What is asked goes by the prompt alone.
  using Lists = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(data->examples_of_prompts(all_of(*data)), (Lists{{0, 3}, {1}, {2}, {4}}));
  EXPECT_EQ(data->examples_of_prompts(std::vector<int64_t>{2, 3, 4}), (Lists{{2}, {3}, {4}}));
  // In another order, too: the groups of a and b meet last.
  const auto other = byte_dataset(dir / "b.jsonl", line("a", "p") + line("b", "q") + line("b", "p"), options);
  EXPECT_EQ(other->keys(), (std::vector<std::string>{"a", "a", "a"}));
}

TEST(ChatDataset, RightAnswersOfAPromptArePooled) {
  const TempDir dir;
  ChatDataOptions options;
  options.need_response = false;
  const auto data = byte_dataset(dir / "a.jsonl",
                                 chat_line("p", "4") + chat_line("p", "four") + chat_line("p", "4") +
                                     R"({"prompt": "q", "response": "1", "answers": ["2", "3"]})"
                                     "\n" +
                                     R"({"prompt": "q", "response": "4", "answers": ["3", "5"]})"
                                     "\n" +
                                     chat_line("q", "6") + "{\"prompt\": \"r\"}\n",
                                 options);
  const auto right = [&](const std::vector<int64_t>& examples) { return data->right_answers(examples); };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(right({0, 1, 2}), (Texts{"4", "four"}));
  EXPECT_EQ(right({3, 4, 5}), (Texts{"2", "3", "5"})) << "lists say what is right, and responses are examples of it";
  EXPECT_EQ(right({5}), (Texts{"6"}));
  EXPECT_EQ(right({6}), Texts{});
}

TEST(ChatDataset, FoldersAreReadInOrder) {
  const TempDir dir;
  write_text(dir / "d" / "b.jsonl", chat_line("2", "x"));
  write_text(dir / "d" / "a.jsonl", chat_line("1", "x") + chat_line("1", "y"));
  write_text(dir / "d" / "a.txt", "no record");
  write_text(dir / "d" / ".c.jsonl", "hidden");
  const ChatDataset data(dir / "d", byte_chat(), {});
  EXPECT_EQ(data.keys(), (std::vector<std::string>{"1", "1", "2"}));
  EXPECT_EQ(data.place(2), (dir / "d" / "b.jsonl").string() + ":1");
  EXPECT_EQ(data.files().size(), 2u);
}

TEST(ChatDataset, RefusesWhatHoldsNoExample) {
  const TempDir dir;
  expect_error(ExitCode::data, {"x.jsonl' does not exist"}, [&] { ChatDataset(dir / "x.jsonl", byte_chat(), {}); });
  std::filesystem::create_directories(dir / "empty");
  const auto refused = [&](const std::filesystem::path& path, const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { ChatDataset(path, byte_chat(), {}); });
  };
  refused(dir / "empty", {"empty' holds no *.jsonl; of *.json files give one"});
  refused("org/chats", {"does not exist", "type 'hf download org/chats --repo-type dataset --local-dir chats'"});
  // Data of other kinds are named, with the line that converts them.
  write_text(dir / "hub" / "data" / "train.parquet", "PAR1");
  refused(dir / "hub",
          {"hub' holds no *.jsonl", "data/train.parquet' inside of it: this is a Parquet file", "to_json"});
  write_text(dir / "saved" / "dataset_dict.json", "{}");
  write_text(dir / "saved" / "train" / "data.arrow", "x");
  refused(dir / "saved", {"was written by save_to_disk", "saved')['train'].to_json('train.jsonl')"});
  for (const auto& [name, separator] : {std::pair{"a.csv", "read_csv('"}, {"A.TSV", ", sep='\\t'"}}) {
    write_text(dir / name, "prompt,response\na,b\n");
    refused(dir / name, {cat(name, ": this is a table"), separator, ".jsonl', orient='records', lines=True)"});
  }
  write_text(dir / "a.csv", chat_line("a", "b"));
  EXPECT_EQ(ChatDataset(dir / "a.csv", byte_chat(), {}).size(), 1) << "records, whatever the file is called";
  expect_error(ExitCode::data, {"a.jsonl: no record of it can be used: 0 records"},
               [&] { byte_dataset(dir / "a.jsonl", "\n"); });
  expect_error(ExitCode::data, {"no record of it can be used: 1 records: 0 examples", "1 with an empty response"},
               [&] { byte_dataset(dir / "a.jsonl", chat_line("a", "")); });
  ChatDataOptions options;
  options.max_tokens = 1;
  expect_error(ExitCode::usage, {"max_tokens is 1"},
               [&] { byte_dataset(dir / "a.jsonl", chat_line("a", "b"), options); });
}

}  // namespace
}  // namespace hrm::data
