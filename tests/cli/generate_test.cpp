// generate, run as users do, with a model that learned two steps of sums, and one with a chat template.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/overrides.h"
#include "support/paths.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

using Words = std::vector<std::string>;

struct Trained {
  TempDir dir;
  std::string checkpoint;

  explicit Trained(const Words& lm) {
    const std::string data = (dir / "sums").string();
    const Result made = run({"data", "arithmetic", "--digits", "1", "--samples", "40", "--out", data});
    EXPECT_EQ(made.code, 0) << made.err;
    const Words line = with({"train", "task=language", "run.dir=" + (dir / "runs").string(), "data.train=" + data,
                             "data.encoder_len=24", "data.decoder_len=12", "lm.hidden_size=32", "lm.num_heads=2",
                             "lm.layers=1", "lm.positions=64", "train.global_batch_size=4", "train.steps=2",
                             "optim.warmup_steps=0", "runtime.device=cpu", "runtime.threads=1"},
                            lm);
    const Result trained = run(line);
    EXPECT_EQ(trained.code, 0) << trained.err;
    checkpoint = (dir / "runs/run").string();
  }

  Words generate(const Words& more) const { return with({"generate", checkpoint, "--device", "cpu"}, more); }
};

const Words kDecoder = {"lm.arch=decoder"};
const Words kHrm = {"lm.arch=hrm", "lm.enc_layers=1", "lm.h_layers=1", "lm.l_layers=1",  "lm.h_len=2",
                    "lm.l_len=2",  "lm.h_cycles=1",   "lm.l_steps=1",  "lm.prefix_len=2"};

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Generate, OnePromptAndMany) {
  for (const Words& lm : {kDecoder, kHrm}) {
    const Trained trained(lm);
    const Words sampling = {"--max-new-tokens", "20", "--temperature", "1", "--top-k", "50", "--seed", "3"};
    const Result one = run(trained.generate(with({"--prompt", "What is 1 + 2?"}, sampling)));
    ASSERT_EQ(one.code, 0) << one.err;
    EXPECT_TRUE(one.out.ends_with("\n"));
    EXPECT_GT(one.out.size(), 1U);
    EXPECT_NE(one.err.find(" tokens/s"), std::string::npos) << one.err;
    // The same prompt as the first of a file, in other batches, gives the same text.
    std::ofstream(trained.dir / "prompts.txt") << "What is 1 + 2?\n\nWhat is 3 + 4?\nWhat is 5 + 6?\n";
    std::string all;
    for (const char* batch : {"1", "2", "16"}) {
      const Result many = run(trained.generate(with({"--input", (trained.dir / "prompts.txt").string(), "--format",
                                                     "jsonl", "--samples", "2", "--batch-size", batch},
                                                    sampling)));
      ASSERT_EQ(many.code, 0) << many.err;
      EXPECT_TRUE(all.empty() || many.out == all) << "batch " << batch;
      all = many.out;
    }
    const std::vector<json> lines = lines_of(all);
    ASSERT_EQ(lines.size(), 6U);
    EXPECT_EQ(lines[0].at("text").get<std::string>() + "\n", one.out);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(lines[i].at("prompt"), i < 2 ? "What is 1 + 2?" : i < 4 ? "What is 3 + 4?" : "What is 5 + 6?");
      EXPECT_EQ(lines[i].at("sample"), i % 2);
      EXPECT_TRUE(lines[i].at("finish") == "length" || lines[i].at("finish") == "eos");
      EXPECT_LE(lines[i].at("tokens"), 20);
    }
    EXPECT_NE(lines[0].at("text"), lines[1].at("text"));
    // JSON Lines by stdin, and a stop text that the answer holds.
    const std::string text = lines[0].at("text");
    const auto letter = std::find_if(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
    ASSERT_NE(letter, text.end()) << text;
    const Result stopped =
        run(trained.generate(with({"--input", "-", "--format", "jsonl", "--stop", std::string(1, *letter)}, sampling)),
            {.shell = "", .environment = "", .input = "{\"prompt\": \"What is 1 + 2?\", \"id\": 7}\n"});
    ASSERT_EQ(stopped.code, 0) << stopped.err;
    EXPECT_EQ(lines_of(stopped.out).at(0).at("finish"), "stop");
    EXPECT_EQ(lines_of(stopped.out).at(0).at("text"), std::string(text.begin(), letter));
  }
}

