// Several ranks are one training: as threads of this process, beside one rank alone.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/replicas.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "support/whole_state.h"
#include "train/small_run.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::Overrides;
using testing::fresh_folder;
using testing::SmallRun;

// Each rank in a thread.
void on_ranks(int ranks, const std::function<void(const std::shared_ptr<parallel::Comm>&)>& body) {
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
  test::on_threads(ranks, [&](int rank) { body(comms[static_cast<size_t>(rank)]); });
}

// Trains to the end in `dir`, from the newest checkpoint there.
void train_ranks(const fs::path& dir, int ranks, const Overrides& more) {
  on_ranks(ranks, [&](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(dir, more, comm);
    const auto found = checkpoint::find_latest_valid(dir / "small");
    comm->barrier();
    if (found) {
      run.trainer.resume(found->dir);
    } else {
      run.trainer.start_fresh();
    }
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
}

// The state of the newest checkpoint, by name, and its numbers.
struct Stored {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, int64_t> integers;
};

Stored stored(const fs::path& dir, const Overrides& more) {
  SmallRun run(dir / "reader", more);
  run.trainer.resume(checkpoint::open_checkpoint(dir / "small").dir);
  const StateListing listing = list_state(run.trainer);
  Stored out;
  for (const auto& entry : listing.tensors) out.tensors[entry.name] = entry.tensor.detach().clone();
  for (const auto& [name, value] : listing.integers) out.integers[name] = value;
  return out;
}

std::vector<nlohmann::json> records_with(const fs::path& dir, const std::string& key) {
  std::ifstream file(dir / "small" / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains(key)) lines.push_back(json);
  }
  return lines;
}

void expect_same_curve(const fs::path& a, const fs::path& b, double tolerance) {
  for (const std::string key : {"train/loss", "train/grad_norm_raw", "train/q_halt_loss", "train/halted_per_step",
                                "eval/lm_loss", "eval/accuracy", "eval/count"}) {
    const auto one = records_with(a, key), other = records_with(b, key);
    ASSERT_EQ(one.size(), other.size()) << key;
    ASSERT_FALSE(one.empty()) << key;
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(one[i]["step"], other[i]["step"]);
      const double x = one[i][key], y = other[i][key];
      EXPECT_NEAR(x, y, tolerance * std::max(std::abs(x), 1.0)) << key << " at step " << one[i]["step"];
    }
  }
}

void expect_same_state(const Stored& a, const Stored& b, double tolerance) {
  EXPECT_EQ(a.integers, b.integers);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    const at::Tensor& other = b.tensors.at(name);
    // Samples, their segments and what has halted follow from integers and draws.
    if (!tensor.is_floating_point() || tolerance == 0) {
      EXPECT_TRUE(at::equal(tensor, other)) << name;
    } else {
      EXPECT_TRUE(at::allclose(tensor, other, tolerance, tolerance))
          << name << " differs by " << (tensor - other).abs().max().item<double>();
    }
  }
}

struct SplitCase {
  const char* name;
  Overrides more;
  // Of ZeroTest alone: how far zero 1 and 2 may be from zero 0, and whether gradients are rounded by the ranks.
  std::array<double, 2> tolerance = {};
  bool rounds = false;
};

void PrintTo(const SplitCase& value, std::ostream* out) {
  *out << value.name;
}

