#include "hrm/data/arc_picture.h"

#include <algorithm>
#include <regex>

#include "data/data_support.h"
#include "hrm/base/file.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++found;
  return found;
}

ArcGrid filled(int rows, int cols, uint8_t colour) {
  return {rows, cols, std::vector<uint8_t>(static_cast<size_t>(rows) * cols, colour)};
}

// Elements are closed in the order in which they were opened, and no text holds a bare markup character.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = 0; at < svg.size();) {
    if (svg[at] != '<') {
      EXPECT_NE(svg[at], '>') << at;
      if (svg[at] == '&') {
        const size_t end = std::min(svg.find(';', at), svg.size());
        const std::string name = svg.substr(at + 1, end - at - 1);
        EXPECT_TRUE(name == "amp" || name == "lt" || name == "gt" || name == "quot" || name == "#39") << name;
      }
      ++at;
      continue;
    }
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, svg.npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(count(tag, "\"") % 2, 0) << tag;
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
}

// All that is drawn lies within the picture.
void expect_inside(const std::string& svg) {
  std::smatch size;
  ASSERT_TRUE(std::regex_search(svg, size, std::regex("<svg [^>]*width=\"(\\d+)\" height=\"(\\d+)\"")));
  const int width = std::stoi(size[1]), height = std::stoi(size[2]);
  const std::regex grid(
      "translate\\((-?\\d+) (-?\\d+)\\)\">\n<g transform=\"scale\\((\\d+)\\)\">\n"
      "<rect width=\"(\\d+)\" height=\"(\\d+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), grid), end; at != end; ++at) {
    const std::smatch& m = *at;
    EXPECT_GE(std::stoi(m[1]), 3);
    EXPECT_GE(std::stoi(m[2]), 3);
    EXPECT_LE(std::stoi(m[1]) + std::stoi(m[3]) * std::stoi(m[4]), width - 3);
    EXPECT_LE(std::stoi(m[2]) + std::stoi(m[3]) * std::stoi(m[5]), height - 3);
  }
  const std::regex text("<text x=\"(\\d+)\" y=\"(\\d+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), text), end; at != end; ++at) {
    EXPECT_LT(std::stoi((*at)[1]), width);
    EXPECT_LT(std::stoi((*at)[2]), height);
  }
}

// The picture in the documentation is that of the task beside the tests, byte for byte.
TEST(ArcPicture, OfTheDocumentation) {
  const std::vector<ArcTask> tasks = read_arc_tasks(fixture("arc_pictures"), false);
  const auto golden = std::filesystem::path(test::source_dir()) / "docs/images/arc_task.svg";
  EXPECT_EQ(arc_picture(tasks.at(0)), read_text(golden, ExitCode::data));
}

TEST(ArcPicture, HasAGridForEachInputAndOutput) {
  const ArcTask task{.name = "t",
                     .train = {{{2, 3, {0, 0, 0, 1, 1, 2}}, filled(1, 1, 4)}},
                     .test = {{filled(2, 2, 5), filled(2, 2, 6)}, {filled(3, 3, 7), filled(3, 3, 8)}}};
  const std::string svg = arc_picture(task);
  expect_well_formed(svg);
  expect_inside(svg);
  EXPECT_EQ(count(svg, "translate("), 6);
  for (const char* part : {"demonstration 1", "2x3 to 1x1", ">test 1<", ">test 2<", "<title>ARC task t</title>"}) {
    EXPECT_EQ(count(svg, part), 1) << part;
  }
  // Black is the most frequent colour; the others are runs on it.
  EXPECT_NE(svg.find("<rect width=\"3\" height=\"2\" fill=\"#000000\"/>\n<path fill=\"#0074d9\" d=\"M0 1h2v1h-2z\"/>\n"
                     "<path fill=\"#ff4136\" d=\"M2 1h1v1h-1z\"/>"),
            std::string::npos)
      << svg;
  EXPECT_EQ(count(svg, "attempt"), 0);
  EXPECT_EQ(arc_picture(task), svg);
  const std::string unknown = arc_picture(task, {.known = false});
  EXPECT_EQ(count(unknown, "translate("), 4) << "two answers are not known";
  EXPECT_EQ(count(unknown, ">?</text>"), 2);
  EXPECT_EQ(count(unknown, "3x3 to ?"), 1);
}

