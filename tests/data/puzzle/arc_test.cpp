#include "hrm/data/arc.h"

#include <cmath>
#include <fstream>

#include "data/data_support.h"
#include "hrm/base/file.h"
#include "hrm/data/arc_votes.h"
#include "hrm/data/dataset.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

std::filesystem::path write(const TempDir& dir, const std::string& name, const std::string& text) {
  std::filesystem::create_directories((dir / name).parent_path());
  std::ofstream(dir / name, std::ios::binary) << text;
  return dir / name;
}

std::string task(const std::string& grid, const std::string& more = "") {
  return R"({"train": [{"input": [[1, 2]], "output": )" + grid + R"(}], "test": [{"input": [[3]], "output": [[4]]}])" +
         more + "}";
}

std::string message_of(const std::filesystem::path& path, bool unsolved = false) {
  try {
    read_arc_tasks(path, unsolved);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    return error.what();
  }
  return "";
}

// Each bad file gives one sentence with file and place.
TEST(Arc, BadFilesAreNamed) {
  const TempDir dir;
  const auto expect = [&](const std::string& text, const std::vector<std::string>& parts) {
    const auto file = write(dir, "bad/a.json", text);
    const std::string message = message_of(dir / "bad");
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
    EXPECT_NE(message.find("a.json"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect(task("[[1, 2], [3]]"), {"train pair 1, output", "row 2 has 1 columns, the first has 2"});
  expect(task("[[1, 10]]"), {"row 1, column 2 is 10", "0 to 9"});
  expect(task("[[1, -1]]"), {"is -1"});
  expect(task("[[1, 1.5]]"), {"is 1.5"});
  expect(task("[[1, \"2\"]]"), {"row 1, column 2"});
  expect(task("[]"), {"not a list of rows"});
  expect(task("[[]]"), {"1 rows and 0 columns"});
  expect(task("3"), {"not a list of rows"});
  std::string row = "[0";
  for (int i = 1; i < 31; ++i) row += ",0";
  row += "]";
  expect(task("[" + row + "]"), {"1 rows and 31 columns", "1 to 30"});
  std::string tall = "[[0]";
  for (int i = 1; i < 31; ++i) tall += ",[0]";
  expect(task(tall + "]"), {"31 rows and 1 columns"});
  expect(R"({"train": [{"input": [[1]], "output": [[1]]}], "test": [{"input": [[1]]}]})",
         {"test pair 1", "\"output\""});
  expect(R"({"train": [{"output": [[1]]}], "test": [{"input": [[1]], "output": [[1]]}]})",
         {"train pair 1", "\"input\""});
  expect(R"({"train": [], "test": [{"input": [[1]], "output": [[1]]}]})", {"\"train\""});
  expect(R"({"train": [{"input": [[1]], "output": [[1]]}]})", {"\"test\""});
  expect("\xEF\xBB\xBF" + task("[[1]]"), {"byte order mark"});
  expect("[]", {"not a JSON object"});
  expect(R"({"train": 1, "train": 2})", {"train"});
  expect("{", {});
  EXPECT_NE(message_of(dir / "none").find("neither a folder"), std::string::npos);
  std::filesystem::create_directories(dir / "empty");
  EXPECT_NE(message_of(dir / "empty").find("no TASK.json"), std::string::npos);
  write(dir, "bad/a.json", task("[[1]]"));
  EXPECT_EQ(message_of(dir / "bad"), "");
  // Lines of Windows are only white space.
  write(dir, "bad/a.json",
        "{\r\n\"train\": [{\"input\": [[1]],\r\n \"output\": [[1]]}], \"test\": [{\"input\": [[1]], "
        "\"output\": [[1]]}]}\r\n");
  EXPECT_EQ(message_of(dir / "bad"), "");
}

TEST(Arc, SolutionsStandBesideChallenges) {
  const TempDir dir;
  const std::string unsolved = R"({"t": {"train": [{"input": [[1]], "output": [[1]]}], "test": [{"input": [[1]]}]}})";
  const auto file = write(dir, "x_evaluation_challenges.json", unsolved);
  EXPECT_EQ(arc_subset_name(file), "evaluation");
  EXPECT_NE(message_of(file).find("\"output\""), std::string::npos);
  EXPECT_EQ(read_arc_tasks(file, /*unsolved=*/true).at(0).test.at(0).output, (ArcGrid{1, 1, {0}}));
  write(dir, "x_evaluation_solutions.json", R"({"t": [[[7, 8]]]})");
  EXPECT_EQ(read_arc_tasks(file, false).at(0).test.at(0).output, (ArcGrid{1, 2, {7, 8}}));
  write(dir, "x_evaluation_solutions.json", R"({"t": [[[7]], [[8]]]})");
  EXPECT_NE(message_of(file).find("2 solutions of task t, which has 1"), std::string::npos) << message_of(file);
  write(dir, "x_evaluation_solutions.json", R"({"u": [[[7]]]})");
  EXPECT_NE(message_of(file).find("no solutions of task t"), std::string::npos) << message_of(file);
}

TEST(Arc, ATaskStandsInOneSubset) {
  const TempDir dir;
  write(dir, "training/a.json", task("[[1]]"));
  write(dir, "evaluation/a.json", task("[[1]]"));
  const ArcBuildOptions options{
      .subsets = {dir / "training", dir / "evaluation"}, .test = {"evaluation"}, .augment = 0};
  EXPECT_THROW(build_arc(options, dir / "out"), Error);
  std::filesystem::rename(dir / "evaluation" / "a.json", dir / "evaluation" / "b.json");
  const ArcBuildResult built = build_arc(options, dir / "out");
  EXPECT_EQ(built.tasks, 2);
  EXPECT_EQ(built.identifiers, 3);
  EXPECT_EQ(built.train_examples, 3);  // both pairs of a, the training pair of b
  EXPECT_EQ(built.test_examples, 1);
  const auto test = open_dataset(dir / "out", "test", {});
  EXPECT_EQ(test->kind(), PuzzleKind::arc);
  std::vector<int32_t> inputs(kArcCells), labels(kArcCells);
  test->example(0, inputs.data(), labels.data());
  EXPECT_EQ(crop_arc(inputs.data()), (ArcGrid{1, 1, {3}}));
  EXPECT_EQ(crop_arc(labels.data()), (ArcGrid{1, 1, {4}}));
  EXPECT_EQ(labels[2], kIgnoreLabel) << "padding is not scored";
}

// Copies are equal to no other, and all are taken where there are few.
TEST(Arc, CopiesDiffer) {
  const TempDir dir;
  write(dir, "t/a.json",
        R"({"train": [{"input": [[0]], "output": [[0]]}], "test": [{"input": [[0]], "output": [[1]]}]})");
  const ArcBuildResult built = build_arc({.subsets = {dir / "t"}, .test = {"t"}, .augment = 50}, dir / "out");
  EXPECT_EQ(built.identifiers, 1 + 9) << "the only colour that is not black can be nine";
  EXPECT_EQ(built.not_full, 1);
}

TEST(Arc, NamesOfCopies) {
  const ArcName name = parse_arc_name("ab|||t5|||0987654321");
  EXPECT_EQ(name.task, "ab");
  EXPECT_EQ(arc_name("ab", name.augmentation), "ab|||t5|||0987654321");
  for (const char* bad : {"ab|||t8|||0123456789", "ab|||t5|||012345678", "ab|||t5|||0012345678", "ab|||0123456789",
                          "ab|||x5|||0123456789", "|||0123456789"}) {
    EXPECT_THROW(parse_arc_name(bad), Error) << bad;
  }
}

TEST(ArcVotes, CountsCopiesAndWholeTasks) {
  const ArcGrid one{1, 1, {1}}, two{1, 1, {2}}, three{1, 1, {3}}, four{1, 1, {4}};
  ArcVotes votes({"<blank>", "a", "a|||t0|||0213456789", "b"},
                 {{.name = "a", .train = {}, .test = {{one, three}, {two, three}}},
                  {.name = "b", .train = {}, .test = {{one, one}}}});
  const auto add = [&](int32_t identifier, const ArcGrid& question, const ArcGrid& answer, float q) {
    std::array<uint8_t, kArcCells> in{}, out{};
    arc_tokens(question, 0, 0, in.data());
    arc_tokens(answer, 0, 0, out.data());
    const std::vector<int32_t> asked(in.begin(), in.end()), found(out.begin(), out.end());
    votes.add(identifier, asked.data(), found.data(), q);
  };
  EXPECT_EQ(votes.pass(1), 0);
  add(1, one, four, 3);
  add(2, two, three, 0);  // the copy swaps 1 and 2: an answer to [[1]]
  add(2, two, three, 0);
  add(1, two, three, 0);
  add(0, one, one, 0);
  add(9, one, one, 0);
  EXPECT_EQ(votes.ranking("a", one).at(0).grid, three);
  EXPECT_EQ(votes.ranking("a", one).at(0).votes, 2);
  EXPECT_EQ(votes.pass(1), 0.5) << "both inputs of a, nothing of b";
  EXPECT_EQ(votes.pass_whole(1), 0.5);
  EXPECT_EQ(votes.pass(1, /*copies=*/1), 0.25) << "without the copy [[1]] has the wrong answer";
  EXPECT_EQ(votes.pass_whole(1, 1), 0);
  EXPECT_EQ(votes.submission(),
            R"({"a": [{"attempt_1": [[3]], "attempt_2": [[4]]}, {"attempt_1": [[3]], "attempt_2": [[3]]}], )"
            R"("b": [{"attempt_1": [[0]], "attempt_2": [[0]]}]})");
  // Of equally many votes the larger mean counts, whichever came first; a Q value that is no number counts least.
  add(3, one, two, NAN);
  add(3, one, three, 0);
  add(3, one, four, 5);
  const auto ranking = votes.ranking("b", one);
  ASSERT_EQ(ranking.size(), 3U);
  EXPECT_EQ(ranking[0].grid, four);
  EXPECT_EQ(ranking[2].grid, two);
}

}  // namespace
}  // namespace hrm::data
