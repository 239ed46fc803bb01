// Values that contradict each other.
#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/config/load.h"

namespace hrm::config {
namespace {

// The sentence of the Error(usage) that these overrides of the defaults cause; empty when they are fine.
std::string consistency_fault(const std::vector<std::string>& overrides) {
  try {
    config_from_json_text("{}", "a.json", overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

std::string training_fault(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const LoadedConfig loaded = config_from_json_text(text, "a.json", overrides);
  try {
    validate(loaded);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

TEST(Consistency, SentencesNameKeysValuesOriginsAndTheWayOut) {
  EXPECT_EQ(consistency_fault({"train.global_batch_size=384", "train.micro_batch_size=100"}),
            "train.micro_batch_size = 100 (command line) does not divide train.global_batch_size = 384 (command line); "
            "use 96 or 128");
  EXPECT_EQ(consistency_fault({"train.micro_batch_size=1000"}),
            "train.micro_batch_size = 1000 (command line) does not divide train.global_batch_size = 768 (default); "
            "use at most 768");
  try {
    config_from_json_text("{\n\"model\": {\"num_heads\":\n 7}}", "a.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "model.num_heads = 7 (a.json:2) does not divide model.hidden_size = 512 (default); use 4 or 8 "
                 "heads");
  }
}

TEST(Consistency, TheShippedTestPuzzlesBelongToTheShippedTraining) {
  const auto test_of = [](const std::string& file, const std::vector<std::string>& overrides) {
    return config_from_json_text(file, "a.json", overrides).config.data.test;
  };
  const std::string shipped = DataConfig().test;
  EXPECT_EQ(test_of("{}", {}), shipped);
  EXPECT_EQ(test_of("{}", {"data.train=d"}), "");
  EXPECT_EQ(test_of(R"({"data": {"train": "d"}})", {}), "");
  EXPECT_EQ(test_of(R"({"data": {"train": "d", "test": "t"}})", {}), "t");
  EXPECT_EQ(test_of("{}", {"data.train=d", "data.test=t"}), "t");
  EXPECT_EQ(
      consistency_fault({"data.train=d", "train.eval_every=5"}),
      "train.eval_every = 5 (command line) asks for evaluations, but data.test = \"\" (default where data.train is "
      "set); set data.test to a dataset directory or a CSV file, or train.eval_every to 0");
}

TEST(Consistency, RewardsOfDiversityNeedTheirEncoder) {
  std::vector<std::string> run{"task=polychromic", "hf.model=m", "polychromic.objective=none", "grpo.start_step=1"};
  const auto fault_of = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = run;
    all.insert(all.end(), more);
    return consistency_fault(all);
  };
  for (const char* rewards : {"grpo.rewards=length,diversity", "grpo.rewards=diversity*0.5"}) {
    const std::string fault = fault_of({rewards});
    EXPECT_EQ(fault.find("grpo.rewards = "), 0u) << fault;
    EXPECT_NE(fault.find("polychromic.diversity_encoder_model = \"\""), std::string::npos) << fault;
    EXPECT_EQ(fault_of({rewards, "polychromic.diversity_metric=bleu"}), "");
    EXPECT_EQ(fault_of({rewards, "polychromic.diversity_encoder_model=e"}), "");
  }
  EXPECT_EQ(fault_of({"grpo.rewards=length", "grpo.diversity_weight=0.1"}).find("grpo.diversity_weight = 0.1"), 0u);
  EXPECT_EQ(fault_of({"grpo.rewards=length"}), "");
}

struct Case {
  std::vector<std::string> bad;
  std::string mentions;            // the key that the sentence must start with
  std::vector<std::string> cured;  // with these appended it must load
};

TEST(Consistency, PolychromicContradictionsAreRefusedAndTheirAdviceWorks) {
  const std::vector<std::string> base{"task=polychromic", "hf.model=m", "polychromic.diversity_encoder_model=e"};
  const std::vector<Case> cases = {
      {{"hf.model="}, "hf.model = ", {"hf.model=m"}},
      {{"polychromic.diversity_encoder_model="},
       "polychromic.diversity_metric = ",
       {"polychromic.diversity_metric=bleu"}},
      {{"polychromic.diversity_encoder_model="}, "polychromic.diversity_metric = ", {"polychromic.objective=none"}},
      {{"lora.r=0", "lora.adapter=a"}, "lora.adapter = ", {"lora.r=8"}},
      {{"chat.prompt_template={prompt}"}, "chat.prompt_template = ", {"chat.template=custom"}},
      {{"chat.learn=turns"}, "chat.learn = ", {"polychromic.objective=none"}},
      {{"chat.val_share=0.5", "chat.test_share=0.5"}, "chat.val_share = 0.5", {"chat.test_share=0.25"}},
      {{"chat.stratify=true"}, "chat.stratify = true", {"chat.value_field=likes"}},
      {{"polychromic.objective=marginal", "polychromic.subset_size=3"},
       "polychromic.subset_size = 3",
       {"polychromic.subset_size=2"}},
      {{"polychromic.objective=marginal", "polychromic.diversity_metric=bleu"},
       "polychromic.objective = \"marginal\"",
       {"polychromic.diversity_metric=semantic"}},
      {{"polychromic.objective=marginal", "polychromic.n_generations=6", "polychromic.subset_size=4",
        "polychromic.performance_mode=safe"},
       "polychromic.subset_size = 4",
       {"polychromic.subset_size=2"}},
      {{"grpo.start_step=1", "grpo.rewards=length,heuristic*2", "polychromic.diversity_metric=bleu"},
       "grpo.rewards = ",
       {"polychromic.diversity_metric=semantic"}},
      {{"grpo.beta=0.1"}, "grpo.beta = 0.1", {"grpo.start_step=1", "grpo.rewards=answer"}},
      {{"grpo.start_step=1"}, "grpo.start_step = 1", {"grpo.rewards=length"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.beta=0.1", "lora.r=0"}, "grpo.beta = 0.1", {"lora.r=16"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.beta=0.1", "lora.modules_to_save=lm_head"},
       "grpo.beta = 0.1",
       {"lora.modules_to_save="}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.delta=1.1"}, "grpo.delta = 1.1", {"grpo.delta=4"}},
      {{"parallel.zero=2"}, "parallel.zero = 2", {"parallel.zero=1"}},
      {{"parallel.zero=3"}, "parallel.zero = 3 (command line) gathers each block", {"parallel.zero=1"}},
      {{"precision.blocks=fp8"}, "precision.blocks = \"fp8\"", {"precision.blocks=same", "hf.quantize=fp8"}},
      {{"precision.blocks=fp8"}, "precision.blocks = \"fp8\"", {"lora.r=0"}},
      {{"precision.blocks=fp8", "lora.r=0", "precision.compute=fp16"},
       "precision.blocks = ",
       {"precision.compute=bf16"}},
      {{"precision.recursions=fp8"},
       "precision.recursions = \"fp8\" (command line) belongs to task puzzle",
       {"precision.recursions=same"}},
      {{"lm.layers=3"}, "lm.layers = 3", {"lm.layers=6"}},
      {{"model.num_heads=4"}, "model.num_heads = 4", {"model.num_heads=8"}},
      {{"train.early_stop_evals=2"},
       "train.early_stop_evals = 2 (command line) counts evaluations",
       {"train.eval_every=5"}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> overrides = base;
    overrides.insert(overrides.end(), c.bad.begin(), c.bad.end());
    const std::string sentence = consistency_fault(overrides);
    EXPECT_EQ(sentence.rfind(c.mentions, 0), 0u) << c.mentions << " is not at the start of: " << sentence;
    overrides.insert(overrides.end(), c.cured.begin(), c.cured.end());
    EXPECT_EQ(consistency_fault(overrides), "");
  }
  EXPECT_NE(consistency_fault({"hf.model=m"}).find("belongs to task polychromic"), std::string::npos);
  EXPECT_NE(consistency_fault({"objective.chunk=7"}).find("belongs to task language and polychromic"),
            std::string::npos);
}

TEST(Consistency, EachContradictionIsRefusedAndItsAdviceWorks) {
  const std::vector<Case> cases = {
      {{"model.hidden_size=24", "model.num_heads=8"}, "model.pos_encodings = ", {"model.num_heads=6"}},
      {{"model.hidden_size=24", "model.num_heads=8"}, "model.pos_encodings = ", {"model.pos_encodings=learned"}},
      {{"model.H_layers=0"}, "model.H_layers = 0", {"model.arch=trm"}},
      {{"model.arch=trm", "model.H_layers=4"}, "model.H_layers = 4", {"model.H_layers=0"}},
      {{"model.arch=transformer", "model.H_layers=1"}, "model.H_layers = 1", {"model.H_layers=0"}},
      {{"model.arch=transformer", "model.H_cycles=2"}, "model.H_cycles = 2", {"model.H_cycles=1"}},
      {{"model.arch=transformer", "model.L_cycles=2"}, "model.L_cycles = 2", {"model.L_cycles=1"}},
      {{"model.arch=transformer", "model.mlp_t=true", "model.pos_encodings=none"},
       "model.mlp_t = true",
       {"model.arch=trm"}},
      {{"model.arch=urm", "model.H_layers=1"}, "model.H_layers = 1", {"model.H_layers=0"}},
      {{"model.arch=urm", "model.mlp_t=true", "model.pos_encodings=none"}, "model.mlp_t = true", {"model.arch=trm"}},
      {{"model.arch=trm", "model.mlp_t=true"},
       "model.pos_encodings = \"rope\" (default)",
       {"model.pos_encodings=none"}},
      {{"model.puzzle_emb_ndim=0", "model.puzzle_emb_len=1"}, "model.puzzle_emb_len = 1", {"model.puzzle_emb_len=0"}},
      {{"model.puzzle_emb_ndim=1025", "model.puzzle_emb_len=2"},
       "model.puzzle_emb_len = 2",
       {"model.puzzle_emb_len=3"}},
      {{"data.box_rows=2"}, "data.box_rows = 2", {"data.box_cols=3"}},
      {{"data.box_cols=2"}, "data.box_rows = 0", {"data.box_cols=0"}},
      {{"data.kind=maze", "data.augmentation=sudoku"}, "data.augmentation = ", {"data.augmentation=dihedral"}},
      {{"data.kind=maze", "data.box_rows=3", "data.box_cols=3"}, "data.box_rows = 3", {"data.kind=sudoku"}},
      {{"data.augmentation=dihedral", "data.box_rows=2", "data.box_cols=3"},
       "data.augmentation = ",
       {"data.augmentation=sudoku"}},
      {{"train.steps=100"}, "optim.warmup_steps = 2000 (default)", {"optim.warmup_steps=10"}},
      {{"train.eval_every=100", "data.test="}, "train.eval_every = 100", {"data.test=x.csv"}},
      {{"optim.wsd_stable_steps=5"}, "optim.wsd_stable_steps = 5 (command line)", {"optim.schedule=wsd"}},
      {{"optim.wsd_decay_steps=5"}, "optim.wsd_decay_steps = 5 (command line)", {"optim.wsd_decay_steps=-1"}},
      {{"optim.wsd_shape=linear"}, "optim.wsd_shape = \"linear\"", {"optim.schedule=wsd"}},
      {{"optim.schedule=wsd", "train.steps=3000", "optim.wsd_stable_steps=1001"},
       "optim.wsd_stable_steps = 1001 (command line) is more than the 1000 steps",
       {"optim.wsd_stable_steps=1000"}},
      {{"optim.schedule=wsd", "train.steps=3000", "optim.wsd_stable_steps=300", "optim.wsd_decay_steps=701"},
       "optim.wsd_decay_steps = 701 (command line) is more than the 700 steps",
       {"optim.wsd_decay_steps=700"}},
      {{"optim.name=muon", "optim.lr=0"}, "optim.lr = 0.0 (command line)", {"optim.lr=0.02"}},
      {{"optim.name=muon", "parallel.zero=1"}, "optim.name = \"muon\"", {"parallel.zero=0"}},
      {{"optim.name=muon", "parallel.zero=2"}, "optim.name = \"muon\"", {"optim.name=lion"}},
      {{"parallel.zero=3"}, "parallel.zero = 3 (command line) would gather each block again", {"parallel.zero=2"}},
      {{"parallel.replicas=2"}, "parallel.replicas = 2 (command line) makes groups of ranks", {"parallel.zero=2"}},
      {{"eval.weights=ema"}, "eval.weights = \"ema\"", {"optim.ema=0.999"}},
      {{"eval.rollouts=4", "eval.early_halt=true", "eval.batch_size=3"}, "eval.batch_size = 3", {"eval.batch_size=4"}},
      {{"eval.rollouts=4", "eval.early_halt=true", "eval.agreeing_rollouts=5"},
       "eval.agreeing_rollouts = 5",
       {"eval.agreeing_rollouts=4"}},
      {{"eval.rollouts=4", "model.arch=transformer", "model.H_layers=0", "model.H_cycles=1", "model.L_cycles=1"},
       "eval.noisy_state = \"z_L\"",
       {"eval.noisy_state=z_H"}},
      {{"eval.rollouts=4", "model.arch=urm"}, "eval.noisy_state = \"z_L\"", {"eval.noisy_state=z_H"}},
      {{"eval.rollouts=4", "eval.noise=0"}, "eval.noise = 0.0", {"model.start_std=1"}},
      {{"model.path_noise=0.1", "model.H_cycles=100", "model.L_cycles=99"},
       "model.path_noise = 0.1",
       {"model.H_cycles=9"}},
      {{"model.damping=0.1", "model.arch=transformer", "model.H_layers=0", "model.H_cycles=1", "model.L_cycles=1"},
       "model.damping = 0.1",
       {"model.damping=0"}},
      {{"model.depth_curriculum=true", "model.arch=transformer", "model.H_layers=0", "model.H_cycles=1",
        "model.L_cycles=1"},
       "model.depth_curriculum = true",
       {"model.depth_curriculum=false"}},
      {{"model.gradient_cycles=2"}, "model.gradient_cycles = 2", {"model.arch=trm", "model.H_layers=0"}},
      {{"model.arch=trm", "model.H_layers=0", "model.gradient_cycles=3"},
       "model.gradient_cycles = 3",
       {"model.H_cycles=3"}},
      {{"model.loss_every_cycle=true"},
       "model.loss_every_cycle = true",
       {"model.arch=urm", "model.H_layers=0", "model.gradient_cycles=2"}},
      {{"model.recompute=true", "model.arch=transformer", "model.H_layers=0", "model.H_cycles=1", "model.L_cycles=1"},
       "model.recompute = true",
       {"model.recompute=false"}},
      {{"model.gradient_cycles=2", "model.arch=transformer", "model.H_layers=0", "model.H_cycles=1",
        "model.L_cycles=1"},
       "model.gradient_cycles = 2",
       {"model.gradient_cycles=1"}},
      {{"precision.recursions=fp8", "model.arch=trm", "model.H_layers=0", "model.gradient_cycles=2"},
       "precision.recursions = ",
       {"model.H_cycles=3"}},
      {{"eval.weights=both"}, "eval.weights = \"both\"", {"eval.weights=raw"}},
      {{"precision.recursions=fp8", "precision.compute=fp32"}, "precision.recursions = ", {"precision.compute=bf16"}},
      {{"precision.recursions=fp8", "model.H_cycles=1", "model.L_cycles=1", "model.no_ACT_continue=true"},
       "precision.recursions = ",
       {"model.L_cycles=2"}},
      {{"precision.recursions=fp8", "model.arch=trm", "model.H_layers=0", "model.H_cycles=1"},
       "precision.recursions = ",
       {"model.H_cycles=2"}},
      {{"precision.recursions=fp8", "model.arch=urm"}, "precision.recursions = ", {"precision.recursions=same"}},
      {{"precision.recursions=fp8", "model.hidden_size=24", "model.num_heads=2"},
       "precision.recursions = ",
       {"precision.recursions=same"}},
      {{"runtime.deterministic=true", "runtime.sdpa=cudnn"}, "runtime.sdpa = ", {"runtime.sdpa=flash"}},
      {{"runtime.deterministic=true", "runtime.cudnn_benchmark=true"},
       "runtime.cudnn_benchmark = true",
       {"runtime.deterministic=false"}},
      {{"profiling.trace_steps=0", "profiling.trace=true"}, "profiling.trace = true", {"profiling.trace_steps=5"}},
      {{"profiling.trace=true", "profiling.trace_steps=0"}, "profiling.trace = true", {"profiling.trace_steps=5"}},
      {{"profiling.trace=true", "train.steps=20", "optim.warmup_steps=0"},
       "profiling.trace_after = 20",
       {"profiling.trace_after=19"}},
      {{"profiling.nsight_window=true", "train.steps=3", "optim.warmup_steps=0"},
       "profiling.trace_after = 20",
       {"profiling.trace_after=0"}},
      {{"run.name=a/b"}, "run.name = \"a/b\"", {"run.name=ab"}},
      {{"run.name=.."}, "run.name = \"..\"", {"run.name=..."}},
      {{"run.name="}, "run.name = \"\"", {"run.name=x"}},
      {{"run.dir="}, "run.dir = \"\"", {"run.dir=x"}},
  };
  for (const Case& c : cases) {
    const std::string sentence = consistency_fault(c.bad);
    EXPECT_TRUE(sentence.starts_with(c.mentions)) << c.bad.back() << ": '" << sentence << "'";
    std::vector<std::string> cured = c.bad;
    cured.insert(cured.end(), c.cured.begin(), c.cured.end());
    EXPECT_EQ(consistency_fault(cured), "") << c.bad.back();
  }
}

TEST(Consistency, WhatIsNoContradictionIsAllowed) {
  EXPECT_EQ(
      consistency_fault({"model.mlp_t=true", "model.arch=trm", "model.pos_encodings=learned", "model.num_heads=7"}),
      "");
  EXPECT_EQ(consistency_fault({"train.steps=2000"}), "");
  EXPECT_EQ(consistency_fault({"data.augmentation=dihedral", "data.box_rows=3", "data.box_cols=3"}), "");
  EXPECT_EQ(consistency_fault({"model.puzzle_emb_ndim=0"}), "");
  EXPECT_EQ(consistency_fault({"train.micro_batch_size=768"}), "");
  // No recursion, but the pass for the target of Q learning is not differentiated.
  EXPECT_EQ(consistency_fault({"precision.recursions=fp8", "model.H_cycles=1", "model.L_cycles=1"}), "");
}

// The sentence with which a training of task polychromic refuses these; empty when it begins.
std::string polychromic_fault(const std::vector<std::string>& overrides, const std::string& text = "{}") {
  std::vector<std::string> all{"task=polychromic", "hf.model=m", "data.train=d", "train.steps=100"};
  if (text.find("diversity_metric") == std::string::npos) all.emplace_back("polychromic.diversity_metric=bleu");
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    validate(config_from_json_text(text, "a.json", all));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

TEST(Validate, WhatWasAskedForAndHasNoEffectIsRefused) {
  const std::vector<Case> cases = {
      {{"lora.r=0", "lora.alpha=32"}, "lora.alpha = 32.0 (command line) has no effect, for lora.r = 0", {"lora.r=8"}},
      {{"hf.quantize=int8", "hf.fp8_products=false"},
       "hf.fp8_products = false (command line) has no effect, for hf.quantize = \"int8\"",
       {"hf.quantize=fp8"}},
      {{"hf.fp8_products=false"}, "hf.fp8_products = false", {"hf.quantize=fp8"}},
      {{"hf.quantize=fp8", "hf.fp8_products=false", "hf.fp8_transposed=true"},
       "hf.fp8_transposed = true (command line) has no effect",
       {"hf.fp8_products=true"}},
      {{"hf.fp8_transposed=true"}, "hf.fp8_transposed = true", {"hf.quantize=fp8"}},
      {{"lora.r=0", "lora.dropout=0.1"}, "lora.dropout = 0.1", {"lora.r=8"}},
      {{"lora.r=0", "lora.rslora=true"}, "lora.rslora = true", {"lora.rslora=false"}},
      {{"lora.r=0", "lora.targets=q_proj"}, "lora.targets = ", {"lora.r=8"}},
      {{"lora.r=0", "lora.dora=true"}, "lora.dora = true", {"lora.r=8"}},
      {{"lora.r=0", "lora.modules_to_save=lm_head"}, "lora.modules_to_save = ", {"lora.r=8"}},
      {{"chat.template=plain", "chat.thinking=on"}, "chat.thinking = ", {"chat.template=chatml"}},
      {{"chat.template=chatml", "chat.template_name=rag"}, "chat.template_name = ", {"chat.template=model"}},
      {{"chat.template=plain", "chat.date=2026-11-25"}, "chat.date = ", {"chat.template=model"}},
      {{"chat.template=model", "chat.bos=off"}, "chat.bos = ", {"chat.template=plain"}},
      {{"chat.value_field=likes"}, "chat.value_field = ", {"chat.stratify=true"}},
      {{"data.test=x.jsonl", "chat.val_share=0.2"}, "chat.val_share = 0.2", {"data.test="}},
      {{"polychromic.objective=none", "polychromic.diversity_weight=0.5"},
       "polychromic.diversity_weight = 0.5 (command line) has no effect, for polychromic.objective = \"none\"",
       {"polychromic.objective=score_function"}},
      {{"polychromic.objective=none", "polychromic.generation_batch=8"},
       "polychromic.generation_batch = 8",
       {"grpo.start_step=1", "grpo.rewards=length"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "polychromic.diversity_weight=0.5"},
       "polychromic.diversity_weight = 0.5",
       {"grpo.start_step=50"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "polychromic.objective=compat"},
       "polychromic.objective = ",
       {"polychromic.objective=none"}},
      {{"polychromic.objective=compat", "polychromic.length_norm=none"},
       "polychromic.length_norm = ",
       {"polychromic.objective=score_function"}},
      {{"polychromic.objective=compat", "polychromic.baseline=none"},
       "polychromic.baseline = ",
       {"polychromic.objective=score_function"}},
      {{"polychromic.subset_size=1"}, "polychromic.subset_size = 1", {"polychromic.subset_size=2"}},
      {{"polychromic.diversity_encoder_model=e"},
       "polychromic.diversity_encoder_model = ",
       {"polychromic.diversity_metric=semantic"}},
      {{"grpo.start_step=101", "grpo.rewards=length"}, "grpo.start_step = 101", {"grpo.start_step=100"}},
      {{"grpo.start_step=101", "grpo.rewards=length"}, "grpo.start_step = 101", {"train.steps=0", "train.epochs=1"}},
      {{"grpo.start_step=1", "grpo.rewards=format*2"}, "grpo.rewards = ", {"grpo.reward_pattern=a+"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.reward_pattern=a+"},
       "grpo.reward_pattern = ",
       {"grpo.rewards=length,format*0.5"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.reward_first_line=true"},
       "grpo.reward_first_line = true",
       {"grpo.rewards=answer"}},
      {{"grpo.start_step=1", "grpo.rewards=length", "grpo.reward_head=h"},
       "grpo.reward_head = ",
       {"grpo.reward_head="}},
      {{"train.keep_best=true"}, "train.keep_best = true", {"train.eval_every=10"}},
  };
  for (const Case& c : cases) {
    const std::string sentence = polychromic_fault(c.bad);
    EXPECT_TRUE(sentence.starts_with(c.mentions)) << c.bad.back() << ": '" << sentence << "'";
    std::vector<std::string> cured = c.bad;
    cured.insert(cured.end(), c.cured.begin(), c.cured.end());
    EXPECT_EQ(polychromic_fault(cured), "") << c.bad.back();
  }
  EXPECT_NE(polychromic_fault({"grpo.start_step=1", "grpo.rewards=learned", "polychromic.diversity_metric=semantic",
                               "polychromic.diversity_encoder_model=e"})
                .find("needs grpo.reward_head"),
            std::string::npos);
}

// The sentence with which a training of task language refuses these; empty when it begins.
std::string language_fault(const std::vector<std::string>& overrides, const std::string& text = "{}") {
  std::vector<std::string> all{"task=language", "data.train=d", "data.encoder_len=64", "train.steps=3000"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  try {
    validate(config_from_json_text(text, "a.json", all));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

TEST(Validate, WhatAPuzzleTrainingDoesNotReadIsRefused) {
  const std::vector<Case> cases = {
      {{"optim.momentum=0.9"},
       "optim.momentum = 0.9 (command line) has no effect, for optim.name = \"adam_atan2\"",
       {"optim.name=sgd"}},
      {{"optim.eps=1e-6"}, "optim.eps = ", {"optim.name=adamw"}},
      {{"optim.name=sgd", "optim.beta1=0.8"}, "optim.beta1 = ", {"optim.name=lion"}},
      {{"optim.adamw_lr=1e-3"}, "optim.adamw_lr = ", {"optim.name=muon", "optim.lr=0.02"}},
      {{"optim.muon_precision=fp32"}, "optim.muon_precision = ", {"optim.name=muon", "optim.lr=0.02"}},
      {{"optim.schedule=constant", "optim.min_ratio=0.1"}, "optim.min_ratio = ", {"optim.schedule=cosine"}},
      {{"model.puzzle_emb_ndim=0", "optim.puzzle_emb_lr=1"}, "optim.puzzle_emb_lr = ", {"model.puzzle_emb_ndim=-1"}},
      {{"precision.loss_scale=1024"}, "precision.loss_scale = ", {"precision.compute=fp16"}},
      {{"precision.loss_scale_growth_interval=9"},
       "precision.loss_scale_growth_interval = ",
       {"precision.compute=fp16"}},
      {{"precision.fp8_margin=1"},
       "precision.fp8_margin = 1 (command line) has no effect, for precision.recursions = ",
       {"precision.recursions=fp8"}},
      {{"model.mlp_t=true", "model.pos_encodings=none", "model.num_heads=4"},
       "model.num_heads = ",
       {"model.mlp_t=false"}},
      {{"runtime.cudnn_benchmark=true"},
       "runtime.cudnn_benchmark = true (command line) has no effect, for task = ",
       {"runtime.cudnn_benchmark=false"}},
      {{"model.pos_encodings=learned", "model.rope_theta=5000"}, "model.rope_theta = ", {"model.pos_encodings=rope"}},
      {{"objective.loss=softmax", "objective.loss_precision=f32"},
       "objective.loss_precision = ",
       {"objective.loss=stablemax"}},
      {{"train.spike_window=64"}, "train.spike_window = ", {"train.spike_score=6"}},
      {{"train.spike_score=6", "train.spike_rewind_steps=9"},
       "train.spike_rewind_steps = ",
       {"train.spike_action=rewind"}},
      {{"profiling.nvtx.include_eval=false"}, "profiling.nvtx.include_eval = ", {"profiling.nvtx.enabled=true"}},
      {{"profiling.trace_shapes=false"}, "profiling.trace_shapes = ", {"profiling.trace=true"}},
      {{"runtime.cuda_graphs=false", "runtime.graph_warmup_steps=5"},
       "runtime.graph_warmup_steps = ",
       {"runtime.cuda_graphs=true"}},
      {{"ops.backend=reference", "ops.attention=sdpa"}, "ops.attention = ", {"ops.backend=fused"}},
  };
  const std::string file = R"({"data": {"train": "d"}, "train": {"steps": 100}, "optim": {"warmup_steps": 10}})";
  for (const Case& c : cases) {
    SCOPED_TRACE(c.bad.back());
    const std::string fault = training_fault(file, c.bad);
    EXPECT_EQ(fault.find(c.mentions), 0u) << fault;
    EXPECT_NE(fault.find(" has no effect, for "), std::string::npos) << fault;
    std::vector<std::string> cured = c.bad;
    cured.insert(cured.end(), c.cured.begin(), c.cured.end());
    EXPECT_EQ(training_fault(file, cured), "");
    // A stored configuration stays readable.
    EXPECT_NO_THROW(config_from_json_text(file, "a.json", c.bad));
  }
}

TEST(Validate, WhatALanguageModelDoesNotReadIsRefused) {
  const std::vector<Case> cases = {
      {{"data.document_masks=true"},
       "data.document_masks = true (command line) does not reach the decoder of lm.arch = \"hrm\" (default)",
       {"lm.arch=decoder", "data.encoder_len=0"}},
      {{"data.document_masks=true", "lm.arch=decoder"}, "data.document_masks = true", {"data.encoder_len=0"}},
      {{"lm.bridge=cross_attention", "lm.prefix_len=4"},
       "lm.prefix_len = 4 (command line) has no effect, for lm.bridge = \"cross_attention\" (command line)",
       {"lm.bridge=prefix"}},
      {{"lm.style=prototype", "lm.bridge=cross_attention", "lm.prefix_len=4"},
       "lm.prefix_len = 4",
       {"lm.bridge=prefix"}},
      {{"lm.gate_scale=0", "lm.gate_bias=0.5", "lm.gate_warmup_steps=10"},
       "lm.gate_warmup_steps = 10",
       {"lm.gate_scale=1"}},
      {{"objective.halting_target=2"}, "objective.halting_target = 2.0", {"objective.halting=0.01"}},
      {{"objective.halting=0.01", "lm.gradient_cycles=2"},
       "lm.gradient_cycles = 2 (command line) has no effect, for objective.halting = 0.01 (command line)",
       {"lm.gradient_cycles=0"}},
      {{"objective.halting=0.01", "lm.gradient_cycles=2"}, "lm.gradient_cycles = 2", {"lm.h_cycles=2"}},
      {{"objective.halting=0.01", "lm.gradient_cycles=2"}, "lm.gradient_cycles = 2", {"objective.halting=0"}},
      {{"lm.arch=decoder", "objective.halting_target=2"},
       "objective.halting_target = 2.0",
       {"lm.arch=hrm", "objective.halting=1"}},
      {{"lm.arch=decoder", "moe.experts=4", "lm.inner=96"}, "lm.inner = 96", {"moe.every=2"}},
      {{"lm.arch=decoder", "moe.experts=4", "lm.inner=96"}, "lm.inner = 96", {"lm.arch=hrm"}},
      {{"ops.attention=sdpa"}, "ops.attention = \"sdpa\" (command line) has no effect", {"lm.window=8"}},
      {{"lm.arch=decoder", "data.encoder_len=0", "ops.attention=sdpa"},
       "ops.attention = \"sdpa\"",
       {"data.document_masks=true"}},
      {{"moe.top_k=1"}, "moe.top_k = 1", {"moe.experts=4"}},
      {{"moe.activation=swiglu"}, "moe.activation = \"swiglu\"", {"moe.experts=4"}},
      {{"precision.fp8_margin=1"},
       "precision.fp8_margin = 1 (command line) has no effect, for precision.blocks = \"same\" (default)",
       {"precision.blocks=fp8"}},
      {{"precision.fp8_scaling=current"}, "precision.fp8_scaling = ", {"precision.blocks=fp8"}},
      {{"precision.fp8_gradients=e4m3"}, "precision.fp8_gradients = ", {"precision.blocks=fp8"}},
      {{"precision.fp8_skip=a"}, "precision.fp8_skip = ", {"precision.blocks=fp8"}},
      {{"precision.blocks=fp8", "precision.compute=fp16"}, "precision.blocks = ", {"precision.compute=bf16"}},
      {{"precision.blocks=fp8", "precision.compute=fp32"}, "precision.blocks = ", {"precision.blocks=same"}},
      {{"precision.blocks=fp8", "lm.style=prototype"}, "precision.blocks = ", {"lm.style=modern"}},
      {{"precision.recursions=fp8"},
       "precision.recursions = \"fp8\" (command line) belongs to task puzzle",
       {"precision.recursions=same"}},
      {{"parallel.zero=3", "lm.style=prototype"}, "parallel.zero = 3", {"lm.style=modern"}},
      {{"parallel.zero=3", "precision.blocks=fp8"}, "precision.blocks = \"fp8\"", {"precision.blocks=same"}},
      {{"parallel.zero=3", "precision.fake_quantize=int8"}, "precision.fake_quantize = ", {"parallel.zero=2"}},
      {{"precision.fake_quantize=fp8", "lm.style=prototype"}, "precision.fake_quantize = ", {"lm.style=modern"}},
      {{"precision.fake_quantize=int8", "moe.experts=4"}, "precision.fake_quantize = ", {"moe.experts=0"}},
      {{"precision.fake_quantize=int8", "precision.blocks=fp8"},
       "precision.fake_quantize = ",
       {"precision.blocks=same"}},
      {{"precision.fake_quantize=int8", "precision.blocks=fp8"},
       "precision.fake_quantize = ",
       {"precision.fake_quantize=none"}},
  };
  for (const Case& c : cases) {
    const std::string sentence = language_fault(c.bad);
    EXPECT_TRUE(sentence.starts_with(c.mentions)) << c.bad.back() << ": '" << sentence << "'";
    std::vector<std::string> cured = c.bad;
    cured.insert(cured.end(), c.cured.begin(), c.cured.end());
    EXPECT_EQ(language_fault(cured), "") << c.bad.back();
  }
}

// A plain decoder reads no setting of the prompt's encoder, the core and the bridge; a transformer encoder none of
// mamba2.
TEST(Validate, WhatBelongsToPartsThatAreNotThereIsRefused) {
  const std::vector<std::string> core = {"lm.enc_layers=3",   "lm.h_layers=3",        "lm.l_layers=3",
                                         "lm.h_len=3",        "lm.l_len=3",           "lm.h_cycles=3",
                                         "lm.l_steps=3",      "lm.gradient_cycles=2", "lm.prefix_len=3",
                                         "lm.gate_scale=0.5", "lm.gate_bias=0.1",     "lm.gate_warmup_steps=3"};
  const std::vector<std::string> mamba = {"lm.mamba_expand=4", "lm.mamba_head_dim=32", "lm.mamba_state=64",
                                          "lm.mamba_groups=2", "lm.mamba_kernel=3",    "lm.mamba_chunk=64"};
  const auto begins = [](const std::string& sentence, const std::string& argument) {
    return sentence.starts_with(argument.substr(0, argument.find('=')) + " = ") &&
           sentence.find(" has no effect, for lm.") != std::string::npos;
  };
  for (const std::string& argument : core) {
    const std::string sentence = language_fault({"lm.arch=decoder", argument});
    EXPECT_TRUE(begins(sentence, argument)) << argument << ": '" << sentence << "'";
    EXPECT_EQ(language_fault({argument}), "") << argument;
  }
  for (const char* argument : {"lm.encoder=mamba2", "lm.bridge=cross_attention"}) {
    EXPECT_TRUE(begins(language_fault({"lm.arch=decoder", argument}), argument)) << argument;
    EXPECT_EQ(language_fault({argument}), "") << argument;
  }
  for (const std::string& argument : mamba) {
    for (const char* other : {"lm.arch=decoder", "lm.arch=hrm", "lm.style=prototype"}) {
      EXPECT_TRUE(begins(language_fault({other, argument}), argument)) << other << " " << argument;
    }
    EXPECT_EQ(language_fault({"lm.encoder=mamba2", argument}), "") << argument;
  }
}

TEST(Validate, PartsOfALanguageModelsFileMayBeSwitchedOff) {
  const std::string text = R"({"lm": {"h_cycles": 3, "gradient_cycles": 2, "prefix_len": 4, "encoder": "mamba2",
                               "mamba_state": 64}, "objective": {"halting_target": 2}})";
  EXPECT_EQ(language_fault({"objective.halting=0.1", "lm.gradient_cycles=0"}, text), "");
  EXPECT_EQ(language_fault({"objective.halting=0", "lm.arch=decoder", "data.encoder_len=0"}, text), "");
  EXPECT_EQ(language_fault({"objective.halting=0", "lm.encoder=transformer", "lm.bridge=cross_attention"}, text), "");
  EXPECT_TRUE(language_fault({}, text).starts_with("objective.halting_target = 2.0 (a.json:"));
  EXPECT_NE(language_fault({"objective.halting=0", "lm.arch=decoder", "lm.h_cycles=2"}, text), "");
  // What is usual is asked for by no one.
  EXPECT_EQ(language_fault({"lm.arch=decoder", "lm.h_cycles=4", "lm.mamba_state=128", "objective.halting_target=1"}),
            "");
}

// A file says everything; who switches a part of it off on the command line need not take the rest out of the file.
TEST(Validate, WhatAFileSaysMayBeSwitchedOff) {
  const std::string text = R"({"polychromic": {"n_generations": 5, "diversity_metric": "bleu"},
                               "lora": {"r": 8, "alpha": 32}, "grpo": {"num_generations": 8}})";
  EXPECT_EQ(polychromic_fault({}, text), "");
  EXPECT_EQ(polychromic_fault({"polychromic.objective=none"}, text), "");
  EXPECT_EQ(polychromic_fault({"lora.r=0"}, text), "");
  EXPECT_EQ(polychromic_fault({"grpo.start_step=1", "grpo.rewards=length"}, text), "");
  EXPECT_NE(polychromic_fault({"polychromic.objective=none", "polychromic.n_generations=6"}, text), "");
  const std::string both = R"({"polychromic": {"n_generations": 5, "diversity_metric": "bleu", "objective": "none"}})";
  EXPECT_TRUE(polychromic_fault({}, both).starts_with("polychromic.n_generations = 5 (a.json:1)"));
  // What is usual is asked for by no one, whoever says it.
  EXPECT_EQ(polychromic_fault({"lora.r=0", "lora.alpha=16", "polychromic.objective=none",
                               "polychromic.diversity_weight=0.3", "polychromic.n_generations=3"}),
            "");
}

TEST(Validate, TrainingNeedsDataAndALength) {
  EXPECT_TRUE(training_fault("{\"data\": {\"train\": \"\"}}").starts_with("data.train = \"\" ("));
  EXPECT_TRUE(
      training_fault("{\"data\": {\"train\": \"x\"}}").starts_with("train.steps = 0 (default) and train.epochs"));
  EXPECT_EQ(training_fault("{\"data\": {\"train\": \"x\"}, \"train\": {\"epochs\": 1}}"), "");
  EXPECT_EQ(training_fault("{\"data\": {\"train\": \"x\"}, \"train\": {\"steps\": 5000}}"), "");
  EXPECT_TRUE(training_fault(R"({"train": {"steps": 5000, "keep_best": true}})").starts_with("train.keep_best = true"));
  EXPECT_EQ(training_fault(R"({"train": {"steps": 5000, "keep_best": true, "eval_every": 100}})"), "");
}

}  // namespace
}  // namespace hrm::config
