// Files, overrides and their errors.
#include "hrm/config/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "hrm/base/error.h"
#include "hrm/config/schema.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::config {
namespace {

LoadedConfig parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return config_from_json_text(text, "a.json", overrides);
}

// The sentence of the Error(usage) that loading throws; empty when it throws none.
std::string load_fault(const std::string& text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << "one line: " << e.what();
    return e.what();
  }
  return "";
}

TEST(Load, EmptyObjectGivesTheDefaults) {
  const LoadedConfig loaded = parse("{}");
  EXPECT_TRUE(differing_keys(loaded.config, Config{}).empty());
  for (const std::string& key : keys()) EXPECT_EQ(loaded.origin(key).text(), "default") << key;
}

TEST(Load, ReadsValuesAndRemembersTheirLines) {
  const LoadedConfig loaded = parse(R"({ // "model": { in a comment does not count
  /* nor does
     "train": here */
  "run": {"dir": "a // b /* \" */",
    "seed": 7},
  "optim": {
    "lr": 3,

    "weight_decay": 5e-1
  },
  "model": {"mlp_t": false, "hidden_size": 1e3, "num_heads":
     4.0}
})");
  EXPECT_EQ(loaded.config.run.dir, "a // b /* \" */");
  EXPECT_EQ(loaded.config.run.seed, 7);
  EXPECT_EQ(loaded.config.optim.lr, 3.0);
  EXPECT_EQ(loaded.config.optim.weight_decay, 0.5);
  EXPECT_EQ(loaded.config.model.hidden_size, 1000);
  EXPECT_EQ(loaded.config.model.num_heads, 4);
  EXPECT_EQ(loaded.origin("run.dir").text(), "a.json:4");
  EXPECT_EQ(loaded.origin("run.seed").text(), "a.json:5");
  EXPECT_EQ(loaded.origin("optim.lr").text(), "a.json:7");
  EXPECT_EQ(loaded.origin("optim.weight_decay").text(), "a.json:9");
  EXPECT_EQ(loaded.origin("model.hidden_size").text(), "a.json:11");
  EXPECT_EQ(loaded.origin("model.num_heads").text(), "a.json:11");  // where the key stands
  EXPECT_EQ(loaded.origin("model.arch").text(), "default");
}

TEST(Load, UnknownKeysNameLineAndNearestName) {
  EXPECT_EQ(load_fault("{\n\"model\": {\n\"hiden_size\": 512}}"),
            "a.json:3: unknown key 'model.hiden_size' = 512; did you mean 'model.hidden_size'?");
  EXPECT_EQ(load_fault("{\n\n\"lr\": 1}"), "a.json:3: unknown key 'lr' = 1; did you mean 'optim.lr'?");
  EXPECT_EQ(load_fault("{\"arch\": {\n\"H_cycles\": 2}}"),
            "a.json:1: unknown section 'arch'; "
            "'hrm_train config --describe' lists all keys");
  EXPECT_EQ(load_fault("{\"modle\": {}}"), "a.json:1: unknown section 'modle'; did you mean 'model'?");
  EXPECT_EQ(load_fault("{}", {"arch.L_cycles=3"}),
            "command line argument 'arch.L_cycles=3': unknown key 'arch.L_cycles' = 3; did you mean 'model.L_cycles'?");
  EXPECT_EQ(load_fault("{}", {"lr_warmup_steps=3"}),
            "command line argument 'lr_warmup_steps=3': unknown key "
            "'lr_warmup_steps' = 3; did you mean 'optim.warmup_steps'?");
  EXPECT_EQ(load_fault("{\"model\": {\"zzzzzzz\": [1]}}"),
            "a.json:1: unknown key 'model.zzzzzzz' = []; 'hrm_train config --describe' lists all keys");
}

