// Reports of sampled answers: what is read, what is compared, and that hostile texts stay texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "commands/answer_report.h"
#include "hrm/base/file.h"
#include "hrm/commands/commands.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::commands {
namespace {

using test::expect_error;
using test::TempDir;

ReportedPrompt prompt_of(const std::string& prompt, double pass, double diversity) {
  return {.prompt = prompt,
          .reference = "r",
          .greedy = "g",
          .answers = {"a"},
          .sampled = {"a", "b", "a"},
          .right = {true, false, true},
          .values = {{"pass@1", pass}, {"diversity", diversity}}};
}

ReportedEvaluation evaluation(const std::vector<double>& pass, const std::vector<double>& diversity, double loss) {
  ReportedEvaluation out{.origin = "x.json",
                         .checkpoint = "runs/x",
                         .data = "test.jsonl",
                         .diversity_metric = "1 - BLEU-2",
                         .step = 3,
                         .temperature = 1,
                         .loss = loss,
                         .prompts = {}};
  for (size_t i = 0; i < pass.size(); ++i) {
    out.prompts.push_back(prompt_of("p" + std::to_string(i), pass[i], diversity[i]));
  }
  return out;
}

nlohmann::json file_of(const ReportedEvaluation& run) {
  nlohmann::json json{{"checkpoint", run.checkpoint},
                      {"data", run.data},
                      {"diversity_metric", run.diversity_metric},
                      {"step", run.step},
                      {"temperature", run.temperature},
                      {"top_p", run.top_p},
                      {"perplexity", 2.0}};
  if (run.loss) json["loss"] = *run.loss;
  for (const ReportedPrompt& p : run.prompts) {
    json["samples"].push_back({{"prompt", p.prompt},
                               {"reference", p.reference},
                               {"greedy", p.greedy},
                               {"answers", p.answers},
                               {"sampled", p.sampled},
                               {"right", p.right},
                               {"values", p.values}});
  }
  return json;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

// Every element is closed, in order, and attributes are in quotation marks.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != xml.npos; at = xml.find('<', at + 1)) {
    const size_t end = xml.find('>', at);
    ASSERT_NE(end, xml.npos);
    const std::string tag = xml.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), tag.npos) << tag;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name =
        tag.substr(tag.starts_with('/') ? 1 : 0, tag.find_first_of(" /", 1) - (tag.starts_with('/') ? 1 : 0));
    if (tag.starts_with('/')) {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(AnswerReport, ComparesPromptByPrompt) {
  // Runs of the second group: means 0.5, 0.7, 0.9 by prompt, 0.2 more than the first group's everywhere.
  const AnswerReport report = compare_answers(
      {{"plain", {evaluation({0.3, 0.5, 0.7}, {0.1, 0.1, 0.1}, 1)}},
       {"ours",
        {evaluation({0.4, 0.6, 0.8}, {0.2, 0.2, 0.2}, 1.02), evaluation({0.6, 0.8, 1.0}, {0.4, 0.4, 0.4}, 1.0)}}});
  EXPECT_EQ(report.metrics, (std::vector<std::string>{"pass@1", "diversity"}));
  const ReportCell &plain = report.cells[0].at("pass@1"), &ours = report.cells[1].at("pass@1");
  EXPECT_FALSE(plain.difference);
  EXPECT_NEAR(plain.value.mean, 0.5, 1e-12);
  EXPECT_LT(plain.value.low, plain.value.high);
  EXPECT_NEAR(ours.value.mean, 0.7, 1e-12);
  EXPECT_NEAR(ours.least, 0.6, 1e-12);
  EXPECT_NEAR(ours.most, 0.8, 1e-12);
  // The prompts differ much, the pairs not at all.
  EXPECT_NEAR(ours.difference->mean, 0.2, 1e-12);
  EXPECT_NEAR(ours.difference->low, 0.2, 1e-12);
  EXPECT_NEAR(ours.difference->high, 0.2, 1e-12);
  EXPECT_NEAR(report.losses[1].value(), 1.01, 1e-12);
  const std::string text = report_markdown(report);
  EXPECT_NE(text.find("**+0.200 [+0.200, +0.200]**"), text.npos) << text;
  EXPECT_NE(text.find("0.600..0.800"), text.npos);
  EXPECT_NE(text.find("+1.00 %"), text.npos);
}

TEST(AnswerReport, TakesPromptsThatAllHave) {
  ReportedEvaluation more = evaluation({0.1, 0.2, 0.3}, {0, 0, 0}, 1);
  more.prompts[0].prompt = "another";
  const AnswerReport report = compare_answers({{"a", {evaluation({0.3, 0.5, 0.7}, {0, 0, 0}, 1)}}, {"b", {more}}});
  EXPECT_EQ(report.prompts, (std::vector<std::string>{"p1", "p2"}));
  EXPECT_NEAR(report.cells[0].at("pass@1").value.mean, 0.6, 1e-12);
  EXPECT_NEAR(report.cells[1].at("pass@1").difference->mean, -0.35, 1e-12);
  // A prompt that stands twice counts twice.
  ReportedEvaluation twice = evaluation({0, 1}, {0, 0}, 1);
  twice.prompts[1].prompt = "p0";
  EXPECT_NEAR(compare_answers({{"a", {twice}}}).cells[0].at("pass@1").value.mean, 0.5, 1e-12);
  for (ReportedPrompt& prompt : more.prompts) prompt.prompt += "x";
  expect_error(ExitCode::data, {"no prompt in common"}, [&] {
    compare_answers({{"a", {evaluation({0.3}, {0}, 1)}}, {"b", {more}}});
  });
  for (ReportedPrompt& prompt : more.prompts) prompt.values.clear();
  expect_error(ExitCode::data, {"no metric in common"}, [&] { compare_answers({{"b", {more}}}); });
}

// A table's line of this metric.
std::string row_of(const std::string& markdown, const std::string& metric) {
  const size_t at = markdown.find("\n| " + metric);
  return at == markdown.npos ? "" : markdown.substr(at + 1, markdown.find('\n', at + 1) - at - 1);
}

TEST(AnswerReport, DiversityByDifferentMeasuresIsNotCompared) {
  const ReportedEvaluation bleu = evaluation({0.3, 0.5}, {0.1, 0.1}, 1);
  ReportedEvaluation other = evaluation({0.4, 0.6}, {0.9, 0.9}, 1);
  other.diversity_metric = "1 - cosine <b>|";
  const AnswerReport report = compare_answers({{"one", {bleu}}, {"two", {other}}});
  EXPECT_TRUE(report.different_measures);
  EXPECT_FALSE(report.cells[1].at("diversity").difference);
  EXPECT_NEAR(report.cells[1].at("diversity").value.mean, 0.9, 1e-12);
  EXPECT_TRUE(report.cells[1].at("pass@1").difference);
  const std::string markdown = report_markdown(report), page = answers_page(report);
  EXPECT_EQ(row_of(markdown, "diversity"), "| diversity | 0.100 [0.100, 0.100] | 0.900 [0.900, 0.900] |") << markdown;
  EXPECT_NE(markdown.find("different measures and is not compared: one by 1 - BLEU-2, two by 1 - cosine <b>/."),
            markdown.npos)
      << markdown;
  EXPECT_NE(page.find("one by 1 - BLEU-2, two by 1 - cosine &lt;b&gt;|."), page.npos) << page;
  const Front front = quality_diversity_front(report);
  EXPECT_TRUE(front.points.empty());
  EXPECT_NE(front.missing.find("different measures"), front.missing.npos);
  for (const std::string& text : {markdown, page}) EXPECT_NE(text.find(front.missing), text.npos);
  EXPECT_EQ(page.find("<svg"), page.npos);
  // By one measure nothing is said of it.
  const AnswerReport same = compare_answers({{"one", {bleu}}, {"two", {bleu}}});
  EXPECT_TRUE(same.cells[1].at("diversity").difference);
  EXPECT_EQ(measures_sentence(same), "");
  EXPECT_NE(answers_page(same).find("<svg"), std::string::npos);
}

TEST(AnswerReport, AnEarlierReportStays) {
  const TempDir dir;
  write_text_atomic(dir / "a.json", file_of(evaluation({0.3}, {0.1}, 1)).dump());
  const std::string a = (dir / "a.json").string(), out = (dir / "out").string();
  EXPECT_EQ(run_report({{"a=" + a, "b=" + a}, out}), 0);
  const std::string report = read_text(dir / "out" / "report.md", ExitCode::data);
  expect_error(ExitCode::usage, {"out' holds report.md already", "--out"}, [&] { run_report({{"c=" + a}, out}); });
  EXPECT_EQ(read_text(dir / "out" / "report.md", ExitCode::data), report);
  // A picture that was left is not taken for one of the next report.
  ReportedEvaluation run = evaluation({0.3}, {0.1}, 1);
  run.diversity_metric = "another";
  write_text_atomic(dir / "b.json", file_of(run).dump());
  std::filesystem::remove(dir / "out" / "report.md");
  EXPECT_TRUE(std::filesystem::exists(dir / "out" / "front.svg"));
  EXPECT_EQ(run_report({{"a=" + a, "b=" + (dir / "b.json").string()}, out}), 0);
  EXPECT_FALSE(std::filesystem::exists(dir / "out" / "front.svg"));
}

TEST(AnswerReport, AnEvaluationIsNoSecondSeedOfItself) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "x");
  for (const char* name : {"x/eval.json", "y.json"}) {
    write_text_atomic(dir / name, file_of(evaluation({0.3}, {0.1}, 1)).dump());
  }
  const std::string x = (dir / "x").string(), y = (dir / "y.json").string();
  const auto report = [&](std::vector<std::string> of) { return run_report({std::move(of), (dir / "out").string()}); };
  for (const std::string& same : {x, x + "/eval.json", (dir / "x" / ".." / "x").string()}) {
    expect_error(ExitCode::usage, {"are one evaluation, given twice as 'a'"}, [&] { report({"a=" + x, "a=" + same}); });
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  EXPECT_EQ(report({"a=" + x, "a=" + y, "b=" + x}), 0) << "another file of equal numbers is another evaluation";
}

