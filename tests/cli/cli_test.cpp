// The program as its users meet it: exit codes, one sentence on stderr, results alone on stdout.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "hrm/config/json_schema.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

using test::expect_refusal;
using test::Result;
using test::run;
using test::TempDir;

TEST(Cli, HelpIsAResult) {
  const std::vector<std::vector<std::string>> commands = {{}, {"train"}, {"data", "sudoku"}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--help");
    const Result result = run(command);
    EXPECT_EQ(result.code, 0) << command.front();
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("Usage: hrm_train"), std::string::npos) << result.out;
    for (size_t i = 0; i + 1 < command.size(); ++i) EXPECT_NE(result.out.find(command[i]), std::string::npos);
  }
  const Result all = run({"--help-all"});
  EXPECT_EQ(all.code, 0);
  for (const char* part : {"--resume", "--watch", "--describe", "--schema", "--from", "--to", "inspect", "doctor",
                           "bench", "plan", "dashboard"}) {
    EXPECT_NE(all.out.find(part), std::string::npos) << part;
  }
}

TEST(Cli, VersionNamesCommitTorchCudaAndArchitectures) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* part : {"hrm_train ", "commit ", "torch 2.11.0", "CUDA ", "architectures "}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
  }
}

TEST(Cli, Subcommands) {
  expect_refusal(ExitCode::usage, {}, {"subcommand", "train", "eval", "doctor"});
  expect_refusal(ExitCode::usage, {"trian"}, {"'trian'", "did you mean 'train'?"});
  expect_refusal(ExitCode::usage, {"data"},
                 {"sudoku, maze, arc, pictures, grid, pairs, arithmetic, vectors, answers, text, jsonl, inspect, "
                  "tokenizer, tokenize"});
  expect_refusal(ExitCode::usage, {"data", "sudoko"}, {"'sudoko'", "did you mean 'sudoku'?"});
  expect_refusal(ExitCode::usage, {"--verison"}, {"'--verison'", "hrm_train --help"});
}

