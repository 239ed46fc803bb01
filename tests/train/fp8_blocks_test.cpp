// Training language models with blocks in fp8, by the reference ops on the CPU.
#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/data/language_open.h"
#include "hrm/tasks/language_inference.h"
#include "support/expect_error.h"
#include "support/metric_lines.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "train/fp8_experts_cases.h"
#include "train/small_language.h"

namespace hrm {
namespace {

using test::Overrides;
using test::with;
using testing::fresh_folder;
using testing::SmallLanguage;

// 32 positions a row, so that any number of rows fits.
Overrides decoder(const Overrides& more = {}) {
  return with({"lm.arch=decoder", "data.encoder_len=26"}, more);
}

Overrides fp8_decoder(const Overrides& more = {}) {
  return with(decoder({"precision.blocks=fp8"}), more);
}

std::vector<nlohmann::json> records(const std::filesystem::path& dir, const std::string& key) {
  return test::metric_lines(dir / "small", key);
}

int64_t block_steps(SmallLanguage& run) {
  for (const auto& [name, value] : list_state(run.trainer).integers) {
    if (name == "fp8.steps") return value;
  }
  return -1;
}

void expect_same_tensors(SmallLanguage& a, SmallLanguage& b) {
  const auto want = a.tensors(), got = b.tensors();
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
}

void train_fresh(SmallLanguage& run) {
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
}

class Fp8Blocks : public ::testing::TestWithParam<Overrides> {};

// The loss of the run in fp8 follows that of the run without.
TEST_P(Fp8Blocks, LearnAsWithout) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with({"train.steps=36", "train.log_every=12", "optim.lr=3e-3"}, GetParam());
  SmallLanguage plain(dir / "plain", more), fp8(dir / "fp8", with(more, {"precision.blocks=fp8"}));
  train_fresh(plain);
  train_fresh(fp8);
  EXPECT_TRUE(fp8.runtime.precision.name.ends_with(" with fp8 blocks")) << fp8.runtime.precision.name;
  EXPECT_EQ(block_steps(fp8), 36);
  const auto want = records(dir / "plain", "train/loss"), got = records(dir / "fp8", "train/loss");
  ASSERT_EQ(want.size(), 3u);
  ASSERT_EQ(got.size(), 3u);
  for (size_t i = 0; i < want.size(); ++i) {
    const double a = want[i]["train/loss"], b = got[i]["train/loss"];
    EXPECT_NEAR(b, a, 0.03 * a) << "window " << i;
    EXPECT_NE(a, b);
    for (const char* kind : {"input", "gradient", "weight"}) {
      const std::string key = std::string("train/fp8/") + kind;
      EXPECT_GT(got[i][key + "/amax"].get<double>(), 0) << kind;
      EXPECT_GE(got[i][key + "/scale_max"].get<double>(), got[i][key + "/scale_min"].get<double>()) << kind;
      EXPECT_LT(got[i][key + "/saturated"].get<double>(), 0.5) << kind;
    }
    EXPECT_GT(got[i]["train/fp8/gradient/scale_min"].get<double>(), 1e3) << "the range of e5m2 is not used";
    int layers = 0;
    for (const auto& [key, value] : got[i].items()) {
      if (!key.starts_with("train/fp8/") || !key.ends_with("_proj/input/saturated")) continue;
      ++layers;
      EXPECT_LT(value.get<double>(), 0.02) << key;
      const std::string gradient =
          key.substr(0, key.size() - std::string("input/saturated").size()) + "gradient/saturated";
      EXPECT_LT(got[i].at(gradient).get<double>(), 0.2) << gradient;
    }
    // The largest and the smallest of the layers bound each of them, also as means over steps.
    for (const char* kind : {"input", "gradient", "weight"}) {
      const std::string all = std::string("train/fp8/") + kind;
      int found = 0;
      for (const auto& [key, value] : got[i].items()) {
        if (!key.starts_with("train/fp8/") || !key.ends_with(std::string("_proj/") + kind + "/amax")) continue;
        ++found;
        const double amax = value.get<double>();
        const double scale = got[i].at(key.substr(0, key.size() - 4) + "scale").get<double>();
        EXPECT_GT(amax, 0) << key;
        // Those of weights are a step newer than the largest of all.
        const double largest = got[i][all + "/amax"].get<double>();
        EXPECT_LE(amax, largest * (all.ends_with("weight") ? 1.2 : 1 + 1e-6)) << key;
        EXPECT_GT(scale, 0) << key;
      }
      EXPECT_EQ(found, layers) << kind;
    }
    EXPECT_EQ(layers, static_cast<int>(fp8.task.fp8()->layers().size()));
  }
  EXPECT_LT(want[2]["train/loss"].get<double>(), 0.9 * want[0]["train/loss"].get<double>()) << "nothing was learned";
  EXPECT_FALSE(want[0].contains("train/fp8/input/amax"));
}

// Of all micro-batches and ranks; nothing of layers that are left out.
TEST(Fp8BlocksTraining, TheShareOfClampedValuesIsOfTheWholeStep) {
  const auto dir = fresh_folder("runs");
  const Overrides more = fp8_decoder({"train.log_every=1", "train.steps=4", "precision.fp8_amax_history=1",
                                      "precision.fp8_skip=*.layers.0.*", "runtime.deterministic=true"});
  const auto shares = [&](const std::string& name, const Overrides& kind, int ranks) {
    auto comms = parallel::make_thread_comms(ranks);
    test::on_threads(ranks, [&](int rank) {
      const std::shared_ptr<parallel::Comm> comm = std::move(comms[static_cast<size_t>(rank)]);
      SmallLanguage run(dir / name, with(more, kind), comm);
      run.trainer.start_fresh();
      run.trainer.run();
    });
    std::vector<std::map<std::string, double>> steps;
    for (const nlohmann::json& record : records(dir / name, "train/loss")) {
      steps.emplace_back();
      for (const auto& [key, value] : record.items()) {
        if (key.find("_proj/") != std::string::npos && key.ends_with("/saturated"))
          steps.back()[key] = value.get<double>();
      }
    }
    return steps;
  };
  const auto whole = shares("whole", {}, 1);
  ASSERT_EQ(whole.size(), 4u);
  double most = 0;
  for (size_t step = 0; step < whole.size(); ++step) {
    ASSERT_EQ(whole[step].size(), 8u) << "inputs and gradients of the four layers of a block";
    for (const auto& [key, share] : whole[step]) {
      EXPECT_EQ(key.find("layers.0"), std::string::npos) << key;
      EXPECT_TRUE(step > 0 || share == 0) << key << ": the first step has scales of its own tensors";
      most = std::max(most, share);
    }
  }
  EXPECT_GT(most, 0) << "nothing to test";
  for (const auto& other : {shares("parts", {"train.micro_batch_size=2"}, 1), shares("ranks", {}, 2)}) {
    ASSERT_EQ(other.size(), whole.size());
    for (size_t step = 0; step < whole.size(); ++step) {
      for (const auto& [key, share] : whole[step]) EXPECT_NEAR(other[step].at(key), share, 0.1 * share + 5e-4) << key;
    }
  }
}

// Evaluations use the weights in the compute dtype and leave every slot as it was, also those of averages.
TEST_P(Fp8Blocks, EvaluationsInBetweenChangeNothing) {
  const auto dir = fresh_folder("runs");
  const Overrides averaged = with(GetParam(), {"precision.blocks=fp8", "optim.ema=0.9", "eval.weights=both"});
  SmallLanguage without(dir / "without", averaged), often(dir / "with", with(averaged, {"train.eval_every=2"}));
  train_fresh(without);
  train_fresh(often);
  expect_same_tensors(without, often);
  const tasks::NamedValues want = often.task.evaluate([](const tasks::EvalProgress&) {});
  often.task.write_files(dir / "with" / "small");
  const tasks::LanguageInference loaded = tasks::open_language_model(dir / "with" / "small", {}, "raw");
  tasks::LanguageEvaluation evaluation(*loaded.model, tasks::language_eval_options(loaded.config, 1),
                                       data::open_validation_slices(loaded.config.data, loaded.meta, 16), loaded.text,
                                       at::kCPU);
  const tasks::NamedValues got = evaluation.run([](const tasks::EvalProgress&) {});
  EXPECT_EQ(tasks::value_of(got, "loss"), tasks::value_of(want, "loss"));
}

TEST_P(Fp8Blocks, AResumedRunIsTheSame) {
  const auto dir = fresh_folder("runs");
  const Overrides more = with(GetParam(), {"precision.blocks=fp8", "precision.fp8_warmup_steps=2", "train.log_every=3",
                                           "train.checkpoint_every=4", "optim.schedule=constant"});
  SmallLanguage whole(dir / "whole", more);
  train_fresh(whole);
  {
    SmallLanguage first(dir / "parts", with(more, {"train.steps=4"}));
    train_fresh(first);
  }
  SmallLanguage second(dir / "parts", more);
  const auto found = checkpoint::find_latest_valid(dir / "parts" / "small");
  ASSERT_TRUE(found);
  second.trainer.resume(found->dir, found->meta.info);
  EXPECT_EQ(block_steps(second), 4);
  second.trainer.run();
  expect_same_tensors(whole, second);
}

std::string fp8_variant_name(const ::testing::TestParamInfo<Overrides>& info) {
  const std::vector<std::string> names{"decoder", "bf16", "recomputed_bf16", "experts", "hrm", "cross_attention"};
  return names[info.index];
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Fp8Blocks,
    ::testing::Values(decoder(), decoder({"precision.compute=bf16"}),
                      decoder({"precision.compute=bf16", "lm.recompute=true"}),
                      decoder({"moe.experts=4", "moe.inner=48", "moe.every=2"}),
                      Overrides{"data.encoder_len=32", "data.decoder_len=6", "objective.deep_supervision=0.5"},
                      Overrides{"data.encoder_len=32", "data.decoder_len=16", "lm.bridge=cross_attention"}),
    fp8_variant_name);

TEST(Fp8BlocksTraining, ExpertsAndRoutersHaveTheGradientsOfBf16) {
  testing::check_gradients_of_experts({"train.global_batch_size=32"});
}

TEST(Fp8BlocksTraining, ScalingsAndFormatsLearn) {
  const auto dir = fresh_folder("runs");
  const Overrides more{"train.steps=16", "train.log_every=16", "optim.lr=3e-3"};
  const auto loss = [&](const std::string& name, const Overrides& kind) {
    SmallLanguage run(dir / name, with(more, kind));
    train_fresh(run);
    return records(dir / name, "train/loss").at(0)["train/loss"].get<double>();
  };
  const double plain = loss("plain", decoder());
  double delayed = 0;
  for (const auto& [name, kind] :
       {std::pair{"delayed", Overrides{}}, std::pair{"current", Overrides{"precision.fp8_scaling=current"}},
        std::pair{"rows", Overrides{"precision.fp8_scaling=rows"}},
        std::pair{"e4m3", Overrides{"precision.fp8_gradients=e4m3", "precision.fp8_margin=1"}},
        std::pair{"skip", Overrides{"precision.fp8_skip=*.layers.0.*,*.down_proj"}}}) {
    const double got = loss(name, fp8_decoder(kind));
    EXPECT_NEAR(got, plain, 0.03 * plain) << name;
    EXPECT_NE(got, delayed) << name << " changes nothing";
    delayed = got;
  }
}

TEST(Fp8BlocksTraining, ScalesDoNotDependOnTheMicroBatches) {
  const auto dir = fresh_folder("runs");
  SmallLanguage whole(dir / "whole", fp8_decoder()), parts(dir / "parts", fp8_decoder({"train.micro_batch_size=2"}));
  for (SmallLanguage* run : {&whole, &parts}) {
    run->trainer.start_fresh();
    run->trainer.run_steps(3);
  }
  EXPECT_EQ(block_steps(parts), 3);
  const at::Tensor a = whole.tensors().at("fp8.history"), b = parts.tensors().at("fp8.history");
  EXPECT_TRUE(at::allclose(a, b, 0.2, 0)) << a << b;
  EXPECT_TRUE((a.narrow(1, 0, 3) > 0).all().item<bool>());
  EXPECT_TRUE((a.narrow(1, 3, 13) == 0).all().item<bool>());
}

TEST(Fp8BlocksTraining, WarmUpIsTrainingWithout) {
  const auto dir = fresh_folder("runs");
  SmallLanguage plain(dir / "plain", decoder()), fp8(dir / "fp8", fp8_decoder({"precision.fp8_warmup_steps=3"}));
  for (SmallLanguage* run : {&plain, &fp8}) {
    run->trainer.start_fresh();
    run->trainer.run_steps(3);
  }
  const auto near = [&](double tolerance) {
    const auto want = plain.tensors(), got = fp8.tensors();
    for (const auto& [name, tensor] : want) {
      if (!name.starts_with("model.")) continue;
      const at::Tensor& other = got.at(name);
      if (!at::allclose(tensor, other, tolerance, tolerance)) return false;
    }
    return true;
  };
  EXPECT_TRUE(near(1e-5));
  EXPECT_EQ(fp8.task.fp8()->mode(), nn::Fp8Mode::gather);
  EXPECT_TRUE((fp8.tensors().at("fp8.history").narrow(1, 0, 3) > 0).all().item<bool>());
  EXPECT_EQ(fp8.task.graph_key(), 1);
  plain.trainer.run_steps(2);
  fp8.trainer.run_steps(2);
  EXPECT_EQ(fp8.task.fp8()->mode(), nn::Fp8Mode::delayed) << "the first step in 8 bits has a history";
  EXPECT_EQ(fp8.task.graph_key(), 2) << "each form of a step is captured by itself";
  EXPECT_FALSE(near(1e-5));
}

// A gradient that is not finite: its step is left out, and scales and history go on.
TEST(Fp8BlocksTraining, AStepThatIsNotFiniteLeavesTheHistorySound) {
  const auto dir = fresh_folder("runs");
  SmallLanguage run(dir, fp8_decoder());
  run.trainer.start_fresh();
  run.trainer.run_steps(3);
  const at::Tensor scales = run.task.fp8()->gradient_slots().select(1, 0).clone();
  at::Tensor weight = run.task.model().named_parameters()["model.layers.0.input_layernorm.weight"];
  {
    const at::NoGradGuard no_grad;
    weight[3].fill_(NAN);
  }
  run.trainer.run_steps(1);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::isfinite(run.tensors().at("model.layers.1.mlp.down_proj.weight")).all().item<bool>());
    weight[3].fill_(1);
  }
  for (const char* name : {"fp8.slots", "fp8.history", "fp8.values"}) {
    EXPECT_TRUE(at::isfinite(run.tensors().at(name)).all().item<bool>()) << name;
  }
  run.trainer.run_steps(2);
  EXPECT_TRUE(at::allclose(run.task.fp8()->gradient_slots().select(1, 0), scales, 0.7));
  EXPECT_TRUE(at::isfinite(run.tensors().at("model.layers.1.mlp.down_proj.weight")).all().item<bool>());
}