// Of an axis on which all values are the same.
TEST(AnswerReport, TicksOfEqualValuesDiffer) {
  for (const double value : {0.0, 0.5, 1.0}) {
    const std::string picture =
        front_picture(quality_diversity_front(compare_answers({{"x", {evaluation({value}, {value}, 1)}}})));
    for (const std::string& anchor :
         {std::string("\"end\">"), std::string("\"middle\">0"), std::string("\"middle\">1")}) {
      std::vector<std::string> labels;
      for (size_t at = picture.find(anchor); at != picture.npos; at = picture.find(anchor, at + 1)) {
        labels.push_back(picture.substr(at, picture.find('<', at) - at));
      }
      EXPECT_EQ(std::set<std::string>(labels.begin(), labels.end()).size(), labels.size()) << picture;
      if (anchor.starts_with("\"end\"")) {
        EXPECT_GE(labels.size(), 3u) << picture;
      }
    }
  }
}

TEST(AnswerReport, RunsOfOneGroupAreAlike) {
  const ReportedEvaluation first = evaluation({0.3, 0.5}, {0.1, 0.1}, 1);
  const auto refused = [&](const std::string& part, const std::function<void(ReportedEvaluation&)>& change) {
    ReportedEvaluation second = first;
    second.origin = "y.json";
    EXPECT_NO_THROW(compare_answers({{"ours", {first, second}}}));
    change(second);
    expect_error(ExitCode::data, {"'x.json' and 'y.json'", "'ours'", part, "NAME=FILE"}, [&] {
      compare_answers({{"plain", {first}}, {"ours", {first, second}}});
    });
    EXPECT_NO_THROW(compare_answers({{"plain", {first}}, {"ours", {second}}})) << "groups may differ";
  };
  refused("differ in temperature (1 and 0.5);", [](ReportedEvaluation& run) { run.temperature = 0.5; });
  refused("differ in top_p (1 and 0.9);", [](ReportedEvaluation& run) { run.top_p = 0.9; });
  refused("differ in diversity_metric (1 - BLEU-2 and x\\n);",
          [](ReportedEvaluation& run) { run.diversity_metric = "x\n"; });
  refused("differ in the number of answers (3 and 2);", [](ReportedEvaluation& run) {
    for (ReportedPrompt& prompt : run.prompts) {
      prompt.sampled.pop_back();
      prompt.right.pop_back();
    }
  });
  refused("differ in temperature (1 and 0.5), top_p (1 and 0.9);", [](ReportedEvaluation& run) {
    run.temperature = 0.5;
    run.top_p = 0.9;
  });
  // Names of encoders may be long and differ in the end alone.
  ReportedEvaluation one = first, two = first;
  one.diversity_metric = std::string(200, 'e') + "1";
  two.diversity_metric = std::string(200, 'e') + "2";
  expect_error(ExitCode::data, {"differ in diversity_metric", "e1 and e", "e2)"}, [&] {
    compare_answers({{"ours", {one, two}}});
  });
}