TEST(Load, WrongTypes) {
  EXPECT_EQ(load_fault("{\"model\":\n{\"hidden_size\": \"big\"}}"),
            "a.json:2: model.hidden_size = \"big\" must be a whole number, 2..65536");
  EXPECT_EQ(load_fault("{\"model\": {\"hidden_size\": 1.5}}"),
            "a.json:1: model.hidden_size = 1.5 must be a whole number, 2..65536");
  EXPECT_EQ(load_fault("{\"model\": {\"hidden_size\": true}}"),
            "a.json:1: model.hidden_size = true must be a whole number, 2..65536");
  EXPECT_EQ(load_fault("{\"model\": {\"mlp_t\": 1}}"), "a.json:1: model.mlp_t = 1 must be true or false");
  EXPECT_EQ(load_fault("{\"run\": {\"name\": 5}}"), "a.json:1: run.name = 5 must be text");
  EXPECT_EQ(load_fault("{\"run\": {\"name\": null}}"), "a.json:1: run.name = null must be text");
  EXPECT_EQ(load_fault("{\"run\": {\"name\": [\"x\", {\"y\": 1}]}}"), "a.json:1: run.name = [] must be text");
  EXPECT_EQ(load_fault("{\"run\": {\"name\": {\"x\": 1}}}"), "a.json:1: run.name = {} must be text");
  EXPECT_EQ(load_fault("{\"optim\": 3}"),
            "a.json:1: optim = 3 must be an object, for it is a section: \"optim\": { ... }");
  EXPECT_EQ(load_fault("{\"run\": {\"seed\": 18446744073709551615}}"),
            "a.json:1: run.seed = 18446744073709551615 must be a whole number, at least 0");
  EXPECT_EQ(load_fault("{\"run\": {\"seed\": 1e300}}"),
            "a.json:1: run.seed = 1e+300 must be a whole number, at least 0");
}

TEST(Load, OutOfRange) {
  EXPECT_EQ(load_fault("{\"model\": {\n\"hidden_size\": 1}}"),
            "a.json:2: model.hidden_size = 1 is out of range: it must be 2..65536");
  EXPECT_EQ(load_fault("{\"optim\": {\"beta1\": 1}}"),
            "a.json:1: optim.beta1 = 1 is out of range: it must be at least 0, below 1");
  EXPECT_EQ(load_fault("{\"model\": {\"rms_norm_eps\": 0}}"),
            "a.json:1: model.rms_norm_eps = 0 is out of range: it must be above 0, at most 1");
  EXPECT_EQ(load_fault("{\"run\": {\"seed\": -1}}"), "a.json:1: run.seed = -1 is out of range: it must be at least 0");
  EXPECT_EQ(load_fault("{\"model\": {\"arch\": \"hmr\"}}"), "a.json:1: model.arch = \"hmr\" is not " +
                                                                describe_rule(find_field("model.arch")->rule) +
                                                                "; did you mean 'hrm'?");
  EXPECT_EQ(load_fault("{\"optim\": {\"name\": \"adam\"}}"),
            "a.json:1: optim.name = \"adam\" is not one of adam_atan2, adamw, lion, sgd, muon; did you mean "
            "'adamw'?");
}

TEST(Load, DuplicateKeys) {
  EXPECT_EQ(load_fault("{\"run\": {\n\"seed\": 1,\n\n\"seed\": 2}}"),
            "a.json:4: key 'run.seed' = 2 occurs twice, first in line 2; keep one of them");
  EXPECT_EQ(load_fault("{\"run\": {\"seed\": 1},\n\"run\": {\"name\": \"x\"}}"),
            "a.json:2: key 'run' = {} occurs twice, first in line 1; keep one of them");
}

TEST(Load, SyntaxErrorsNameTheLine) {
  EXPECT_TRUE(load_fault("{\n\"run\": {\n\"seed\": 1,\n}}").starts_with("a.json:4: this is not valid JSON: "));
  EXPECT_NE(load_fault("{\n\"run\": {\n\"seed\": 1,\n}}").find("remove the comma"), std::string::npos);
  EXPECT_NE(load_fault("{\n\"run\": {\"seed\": 1\n\"name\": \"x\"}}").find("a comma is missing"), std::string::npos);
  EXPECT_TRUE(load_fault("{\n\"run\": {\n\"seed\": 01}}").starts_with("a.json:3: this is not valid JSON: "));
  EXPECT_TRUE(load_fault("").starts_with("a.json:1: this is not valid JSON: "));
  EXPECT_TRUE(load_fault("{\"run\": {").starts_with("a.json:1: this is not valid JSON: "));
  EXPECT_TRUE(load_fault("{} {}").starts_with("a.json:1: this is not valid JSON: "));
  EXPECT_TRUE(load_fault("{\n\"run\": {\"seed\": 1e999}}").starts_with("a.json:2: this is not valid JSON: "));
  EXPECT_TRUE(load_fault("{\"run\": {\"name\": \"\xff\"}}").starts_with("a.json:1: this is not valid JSON: "));
  EXPECT_EQ(load_fault("[1]"), "a.json:1: a configuration is a JSON object; put its entries between { and }");
  EXPECT_EQ(load_fault("3"), "a.json:1: a configuration is a JSON object; put its entries between { and }");
  EXPECT_TRUE(load_fault("{ /* open").starts_with("a.json:1: this is not valid JSON: "));
}

