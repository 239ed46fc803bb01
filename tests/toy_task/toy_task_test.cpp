// A task that the program does not know: with one row it trains, evaluates, saves, resumes, is exported and planned,
// and no other file names it. It fits the sum of its inputs by a line.
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "commands/command_output.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/registry.h"
#include "support/expect_error.h"
#include "train/small_run.h"

namespace hrm::tasks {
namespace {

using test::expect_error;

constexpr int64_t kWidth = 8;

struct Line : torch::nn::Module {
  explicit Line(at::Device device) {
    weight = register_parameter("weight", at::zeros({kWidth, 1}, at::device(device)));
  }
  at::Tensor weight;
  nn::ParameterSet set;
};

// (rows, kWidth): any numbers that the first row's index decides.
at::Tensor rows_from(int64_t first, int64_t rows) {
  return at::sin(at::arange(first * kWidth, (first + rows) * kWidth, at::kFloat)).view({rows, kWidth});
}

at::Tensor losses_of(const Line& model, const at::Tensor& inputs) {
  return (inputs.matmul(model.weight) - inputs.sum(-1, /*keepdim=*/true)).square().view({-1});
}

constexpr int64_t kTestRow = 1 << 16, kTestRows = 32;

class ToyTask : public Task {
 public:
  ToyTask(const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> /*comm*/)
      : config_(config), model_(std::make_shared<Line>(runtime.device)) {
    model_->set.build(*model_, runtime.compute_dtype);
    inputs_ = at::zeros({config.train.global_batch_size, kWidth});
  }

  nn::ParameterSet& parameters() override { return model_->set; }
  const std::vector<std::string>& metric_names() const override {
    static const std::vector<std::string> names{"loss"};
    return names;
  }
  NamedValues summarize(const std::vector<double>& sums, int64_t steps) const override {
    return {{"loss", sums[0] / static_cast<double>(steps)}};
  }
  at::Tensor step_loss(const at::Tensor& sums) const override { return sums.select(0, 0); }
  std::string progress_text(const NamedValues& summary) const override {
    return cat("loss ", value_of(summary, "loss"));
  }
  double samples_per_epoch() const override { return 1024; }
  double flops_per_step() const override { return 6.0 * kWidth * static_cast<double>(inputs_.size(0)); }
  double load_batch(int64_t step, double /*lr_factor*/) override {
    const int64_t rows = inputs_.size(0);
    inputs_.copy_(rows_from((step - 1 + skipped_) * rows, rows));
    return 0;
  }
  std::vector<at::Tensor> step_inputs() const override { return {inputs_}; }
  void forward_backward(int64_t micro_batch, const at::Tensor& loss_scale, at::Tensor& metric_sums) override {
    const int64_t batch = inputs_.size(0);
    const int64_t micro = config_.train.micro_batch_size > 0 ? config_.train.micro_batch_size : batch;
    const at::Tensor loss =
        losses_of(*model_, inputs_.narrow(0, micro_batch * micro, micro)).sum() / static_cast<double>(batch);
    loss.backward(loss_scale.defined() ? loss_scale.to(loss.scalar_type()) : at::Tensor());
    metric_sums.add_(loss.detach().to(at::kDouble).view({1}));
  }
  void update_extra(const at::Tensor& /*skip*/) override {}
  void skip_batches(int64_t count) override { skipped_ += count; }
  bool can_evaluate() const override { return true; }
  NamedValues evaluate(const std::function<void(const EvalProgress&)>& progress) override {
    progress({kTestRows, kTestRows});
    return {{"loss", losses_of(*model_, rows_from(kTestRow, kTestRows)).mean().item<double>()}};
  }
  std::string eval_text(const NamedValues& result) const override { return cat("loss ", value_of(result, "loss")); }
  double score(const NamedValues& result) const override { return -value_of(result, "loss"); }
  std::map<std::string, std::string> signature() const override { return {{"width", cat(kWidth)}}; }
  std::map<std::string, std::string> source_digests() const override { return {{"training data", "sine"}}; }
  std::string next_batch_digest(int64_t step) override { return cat("sine ", step + skipped_); }
  std::string describe() const override { return "model        line"; }
  void visit_state(StateVisitor& visitor) override {
    visit_model(*model_, visitor);
    visitor.integer("toy.skipped", skipped_);
  }

