// The estimate of `plan` for causal models, beside what the CPU's tensors take in steps of polychromic training and
// what was measured on a GPU.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <fstream>
#include <set>

#include "commands/plan_cases.h"
#include "commands/rehearsal.h"
#include "hrm/formats/hf_family.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/lm_head.h"
#include "hrm/objectives/language.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/paths.h"
#include "tasks/causal/plan.h"
#include "train/small_polychromic.h"

namespace hrm::commands {
namespace {

using test::Overrides;
using test::with;
using testing::gpu;
using testing::HostBytes;
using testing::item;
using testing::SmallPolychromic;

PlanInput causal_input(const config::Config& config, int64_t prompt, const char* gpu_name = "H200") {
  return make_plan_input(
      config, std::make_shared<tasks::CausalPlan>(config, tasks::PromptTokens{.mean = prompt, .longest = prompt}),
      gpu(gpu_name));
}

// Small, but with blocks that are large beside labels and tables.
std::string planned_folder(const std::string& model_type) {
  const std::filesystem::path dir = testing::fresh_folder("planned_" + model_type);
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"model_type": ")" << model_type << R"(", "vocab_size": 264,
      "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "sliding_window": 48,
      "eos_token_id": 1, "bos_token_id": 2, "tie_word_embeddings": true})";
  return dir.string();
}

Overrides wide_rows(const std::string& model_type, const Overrides& more) {
  return with({"hf.model=" + planned_folder(model_type), "chat.max_length=129", "chat.buckets=1", "objective.chunk=32",
               "precision.compute=fp32"},
              more);
}

bool in_fp8(const config::Config& config) {
  return config.precision.blocks == config::BlockPrecision::fp8;
}

// The plan of a training on a GPU without kernels of ours for the products' epilogues, which keeps what the CPU keeps.
Plan plan_like_cpu(config::Config config, int64_t prompt) {
  config.polychromic.generation_batch = 24;  // as many as the CPU decodes
  const RanksInput whole{.one = causal_input(config, prompt, in_fp8(config) ? "H200" : "A100"), .links = {}};
  return make_plan(input_of_rank(whole, config.parallel.tensor));
}

// The length is the default, since a value of its own would have no effect.
const Overrides kNothingSampled{"polychromic.objective=none", "polychromic.max_generation_length=100"};

struct CausalVariant {
  std::string name, model_type;
  Overrides overrides;
};
void PrintTo(const CausalVariant& variant, std::ostream* out) {
  *out << variant.name;
}

std::vector<CausalVariant> kept_variants() {
  std::vector<CausalVariant> all;
  for (const HfFamily& family : hf_families()) {
    all.push_back({std::string(family.model_type), std::string(family.model_type), {}});
    all.push_back({std::string(family.model_type) + "_whole", std::string(family.model_type), {"lora.r=0"}});
  }
  all.push_back({"some_targets", "qwen3", {"lora.targets=q_proj,v_proj"}});
  all.push_back({"gate_alone", "llama", {"lora.targets=gate_proj"}});
  all.push_back({"down_alone", "gemma", {"lora.targets=down_proj"}});
  all.push_back({"saved", "llama", {"lora.modules_to_save=lm_head"}});
  all.push_back({"dora", "llama", {"lora.dora=true"}});
  all.push_back({"dora_dropout", "llama", {"lora.dora=true", "lora.dropout=0.1"}});
  all.push_back({"dropout", "llama", {"lora.dropout=0.1"}});
  all.push_back({"nf4", "llama", {"hf.quantize=nf4"}});
  all.push_back({"recompute", "qwen3", {"hf.recompute=true"}});
  all.push_back({"part", "llama", {"parallel.tensor=2"}});
  all.push_back({"part_whole", "qwen3", {"parallel.tensor=2", "lora.r=0"}});
  all.push_back({"part_recompute", "qwen3", {"parallel.tensor=2", "hf.recompute=true"}});
  for (const char* type : {"qwen3", "llama", "qwen2", "gemma", "olmo2"}) {
    all.push_back({std::string(type) + "_fp8", type, {"lora.r=0", "precision.blocks=fp8"}});
  }
  all.push_back({"recompute_fp8", "qwen3", {"lora.r=0", "precision.blocks=fp8", "hf.recompute=true"}});
  all.push_back({"skip_fp8", "llama", {"lora.r=0", "precision.blocks=fp8", "precision.fp8_skip=*.0.*,*.down_proj"}});
  return all;
}