TEST(Load, FilesHaveLimits) {
  std::string deep;
  for (int i = 0; i < 16; ++i) deep += "{\"a\":";
  EXPECT_NE(load_fault(deep + "1").find("this is not valid JSON"), std::string::npos) << "16 are not too deep";
  EXPECT_EQ(load_fault(deep + "\n{\"a\":1"), "a.json:2: the entries nest more than 16 deep");
  EXPECT_EQ(load_fault("{\"a\":" + std::string(100000, '[')), "a.json:1: the entries nest more than 16 deep");
  // Each open object keeps its key's path: 65,000 of them would be gigabytes.
  std::string quadratic;
  for (int i = 0; i < 65000; ++i) quadratic += "{\"aaaaaaaaa\":";
  EXPECT_EQ(load_fault(quadratic), "a.json:1: the entries nest more than 16 deep");
  EXPECT_EQ(load_fault("{\"" + std::string(257, 'k') + "\": 1}"),
            "a.json:1: the key '" + std::string(80, 'k') + "...' is longer than 256 bytes");
  EXPECT_EQ(load_fault("{}" + std::string(kMaxConfigBytes, ' ')),
            "a.json: a configuration of 1.0 MiB is too long; at most 1.0 MiB are read");
  EXPECT_EQ(
      load_fault("{\"run\": {\"a\\n\": 1, \"a\\n\": \"" + std::string(1000, 'x') + "\"}}"),
      "a.json:1: key 'run.a\\n' = \"" + std::string(79, 'x') + "... occurs twice, first in line 1; keep one of them");
  const test::TempDir dir;
  std::ofstream(dir / "big.json") << "{}" << std::string(kMaxConfigBytes, ' ');
  test::expect_error(ExitCode::usage, {"--config: ", "big.json' is larger than the 1.0 MiB"},
                     [&] { load_config({(dir / "big.json").string()}, {}); });
}

TEST(Load, ArgumentsAreTexts) {
  // What nests a hundred thousand deep would overflow the stack of whoever writes it out again.
  EXPECT_NE(load_fault("{}", {"optim.lr=" + std::string(100000, '[') + std::string(100000, ']')})
                .find("optim.lr = \"[[[[[[["),
            std::string::npos);
  EXPECT_EQ(
      load_fault("{}", {"optim.lr= {\"a\": 1}"}),
      "command line argument 'optim.lr= {\"a\": 1}': optim.lr = \" {\\\"a\\\": 1}\" must be a number, at least 0, "
      "at most 1000");
  EXPECT_EQ(parse("{}", {"run.name=[x]"}).config.run.name, "[x]");
  EXPECT_EQ(load_fault("{}", {"data.train=\xe9.csv"}),
            "command line argument 'data.train=\\xE9.csv' is not UTF-8; rename what it stands for");
}

// Every beginning of a valid text either loads or is refused with a line; nothing else happens.
TEST(Load, EveryTruncationIsRefused) {
  const std::string text = "{ // c\n\"run\": {\"name\": \"a\\u00e9\", \"seed\": 3},\n\"optim\": {\"lr\": 1e-3}}";
  ASSERT_EQ(load_fault(text), "");
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_TRUE(load_fault(text.substr(0, length)).starts_with("a.json:")) << length;
  }
}

TEST(Load, OverridesWinAndTheLastOneWins) {
  const LoadedConfig loaded = parse("{\"optim\": {\"lr\": 1}, \"data\": {\"train\": \"a\"}}",
                                    {"optim.lr=3e-4", "data.train=foo=1.csv", "run.name=2024", "run.dir=\"x y\"",
                                     "model.no_ACT_continue=true", "train.steps=1e5", "train.steps=2000000"});
  EXPECT_EQ(loaded.config.optim.lr, 3e-4);
  EXPECT_EQ(loaded.config.data.train, "foo=1.csv");
  EXPECT_EQ(loaded.config.run.name, "2024");
  EXPECT_EQ(loaded.config.run.dir, "x y");
  EXPECT_TRUE(loaded.config.model.no_ACT_continue);
  EXPECT_EQ(loaded.config.train.steps, 2000000);
  EXPECT_EQ(loaded.origin("train.steps").argument, "train.steps=2000000");
  EXPECT_EQ(loaded.origin("optim.lr").text(), "command line");
  EXPECT_EQ(parse("{\"data\": {\"test\": \"x\"}}", {"data.test="}).config.data.test, "");
}

