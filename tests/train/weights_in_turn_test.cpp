// parallel.zero=3 as a user trains with it: the trainer, evaluations, checkpoints that any other stage reads.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/ops/stale_gradient.h"
#include "hrm/parallel/comm.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "support/whole_state.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::Overrides;
using test::with;
using testing::fresh_folder;
using testing::SmallLanguage;

// Blocks enough for buffers that take turns: three of 1.5 MiB to a piece or so.
const Overrides kBlocks{"lm.hidden_size=96", "lm.layers=8",        "parallel.bucket_mb=1",
                        "train.steps=5",     "train.log_every=1",  "optim.eps=0.1",
                        "optim.lr=0.02",     "train.eval_every=5", "train.checkpoint_every=5"};

// Trains in `dir` from the newest checkpoint there. Returns the units that took turns.
template <class Run = SmallLanguage>
size_t train_language(const fs::path& dir, int ranks, const Overrides& more) {
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
  size_t units = 0;
  test::on_threads(ranks, [&](int rank) {
    const auto& comm = comms[static_cast<size_t>(rank)];
    Run run(dir, more, comm);
    const auto found = checkpoint::find_latest_valid(dir / "small");
    comm->barrier();
    if (found) {
      run.trainer.resume(found->dir, found->meta.info);
    } else {
      run.trainer.start_fresh();
    }
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    if (rank == 0 && run.trainer.weights() != nullptr) units = run.trainer.weights()->units();
  });
  return units;
}

std::map<std::string, at::Tensor> stored_language(const fs::path& dir, const Overrides& more) {
  SmallLanguage run(dir / "reader", more);
  run.trainer.resume(checkpoint::open_checkpoint(dir / "small").dir);
  std::map<std::string, at::Tensor> out;
  for (const auto& entry : list_state(run.trainer).tensors) out[entry.name] = entry.tensor.detach().clone();
  return out;
}

// Values of a metric, by step.
std::map<int64_t, double> logged_by_step(const fs::path& dir, const std::string& key) {
  std::ifstream file(dir / "small" / "metrics.jsonl");
  std::map<int64_t, double> out;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains(key)) out[json["step"]] = json[key];
  }
  return out;
}

void expect_same_curves(const fs::path& a, const fs::path& b, double tolerance) {
  for (const char* key : {"train/loss", "train/grad_norm_raw", "eval/loss"}) {
    const auto one = logged_by_step(a, key), other = logged_by_step(b, key);
    ASSERT_EQ(one.size(), other.size()) << key;
    for (const auto& [step, value] : one) EXPECT_NEAR(other.at(step), value, tolerance * value) << key << " " << step;
  }
}

void expect_same_language(const fs::path& a, const fs::path& b, const Overrides& more, double tolerance) {
  const auto one = stored_language(a, more), other = stored_language(b, more);
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, tensor] : one) {
    // Moments add up what the gradients of all steps differ by.
    if (!tensor.is_floating_point() || (tolerance > 0 && name.starts_with("optim."))) continue;
    const double most = tensor.abs().max().item<double>();
    EXPECT_LE((other.at(name) - tensor).abs().max().item<double>(), tolerance * most) << name << " of " << most;
  }
}

struct TurnsVariant {
  const char* name;
  Overrides more;
};
class WeightsInTurn : public ::testing::TestWithParam<TurnsVariant> {};