TEST(ArcPicture, OfAllSizes) {
  for (const int rows : {1, 2, 9, 30}) {
    for (const int cols : {1, 3, 30}) {
      ArcTask task{.name = "t", .train = {}, .test = {{filled(rows, cols, 1), filled(cols, rows, 2)}}};
      for (int i = 0; i < 10; ++i) task.train.push_back({filled(rows, cols, 3), filled(1, 30, 4)});
      const std::string svg = arc_picture(task);
      expect_well_formed(svg);
      expect_inside(svg);
      EXPECT_EQ(count(svg, cat("<rect width=\"", cols, "\" height=\"", rows, "\" fill=\"#0074d9\"/>")), 1);
    }
  }
  // Noise takes the most room: each cell is a run of its own.
  ArcGrid noise = filled(30, 30, 0);
  for (size_t i = 0; i < noise.cells.size(); ++i) noise.cells[i] = static_cast<uint8_t>(i % 7 + i / 30 % 3);
  EXPECT_LT(arc_picture({.name = "t", .train = {}, .test = {{noise, noise}}}).size(), 64U << 10);
}

TEST(ArcPicture, NamesAreEscaped) {
  const ArcPair pair{filled(1, 1, 1), filled(1, 1, 2)};
  const std::vector<std::string> names{"<b>&\"'", "a\x01\n\xEF\xBF\xBF", "\xE4\xBD\xA0", std::string(5000, 'x')};
  for (const std::string& name : names) {
    const std::string svg = arc_picture({.name = name, .train = {pair}, .test = {pair}});
    expect_well_formed(svg);
    EXPECT_EQ(svg.find('\x01'), svg.npos);
    EXPECT_EQ(svg.find("\xEF\xBF\xBF"), svg.npos);
    EXPECT_LT(svg.size(), 10000U);
  }
  EXPECT_NE(arc_picture({.name = "<b>&", .train = {pair}, .test = {pair}}).find("ARC task &lt;b&gt;&amp;<"),
            std::string::npos);
}

TEST(ArcPicture, FilesHavePlainNames) {
  EXPECT_EQ(arc_picture_file("007bbfb7"), "007bbfb7.svg");
  EXPECT_EQ(arc_picture_file("a-b.c_D"), "a-b.c_D.svg");
  EXPECT_EQ(arc_picture_file("../x"), "%2E.%2Fx.svg");
  EXPECT_EQ(arc_picture_file("-x"), "%2Dx.svg");
  EXPECT_EQ(arc_picture_file("a%2F"), "a%252F.svg");
  EXPECT_EQ(arc_picture_file("\xC3\xA4"), "%C3%A4.svg");
  EXPECT_EQ(arc_picture_file(""), "%.svg");
}

void add(ArcVotes& votes, const ArcGrid& question, const ArcGrid& answer, int times) {
  std::array<uint8_t, kArcCells> in{}, out{};
  arc_tokens(question, 0, 0, in.data());
  if (answer.rows > 0) arc_tokens(answer, 0, 0, out.data());
  const std::vector<int32_t> asked(in.begin(), in.end()), found(out.begin(), out.end());
  for (int i = 0; i < times; ++i) votes.add(1, asked.data(), found.data(), 0);
}

