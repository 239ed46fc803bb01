// hrm_train data inspect of prompts and responses.
#include <sstream>

#include "data/chat/chat_support.h"
#include "hrm/commands/data.h"
#include "hrm/commands/language_data.h"
#include "support/overrides.h"
#include "support/packed.h"

namespace hrm::data {
namespace {

using test::Overrides;
using test::TempDir;

std::string inspected_chat(const std::filesystem::path& path, int64_t example, const Overrides& overrides = {},
                           const Overrides& files = {}) {
  InspectCommand command;
  command.path = path;
  command.example = example;
  command.overrides = overrides;
  command.config_files = files;
  std::ostringstream out;
  run_data_inspect(command, out);
  return out.str();
}

void expect_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

std::string listed(const std::vector<int32_t>& ids) {
  std::string text = ":";
  for (const int32_t id : ids) text += cat(" ", id);
  return text + "\n";
}

TEST(ChatInspect, ShowsToolsAndThoughts) {
  const TempDir dir;
  const nlohmann::json config = {
      {"eos_token", "<|im_end|>"},
      {"chat_template",
       "{{ tools | tojson }}{% for m in messages %}{{ m.reasoning_content }}: {{ m.content }}<|im_end|>{% endfor %}"}};
  const auto folder = chat_folder(dir / "model", config.dump());
  write_text(dir / "r.jsonl", R"({"functions": [{"name": "f"}], "messages": [{"role": "user", "content": "u"}, )"
                              R"({"role": "assistant", "content": "x", "reasoning": "hm"}]})"
                              "\n");
  expect_in(inspected_chat(dir / "r.jsonl", 0, {"hf.tokenizer=" + folder.string(), "chat.tools_field=functions"}),
            {R"("[{"name": "f"}]: u<|im_end|>")", R"("hm: x<|im_end|>")"});
}

TEST(ChatInspect, ShowsWhatATemplateMakesOfARecord) {
  const TempDir dir;
  const auto folder = chat_folder(dir / "model", kQwenConfig);
  const std::string tokenizer = "hf.tokenizer=" + folder.string();
  write_text(dir / "chats.jsonl", chat_line("a", "b") + chat_line(" ", "x") + chat_line("hi\n", "yo, you"));
  const ChatEncoder chat = open_chat_encoder(folder, {});
  const auto prompt = chat.prompt_ids({{"user", "hi\n"}}), response = chat.response_ids("yo, you", {{"user", "hi\n"}});
  const std::string shown = inspected_chat(dir / "chats.jsonl", 1, {tokenizer});
  expect_in(shown, {"template model, tokenizer " + (folder / "tokenizer.json").string(), "vocabulary 1505",
                    "all: 3 records: 2 examples of 2 prompts; dropped 1: 1 with an empty prompt", "example 1, ",
                    "chats.jsonl:3", cat("prompt (", prompt.size(), " ids)", listed(prompt)),
                    R"("<|im_start|>user\nhi\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")",
                    cat("response (", response.size(), " ids)", listed(response)), R"("yo, you<|im_end|>\n")",
                    cat("labels from id ", prompt.size(), " of ", prompt.size() + response.size(), " on")});
  // The other settings of a training, from values or a file, are those of a training.
  const size_t most = chat.prompt_ids({{"user", "say hi\n"}}).size() + 1;
  const std::string cut = inspected_chat(dir / "chats.jsonl", 1,
                                         {tokenizer, "chat.instruction=say {prompt}", cat("chat.max_length=", most)});
  expect_in(cut, {"user\\nsay hi\\n", "response (1 ids, cut at chat.max_length)", cat(" of ", most, " on")});
  write_text(dir / "c.json", R"({"task": "polychromic", "hf": {"model": ")" + folder.string() +
                                 R"("}, "polychromic": {"objective": "none"}, "chat": {"template": "plain"}})");
  expect_in(inspected_chat(dir / "chats.jsonl", 0, {}, {(dir / "c.json").string()}),
            {"template plain", "\"b<|im_end|>\""});
  // The tokenizer that stands beside the records is taken where none is named.
  std::filesystem::copy_file(dir / "chats.jsonl", folder / "chats.jsonl");
  EXPECT_EQ(inspected_chat(folder / "chats.jsonl", 1), inspected_chat(folder / "chats.jsonl", 1, {tokenizer}));
}