TEST_P(WeightsInTurn, TrainsAsOneRank) {
  const Overrides one = with(kBlocks, GetParam().more), several = with(one, {"parallel.zero=3"});
  const fs::path alone = fresh_folder("alone"), dir = fresh_folder("ranks");
  train_language(alone, 1, one);
  EXPECT_GE(train_language(dir, 2, several), 3u);
  expect_same_curves(alone, dir, 1e-6);
  expect_same_language(alone, dir, one, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, WeightsInTurn,
    ::testing::Values(
        TurnsVariant{"decoder", {"lm.arch=decoder"}},
        TurnsVariant{"untied_recomputed", {"lm.arch=decoder", "lm.tied=false", "lm.recompute=true"}},
        // One row of the evaluation's last batch is left, and the second rank has none of it.
        TurnsVariant{"accumulation", {"lm.arch=decoder", "train.micro_batch_size=1", "eval.max_samples=5"}},
        TurnsVariant{"experts",
                     {"lm.arch=decoder", "moe.experts=2", "moe.inner=192", "moe.bias_rate=0.001", "moe.every=2"}},
        TurnsVariant{"hrm", {"optim.ema=0.9", "optim.lr=0.002"}}),
    [](const auto& info) { return std::string(info.param.name); });

// Saved with zero 3 and gone on with by fewer ranks without, and the other way: as the run without a stop.
TEST(WeightsInTurnLife, AnyStageReadsTheCheckpoint) {
  const Overrides base = with(kBlocks, {"lm.arch=decoder", "optim.ema=0.9"}), longer = with(base, {"train.steps=8"});
  const Overrides turns{"parallel.zero=3"};
  const fs::path alone = fresh_folder("alone");
  train_language(alone, 1, longer);
  const auto expected = logged_by_step(alone, "train/loss");
  struct Way {
    const char* name;
    int ranks;
    Overrides first;
    int then_ranks;
    Overrides then;
  };
  for (const Way& way : {Way{"down", 4, turns, 1, {}}, Way{"up", 1, {}, 2, turns}, Way{"other", 2, turns, 4, turns},
                         Way{"two", 2, {"parallel.zero=2"}, 2, turns}}) {
    const fs::path dir = fresh_folder(way.name);
    train_language(dir, way.ranks, with(base, way.first));
    train_language(dir, way.then_ranks, with(longer, way.then));
    for (const auto& [step, loss] : logged_by_step(dir, "train/loss")) {
      EXPECT_NEAR(loss, expected.at(step), 1e-6 * loss) << way.name << ", step " << step;
    }
    EXPECT_EQ(logged_by_step(dir, "train/loss").rbegin()->first, 8);
    expect_same_language(alone, dir, longer, 1e-5);
  }
}

// The copies that travel are half as long, and what they give is the same to the bit.
TEST(WeightsInTurnLife, HalfPrecisionHasTheBitsOfWholeWeights) {
  const Overrides base = with(kBlocks, {"lm.arch=decoder", "precision.compute=bf16", "optim.ema=0.9"});
  const fs::path whole = fresh_folder("whole"), shares = fresh_folder("shares"), turns = fresh_folder("turns");
  train_language(whole, 2, base);
  train_language(shares, 2, with(base, {"parallel.zero=1"}));
  train_language(turns, 2, with(base, {"parallel.zero=3"}));
  expect_same_language(whole, shares, base, 0);
  expect_same_language(whole, turns, base, 0);
  expect_same_curves(whole, turns, 1e-7);  // the norm is of other parts
}

// Frozen weights beside an adapter, in the form in which they are stored, and fine-tuning of all weights.
TEST(WeightsInTurnLife, FineTuningOnResponses) {
  const Overrides base{"polychromic.objective=none",
                       "polychromic.max_generation_length=100",
                       "train.steps=5",
                       "train.log_every=1",
                       "train.micro_batch_size=2",
                       "optim.eps=0.1",
                       "train.eval_every=5"};
  for (const Overrides& more : {Overrides{}, Overrides{"hf.quantize=nf4"}, Overrides{"lora.r=0"}}) {
    const Overrides one = with(base, more);
    const fs::path alone = fresh_folder("alone"), dir = fresh_folder("ranks");
    train_language<testing::SmallPolychromic>(alone, 1, one);
    EXPECT_GE(train_language<testing::SmallPolychromic>(dir, 2, with(one, {"parallel.zero=3"})), 1u);
    expect_same_curves(alone, dir, 1e-6);
  }
}

// A new training from a checkpoint's weights, where masters are shards.
TEST(WeightsInTurnLife, StartsFromWeights) {
  const Overrides base{"train.steps=2", "train.checkpoint_every=2", "optim.ema=0.9", "precision.compute=bf16"};
  const fs::path dir = fresh_folder("from");
  train_language<testing::SmallRun>(dir, 1, base);
  const fs::path checkpoint = checkpoint::open_checkpoint(dir / "small").dir;
  testing::SmallRun whole(fresh_folder("whole"), base);
  whole.trainer.start_from(checkpoint);
  const StateListing expected = list_state(whole.trainer);
  for (const char* zero : {"parallel.zero=1", "parallel.zero=0"}) {
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
    test::on_threads(2, [&](int rank) {
      const auto& comm = comms[static_cast<size_t>(rank)];
      testing::SmallRun run(dir, with(base, {zero}), comm);
      run.trainer.start_from(checkpoint);
      const auto state = test::whole_state(run.trainer, *comm);
      for (const TensorEntry& entry : expected.tensors) {
        if (entry.role != StateRole::weight && entry.role != StateRole::ema) continue;
        EXPECT_TRUE(at::equal(state.at(entry.name), entry.tensor)) << entry.name << " with " << zero;
      }
      for (size_t i = 0; i < run.task.parameters().all().size(); ++i) {
        EXPECT_TRUE(at::equal(run.task.parameters().all()[i].compute, whole.task.parameters().all()[i].compute));
      }
    });
  }
}

TEST(WeightsInTurnLife, RefusedWhereAllWeightsAreRead) {
  for (const auto& [setting, text] : {std::pair{"precision.blocks=fp8", "quantises the weights of all blocks"},
                                      std::pair{"precision.fake_quantize=int8", "rounds whole weights"},
                                      std::pair{"lm.style=prototype", "is not for the blocks of"}}) {
    try {
      testing::small_language_config(fresh_folder("refused"), {"parallel.zero=3", setting});
      ADD_FAILURE() << setting << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

// Of weights so small gradients are cleared; here the first product of a pass overwrites them.
TEST(OverwrittenGradients, SameTraining) {
  struct Overwriting {
    explicit Overwriting(bool on) : before(ops::overwritten_elements()) {
      if (on) ops::set_overwritten_elements(1);
    }
    ~Overwriting() { ops::set_overwritten_elements(before); }
    int64_t before;
  };
  const Overrides decoder{"lm.arch=decoder", "data.encoder_len=0", "data.train={text}", "lm.tied=false",
                          "data.decoder_len=8"};
  struct Case {
    const char* name;
    int ranks;
    Overrides overrides;
  };
  for (const Case& c :
       {Case{"hrm", 1, {}}, Case{"decoder", 1, decoder},
        Case{"accumulation", 1, with(decoder, {"train.micro_batch_size=2"})},
        Case{"added", 1, with(decoder, {"precision.blocks=fp8", "precision.fp8_skip="})},
        Case{"added_in_turns", 2, with(decoder, {"precision.blocks=fp8", "precision.fp8_skip=", "parallel.zero=2"})},
        Case{"recomputed", 1, with(decoder, {"lm.recompute=true"})},
        Case{"all_reduce", 2, with(decoder, {"train.micro_batch_size=2"})},
        Case{"zero_1", 2, with(decoder, {"parallel.zero=1"})},
        Case{"zero_2", 2, with(decoder, {"parallel.zero=2", "train.micro_batch_size=2"})},
        Case{"zero_3", 2, with(decoder, {"parallel.zero=3", "lm.recompute=true"})}}) {
    SCOPED_TRACE(c.name);
    const auto dir = fresh_folder("overwritten");
    const Overrides overrides = with(kBlocks, c.overrides);
    for (const bool on : {false, true}) {
      const Overwriting overwriting(on);
      train_language(dir / (on ? "on" : "off"), c.ranks, overrides);
    }
    expect_same_language(dir / "off", dir / "on", overrides, 0);
    expect_same_curves(dir / "off", dir / "on", 0);
  }
}

}  // namespace
}  // namespace hrm
