// Several ranks are one training: as threads of this process, beside one rank alone.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/parallel/comm.h"
#include "hrm/parallel/gathered_state.h"
#include "train/small_run.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::SmallRun;
using Overrides = std::vector<std::string>;

// Each rank in a thread; the first exception of the lowest rank is thrown here.
void on_ranks(int ranks, const std::function<void(const std::shared_ptr<parallel::Comm>&)>& body) {
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
  std::vector<std::exception_ptr> errors(comms.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(comms[rank]);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Trains to the end in `dir`, from the newest checkpoint there.
void train(const fs::path& dir, int ranks, const Overrides& more) {
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

std::vector<nlohmann::json> lines_with(const fs::path& dir, const std::string& key) {
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
    const auto one = lines_with(a, key), other = lines_with(b, key);
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

struct Case {
  const char* name;
  Overrides more;
};

void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}

class RanksTest : public ::testing::TestWithParam<Case> {
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
  train(alone, 1, with({}));
  const Stored expected = stored(alone, with({}));
  for (const int ranks : {2, 4}) {
    const fs::path dir = fresh_folder(std::to_string(ranks));
    train(dir, ranks, with({}));
    expect_same_curve(alone, dir, 1e-6);
    expect_same_state(expected, stored(dir, with({})), 2e-5);
  }
}

TEST_P(RanksTest, SameBitsAgain) {
  const fs::path first = fresh_folder("first"), second = fresh_folder("second");
  train(first, 2, with({}));
  train(second, 2, with({}));
  expect_same_state(stored(first, with({})), stored(second, with({})), 0);
}

// Saved by four ranks, gone on with by another number.
TEST_P(RanksTest, ResumeWithOtherRanks) {
  const fs::path straight = fresh_folder("straight"), half = fresh_folder("half");
  train(straight, 4, with({}));
  const Stored expected = stored(straight, with({}));
  // The schedule ends at train.steps: the same rate for the shorter run.
  const Overrides flat{"optim.min_ratio=1.0"};
  for (const int ranks : {1, 2, 4}) {
    const fs::path whole = fresh_folder(cat("whole", ranks)), parts = fresh_folder(cat("parts", ranks));
    Overrides four = with(flat), eight = with(flat);
    four.push_back("train.steps=4");
    train(parts, 4, four);
    train(parts, ranks, eight);
    train(whole, 4, eight);
    expect_same_state(stored(whole, eight), stored(parts, eight), ranks == 4 ? 0 : 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RanksTest,
    ::testing::Values(Case{"plain", {}}, Case{"accumulation", {"train.micro_batch_size=1"}},
                      Case{"pool", {"data.reference_semantics=false"}},
                      Case{"pool_accumulation", {"data.reference_semantics=false", "train.micro_batch_size=2"}},
                      Case{"average", {"optim.ema=0.9", "optim.grad_clip=0.5"}},
                      Case{"trm", {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true"}}),
    [](const auto& info) { return std::string(info.param.name); });

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

// A gradient that is not finite on one rank stops all of them after the same step, with one dump.
TEST(Ranks, DivergeTogether) {
  const fs::path dir = fresh_folder("run");
  on_ranks(2, [&](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(dir, {"train.log_every=1"}, comm);
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

// One changed bit in the weights of one rank.
TEST(Ranks, NamesTheRankThatDiffers) {
  on_ranks(3, [](const std::shared_ptr<parallel::Comm>& comm) {
    SmallRun run(fresh_folder(cat("rank", comm->rank())), {"train.global_batch_size=6"}, comm);
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

}  // namespace
}  // namespace hrm