class CausalPlanKept : public ::testing::TestWithParam<CausalVariant> {};

// The pass over responses, of the task's model.
void expect_kept(const CausalVariant& variant, const std::string& dtype) {
  const config::LoadedConfig loaded = testing::small_polychromic_config(
      testing::fresh_folder("kept"),
      with(wide_rows(variant.model_type, with(kNothingSampled, variant.overrides)), {"precision.compute=" + dtype}));
  testing::MeshRun run(loaded, parallel::make_fake_comm(0, static_cast<int>(loaded.config.parallel.tensor)));
  models::DecoderLm& model = *dynamic_cast<tasks::PolychromicTask&>(*run.task).lm().model;
  const config::Config& config = run.loaded.config;
  if (in_fp8(config)) {  // begins as every step does
    run.trainer.start_fresh();
    run.trainer.run_steps(2);
  }
  at::manual_seed(1);
  const int64_t T = config.chat.max_length - 1, rows = config.train.global_batch_size;
  const at::Tensor ids = at::randint(264, {rows, T}, at::kLong), labels = at::randint(264, {rows, T}, at::kLong);
  const auto step = [&](const auto& between) {
    models::LanguageOutput output = model.forward({.ids = ids});
    const objectives::LanguageLoss loss = objectives::language_loss(
        model, output, labels, {.chunk = config.objective.chunk}, at::full({}, labels.numel(), at::kFloat));
    output = {};
    between();
    loss.loss.backward();
  };
  step([] {});
  const auto bytes = std::make_shared<HostBytes>();
  double kept = 0;
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, bytes);
    step([&] { kept = static_cast<double>(bytes->now); });
  }
  EXPECT_NEAR(static_cast<double>(bytes->now), 0, 0.01 * kept) << "nothing stays";
  // Gradients that the loss holds: of hidden states and, where it is trained, of the head.
  const bool wide = dtype == "fp32", trains_head = config.lora.r == 0 || !config.lora.modules_to_save.empty();
  kept -= 64 * (static_cast<double>(labels.numel()) * (wide ? 4 : 2) +
                (trains_head ? 4.0 * 264 / static_cast<double>(config.parallel.tensor) : 0));
  const Plan plan = plan_like_cpu(config, 0);
  EXPECT_NEAR(item(plan.memory, "activations kept"), kept, 0.03 * kept) << dtype;
  // The CPU adds what is in 16 bits by way of float32, which takes more than a GPU does.
  if (!wide) return;
  const double peak = item(plan.memory, "activations kept") + item(plan.memory, "temporaries");
  EXPECT_NEAR(peak, static_cast<double>(bytes->peak), 0.1 * static_cast<double>(bytes->peak)) << plan.peak_moment;
}

TEST_P(CausalPlanKept, KeepsWhatAStepKeeps) {
  const bool fp8 = GetParam().name.ends_with("_fp8");  // beside bf16 only
  for (const char* dtype : {"fp32", "bf16"}) {
    if (!fp8 || dtype == std::string("bf16")) expect_kept(GetParam(), dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, CausalPlanKept, ::testing::ValuesIn(kept_variants()),
                         [](const auto& info) { return info.param.name; });

class CausalPlanPeak : public ::testing::TestWithParam<CausalVariant> {};

// Whole steps with completions, by the task itself.
TEST_P(CausalPlanPeak, IsThatOfAStep) {
  SmallPolychromic run(testing::fresh_folder("peak"), wide_rows(GetParam().model_type, GetParam().overrides));
  tasks::PolychromicTask& task = run.task;
  at::Tensor sums = at::zeros({static_cast<int64_t>(task.metric_names().size())}, at::kDouble);
  const auto step = [&](int64_t index) {
    {
      const at::NoGradGuard no_grad;
      task.load_batch(index, 1);
      task.prepare_step(index);
    }
    for (int64_t i = 0; i < task.plan().micro_batches; ++i) task.forward_backward(i, {}, sums);
  };
  step(1);
  const auto bytes = std::make_shared<HostBytes>();
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, bytes);
    step(2);
  }
  const Plan plan = plan_like_cpu(run.loaded.config, 36);
  const double planned = item(plan.memory, "activations kept") + item(plan.memory, "temporaries");
  const auto peak = static_cast<double>(bytes->peak);
  EXPECT_NEAR(planned, peak, 0.12 * peak) << plan.peak_moment;
}

