#pragma once
// Evaluations of completions, compared: what `eval --report` and `report` write. No torch here.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/metrics/text_statistics.h"

namespace hrm::commands {

// One prompt of an evaluation.
struct ReportedPrompt {
  std::string prompt, reference, greedy;
  std::vector<std::string> answers;  // right ones; empty: the data knows none
  std::vector<std::string> sampled;
  std::vector<bool> right;               // of sampled; empty where answers is
  std::map<std::string, double> values;  // by metric
};

// What `eval --report` keeps of one evaluation: eval.json.
struct ReportedEvaluation {
  std::string origin, checkpoint, data, diversity_metric;
  int64_t step = -1;
  double temperature = 0, top_p = 1;
  std::optional<double> loss;  // cross-entropy of the data's responses, nats per token; data may have none
  std::vector<ReportedPrompt> prompts;
};

// Of the text of an eval.json, at most 256 MiB. Throws Error(data) with the origin and the member for what is not as it
// was written.
ReportedEvaluation parse_evaluation(std::string_view text, const std::string& origin);

// Evaluations of one kind of training, e.g. with several seeds: values of a prompt are means over them.
struct ReportGroup {
  std::string name;
  std::vector<ReportedEvaluation> runs;
};

struct ReportCell {
  metrics::Interval value;     // mean over prompts; 95 % by bootstrap over prompts
  double least = 0, most = 0;  // means of the runs of the group
  // This group less the first one, prompt by prompt; none for the first.
  std::optional<metrics::Interval> difference;
};

struct AnswerReport {
  std::vector<ReportGroup> groups;
  std::vector<std::string> metrics;                      // that all groups have, in the order of a reader's interest
  std::vector<std::map<std::string, ReportCell>> cells;  // by group, then metric
  // Of each metric, how many of the prompts have it in all runs: cells are over those.
  std::map<std::string, size_t> counted;
  std::vector<std::optional<double>> losses;  // by group, mean of its runs; none where one of them has none
  std::vector<std::string> prompts;           // that all evaluations have
  bool other_prompts = false;                 // an evaluation has more, which its loss is over, too
  // Whether the groups' diversity is by different measures: no cell of it has a difference.
  bool different_measures = false;
};

// Error(data) if the evaluations share no prompt or no metric, or those of a group differ in temperature, top_p, number
// of answers or diversity_metric. Error(usage) for no group.
AnswerReport compare_answers(std::vector<ReportGroup> groups);

// Of each metric, what it is, in one line; empty for an unknown one.
std::string metric_meaning(const std::string& metric);

// As a row of a table calls it: of how many prompts it is, where not all have it.
std::string metric_label(const AnswerReport& report, const std::string& metric);
// One sentence that names the measures, where they differ; otherwise empty. Not escaped.
std::string measures_sentence(const AnswerReport& report);
// One sentence, where a loss is over prompts that not all evaluations have; otherwise empty.
std::string loss_sentence(const AnswerReport& report);

// The point of a group in the plane of quality and diversity.
struct FrontPoint {
  std::string name;
  metrics::Interval quality, diversity;
  bool on_front = false;  // no other has as much of both, and more of one
};
struct Front {
  std::string quality, diversity;  // names of the axes
  std::vector<FrontPoint> points;
  std::string missing;  // why there is no picture, in one sentence; then there are no points
};
// Quality is pass@1, otherwise rouge_l, otherwise 1 / perplexity, without interval. Without any of these, without
// diversity, and where it is by different measures, nothing can be placed.
Front quality_diversity_front(const AnswerReport& report);

std::string report_markdown(const AnswerReport& report);
// A page that needs nothing else, answers of the groups' first runs side by side.
std::string answers_page(const AnswerReport& report);
std::string front_picture(const Front& front);  // SVG, of a front with points

}  // namespace hrm::commands