TEST(AnswerReport, EachMetricIsOfThePromptsThatHaveIt) {
  // p2 knows no right answer in the second evaluation: pass@1 is over p0 and p1 in both.
  ReportedEvaluation second = evaluation({0.4, 0.8, 0.9}, {0.2, 0.3, 0.4}, 1);
  second.prompts[2].values.erase("pass@1");
  const AnswerReport report = compare_answers({{"one", {evaluation({0.2, 0.4, 0.9}, {0.1, 0.2, 0.3}, 1)}},
                                               {"two", {second, evaluation({0.6, 0.8, 0.1}, {0.2, 0.3, 0.4}, 1)}}});
  EXPECT_EQ(report.metrics, (std::vector<std::string>{"pass@1", "diversity"}));
  EXPECT_EQ(report.counted, (std::map<std::string, size_t>{{"pass@1", 2}, {"diversity", 3}}));
  EXPECT_NEAR(report.cells[0].at("pass@1").value.mean, 0.3, 1e-12);
  const ReportCell& two = report.cells[1].at("pass@1");
  EXPECT_NEAR(two.value.mean, 0.65, 1e-12);
  EXPECT_NEAR(two.least, 0.6, 1e-12);
  EXPECT_NEAR(two.most, 0.7, 1e-12);
  EXPECT_NEAR(two.difference->mean, 0.35, 1e-12);
  EXPECT_NEAR(two.difference->low, 0.3, 1e-12);
  EXPECT_NEAR(two.difference->high, 0.4, 1e-12);
  const std::string markdown = report_markdown(report);
  EXPECT_NE(markdown.find("| pass@1 (2 prompts) |"), markdown.npos) << markdown;
  EXPECT_NE(markdown.find("| diversity |"), markdown.npos) << markdown;
  EXPECT_NE(answers_page(report).find(">pass@1 (2 prompts)</th>"), std::string::npos);
  EXPECT_TRUE(quality_diversity_front(report).quality.starts_with("pass@1 (2 prompts): "));
  second.prompts[1].values.erase("pass@1");
  second.prompts[0].values.erase("diversity");
  second.prompts[1].values.erase("diversity");
  const AnswerReport few = compare_answers({{"two", {second}}});
  EXPECT_EQ(metric_label(few, "pass@1"), "pass@1 (1 prompt)");
  EXPECT_TRUE(quality_diversity_front(few).diversity.ends_with("(1 - BLEU-2), 1 prompt"));
  for (ReportedPrompt& prompt : second.prompts) prompt.values.erase("diversity");
  EXPECT_NE(quality_diversity_front(compare_answers({{"two", {second}}})).missing, "") << "nothing to place it by";
}

