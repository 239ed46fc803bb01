// The dashboard without its server: curves, growing files, folders, hosts, tokens, and the page.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "commands/dashboard/access.h"
#include "commands/dashboard/curve.h"
#include "commands/dashboard/page.h"
#include "commands/dashboard/run_files.h"
#include "commands/dashboard/run_reader.h"
#include "commands/dashboard/runs.h"
#include "hrm/base/error.h"
#include "support/temp_dir.h"

namespace hrm::dashboard {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using Steps = std::vector<int64_t>;
using Values = std::vector<double>;

constexpr std::chrono::milliseconds kBudget{1000};

TEST(DashboardCurve, FewValuesAreAllThere) {
  Curve curve;
  for (const int64_t step : {10, 20, 25}) curve.add(step, static_cast<double>(step) / 2, 64);
  const Points points = curve.thin(INT64_MIN, INT64_MAX, 100);
  EXPECT_EQ(points.steps, (Steps{10, 20, 25}));
  EXPECT_EQ(points.values, (Values{5, 10, 12.5}));
  EXPECT_TRUE(points.means.empty());
  EXPECT_EQ(curve.thin(11, 24, 100).steps, Steps{20});
  EXPECT_TRUE(curve.thin(26, 90, 100).steps.empty());
  EXPECT_EQ(curve.latest(), 12.5);
}

TEST(DashboardCurve, SpikesStayHoweverLongTheRunIs) {
  std::mt19937 random(3);
  for (const size_t capacity : {2u, 3u, 64u, 1000u}) {
    Curve curve;
    std::vector<double> values;
    for (int64_t step = 0; step < 20001; ++step) {
      const double spike = step == 7777 ? 1e6 : step == 15001 ? -1e6 : 0;
      values.push_back(std::generate_canonical<double, 30>(random) + spike);
      curve.add(3 * step, values.back(), capacity);
    }
    EXPECT_LE(curve.buckets(), capacity);
    const Points points = curve.thin(INT64_MIN, INT64_MAX, 300);
    EXPECT_LE(points.steps.size(), 600u);
    EXPECT_TRUE(std::is_sorted(points.steps.begin(), points.steps.end()));
    // Each point is a value of the run.
    for (size_t i = 0; i < points.steps.size(); ++i) {
      ASSERT_EQ(points.steps[i] % 3, 0);
      EXPECT_EQ(points.values[i], values[static_cast<size_t>(points.steps[i] / 3)]);
    }
    EXPECT_EQ(*std::max_element(points.values.begin(), points.values.end()), values[7777]);
    EXPECT_EQ(*std::min_element(points.values.begin(), points.values.end()), values[15001]);
    EXPECT_EQ(points.means.size(), points.mean_steps.size());
    EXPECT_EQ(curve.count(), 20001u);
  }
}

TEST(DashboardCurve, StepsThatGoBackReplaceWhatWasThere) {
  Curve curve;
  for (int64_t step = 1; step <= 5; ++step) curve.add(step, static_cast<double>(step), 64);
  curve.add(3, 30, 64);
  curve.add(4, 40, 64);
  const Points points = curve.thin(INT64_MIN, INT64_MAX, 100);
  EXPECT_EQ(points.steps, (Steps{1, 2, 3, 4}));
  EXPECT_EQ(points.values, (Values{1, 2, 30, 40}));
  EXPECT_EQ(curve.count(), 4u);
  curve.forget_from(0);
  EXPECT_TRUE(curve.empty());
  EXPECT_FALSE(curve.has_latest());
}

TEST(DashboardCurve, ValuesThatAreNotFiniteAreMarks) {
  Curve curve;
  curve.add(1, NAN, 64);
  curve.add(2, 5, 64);
  curve.add(3, INFINITY, 64);
  const Points points = curve.thin(INT64_MIN, INT64_MAX, 100);
  EXPECT_EQ(points.steps, Steps{2});
  EXPECT_EQ(points.not_finite, (Steps{1, 3}));
  EXPECT_EQ(curve.latest(), 5);
  Curve none;
  for (int i = 0; i < 100; ++i) none.add(i, NAN, 4);
  EXPECT_TRUE(none.thin(INT64_MIN, INT64_MAX, 100).steps.empty());
  EXPECT_FALSE(none.has_latest());
  Curve huge;
  for (int i = 0; i < 100; ++i) huge.add(i, 1.7e308, 4);
  for (const double mean : huge.thin(INT64_MIN, INT64_MAX, 100).means) EXPECT_TRUE(std::isfinite(mean));
}

class DashboardReader : public ::testing::Test {
 protected:
  DashboardReader() : folder_(dir_.path() / "run") { fs::create_directory(folder_); }

