// A model in parts, each on a rank of its own, writes and is evaluated as the whole one, wherever it comes from.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/commands/commands.h"
#include "hrm/nn/linear.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/tasks/answer_eval.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/generation.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/text_writer.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/paths.h"
#include "support/ranks.h"
#include "tasks/small_language_models.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"

namespace hrm::parts {
namespace {

namespace fs = std::filesystem;
using tasks::Generated;
using tasks::StoredModel;
using test::Overrides;
using testing::fresh_folder;
using Prompts = std::vector<std::vector<int32_t>>;

// Training on responses alone.
const Overrides kResponses{"polychromic.objective=none", "polychromic.max_generation_length=100", "optim.ema=0"};
const fs::path kTiedQwen3 = test::source_dir() + "/tests/fixtures/qwen3_tied";

void expect_same_rows(const std::vector<Generated>& got, const std::vector<Generated>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << what << ", row " << i;
    EXPECT_EQ(got[i].finish, want[i].finish) << what << ", row " << i;
  }
}

// The body for each of `parts` ranks as threads, with the axis that they are on.
void on_parts(int parts, const std::function<void(const std::shared_ptr<parallel::Comm>&)>& body) {
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(parts)) comms.push_back(std::move(comm));
  test::on_threads(parts, [&](int rank) { body(comms[static_cast<size_t>(rank)]); });
}

tasks::GenerateOptions options_of(double temperature) {
  return {.max_new_tokens = 12,
          .sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.95},
          .seed = 11,
          .samples = temperature > 0 ? 3 : 1,
          .stop_ids = {7, 12},
          .begin_id = 5};
}

const Prompts kAskedPrompts{{3, 1, 4}, {1, 5, 9, 2, 6}, {5}, {3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6},
                            {2, 6, 4}, {8, 3, 2, 7}};

// Rows enter places that others leave, and batches shrink.
std::vector<Generated> rows_of(models::LanguageModel& model, double temperature, bool cache = true) {
  return tasks::Generator(model, {.batch_size = 5, .cache = cache}).run(kAskedPrompts, options_of(temperature));
}

std::shared_ptr<models::LanguageModel> made(models::DecoderOptions options,
                                            std::shared_ptr<const nn::TensorAcross> across) {
  options.kv_heads = 4;  // so that four parts have one each
  options.inner = 32;
  options.across = std::move(across);
  const auto model = std::make_shared<models::DecoderLm>(options, at::kCPU);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

std::shared_ptr<models::LanguageModel> made_hrm(models::Bridge bridge, std::shared_ptr<const nn::TensorAcross> across) {
  models::ModernLmOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2};
  o.lm.bridge = bridge;
  o.lm.prefix_len = 3;
  o.decoder = test::small_decoder();
  o.decoder.kv_heads = 4;
  o.decoder.inner = 32;
  o.decoder.across = std::move(across);
  o.enc_layers = o.h_layers = o.l_layers = 1;
  o.max_prompt = 16;
  const auto model = models::make_modern_lm(o, at::kCPU);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

TEST(PartsGeneration, WritesWhatTheWholeModelWrites) {
  using Make = std::function<std::shared_ptr<models::LanguageModel>(std::shared_ptr<const nn::TensorAcross>)>;
  const auto decoder = [](const std::function<void(models::DecoderOptions&)>& change) -> Make {
    models::DecoderOptions options = test::small_decoder();
    change(options);
    return [options](auto across) { return made(options, std::move(across)); };
  };
  const std::vector<std::pair<const char*, Make>> models{
      {"tied", decoder([](auto&) {})},
      {"untied", decoder([](auto& o) { o.tied = false; })},
      {"window", decoder([](auto& o) { o.window = 4; })},
      {"prefix", [](auto across) { return made_hrm(models::Bridge::prefix, std::move(across)); }},
      {"cross", [](auto across) { return made_hrm(models::Bridge::cross_attention, std::move(across)); }}};
  for (const auto& [name, make] : models) {
    const auto whole = make(nullptr);
    const std::vector<Generated> best = rows_of(*whole, 0), sampled = rows_of(*whole, 0.9);
    for (const int parts : {2, 4}) {
      on_parts(parts, [&](const std::shared_ptr<parallel::Comm>& comm) {
        const auto part = make(parallel::across_of(comm));
        expect_same_rows(rows_of(*part, 0), best, cat(name, ", ", parts, " parts, greedy"));
        expect_same_rows(rows_of(*part, 0.9), sampled, cat(name, ", ", parts, " parts, sampled"));
        if (parts == 2) expect_same_rows(rows_of(*part, 0.9, /*cache=*/false), sampled, cat(name, ", whole rows"));
      });
    }
  }
}

// Two messages for each layer and one for the embedding and the logits in a step: nothing that grows with the rows'
// length, and no exchange before the sums are made.
TEST(PartsGeneration, AStepExchangesTwiceALayer) {
  on_parts(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
    const auto counting = std::make_shared<parallel::CountingComm>(comm);
    const auto part = made(test::small_decoder(), parallel::across_of(counting));
    models::DecodeCache cache = part->make_cache(3, 8);
    const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong);
    const at::NoGradGuard no_grad;
    counting->forget();
    part->logits(part->step(ids, cache));
    using Kind = parallel::CommOperation::Kind;
    EXPECT_EQ(counting->traffic().operations.size(), 6U);
    EXPECT_EQ(counting->traffic().calls(Kind::all_gather), 6);
    // 3 rows of width 16 of both parts in float32, five times; and 3 rows of the vocabulary of 31, padded to 32.
    EXPECT_EQ(counting->traffic().bytes(Kind::all_gather), 5 * 2 * 3 * 16 * 4 + 3 * 32 * 4);
  });
}