// A tokenizer with chatml's tokens, and a small model of that vocabulary, trained one step on a record.
std::string chat_run(const fs::path& dir, const std::string& record = R"({"prompt": "a", "response": "b"})",
                     const Words& more = {}) {
  fs::create_directories(dir / "model");
  fs::copy_file(fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json",
                dir / "model" / "tokenizer.json");
  std::ofstream(dir / "model" / "tokenizer_config.json")
      << R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": )"
      << R"("{% if tools %}{{ tools | tojson }}{% endif %})"
      << R"({% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %})"
      << R"({% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"})";
  std::ofstream(dir / "model" / "config.json")
      << R"({"model_type": "qwen3", "vocab_size": 1520, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
             "max_position_embeddings": 128})";
  std::ofstream(dir / "data.jsonl") << record << "\n";
  const Result trained =
      run(with({"train", "task=polychromic", "run.dir=" + (dir / "runs").string(),
                "hf.model=" + (dir / "model").string(), "hf.weights=random", "lora.r=0", "polychromic.objective=none",
                "data.train=" + (dir / "data.jsonl").string(), "chat.val_share=0", "chat.max_length=64",
                "train.global_batch_size=1", "train.steps=1", "runtime.device=cpu", "runtime.threads=1"},
               more));
  EXPECT_EQ(trained.code, 0) << trained.err;
  return (dir / "runs/run").string();
}