 private:
  const config::Config& config_;
  std::shared_ptr<Line> model_;
  at::Tensor inputs_;
  int64_t skipped_ = 0;
};

EvalOutcome evaluate_toy(const StoredModel& stored, const EvalRequest& request) {
  TrainedModel trained;
  begin_opening(trained, stored, "toy", "not a line");
  trained.runtime = ops::start_runtime_and_ops(trained.config);
  const ChosenWeights chosen = choose_weights(stored.folder, weights_to_evaluate(stored.config));
  trained.averaged = chosen.averaged;
  Line model(at::kCPU);
  ModelState state(model);
  checkpoint::load_weights_into(stored.folder, state, chosen.set());
  request.progress({kTestRows, kTestRows});
  const at::NoGradGuard no_grad;
  EvalOutcome outcome;
  outcome.head = eval_head(trained);
  outcome.values = {{"loss", losses_of(model, rows_from(kTestRow, kTestRows)).mean().item<double>()}};
  outcome.text = "evaluated";
  return outcome;
}

std::string export_toy(const StoredModel& stored, const ExportRequest& request) {
  const ChosenWeights chosen = choose_weights(stored.folder, request.weights);
  write_text_atomic(request.out, cat(chosen.values().at(0).first, " ", chosen.values().at(0).second.numel()));
  return exported_text(stored, chosen.averaged);
}

class ToyPlan : public ModelPlan {
 public:
  std::string name() const override { return "line"; }
  int64_t positions() const override { return 1; }
  ModelOutline outline(const config::Config& /*config*/) const override {
    const auto model = std::make_shared<Line>(at::kMeta);
    return {.model = model,
            .parameters = &model->set,
            .blocks_run_once = false,
            .group_defaults = {},
            .flops_per_sample = 6.0 * kWidth,
            .fp8_parameters = 0,
            .metric_sums = 1};
  }
  void add_memory(const PlanInput& /*in*/, int64_t micro, PlannedMemory& memory) const override {
    memory.add("data", 4.0 * kWidth * static_cast<double>(micro), "rows");
    memory.moment = "forward pass";
  }
  void add_times(const PlanInput& in, Plan& plan) const override {
    add_optimizer_times(in, plan);
    plan.time.push_back({"products", 1e-3, "of the line"});
  }
  std::string shares() const override { return "products reach all of its FLOP/s"; }
  double backward_done(const PlanInput& /*in*/, int64_t groups, int64_t count) const override {
    return static_cast<double>(groups) / static_cast<double>(count);
  }
};

const config::TaskSettings kToySettings{
    .name = "toy",
    .help = "a line",
    .defaults = {{"data.train",
                  [](const config::LoadedConfig&) {
                    return std::optional(config::TaskDefault::Chosen{std::string("sine"), ""});
                  }}},
};

const TaskSpec kToy{
    .settings = &kToySettings,
    .make = [](const config::Config& config, const Runtime& runtime, std::shared_ptr<parallel::Comm> comm)
        -> std::unique_ptr<Task> { return std::make_unique<ToyTask>(config, runtime, std::move(comm)); },
    .model_name = [](const config::Config&) { return std::string("line"); },
    .evaluate = evaluate_toy,
    .export_as = export_toy,
    .plan = [](const config::Config&, const PlanData&) { return PlannedModel{std::make_shared<ToyPlan>()}; },
};

const bool kAdded = [] {
  add_task(kToy);
  return true;
}();

class ToyTaskTest : public ::testing::Test {
 protected:
  std::filesystem::path dir_ = testing::fresh_folder("run");