std::filesystem::path trained(const std::filesystem::path& dir, const Overrides& overrides) {
  SmallLanguage run(dir, overrides);
  train_fresh(run);
  return checkpoint::list_checkpoints(dir / "small").front();
}

// The window of metrics is open when the run is resumed with another arithmetic.
class Fp8BlocksSwitched : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Precisions, Fp8BlocksSwitched, ::testing::Values("automatic", "bf16"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Fp8BlocksSwitched, CanBeSwitchedOnAndOffWhenARunGoesOn) {
  const auto dir = fresh_folder("runs");
  const auto steps = [&](int count) {
    Overrides set{"train.steps=" + std::to_string(count), "train.log_every=3", "optim.schedule=constant"};
    if (GetParam() == std::string("bf16")) set.emplace_back("precision.compute=bf16");
    return set;
  };
  auto found = trained(dir, with(decoder(), steps(4)));
  {
    SmallLanguage run(dir, with(fp8_decoder(), steps(8)));
    run.trainer.resume(found);
    EXPECT_EQ(block_steps(run), 0);
    EXPECT_EQ(run.task.fp8()->layers()[0].linear->casts_weight(), GetParam() == std::string("bf16"));
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(block_steps(run), 4);
  }
  found = checkpoint::list_checkpoints(dir / "small").front();
  SmallLanguage run(dir, with(decoder(), steps(12)));
  run.trainer.resume(found);
  EXPECT_EQ(block_steps(run), -1);
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  // Products read copies again, which follow their masters.
  for (const nn::NamedLinear& layer : models::token_linears(run.task.model())) {
    const at::Tensor compute = layer.linear->compute_weight();
    EXPECT_FALSE(layer.linear->casts_weight()) << layer.name;
    EXPECT_TRUE(at::equal(compute, layer.linear->weight().to(compute.scalar_type()))) << layer.name;
  }
  for (const auto& [name, tensor] : run.tensors()) EXPECT_FALSE(name.starts_with("fp8.")) << name;
}