TEST(AnswerReport, LossOfOtherPromptsIsSaid) {
  const ReportedEvaluation first = evaluation({0.3, 0.5}, {0, 0}, 1);
  ReportedEvaluation more = evaluation({0.3, 0.5, 0.7}, {0, 0, 0}, 2);
  for (const std::vector<ReportGroup>& groups :
       {std::vector<ReportGroup>{{"a", {first}}, {"b", {more}}}, {{"b", {more}}, {"a", {first}}}}) {
    const AnswerReport report = compare_answers(groups);
    const std::string sentence = loss_sentence(report);
    EXPECT_NE(sentence, "");
    for (const std::string& text : {report_markdown(report), answers_page(report)}) {
      EXPECT_EQ(count_of(text, sentence), 1u) << text;
    }
  }
  EXPECT_EQ(loss_sentence(compare_answers({{"a", {first}}, {"b", {first}}})), "");
  ReportedEvaluation without = first;
  more.loss.reset();
  without.loss.reset();
  EXPECT_EQ(loss_sentence(compare_answers({{"a", {without}}, {"b", {more}}})), "") << "no loss to speak of";
}

TEST(AnswerReport, DataMayHaveNoLoss) {
  nlohmann::json json = file_of(evaluation({0.3}, {0.1}, 1));
  json.erase("loss");
  ReportedEvaluation without = parse_evaluation(json.dump(), "y.json");
  EXPECT_FALSE(without.loss);
  ReportedEvaluation with = evaluation({0.3}, {0.1}, 2);
  AnswerReport report = compare_answers({{"with", {with}}, {"without", {without}}, {"both", {with, without}}});
  EXPECT_EQ(report.losses[0], 2.0);
  EXPECT_FALSE(report.losses[1]);
  EXPECT_FALSE(report.losses[2]) << "no mean of some";
  std::string markdown = report_markdown(report);
  EXPECT_TRUE(row_of(markdown, "with ").ends_with("| 2.0000 |  |")) << markdown;
  EXPECT_TRUE(row_of(markdown, "without ").ends_with("| - |  |")) << markdown;
  EXPECT_NE(answers_page(report).find("<td>-<br></td>"), std::string::npos);
  EXPECT_EQ(quality_diversity_front(report).missing, "") << "quality is by right answers";
  // The first has none: the others have nothing to differ from.
  markdown = report_markdown(compare_answers({{"without", {without}}, {"with", {with}}}));
  EXPECT_TRUE(row_of(markdown, "with ").ends_with("| 2.0000 |  |")) << markdown;
  // Perplexity is no quality where one has none.
  with.prompts[0].values.erase("pass@1");
  without.prompts[0].values.erase("pass@1");
  report = compare_answers({{"with", {with}}, {"without", {without}}});
  EXPECT_NE(quality_diversity_front(report).missing.find("no measure of quality"), std::string::npos);
  EXPECT_EQ(answers_page(report).find("<svg"), std::string::npos);
}