// What `generate` and `eval` make of a stored model.
struct Answers {
  std::vector<Generated> best, sampled;
  tasks::EvalOutcome evaluated;
};

Answers part_answers(const StoredModel& stored, const std::string& data, const Prompts& prompts) {
  const tasks::TaskSpec& spec = tasks::task_spec(stored.config);
  Answers out;
  {
    const tasks::TextWriter writer = spec.open_writer(stored, {.chat_template = "", .system = "", .reads_text = false});
    for (const double temperature : {0.0, 0.9}) {
      tasks::GenerateOptions options = options_of(temperature);
      options.begin_id = writer.begin_id >= 0 ? writer.begin_id : 5;
      options.vocabulary = writer.vocabulary;
      (temperature == 0 ? out.best : out.sampled) =
          tasks::Generator(*writer.model, {.batch_size = 5}).run(prompts, options);
    }
  }
  out.evaluated = spec.evaluate(stored, {.data = data, .progress = [](const tasks::EvalProgress&) {}});
  return out;
}

// As open_in_parts() of the commands places them.
StoredModel opened_part(const std::string& path, const Overrides& overrides, const std::string& base,
                        const std::shared_ptr<parallel::Comm>& comm) {
  StoredModel stored = tasks::open_stored_model(path, overrides, base, *comm);
  stored =
      tasks::with_overrides(stored, {cat("parallel.tensor=", comm->ranks()), "parallel.zero=0", "parallel.replicas=1"});
  stored.place.runtime = ops::start_runtime_and_ops(stored.config);
  stored.place.tensor = comm;
  return stored;
}

void expect_as_whole(const std::string& path, const Overrides& overrides, const std::string& what,
                     const std::string& base = "", const std::string& data = "",
                     const std::vector<int>& numbers = {2}) {
  const Answers whole = part_answers(tasks::open_stored_model(path, overrides, base), data, kAskedPrompts);
  for (const int parts : numbers) {
    on_parts(parts, [&](const std::shared_ptr<parallel::Comm>& comm) {
      const Answers part = part_answers(opened_part(path, overrides, base, comm), data, kAskedPrompts);
      expect_same_rows(part.best, whole.best, what + ", greedy");
      expect_same_rows(part.sampled, whole.sampled, what + ", sampled");
      ASSERT_EQ(part.evaluated.values.size(), whole.evaluated.values.size()) << what;
      for (size_t i = 0; i < part.evaluated.values.size(); ++i) {
        const auto& [name, value] = whole.evaluated.values[i];
        EXPECT_NEAR(part.evaluated.values[i].second, value, 1e-5 * std::abs(value)) << what << " " << name;
      }
      ASSERT_EQ(part.evaluated.answers != nullptr, whole.evaluated.answers != nullptr) << what;
      if (!whole.evaluated.answers) return;
      ASSERT_EQ(part.evaluated.answers->prompts.size(), whole.evaluated.answers->prompts.size()) << what;
      for (size_t i = 0; i < whole.evaluated.answers->prompts.size(); ++i) {
        EXPECT_EQ(part.evaluated.answers->prompts[i].greedy, whole.evaluated.answers->prompts[i].greedy) << what;
        EXPECT_EQ(part.evaluated.answers->prompts[i].sampled, whole.evaluated.answers->prompts[i].sampled) << what;
      }
    });
  }
}