TEST(Fp8BlocksTraining, AnotherFormOnResumeForgetsTheScales) {
  const auto dir = fresh_folder("runs");
  const auto found = trained(dir, fp8_decoder({"train.steps=4"}));
  for (const char* change : {"precision.fp8_gradients=e4m3", "precision.fp8_skip=*.o_proj"}) {
    SmallLanguage run(dir / "more", fp8_decoder({"train.steps=8", change}));
    run.trainer.resume(found);
    EXPECT_EQ(block_steps(run), 4) << change;
    run.trainer.run_steps(1);
    EXPECT_EQ(run.task.fp8()->mode(), nn::Fp8Mode::current) << change;
    EXPECT_EQ(block_steps(run), 1) << change;
    run.trainer.run_steps(1);
    EXPECT_EQ(run.task.fp8()->mode(), nn::Fp8Mode::delayed) << change;
  }
  SmallLanguage run(dir / "history", fp8_decoder({"precision.fp8_amax_history=8"}));
  test::expect_error(ExitCode::checkpoint, {"fp8.history"}, [&] { run.trainer.resume(found); });
}

// Two ranks agree on the scales of the global batch, with whole and with split state.
TEST(Fp8BlocksTraining, RanksAgreeOnTheScales) {
  const auto dir = fresh_folder("runs");
  const Overrides more = fp8_decoder({"precision.fp8_warmup_steps=2", "optim.eps=1e-3", "train.steps=6"});
  SmallLanguage alone(dir / "alone", more);
  train_fresh(alone);
  const auto want = alone.tensors();
  for (const int zero : {0, 1, 2}) {
    auto comms = parallel::make_thread_comms(2);
    std::vector<std::map<std::string, at::Tensor>> got(2);
    test::on_threads(2, [&](int rank) {
      const std::shared_ptr<parallel::Comm> comm = std::move(comms[static_cast<size_t>(rank)]);
      SmallLanguage run(dir / std::to_string(zero), with(more, {"parallel.zero=" + std::to_string(zero)}), comm);
      run.trainer.start_fresh();
      run.trainer.run();
      got[static_cast<size_t>(rank)] = run.tensors();
    });
    for (const char* name : {"fp8.slots", "fp8.history", "fp8.values"}) {
      EXPECT_TRUE(at::equal(got[0].at(name), got[1].at(name))) << name << ", zero " << zero;
    }
    // A rank's half of the batch rounds as in the whole one; gradients differ in the order of sums.
    EXPECT_TRUE(at::allclose(got[0].at("fp8.history"), want.at("fp8.history"), 0.1, 0)) << "zero " << zero;
    for (const auto& [name, tensor] : want) {
      if (!name.starts_with("model.")) continue;
      EXPECT_TRUE(at::allclose(got[0].at(name), tensor, 1e-2, 2e-3)) << name << ", zero " << zero;
    }
  }
}