TEST(AnswerReport, PathsMayHaveAnEqualsSign) {
  const TempDir dir;
  const std::string folder = (dir / "lr=1" / "answers").string(), out = (dir / "out").string();
  std::filesystem::create_directories(folder);
  write_text_atomic(std::filesystem::path(folder) / "eval.json", file_of(evaluation({0.3}, {0.1}, 1)).dump());
  EXPECT_EQ(run_report({{folder, "named=" + folder}, out}), 0);
  const std::string report = read_text(dir / "out" / "report.md", ExitCode::data);
  EXPECT_NE(report.find("| metric | runs/x | named |\n"), report.npos) << report;
}

TEST(AnswerReport, FrontIsWhatNoOtherBeats) {
  const auto group = [](const std::string& name, double quality, double diversity) {
    return ReportGroup{name, {evaluation({quality, quality}, {diversity, diversity}, 1)}};
  };
  const Front front = quality_diversity_front(
      compare_answers({group("sharp", 0.9, 0.1), group("worse", 0.5, 0.3), group("both", 0.6, 0.4),
                       group("wide", 0.2, 0.8), group("as sharp, less wide", 0.9, 0.05)}));
  std::vector<bool> on;
  for (const FrontPoint& point : front.points) on.push_back(point.on_front);
  EXPECT_EQ(on, (std::vector<bool>{true, false, true, true, false}));
  EXPECT_TRUE(front.quality.starts_with("pass@1"));
  const std::string svg = front_picture(front);
  expect_well_formed(svg);
  EXPECT_EQ(count_of(svg, "<circle"), 10u) << "a point and its line in the legend";
  EXPECT_EQ(count_of(svg, "stroke-dasharray"), 2u) << "three points are joined";
  for (const char* number : {"nan", "inf"}) EXPECT_EQ(svg.find(number), svg.npos);
  // Without right answers and words quality is that of the data's responses; one point alone has axes, too.
  ReportedEvaluation bare = evaluation({0.5}, {0.1}, std::log(4.0));
  bare.prompts[0].values.erase("pass@1");
  const Front one = quality_diversity_front(compare_answers({{"x", {bare}}}));
  EXPECT_TRUE(one.quality.starts_with("1 / perplexity"));
  EXPECT_NEAR(one.points[0].quality.mean, 0.25, 1e-12);
  const std::string picture = front_picture(one);
  expect_well_formed(picture);
  EXPECT_EQ(picture.find("nan"), picture.npos);
}

