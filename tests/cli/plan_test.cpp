// plan, run as users do.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/overrides.h"
#include "support/paths.h"

namespace hrm {
namespace {

using test::with;
namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_refusal;
using test::read;
using test::Result;
using test::run;
using test::TempDir;

TEST(Plan, OfARecipe) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const std::string recipe = test::source_dir() + "/configs/puzzle/hrm_sudoku17.json";
  const std::string data = test::source_dir() + "/data/sudoku/train_17clue_1k.csv";
  const Result result =
      run({"plan", "--config", recipe, "--gpu", "H200", "--json", file.string(), "data.train=" + data});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"hrm, 27275266 parameters, 82 positions", "activations kept", "= peak in tensors", ": fits",
                           "= step", "assumed"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
  const json out = json::parse(read(file));
  EXPECT_EQ(out.at("parameters"), 27275266);
  EXPECT_EQ(out.at("global_batch_size"), 384);
  EXPECT_TRUE(out.at("fits"));
}

TEST(Plan, OfDataThatIsNotThereYet) {
  const std::string recipe = test::source_dir() + "/configs/puzzle/hrm_maze30.json";
  const Result result = run({"plan", "--config", recipe, "--seq-len", "900", "--vocab-size", "6", "--gpu", "A10G",
                             "train.micro_batch_size=768"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("901 positions"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("does NOT fit"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("with train.micro_batch_size="), std::string::npos) << result.out;
}

TEST(Plan, OfSeveralRanks) {
  const TempDir dir;
  const fs::path file = dir / "plan.json";
  const std::string recipe = test::source_dir() + "/configs/puzzle/hrm_sudoku17.json";
  const std::vector<std::string> plan = {"plan",         "--config", recipe,    "--gpu",  "H200",   "--seq-len",  "81",
                                         "--vocab-size", "11",       "--ranks", "1,8,64", "--json", file.string()};
  const Result result = run(plan);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"memory of a rank", "of it NCCL's", "NCCL takes 850 MiB for each communicator", "hidden by computing", "= step",
        "efficiency", "collectives of a step with 64 ranks", "data sheet of the H200, NVLink", "400 Gbit/s"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in:\n" << result.out;
  }
  const json out = json::parse(read(file));
  ASSERT_EQ(out.at("plans").size(), 3u);
  EXPECT_EQ(out.at("batch"), "of all ranks");
  const json &one = out.at("plans")[0], &eight = out.at("plans")[1], &all = out.at("plans")[2];
  EXPECT_EQ(one.at("calls"), 0);
  EXPECT_EQ(one.at("nccl_bytes"), 0);
  EXPECT_EQ(eight.at("nccl_bytes"), 850 << 20);
  EXPECT_EQ(eight.at("samples_per_rank"), 48);
  EXPECT_EQ(eight.at("network_bytes"), 0);
  EXPECT_EQ(all.at("nodes"), 8);
  EXPECT_GT(all.at("network_bytes"), 0);
  EXPECT_LT(all.at("efficiency"), eight.at("efficiency"));
  int64_t bytes = 0;
  for (const json& exchange : all.at("exchanges")) bytes += exchange.at("bytes").get<int64_t>();
  EXPECT_EQ(all.at("bytes"), bytes);
  EXPECT_GT(bytes, 4 * out.at("parameters").get<int64_t>());

  ASSERT_EQ(run(with(plan, {"--weak", "--ranks-per-node", "4", "--link-gbs", "300", "--network-gbs", "25", "--hop-us",
                            "1", "--network-hop-us", "6", "parallel.reduce=bf16"}))
                .code,
            0);
  const json weak = json::parse(read(file));
  EXPECT_EQ(weak.at("batch"), "of each rank");
  EXPECT_EQ(weak.at("plans")[2].at("global_batch_size"), 64 * 384);
  EXPECT_EQ(weak.at("plans")[2].at("nodes"), 16);
  EXPECT_EQ(weak.at("link").at("gbs"), 300);
  EXPECT_EQ(weak.at("network").at("gbs"), 25);
  EXPECT_EQ(weak.at("network").at("origin"), "as the command line says");

  // Too much for one rank, not for eight.
  const Result large = run({"plan", "--gpu", "L4", "--seq-len", "81", "--vocab-size", "11", "--ranks", "1,8",
                            "train.global_batch_size=8192"});
  EXPECT_NE(large.out.find("  1 ranks: with train.micro_batch_size="), std::string::npos) << large.out;
  EXPECT_EQ(large.out.find("  8 ranks: "), std::string::npos) << large.out;
}

TEST(Plan, WrongRanks) {
  const std::vector<std::string> plan = {"plan", "--gpu",        "H200", "--seq-len",
                                         "81",   "--vocab-size", "11",   "train.global_batch_size=384"};
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "8,1024"}),
                 {"train.global_batch_size = 384 cannot be split over 1024 ranks", "--weak"});
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "12"}), {"12 ranks do not fill nodes of 8"});
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "0"}), {"--ranks"});
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "eight"}), {"--ranks"});
  for (const char* option : {"--ranks-per-node", "--link-gbs", "--network-gbs", "--hop-us", "--network-hop-us"}) {
    expect_refusal(ExitCode::usage, with(plan, {option, "4"}), {option, "--ranks"});
  }
  expect_refusal(ExitCode::usage, with(plan, {"--weak"}), {"--weak", "--ranks"});
  expect_refusal(ExitCode::usage, with(plan, {"--best"}), {"--best", "--ranks"});
  expect_refusal(ExitCode::usage, with(plan, {"--best", "--ranks", "4,8"}),
                 {"--best", "one number of ranks", "gives 2"});
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "8", "--bandwidths", "nowhere.json"}), {"nowhere.json"});
  const TempDir dir;
  std::ofstream(dir / "twice.json") << R"({"ranks": 2, "ranks": 4})";
  expect_refusal(ExitCode::usage, with(plan, {"--ranks", "8", "--bandwidths", (dir / "twice.json").string()}),
                 {"twice.json", "ranks"});
}

TEST(Plan, WrongInput) {
  const std::string recipe = test::source_dir() + "/configs/puzzle/hrm_maze30.json";
  expect_refusal(ExitCode::usage, {"plan", "--config", recipe, "--seq-len", "900"}, {"--seq-len and --vocab-size"});
  expect_refusal(ExitCode::usage, {"plan", "--gpu", "Voodoo 2", "--seq-len", "81", "--vocab-size", "11"},
                 {"'Voodoo 2' is not known", "H200"});
  expect_refusal(ExitCode::usage, {"plan", "--gpu", "", "--seq-len", "81", "--vocab-size", "11"}, {"--gpu", "empty"});
  expect_refusal(ExitCode::usage, {"plan", "ops.backend=reference"}, {"ops.backend is 'reference'", "bench step"});
  EXPECT_EQ(run({"plan", "--gpu", "h200", "--seq-len", "81", "--vocab-size", "11"}).code, 0) << "in small letters";
  expect_refusal(ExitCode::usage, {"plan", "runtime.device=cpu"}, {"runtime.device is 'cpu'", "bench step"});
  expect_refusal(ExitCode::data, {"plan", "data.train=nowhere.csv"}, {"nowhere.csv"});
}

}  // namespace
}  // namespace hrm