// A finished run in <dir>/small, of one process.
template <class Training>
fs::path trained_run(const fs::path& dir, const Overrides& more) {
  Training run(dir, test::with({"train.steps=4", "optim.ema=0.5"}, more));
  run.trainer.start_fresh();
  run.trainer.run();
  run.task.write_files(dir / "small");
  return dir / "small";
}

TEST(PartsInference, LanguageModels) {
  const Overrides plain{"lm.arch=decoder",    "lm.num_heads=4",      "lm.inner=64",
                        "data.encoder_len=0", "data.decoder_len=24", "data.train={text}"};
  for (const auto& [name, more] :
       {std::pair{"decoder", plain}, std::pair{"untied", test::with(plain, {"lm.tied=false"})},
        std::pair{"hrm", Overrides{"lm.arch=hrm", "lm.num_heads=4", "lm.inner=64"}}}) {
    const fs::path run = trained_run<testing::SmallLanguage>(fresh_folder(name), more);
    expect_as_whole(run.string(), {}, name, "", "", {2, 4});
    expect_as_whole(run.string(), {"eval.weights=raw"}, cat(name, ", raw"));
  }
}

TEST(PartsInference, CheckpointsInParts) {
  const fs::path dir = fresh_folder("parts");
  const fs::path run =
      trained_run<testing::SmallLanguage>(dir, {"lm.arch=decoder", "lm.num_heads=4", "lm.inner=64",
                                                "data.encoder_len=0", "data.decoder_len=24", "data.train={text}"});
  commands::ReshardOptions options;
  options.checkpoint = (dir / "whole").string();
  options.ranks = 3;
  options.out = (run / "checkpoints" / "step-000000004").string();
  fs::rename(options.out, options.checkpoint);
  ASSERT_EQ(commands::run_reshard(options), 0);
  expect_as_whole(options.out, {}, "three parts", "", "", {2, 4});
}

TEST(PartsInference, CausalModels) {
  const Overrides asks{"eval.answers=3", "eval.answer_tokens=8", "eval.max_samples=4"};
  const std::string data = (testing::answers_folder() / "data" / "test.jsonl").string();
  for (const auto& [name, more] :
       {std::pair{"adapter", Overrides{"lora.r=4"}}, std::pair{"joint", Overrides{"lora.modules_to_save=lm_head"}},
        std::pair{"all_weights", Overrides{"lora.r=0"}}, std::pair{"int8", Overrides{"hf.quantize=int8"}},
        std::pair{"fp8", Overrides{"hf.quantize=fp8"}}}) {
    const fs::path run = trained_run<testing::SmallPolychromic>(fresh_folder(name), test::with(kResponses, more));
    expect_as_whole(run.string(), asks, name, "", data);
  }
}

TEST(PartsInference, FoldersOfTransformersAndAdapters) {
  const Overrides asks{"hf.tokenizer=" + (testing::answers_folder() / "data").string(),
                       "chat.template=plain",
                       "chat.max_length=60",
                       "eval.max_samples=4",
                       "runtime.device=cpu",
                       "runtime.threads=1"};
  const std::string data = (testing::answers_folder() / "data" / "test.jsonl").string();
  expect_as_whole(kTiedQwen3.string(), asks, "folder", "", data);
  for (const char* format : {"int8", "fp8"}) {
    expect_as_whole(kTiedQwen3.string(), test::with(asks, {cat("hf.quantize=", format)}), format, "", data);
  }
  // An adapter whose B is not zero, on layers that are cut by rows, by columns and in several pieces.
  const fs::path dir = fresh_folder("adapter");
  trained_run<testing::SmallPolychromic>(
      dir, test::with(kResponses, {"hf.weights=load", "optim.lr=0.1", "hf.model=" + kTiedQwen3.string()}));
  commands::ExportOptions options;
  options.checkpoint = (dir / "small").string();
  options.to = "peft";
  options.out = (dir / "peft").string();
  ASSERT_EQ(commands::run_export(options), 0);
  for (const Overrides& more : {Overrides{}, Overrides{"hf.quantize=int8"}}) {
    expect_as_whole(options.out, test::with(asks, more), cat("peft ", more.size()), kTiedQwen3.string(), data);
  }
  const auto plain = part_answers(tasks::open_stored_model(kTiedQwen3.string(), asks, ""), data, kAskedPrompts);
  const auto adapted =
      part_answers(tasks::open_stored_model(options.out, asks, kTiedQwen3.string()), data, kAskedPrompts);
  EXPECT_NE(tasks::value_of(plain.evaluated.values, "loss"), tasks::value_of(adapted.evaluated.values, "loss"));
}