TEST(AnswerReport, HostileTextsStayTexts) {
  const std::string evil = "<script>alert('1')</script> & \"x\"\x01\x1b[31m\n| # <!--";
  ReportedEvaluation run = evaluation({1}, {0.5}, 1);
  run.prompts[0].prompt = run.prompts[0].greedy = run.prompts[0].reference = evil;
  run.prompts[0].sampled = {evil, "b", evil};
  run.prompts[0].answers = {evil};
  run.checkpoint = "a|b\nc";
  const AnswerReport report = compare_answers({{evil, {run}}});
  const std::string page = answers_page(report), markdown = report_markdown(report);
  for (const std::string& made : {page, front_picture(quality_diversity_front(report))}) {
    EXPECT_EQ(made.find("<script"), made.npos);
    EXPECT_EQ(made.find("<!--"), made.npos);
    for (const char byte : {'\x01', '\x1b'}) EXPECT_EQ(made.find(byte), made.npos);
  }
  EXPECT_NE(page.find("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt; &amp; &quot;x&quot;"), page.npos);
  // Rows of a table keep their columns.
  EXPECT_NE(markdown.find("`a/b c`"), markdown.npos) << markdown;
  EXPECT_EQ(markdown.find('\x1b'), markdown.npos);
}

TEST(AnswerReport, PageShowsEachAnswerOfEachRun) {
  ReportedEvaluation other = evaluation({0.2}, {0.1}, 1);
  other.prompts[0].sampled = {"c", "a", "d"};
  other.prompts[0].right = {false, true, false};
  const std::string page = answers_page(compare_answers({{"one", {evaluation({0.5}, {0.1}, 1)}}, {"two", {other}}}));
  EXPECT_EQ(count_of(page, "<section>"), 1u);
  EXPECT_EQ(count_of(page, "<li class=\"right\">a"), 2u) << "right in both";
  EXPECT_EQ(count_of(page, "\xC3\x97 2"), 1u) << "the same answer stands once, with its number";
  for (const char* answer : {"<li>b</li>", "<li>c</li>", "<li>d</li>"}) EXPECT_EQ(count_of(page, answer), 1u) << answer;
  EXPECT_EQ(count_of(page, "http"), count_of(page, "http://www.w3.org/2000/svg")) << "nothing from elsewhere";
}