// Layers without copies in the compute dtype, also where ranks exchange the masters: evaluation reads what they are
// now.
TEST(Fp8BlocksTraining, RanksEvaluateTheMastersOfNow) {
  const auto dir = fresh_folder("runs");
  const Overrides more = fp8_decoder({"precision.compute=bf16", "train.steps=4", "optim.ema=0.9"});
  for (const int zero : {0, 1, 2}) {
    auto comms = parallel::make_thread_comms(2);
    std::vector<std::map<std::string, at::Tensor>> got(2);
    std::set<std::string> shares;  // the embedding's
    test::on_threads(2, [&](int rank) {
      const std::shared_ptr<parallel::Comm> comm = std::move(comms[static_cast<size_t>(rank)]);
      SmallLanguage run(dir / std::to_string(zero), with(more, {"parallel.zero=" + std::to_string(zero)}), comm);
      run.trainer.start_fresh();
      run.trainer.run();
      const auto loss = [&] { return tasks::value_of(run.task.evaluate([](const tasks::EvalProgress&) {}), "loss"); };
      const double casting = loss();
      for (const nn::NamedLinear& layer : run.task.fp8()->layers()) {
        EXPECT_TRUE(layer.linear->casts_weight());
        layer.linear->set_compute_weight(layer.linear->weight().detach().to(at::kBFloat16));
      }
      EXPECT_EQ(casting, loss()) << "zero " << zero;
      got[static_cast<size_t>(rank)] = run.tensors();
      for (const nn::Parameter& parameter : run.task.parameters().all()) {
        if (rank == 0 && parameter.only_compute_is_read) shares.insert(parameter.name);
      }
    });
    EXPECT_EQ(shares, zero == 0 ? std::set<std::string>() : std::set<std::string>{"model.embed_tokens.weight"});
    for (const auto& [name, tensor] : got[0]) {
      if (shares.contains(name)) continue;
      EXPECT_TRUE(!name.starts_with("model.") || at::equal(tensor, got[1].at(name))) << name << ", zero " << zero;
    }
  }
}