class RanksTest : public ::testing::TestWithParam<SplitCase> {
 protected:
  static Overrides with(const Overrides& more) {
    // Plain rates: AdamATan2's first steps have the size of the rate whatever the gradient, so that rounding shows.
    Overrides all{"train.log_every=1", "optim.name=adamw", "optim.eps=1e-3", "eval.max_samples=7"};
    all.insert(all.end(), GetParam().more.begin(), GetParam().more.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_P(RanksTest, TrainAsOne) {
  const fs::path alone = fresh_folder("alone");
  train_ranks(alone, 1, with({}));
  const Stored expected = stored(alone, with({}));
  for (const int ranks : {2, 4}) {
    const fs::path dir = fresh_folder(std::to_string(ranks));
    train_ranks(dir, ranks, with({}));
    expect_same_curve(alone, dir, 1e-6);
    expect_same_state(expected, stored(dir, with({})), 2e-5);
  }
}

TEST_P(RanksTest, SameBitsAgain) {
  const fs::path first = fresh_folder("first"), second = fresh_folder("second");
  train_ranks(first, 2, with({}));
  train_ranks(second, 2, with({}));
  expect_same_state(stored(first, with({})), stored(second, with({})), 0);
}

// Saved by four ranks, gone on with by another number.
TEST_P(RanksTest, ResumeWithOtherRanks) {
  const fs::path straight = fresh_folder("straight"), half = fresh_folder("half");
  train_ranks(straight, 4, with({}));
  const Stored expected = stored(straight, with({}));
  // The schedule ends at train.steps: the same rate for the shorter run.
  const Overrides flat{"optim.min_ratio=1.0"};
  for (const int ranks : {1, 2, 4}) {
    const fs::path whole = fresh_folder(cat("whole", ranks)), parts = fresh_folder(cat("parts", ranks));
    Overrides four = with(flat), eight = with(flat);
    four.push_back("train.steps=4");
    train_ranks(parts, 4, four);
    train_ranks(parts, ranks, eight);
    train_ranks(whole, 4, eight);
    expect_same_state(stored(whole, eight), stored(parts, eight), ranks == 4 ? 0 : 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RanksTest,
    ::testing::Values(
        SplitCase{"plain", {}}, SplitCase{"accumulation", {"train.micro_batch_size=1"}},
        SplitCase{"pool", {"data.reference_semantics=false"}},
        SplitCase{"pool_accumulation", {"data.reference_semantics=false", "train.micro_batch_size=2"}},
        SplitCase{"average", {"optim.ema=0.9", "optim.grad_clip=0.5"}},
        SplitCase{"trm", {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true"}},
        SplitCase{"urm", {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true"}},
        SplitCase{"all_cycles",
                  {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.gradient_cycles=2",
                   "model.loss_every_cycle=true", "model.recompute=true", "model.no_ACT_continue=true"}},
        SplitCase{"settling", {"model.start_std=1", "model.path_noise=0.1", "model.damping=0.3"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The optimizer's work and state shared out (parallel.zero): the same training.
class ZeroTest : public RanksTest {
 protected:
  static Overrides stage(int zero, const Overrides& more = {}) {
    Overrides all = with(more);
    all.push_back(cat("parallel.zero=", zero));
    return all;
  }
};

TEST_P(ZeroTest, TrainsAsWithoutAndAsOne) {
  const fs::path alone = fresh_folder("alone");
  train_ranks(alone, 1, stage(2));
  const Stored one = stored(alone, with({}));
  for (const int ranks : {2, 4}) {
    const fs::path plain = fresh_folder(cat("plain", ranks));
    train_ranks(plain, ranks, stage(0));
    const Stored expected = stored(plain, with({}));
    for (const int zero : {1, 2}) {
      const fs::path dir = fresh_folder(cat(ranks, "_zero", zero));
      train_ranks(dir, ranks, stage(zero));
      const Stored state = stored(dir, with({}));
      expect_same_curve(plain, dir, 1e-6);
      expect_same_state(expected, state, GetParam().tolerance[zero - 1]);
      if (!GetParam().rounds) {
        expect_same_curve(alone, dir, 1e-6);
        expect_same_state(one, state, 2e-5);
      }
    }
  }
}

class ZeroResumeTest : public ZeroTest {};

// Saved with one stage by so many ranks, gone on with at another by others. What is loaded is what was saved.
TEST_P(ZeroResumeTest, OtherRanksAndStage) {
  struct Change {
    int ranks, zero, then_ranks, then_zero;
  };
  const Overrides flat{"optim.min_ratio=1.0"};
  const fs::path straight = fresh_folder("straight");
  train_ranks(straight, 4, stage(0, flat));
  const Stored expected = stored(straight, with(flat));
  for (const Change& change : {Change{4, 2, 1, 0}, Change{4, 2, 8, 1}, Change{4, 1, 2, 2}, Change{1, 0, 4, 2}}) {
    const std::string name = cat(change.ranks, "_", change.zero, "_then_", change.then_ranks, "_", change.then_zero);
    SCOPED_TRACE(name);
    const fs::path dir = fresh_folder(name);
    Overrides half = stage(change.zero, flat), rest = stage(change.then_zero, flat);
    half.push_back("train.steps=4");
    train_ranks(dir, change.ranks, half);
    const Stored saved = stored(dir, with(flat));
    // Eight ranks have one sample each.
    if (change.then_ranks == 8) rest.push_back("train.micro_batch_size=0");
    on_ranks(change.then_ranks, [&](const std::shared_ptr<parallel::Comm>& comm) {
      SmallRun run(dir, rest, comm);
      run.trainer.resume(checkpoint::open_checkpoint(dir / "small").dir);
      for (const auto& [name, tensor] : test::whole_state(run.trainer, *comm)) {
        EXPECT_TRUE(at::equal(tensor, saved.tensors.at(name))) << name;
      }
    });
    train_ranks(dir, change.then_ranks, rest);
    expect_same_state(expected, stored(dir, with(flat)), 2e-5);
  }
}

const SplitCase kAverage{"average", {"optim.ema=0.9", "optim.grad_clip=0.5", "eval.weights=both"}, {0, 0}};
const SplitCase kTrm{"trm",
                     {"model.arch=trm", "model.H_layers=0", "model.L_layers=2", "model.no_ACT_continue=true",
                      "optim.ema=0.9", "train.micro_batch_size=2"},
                     {0, 0}};
// Four buckets of blocks, whose gradients take turns; zero 2 adds micro-batches after ranks.
const SplitCase kTurns{"turns",
                       {"model.hidden_size=128", "model.H_layers=2", "model.L_layers=2", "parallel.bucket_mb=1",
                        "train.steps=6", "train.micro_batch_size=1"},
                       {0, 2e-5}};

// The same buckets, whose blocks run again in the backward pass, and a block that runs in each of two cycles.
const SplitCase kTurnsRecompute{"turns_recompute",
                                {"model.hidden_size=128", "model.H_layers=2", "model.L_layers=2",
                                 "parallel.bucket_mb=1", "train.steps=6", "model.recompute=true"},
                                {0, 2e-5}};
const SplitCase kCycles{"cycles",
                        {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.L_cycles=1",
                         "model.gradient_cycles=2", "model.loss_every_cycle=true", "model.L_layers=3",
                         "model.hidden_size=128", "parallel.bucket_mb=1", "train.steps=6"},
                        {0, 2e-5}};

INSTANTIATE_TEST_SUITE_P(Cases, ZeroTest,
                         // All is rounded alike: the norm of the ranks' norms, too, which they send in two numbers.
                         ::testing::Values(SplitCase{"plain", {}, {0, 0}},
                                           SplitCase{"accumulation", {"train.micro_batch_size=1"}, {0, 0}}, kAverage,
                                           kTrm, kTurns, kTurnsRecompute, kCycles,
                                           SplitCase{"bf16", {"parallel.reduce=bf16"}, {0, 0}, true}),
                         [](const auto& info) { return std::string(info.param.name); });
INSTANTIATE_TEST_SUITE_P(Cases, ZeroResumeTest, ::testing::Values(kAverage, kTrm, kTurns),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Zero, SameBitsAgain) {
  Overrides all = kTurns.more;
  all.insert(all.end(), {"optim.ema=0.9", "parallel.zero=2"});
  const fs::path first = fresh_folder("first"), second = fresh_folder("second");
  train_ranks(first, 4, all);
  train_ranks(second, 4, all);
  expect_same_state(stored(first, all), stored(second, all), 0);
}

// AdamATan2, whose first steps have the size of the rate whatever the gradient, from the same gradients: the same bits.
TEST(Zero, AdamAtan2) {
  const Overrides all{"train.log_every=1", "optim.ema=0.9", "eval.max_samples=7", "optim.weight_decay=0.1"};
  const fs::path plain = fresh_folder("plain");
  train_ranks(plain, 4, all);
  for (const int zero : {1, 2}) {
    const fs::path dir = fresh_folder(cat("zero", zero));
    Overrides shared = all;
    shared.push_back(cat("parallel.zero=", zero));
    train_ranks(dir, 4, shared);
    expect_same_curve(plain, dir, 1e-6);
    expect_same_state(stored(plain, all), stored(dir, all), 0);
  }
}

// A rank of four has a quarter of moments and averages, and what makes buckets even; with turns also fewer gradients.
TEST(Zero, MemoryOfARank) {
  const Overrides wide{"model.hidden_size=128", "model.H_layers=3", "model.L_layers=3", "parallel.bucket_mb=1",
                       "optim.ema=0.9"};
  std::map<int, int64_t> optimizer, gradients;
  int64_t parameters = 0;
  for (const int zero : {0, 1, 2}) {
    on_ranks(4, [&](const std::shared_ptr<parallel::Comm>& comm) {
      Overrides all = wide;
      all.push_back(cat("parallel.zero=", zero));
      SmallRun run(fresh_folder(cat("rank", comm->rank())), all, comm);
      int64_t bytes = 0;
      for (const auto& entry : list_state(run.trainer).tensors) {
        if (entry.role == StateRole::optimizer || entry.role == StateRole::ema) {
          bytes += static_cast<int64_t>(entry.tensor.nbytes());
        }
      }
      if (!comm->main()) return;
      optimizer[zero] = bytes;
      gradients[zero] = run.trainer.reducer().gradient_bytes();
      parameters = run.task.parameters().count();
    });
  }
  EXPECT_EQ(optimizer[0], 12 * parameters + 4);
  for (const int zero : {1, 2}) {
    EXPECT_GE(optimizer[zero], 3 * parameters);
    EXPECT_LE(optimizer[zero], static_cast<int64_t>(1.01 * 3 * static_cast<double>(parameters)));
  }
  const auto full = static_cast<double>(4 * parameters);
  EXPECT_NEAR(static_cast<double>(gradients[0]), full, 0.01 * full);
  EXPECT_NEAR(static_cast<double>(gradients[1]), 1.25 * full, 0.01 * full);
  EXPECT_LT(static_cast<double>(gradients[2]), 0.65 * full) << "two of six blocks, the embedding, a quarter of all";
}

// Rollouts of raw and averaged weights, with a last batch that has no puzzle for the second rank.
TEST(Ranks, RolloutsAsOne) {
  const Overrides more{"eval.rollouts=3", "eval.noise=0.5",     "eval.weights=both",  "optim.ema=0.9",
                       "train.steps=4",   "train.eval_every=2", "eval.max_samples=3", "eval.batch_size=3"};
  const fs::path alone = fresh_folder("alone"), two = fresh_folder("two");
  train_ranks(alone, 1, more);
  train_ranks(two, 2, more);
  for (const std::string key :
       {"eval/accuracy", "eval/exact_mean", "eval/answers_differ", "eval/count", "eval_raw/accuracy"}) {
    const auto want = records_with(alone, key), got = records_with(two, key);
    ASSERT_EQ(want.size(), 2) << key;
    ASSERT_EQ(got.size(), 2) << key;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(want[i][key].get<double>(), got[i][key].get<double>(), 0.05) << key;
    }
  }
  EXPECT_EQ(records_with(two, "eval/count")[0]["eval/count"], 3);
}

TEST(Ranks, BatchMustSplit) {
  on_ranks(3, [](const std::shared_ptr<parallel::Comm>& comm) {
    try {
      SmallRun run(fresh_folder(cat("rank", comm->rank())), {"train.global_batch_size=8"}, comm);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("train.global_batch_size = 8 cannot be split over 3 ranks"),
                std::string::npos)
          << error.what();
    }
  });
}

class Stages : public ::testing::TestWithParam<int> {};

// A gradient that is not finite on one rank stops all of them after the same step, with one dump.
TEST_P(Stages, DivergeTogether) {
  const fs::path dir = fresh_folder("run");
  on_ranks(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(dir, {"train.log_every=1", "train.max_nonfinite_steps=1", cat("parallel.zero=", GetParam())}, comm);
    if (comm->rank() == 1) {
      const at::NoGradGuard no_grad;
      run.task.model().parameters()[1].view(-1)[0].fill_(NAN);
    }
    run.trainer.start_fresh();
    try {
      run.trainer.run();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::diverged) << error.what();
      EXPECT_NE(std::string(error.what()).find("the gradient of step 1 is not finite"), std::string::npos)
          << error.what();
      EXPECT_EQ(run.trainer.step(), 3);
    }
  });
  EXPECT_EQ(checkpoint::list_checkpoints(dir / "small" / "diverged").size(), 1u);
}

// Of a model with blocks of 3 MiB.
size_t buckets(const std::string& size) {
  size_t count = 0;
  on_ranks(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(fresh_folder(cat(size, comm->rank())), {"model.hidden_size=256", "parallel.bucket_mb=" + size}, comm);
    run.trainer.start_fresh();
    run.trainer.run_steps(1);
    if (comm->main()) count = run.trainer.reducer().buckets();
  });
  return count;
}

TEST(Ranks, SizeOfBuckets) {
  EXPECT_EQ(buckets("64"), 2u);  // both blocks, and what is of no block
  EXPECT_GE(buckets("1"), 3u);
}

// Rounds, and by no more than bfloat16 does.
TEST(Ranks, ReduceInBfloat16) {
  const Overrides common{"train.log_every=1"}, rounded{"train.log_every=1", "parallel.reduce=bf16"};
  const fs::path exact = fresh_folder("exact"), bf16 = fresh_folder("bf16");
  train_ranks(exact, 2, common);
  train_ranks(bf16, 2, rounded);
  expect_same_curve(exact, bf16, 0.05);
  const auto one = records_with(exact, "train/grad_norm_raw"), other = records_with(bf16, "train/grad_norm_raw");
  EXPECT_NE(one.front()["train/grad_norm_raw"], other.front()["train/grad_norm_raw"]);
}

// Between the start and the first checkpoint.
TEST(Ranks, ReplicasAreComparedInBetween) {
  on_ranks(2, [](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(fresh_folder(cat("rank", comm->rank())), {"parallel.check_replicas_every=3"}, comm);
    run.trainer.start_fresh();
    if (comm->rank() == 1) {
      const at::NoGradGuard no_grad;
      run.task.model().parameters()[1].view(-1)[3].add_(1e-3f);
    }
    try {
      run.trainer.run();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::rank_failed) << error.what();
      EXPECT_EQ(run.trainer.step(), 3);
    }
  });
}

// One changed bit in the weights of one rank.
TEST_P(Stages, NamesTheRankThatDiffers) {
  on_ranks(3, [](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(fresh_folder(cat("rank", comm->rank())),
                 {"train.global_batch_size=6", cat("parallel.zero=", GetParam())}, comm);
    parallel::check_replicas(run.trainer, *comm);
    if (comm->rank() == 2) {
      const at::NoGradGuard no_grad;
      at::Tensor weight = run.task.model().parameters()[1];
      weight.view(-1)[3].mul_(1 + 1e-7f);
      weight.view(-1)[4].add_(1e-6f);
    }
    try {
      parallel::check_replicas(run.trainer, *comm);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::rank_failed);
      EXPECT_NE(std::string(error.what()).find("rank 2 has another state than rank 0, first in '"), std::string::npos)
          << error.what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Zero, Stages, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace hrm
