// What a step of task=contrastive leaves behind: resumes, skipped steps, ranks, memory; and that it needs no autograd.
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "hrm/checkpoint/checkpoint.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "train/small_contrastive.h"

namespace hrm::tasks {
namespace {

using test::with;
using testing::expect_same_tensors;
using testing::fresh_folder;
using testing::ring_and_field;
using testing::SmallContrastive;

// Ring with its position, momentum, equilibrium and history of the field, moments of the optimizer, sums of the open
// window.
TEST(ContrastiveStep, ResumesWithEveryTensorTheSame) {
  for (const auto& more :
       {ring_and_field(), {"contrastive.sdm_capacity=48", "contrastive.dynamics_mode=dissipative"}}) {
    SCOPED_TRACE(more.front() + " " + more.back());
    const auto dir = fresh_folder("runs");
    SmallContrastive whole(dir / "whole", with(more, {"train.steps=7"}));
    whole.trainer.start_fresh();
    whole.trainer.run();
    const auto want = whole.tensors();
    // The step before the ring is full, and one behind it.
    for (const int64_t stop : {2, 5}) {
      SCOPED_TRACE(stop);
      const auto parts = dir / std::to_string(stop);
      {
        SmallContrastive first(parts, with(more, {cat("train.steps=", stop)}));
        first.trainer.start_fresh();
        first.trainer.run();
      }
      SmallContrastive second(parts, with(more, {"train.steps=7"}));
      const auto found = checkpoint::find_latest_valid(parts / "small");
      ASSERT_TRUE(found);
      ASSERT_EQ(found->meta.step, stop);
      second.trainer.resume(found->dir, found->meta.info);
      second.trainer.run();
      expect_same_tensors(second.tensors(), want);
      EXPECT_EQ(second.integers(), whole.integers());
    }
  }
}

TEST(ContrastiveStep, SkippedOnesMoveNothing) {
  SmallContrastive run(fresh_folder("run"), ring_and_field(), nullptr, /*files=*/false);
  run.trainer.start_fresh();
  run.trainer.run_steps(2);
  const auto moved = [&](double skip) {
    run.task->load_batch(3, 1);
    at::Tensor sums = at::zeros({static_cast<int64_t>(run.task->metric_names().size())}, at::kDouble);
    run.task->forward_backward(0, {}, sums);
    const auto before = run.tensors();
    run.task->update_extra(at::full({}, skip));
    std::vector<std::string> names;
    for (const auto& [name, tensor] : run.tensors()) {
      if (!name.starts_with("contrastive.") && !at::equal(tensor, before.at(name))) names.push_back(name);
    }
    return names;
  };
  EXPECT_EQ(moved(1), std::vector<std::string>{});
  const auto names = moved(0);
  for (const char* name : {"ring_keys", "ring_values", "ring_position", "filled", "field", "field.momentum"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name << " does not move at all";
  }
}

// A batch of each rank's rows in their order: the same ring on both, and that of one rank. Plain descent, since Adam
// makes a large step of the rounding of a small gradient.
TEST(ContrastiveStep, TwoRanksAreOne) {
  const auto settings = with(ring_and_field(), {"optim.name=sgd", "optim.momentum=0", "optim.lr=0.5",
                                                "optim.warmup_steps=0", "optim.weight_decay=0"});
  SmallContrastive one(fresh_folder("one"), settings, nullptr, /*files=*/false);
  one.trainer.start_fresh();
  one.trainer.run_steps(4);
  const auto want = one.tensors();
  std::vector<std::shared_ptr<parallel::Comm>> shared;
  std::vector<std::map<std::string, at::Tensor>> got(2);
  for (auto& comm : parallel::make_thread_comms(2)) shared.push_back(std::move(comm));
  const auto dir = fresh_folder("two");
  test::on_threads(2, [&](int rank) {
    const auto index = static_cast<size_t>(rank);
    SmallContrastive run(dir / std::to_string(rank), settings, shared[index], /*files=*/false);
    run.trainer.start_fresh();
    run.trainer.run_steps(4);
    got[index] = run.tensors();
  });
  int64_t compared = 0;
  for (const auto& [name, tensor] : got[0]) {
    if (name.starts_with("loop.")) continue;  // a rank's own
    EXPECT_TRUE(at::equal(tensor, got[1].at(name))) << name << " differs between the ranks";
    if (name.starts_with("contrastive.")) continue;
    const at::Tensor a = tensor.to(at::kDouble), b = want.at(name).to(at::kDouble);
    const double size = b.abs().max().item<double>();
    // A gradient is a small difference of two phases, so rounding is large beside it.
    EXPECT_LE((a - b).abs().max().item<double>(), 2e-3 * size) << name;
    ++compared;
  }
  EXPECT_GT(compared, 15);
  EXPECT_EQ(got[0].at("filled").item<int64_t>(), 24 + 80);
}

// Three steps an epoch, to the hundredth.
TEST(ContrastiveStep, MemoryStaysTheSameOverEpochs) {
  SmallContrastive run(fresh_folder("run"),
                       with(ring_and_field(), {"train.global_batch_size=449", "contrastive.tbptt_window_steps=1",
                                               "contrastive.sdm_capacity=16"}),
                       nullptr, /*files=*/false);
  run.trainer.start_fresh();
  run.trainer.run_steps(3 * 2);
  const double early = testing::resident_bytes();
  run.trainer.run_steps(3 * 98);
  EXPECT_NEAR(testing::resident_bytes(), early, 0.01 * early);
}

// Operations of the step, and those of them in gradient mode.
struct Seen {
  int64_t operations = 0, in_gradient_mode = 0, backward = 0;
};
thread_local Seen seen;

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
  ++seen.operations;
  if (at::GradMode::is_enabled()) ++seen.in_gradient_mode;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) ++seen.backward;
  return nullptr;
}

TEST(ContrastiveStep, NeedsNoAutograd) {
  for (const std::string rule : {"symmetric", "one_sided", "spsa", "readout", "backprop"}) {
    SCOPED_TRACE(rule);
    SmallContrastive run(fresh_folder("run"), with(ring_and_field(), {"contrastive.rule=" + rule}), nullptr,
                         /*files=*/false);
    run.trainer.start_fresh();
    run.task->load_batch(1, 1);
    at::Tensor sums = at::zeros({static_cast<int64_t>(run.task->metric_names().size())}, at::kDouble);
    const at::Tensor skip = at::zeros({});
    const at::AutoGradMode grad(true);
    seen = {};
    const uint64_t nodes = at::sequence_number::peek();
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(see).scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    run.task->forward_backward(0, {}, sums);
    run.task->update_extra(skip);
    at::removeCallback(handle);
    EXPECT_GT(seen.operations, 100);
    if (rule == "backprop") {  // the same test sees autograd where it is
      EXPECT_GT(seen.in_gradient_mode, 0);
      EXPECT_GT(at::sequence_number::peek(), nodes);
      continue;
    }
    EXPECT_EQ(seen.in_gradient_mode, 0);
    EXPECT_EQ(seen.backward, 0);
    EXPECT_EQ(at::sequence_number::peek(), nodes) << "a node of autograd was made";
    EXPECT_EQ(sums.grad_fn(), nullptr);
    // Gradients are in the set's own buffer.
    const at::Tensor& flat = run.task->parameters().flat_grad();
    EXPECT_GT(flat.abs().sum().item<double>(), 0);
    for (const nn::Parameter& parameter : run.task->parameters().all()) {
      const at::Tensor& gradient = parameter.master.grad();
      EXPECT_TRUE(gradient.is_alias_of(flat)) << parameter.name;
      EXPECT_EQ(gradient.grad_fn(), nullptr) << parameter.name;
      EXPECT_EQ(parameter.master.grad_fn(), nullptr) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace hrm::tasks