// What `data answers` wrote, each side for itself.
TEST(ChatInspect, ShowsEachSideOfASplit) {
  const TempDir dir;
  AnswersCommand command;
  command.options.train = 6;
  command.options.validation = 2;
  command.options.test = 0;
  command.out = dir / "answers";
  std::ostringstream made;
  run_data_answers(command, made);
  const ChatDataset train(dir / "answers" / "train.jsonl",
                          open_chat_encoder(dir / "answers", {.name = config::ChatTemplateKind::plain}), {});
  const std::string both = inspected_chat(dir / "answers", 5, {"chat.template=plain"});
  expect_in(both, {"train: 24 records: 24 examples of 6 prompts", "val: 8 records: 8 examples of 2 prompts",
                   "train.jsonl:6", "val.jsonl:6", "\"" + train[5].prompt + "\"", train[5].response + "<eos>",
                   cat("right answers (", train[5].answers.size(), "): \"", train[5].answers[0], "\"")});
  const std::string one = inspected_chat(dir / "answers", 20, {"chat.template=plain"});
  expect_in(one, {"train.jsonl:21", "val: 8 records"});
  EXPECT_EQ(one.find("val.jsonl:"), std::string::npos) << one;
  expect_error(ExitCode::usage, {"--example 24 is not one of the 24 examples of ", "train.jsonl"},
               [&] { inspected_chat(dir / "answers", 24, {"chat.template=plain"}); });
  // What training would refuse.
  write_text(dir / "answers" / "val.jsonl", chat_line(train[0].prompt, "x"));
  expect_error(ExitCode::data, {"val.jsonl:1: its prompt", "is also that of"},
               [&] { inspected_chat(dir / "answers", 0, {"chat.template=plain"}); });
}

TEST(ChatInspect, PromptsAloneAreShownAsGrpoReadsThem) {
  const TempDir dir;
  const auto folder = chat_folder(dir / "model", kQwenConfig);
  write_text(folder / "prompts.jsonl", R"({"prompt": "q", "answers": ["r", "s"]})");
  expect_error(ExitCode::data, {"no record of it can be used", "1 without a response"},
               [&] { inspected_chat(folder / "prompts.jsonl", 0); });
  expect_in(inspected_chat(folder / "prompts.jsonl", 0, {"grpo.start_step=1", "grpo.rewards=answer"}),
            {"no response, so no labels", R"(right answers (2): "r" "s")"});
}

// Whatever a training reads, by the same rules.
TEST(ChatInspect, ReadsRecordsOfEveryForm) {
  const TempDir dir;
  const auto folder = chat_folder(dir / "model", kQwenConfig);
  const std::string tokenizer = "hf.tokenizer=" + folder.string();
  const std::string usual = "{\"prompt\": \"hi\", \"response\": \"yo\"}\n";
  write_text(dir / "usual.jsonl", usual);
  const auto ids_of = [](const std::string& shown) {
    const size_t begin = shown.find("    prompt (");
    EXPECT_NE(begin, std::string::npos) << shown;
    return begin == std::string::npos ? shown : shown.substr(begin);
  };
  const std::string expected = ids_of(inspected_chat(dir / "usual.jsonl", 0, {tokenizer}));
  const std::vector<std::pair<std::string, std::string>> files = {
      {"c.jsonl", R"({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]})"},
      {"r.jsonl", R"({"talk": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})"},
      {"a.json", R"([ {"instruction": "hi", "input": "", "output": "yo"} ])"},
      {"p.JSONL", R"({"prompt": "hi", "completion": "yo"})"},
      {"m.txt",
       R"({"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "yo"}]})"},
      {"g.jsonl.gz", test::gzip_packed(usual)},
      {"z", test::zstd_packed("\xEF\xBB\xBF[" + usual + "]")}};
  for (const auto& [name, bytes] : files) {
    write_text(dir / name, bytes);
    EXPECT_EQ(ids_of(inspected_chat(dir / name, 0, {tokenizer})), expected) << name;
  }
  write_text(dir / "q.jsonl", R"({"question": "hi", "talk": [{"role": "user", "content": "x"}], "answer": "yo"})");
  EXPECT_EQ(ids_of(inspected_chat(dir / "q.jsonl", 0,
                                  {tokenizer, "chat.prompt_field=question", "chat.response_field=answer"})),
            expected);
  write_text(dir / "split" / "train.json", "[" + usual + "]");
  expect_in(inspected_chat(dir / "split", 0, {tokenizer}), {"train: 1 records: 1 examples"});
  // Of a CSV file the settings name the columns.
  write_text(dir / "s.csv", "from,to\n.,1\n");
  expect_error(ExitCode::data, {"s.csv: none of its columns is the question", "data.question_field"},
               [&] { inspected_chat(dir / "s.csv", 0); });
  expect_error(ExitCode::data, {"s.csv:2: the question has 1 characters"}, [&] {
    inspected_chat(dir / "s.csv", 0, {"data.question_field=from", "data.answer_field=to"});
  });
  for (const Overrides& chat : {Overrides{"task=polychromic"}, {"hf.tokenizer=m"}, {"chat.template=plain"}}) {
    expect_error(ExitCode::data, {"s.csv: this is a table, and prompts and responses are JSON lines", "read_csv"},
                 [&] { inspected_chat(dir / "s.csv", 0, chat); });
  }
}