TEST(Load, BadOverridesNameTheArgument) {
  EXPECT_EQ(load_fault("{}", {"optim.lr"}),
            "command line argument 'optim.lr' is not of the form key=value, e.g. optim.lr=3e-4");
  EXPECT_EQ(load_fault("{}", {"=3"}), "command line argument '=3' is not of the form key=value, e.g. optim.lr=3e-4");
  EXPECT_EQ(load_fault("{}", {"configs/a.json"}),
            "command line argument 'configs/a.json' is not of the form key=value, "
            "e.g. optim.lr=3e-4; a file is given with --config");
  EXPECT_EQ(load_fault("{}", {"optim.lr=fast"}),
            "command line argument 'optim.lr=fast': optim.lr = \"fast\" must be a "
            "number, at least 0, at most 1000");
  EXPECT_EQ(load_fault("{}", {"optim.lr="}),
            "command line argument 'optim.lr=': optim.lr = \"\" must be a number, at least 0, at most 1000");
  EXPECT_EQ(load_fault("{}", {"model.mlp_t=yes"}),
            "command line argument 'model.mlp_t=yes': model.mlp_t = \"yes\" must be true or false");
  EXPECT_EQ(load_fault("{}", {"model={\"arch\":\"trm\"}"}),
            "command line argument 'model={\"arch\":\"trm\"}': 'model' is a section; give one of its keys, e.g. "
            "model.arch=VALUE");
}

// A shell leaves the tilde of key=~/x alone.
TEST(Load, LeadingTildesOfPaths) {
  const char* const home = std::getenv("HOME");
  const std::string old = home == nullptr ? "" : home;
  setenv("HOME", "/home/me", 1);
  size_t paths = 0;
  for (const Field& field : fields()) {
    if (!std::holds_alternative<PathText>(field.rule)) continue;
    ++paths;
    SCOPED_TRACE(field.key);
    // No task lets all keys be set, but the tilde is looked at first.
    std::string got;
    try {
      const LoadedConfig loaded = load_config({}, {field.key + "=~/a/~b"});
      got = std::get<std::string>(field.get(loaded.config));
    } catch (const Error& error) {
      got = std::string(error.what()).find("tilde") == std::string::npos ? "/home/me/a/~b" : error.what();
    }
    EXPECT_EQ(got, "/home/me/a/~b");
    for (const std::string wrong : {"~", "~you/a", "~a"}) {
      test::expect_error(ExitCode::usage, {"command line argument", field.key, "'" + wrong + "' begins with a tilde"},
                         [&] { load_config({}, {field.key + "=" + wrong}); });
    }
  }
  EXPECT_GE(paths, 9u);
  EXPECT_EQ(load_config({}, {"run.dir=~/runs"}).config.run.dir, "/home/me/runs");
  EXPECT_EQ(load_config({}, {"run.dir=./~x"}).config.run.dir, "./~x");
  // A list has several; of another task the whole text is one path.
  EXPECT_EQ(
      load_config({}, {"task=language", "data.encoder_len=8", "data.train=~/a*3, ~/b,c", "data.test=old:~/a,new:b"})
          .config.data.train,
      "/home/me/a*3, /home/me/b,c");
  EXPECT_EQ(load_config({}, {"task=language", "data.encoder_len=8", "data.train=a", "data.test=old:~/a,new:b"})
                .config.data.test,
            "old:/home/me/a,new:b");
  EXPECT_EQ(load_config({}, {"data.train=a,~/b"}).config.data.train, "a,~/b");
  test::expect_error(ExitCode::usage, {"run.name", "tilde"}, [] { load_config({}, {"run.name=~"}); });
  unsetenv("HOME");
  test::expect_error(ExitCode::usage, {"run.dir", "HOME"}, [] { load_config({}, {"run.dir=~/runs"}); });
  if (home != nullptr) setenv("HOME", old.c_str(), 1);
}

// A text key that names a file or a folder must say so, to get its home folder.
TEST(Load, KeysThatNameFilesArePaths) {
  for (const Field& field : fields()) {
    if (!std::holds_alternative<AnyText>(field.rule)) continue;
    const bool sounds = field.help.find("folder of") != std::string::npos ||
                        field.help.find("file of") != std::string::npos ||
                        field.help.find("folder with") != std::string::npos;
    EXPECT_FALSE(sounds) << field.key << ": " << field.help;
  }
}

