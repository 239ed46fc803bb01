// Steps whose arithmetic goes wrong are left out, and the training goes on or stops as it should.
#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "support/ranks.h"
#include "train/small_run.h"
#include "train/step_guard.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::SmallRun;

class NumericsTest : public ::testing::Test {
 protected:
  ~NumericsTest() override { failpoint::arm(""); }

  static std::vector<nlohmann::json> metrics(const fs::path& dir) {
    std::ifstream in(dir / "small" / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("train/loss")) lines.push_back(json);
    }
    return lines;
  }
};

double number(const at::Tensor& tensor) {
  return tensor.item<double>();
}

TEST_F(NumericsTest, AGradientThatIsNotFiniteLeavesOutItsStepAlone) {
  failpoint::arm("step.gradient:3:nan");
  const fs::path dir = fresh_folder("runs");
  SmallRun run(dir, {"train.log_every=1", "optim.ema=0.9", "train.checkpoint_every=1", "train.keep_checkpoints=9"});
  run.trainer.start_fresh();
  EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  EXPECT_EQ(number(run.tensors().at("optim.step")), 7);
  for (const auto& [name, tensor] : run.tensors()) {
    if (!tensor.is_floating_point()) continue;
    EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
  }
  const auto lines = metrics(dir);
  ASSERT_EQ(lines.size(), 8u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["train/skipped_steps"], i == 2 ? 1 : 0);
    EXPECT_EQ(lines[i]["train/loss"].is_null(), i == 2) << lines[i];
  }
  // Weights, moments and averages of step 3 are those of step 2, bit for bit.
  const auto at_step = [&](int64_t step) {
    SmallRun reader(dir / "reader", {"optim.ema=0.9"});
    for (const fs::path& found : checkpoint::list_checkpoints(dir / "small")) {
      if (checkpoint::open_checkpoint(found).meta.step == step) reader.trainer.resume(found);
    }
    return reader.tensors();
  };
  failpoint::arm("");
  const auto before = at_step(2), after = at_step(3), next = at_step(4);
  for (const auto& [name, tensor] : before) {
    if (name.starts_with("carry.") || name.starts_with("loop.") || name.starts_with("guard.")) continue;
    EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
  }
  EXPECT_FALSE(at::equal(after.at("lm_head.weight"), next.at("lm_head.weight"))) << "the training went on";
}

TEST_F(NumericsTest, OneRankIsEnoughForAllToLeaveItOut) {
  const fs::path dir = fresh_folder("runs");
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
  // The ranks are threads of one process: the fifth hit is one of them in its third step.
  failpoint::arm("step.gradient:5:nan");
  test::on_threads(2, [&](int rank) {
    SmallRun run(dir, {"train.log_every=1"}, comms[static_cast<size_t>(rank)]);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(number(run.tensors().at("optim.step")), 7);
  });
  EXPECT_EQ(metrics(dir)[2]["train/skipped_steps"], 1);
}

TEST_F(NumericsTest, TooManyInARowStopTheRunWithADumpThatCanBeReplayed) {
  failpoint::arm("step.gradient:3+:nan");
  const fs::path dir = fresh_folder("runs");
  SmallRun run(dir, {"train.max_nonfinite_steps=4", "train.log_every=1", "train.steps=50"});
  run.trainer.start_fresh();
  try {
    run.trainer.run();
    FAIL() << "trained on";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    EXPECT_NE(std::string(error.what()).find("the gradients of steps 3 to 6 are not finite"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("doctor --replay"), std::string::npos) << error.what();
  }
  EXPECT_EQ(number(run.tensors().at("optim.step")), 2);
  // Without the failpoint the step is finite: a machine at fault would look like that.
  failpoint::arm("");
  ::testing::internal::CaptureStdout();
  const int code = commands::run_replay({.dump = (dir / "small" / "diverged").string(), .overrides = {}});
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("NOT reproduced"), std::string::npos) << said;
}

TEST_F(NumericsTest, AReplayNamesWhatIsNotFinite) {
  const fs::path dir = fresh_folder("runs");
  SmallRun run(dir, {"train.max_nonfinite_steps=2"});
  run.trainer.start_fresh();
  {
    const at::NoGradGuard no_grad;
    run.task.model().named_parameters()["lm_head.weight"].view(-1)[5] = std::numeric_limits<float>::infinity();
  }
  run.task.parameters().refresh_compute();
  EXPECT_THROW(run.trainer.run(), Error);
  ::testing::internal::CaptureStdout();
  const int code = commands::run_replay({.dump = (dir / "small" / "diverged").string(), .overrides = {}, .json = true});
  const auto report = nlohmann::json::parse(::testing::internal::GetCapturedStdout());
  EXPECT_EQ(code, static_cast<int>(ExitCode::diverged));
  EXPECT_TRUE(report["reproduced"].get<bool>());
  ASSERT_EQ(report["weights"]["not_finite"].size(), 1u) << report;
  EXPECT_EQ(report["weights"]["not_finite"][0]["name"], "lm_head.weight");
  EXPECT_EQ(report["weights"]["not_finite"][0]["elements"], 1);
  EXPECT_FALSE(report["gradients"]["not_finite"].empty());
  EXPECT_TRUE(report["optimizer"]["not_finite"].empty());
}