TEST(ChatInspect, SaysWhatIsMissing) {
  const TempDir dir;
  const auto folder = chat_folder(dir / "model", "");
  const std::string tokenizer = "hf.tokenizer=" + folder.string();
  const auto file = dir / "d" / "chats.jsonl";
  write_text(file, chat_line("a", "b"));
  const auto refused = [&](ExitCode code, const std::vector<std::string>& parts, const std::filesystem::path& path,
                           const Overrides& overrides = {}, const Overrides& files = {}) {
    expect_error(code, parts, [&] { inspected_chat(path, 0, overrides, files); });
  };
  refused(ExitCode::usage, {"no tokenizer is named", "d' holds no tokenizer.json", "hf.tokenizer=FOLDER"}, file);
  refused(ExitCode::usage, {"no tokenizer is named"}, dir / "d");
  refused(ExitCode::data, {"none.jsonl' does not exist"}, dir / "none.jsonl");
  refused(ExitCode::data, {(dir / "none" / "tokenizer.json").string(), "does not exist"}, file,
          {"hf.tokenizer=" + (dir / "none").string()});
  refused(ExitCode::usage, {"has no chat_template", "name the template"}, file, {tokenizer});
  refused(ExitCode::usage, {"chat.tempalte", "chat.template"}, file, {tokenizer, "chat.tempalte=plain"});
  write_text(file, chat_line("a", "b") + R"({"encoder_ids": [1]})");
  refused(ExitCode::data, {"chats.jsonl:2: has neither 'messages' nor 'prompt'"}, file,
          {tokenizer, "chat.template=chatml"});
  // Files of other kinds are named as train names them, with settings and without.
  write_text(dir / "c.parquet", "PAR1");
  write_text(dir / "c.txt", "a text\n");
  write_text(dir / "c.jsonl.xz", std::string("\xFD\x37zXZ\0", 6));
  write_text(dir / "saved" / "dataset_dict.json", "{}");
  std::filesystem::create_directories(dir / "saved" / "train");
  for (const Overrides& settings : {Overrides{}, Overrides{tokenizer}}) {
    refused(ExitCode::data, {"c.parquet' holds no data that can be read; this is a Parquet file", "to_json"},
            dir / "c.parquet", settings);
    refused(ExitCode::data, {"c.txt' holds no records", "JSON lines", "hrm_train data text"}, dir / "c.txt", settings);
    refused(ExitCode::data, {"c.jsonl.xz", "this is compressed by xz", "unxz"}, dir / "c.jsonl.xz", settings);
    refused(ExitCode::data, {"saved' holds no data", "save_to_disk", "load_from_disk"}, dir / "saved", settings);
    refused(ExitCode::data, {"org/chats' does not exist", "hf download org/chats --repo-type dataset"}, "org/chats",
            settings);
  }
  // Of other data nothing is configured.
  refused(ExitCode::usage, {"holds other data", "leave --config and KEY=VALUE out"}, fixture("dataset_sudoku/aug"),
          {"chat.template=plain"});
  write_text(dir / "puzzle.json", "{}");
  refused(ExitCode::usage, {"the configuration is of task puzzle"}, file, {}, {(dir / "puzzle.json").string()});
}

}  // namespace
}  // namespace hrm::data