const Overrides kRewards{
    "grpo.start_step=1",          "grpo.rewards=length",          "grpo.num_generations=3",
    "polychromic.objective=none", "grpo.max_completion_length=8", "polychromic.max_generation_length=100"};

INSTANTIATE_TEST_SUITE_P(Ways, CausalPlanPeak,
                         ::testing::Values(CausalVariant{"together", "qwen3", {}},
                                           CausalVariant{"apart", "qwen3", {"polychromic.share_prompts=answers"}},
                                           CausalVariant{"off", "llama", {"polychromic.share_prompts=off"}},
                                           CausalVariant{"micro", "llama", {"train.micro_batch_size=4"}},
                                           CausalVariant{"constant", "qwen3", {"polychromic.objective=compat"}},
                                           CausalVariant{"rewards", "qwen3", kRewards},
                                           CausalVariant{"reference", "llama", with(kRewards, {"grpo.beta=0.1"})},
                                           CausalVariant{"window", "mistral", {}},
                                           CausalVariant{"wide_norms", "olmo2", {}},
                                           CausalVariant{"whole", "gemma", {"lora.r=0"}}),
                         [](const auto& info) { return info.param.name; });

TEST(CausalPlan, StateOfTheWeights) {
  for (const Overrides& more :
       {Overrides{}, Overrides{"lora.r=0"}, Overrides{"hf.quantize=nf4"}, Overrides{"hf.quantize=fp8"},
        Overrides{"lora.modules_to_save=lm_head,norm"}, Overrides{"lora.dora=true", "optim.name=lion"},
        Overrides{"lora.targets=all-linear", "optim.ema=0.9"}}) {
    SmallPolychromic run(testing::fresh_folder("run"), with({"precision.compute=bf16"}, more));
    run.trainer.start_fresh();
    const PlanInput in = causal_input(run.loaded.config, 30);
    const Plan plan = make_plan(in);
    EXPECT_EQ(in.parameters, run.task.parameters().count()) << more.front();
    models::DecoderLm& model = *run.task.lm().model;
    int64_t all = 0, frozen = nn::quantized_memory(model).bytes, copies = 0, moments = 0;
    std::set<const void*> seen, copied;
    for (const at::Tensor& parameter : model.parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      all += parameter.numel();
      if (!parameter.requires_grad() && !parameter.is_meta()) frozen += static_cast<int64_t>(parameter.nbytes());
    }
    for (const auto& module : model.modules()) {
      const auto* linear = dynamic_cast<const nn::Linear*>(module.get());
      const auto* head = dynamic_cast<const nn::LmHead*>(module.get());
      if (linear != nullptr && nn::is_quantized(linear->format())) continue;
      const at::Tensor weight = linear != nullptr ? linear->base_weight()
                                : head != nullptr ? head->compute_weight()
                                                  : at::Tensor();
      const auto* reader = dynamic_cast<const nn::HasComputeWeight*>(module.get());
      if (!weight.defined() || weight.is_same(reader->master_weight())) continue;
      if (copied.insert(weight.unsafeGetTensorImpl()).second) copies += static_cast<int64_t>(weight.nbytes());
    }
    for (const TensorEntry& entry : list_state(run.trainer).tensors) {
      if (entry.role == StateRole::optimizer) moments += static_cast<int64_t>(entry.tensor.nbytes());
    }
    EXPECT_EQ(in.parameters + in.frozen_parameters, all) << more.front();
    EXPECT_EQ(in.frozen_bytes, static_cast<double>(frozen)) << more.front();
    EXPECT_EQ(item(plan.memory, "weights") + item(plan.memory, "frozen weights"),
              4.0 * static_cast<double>(in.parameters) + static_cast<double>(frozen));
    EXPECT_EQ(item(plan.memory, "compute copies"), static_cast<double>(copies)) << more.front();
    EXPECT_NEAR(item(plan.memory, "optimizer"), static_cast<double>(moments), 4) << more.front();
    EXPECT_EQ(item(plan.memory, "dequantised layer"), static_cast<double>(nn::quantized_memory(model).workspace));
    // FLOPs are those that the training reports, for rows at their longest.
    EXPECT_GT(in.flops_per_sample, 0);
  }
}