TEST(Fp8BlocksTraining, RowsThatDoNotFitAreRefused) {
  const auto dir = fresh_folder("runs");
  test::expect_error(ExitCode::usage, {"precision.blocks = fp8", "4 x 26 positions", "train.micro_batch_size"}, [&] {
    SmallLanguage(dir, fp8_decoder({"data.encoder_len=20", "train.micro_batch_size=4"}));
  });
  test::expect_error(ExitCode::usage, {"8 x 5 positions of prompts", "precision.blocks to same"}, [&] {
    SmallLanguage(dir, {"precision.blocks=fp8", "data.encoder_len=5", "data.decoder_len=14",
                        "train.global_batch_size=8", "lm.prefix_len=2"});
  });
  test::expect_error(ExitCode::usage, {"'*.q_proj'", "model.layers.1.mlp.down_proj"},
                     [&] { SmallLanguage(dir, fp8_decoder({"precision.fp8_skip=*.q_proj"})); });
  test::expect_error(ExitCode::usage, {"model.layers.0.self_attn.qkv_proj", "40 by"}, [&] {
    SmallLanguage(dir, fp8_decoder({"lm.hidden_size=40", "lm.num_heads=4"}));
  });
}

TEST(Fp8BlocksTraining, TheStartSaysWhatIsInFp8) {
  const auto dir = fresh_folder("runs");
  SmallLanguage run(dir, {"precision.blocks=fp8", "data.encoder_len=32", "precision.fp8_warmup_steps=7",
                          "moe.experts=4", "moe.inner=32", "moe.every=2", "precision.fp8_skip=enc.*.o_proj"});
  const std::string text = run.task.describe();
  // Two blocks of the decoder, one of them with experts, and one of the encoder without its output projection.
  for (const char* part : {"9 of 10 linear layers in 3 blocks", "gradients e5m2", "delayed scaling",
                           "7 steps of warm-up", "experts", "reasoning core", "slow"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace hrm
