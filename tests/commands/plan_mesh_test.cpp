// `plan --ranks` on a mesh: what a rank waits for, and which mesh is the best.
#include <gtest/gtest.h>

#include <algorithm>

#include "commands/plan/best.h"
#include "commands/plan/report.h"
#include "commands/plan_cases.h"
#include "support/expect_error.h"
#include "support/overrides.h"

namespace hrm::commands {
namespace {

using Kind = parallel::CommOperation::Kind;
using Moment = StepExchange::Moment;
using tasks::StepPlace;
using test::Overrides;
using test::with;

// --- the simulation

struct Wait {
  Moment moment = Moment::after_backward;
  double ready = 1;
};

// An exchange that takes `ms`, from its start to where it is waited for.
void add_exchange(std::vector<StepExchange>& all, const char* axis, int64_t ms, Wait start, Wait wait,
                  int64_t left = 0) {
  StepExchange exchange;
  exchange.operation = {Kind::all_gather, ms, axis};
  exchange.moment = start.moment;
  exchange.ready = start.ready;
  exchange.micro_batches_left = left;
  exchange.wait = {.moment = wait.moment, .ready = wait.ready, .micro_batches_left = left};
  all.push_back(exchange);
}

// With starts and waits in the order of their places.
StepTimeline simulated(std::vector<StepExchange> exchanges, const PassTimes& times) {
  std::vector<StepPlace*> places;
  for (StepExchange& exchange : exchanges) {
    places.push_back(&exchange);
    places.push_back(&exchange.wait);
  }
  std::stable_sort(places.begin(), places.end(), [](const StepPlace* a, const StepPlace* b) {
    return std::tuple(-a->micro_batches_left, a->moment, a->ready) <
           std::tuple(-b->micro_batches_left, b->moment, b->ready);
  });
  for (size_t i = 0; i < places.size(); ++i) places[i]->order = static_cast<int64_t>(i);
  return simulate(exchanges, times,
                  [](const parallel::CommOperation& operation) { return static_cast<double>(operation.bytes); });
}

const PassTimes kTenAndTwenty{.forward_ms = 10, .backward_ms = 20};

// 8 ms under way from the start, beside 10 ms of computing at half its speed: 4 of them are done by then.
TEST(Simulation, ComputingBesideAnExchangeIsSlower) {
  std::vector<StepExchange> all;
  add_exchange(all, "", 8, {Moment::before_forward, 0}, {Moment::after_backward, 1});
  const PassTimes half{.forward_ms = 10, .backward_ms = 20, .rate_beside = 0.5};
  const StepTimeline hidden = simulated(all, half);
  EXPECT_DOUBLE_EQ(hidden.exposed_ms, 0);
  EXPECT_DOUBLE_EQ(hidden.slowed_ms, 4);
  EXPECT_DOUBLE_EQ(simulated(all, kTenAndTwenty).slowed_ms, 0);
  // Waited for after 3 ms of computing, which take 6; 2 are left.
  all[0].wait.moment = Moment::in_forward;
  all[0].wait.ready = 0.3;
  const StepTimeline waited = simulated(all, half);
  EXPECT_DOUBLE_EQ(waited.slowed_ms, 3);
  EXPECT_DOUBLE_EQ(waited.exposed_ms, 2);
}

TEST(Simulation, WhatTravelsBesideComputingIsHidden) {
  std::vector<StepExchange> all;
  add_exchange(all, "", 8, {Moment::in_backward, 0.5}, {Moment::in_backward, 1});
  EXPECT_DOUBLE_EQ(simulated(all, kTenAndTwenty).exposed_ms, 0);
  // One after the other: 10 ms of computing hide the first and 2 of the second.
  add_exchange(all, "", 7, {Moment::in_backward, 0.75}, {Moment::in_backward, 1});
  const StepTimeline both = simulated(all, kTenAndTwenty);
  EXPECT_DOUBLE_EQ(both.exposed_ms, 5);
  EXPECT_DOUBLE_EQ(both.comm_ms, 15);
  EXPECT_EQ(both.axes.at("").calls, 2);
  // What is ready at the end has nothing beside it.
  add_exchange(all, "", 3, {Moment::in_backward, 1}, {Moment::after_backward, 1});
  EXPECT_DOUBLE_EQ(simulated(all, kTenAndTwenty).exposed_ms, 8);
}

TEST(Simulation, WhatIsWaitedForAtOnceIsExposed) {
  std::vector<StepExchange> all;
  add_exchange(all, "tensor", 2, {Moment::in_forward, 0.5}, {Moment::in_forward, 0.5});
  add_exchange(all, "tensor", 2, {Moment::in_backward, 0.5}, {Moment::in_backward, 0.5});
  const StepTimeline two = simulated(all, kTenAndTwenty);
  EXPECT_DOUBLE_EQ(two.exposed_ms, 4);
  EXPECT_DOUBLE_EQ(two.axes.at("tensor").exposed_ms, 4);
  // Gradients stop while the tensor axis has the links, and go on afterwards.
  add_exchange(all, "shard", 15, {Moment::in_backward, 0.25}, {Moment::in_backward, 1});
  const StepTimeline three = simulated(all, kTenAndTwenty);
  EXPECT_DOUBLE_EQ(three.axes.at("tensor").exposed_ms, 4);
  EXPECT_DOUBLE_EQ(three.axes.at("shard").exposed_ms, 0);
  all.back().operation.bytes = 16;
  EXPECT_DOUBLE_EQ(simulated(all, kTenAndTwenty).axes.at("shard").exposed_ms, 1);
}

// Weights of the next block travel while one computes; the first are waited for.
TEST(Simulation, WeightsInTurn) {
  std::vector<StepExchange> all;
  add_exchange(all, "", 4, {Moment::in_forward, 0}, {Moment::in_forward, 0});
  add_exchange(all, "", 4, {Moment::in_forward, 0}, {Moment::in_forward, 0.5});
  EXPECT_DOUBLE_EQ(simulated(all, kTenAndTwenty).exposed_ms, 4);
  EXPECT_DOUBLE_EQ(simulated(all, {.forward_ms = 4, .backward_ms = 1}).exposed_ms, 4 + 2);
}

TEST(Simulation, EveryMicroBatchComputes) {
  std::vector<StepExchange> all;
  const PassTimes twice{.forward_ms = 10, .backward_ms = 20, .micro_batches = 2};
  add_exchange(all, "", 50, {Moment::in_backward, 1}, {Moment::in_backward, 1}, 1);
  EXPECT_DOUBLE_EQ(simulated(all, twice).exposed_ms, 50);
  all[0].wait = {.moment = Moment::after_backward, .micro_batches_left = 0};
  EXPECT_DOUBLE_EQ(simulated(all, twice).exposed_ms, 50 - 30);
}

// One that is listed stands for three, of which each waits.
TEST(Simulation, MicroBatchesThatAreNotListed) {
  std::vector<StepExchange> all;
  add_exchange(all, "tensor", 2, {Moment::in_forward, 0.5}, {Moment::in_forward, 0.5}, 1);
  all[0].times = 3;
  add_exchange(all, "", 15, {Moment::in_backward, 0.5}, {Moment::after_backward});
  const StepTimeline timeline = simulated(all, {.forward_ms = 10, .backward_ms = 20, .micro_batches = 4});
  EXPECT_EQ(timeline.axes.at("tensor").calls, 3);
  EXPECT_DOUBLE_EQ(timeline.axes.at("tensor").exposed_ms, 6);
  EXPECT_DOUBLE_EQ(timeline.axes.at("").exposed_ms, 5);
}

TEST(Simulation, RefusesWhatIsNeverWaitedFor) {
  std::vector<StepExchange> all;
  add_exchange(all, "", 1, {Moment::in_forward, 0}, {Moment::in_forward, 0});
  all[0].order = 0;
  test::expect_error(ExitCode::unexpected, {"never waits"},
                     [&] { simulate(all, kTenAndTwenty, [](auto&) { return 1; }); });
}

// --- meshes

TEST(AxisLayouts, TensorRanksAreNeighbours) {
  const auto layouts = [](int ranks, int tensor) {
    return axis_layouts(parallel::MeshPlace(0, ranks, {.tensor = tensor}), /*per_node=*/8);
  };
  const auto expect = [](const RankLayout& layout, int64_t ranks, int64_t nodes) {
    EXPECT_EQ(layout.ranks, ranks);
    EXPECT_EQ(layout.nodes, nodes);
  };
  expect(layouts(32, 2).at(""), 32, 4);
  expect(layouts(32, 2).at("tensor"), 2, 1);
  expect(layouts(32, 2).at("shard"), 16, 4);
  expect(layouts(32, 8).at("shard"), 4, 4);
  expect(layouts(32, 16).at("tensor"), 16, 2);
  expect(layouts(32, 16).at("shard"), 2, 2);
  expect(layouts(4, 4).at("tensor"), 4, 1);
  test::expect_error(ExitCode::usage, {"parallel.tensor = 6", "nodes of 8"}, [&] { layouts(24, 6); });
}

const Overrides kLargeDecoder{"lm.hidden_size=4096", "lm.layers=32",          "lm.num_heads=32",
                              "lm.inner=11008",      "data.decoder_len=2048", "train.micro_batch_size=1",
                              "lm.recompute=true"};
const Overrides kSmallDecoder{"lm.hidden_size=512", "lm.layers=8", "lm.num_heads=8", "lm.inner=1536",
                              "data.decoder_len=512"};

RanksInput mesh_input(const Overrides& more, const char* gpu_name = "H200") {
  const config::Config config =
      config::load_config({}, with({"task=language", "lm.arch=decoder", "data.encoder_len=0"}, more)).config;
  const GpuFacts& gpu = testing::gpu(gpu_name);
  return {.one = testing::make_plan_input(config, models::language_sizes(config.data, /*vocabulary=*/32000), gpu),
          .links = make_links(gpu, {})};
}

BestMeshes best_of(int64_t ranks, const Overrides& more, const char* gpu_name = "H200") {
  return find_best_meshes(ranks, /*per_node=*/8,
                          [&](const MeshSettings& mesh) { return mesh_input(with(more, mesh.overrides()), gpu_name); });
}

TEST(MeshPlan, APartHasAPartOfEverything) {
  const Overrides base = with(kLargeDecoder, {"train.global_batch_size=8"});
  const RanksPlan whole = make_ranks_plan(mesh_input(base), 8);
  const RanksPlan part = make_ranks_plan(mesh_input(with(base, {"parallel.tensor=4"})), 8);
  EXPECT_NEAR(4.0 * static_cast<double>(part.input.parameters), static_cast<double>(whole.input.parameters),
              0.001 * static_cast<double>(whole.input.parameters));
  const auto item = [](const RanksPlan& plan, const char* name) { return testing::item(plan.own.memory, name); };
  for (const char* name : {"weights", "compute copies", "gradients", "optimizer"}) {
    EXPECT_NEAR(item(part, name), item(whole, name) / 4, 0.001 * item(whole, name)) << name;
  }
  // What is kept of a micro-batch is the residual stream, of which a part has its own tokens.
  EXPECT_LT(item(part, "activations kept"), 0.5 * item(whole, "activations kept"));
  // Four times as many rows, a fourth of the work of each.
  EXPECT_EQ(part.input.data_ranks(), 2);
  const auto passes = [](const RanksPlan& plan) { return plan.own.forward_ms + plan.own.backward_ms; };
  EXPECT_NEAR(passes(part), passes(whole), 0.05 * passes(whole));
  // Some of it beside products.
  EXPECT_GT(part.timeline.axes.at("tensor").exposed_ms, 0.1 * part.timeline.axes.at("tensor").ms);
  EXPECT_LT(part.timeline.axes.at("tensor").exposed_ms, 0.7 * part.timeline.axes.at("tensor").ms);
  EXPECT_EQ(whole.timeline.axes.count("tensor"), 0U);
}

// What two H200s had in use (docs/profiling.md).
TEST(MeshPlan, MemoryIsNearWhatWasMeasured) {
  const Overrides decoder{"lm.hidden_size=2048", "lm.layers=24",     "lm.num_heads=16", "lm.kv_heads=8",
                          "lm.head_dim=128",     "lm.inner=5632",    "lm.tied=false",   "data.decoder_len=4096",
                          "optim.name=adamw",    "optim.grad_clip=1"};
  const auto expect = [](int64_t ranks, double gib, double reserved, const Overrides& overrides) {
    const Plan plan = make_ranks_plan(mesh_input(overrides), ranks).own;
    EXPECT_NEAR(plan.device_used / (1 << 30), gib, 0.015 * gib) << overrides.back();
    EXPECT_NEAR(plan.reserved / (1 << 30), reserved, 0.015 * reserved) << overrides.back();
  };
  expect(1, 45.3, 44.6, with(decoder, {"train.global_batch_size=4"}));
  expect(2, 26.4, 24.0, with(decoder, {"train.global_batch_size=4", "parallel.tensor=2"}));
  expect(2, 35.3, 34.0, with(decoder, {"train.global_batch_size=8", "parallel.zero=3"}));
}

TEST(MeshPlan, OptimizerWorksOnAShare) {
  const auto optimizer = [](const Overrides& more) {
    const RanksInput in = mesh_input(with(with(kSmallDecoder, {"train.global_batch_size=8"}), more));
    return testing::item(make_ranks_plan(in, 8).own.time, "optimizer");
  };
  EXPECT_DOUBLE_EQ(optimizer({"parallel.zero=1"}), optimizer({}) / 8);
  EXPECT_NEAR(optimizer({"parallel.tensor=2"}), optimizer({}) / 2, 0.01 * optimizer({}));
}

// Of many micro-batches some stand for others.
TEST(MeshPlan, ManyMicroBatches) {
  const auto plan_of = [](int64_t micro_batches) {
    const RanksInput in = mesh_input(with(kSmallDecoder, {"parallel.tensor=2", "train.micro_batch_size=1",
                                                          cat("train.global_batch_size=", 2 * micro_batches)}));
    return make_ranks_plan(in, 4);
  };
  const auto calls = [&](int64_t micro_batches) { return plan_of(micro_batches).timeline.axes.at("tensor").calls; };
  const int64_t each = calls(4) - calls(3), once = calls(3) - 3 * each;
  EXPECT_GT(each, 30);
  EXPECT_EQ(once, 3) << "shared gradients, norm and update ratio";
  for (const int64_t micro_batches : {8, 12, 48}) EXPECT_EQ(calls(micro_batches), once + micro_batches * each);
  const RanksPlan many = plan_of(48);
  EXPECT_LT(many.exchanges.size(), 10U * static_cast<size_t>(each));
  const auto exposed = [&](int64_t micro_batches) {
    return plan_of(micro_batches).timeline.axes.at("tensor").exposed_ms;
  };
  // From here on, the least time of a kernel does not matter.
  EXPECT_NEAR(exposed(192) - exposed(96), 2 * (exposed(96) - exposed(48)), 0.05 * exposed(96));
  int64_t bytes = 0;
  for (const StepExchange& exchange : many.exchanges) bytes += exchange.times * exchange.operation.bytes;
  int64_t of_axes = 0;
  for (const auto& [axis, times] : many.timeline.axes) of_axes += times.bytes;
  EXPECT_EQ(of_axes, bytes);
}

TEST(MeshPlan, SaysWhereTensorDoesNotPay) {
  const auto advice = [](const Overrides& more, const char* gpu) {
    const RanksInput in = mesh_input(with(more, {"parallel.tensor=2", "train.global_batch_size=16"}), gpu);
    return why_tensor_does_not_pay(in, make_ranks_plan(in, 2));
  };
  EXPECT_NE(advice(kSmallDecoder, "H200").find("parallel.tensor=2 does not pay"), std::string::npos);
  EXPECT_EQ(advice(kLargeDecoder, "A100"), "") << "without it, the model does not fit";
  const RanksInput whole = mesh_input(with(kSmallDecoder, {"train.global_batch_size=16"}));
  EXPECT_EQ(why_tensor_does_not_pay(whole, make_ranks_plan(whole, 2)), "");
  // Two ranks cannot split one row: nothing to compare with.
  const RanksInput row = mesh_input(with(kSmallDecoder, {"parallel.tensor=2", "train.global_batch_size=1"}));
  EXPECT_EQ(why_tensor_does_not_pay(row, make_ranks_plan(row, 2)), "");
}

TEST(MeshPlan, WhatCannotBe) {
  const auto refuses = [](int64_t ranks, const Overrides& more, const std::vector<std::string>& parts) {
    test::expect_error(ExitCode::usage, parts, [&] { make_ranks_plan(mesh_input(with(kSmallDecoder, more)), ranks); });
  };
  refuses(6, {"parallel.tensor=4"}, {"6 ranks", "parallel.tensor = 4"});
  refuses(8, {"parallel.tensor=2", "train.global_batch_size=6"},
          {"train.global_batch_size = 6", "4 groups of parallel.tensor = 2 ranks"});
  test::expect_error(ExitCode::usage, {"plan knows no parts of", "parallel.tensor = 2"}, [] {
    const config::Config puzzle = config::load_config({}, {}).config;
    PlanInput in = testing::make_plan_input(
        puzzle, models::resolve_dims(puzzle.model, {.vocab_size = 11, .seq_len = 81}), testing::gpu("H200"));
    in.config.parallel.tensor = 2;
    make_ranks_plan({.one = in, .links = {}}, 2);
  });
}

TEST(BestMesh, FitsOnlyWhenShared) {
  const Overrides large = with(kLargeDecoder, {"train.global_batch_size=8"});
  const BestMeshes best = best_of(8, large, "A100");
  ASSERT_GE(best.fitting.size(), 6U);
  for (const MeshPlan& mesh : best.fitting) EXPECT_TRUE(mesh.mesh.tensor > 1 || mesh.mesh.zero > 0);
  for (size_t i = 1; i < best.fitting.size(); ++i) {
    EXPECT_GE(best.fitting[i - 1].plan.samples_per_s, best.fitting[i].plan.samples_per_s);
  }
  ASSERT_GE(best.too_large.size(), 1U);
  for (const MeshPlan& mesh : best.too_large) {
    EXPECT_EQ(mesh.mesh.tensor, 1);
    EXPECT_TRUE(mesh.mesh.zero == 0 || mesh.mesh.replicas == 4) << "two cards do not hold a state";
  }
  // With one group of shards, zero=1 fits.
  EXPECT_EQ(best_json(mesh_input(large, "A100"), 8, best).at("too_large_names"),
            "tensor=1 zero=0; tensor=1 zero=1 replicas=4");
}

TEST(BestMesh, TellsWhatCannotBe) {
  const BestMeshes best = best_of(16, with(kSmallDecoder, {"train.global_batch_size=16"}));
  // Eight heads: a tensor of 16 is refused with all it has, once.
  const auto of_heads = std::find_if(best.refused.begin(), best.refused.end(), [](const BestMeshes::Refused& refused) {
    return refused.why.find("lm.num_heads = 8") != std::string::npos;
  });
  ASSERT_NE(of_heads, best.refused.end());
  ASSERT_EQ(of_heads->meshes.size(), 1U) << "with one rank that reads rows there is nothing to share out";
  EXPECT_EQ(of_heads->meshes.front().tensor, 16);
  size_t meshes = best.fitting.size() + best.too_large.size();
  for (const BestMeshes::Refused& refused : best.refused) meshes += refused.meshes.size();
  // Of zero 1 to 3, all ranks split the state or, of a node, groups: of 2, 4 and 8 ranks with a tensor of 1; of 2 and 4
  // with 2; of 2 with 4. With 8, both ranks split it.
  EXPECT_EQ(meshes, (1 + 3 * 4U) + (1 + 3 * 3) + (1 + 3 * 2) + (1 + 3) + 1);
}

TEST(BestMesh, NothingFits) {
  const BestMeshes best = best_of(1, with(kLargeDecoder, {"train.global_batch_size=8"}), "A100");
  EXPECT_TRUE(best.fitting.empty());
  ASSERT_EQ(best.too_large.size(), 1U);
  EXPECT_EQ(best.too_large.front().plan.own.fitting_micro_batch, 0);
}

}  // namespace
}  // namespace hrm::commands