TEST(CausalPlan, BlocksInFp8KeepLess) {
  const auto planned = [](const Overrides& more) {
    const auto config =
        testing::small_polychromic_config(testing::fresh_folder("run"), wide_rows("llama", with({"lora.r=0"}, more)))
            .config;
    return causal_input(config, 36);
  };
  const Overrides bf16{"precision.compute=bf16"};
  const PlanInput same = planned(bf16), fp8 = planned(with(bf16, {"precision.blocks=fp8"})),
                  less = planned(with(bf16, {"precision.blocks=fp8", "precision.fp8_skip=*.layers.0.*"}));
  // Of a block: q, k, v; o; gate and up; down.
  const int64_t block = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 160;
  EXPECT_EQ(same.fp8_parameters, 0);
  EXPECT_EQ(fp8.fp8_parameters, 3 * block);
  EXPECT_EQ(less.fp8_parameters, 2 * block);
  EXPECT_EQ(item(make_plan(fp8).memory, "8-bit copies"), 2.0 * 3 * block);
  // Decoding reads the copies in the compute dtype. Where nothing is sampled, there are none.
  const PlanInput fixed = planned(with(with(bf16, kNothingSampled), {"precision.blocks=fp8"}));
  const double copies = item(make_plan(same).memory, "compute copies");
  EXPECT_EQ(item(make_plan(fp8).memory, "compute copies"), copies);
  EXPECT_EQ(item(make_plan(fixed).memory, "compute copies"), copies - 2.0 * 3 * block);
  EXPECT_LT(item(make_plan(fp8).memory, "activations kept"), 0.85 * item(make_plan(same).memory, "activations kept"));
  EXPECT_LT(item(make_plan(fp8).memory, "activations kept"), item(make_plan(less).memory, "activations kept"));
}

// Weights are there in fp32 before the frozen ones get the compute dtype.
TEST(CausalPlan, LoadingIsThePeakOfSmallSteps) {
  const std::filesystem::path dir = testing::fresh_folder("loading");
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"model_type": "llama", "vocab_size": 264, "hidden_size": 256,
      "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4, "max_position_embeddings": 256})";
  const auto loaded = testing::small_polychromic_config(
      testing::fresh_folder("run"), with(kNothingSampled, {"hf.model=" + dir.string(), "precision.compute=bf16",
                                                           "train.global_batch_size=1", "chat.max_length=16"}));
  const Plan plan = plan_like_cpu(loaded.config, 0);
  EXPECT_EQ(plan.peak_moment, "loading");
  const auto bytes = std::make_shared<HostBytes>();
  {
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, bytes);
    Runtime runtime;
    runtime.compute_dtype = at::kBFloat16;
    tasks::open_causal_lm(loaded.config, runtime);
  }
  const double planned = plan.tensors_peak - item(plan.memory, "workspaces");
  EXPECT_NEAR(planned, static_cast<double>(bytes->peak), 0.1 * static_cast<double>(bytes->peak));
}