// A configuration without a checkpoint has random weights, and rows that hold what is asked for.
TEST(Generate, IsTimed) {
  for (const Words& lm : {kDecoder, kHrm}) {
    const Result result = run(
        with({"bench", "generate", "--rows", "2", "--prompt", "9", "--new", "7", "--passes", "1", "--vocab-size", "99",
              "lm.hidden_size=32", "lm.num_heads=2", "lm.layers=1", "runtime.device=cpu", "runtime.threads=1"},
             lm));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("tokens/s"), std::string::npos) << result.out;
  }
  const Trained trained(kDecoder);
  const Result result = run({"bench", "generate", "--rows", "2", "--prompt", "9", "--new", "7", "--passes", "1",
                             "--checkpoint", trained.checkpoint, "runtime.device=cpu"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Generate, MessagesOfAChat) {
  const TempDir dir;
  const std::string checkpoint = chat_run(dir.path());
  const auto answers = [&](const std::string& input, const Words& more = {}) {
    const Result result = run(with({"generate", checkpoint, "--device", "cpu", "--input", "-", "--format", "jsonl",
                                    "--max-new-tokens", "8", "--temperature", "1"},
                                   more),
                              {.shell = "", .environment = "", .input = input});
    EXPECT_EQ(result.code, 0) << result.err;
    return lines_of(result.out);
  };
  const std::string user = R"({"role": "user", "content": "hello"})";
  const std::string asked = R"({"messages": [)" + user +
                            R"(, {"role": "assistant", "content": "left out"}]})"
                            "\n";
  const std::string ordered = R"({"messages": [{"role": "system", "content": "be brief"}, )" + user + "]}\n";
  const json plain = answers("{\"prompt\": \"hello\"}\n").at(0), messages = answers(asked).at(0);
  EXPECT_EQ(messages.at("text"), plain.at("text"));
  EXPECT_EQ(messages.at("messages"), json::parse("[" + user + "]"));
  EXPECT_FALSE(messages.contains("prompt"));
  EXPECT_FALSE(plain.contains("messages"));
  // Records as train reads them: one array, with a byte-order mark in front of it.
  const std::vector<json> array = answers("\xEF\xBB\xBF[" + asked + ",\n {\"prompt\": \"hello\"}]");
  ASSERT_EQ(array.size(), 2U);
  EXPECT_EQ(array[0], messages);
  EXPECT_EQ(array[1].at("prompt"), "hello");
  const json system = answers("{\"prompt\": \"hello\"}\n", {"--system", "be brief"}).at(0);
  EXPECT_EQ(system.at("text"), answers(ordered).at(0).at("text"));
  EXPECT_EQ(system.at("text"), answers(asked, {"--system", "be brief"}).at(0).at("text"));
  EXPECT_NE(system.at("text"), plain.at("text")) << "it is said to the model";
  const std::string tools = R"([{"name":"f","about":"forty words of tools, or fewer"}])";
  const std::string equipped = R"({"messages": [)" + user + R"(], "tools": )" + tools + "}\n";
  const json with_tools = answers(equipped).at(0);
  EXPECT_NE(with_tools.at("text"), plain.at("text")) << "it is said to the model, too";
  EXPECT_EQ(with_tools.at("tools"), json::parse(tools));

  const auto refused = [&](const std::string& input, const Words& parts, const Words& more = {}) {
    expect_refusal(ExitCode::data, with({"generate", checkpoint, "--device", "cpu", "--input", "-"}, more), parts,
                   {.shell = "", .environment = "", .input = input}, /*alone=*/false);
  };
  refused(ordered, {"standard input:1", "a system message of its own", "--system"}, {"--system", "be brief"});
  refused(R"({"messages": [{"role": "wizard", "content": "x"}]})"
          "\n",
          {"standard input:1", "the role 'wizard'"});
  refused(R"({"messages": [{"role": "tool", "content": "x"}]})"
          "\n",
          {"standard input:1", "role tool"}, {"--template", "chatml"});
  refused(equipped, {"standard input:1", "has tools, for which the chat template chatml has no place"},
          {"--template", "chatml"});
  refused(R"({"messages": [{"role": "assistant", "content": "x"}]})"
          "\n",
          {"standard input:1", "nothing to answer"});
  refused(ordered, {"standard input:1", "plain takes one message"}, {"--template", "plain"});
  expect_refusal(ExitCode::usage,
                 {"generate", checkpoint, "--device", "cpu", "--prompt", "a", "--template", "plain", "--system", "b"},
                 {"--system: the chat template plain has no place for it"}, {}, /*alone=*/false);
}

// A template and an instruction of one's own, with members under other names.
TEST(Generate, PlacesOfATemplate) {
  const TempDir dir;
  const std::string record = R"({"question": "a", "topic": "sea", "style": "loud", "response": "b"})";
  const std::string checkpoint = chat_run(
      dir.path(), record,
      {"chat.template=custom", "chat.prompt_template={topic}: {prompt}>", "chat.response_template={response}##",
       "chat.prompt_field=question", "chat.instruction={style} {prompt}"});
  const Words line = {"generate", checkpoint,         "--device", "cpu",           "--format",
                      "jsonl",    "--max-new-tokens", "64",       "--temperature", "1"};
  const auto answer = [&](const std::string& input) {
    const Result result = run(with(line, {"--input", "-"}), {.shell = "", .environment = "", .input = input + "\n"});
    EXPECT_EQ(result.code, 0) << result.err;
    return lines_of(result.out).at(0);
  };
  const json one = answer(record);
  EXPECT_EQ(one.at("prompt"), "a");
  EXPECT_EQ(answer(R"({"question": "a", "topic": "sea", "style": "loud"})"), one) << "a response need not be there";
  for (const char* other : {R"({"question": "a", "topic": "sky", "style": "loud"})",
                            R"({"question": "a", "topic": "sea", "style": "low"})"}) {
    EXPECT_NE(answer(other).at("text"), one.at("text")) << other;
  }
  expect_refusal(ExitCode::data, with(line, {"--input", "-"}), {"standard input:1", "has no 'topic'"},
                 {.shell = "", .environment = "", .input = R"({"question": "a", "style": "low"})"}, /*alone=*/false);
  expect_refusal(ExitCode::usage, with(line, {"--prompt", "a"}),
                 {"--prompt", "the chat template has a place for 'topic'", "'question' and 'topic'"}, {},
                 /*alone=*/false);
}

TEST(Generate, WrongInput) {
  const Trained trained(kDecoder);
  const auto refused = [&](ExitCode code, const Words& words, const Words& parts, const std::string& input = "") {
    expect_refusal(code, trained.generate(words), parts, {.shell = "", .environment = "", .input = input},
                   /*alone=*/false);
  };
  expect_refusal(ExitCode::usage, {"generate"}, {"checkpoint"});
  expect_refusal(ExitCode::usage, {"generate", "x"}, {"--prompt", "--input"});
  expect_refusal(ExitCode::usage, {"generate", "x", "--prompt", "a", "--input", "b"}, {"--prompt", "--input"});
  expect_refusal(ExitCode::usage, {"generate", "x", "--prompt", "a", "--top-p", "1.5"}, {"--top-p"});
  expect_refusal(ExitCode::usage, {"generate", "x", "--prompt", "a", "--temperature", "1e-9"}, {"temperature"});
  expect_refusal(ExitCode::usage, {"generate", "x", "--prompt", "a", "--stop", ""}, {"--stop"});
  expect_refusal(ExitCode::data, {"generate", "x", "--input", (trained.dir / "none.txt").string()}, {"none.txt"});
  expect_refusal(ExitCode::checkpoint, {"generate", (trained.dir / "none").string(), "--prompt", "a"}, {"none"});
  const auto file = [&](const std::string& name, const std::string& text) {
    std::ofstream(trained.dir / name) << text;
    return (trained.dir / name).string();
  };
  // A model of transformers without its files is one still, and no checkpoint of ours.
  std::filesystem::create_directories(trained.dir / "hf");
  std::ofstream(trained.dir / "hf" / "config.json")
      << R"({"model_type": "qwen3", "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
             "max_position_embeddings": 64})";
  expect_refusal(ExitCode::data, {"generate", (trained.dir / "hf").string(), "--prompt", "a"}, {"hf", "tokenizer.json"},
                 {}, /*alone=*/false);
  for (const char* command : {"eval", "export"}) {
    Words line = {command, "--checkpoint", (trained.dir / "hf").string(), "--base", trained.dir.path().string()};
    if (command == std::string("export")) line = with(line, {"--to", "hf", "--out", (trained.dir / "out").string()});
    expect_refusal(ExitCode::usage, line, {"hf' is a "}, {}, /*alone=*/false);
  }
  refused(ExitCode::data, {"--input", file("empty.txt", "\n\n")}, {"empty.txt", "holds no prompt"});
  refused(ExitCode::data, {"--input", "-"}, {"standard input", "holds no prompt"});
  refused(ExitCode::data, {"--input", file("a.json", "[{\"prompt\": \"a\"}")}, {"a.json:1", "is not closed"});
  refused(ExitCode::data, {"--input", file("a.jsonl", "{\"prompt\": \"a\"}\nhello\n")}, {"a.jsonl:2", "JSON"});
  refused(ExitCode::data, {"--input", file("b.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"a\"}\n")},
          {"b.jsonl:2", "\"prompt\""});
  refused(ExitCode::data, {"--input", file("c.jsonl", "{\"prompt\": 3}\n")}, {"c.jsonl:1", "\"prompt\""});
  refused(ExitCode::data, {"--input", file("d.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n")},
          {"d.jsonl:1", "'messages' are for models of transformers"});
  refused(ExitCode::usage, {"--prompt", "a", "--system", "b"}, {"--system is for models of transformers"});
  refused(ExitCode::data, {"--input", file("bytes.txt", "a\n\xff\xfe\n")}, {"bytes.txt:2", "UTF-8"});
  refused(ExitCode::data, {"--input", file("long.txt", "short\n" + std::string(70, '1') + "\n")},
          {"long.txt:2", "71 tokens", "at most 64"});
  refused(ExitCode::usage, {"--prompt", std::string(70, '1')}, {"--prompt", "71 tokens", "at most 64"});
  // The tokenizer is gone, or another one.
  const fs::path tokenizer = fs::path(trained.checkpoint) / "tokenizer.json";
  ASSERT_TRUE(fs::exists(tokenizer)) << "the run keeps it";
  const std::string kept = read(tokenizer);
  std::ofstream(tokenizer) << kept << "\n";
  refused(ExitCode::checkpoint, {"--prompt", "1"}, {"tokenizer.json", "not the tokenizer"});
  fs::remove(tokenizer);
  refused(ExitCode::checkpoint, {"--prompt", "1"}, {"tokenizer.json", "lies neither"});
}

TEST(Generate, Bench) {
  const TempDir dir;
  const fs::path file = dir / "generate.json";
  const Result result = run({"bench", "generate", "--rows", "1,3", "--prompt", "4", "--new", "5", "--vocab-size", "40",
                             "--passes", "2", "--json", file.string(), "lm.arch=decoder", "lm.hidden_size=16",
                             "lm.num_heads=2", "lm.layers=1", "runtime.device=cpu"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("tokens/s"), std::string::npos) << result.out;
  const json runs = json::parse(read(file)).at("runs");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].at("rows"), 3);
  EXPECT_EQ(runs[1].at("seconds").size(), 2U);
  EXPECT_GT(runs[1].at("tokens_per_s"), 0);
  expect_refusal(ExitCode::usage, {"bench", "generate", "--rows", "0"}, {"--rows"});
}

}  // namespace
}  // namespace hrm
