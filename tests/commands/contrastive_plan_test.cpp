// The estimate of `plan` for geometric memories, beside what the CPU's tensors take.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "commands/plan_cases.h"
#include "hrm/config/load.h"
#include "hrm/objectives/contrastive.h"
#include "hrm/tasks/contrastive.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "tasks/contrastive/plan.h"

namespace hrm::commands {
namespace {

using testing::gpu;
using testing::HostBytes;
using testing::item;

PlanInput memory_input(const std::vector<std::string>& more, const tasks::ContrastiveSizes& sizes,
                       const char* gpu_name = "H200") {
  std::vector<std::string> all{"task=contrastive"};
  all.insert(all.end(), more.begin(), more.end());
  const config::Config config = config::load_config({}, all).config;
  return make_plan_input(config, std::make_shared<tasks::ContrastivePlan>(config.contrastive, sizes), gpu(gpu_name));
}

const tasks::ContrastiveSizes kText{.features = 12 * 256, .classes = 256, .is_text = true, .data_bytes = 2 << 20};
const std::vector<std::string> kLarge{"contrastive.learned_slots=2048", "contrastive.state_dim=64",
                                      "train.global_batch_size=1024"};

std::vector<std::string> large(const std::vector<std::string>& more) {
  std::vector<std::string> all = kLarge;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(ContrastivePlan, PartsAddUp) {
  for (const char* rule : {"symmetric", "one_sided", "spsa", "scalar", "readout", "backprop"}) {
    const Plan plan = make_plan(memory_input(large({std::string("contrastive.rule=") + rule}), kText));
    double bytes = 0, ms = 0;
    for (const PlanItem& i : plan.memory) bytes += i.value;
    for (const PlanItem& i : plan.time) ms += i.value;
    EXPECT_DOUBLE_EQ(bytes, plan.tensors_peak) << rule;
    EXPECT_DOUBLE_EQ(ms, plan.step_ms) << rule;
    EXPECT_FALSE(plan.peak_moment.empty()) << rule;
  }
}

TEST(ContrastivePlan, CountsTheParameters) {
  const PlanInput in = memory_input({"contrastive.lowrank_r=3", "contrastive.metric_mode=block_rot"}, kText);
  const int64_t n = 16, slots = 128, width = 32;
  EXPECT_EQ(in.parameters,
            n * 3072 + n + n / 2 * 3 + 16 + slots * (n + width) + 4 * 4 * 8 * 2 + 256 * (width + 1) + n * 3 + 3);
  EXPECT_EQ(memory_input({"contrastive.rotor_mode=derived"}, kText).parameters,
            memory_input({"contrastive.rotor_mode=off"}, kText).parameters);
  // The outline has no memory.
  for (const auto& parameter : in.model->outline(in.config).model->named_parameters()) {
    EXPECT_TRUE(parameter.value().is_meta()) << parameter.key();
  }
}

// What was measured on one H200 (docs/contrastive.md); plan_gpu_test.cpp compares the memory with a GPU's.
TEST(ContrastivePlan, IsNearWhatWasMeasured) {
  const Plan plan = make_plan(memory_input(kLarge, kText));
  EXPECT_NEAR(plan.step_ms, 3.23, 0.3 * 3.23);
  const Plan few = make_plan(memory_input(large({"train.global_batch_size=64"}), kText));
  EXPECT_NEAR(few.step_ms, 1.40, 0.3 * 1.40);
  const Plan backprop = make_plan(memory_input(large({"contrastive.rule=backprop"}), kText));
  EXPECT_NEAR(backprop.step_ms, 37.5, 0.3 * 37.5);
  EXPECT_NEAR(backprop.tensors_peak, 3.2 * (1 << 30), 0.3 * 3.2 * (1 << 30));
}

TEST(ContrastivePlan, FollowsTheShapes) {
  const Plan plan = make_plan(memory_input(kLarge, kText));
  EXPECT_EQ(item(plan.memory, "rows and slots"), 0) << "the kernel keeps none";
  const Plan plain = make_plan(memory_input(large({"contrastive.hidden=8"}), kText));
  EXPECT_GT(item(plain.memory, "rows and slots"), 0);
  EXPECT_GT(plain.step_ms, 3 * plan.step_ms);
  const Plan parts = make_plan(memory_input(large({"train.micro_batch_size=256"}), kText));
  EXPECT_DOUBLE_EQ(4 * item(parts.memory, "nudged phases"), item(plan.memory, "nudged phases"));
  EXPECT_EQ(item(parts.memory, "data"), item(plan.memory, "data"));
  const Plan longer = make_plan(memory_input(large({"contrastive.tbptt_window_steps=1024"}), kText));
  EXPECT_EQ(longer.tensors_peak, plan.tensors_peak) << "steps keep nothing";
  EXPECT_GT(longer.step_ms, 8 * plan.step_ms);
  const Plan ring = make_plan(memory_input(large({"contrastive.sdm_capacity=1024"}), kText));
  EXPECT_EQ(item(ring.memory, "episodes"), 4.0 * 1024 * (16 + 64));
  EXPECT_EQ(item(plan.memory, "episodes"), 0);
}

// What a step takes beside parameters, optimizer and data, on the CPU, where retrieval is plain ATen.
TEST(ContrastivePlan, IsNearTheMeasuredPeak) {
  const tasks::ContrastiveSizes sizes{.features = 300, .classes = 20};
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"contrastive.rule=one_sided"},
                                               {"contrastive.rule=readout"},
                                               {"contrastive.rule=backprop", "contrastive.tbptt_window_steps=8"},
                                               {"contrastive.sdm_capacity=200"}}) {
    std::vector<std::string> all{"contrastive.learned_slots=400", "contrastive.bank_dtype=float32",
                                 "train.global_batch_size=192", "contrastive.tbptt_window_steps=4",
                                 "runtime.device=cpu"};
    all.insert(all.end(), more.begin(), more.end());
    const PlanInput in = memory_input(all, sizes);
    const config::ContrastiveConfig& c = in.config.contrastive;
    const models::GeometricMemory memory(tasks::memory_options(c, sizes.features, sizes.classes), 1, at::kCPU);
    const at::NoGradGuard no_grad;
    const at::Tensor inputs = at::randn({192, sizes.features}), targets = at::zeros({192}, at::kLong);
    const auto step = [&] {
      return objectives::contrastive_gradients(memory, memory.prepare(false), inputs, targets,
                                               tasks::contrastive_options(c));
    };
    objectives::ContrastiveResult last;
    const auto bytes = std::make_shared<HostBytes>();
    {
      const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, bytes);
      last = step();
      last = step();
    }
    const Plan plan = make_plan(in);
    double planned = 0;
    std::string text = plan.peak_moment;
    for (const PlanItem& i : plan.memory) {
      const bool beside = i.name == "weights" || i.name == "gradients" || i.name == "optimizer" || i.name == "data" ||
                          i.name == "field" || i.name == "episodes" || i.name == "workspaces";
      if (!beside) planned += i.value;
      text += cat(", ", i.name, " ", i.value);
    }
    EXPECT_NEAR(planned, static_cast<double>(bytes->peak), 0.25 * static_cast<double>(bytes->peak))
        << (more.empty() ? "" : more.front()) << ": " << text;
  }
}

TEST(ContrastivePlan, ReadsTheSizesOfTheData) {
  std::vector<std::string> all{"task=contrastive", "data.train=" + test::source_dir() + "/data/digits"};
  const tasks::ContrastiveSizes digits = tasks::contrastive_sizes(config::load_config({}, all).config);
  EXPECT_EQ(digits.features, 64);
  EXPECT_EQ(digits.classes, 10);
  EXPECT_EQ(digits.data_bytes, 1797 * (4 * 64 + 8));
  const tasks::ContrastiveSizes bytes =
      tasks::contrastive_sizes(config::load_config({}, {"task=contrastive"}).config, 256);
  EXPECT_EQ(bytes.features, 12 * 256);
  EXPECT_TRUE(bytes.is_text);
  test::expect_error(ExitCode::usage, {"data.train is empty", "--vocab-size"},
                     [&] { tasks::contrastive_sizes(config::load_config({}, {"task=contrastive"}).config); });
}

}  // namespace
}  // namespace hrm::commands