// The steps of docs/benchmarks.md, "Causal language models", on one H200: rows of 512 tokens, prompts of 64.
config::Config measured_config(const std::string& size, const Overrides& more) {
  const bool large = size == "8B";
  const std::filesystem::path dir = testing::fresh_folder("shape_" + size);
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128,
      "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000, "hidden_size": )"
                                     << (large ? 4096 : 1024) << R"(, "intermediate_size": )" << (large ? 12288 : 3072)
                                     << R"(, "num_hidden_layers": )" << (large ? 36 : 28)
                                     << R"(, "num_attention_heads": )" << (large ? 32 : 16)
                                     << R"(, "tie_word_embeddings": )" << (large ? "false" : "true") << "}";
  return config::load_config({}, with({"task=polychromic", "hf.model=" + dir.string(), "hf.weights=random",
                                       "chat.template=plain", "chat.max_length=513", "lora.r=16", "lora.alpha=16"},
                                      more))
      .config;
}

const Overrides kMeasuredStep{
    "chat.buckets=64",
    "train.global_batch_size=16",
    "train.micro_batch_size=4",
    "polychromic.n_generations=3",
    "polychromic.max_generation_length=100",
    "polychromic.diversity_encoder_model=" + test::source_dir() + "/tests/fixtures/bert_embed"};
const Overrides kMeasuredLora{"chat.buckets=1", "polychromic.objective=none", "train.global_batch_size=4"};

TEST(CausalPlan, IsNearWhatWasMeasured) {
  const auto expect = [](const std::string& size, const Overrides& more, int64_t prompt, double ms, double gib) {
    const Plan plan = make_plan(causal_input(measured_config(size, more), prompt));
    EXPECT_NEAR(plan.step_ms, ms, 0.1 * ms) << size;
    EXPECT_NEAR(plan.tensors_peak / (1 << 30), gib, 0.05 * gib) << plan.peak_moment;
  };
  expect("0.6B", kMeasuredLora, 0, 17.0, 4.3);
  expect("0.6B", with(kMeasuredLora, {"hf.quantize=nf4"}), 0, 18.2, 3.7);
  expect("0.6B", with(kMeasuredLora, {"hf.quantize=fp8"}), 0, 17.0, 3.9);
  expect("0.6B", kMeasuredStep, 64, 226, 10.6);
  expect("0.6B", with(kMeasuredStep, {"polychromic.share_prompts=answers"}), 64, 242, 8.4);
  expect("0.6B", with(kMeasuredStep, {"polychromic.share_prompts=off"}), 64, 245, 8.4);
  expect("8B", kMeasuredStep, 64, 1364, 50.8);
}

// Products in 8 bits are less work; what quantises is time of its own, which a transposed copy of the weights saves.
TEST(CausalPlan, FrozenProductsIn8Bits) {
  const auto plan = [](const Overrides& more, const char* gpu = "H100") {
    return make_plan(causal_input(measured_config("0.6B", with(kMeasuredLora, more)), 0, gpu));
  };
  const Plan wide = plan({"hf.quantize=fp8", "hf.fp8_products=false"}), eights = plan({"hf.quantize=fp8"}),
             kept = plan({"hf.quantize=fp8", "hf.fp8_transposed=true"});
  EXPECT_LT(item(eights.time, "matrix products"), 0.9 * item(wide.time, "matrix products"));
  EXPECT_EQ(item(wide.time, "quantising"), 0);
  EXPECT_GT(item(eights.time, "quantising"), item(kept.time, "quantising"));
  EXPECT_GT(item(kept.time, "quantising"), 0);
  EXPECT_EQ(item(eights.memory, "transposed weights"), 0);
  EXPECT_EQ(item(kept.memory, "transposed weights"), 440401920);
  EXPECT_EQ(item(plan({"hf.quantize=int8"}).time, "quantising"), 0);
  EXPECT_EQ(item(plan({"hf.quantize=fp8"}, "A100").time, "quantising"), 0) << "no products in 8 bits there";
}