TEST(Load, NamesOfOlderSystems) {
  const LoadedConfig loaded = parse("{\"train\": {\"mixed_precision\": \"none\", \"enable_tf32\": false}}");
  EXPECT_EQ(loaded.config.precision.compute, ComputePrecision::fp32);
  EXPECT_EQ(loaded.origin("precision.compute").text(), "a.json:1");
  EXPECT_EQ(parse("{}", {"train.mixed_precision=bf16"}).config.precision.compute, ComputePrecision::bf16);
  EXPECT_EQ(parse("{}", {"train.mixed_precision=fp16"}).config.precision.compute, ComputePrecision::fp16);
  const LoadedConfig fp8 = parse(R"({"train": {"mixed_precision": "fp8",
    "fp8": {"warmup_steps": 7, "format": "e4m3",
            "recipe": {"margin": 1, "interval": 1, "amax_history_len": 32, "amax_compute_algo": "max"}}}})");
  EXPECT_EQ(fp8.config.precision.compute, ComputePrecision::bf16);
  EXPECT_EQ(fp8.config.precision.recursions, RecursionPrecision::fp8);
  EXPECT_EQ(fp8.config.precision.fp8_warmup_steps, 7);
  EXPECT_EQ(fp8.config.precision.fp8_margin, 1);
  EXPECT_EQ(fp8.config.precision.fp8_amax_history, 32);
  EXPECT_EQ(fp8.origin("precision.fp8_margin").text(), "a.json:3");

  // For language models the same names mean their blocks, in any order.
  const LoadedConfig blocks = parse(R"({"train": {"mixed_precision": "fp8", "fp8": {"format": "hybrid"}},
    "task": "language", "lm": {"arch": "decoder"}})");
  EXPECT_EQ(blocks.config.precision.blocks, BlockPrecision::fp8);
  EXPECT_EQ(blocks.config.precision.recursions, RecursionPrecision::same);
  EXPECT_EQ(blocks.config.precision.compute, ComputePrecision::bf16);
  EXPECT_EQ(blocks.config.precision.fp8_gradients, Fp8Gradients::e5m2);
  EXPECT_EQ(blocks.origin("precision.blocks").text(), "a.json:1");
  const std::string language = R"({"train": {"mixed_precision": "fp8", "fp8": {"format": "e4m3"}},
    "task": "language", "lm": {"arch": "decoder"}})";
  EXPECT_EQ(parse(language).config.precision.fp8_gradients, Fp8Gradients::e4m3);
  EXPECT_EQ(parse(language, {"precision.blocks=same"}).config.precision.blocks, BlockPrecision::same);
  EXPECT_EQ(parse(language, {"precision.fp8_gradients=e5m2"}).config.precision.fp8_gradients, Fp8Gradients::e5m2);
  EXPECT_EQ(parse(language, {"train.mixed_precision=bf16"}).config.precision.blocks, BlockPrecision::same);
  const std::vector<std::string> causal{"task=polychromic",           "hf.model=m",
                                        "polychromic.objective=none", "lora.r=0",
                                        "train.mixed_precision=fp8",  "train.fp8.warmup_steps=3"};
  const Config whole = parse("{}", causal).config;
  EXPECT_EQ(whole.precision.blocks, BlockPrecision::fp8);
  EXPECT_EQ(whole.precision.recursions, RecursionPrecision::same);
  EXPECT_EQ(whole.precision.fp8_warmup_steps, 3);
  EXPECT_NE(load_fault("{}", {"train.fp8.format=hybrid"}).find("use e4m3"), std::string::npos);

  EXPECT_FALSE(parse("{\"train\": {\"use_cuda_graphs\": false}}").config.runtime.cuda_graphs);
  EXPECT_FALSE(parse("{}", {"use_cudagraphs=false"}).config.runtime.cuda_graphs);
  EXPECT_FALSE(parse("{}", {"static_shapes=false"}).config.runtime.cuda_graphs);
  EXPECT_TRUE(parse("{}", {"static_shapes=true"}).config.runtime.cuda_graphs);
  EXPECT_EQ(parse("{\"warmup_steps\": 10}").config.runtime.graph_warmup_steps, 10);
  EXPECT_EQ(parse("{}", {"capture_batch_size=768"}).config.train.global_batch_size, 768);
  EXPECT_TRUE(parse("{}", {"halt.q_continue=false"}).config.model.no_ACT_continue);
  EXPECT_FALSE(parse("{\"halt\": {\"q_continue\": true}}").config.model.no_ACT_continue);

  EXPECT_EQ(load_fault("{\"train\": {\"enable_tf32\": true},\n\"runtime\": {\"tf32\": true}}"),
            "a.json:2: 'runtime.tf32' = true and 'train.enable_tf32' are two names of one value; keep one of them");
  EXPECT_EQ(load_fault("{\"train\": {\"mixed_precision\": \"none\"},\n\"precision\": {\"compute\": \"bf16\"}}"),
            "a.json:2: 'precision.compute' = \"bf16\" and 'train.mixed_precision' are two names of one value; keep one "
            "of them");
  EXPECT_NE(load_fault("{}", {"train.mixed_precision=fp9"})
                .find("train.mixed_precision (today precision.compute) = \"fp9\" is not one of"),
            std::string::npos);
  EXPECT_NE(load_fault("{}", {"halt.q_continue=3"}).find("must be true or false"), std::string::npos);
  EXPECT_NE(load_fault("{}", {"train.fp8.format=e5m2"}).find("use e4m3"), std::string::npos);
  EXPECT_NE(load_fault("{}", {"capture_batch_size=8"}).find("capture_batch_size = 8 is not the batch of the run"),
            std::string::npos);
  EXPECT_NE(load_fault("{\"train\": {\"fp8\": {\"recipe\": {\"marign\": 1}}}}").find("unknown key"), std::string::npos);
}