TEST(AnswerReport, ReadsWhatWasWritten) {
  const TempDir dir;
  const ReportedEvaluation run = evaluation({0.3, 0.5}, {0.1, 0.2}, 1.5);
  const std::string text = file_of(run).dump();
  const ReportedEvaluation read = parse_evaluation(text, "x.json");
  EXPECT_EQ(read.prompts.size(), 2u);
  EXPECT_EQ(read.prompts[1].values, run.prompts[1].values);
  EXPECT_EQ(read.prompts[0].right, run.prompts[0].right);
  EXPECT_EQ(read.loss, 1.5);
  EXPECT_EQ(read.step, 3);

  std::filesystem::create_directory(dir / "a");
  write_text_atomic(dir / "a" / "eval.json", text);
  write_text_atomic(dir / "b.json", text);
  const ReportOptions options{{"plain=" + (dir / "a").string(), (dir / "b.json").string()}, (dir / "out").string()};
  EXPECT_EQ(run_report(options), 0);
  const std::string report = read_text(dir / "out" / "report.md", ExitCode::data);
  EXPECT_NE(report.find("| metric | plain | runs/x |"), report.npos) << report;
  for (const char* name : {"answers.html", "front.svg"}) EXPECT_TRUE(std::filesystem::exists(dir / "out" / name));

  const auto refused = [&](const std::vector<std::string>& parts, const std::function<void(nlohmann::json&)>& spoil) {
    nlohmann::json json = file_of(run);
    spoil(json);
    expect_error(ExitCode::data, parts, [&] { parse_evaluation(json.dump(), "x.json"); });
  };
  using J = nlohmann::json;
  refused({"x.json", "'samples' is missing", "eval --report"}, [](J& j) { j.erase("samples"); });
  refused({"'samples' must be a list"}, [](J& j) { j["samples"] = J::array(); });
  refused({"'loss' must be a number"}, [](J& j) { j["loss"] = "1"; });
  refused({"'loss' must be a number"}, [](J& j) { j["loss"] = nullptr; });
  refused({"sample 1", "'sampled' must be a list of texts"}, [](J& j) { j["samples"][1]["sampled"] = {1}; });
  refused({"sample 0", "must be an object"}, [](J& j) { j["samples"][0] = 1; });
  refused({"'right' must say of each"}, [](J& j) { j["samples"][0]["right"] = {true}; });
  refused({"'values' must be numbers"}, [](J& j) { j["samples"][0]["values"]["pass@1"] = "x"; });
  refused({"'values' must be numbers of at most"}, [](J& j) { j["samples"][0]["values"]["pass@1"] = 1e14; });
  for (const double step : {1e300, 0.5}) {
    refused({"'step' must be a whole number"}, [&](J& j) { j["step"] = step; });
  }
  refused({"x.json"}, [](J& j) { j = 3; });
  expect_error(ExitCode::data, {"x.json"}, [] { parse_evaluation("{", "x.json"); });
  expect_error(ExitCode::data, {"none"}, [&] { run_report({{(dir / "none").string()}, (dir / "o").string()}); });
  expect_error(ExitCode::usage, {"'plain='", "NAME=FILE"}, [&] { run_report({{"plain="}, (dir / "o").string()}); });
  expect_error(ExitCode::environment, {"b.json", "Not a directory"}, [&] {
    run_report({{(dir / "a").string()}, (dir / "b.json").string()});
  });
}

}  // namespace
}  // namespace hrm::commands