TEST(CausalPlan, PartsAddUp) {
  for (const Overrides& more : {kMeasuredLora, kMeasuredStep}) {
    const Plan plan = make_plan(causal_input(measured_config("0.6B", more), 64));
    double bytes = 0, ms = 0;
    for (const PlanItem& i : plan.memory) bytes += i.value;
    for (const PlanItem& i : plan.time) ms += i.value;
    EXPECT_DOUBLE_EQ(bytes, plan.tensors_peak);
    EXPECT_DOUBLE_EQ(ms, plan.step_ms);
  }
}

TEST(CausalPlan, FollowsTheSettings) {
  const auto plan = [](const Overrides& more) {
    return make_plan(causal_input(measured_config("0.6B", with(kMeasuredStep, more)), 64));
  };
  const Plan each = plan({}), tenth = plan({"polychromic.compute_diversity_every_n_steps=10"});
  EXPECT_NEAR(item(tenth.time, "decode"), item(each.time, "decode") / 10, 1e-9);
  EXPECT_EQ(tenth.tensors_peak, each.tensors_peak) << "the peak is that of steps that sample";
  const Plan more_answers = plan({"polychromic.n_generations=6"});
  EXPECT_NEAR(item(more_answers.memory, "keys and values"), 2 * item(each.memory, "keys and values"), 1);
  EXPECT_LT(plan({"hf.recompute=true"}).tensors_peak, 0.8 * each.tensors_peak);
  EXPECT_GT(plan({"hf.recompute=true"}).backward_ms, each.backward_ms);
  EXPECT_GT(item(plan({"hf.quantize=nf4"}).time, "decode"), item(each.time, "decode"));
  EXPECT_EQ(item(plan({"hf.quantize=nf4"}).memory, "merged weights"), 0);
  // Up to 32 rows read weights in 8 bits as they are.
  const Plan few = plan({"polychromic.generation_batch=32"});
  EXPECT_LT(item(plan({"hf.quantize=int8", "polychromic.generation_batch=32"}).time, "decode"),
            item(few.time, "decode"));
  EXPECT_GT(item(plan({"hf.quantize=int8", "polychromic.generation_batch=33"}).time, "decode"),
            item(plan({"polychromic.generation_batch=33"}).time, "decode"));
  // Of an adapter beside a large model little is trained, and the weights in fp32 are the peak.
  const Plan one =
      make_plan(causal_input(measured_config("8B", {"polychromic.objective=none", "train.global_batch_size=1"}), 0));
  EXPECT_EQ(one.peak_moment, "loading");
}

// GRPO: several steps learn from one batch of completions.
TEST(CausalPlan, Rewards) {
  const auto plan = [](const Overrides& more) {
    return make_plan(causal_input(
        measured_config("0.6B", with({"grpo.start_step=1", "grpo.rewards=length", "polychromic.objective=none",
                                      "train.steps=100", "train.global_batch_size=8"},
                                     more)),
        64));
  };
  const Plan once = plan({}), twice = plan({"grpo.num_iterations=2"}), late = plan({"grpo.start_step=51"});
  EXPECT_NEAR(item(twice.time, "decode"), item(once.time, "decode") / 2, 1e-9);
  EXPECT_NEAR(item(late.time, "decode"), item(once.time, "decode") / 2, 1e-9);
  EXPECT_GT(plan({"grpo.beta=0.04"}).step_ms, once.step_ms);
  // Steps before GRPO count for the peak, also where nobody knows how many there are.
  const Overrides first{"chat.max_length=2049", "grpo.num_generations=2"};
  const Plan only = plan(first), open = plan(with(first, {"grpo.start_step=51", "train.steps=0"}));
  EXPECT_EQ(open.step_ms, only.step_ms);
  EXPECT_GT(item(open.memory, "activations kept"), 1.2 * item(only.memory, "activations kept"));
}

struct CausalRanksCase {
  const char* name;
  Overrides more;
};
void PrintTo(const CausalRanksCase& value, std::ostream* out) {
  *out << value.name;
}

class CausalRehearsal : public ::testing::TestWithParam<CausalRanksCase> {};