// What older files call fp32 had TF32 products unless they said otherwise; today's fp32 is exact.
TEST(Load, Tf32OfOlderFiles) {
  const auto compute = [](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return std::string(name_of(parse(text, overrides).config.precision.compute));
  };
  EXPECT_EQ(compute(R"({"runtime": {"precision": "fp32", "tf32": true}})"), "tf32");
  EXPECT_EQ(compute(R"({"runtime": {"tf32": true, "precision": "fp32"}})"), "tf32");
  EXPECT_EQ(compute(R"({"runtime": {"precision": "fp32", "tf32": false}})"), "fp32");
  EXPECT_EQ(compute(R"({"runtime": {"precision": "fp32"}})"), "fp32");
  EXPECT_EQ(compute(R"({"runtime": {"precision": "auto", "tf32": true}})"), "auto");
  EXPECT_EQ(compute(R"({"runtime": {"precision": "bf16", "tf32": false}})"), "bf16");
  EXPECT_EQ(compute("{}", {"train.enable_tf32=true", "train.mixed_precision=none"}), "tf32");
  EXPECT_EQ(compute("{}", {"precision.compute=tf32", "train.enable_tf32=false"}), "fp32");
  // An override in today's words means what it says.
  EXPECT_EQ(compute(R"({"runtime": {"precision": "fp32", "tf32": true}})", {"precision.compute=fp32"}), "fp32");
  EXPECT_EQ(compute(R"({"runtime": {"precision": "fp32", "tf32": true}})", {"runtime.device=cpu"}), "tf32");
  EXPECT_NE(load_fault("{}", {"train.enable_tf32=1"}).find("must be true or false"), std::string::npos);
}

TEST(Load, GroupsWithinASection) {
  EXPECT_TRUE(parse(R"({"profiling": {"nvtx": {"enabled": true}}})").config.profiling.nvtx_enabled);
  EXPECT_TRUE(parse(R"({"profiling": {"nvtx.enabled": true}})").config.profiling.nvtx_enabled);
  EXPECT_TRUE(parse(R"({"profiling.nvtx.enabled": true})").config.profiling.nvtx_enabled);
  EXPECT_TRUE(parse("{}", {"profiling.nvtx.enabled=true"}).config.profiling.nvtx_enabled);
  EXPECT_NE(parse("{}").to_json().find("\"nvtx\": {"), std::string::npos);
  EXPECT_EQ(load_fault("{\"profiling\": {\n\"nvtx\": {\"enabeld\": true}}}"),
            "a.json:2: unknown key 'profiling.nvtx.enabeld' = true; did you mean 'profiling.nvtx.enabled'?");
  EXPECT_EQ(load_fault("{\"profiling\": {\"nvtx\": true}}"),
            "a.json:1: 'profiling.nvtx' = true holds several keys; give one of them, e.g. profiling.nvtx.enabled");
}