TEST_F(NumericsTest, TheLastStepMustBeFinite) {
  failpoint::arm("step.gradient:8:nan");
  SmallRun run(fresh_folder("runs"));
  run.trainer.start_fresh();
  try {
    run.trainer.run();
    FAIL() << "a run ended with a step that was left out";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::diverged);
    EXPECT_NE(std::string(error.what()).find("the gradient of step 8 is not finite"), std::string::npos)
        << error.what();
  }
}

// A carry that is not finite would spoil the gradients until its sample's last segment.
TEST_F(NumericsTest, ASlotWhoseStateIsNotFiniteGivesUpItsSample) {
  SmallRun run(fresh_folder("runs"), {"train.log_every=1", "model.halt_max_steps=16", "train.steps=12"});
  run.trainer.start_fresh();
  run.trainer.run_steps(2);
  {
    const at::NoGradGuard no_grad;
    for (TensorEntry& entry : list_state(run.task).tensors) {
      if (entry.name == "carry.z_H") entry.tensor[3].fill_(NAN);
      if (entry.name == "carry.halted") entry.tensor.fill_(false);
    }
  }
  run.trainer.run_steps(6);
  EXPECT_EQ(number(run.tensors().at("optim.step")), 7) << "one step is lost, not one for each segment";
  EXPECT_TRUE(run.tensors().at("carry.z_H").isfinite().all().item<bool>());
}

TEST_F(NumericsTest, ASpikeIsLeftOut) {
  const std::vector<std::string> more = {"train.log_every=1", "train.steps=30", "train.spike_score=8",
                                         "train.spike_window=10"};
  const auto steps_done = [&](const char* order, const char* name) {
    failpoint::arm(order);
    SmallRun run(fresh_folder(name), more);
    run.trainer.start_fresh();
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
    return number(run.tensors().at("optim.step"));
  };
  EXPECT_EQ(steps_done("", "without"), 30);
  EXPECT_EQ(steps_done("step.gradient:20:spike", "with"), 29);
  EXPECT_EQ(steps_done("step.gradient:5:spike", "too few losses are known"), 30);
}

// The window and the count go on where they were: bit for bit what an uninterrupted run gives.
TEST_F(NumericsTest, TheGuardIsResumed) {
  const fs::path dir = fresh_folder("runs");
  const std::vector<std::string> more = {"train.steps=24", "train.spike_score=8", "train.spike_window=10"};
  auto half = more;
  half[0] = "train.steps=13";
  half.push_back("optim.schedule=constant");
  auto whole = more;
  whole.push_back("optim.schedule=constant");
  SmallRun once(dir / "once", whole), first(dir / "halves", half);
  once.trainer.start_fresh();
  once.trainer.run();
  first.trainer.start_fresh();
  first.trainer.run();
  SmallRun second(dir / "halves", whole);
  second.trainer.resume(checkpoint::open_checkpoint(dir / "halves" / "small").dir);
  second.trainer.run();
  const auto want = once.tensors(), got = second.tensors();
  for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  EXPECT_EQ(number(got.at("guard.losses_known")), 24);
  // A checkpoint without them, as earlier versions wrote, and one with more than is needed.
  SmallRun without(dir / "halves", {"train.steps=24", "optim.schedule=constant"});
  without.trainer.resume(checkpoint::open_checkpoint(dir / "halves" / "small").dir);
  SmallRun plain(dir / "plain", {"train.steps=4"});
  plain.trainer.start_fresh();
  plain.trainer.run();
  SmallRun with(dir / "plain", more);
  with.trainer.resume(checkpoint::open_checkpoint(dir / "plain" / "small").dir);
  EXPECT_EQ(number(with.tensors().at("guard.losses_known")), 0);
}