// What is sent is what training sends.
TEST_P(CausalRehearsal, IsWhatTrainingSends) {
  const Overrides& more = GetParam().more;
  const config::Config config = testing::small_polychromic_config(testing::fresh_folder("config"), more).config;
  testing::expect_rehearsed<SmallPolychromic>(causal_input(config, 30), more);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CausalRehearsal,
    ::testing::Values(CausalRanksCase{"adapter", kNothingSampled},
                      CausalRanksCase{"whole", with(kNothingSampled, {"lora.r=0"})}, CausalRanksCase{"completions", {}},
                      CausalRanksCase{"fp8", {"lora.r=0", "precision.blocks=fp8"}},
                      CausalRanksCase{"apart", {"polychromic.share_prompts=answers"}},
                      CausalRanksCase{"off", {"polychromic.share_prompts=off"}},
                      CausalRanksCase{"constant", {"polychromic.objective=compat"}},
                      CausalRanksCase{"normalised", {"polychromic.normalize_advantages=true"}},
                      CausalRanksCase{"accumulation", {"train.micro_batch_size=1"}},
                      CausalRanksCase{"zero1", with(kNothingSampled, {"parallel.zero=1", "optim.ema=0.9"})},
                      CausalRanksCase{"zero3", with(kNothingSampled, {"parallel.zero=3", "lora.r=0"})},
                      CausalRanksCase{"zero3_adapter",
                                      with(kNothingSampled, {"parallel.zero=3", "train.micro_batch_size=1"})},
                      CausalRanksCase{"rewards", with(kRewards, {"train.global_batch_size=8"})}),
    [](const auto& info) { return std::string(info.param.name); });

class CausalMesh : public ::testing::TestWithParam<CausalRanksCase> {};

TEST_P(CausalMesh, IsWhatTrainingSends) {
  const config::LoadedConfig loaded = testing::small_polychromic_config(
      testing::fresh_folder("mesh"),
      with(with(kNothingSampled, {"parallel.tensor=2", "chat.buckets=1"}), GetParam().more));
  for (const int ranks : {2, 4}) testing::expect_rehearsed_on_mesh(causal_input(loaded.config, 30), loaded, ranks);
}

INSTANTIATE_TEST_SUITE_P(Cases, CausalMesh,
                         ::testing::Values(CausalRanksCase{"adapter", {"lora.dropout=0.1"}},
                                           CausalRanksCase{"whole", {"lora.r=0", "train.micro_batch_size=1"}},
                                           CausalRanksCase{"recompute", {"hf.recompute=true"}},
                                           CausalRanksCase{"int8", {"hf.quantize=int8"}},
                                           CausalRanksCase{"packed",
                                                           {"chat.packing=true", "lora.modules_to_save=lm_head"}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CausalMeshPlan, RefusesCompletions) {
  const config::LoadedConfig loaded =
      testing::small_polychromic_config(testing::fresh_folder("mesh"), {"parallel.tensor=2"});
  test::expect_error(ExitCode::usage, {"completions", "parallel.tensor = 2", "polychromic.objective=none"},
                     [&] { input_of_rank({.one = causal_input(loaded.config, 30), .links = {}}, 2); });
}

// The pass over completions comes after that over responses, and goes back first.
TEST(CausalBackward, IsDoneBlockByBlock) {
  const auto done = [](const Overrides& more, int64_t groups) {
    const PlanInput in = causal_input(measured_config("0.6B", with(kMeasuredStep, more)), 64);
    return in.model->backward_done(in, groups, 28);
  };
  EXPECT_DOUBLE_EQ(done({}, 0), 0);
  EXPECT_DOUBLE_EQ(done({}, 7), 0.25);
  EXPECT_DOUBLE_EQ(done({}, 28), 1);
  EXPECT_DOUBLE_EQ(done({"polychromic.share_prompts=off"}, 14), 0.75);
  EXPECT_DOUBLE_EQ(done({"polychromic.share_prompts=off"}, 28), 1);
}

}  // namespace
}  // namespace hrm::commands
