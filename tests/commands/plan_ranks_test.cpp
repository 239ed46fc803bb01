// `plan --ranks`: what is sent is what training sends; how times follow from it.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "commands/plan_cases.h"
#include "commands/rehearsal.h"
#include "hrm/base/file.h"
#include "hrm/train/batch_split.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/temp_dir.h"

namespace hrm::commands {
namespace {

using Kind = parallel::CommOperation::Kind;
using Moment = StepExchange::Moment;
using test::Overrides;
using testing::fresh_folder;

const GpuFacts& h200() {
  return known_gpus().front();
}

struct RanksCase {
  const char* name;
  Overrides more;
};
void PrintTo(const RanksCase& value, std::ostream* out) {
  *out << value.name;
}

class RehearsalTest : public ::testing::TestWithParam<RanksCase> {};

TEST_P(RehearsalTest, IsWhatTrainingSends) {
  const Overrides& more = GetParam().more;
  const auto loaded = testing::small_config(fresh_folder("config"), more);
  const auto data = data::open_dataset(loaded.config.data.train, "train", loaded.config.data);
  testing::expect_rehearsed<testing::SmallRun>(
      testing::make_plan_input(loaded.config, models::resolve_dims(loaded.config.model, data->meta()), h200()), more);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RehearsalTest,
    ::testing::Values(
        RanksCase{"plain", {}}, RanksCase{"bf16", {"parallel.reduce=bf16"}},
        RanksCase{"several_buckets",
                  {"model.hidden_size=128", "model.H_layers=2", "model.L_layers=3", "parallel.bucket_mb=1"}},
        RanksCase{"accumulation", {"train.micro_batch_size=1"}}, RanksCase{"pool", {"data.reference_semantics=false"}},
        RanksCase{"zero1", {"parallel.zero=1", "optim.ema=0.9"}},
        RanksCase{"zero2",
                  {"model.hidden_size=128", "model.H_layers=2", "model.L_layers=3", "parallel.bucket_mb=1",
                   "parallel.zero=2", "train.micro_batch_size=1"}},
        RanksCase{"zero2_trm",
                  {"model.arch=trm", "model.H_layers=0", "model.L_layers=2", "model.no_ACT_continue=true",
                   "parallel.zero=2", "train.micro_batch_size=1"}},
        RanksCase{"zero2_urm",
                  {"model.arch=urm", "model.H_layers=0", "model.L_layers=2", "model.H_cycles=2",
                   "model.no_ACT_continue=true", "parallel.zero=2", "train.micro_batch_size=1"}},
        RanksCase{"without_embedding", {"model.puzzle_emb_ndim=0"}},
        RanksCase{"trm", {"model.arch=trm", "model.H_layers=0", "model.L_layers=2", "model.no_ACT_continue=true"}}),
    [](const auto& info) { return std::string(info.param.name); });

PlanInput sudoku_input(const Overrides& more = {}) {
  Overrides overrides{"train.global_batch_size=1024"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  const auto config = config::load_config({}, overrides).config;
  return testing::make_plan_input(config, models::resolve_dims(config.model, {.vocab_size = 11, .seq_len = 81}),
                                  h200());
}

RanksInput ranks_input(const Overrides& more = {}, bool weak = false) {
  return {.one = sudoku_input(more), .weak = weak, .links = make_links(h200(), {})};
}

// A model of 32 channels with one block each: 4 D^2 of attention, 3 D F of the MLP with F = 256.
TEST(Rehearsal, BytesOfATinyModel) {
  PlanInput in = sudoku_input({"model.hidden_size=32", "model.num_heads=2", "model.H_layers=1", "model.L_layers=1",
                               "model.expansion=4", "train.global_batch_size=64"});
  in.ranks = 8;
  const auto exchanges = rehearse_step(in);
  const int64_t block = 4 * 32 * 32 + 3 * 32 * 256;
  ASSERT_EQ(exchanges.size(), 5u);
  // The blocks of H and L side by side in one bucket.
  EXPECT_EQ(exchanges[0].operation, (parallel::CommOperation{Kind::all_reduce, 4 * 2 * block}));
  EXPECT_EQ(exchanges[0].what, "gradients");
  EXPECT_EQ(exchanges[0].moment, Moment::in_backward);
  EXPECT_DOUBLE_EQ(exchanges[0].ready, 1);
  EXPECT_EQ(exchanges[1].what, "metrics");
  // Tokens 11 x 32, head 11 x 32, Q head 2 x 32 and its bias of 2, each from a multiple of 64 values on.
  EXPECT_EQ(exchanges[2].operation, (parallel::CommOperation{Kind::all_reduce, 4 * (384 + 384 + 64 + 64)}));
  EXPECT_EQ(exchanges[3].operation, (parallel::CommOperation{Kind::all_gather, 4 * 64}));
  EXPECT_EQ(exchanges[4].operation, (parallel::CommOperation{Kind::all_gather, 4 * 64 * 32}));
  EXPECT_EQ(exchanges[4].what, "puzzle embedding");
  in.ranks = 1;
  EXPECT_TRUE(rehearse_step(in).empty());
}

TEST(Rehearsal, BucketsFollowTheConfiguration) {
  const auto gradients = [](const Overrides& more) {
    PlanInput in = sudoku_input(more);
    in.ranks = 8;
    parallel::CommTraffic traffic;
    for (const StepExchange& exchange : rehearse_step(in)) {
      if (exchange.what == "gradients") traffic.operations.push_back(exchange.operation);
    }
    return traffic;
  };
  const auto plain = gradients({}), half = gradients({"parallel.reduce=bf16"});
  EXPECT_EQ(plain.bytes(Kind::all_reduce), 2 * half.bytes(Kind::all_reduce));
  EXPECT_LT(half.operations.size(), plain.operations.size()) << "a bucket is full of bytes, not of values";
  EXPECT_LT(gradients({"parallel.bucket_mb=1024"}).operations.size(), plain.operations.size());
  EXPECT_EQ(gradients({"parallel.bucket_mb=1024"}).bytes(Kind::all_reduce), plain.bytes(Kind::all_reduce));
}

TEST(Rehearsal, Fp8SendsItsMaxima) {
  PlanInput in = sudoku_input({"precision.recursions=fp8"});
  in.ranks = 8;
  int64_t bytes = 0;
  for (const StepExchange& exchange : rehearse_step(in)) {
    if (exchange.what == "fp8 maxima") bytes += exchange.operation.bytes;
  }
  // Eight blocks with four products: a slot for each weight and one for its input.
  EXPECT_EQ(bytes, 4 * 2 * 8 * 4);
}

// TRM's blocks are complete only when the backward pass comes through their first use.
TEST(Rehearsal, ReadyInTime) {
  PlanInput in = sudoku_input({"model.arch=trm", "model.H_layers=0", "model.L_layers=2", "model.L_cycles=6",
                               "model.no_ACT_continue=true", "parallel.bucket_mb=1"});
  in.ranks = 2;
  const auto exchanges = rehearse_step(in);
  EXPECT_DOUBLE_EQ(exchanges[0].ready, 13.0 / 14);
  EXPECT_DOUBLE_EQ(exchanges[1].ready, 1);
  in = sudoku_input({"parallel.bucket_mb=1"});
  in.ranks = 2;
  EXPECT_DOUBLE_EQ(rehearse_step(in)[0].ready, 1.0 / 8);
}

TEST(RanksPlan, OneRankIsThePlanWithoutRanks) {
  const RanksInput in = ranks_input();
  const RanksPlan plan = make_ranks_plan(in, 1);
  const Plan alone = make_plan(in.one);
  EXPECT_TRUE(plan.exchanges.empty());
  EXPECT_EQ(plan.timeline.comm_ms, 0);
  EXPECT_EQ(plan.step_ms, alone.step_ms);
  EXPECT_EQ(plan.own.tensors_peak, alone.tensors_peak);
  EXPECT_DOUBLE_EQ(plan.efficiency, 1);
}

TEST(RanksPlan, StrongScaling) {
  const RanksInput in = ranks_input();
  RanksPlan last = make_ranks_plan(in, 1);
  for (const int64_t ranks : {8, 64, 1024}) {
    SCOPED_TRACE(ranks);
    const RanksPlan plan = make_ranks_plan(in, ranks);
    EXPECT_EQ(plan.layout.nodes, ranks / 8);
    EXPECT_EQ(plan.input.config.train.global_batch_size, 1024);
    EXPECT_LT(plan.own.tensors_peak, last.own.tensors_peak);
    EXPECT_LT(plan.own.step_ms, last.own.step_ms);
    EXPECT_GT(plan.timeline.comm_ms, last.timeline.comm_ms);
    EXPECT_LT(plan.efficiency, last.efficiency);
    EXPECT_GT(plan.timeline.exposed_ms, 0);
    EXPECT_LE(plan.timeline.exposed_ms, plan.timeline.comm_ms);
    EXPECT_DOUBLE_EQ(plan.step_ms, plan.own.step_ms + plan.timeline.exposed_ms + plan.timeline.slowed_ms);
    EXPECT_NEAR(plan.samples_per_s, 1024e3 / plan.step_ms, 1e-6 * plan.samples_per_s);
    EXPECT_EQ(plan.sent.network > 0, ranks > 8);
    last = plan;
  }
}

TEST(RanksPlan, WeakScaling) {
  const RanksInput in = ranks_input({"train.global_batch_size=384"}, /*weak=*/true);
  RanksPlan last = make_ranks_plan(in, 1);
  for (const int64_t ranks : {8, 64, 1024}) {
    SCOPED_TRACE(ranks);
    const RanksPlan plan = make_ranks_plan(in, ranks);
    EXPECT_EQ(plan.input.config.train.global_batch_size, 384 * ranks);
    EXPECT_EQ(train::split_batch(plan.input.config.train, ranks).own, 384);
    EXPECT_GE(plan.own.tensors_peak, last.own.tensors_peak);
    EXPECT_GT(plan.step_ms, last.step_ms);
    EXPECT_GT(plan.samples_per_s, last.samples_per_s);
    EXPECT_LT(plan.efficiency, last.efficiency);
    EXPECT_GT(plan.efficiency, 0.5);
    last = plan;
  }
}

// Gradients hide behind a backward pass that is long enough; the last bucket never does.
TEST(RanksPlan, WhatHides) {
  RanksInput in = ranks_input();
  const RanksPlan plan = make_ranks_plan(in, 8);
  double last = 0, others = 0;
  for (size_t i = 0; i < plan.exchanges.size(); ++i) {
    if (plan.exchanges[i].moment != Moment::in_backward) others += plan.timeline.exchange_ms[i];
    if (plan.exchanges[i].what == "gradients") last = plan.timeline.exchange_ms[i];
  }
  EXPECT_GE(plan.timeline.exposed_ms, last + others);
  EXPECT_LT(plan.timeline.exposed_ms, 0.8 * plan.timeline.comm_ms);
  // A hundred times slower links: nearly all gradients wait behind one another.
  in.links.node.bytes_per_s /= 100;
  const RanksPlan slow = make_ranks_plan(in, 8);
  EXPECT_GT(slow.timeline.comm_ms, 50 * (plan.timeline.comm_ms - 0.5));
  const double hidden_most = slow.own.backward_ms / kRateBesideExchange;
  EXPECT_GT(slow.timeline.exposed_ms, slow.timeline.comm_ms - hidden_most);
  EXPECT_LT(slow.timeline.exposed_ms, slow.timeline.comm_ms);
  // Of two micro-batches only the last one's backward pass hides anything.
  RanksInput parts = ranks_input({"train.micro_batch_size=32"});
  parts.links = in.links;
  EXPECT_GT(make_ranks_plan(parts, 8).timeline.exposed_ms, slow.timeline.exposed_ms);
}

TEST(RanksPlan, MemoryOfARank) {
  const auto item = [](const Plan& plan, const std::string& name) {
    for (const PlanItem& i : plan.memory) {
      if (i.name == name) return i.value;
    }
    return 0.0;
  };
  const Plan one = make_ranks_plan(ranks_input(), 1).own, eight = make_ranks_plan(ranks_input(), 8).own;
  EXPECT_DOUBLE_EQ(item(eight, "carry"), item(one, "carry") / 8);
  EXPECT_DOUBLE_EQ(item(eight, "activations kept"), item(one, "activations kept") / 8);
  EXPECT_EQ(item(eight, "optimizer"), item(one, "optimizer"));
  EXPECT_EQ(item(eight, "sent gradients"), 0);
  const RanksInput half = ranks_input({"parallel.reduce=bf16"});
  EXPECT_EQ(item(make_ranks_plan(half, 8).own, "sent gradients"), 2.0 * static_cast<double>(half.one.parameters));
  EXPECT_EQ(item(make_ranks_plan(half, 1).own, "sent gradients"), 0);
  // The pool has rows of all ranks, each with 81 tokens and labels.
  const Overrides pool{"data.reference_semantics=false"};
  const double rows = item(make_ranks_plan(ranks_input(pool), 8).own, "data");
  EXPECT_EQ(rows, item(eight, "data") + 4 * 1024 * 2 * 81 * 4);
  // Gradients of the rows of a million samples are more than the activations of one rank.
  const Plan many = make_ranks_plan(ranks_input({"train.global_batch_size=1048576"}), 1 << 20).own;
  EXPECT_EQ(item(many, "gathered rows"), 4.0 * 513 * (1 << 20));
  EXPECT_EQ(many.peak_moment, "update of the puzzle embedding");
}

TEST(RanksPlan, WhatCannotBeSplit) {
  test::expect_error(ExitCode::usage, {"train.global_batch_size = 1024 cannot be split over 3 ranks"},
                     [] { make_ranks_plan(ranks_input(), 3); });
  test::expect_error(ExitCode::usage,
                     {"train.micro_batch_size = 256 does not divide the 128 samples that each of 8 ranks has"},
                     [] { make_ranks_plan(ranks_input({"train.micro_batch_size=256"}), 8); });
  test::expect_error(ExitCode::usage, {"12 ranks do not fill nodes of 8", "--ranks-per-node"},
                     [] { make_ranks_plan(ranks_input({}, /*weak=*/true), 12); });
}

// --- links

constexpr parallel::CommOperation kSum{Kind::all_reduce, 1 << 20};
constexpr parallel::CommOperation kGather{Kind::all_gather, 1 << 20};

TEST(Links, Bytes) {
  const double S = 1 << 20;
  LinkBytes bytes = link_bytes(kSum, layout_of(4, 8));
  EXPECT_DOUBLE_EQ(bytes.node, 2 * S * 3 / 4);
  EXPECT_DOUBLE_EQ(bytes.network, 0);
  bytes = link_bytes(kSum, layout_of(64, 8));
  EXPECT_DOUBLE_EQ(bytes.node, 2 * S * 7 / 8);
  EXPECT_DOUBLE_EQ(bytes.network, 2 * (S / 8) * 7 / 8);
  bytes = link_bytes(kSum, layout_of(16, 1));
  EXPECT_DOUBLE_EQ(bytes.node, 0);
  EXPECT_DOUBLE_EQ(bytes.network, 2 * S * 15 / 16);
  // All but its own part reaches each rank, by one way or the other.
  bytes = link_bytes(kGather, layout_of(64, 8));
  EXPECT_DOUBLE_EQ(bytes.node + bytes.network, S * 63 / 64);
}

TEST(Links, TimesOfTheDataSheets) {
  const Links links = make_links(h200(), {});
  EXPECT_DOUBLE_EQ(links.node.bytes_per_s, 450e9);
  EXPECT_NE(links.node.origin.find("data sheet of the H200, NVLink"), std::string::npos);
  const Links said = make_links(h200(), {.node_gbs = 100, .network_gbs = 10, .node_hop_us = 2, .network_hop_us = 3});
  EXPECT_EQ(said.node.origin, "as the command line says");
  EXPECT_EQ(collective_seconds(said, kSum, layout_of(1, 8)), 0);
  const double S = 1 << 20, start = said.start_s;
  EXPECT_NEAR(collective_seconds(said, kSum, layout_of(8, 8)), start + 14 * 2e-6 + 1.75 * S / 100e9, 1e-12);
  EXPECT_NEAR(collective_seconds(said, kGather, layout_of(8, 8)), start + 7 * 2e-6 + 0.875 * S / 100e9, 1e-12);
  EXPECT_NEAR(collective_seconds(said, kSum, layout_of(64, 8)), start + 14 * 2e-6 + 6 * 3e-6 + S * 14 / 64 / 10e9,
              1e-12);
  EXPECT_NEAR(collective_seconds(said, kGather, layout_of(64, 8)), start + 56 * 2e-6 + 7 * 3e-6 + S * 7 / 64 / 10e9,
              1e-12);
}

class Bandwidths : public ::testing::Test {
 protected:
  // A result of `bench comm`: (bytes, us).
  std::filesystem::path file(int ranks, int nodes, const std::vector<std::pair<int64_t, double>>& rows,
                             const std::string& transport = "nccl", const std::string& device = "NVIDIA H200") {
    std::string text;
    for (const auto& [bytes, us] : rows) {
      text += cat(text.empty() ? "" : ",", R"({"bytes": )", bytes, R"(, "time_us": )", us, "}");
    }
    return write(cat(R"({"device": ")", device, R"(", "transport": ")", transport, R"(", "ranks": )", ranks,
                     R"(, "nodes": )", nodes, R"(, "all_reduce": [)", text, "]}"));
  }
  std::filesystem::path write(const std::string& text) {
    const auto path = dir_.path() / cat("file", ++files_, ".json");
    std::ofstream(path) << text;
    return path;
  }
  void refused(const std::vector<std::string>& parts, const LinkOptions& options) {
    test::expect_error(ExitCode::usage, parts, [&] { make_links(h200(), options); });
  }

 private:
  test::TempDir dir_;
  int files_ = 0;
};

TEST_F(Bandwidths, GiveBackWhatWasMeasured) {
  const std::vector<std::pair<int64_t, double>> rows{{8, 12}, {1 << 20, 20}, {1 << 24, 90}, {1 << 28, 1300}};
  const Links links = make_links(h200(), {.measured = {file(4, 1, rows)}});
  EXPECT_NE(links.node.origin.find("measured, 4 ranks on 1 node"), std::string::npos);
  EXPECT_NE(links.network.origin.find("data sheet"), std::string::npos);
  for (const auto& [bytes, us] : rows) {
    EXPECT_NEAR(1e6 * collective_seconds(links, {Kind::all_reduce, bytes}, layout_of(4, 8)), us, 1e-6) << bytes;
  }
  // Between two sizes, beyond the last one, and with more ranks, which take further hops and send more.
  const auto us = [&](int64_t bytes, int64_t ranks) {
    return 1e6 * collective_seconds(links, {Kind::all_reduce, bytes}, layout_of(ranks, 8));
  };
  EXPECT_NEAR(us((1 << 20) + (1 << 23) - (1 << 19), 4), (20 + 90) / 2.0, 1e-6);
  EXPECT_NEAR(us(1 << 29, 4), 1300 + 1300, 1);
  EXPECT_GT(us(8, 8), us(8, 4));
  EXPECT_NEAR(us(1 << 28, 8) / us(1 << 28, 4), 1.75 / 1.5, 0.01);
}

TEST_F(Bandwidths, OfTheNetwork) {
  const auto node = file(8, 1, {{8, 20}, {1 << 28, 1200}});
  const auto network = file(4, 4, {{8, 40}, {1 << 28, 9000}}, "nccl", "another");
  for (const bool turned : {false, true}) {
    const Links links =
        make_links(h200(), {.measured = turned ? std::vector{network, node} : std::vector{node, network}});
    EXPECT_NEAR(1e6 * collective_seconds(links, {Kind::all_reduce, 8}, layout_of(4, 1)), 40, 1e-6);
    EXPECT_NEAR(1e6 * collective_seconds(links, {Kind::all_reduce, 1 << 28}, layout_of(4, 1)), 9000, 1e-6);
    EXPECT_NEAR(1e6 * collective_seconds(links, {Kind::all_reduce, 1 << 28}, layout_of(8, 8)), 1200, 1e-6);
  }
}

// A size that was faster than a smaller one does not make larger ones free.
TEST_F(Bandwidths, NeverFall) {
  const Links links =
      make_links(h200(), {.measured = {file(2, 1, {{8, 10}, {1024, 9}, {4096, 12}, {1 << 24, 11.5}, {1 << 28, 700}})}});
  double last = 0;
  for (int64_t bytes = 1; bytes < int64_t{1} << 32; bytes *= 2) {
    const double seconds = collective_seconds(links, {Kind::all_reduce, bytes}, layout_of(2, 8));
    EXPECT_GE(seconds, last) << bytes;
    last = seconds;
  }
}

TEST_F(Bandwidths, WrongFiles) {
  const std::vector<std::pair<int64_t, double>> good{{8, 20}, {1 << 28, 1200}};
  refused({"nowhere.json"}, {.measured = {"nowhere.json"}});
  refused({"is not a result of 'hrm_train bench comm --json'"}, {.measured = {write("{}")}});
  refused({"is not valid JSON"}, {.measured = {write("no JSON")}});
  refused({"measured between CPUs (gloo)"}, {.measured = {file(4, 1, good, "gloo")}});
  refused({"was measured with 1 ranks on 1 nodes"}, {.measured = {file(1, 1, good)}});
  refused({"8 ranks on each of 2 nodes", "one rank on each node"}, {.measured = {file(16, 2, good)}});
  refused({"fewer than two sizes"}, {.measured = {file(4, 1, {{8, 10}})}});
  refused({"sizes must grow", "row 2"}, {.measured = {file(4, 1, {{8, 10}, {8, 11}})}});
  refused({"sizes must grow", "row 1"}, {.measured = {file(4, 1, {{8, 0}, {16, 11}})}});
  refused({"says nothing of bandwidth", "measure larger"}, {.measured = {file(4, 1, {{8, 10}, {1024, 11}})}});
  refused({"was measured on NVIDIA A100, but an H200 is planned", "--gpu"},
          {.measured = {file(4, 1, good, "nccl", "NVIDIA A100")}});
  refused({"second file about the links of a node"}, {.measured = {file(4, 1, good), file(2, 1, good)}});
  refused({"second file about the network"}, {.measured = {file(4, 4, good), file(2, 2, good)}});
  refused({"--link-gbs say the same"}, {.node_gbs = 5, .measured = {file(4, 1, good)}});
  refused({"--network-gbs say the same"}, {.network_gbs = 5, .measured = {file(4, 4, good)}});
}

TEST(SplitBatch, Parts) {
  config::TrainConfig train;
  train.global_batch_size = 48;
  train.micro_batch_size = 0;
  train::BatchSplit split = train::split_batch(train, 4);
  EXPECT_EQ(split.own, 12);
  EXPECT_EQ(split.micro, 12);
  EXPECT_EQ(split.accumulation, 1);
  train.micro_batch_size = 3;
  split = train::split_batch(train, 4);
  EXPECT_EQ(split.micro, 3);
  EXPECT_EQ(split.accumulation, 4);
  train.micro_batch_size = 7;
  test::expect_error(ExitCode::usage, {"micro_batch_size = 7 does not divide train.global_batch_size = 48"},
                     [&] { train::split_batch(train, 1); });
}

}  // namespace
}  // namespace hrm::commands