TEST(Cli, TokenizersAreTrainedAndUsed) {
  const TempDir dir;
  const std::string text = (dir / "text.txt").string(), made = (dir / "tokenizer.json").string();
  std::ofstream(text) << "one fish two fish red fish blue fish\nnow fish and then fish\n";
  const Result trained = run({"data", "tokenizer", "--text", text, "--vocab-size", "270", "--special", "<a>",
                              "--special", "<b>", "--out", made});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find(" 2 special)"), std::string::npos) << trained.out;
  const Result ids = run({"data", "tokenize", "--tokenizer", made, "--threads", "2"},
                         {.shell = "", .environment = "", .input = "one fish<b>\nblue\n"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  const Result back = run({"data", "tokenize", "--tokenizer", made, "--decode", "--skip-special"},
                          {.shell = "", .environment = "", .input = ids.out});
  EXPECT_EQ(back.out, "one fish\nblue\n") << ids.out << back.err;
  expect_refusal(ExitCode::usage, {"data", "tokenize", "--tokenizer", made, "--skip-special"}, {"--decode"});
  expect_refusal(ExitCode::usage, {"data", "tokenize", "--tokenizer", made, "--add-special", "--decode"}, {"--decode"});
  expect_refusal(ExitCode::data, {"data", "tokenize", "--tokenizer", text}, {"text.txt", "not valid JSON"});
  expect_refusal(ExitCode::usage, {"data", "tokenizer", "--text", text, "--vocab-size", "100", "--out", made},
                 {"--vocab-size"});
  expect_refusal(ExitCode::usage,
                 {"data", "tokenizer", "--text", text, "--vocab-size", "256", "--special", "<a>", "--out", made},
                 {"1 special tokens need 257"});
  expect_refusal(ExitCode::data, {"data", "tokenizer", "--text", text + "x", "--vocab-size", "300", "--out", made},
                 {"text.txtx"});
}

TEST(Cli, PromptsAndResponsesAreShown) {
  const TempDir dir;
  const std::string data = (dir / "answers").string(), bare = (dir / "chats.jsonl").string();
  ASSERT_EQ(
      run({"data", "answers", "--train", "5", "--validation", "2", "--test", "0", "--largest", "40", "--out", data})
          .code,
      0);
  const Result shown = run({"data", "inspect", data, "chat.template=plain", "--example", "2"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.err, "");
  for (const char* part : {"template plain", "20 examples of 5 prompts", "8 examples of 2 prompts", "train.jsonl:3",
                           "\"Split ", "<eos>\"", "labels from id "}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  expect_refusal(ExitCode::usage, {"data", "inspect", data, "chat.template=plain", "--example", "20"},
                 {"--example 20", "20 examples", "train.jsonl"});
  expect_refusal(ExitCode::usage, {"data", "inspect", data}, {"has no chat_template", "name the template"});
  expect_refusal(ExitCode::usage, {"data", "inspect", data, "chat.templte=plain"}, {"chat.template"});
  std::ofstream(bare) << "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": 1}\n";
  expect_refusal(ExitCode::usage, {"data", "inspect", bare}, {"no tokenizer is named", "hf.tokenizer=FOLDER"});
  expect_refusal(ExitCode::data, {"data", "inspect", bare, "hf.tokenizer=" + bare}, {"chats.jsonl/tokenizer.json"});
  expect_refusal(ExitCode::data, {"data", "inspect", bare + "l.jsonl"}, {"chats.jsonll.jsonl' does not exist"});
  expect_refusal(ExitCode::data, {"data", "inspect", bare, "hf.tokenizer=" + data, "chat.template=plain"},
                 {"chats.jsonl:2", "'prompt' is neither a text nor a list of messages"}, {}, /*alone=*/false);
  expect_refusal(ExitCode::data, {"data", "inspect", bare, "hf.tokenizer=" + (dir / "none").string()},
                 {"none/tokenizer.json"});
  const Result help = run({"data", "inspect", "--help"});
  for (const char* part : {"KEY=VALUE", "--config", "hf.tokenizer=FOLDER", "*.jsonl"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part << "\n" << help.out;
  }
}

TEST(Cli, Options) {
  expect_refusal(ExitCode::usage, {"eval"}, {"--checkpoint", "hrm_train eval --help"});
  expect_refusal(ExitCode::usage, {"solve", "--checkpoint"}, {"--checkpoint"});
  expect_refusal(ExitCode::usage, {"export", "--checkpoint", "x", "--out", "y"}, {"--to"});
  expect_refusal(ExitCode::usage, {"import", "--from", "hrm", "--out", "y"}, {"path"});
  expect_refusal(ExitCode::usage, {"train", "--confg", "x"}, {"'--confg'", "did you mean '--config'?"});
  expect_refusal(ExitCode::usage, {"train", "--optim.lr=3"}, {"without dashes: optim.lr=3"});
  expect_refusal(ExitCode::usage, {"solve", "--checkpoint", "x", "--segments", "abc"}, {"--segments", "abc"});
  // "not in range 1 to 65535" or "[1 - 65535]": the wording is CLI11's and differs between its versions.
  expect_refusal(ExitCode::usage, {"solve", "--checkpoint", "x", "--segments", "0"},
                 {"--segments", "Value 0 not in range", "65535"});
  expect_refusal(ExitCode::usage, {"solve", "--checkpoint", "x", "--format", "xml"}, {"--format", "xml", "jsonl"});
  expect_refusal(ExitCode::usage, {"solve", "--checkpoint", "x", "a.txt", "b.txt"}, {"'b.txt'"});
  expect_refusal(ExitCode::usage, {"export", "--to", "onnx", "--checkpoint", "x", "--out", "y"},
                 {"onnx", "torchscript"});
  expect_refusal(ExitCode::usage, {"report", "x"}, {"--out"});
  expect_refusal(ExitCode::usage, {"report", "--out", "y"}, {"evaluations"});
  expect_refusal(ExitCode::usage, {"report", "a=", "--out", "y"}, {"'a='", "NAME=FILE"});
  expect_refusal(ExitCode::data, {"report", "a=none.json", "--out", "y"}, {"none.json"});
  for (const char* number : {"x", "-3", "7x", ""}) {
    expect_refusal(ExitCode::usage, {"data", "sudoku", "--generate", "--train", number, "--out", "y"},
                   {"--train", "needs a number of at least 0", cat("'", number, "'")});
  }
  expect_refusal(ExitCode::usage, {"data", "sudoku", "--generate", "--train", "1e30", "--out", "y"},
                 {"--train", "1e30"});
  expect_refusal(ExitCode::usage, {"data", "sudoku", "--generate", "--train-csv", "x", "--out", "y"},
                 {"--generate", "--train-csv"});
  expect_refusal(ExitCode::usage, {"config", "--print", "--json"}, {"--print", "--json"});
  expect_refusal(ExitCode::usage, {"config", "--schema", "--describe"}, {"--schema", "--describe"});
  expect_refusal(ExitCode::usage, {"config", "--schema", "optim.lr=1"}, {"config --schema", "KEY=VALUE"});
  expect_refusal(ExitCode::usage, {"config", "--describe", "optim.lr=1"}, {"config --describe", "KEY=VALUE"});
  expect_refusal(ExitCode::usage, {"doctor", "now"}, {"'now'"});
}

TEST(Cli, Configuration) {
  const test::TempDir dir;
  const std::string file = (dir / "a.json").string();
  std::ofstream(file) << "{ // comment\n\"model\": {\n\"hiden_size\": 512}}";
  expect_refusal(ExitCode::usage, {"train", "--config", file},
                 {file + ":3", "model.hiden_size", "512", "'model.hidden_size'"});
  std::ofstream(file) << "{\n\"optim\": {\"lr\": \"fast\"}}";
  expect_refusal(ExitCode::usage, {"train", "--config", file}, {file + ":2", "optim.lr", "\"fast\"", "a number"});
  std::ofstream(file) << "{\n\"optim\": {\"lr\": 1,}}";
  expect_refusal(ExitCode::usage, {"train", "--config", file}, {file + ":2", "not valid JSON"});
  expect_refusal(ExitCode::usage, {"train", "--config", (dir / "none.json").string()}, {"none.json", "--config"});
  expect_refusal(ExitCode::usage, {"train", "lr=1"}, {"'lr'", "did you mean 'optim.lr'?"});
  expect_refusal(ExitCode::usage, {"train", "model.arch=hmr"}, {"model.arch=hmr", "did you mean 'hrm'?"});
  expect_refusal(ExitCode::usage, {"train", "train.micro_batch_size=100"},
                 {"train.micro_batch_size = 100", "96 or 128"});
  expect_refusal(ExitCode::usage, {"train"}, {"train.steps", "train.epochs", "no length"});
  expect_refusal(ExitCode::usage, {"train", "data.train="}, {"data.train", "--config"});
}

TEST(Cli, ConfigPrintsOriginsAndAReloadableFile) {
  const std::string recipe = test::source_dir() + "/configs/puzzle/hrm_sudoku17.json";
  const Result printed = run({"config", "--print", "--config", recipe, "optim.lr=3e-4"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(printed.err, "");
  EXPECT_NE(printed.out.find(recipe + ":"), std::string::npos);
  EXPECT_NE(printed.out.find("0.0003"), std::string::npos);
  EXPECT_NE(printed.out.find("command line"), std::string::npos);

  const Result json = run({"config", "--json", "--config", recipe, "optim.lr=3e-4"});
  EXPECT_EQ(json.code, 0) << json.err;
  const config::LoadedConfig expected = config::load_config({recipe}, {"optim.lr=3e-4"});
  const config::LoadedConfig again = config::config_from_json_text(json.out, "stdout");
  EXPECT_TRUE(config::differing_keys(expected.config, again.config).empty());

  const Result described = run({"config", "--describe"});
  EXPECT_EQ(described.code, 0);
  for (const std::string& key : config::keys()) EXPECT_NE(described.out.find(key), std::string::npos) << key;

  const Result schema = run({"config", "--schema"});
  EXPECT_EQ(schema.code, 0);
  EXPECT_EQ(schema.err, "");
  EXPECT_EQ(schema.out, config::json_schema());
}

TEST(Cli, MissingThingsHaveTheirOwnCodes) {
  const test::TempDir dir;
  const std::string none = (dir / "none").string();
  const std::string runs = "run.dir=" + dir.path().string();
  expect_refusal(ExitCode::data, {"data", "inspect", none}, {none});
  expect_refusal(ExitCode::checkpoint, {"eval", "--checkpoint", none}, {none});
  expect_refusal(ExitCode::checkpoint, {"solve", "--checkpoint", none}, {none});
  expect_refusal(ExitCode::checkpoint, {"export", "--to", "pt", "--checkpoint", none, "--out", none + ".pt"}, {none});
  expect_refusal(ExitCode::checkpoint, {"import", "--from", "hrm", none, "--out", none + ".run"}, {none});
  expect_refusal(ExitCode::data,
                 {"train", "runtime.device=cpu", "train.steps=10", "optim.warmup_steps=1", runs, "data.train=" + none},
                 {none});
  expect_refusal(ExitCode::environment,
                 {"train", "runtime.device=cuda", "train.steps=10", "optim.warmup_steps=1", runs, "data.train=x"},
                 {"runtime.device"});
  expect_refusal(ExitCode::environment,
                 {"train", "train.steps=10", "optim.warmup_steps=1", "run.dir=/proc/none", "data.train=x"},
                 {"/proc/none"});
}

TEST(Cli, DoctorReports) {
  const Result text = run({"doctor"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.err, "");
  for (const char* part : {"torch", "cores", "usable", "hrm::rms_norm_residual", "hrm::adam_", "hrm::linear", "free"}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  const Result result = run({"doctor", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_FALSE(json["gpu"]["usable"].get<bool>());
  EXPECT_FALSE(json["gpu"]["why_not"].get<std::string>().empty());
  EXPECT_TRUE(json["cpu"]["matmul"]["bf16_right"].get<bool>());
  EXPECT_GT(json["storage"]["free_bytes"].get<uint64_t>(), 0u);
  bool found = false;
  for (const auto& op : json["ops"]) {
    if (op["name"] != "hrm::rms_norm_residual") continue;
    found = true;
    EXPECT_TRUE(op["cpu"].get<bool>());
    EXPECT_TRUE(op["autograd"].get<bool>());
    EXPECT_EQ(op["cuda"].get<bool>(), json["program"]["cuda"] != "none");
  }
  EXPECT_TRUE(found);
  EXPECT_FALSE(json["launch"]["description"].get<std::string>().empty());
  const Result launched =
      run({"doctor"}, {"", "WORLD_SIZE=2 LOCAL_RANK=0 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511", ""});
  EXPECT_NE(launched.out.find("rank 0 of 2 by a plain environment"), std::string::npos) << launched.out;
}

}  // namespace
}  // namespace hrm