TEST(ArcPicture, AnswersStandBesideTheTruth) {
  const ArcGrid first = filled(2, 2, 1), second = filled(2, 2, 2), third = filled(2, 2, 3), fourth = filled(2, 2, 4);
  ArcGrid near = filled(3, 3, 5);
  const ArcGrid truth = near;
  near.cells[4] = 6;
  const ArcTask task{
      .name = "t", .train = {}, .test = {{first, truth}, {second, truth}, {third, truth}, {fourth, truth}}};
  ArcVotes votes({"<blank>", "t"}, {task});
  add(votes, first, truth, 3);
  add(votes, first, near, 2);
  add(votes, first, filled(1, 1, 1), 1);
  add(votes, second, filled(2, 3, 5), 2);  // another size: nothing to mark
  add(votes, second, truth, 1);
  add(votes, third, {}, 1);  // without a cell
  const std::string svg = arc_picture(task, {.votes = &votes});
  expect_well_formed(svg);
  expect_inside(svg);
  EXPECT_EQ(count(svg, ">truth<"), 4);
  for (const char* part : {"attempt 1: right", "attempt 2: right", "attempt 2: wrong", "3 of 6 votes", "2 of 6 votes",
                           "2 of 3 votes", "1 of 3 votes", "1 of 1 votes", "attempt 1: none"}) {
    EXPECT_EQ(count(svg, part), 1) << part;
  }
  EXPECT_EQ(count(svg, "attempt 1: wrong"), 2);
  EXPECT_EQ(count(svg, "attempt 2: none"), 2);
  EXPECT_EQ(count(svg, "1 of 6 votes"), 0) << "a submission has two attempts";
  EXPECT_EQ(count(svg, "stroke=\"#1a7f37\""), 2) << "frames of right answers";
  EXPECT_EQ(count(svg, "stroke=\"#cf222e\""), 3) << "frames of wrong answers, one without a cell";
  // One cell of `near` is wrong: the fifth of nine.
  EXPECT_EQ(count(svg, "fill=\"#ffffff\" stroke=\"#000000\""), 1);
  EXPECT_NE(svg.find("<path d=\"M32 32h8v8h-8z\" fill=\"#ffffff\""), std::string::npos) << svg;
  const std::string unknown = arc_picture(task, {.known = false, .votes = &votes});
  EXPECT_EQ(count(unknown, "right") + count(unknown, "wrong"), 0);
  EXPECT_EQ(count(unknown, "truth not known"), 4);
  EXPECT_EQ(count(unknown, "3 of 6 votes"), 1);
}

TEST(ArcPicture, AnswersAreKnown) {
  const ArcGrid none{1, 1, {0}};
  EXPECT_FALSE(arc_answers_known({{.name = "a", .train = {{none, filled(1, 1, 1)}}, .test = {{none, none}}}}));
  EXPECT_TRUE(arc_answers_known({{.name = "a", .train = {}, .test = {{none, none}}},
                                 {.name = "b", .train = {}, .test = {{none, none}, {none, filled(1, 1, 1)}}}}));
}

TEST(ArcPicture, FilesAreNew) {
  const TempDir dir;
  const std::vector<ArcTask> tasks{{.name = "a", .train = {}, .test = {{filled(1, 1, 1), filled(1, 1, 2)}}},
                                   {.name = "b", .train = {}, .test = {{filled(1, 1, 1), filled(1, 1, 2)}}}};
  require_new_arc_pictures(dir / "deep/out", tasks);
  write_arc_pictures(dir / "deep/out", {tasks[1]});
  EXPECT_EQ(read_text(dir / "deep/out/b.svg", ExitCode::data), arc_picture(tasks[1]));
  expect_error(ExitCode::usage, {"holds b.svg already"}, [&] { require_new_arc_pictures(dir / "deep/out", tasks); });
  require_new_arc_pictures(dir / "deep/out", {tasks[0]});
  write_text_atomic(dir / "file", "");
  expect_error(ExitCode::environment, {"file"}, [&] { require_new_arc_pictures(dir / "file", tasks); });
}

}  // namespace
}  // namespace hrm::data
