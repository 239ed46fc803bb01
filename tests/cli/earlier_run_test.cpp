// Runs of versions that guessed chat templates: a resume, eval and generate keep what the run was trained with.
//
// Such a run is made as the program of commit ec6d153 left it. Today's program trains it with the template that was
// guessed. Then its config.json becomes what that commit's program wrote for the same settings with
// chat.template=auto (formats/earlier_chat_config.json, with other folders in it). The formats of manifest.json,
// model.pt and state.safetensors are the same since, and the digests of the data are compared with that program's.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/program.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/formats/manifest.h"
#include "support/overrides.h"
#include "support/paths.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;
using test::with;
using Words = std::vector<std::string>;

// Of one record, as commit ec6d153 wrote them.
constexpr const char* kChatmlData = "ead393be14b9d56ca835f89eb4e9a145";
constexpr const char* kPlainData = "d4761ad8e63e1c165e2aa9654c241d80";
constexpr const char* kTokenizer = "5826690c7d1211c232ec5a6c26bd4e95";

std::string with_value(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

class EarlierRun : public ::testing::Test {
 protected:
  // The folder's own template writes no thought; the guessed one puts an empty one into the prompt.
  void SetUp() override {
    fs::create_directories(dir / "model");
    fs::copy_file(fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json",
                  dir / "model/tokenizer.json");
    std::ofstream(dir / "model/tokenizer_config.json")
        << R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": )"
        << R"("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %})"
        << R"({% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"})";
    std::ofstream(dir / "model/config.json")
        << R"({"model_type": "qwen3", "vocab_size": 1520, "hidden_size": 32, "intermediate_size": 48,
               "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
               "max_position_embeddings": 128})";
    // Its tools were passed over.
    std::ofstream(dir / "data.jsonl") << R"({"prompt": "a", "response": "b", "tools": [{"name": "f"}]})"
                                      << "\n";
  }

  Words train(const Words& more) const {
    return with({"train", "task=polychromic", "run.dir=" + (dir / "runs").string(),
                 "hf.model=" + (dir / "model").string(), "hf.weights=random", "lora.r=0", "polychromic.objective=none",
                 "data.train=" + (dir / "data.jsonl").string(), "chat.val_share=0", "chat.max_length=64",
                 "train.global_batch_size=1", "runtime.device=cpu", "runtime.threads=1"},
                more);
  }

  fs::path run_folder() const { return dir / "runs/run"; }
  std::map<std::string, std::string> stored_info() const {
    fs::path newest;
    for (const auto& one : fs::directory_iterator(run_folder() / "checkpoints")) newest = std::max(newest, one.path());
    return checkpoint::parse_manifest(read(newest / "manifest.json")).info;
  }
  std::string chat_setting(const std::string& name) const {
    return nlohmann::json::parse(read(run_folder() / "config.json")).at("chat").at(name);
  }

  // One step by that version with chat.template=`asked`, which was then the template `name`.
  void make(const std::string& asked, const std::string& name, const std::string& digest, const Words& today) {
    const Result trained = run(train(with({"train.steps=1", "chat.tools_field=", "chat.template=" + name}, today)));
    ASSERT_EQ(trained.code, 0) << trained.err;
    std::string config = read(fs::path(test::source_dir()) / "tests/fixtures/formats/earlier_chat_config.json");
    config = with_value(config, "RUNS", (dir / "runs").string());
    config = with_value(config, "MODEL", (dir / "model").string());
    config = with_value(config, "DATA", (dir / "data.jsonl").string());
    config = with_value(config, R"("template": "auto")", R"("template": ")" + asked + "\"");
    const fs::path step = fs::directory_iterator(run_folder() / "checkpoints")->path();
    checkpoint::Manifest manifest = checkpoint::parse_manifest(read(step / "manifest.json"));
    std::set<std::string> facts;
    for (const auto& [fact, value] : manifest.info) facts.insert(fact);
    EXPECT_EQ(facts, (std::set<std::string>{"chat_template", "digest of the next batch", "digest of the tokenizer",
                                            "digest of the training data", "task", "tokenizer_digest", "vocab_size"}));
    EXPECT_EQ(manifest.info["chat_template"], name);
    EXPECT_EQ(manifest.info["digest of the training data"], digest);
    EXPECT_EQ(manifest.info["digest of the tokenizer"], kTokenizer);
    manifest.files.at("config.json") = {config.size(), digest_hex(as_bytes(config))};
    for (const fs::path& folder : {step, run_folder()}) write_text_atomic(folder / "config.json", config);
    write_text_atomic(step / "manifest.json", manifest_text(manifest));
  }

  TempDir dir;
};