TEST(Load, TraceStepsAloneSwitchTheTraceOn) {
  EXPECT_FALSE(parse("{}").config.profiling.trace);
  EXPECT_TRUE(parse("{\"profiling\": {\"trace_steps\": 3}}").config.profiling.trace);
  EXPECT_FALSE(parse("{\"profiling\": {\"trace_steps\": 0}}").config.profiling.trace);
  EXPECT_FALSE(parse("{\"profiling\": {\"trace_steps\": 3, \"trace\": false}}").config.profiling.trace);
  EXPECT_TRUE(parse("{\"profiling\": {\"trace\": false}}", {"profiling.trace_steps=4"}).config.profiling.trace);
  EXPECT_FALSE(parse("{}", {"profiling.trace_steps=4", "profiling.trace=false"}).config.profiling.trace);
  EXPECT_FALSE(parse("{}", {"profiling.trace=false", "profiling.trace_steps=4"}).config.profiling.trace);
  EXPECT_FALSE(parse("{}", {"profiling.trace_steps=4", "profiling.trace_steps=0"}).config.profiling.trace);
}

// The configuration that today's checkpoints hold, as version 0.1 wrote it.
TEST(Load, ConfigurationsOfOlderCheckpoints) {
  const LoadedConfig old = parse(R"({"task": "puzzle", "runtime": {"device": "auto", "precision": "auto", "threads": 0,
    "deterministic": false, "tf32": true}, "ops": {"backend": "fused"},
    "profiling": {"trace_steps": 0, "trace_after": 20}})");
  EXPECT_EQ(differing_keys(old.config, Config{}), std::vector<std::string>{"profiling.trace_steps"});
}

TEST(Load, DefaultsFollowTheArchitecture) {
  const LoadedConfig trm = parse("{\"model\": {\"arch\": \"trm\"}}");
  EXPECT_EQ(trm.config.model.H_layers, 0);
  EXPECT_EQ(trm.config.model.H_cycles, ModelConfig{}.H_cycles);
  EXPECT_EQ(trm.origin("model.H_layers").text(), "default for model.arch trm");
  const LoadedConfig plain = parse("{}", {"model.arch=transformer"});
  EXPECT_EQ(plain.config.model.H_layers, 0);
  EXPECT_EQ(plain.config.model.H_cycles, 1);
  EXPECT_EQ(plain.config.model.L_cycles, 1);
  // The dump is resolved: it loads to the same although H_layers is given there.
  EXPECT_TRUE(differing_keys(parse(trm.to_json()).config, trm.config).empty());
}

// Fine-tuning has an optimizer and a batch of its own, as far as nothing else is said.
TEST(Load, DefaultsFollowTheTask) {
  const std::string base = R"({"task": "polychromic", "hf": {"model": "m"}, "polychromic": {"objective": "none"}})";
  const LoadedConfig adapter = parse(base);
  EXPECT_EQ(adapter.config.optim.name, OptimizerKind::adamw);
  EXPECT_EQ(adapter.config.optim.lr, 2e-4);
  EXPECT_EQ(adapter.config.optim.grad_clip, 1);
  EXPECT_EQ(adapter.config.optim.warmup_steps, 20);
  EXPECT_EQ(adapter.config.train.global_batch_size, 16);
  EXPECT_EQ(adapter.origin("optim.lr").text(), "default for task polychromic");
  const LoadedConfig whole = parse(base, {"lora.r=0", "train.steps=30", "train.global_batch_size=768"});
  EXPECT_EQ(whole.config.optim.lr, 2e-5);
  EXPECT_EQ(whole.config.optim.warmup_steps, 3);
  EXPECT_EQ(whole.config.train.global_batch_size, 768) << "what is said holds, a puzzle's default, too";
  EXPECT_EQ(parse(base, {"train.steps=3"}).config.optim.warmup_steps, 0);
  EXPECT_EQ(parse(base, {"train.steps=10000"}).config.optim.warmup_steps, 20);
  EXPECT_TRUE(differing_keys(parse(whole.to_json()).config, whole.config).empty());
  EXPECT_EQ(parse("{}").config.optim.name, OptimConfig{}.name);
  EXPECT_EQ(parse(R"({"task": "language", "data": {"encoder_len": 16}})").config.optim.lr, OptimConfig{}.lr);
}