// The numbers of a part are those of the whole quantised weight, also where a rank has some columns of each row, whose
// scale is the row's.
TEST(PartsInference, QuantisedWeightsArePartsOfTheWhole) {
  for (const char* format : {"int8", "fp8"}) {
    for (const char* weights : {"hf.weights=load", "hf.weights=random"}) {
      const Overrides settings{"hf.model=" + kTiedQwen3.string(), cat("hf.quantize=", format), weights};
      const config::Config config = tasks::model_folder_config(kTiedQwen3, {settings[1], weights});
      const Runtime runtime = ops::start_runtime_and_ops(config);
      const tasks::CausalLm whole = tasks::open_frozen_lm(config, runtime, 32);
      on_parts(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
        const tasks::CausalLm part = tasks::open_frozen_lm(config, runtime, 32, parallel::across_of(comm));
        const auto expected = nn::quantized_layers(*whole.model), got = nn::quantized_layers(*part.model);
        ASSERT_EQ(got.size(), expected.size());
        for (size_t i = 0; i < got.size(); ++i) {
          const nn::Linear &linear = *got[i].linear, &from = *expected[i].linear;
          EXPECT_TRUE(at::equal(linear.dequantized(at::kFloat), linear.cut().part_of(from.dequantized(at::kFloat))))
              << format << " " << weights << " " << got[i].weight;
          EXPECT_LT(linear.quantized_bytes(), from.quantized_bytes());
        }
      });
    }
  }
}

// Where a rank reads only some rows of its part, as with parallel.zero=3.
TEST(PartsInference, OutlinesOfQuantisedPartsHaveTheSameNumbers) {
  for (const char* weights : {"hf.weights=load", "hf.weights=random"}) {
    const config::Config config =
        testing::small_polychromic_config(fresh_folder("config"),
                                          {"hf.model=" + kTiedQwen3.string(), weights, "hf.quantize=int8",
                                           "polychromic.objective=none", "polychromic.max_generation_length=100"})
            .config;
    const Runtime runtime = ops::start_runtime_and_ops(config);
    on_parts(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
      const tasks::CausalLm whole = tasks::open_causal_lm(config, runtime, 0, parallel::across_of(comm));
      const tasks::CausalLm outline =
          tasks::open_causal_lm(config, runtime, 0, parallel::across_of(comm), /*outline=*/true);
      const auto expected = nn::quantized_layers(*whole.model), got = nn::quantized_layers(*outline.model);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        const std::vector<at::Tensor> all = expected[i].linear->quantized_parts();
        ASSERT_TRUE(got[i].linear->is_outlined());
        // Rows across the border of two pieces.
        const int64_t rows = all[0].size(0), first = rows / 2 - 3, count = 7;
        const std::vector<at::Tensor> some = got[i].linear->read_quantized(first, count);
        for (size_t part = 0; part < all.size(); ++part) {
          EXPECT_TRUE(at::equal(some[part], all[part].narrow(0, first, count))) << weights << " " << got[i].weight;
        }
      }
    });
  }
}

TEST(PartsInference, RefusesWhatCannotBeCut) {
  const Overrides foreign{"runtime.device=cpu", "chat.template=plain",
                          "hf.tokenizer=" + (testing::answers_folder() / "data").string()};
  on_parts(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
    test::expect_error(ExitCode::usage, {"parallel.tensor", "hf.quantize = \"nf4\"", "set hf.quantize to int8 or fp8"},
                       [&] { opened_part(kTiedQwen3.string(), test::with(foreign, {"hf.quantize=nf4"}), "", comm); });
  });
  on_parts(4, [&](const std::shared_ptr<parallel::Comm>& comm) {
    test::expect_error(ExitCode::usage, {"parallel.tensor = 4 does not divide the 2 key and value heads"},
                       [&] { tasks::open_model_folder(opened_part(kTiedQwen3.string(), foreign, "", comm)); });
  });
}

}  // namespace
}  // namespace hrm::parts