TEST_F(EarlierRun, IsResumedByTheNameOfItsTemplate) {
  make("auto", "chatml", kChatmlData, {});
  const Result resumed = run(train({"train.steps=2"}));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("chat.template=chatml, as '"), std::string::npos) << resumed.err;
  EXPECT_EQ(chat_setting("template"), "chatml");
  EXPECT_EQ(chat_setting("tools_field"), "");
  EXPECT_EQ(stored_info()["digest of the training data"], kChatmlData);
  // Again, now that the checkpoint has the name, and where the command says auto.
  for (const Words& more : {Words{"train.steps=3"}, Words{"train.steps=4", "chat.template=auto"}}) {
    const Result again = run(train(more));
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(chat_setting("template"), "chatml");
  }
  expect_refusal(ExitCode::usage, train({"train.steps=5", "chat.template=model"}),
                 {"chat.template = \"model\"", "was trained with \"chatml\"", "set it back, or start another run.name"},
                 {}, /*alone=*/false);
}

TEST_F(EarlierRun, TheFoldersOwnTemplateIsAnotherRun) {
  make("auto", "chatml", kChatmlData, {});
  expect_refusal(ExitCode::usage, train({"train.steps=2", "chat.template=model"}),
                 {"chat.template = \"model\"", "was trained with \"chatml\"", "set it back, or start another run.name"},
                 {}, /*alone=*/false);
  // Other records are other data, whatever the template.
  std::ofstream(dir / "data.jsonl") << R"({"prompt": "c", "response": "b"})"
                                    << "\n";
  expect_refusal(ExitCode::data, train({"train.steps=2"}),
                 {"the training data is not what", "bring the old ones back, start another run.name"}, {},
                 /*alone=*/false);
}

TEST_F(EarlierRun, PlainPromptsGetNoBos) {
  make("plain", "plain", kPlainData, {"chat.bos=off"});
  for (const char* steps : {"train.steps=2", "train.steps=3"}) {
    const Result resumed = run(train({steps, "chat.template=plain"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("chat.bos=off, as '"), std::string::npos) << resumed.err;
    EXPECT_EQ(chat_setting("bos"), "off");
  }
}

TEST_F(EarlierRun, IsAskedAsItWasTrained) {
  make("auto", "chatml", kChatmlData, {});
  const auto losses = [&](const Words& more) {
    const Result result =
        run(with({"eval", "--checkpoint", run_folder().string(), "--data", (dir / "data.jsonl").string(), "--json",
                  (dir / "eval.json").string(), "eval.answers=0", "runtime.device=cpu"},
                 more));
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(read(dir / "eval.json")).at("loss").get<double>();
  };
  const double kept = losses({});
  EXPECT_EQ(kept, losses({"chat.template=chatml"}));
  EXPECT_EQ(kept, losses({"chat.template=auto"}));
  EXPECT_NE(kept, losses({"chat.template=model"}));
  const auto answer = [&](const Words& more) {
    const Result result = run(with({"generate", run_folder().string(), "--device", "cpu", "--prompt", "hello",
                                    "--max-new-tokens", "8", "--temperature", "1"},
                                   more));
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string said = answer({});
  EXPECT_EQ(said, answer({"--template", "chatml"}));
  EXPECT_NE(said, answer({"--template", "model"}));
}

}  // namespace
}  // namespace hrm