// Whether the field, at some value that `base` does not have, goes through a dump and back.
bool goes_through_a_dump(const Field& field, const std::string& base_json) {
  const LoadedConfig base = parse(base_json);
  const Value value = field.get(base.config);
  std::vector<Value> others;
  if (std::holds_alternative<bool>(value)) others = {!std::get<bool>(value)};
  if (std::holds_alternative<int64_t>(value)) others = {std::get<int64_t>(value) + 1};
  if (std::holds_alternative<double>(value)) others = {std::get<double>(value) / 3 + 0.1, 0.7};
  if (std::holds_alternative<std::string>(value)) others = {std::string("x \"y\" \\ \t \u00e9 \xF0\x9F\x98\x80")};
  if (const auto* one = std::get_if<OneOf>(&field.rule)) others.assign(one->values.begin(), one->values.end());
  for (const Value& other : others) {
    if (other == value || !broken_rule(field.rule, other).empty()) continue;
    LoadedConfig single = parse(base_json);
    field.set(single.config, other);
    EXPECT_EQ(differing_keys(single.config, base.config), std::vector<std::string>{field.key});
    const std::string json = single.to_json();
    try {
      const LoadedConfig again = parse(json);
      EXPECT_TRUE(differing_keys(again.config, single.config).empty()) << field.key;
      EXPECT_EQ(again.to_json(), json);
      for (const std::string& key : keys()) EXPECT_EQ(again.origin(key).kind, Origin::Kind::file) << key;
      return true;
    } catch (const Error&) {  // contradicts the defaults of other fields, e.g. H_layers with arch trm
    }
  }
  return false;
}

TEST(Load, DumpLoadsToTheSameConfiguration) {
  // Every field at a value that is not its default, as far as the rules let it, of one task or another.
  constexpr const char* kPolychromic =
      R"({"task": "polychromic", "hf": {"model": "m"}, "chat": {"template": "custom", "value_field": "likes"},
          "polychromic": {"diversity_encoder_model": "e"}, "grpo": {"start_step": 5, "rewards": "answer"}})";
  for (const Field& field : fields()) {
    const bool changed = goes_through_a_dump(field, "{}") ||
                         goes_through_a_dump(field, R"({"task": "language", "data": {"encoder_len": 16}})") ||
                         goes_through_a_dump(field, kPolychromic) ||
                         goes_through_a_dump(field, R"({"task": "contrastive"})");
    // These need a second field changed with them; consistency_test.cpp and language_test.cpp have their cases.
    constexpr std::array kNeedAnother = {"task",
                                         "data.box_rows",
                                         "data.box_cols",
                                         "model.num_heads",
                                         "model.hidden_size",
                                         "model.arch",
                                         "model.mlp_t",
                                         "model.gradient_cycles",
                                         "model.loss_every_cycle",
                                         "train.eval_every",
                                         "train.micro_batch_size",
                                         "train.steps",
                                         "train.early_stop_evals",
                                         "train.early_stop_delta",
                                         "lm.num_heads",
                                         "lm.hidden_size",
                                         "lm.head_dim",
                                         "chat.learn",
                                         "grpo.delta",
                                         "parallel.replicas",
                                         "contrastive.mode",
                                         "contrastive.nudge_every_windows"};
    const bool needs_another =
        std::any_of(kNeedAnother.begin(), kNeedAnother.end(), [&](const char* key) { return field.key == key; }) ||
        field.key.starts_with("optim.wsd_") || field.key.starts_with("moe.");
    EXPECT_TRUE(changed || needs_another) << field.key;
  }
}

std::string write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  return path.string();
}

TEST(Files, LaterFilesWinAndOriginsNameTheirFile) {
  const test::TempDir dir;
  const std::string a = write(dir / "a.json", "{\"optim\": {\"lr\": 1, \"ema\": 0.5}}");
  const std::string b = write(dir / "b.json", "{\"optim\":\n{\"lr\": 2}}");
  const LoadedConfig loaded = load_config({a, b}, {"run.seed=4"});
  EXPECT_EQ(loaded.config.optim.lr, 2);
  EXPECT_EQ(loaded.config.optim.ema, 0.5);
  EXPECT_EQ(loaded.config.run.seed, 4);
  EXPECT_EQ(loaded.origin("optim.lr").text(), b + ":2");
  EXPECT_EQ(loaded.origin("optim.ema").text(), a + ":1");
}

TEST(Files, MissingFile) {
  const test::TempDir dir;
  test::expect_error(ExitCode::usage, {"none.json", "--config"},
                     [&] { load_config({(dir / "none.json").string()}, {}); });
  test::expect_error(ExitCode::usage, {dir.path().string(), "--config"},
                     [&] { load_config({dir.path().string()}, {}); });
}

TEST(Load, ForeignTextCannotSteerTheTerminal) {
  const std::string sentence = load_fault("{\"model\": {\"arch\": \"\\u001b[31m\\u007f a\\\\b\"}}");
  EXPECT_EQ(sentence.find('\x1b'), std::string::npos);
  EXPECT_EQ(sentence.find('\x7f'), std::string::npos);
  EXPECT_NE(sentence.find("a\\\\b"), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("a\\\\\\"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace hrm::config