  void append(const std::string& text) { std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << text; }
  void replace(const std::string& text) { std::ofstream(folder_ / "metrics.jsonl", std::ios::trunc) << text; }
  Values values(int64_t from = INT64_MIN, int64_t to = INT64_MAX, size_t columns = 1000) {
    return reader_.points({0}, from, to, columns).at(0).values;
  }

  TempDir dir_;
  fs::path folder_;
  RunFiles files_{dir_.path()};
  RunReader reader_{[this] { return files_.open("run", "metrics.jsonl"); }};
};

std::string line(int64_t step, double loss) {
  return cat("{\"step\":", step, ",\"loss\":", loss, "}\n");
}

TEST_F(DashboardReader, AFileThatGrows) {
  EXPECT_TRUE(reader_.advance(kBudget));
  EXPECT_FALSE(reader_.has_steps());
  append(line(1, 5) + line(2, 4) + "{\"step\":3,\"lo");
  ASSERT_TRUE(reader_.advance(kBudget));
  EXPECT_EQ(values(), (Values{5, 4}));
  // The half line counts once it is whole.
  const uint64_t generation = reader_.generation(), read = reader_.bytes_read();
  append("ss\":3}\n");
  ASSERT_TRUE(reader_.advance(kBudget));
  EXPECT_EQ(values(), (Values{5, 4, 3}));
  EXPECT_EQ(reader_.generation(), generation);
  EXPECT_EQ(reader_.damaged_lines(), 0u);
  EXPECT_EQ(reader_.bytes_read() - read, std::string("{\"step\":3,\"loss\":3}\n").size());
  append("\n\x01garbage\n{\"loss\":1}\n" + line(4, 2));
  ASSERT_TRUE(reader_.advance(kBudget));
  EXPECT_EQ(values(), (Values{5, 4, 3, 2}));
  EXPECT_EQ(reader_.damaged_lines(), 2u);
}

TEST_F(DashboardReader, AFileThatIsCutOrReplaced) {
  append(line(1, 5) + line(2, 4) + line(3, 3));
  reader_.advance(kBudget);
  replace(line(1, 5) + line(2, 4));  // as a resumed run cuts it
  reader_.advance(kBudget);
  EXPECT_EQ(values(), (Values{5, 4}));
  replace(line(1, 7) + line(2, 6) + line(3, 5) + line(4, 4));  // longer, but another run
  reader_.advance(kBudget);
  EXPECT_EQ(values(), (Values{7, 6, 5, 4}));
  fs::remove(folder_ / "metrics.jsonl");
  EXPECT_TRUE(reader_.advance(kBudget));
  EXPECT_FALSE(reader_.has_steps());
  append(line(1, 9));
  reader_.advance(kBudget);
  EXPECT_EQ(values(), Values{9});
}

TEST_F(DashboardReader, ARunThatGoesBackInItsFile) {
  append(line(10, 1) + line(20, 2) + "{\"step\":20,\"eval\":5}\n" + line(30, 3) + line(20, 22));
  reader_.advance(kBudget);
  EXPECT_EQ(values(), (Values{1, 22}));
  EXPECT_EQ(reader_.last_step(), 20);
  EXPECT_EQ(reader_.points({1}, INT64_MIN, INT64_MAX, 10).at(0).values, Values{5});
}

TEST_F(DashboardReader, APartOfALongRunIsExact) {
  std::string text;
  for (int64_t step = 0; step < 30000; ++step) text += line(step, static_cast<double>(step % 1000));
  append(text);
  while (!reader_.advance(std::chrono::milliseconds(1))) {
  }
  EXPECT_EQ(reader_.good_lines(), 30000u);
  const Points part = reader_.points({0, 99}, 20100, 20199, 1000).at(0);
  ASSERT_EQ(part.steps.size(), 100u);
  EXPECT_EQ(part.steps[7], 20107);
  EXPECT_EQ(part.values[7], 107);
  EXPECT_LE(values(INT64_MIN, INT64_MAX, 50).size(), 100u);
}

TEST_F(DashboardReader, ALineWithoutEnd) {
  append(line(1, 1) + std::string(RunReader::kMaxLine + 5, 'x') + "\n" + line(2, 2));
  while (!reader_.advance(kBudget)) {
  }
  EXPECT_EQ(values(), (Values{1, 2}));
  EXPECT_EQ(reader_.damaged_lines(), 1u);
}

TEST(DashboardFiles, RunsAreFoundAndLinksAreNot) {
  const TempDir dir;
  const fs::path root = dir.path() / "runs", outside = dir.path() / "outside";
  for (const fs::path& folder :
       {root / "a", root / "b/c/d", root / "b/checkpoints/x", root / ".hidden", outside / "z"}) {
    fs::create_directories(folder);
    std::ofstream(folder / "metrics.jsonl") << line(1, 1);
  }
  fs::create_directories(root / "linked");
  fs::create_symlink(outside / "z/metrics.jsonl", root / "linked/metrics.jsonl");
  fs::create_directory_symlink(outside, root / "elsewhere");
  fs::create_directory_symlink(root, root / "b/loop");
  fs::create_directories(root / "pipe");
  ASSERT_EQ(mkfifo((root / "pipe/metrics.jsonl").c_str(), 0600), 0);
  const RunFiles files(root);
  std::vector<std::string> names;
  for (const FoundRun& run : files.list()) names.push_back(run.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b/c/d"}));
  EXPECT_TRUE(files.open("b/c/d", "metrics.jsonl"));
  EXPECT_FALSE(files.open("linked", "metrics.jsonl"));
  EXPECT_FALSE(files.open("elsewhere/z", "metrics.jsonl"));
  EXPECT_FALSE(files.open("pipe", "metrics.jsonl"));
  EXPECT_FALSE(files.open("a", "../../outside/z/metrics.jsonl"));
  for (const std::string run : {"..", "../outside/z", "a/../../outside/z", "/etc", "", "a//", "a/.", "./a", "b/loop/a",
                                std::string("a\0b", 3).c_str(), "none"}) {
    EXPECT_FALSE(files.open(run, "metrics.jsonl")) << run;
  }
  EXPECT_FALSE(files.open("a", ""));
  EXPECT_FALSE(files.open("a", "."));
  EXPECT_FALSE(files.open("a", "/etc/passwd"));
  EXPECT_EQ(RunFiles(root / "a").list().at(0).name, ".");
  EXPECT_THROW(RunFiles(root / "none"), Error);
}

TEST(DashboardAccess, Hosts) {
  const Access local("127.0.0.1", "");
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:80", "localhost:8321", "LOCALHOST", "[::1]:9", "[::1]", "127.9.9.9"}) {
    EXPECT_TRUE(local.allows_host(host)) << host;
  }
  for (const char* host :
       {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8321", "127.0.0.1@evil",
        "127.0.0.1:80:80", "127.0.0.1:", "127.0.0.1:x", "[::1", "[::1]x", "10.0.0.1", "[localhost]", "localhost/x",
        "localhost\r\nX: y", "0x7f.1", "2130706433", " localhost"}) {
    EXPECT_FALSE(local.allows_host(host)) << host;
  }
  const Access open("0.0.0.0", "token");
  for (const char* host : {"10.1.2.3:8321", "[fe80::1]:1", "localhost"}) EXPECT_TRUE(open.allows_host(host)) << host;
  for (const char* host : {"evil.example", "10.1.2.3.evil.example"}) EXPECT_FALSE(open.allows_host(host)) << host;
}

TEST(DashboardAccess, Tokens) {
  const std::string token = new_token();
  EXPECT_EQ(token.size(), 32u);
  EXPECT_NE(token, new_token());
  const Access access("0.0.0.0", token);
  EXPECT_TRUE(access.allows_token(token));
  for (const std::string& wrong : {std::string(), token.substr(1), token + "0", token.substr(0, 31) + "x",
                                   std::string(32, '\0'), std::string(100000, 'a')}) {
    EXPECT_FALSE(access.allows_token(wrong));
  }
}

TEST(DashboardRuns, AnswersOfOneRun) {
  const TempDir dir;
  const fs::path run = dir.path() / "runs/<b>\xff";
  fs::create_directories(run / "log");
  fs::create_directories(run / "answers");
  std::ofstream(run / "metrics.jsonl") << "{\"step\":1,\"</script>\":2,\"note\":\"<i>\"}\n";
  std::ofstream(run / "log/rank_0.log") << "hello \xff\n";
  std::ofstream(run / "solved.jsonl") << "{\"question\":\"1\",\"answer\":\"2\"}\nnothing\n";
  std::ofstream(run / "answers/eval.json")
      << R"({"samples":[{"prompt":"p","sampled":["a"],"right":[true],"values":{}}]})";
  Runs runs(RunFiles(dir.path() / "runs"));
  const auto list = nlohmann::json::parse(runs.list());
  ASSERT_EQ(list["runs"].size(), 1u);
  EXPECT_EQ(list["runs"][0]["name"], "<b>\\xFF");
  const std::string id = list["runs"][0]["id"];
  MetricsRequest request;
  auto answer = nlohmann::json::parse(runs.metrics(id, request, kBudget).value());
  EXPECT_EQ(answer["keys"][0], nlohmann::json::parse(R"(["</script>",1,0,2])"));
  EXPECT_EQ(answer["texts"]["note"][0][1], "<i>");
  EXPECT_TRUE(answer["points"].empty());
  request.keys = {0, 77};
  request.generation = answer["generation"];
  answer = nlohmann::json::parse(runs.metrics(id, request, kBudget).value());
  EXPECT_EQ(answer["points"]["0"], nlohmann::json::parse(R"({"x":[1],"y":[2]})"));
  request.have = answer["version"];
  EXPECT_EQ(runs.metrics(id, request, kBudget).value(), "");
  for (const char* wrong : {"", "..", "<b>\xff", "../runs"}) {
    EXPECT_FALSE(runs.metrics(wrong, request, kBudget)) << wrong;
    EXPECT_FALSE(runs.details(wrong)) << wrong;
  }
  const auto details = nlohmann::json::parse(runs.details(id).value());
  EXPECT_EQ(details["log"], "hello \xef\xbf\xbd\n");
  ASSERT_EQ(details["answers"].size(), 2u);
  EXPECT_EQ(details["answers"][0]["items"][0],
            nlohmann::json::parse(R"({"prompt":"p","sampled":["a"],"right":[true]})"));
  EXPECT_EQ(details["answers"][1]["items"].size(), 1u);

  const std::string page = exported_page(runs.everything(100));
  // The data hold no markup of their own: the only ends of script elements are ours.
  size_t ends = 0;
  for (size_t at = page.find("</script"); at != page.npos; at = page.find("</script", at + 1)) ++ends;
  EXPECT_EQ(ends, 2u);
  EXPECT_EQ(page.find("<i>"), page.npos);
  EXPECT_EQ(page.find("<b>"), page.npos);
  EXPECT_NE(page.find("\\u003c/script\\u003e"), page.npos);
  for (const char* foreign : {"http://", "https://", "src=", "@import", "url("}) {
    EXPECT_EQ(page.find(foreign), page.npos) << foreign;
  }
}

TEST(DashboardRuns, MoreRunsThanAreKeptOpen) {
  const TempDir dir;
  for (size_t i = 0; i < 3 * Runs::kOpen; ++i) {
    fs::create_directory(dir.path() / std::to_string(i));
    std::ofstream(dir.path() / std::to_string(i) / "metrics.jsonl") << line(static_cast<int64_t>(i), 1);
  }
  Runs runs{RunFiles(dir.path())};
  const auto list = nlohmann::json::parse(runs.list());
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& run : list["runs"]) {
      const auto answer = nlohmann::json::parse(runs.metrics(run["id"], {}, kBudget).value());
      EXPECT_EQ(std::to_string(answer["last"].get<int64_t>()), run["name"]);
    }
  }
}

}  // namespace
}  // namespace hrm::dashboard