// The loss of a step alone decides, against the ring's mean and deviation, beside a plain computation.
TEST(StepGuard, IsAZScore) {
  config::TrainConfig config;
  config.spike_score = 3;
  config.spike_window = 8;
  train::StepGuard guard(config, at::kCPU);
  std::vector<double> losses;
  const at::Tensor finite = at::zeros({});
  for (int step = 0; step < 60; ++step) {
    const double loss = 2 + std::sin(step * 1.7) * 0.3 + (step % 13 == 12 ? 3 : 0);
    double mean = 0, deviation = 0;
    const size_t known = std::min<size_t>(losses.size(), 8);
    for (size_t i = losses.size() - known; i < losses.size(); ++i) mean += losses[i] / 8;
    for (size_t i = losses.size() - known; i < losses.size(); ++i)
      deviation += (losses[i] - mean) * (losses[i] - mean) / 7;
    const bool expected = known == 8 && loss - mean > 3 * std::sqrt(deviation);
    const at::Tensor value = at::full({}, loss, at::kDouble);
    EXPECT_EQ(number(guard.skip(value)) != 0, expected) << "step " << step;
    guard.update(value, finite);
    losses.push_back(loss);
  }
}

TEST(StepGuard, GivesUpAfterSoManyInARow) {
  config::TrainConfig config;
  config.max_nonfinite_steps = 3;
  train::StepGuard guard(config, at::kCPU);
  const at::Tensor loss = at::ones({}, at::kDouble);
  const auto after = [&](std::vector<float> nonfinite) {
    for (const float value : nonfinite) guard.update(loss, at::full({}, value));
    return number(guard.give_up());
  };
  EXPECT_EQ(after({1, 1, 0, 1, 1}), 0);
  EXPECT_EQ(after({1}), 1);
  EXPECT_EQ(after({0, 0}), 1) << "for good";
  EXPECT_EQ(number(guard.skip(loss)), 1);
}

// Every entry that changes in training is needed: a resume without it is another training. So an object that forgets to
// register a member is found by the tests that compare a resumed run with a straight one (resume_test.cpp).
TEST(Registry, NothingInItCanBeLeftOut) {
  const fs::path dir = fresh_folder("runs");
  const std::vector<std::string> more = {"train.steps=9",          "optim.ema=0.9",          "train.eval_every=3",
                                         "train.spike_score=20",   "model.halt_max_steps=4", "train.spike_window=8",
                                         "optim.schedule=constant"};
  auto half = more;
  half[0] = "train.steps=6";  // slots are in the middle of their samples, and an evaluation is due
  SmallRun first(dir / "first", half), fresh(dir / "fresh", more);
  first.trainer.start_fresh();
  first.trainer.run();
  fresh.trainer.start_fresh();
  const StateListing saved = list_state(first.trainer), initial = list_state(fresh.trainer);

  // The end of a run that goes on from `saved` without the entry of this name.
  const auto end_without = [&](const std::string& left_out) {
    SmallRun run(dir / "run", more);
    run.trainer.start_fresh();
    {
      const at::NoGradGuard no_grad;
      class Loader : public StateVisitor {
       public:
        Loader(const StateListing& from, const std::string& left_out) : left_out_(left_out) {
          for (const TensorEntry& entry : from.tensors) tensors_[entry.name] = entry.tensor;
          integers_.insert(from.integers.begin(), from.integers.end());
        }
        void tensor(const std::string& name, at::Tensor& tensor, StateRole, const StatePart&) override {
          if (name != left_out_) tensor.copy_(tensors_.at(name));
        }
        void integer(const std::string& name, int64_t& value) override {
          if (name != left_out_) value = integers_.at(name);
        }
        void real(const std::string&, double&) override { FAIL() << "no task of ours has one yet"; }

       private:
        std::string left_out_;
        std::map<std::string, at::Tensor> tensors_;
        std::map<std::string, int64_t> integers_;
      } loader(saved, left_out);
      run.trainer.visit_state(loader);
    }
    run.task.parameters().refresh_compute();
    run.trainer.run();
    // What it logged, too, but for the times.
    std::ifstream log(dir / "run" / "small" / "metrics.jsonl");
    std::string all = digest_state(run.trainer);
    for (std::string line; std::getline(log, line);) all += "\n" + line.substr(0, line.find(",\"perf/"));
    return all;
  };
  const std::string whole = end_without("");
  EXPECT_EQ(end_without(""), whole) << "the comparison itself";
  std::vector<std::string> changed;
  for (size_t i = 0; i < saved.tensors.size(); ++i) {
    if (!at::equal(saved.tensors[i].tensor, initial.tensors[i].tensor)) changed.push_back(saved.tensors[i].name);
  }
  for (size_t i = 0; i < saved.integers.size(); ++i) {
    if (saved.integers[i].second != initial.integers[i].second) changed.push_back(saved.integers[i].first);
  }
  EXPECT_GT(changed.size(), 20u);
  for (const std::string& name : changed) EXPECT_NE(end_without(name), whole) << name << " makes no difference";
}

}  // namespace
}  // namespace hrm