  commands::TrainOptions training(int64_t steps, const std::string& name = "toy") const {
    commands::TrainOptions options;
    options.overrides = {"task=toy",
                         "run.name=" + name,
                         "run.dir=" + dir_.string(),
                         cat("train.steps=", steps),
                         "train.global_batch_size=16",
                         "train.micro_batch_size=8",
                         "train.log_every=5",
                         "train.checkpoint_every=10",
                         "optim.name=adamw",
                         "optim.lr=0.05",
                         "optim.warmup_steps=1",
                         "optim.weight_decay=0",
                         "optim.ema=0.5",
                         "runtime.device=cpu",
                         "runtime.threads=1"};
    return options;
  }
  nlohmann::json evaluated(const std::string& weights, const std::string& name = "toy") const {
    const std::string out = (dir_ / "eval.json").string();
    commands::EvalOptions options;
    options.checkpoint = (dir_ / name).string();
    options.overrides = {"eval.weights=" + weights};
    options.json_out = out;
    testing::printed([&] { return commands::run_eval(options); });
    return nlohmann::json::parse(std::ifstream(out));
  }
};

TEST_F(ToyTaskTest, IsAmongTheChoicesOfTask) {
  ASSERT_TRUE(kAdded);
  EXPECT_EQ(config::load_config({}, {"task=toy"}).config.data.train, "sine");
  expect_error(ExitCode::usage, {"task = \"toys\"", "did you mean 'toy'?"},
               [] { config::load_config({}, {"task=toys"}); });
  expect_error(ExitCode::usage, {"model.hidden_size = 64", "belongs to task puzzle", "task = \"toy\""}, [] {
    config::load_config({}, {"task=toy", "model.hidden_size=64"});
  });
}

TEST_F(ToyTaskTest, TrainsAndIsEvaluated) {
  commands::run_train(training(60));
  const nlohmann::json raw = evaluated("raw"), average = evaluated("ema");
  EXPECT_EQ(raw["step"], 60);
  EXPECT_LT(raw["loss"].get<double>(), 0.05) << "an untrained line has about 4";
  EXPECT_EQ(average["weights"], "ema");
  EXPECT_NE(average["loss"], raw["loss"]);
}

TEST_F(ToyTaskTest, ResumesWhereItStopped) {
  commands::run_train(training(40, "whole"));
  commands::run_train(training(20, "parts"));
  commands::TrainOptions rest = training(40, "parts");
  commands::run_train(rest);
  EXPECT_EQ(evaluated("raw", "parts")["loss"], evaluated("raw", "whole")["loss"]);
  rest.overrides.emplace_back("run.seed=1");
  rest.overrides.emplace_back("train.steps=50");
  expect_error(ExitCode::usage, {"run.seed = 1"}, [&] { commands::run_train(rest); });
}

TEST_F(ToyTaskTest, IsExportedAndPlannedAndRefusesTheRest) {
  commands::run_train(training(10));
  const std::string run = (dir_ / "toy").string(), out = (dir_ / "out").string();
  testing::printed([&] { return commands::run_export({.to = "safetensors", .checkpoint = run, .out = out}); });
  EXPECT_EQ(read_text(out, ExitCode::data), "weight 8");
  commands::PlanOptions plan;
  plan.overrides = {"task=toy", "train.global_batch_size=32", "optim.warmup_steps=1"};
  plan.gpu = "H100";
  plan.json_out = out;
  testing::printed([&] { return commands::run_plan(plan); });
  const nlohmann::json planned = nlohmann::json::parse(std::ifstream(out));
  EXPECT_EQ(planned["model"], "line");
  EXPECT_EQ(planned["parameters"], kWidth);
  commands::GenerateOptions generate;
  generate.checkpoint = run;
  generate.has_prompt = true;
  expect_error(ExitCode::usage, {"holds a model of task toy, not a language model"},
               [&] { commands::run_generate(generate); });
  expect_error(ExitCode::usage, {"PEFT"}, [&] { commands::run_export({.to = "peft", .checkpoint = run, .out = out}); });
}

}  // namespace
}  // namespace hrm::tasks
