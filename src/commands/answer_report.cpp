#include "commands/answer_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::commands {
namespace {

using nlohmann::json;

constexpr size_t kFileBytes = size_t{256} << 20;
// Of the values that there are, in size; an axis of a picture has ticks as close as 0.001.
constexpr double kLargestValue = 1e9;

// In the order of a reader's interest.
const std::vector<std::pair<std::string, std::string>>& meanings() {
  static const std::vector<std::pair<std::string, std::string>> all{
      {"pass@1", "probability that one sampled answer is right"},
      {"pass@3", "probability that one of 3 sampled answers is right (unbiased)"},
      {"pass@5", "probability that one of 5 sampled answers is right (unbiased)"},
      {"pass@10", "probability that one of 10 sampled answers is right (unbiased)"},
      {"pass@20", "probability that one of 20 sampled answers is right (unbiased)"},
      {"pass@50", "probability that one of 50 sampled answers is right (unbiased)"},
      {"pass@100", "probability that one of 100 sampled answers is right (unbiased)"},
      {"greedy_right", "share of prompts whose greedy answer (the best token each time) is right"},
      {"covered", "share of a prompt's right answers that were sampled"},
      {"diversity", "diversity of the answers to one prompt, by the metric of the training"},
      {"different", "share of the answers to one prompt that are different texts"},
      {"distinct_1", "different words of the answers to one prompt / all words"},
      {"distinct_2", "different pairs of words / all pairs"},
      {"distinct_3", "different triples of words / all triples"},
      {"self_bleu", "BLEU of each answer against the others: high is alike"},
      {"rouge_1", "words that the greedy answer shares with the data's response (F1)"},
      {"rouge_2", "pairs of words that it shares (F1)"},
      {"rouge_l", "longest common sequence of words with the data's response (F1)"},
      {"answer_words", "words of an answer"},
      {"unique_words", "different words of an answer"},
      {"finished", "share of answers that ended by themselves"},
      {"response_loss", "cross-entropy of the data's responses to the prompt, nats a token"},
  };
  return all;
}

// Reads members and says which one is wrong.
class Reader {
 public:
  Reader(const json& object, std::string origin) : object_(object), origin_(std::move(origin)) {
    require(object.is_object(), ExitCode::data, origin_, ": must be an object");
  }
  const json& member(const char* key) const {
    const auto found = object_.find(key);
    require(found != object_.end(), ExitCode::data, origin_, ": '", key,
            "' is missing; give a file that 'hrm_train eval --report' wrote");
    return *found;
  }
  std::string text(const char* key) const {
    require(member(key).is_string(), ExitCode::data, origin_, ": '", key, "' must be a text");
    return member(key).get<std::string>();
  }
  double number(const char* key) const {
    require(member(key).is_number(), ExitCode::data, origin_, ": '", key, "' must be a number");
    return member(key).get<double>();
  }
  int64_t whole_number(const char* key) const {
    const double value = number(key);
    require(value == std::floor(value) && std::abs(value) <= 0x1p53, ExitCode::data, origin_, ": '", key,
            "' must be a whole number");
    return static_cast<int64_t>(value);
  }
  // Data without responses has no loss, for one.
  std::optional<double> optional_number(const char* key) const {
    if (object_.find(key) == object_.end()) return {};
    const double value = number(key);
    require(std::isfinite(value), ExitCode::data, origin_, ": '", key, "' must be a number");
    return value;
  }
  template <class T, class Is>
  std::vector<T> list(const char* key, Is is, const char* what) const {
    const json& all = member(key);
    require(all.is_array() && std::all_of(all.begin(), all.end(), is), ExitCode::data, origin_, ": '", key,
            "' must be a list of ", what);
    return all.get<std::vector<T>>();
  }
  std::vector<std::string> texts(const char* key) const {
    return list<std::string>(
        key, [](const json& one) { return one.is_string(); }, "texts");
  }

 private:
  const json& object_;
  std::string origin_;
};

ReportedPrompt parse_prompt(const json& object, const std::string& origin) {
  const Reader reader(object, origin);
  ReportedPrompt prompt{.prompt = reader.text("prompt"),
                        .reference = reader.text("reference"),
                        .greedy = reader.text("greedy"),
                        .answers = reader.texts("answers"),
                        .sampled = reader.texts("sampled"),
                        .right = reader.list<bool>(
                            "right", [](const json& one) { return one.is_boolean(); }, "true and false"),
                        .values = {}};
  require(prompt.right.empty() || prompt.right.size() == prompt.sampled.size(), ExitCode::data, origin,
          ": 'right' must say of each of 'sampled' whether it is");
  const json& values = reader.member("values");
  require(values.is_object(), ExitCode::data, origin, ": 'values' must be an object");
  for (const auto& item : values.items()) {
    require(item.value().is_number() && std::abs(item.value().get<double>()) <= kLargestValue, ExitCode::data, origin,
            ": 'values' must be numbers of at most ", kLargestValue);
    prompt.values[item.key()] = item.value().get<double>();
  }
  return prompt;
}

// By the prompt's text, and which of those with this text it is.
std::map<std::string, const ReportedPrompt*> by_prompt(const ReportedEvaluation& run) {
  std::map<std::string, int> seen;
  std::map<std::string, const ReportedPrompt*> all;
  for (const ReportedPrompt& prompt : run.prompts) {
    const int number = seen[prompt.prompt]++;
    all[number == 0 ? prompt.prompt : cat(prompt.prompt, '\0', number)] = &prompt;
  }
  return all;
}

// Seeds may be averaged, other ways to sample or to measure may not: their mean is of nothing.
void require_alike(const ReportGroup& group, const std::string& common_prompt) {
  const auto answers = [&](const ReportedEvaluation& run) { return by_prompt(run).at(common_prompt)->sampled.size(); };
  const ReportedEvaluation& first = group.runs[0];
  for (const ReportedEvaluation& run : group.runs) {
    std::string differ;
    const auto compare = [&](const char* what, const auto& a, const auto& b) {
      if (a != b) differ += cat(differ.empty() ? "" : ", ", what, " (", a, " and ", b, ")");
    };
    compare("temperature", first.temperature, run.temperature);
    compare("top_p", first.top_p, run.top_p);
    compare("the number of answers", answers(first), answers(run));
    compare("diversity_metric", printable(first.diversity_metric), printable(run.diversity_metric));
    require(differ.empty(), ExitCode::data, "'", first.origin, "' and '", run.origin, "' are both of '",
            printable_start(group.name), "' but differ in ", differ,
            "; give them different names (NAME=FILE), or evaluate them alike");
  }
}

}  // namespace

std::string metric_meaning(const std::string& metric) {
  for (const auto& [name, meaning] : meanings()) {
    if (name == metric) return meaning;
  }
  return "";
}

ReportedEvaluation parse_evaluation(std::string_view text, const std::string& origin) {
  const json root = parse_json(text, origin, ExitCode::data, {.bytes = kFileBytes, .depth = 8});
  const Reader reader(root, origin);
  ReportedEvaluation out{.origin = origin,
                         .checkpoint = reader.text("checkpoint"),
                         .data = reader.text("data"),
                         .diversity_metric = reader.text("diversity_metric"),
                         .step = reader.whole_number("step"),
                         .temperature = reader.number("temperature"),
                         .top_p = reader.number("top_p"),
                         .loss = reader.optional_number("loss"),
                         .prompts = {}};
  const json& samples = reader.member("samples");
  require(samples.is_array() && !samples.empty(), ExitCode::data, origin, ": 'samples' must be a list of prompts");
  for (size_t i = 0; i < samples.size(); ++i) {
    out.prompts.push_back(parse_prompt(samples[i], cat(origin, ": sample ", i)));
  }
  return out;
}

AnswerReport compare_answers(std::vector<ReportGroup> groups) {
  require(!groups.empty(), ExitCode::usage, "nothing to report: give at least one evaluation");
  AnswerReport report;
  report.groups = std::move(groups);
  std::vector<std::vector<std::map<std::string, const ReportedPrompt*>>> of;  // by group, run, prompt
  for (const ReportGroup& group : report.groups) {
    of.emplace_back();
    std::optional<double> loss = 0;
    for (const ReportedEvaluation& run : group.runs) {
      of.back().push_back(by_prompt(run));
      if (loss && run.loss) {
        *loss += *run.loss / static_cast<double>(group.runs.size());
      } else {
        loss.reset();
      }
    }
    report.losses.push_back(loss);
  }
  // In the first evaluation's order of keys.
  for (const auto& [prompt, first] : of[0][0]) {
    const bool everywhere = std::all_of(of.begin(), of.end(), [&prompt = prompt](const auto& runs) {
      return std::all_of(runs.begin(), runs.end(), [&](const auto& run) { return run.count(prompt) == 1; });
    });
    if (everywhere) report.prompts.push_back(prompt);
  }
  require(!report.prompts.empty(), ExitCode::data,
          "the evaluations have no prompt in common; evaluate the runs on the "
          "same data (--data FILE)");
  for (const ReportGroup& group : report.groups) {
    require_alike(group, report.prompts[0]);
    report.different_measures |= group.runs[0].diversity_metric != report.groups[0].runs[0].diversity_metric;
  }
  for (const auto& runs : of) {
    for (const auto& run : runs) report.other_prompts |= run.size() > report.prompts.size();
  }

  // A prompt without right answers has no pass@k, and takes it from no other prompt.
  const auto prompts_with = [&](const std::string& metric) {
    std::vector<std::string> out;
    for (const std::string& prompt : report.prompts) {
      const bool everywhere = std::all_of(of.begin(), of.end(), [&](const auto& runs) {
        return std::all_of(runs.begin(), runs.end(),
                           [&](const auto& run) { return run.at(prompt)->values.count(metric) == 1; });
      });
      if (everywhere) out.push_back(prompt);
    }
    return out;
  };
  // Of one group, or one run of it: a value for each of these prompts.
  const auto values = [&](size_t group, const std::string& metric, const std::vector<std::string>& prompts,
                          std::optional<size_t> only) {
    std::vector<double> out;
    for (const std::string& prompt : prompts) {
      double sum = 0, count = 0;
      for (size_t run = 0; run < of[group].size(); ++run) {
        if (only && run != *only) continue;
        sum += of[group][run].at(prompt)->values.at(metric);
        ++count;
      }
      out.push_back(sum / count);
    }
    return out;
  };
  report.cells.resize(report.groups.size());
  for (const auto& [metric, meaning] : meanings()) {
    const std::vector<std::string> prompts = prompts_with(metric);
    if (prompts.empty()) continue;
    std::vector<std::vector<double>> all;
    for (size_t group = 0; group < report.groups.size(); ++group) all.push_back(values(group, metric, prompts, {}));
    report.metrics.push_back(metric);
    report.counted[metric] = prompts.size();
    const bool comparable = metric != "diversity" || !report.different_measures;
    for (size_t group = 0; group < all.size(); ++group) {
      ReportCell cell;
      cell.value = metrics::bootstrap_mean(all[group], 0);
      for (size_t run = 0; run < of[group].size(); ++run) {
        const std::vector<double> own = values(group, metric, prompts, run);
        double mean = 0;
        for (const double value : own) mean += value / static_cast<double>(own.size());
        cell.least = run == 0 ? mean : std::min(cell.least, mean);
        cell.most = run == 0 ? mean : std::max(cell.most, mean);
      }
      if (group > 0 && comparable) cell.difference = metrics::bootstrap_paired(all[group], all[0], 0);
      report.cells[group][metric] = cell;
    }
  }
  require(!report.metrics.empty(), ExitCode::data, "the evaluations have no metric in common");
  return report;
}

std::string metric_label(const AnswerReport& report, const std::string& metric) {
  const size_t count = report.counted.at(metric);
  if (count == report.prompts.size()) return metric;
  return cat(metric, " (", count, count == 1 ? " prompt)" : " prompts)");
}

std::string measures_sentence(const AnswerReport& report) {
  if (!report.different_measures) return "";
  std::string list;
  for (const ReportGroup& group : report.groups) {
    list += cat(list.empty() ? "" : ", ", group.name, " by ", group.runs[0].diversity_metric);
  }
  return cat("Diversity is by different measures and is not compared: ", list, ".");
}

std::string loss_sentence(const AnswerReport& report) {
  const bool any = std::any_of(report.losses.begin(), report.losses.end(), [](const auto& one) { return !!one; });
  if (!any || !report.other_prompts) return "";
  return "The loss is over all prompts of each evaluation, which are not the same.";
}

Front quality_diversity_front(const AnswerReport& report) {
  const auto has = [&](const char* metric) { return report.counted.count(metric) == 1; };
  const char* by = has("pass@1") ? "pass@1" : has("rouge_l") ? "rouge_l" : nullptr;
  const bool losses = std::all_of(report.losses.begin(), report.losses.end(), [](const auto& one) { return !!one; });
  Front front;
  if (report.different_measures) {
    front.missing = "There is no picture of quality against diversity: the diversities are by different measures.";
  } else if (!has("diversity")) {
    front.missing = "There is no picture of quality against diversity: no prompt has a diversity in all evaluations.";
  } else if (!by && !losses) {
    front.missing = "There is no picture of quality against diversity: the evaluations share no measure of quality.";
  }
  if (!front.missing.empty()) return front;
  front.quality =
      by ? cat(metric_label(report, by), ": ", metric_meaning(by)) : "1 / perplexity of the data's responses";
  front.diversity = cat("diversity of the answers to one prompt (", report.groups[0].runs[0].diversity_metric, ")");
  if (const size_t count = report.counted.at("diversity"); count < report.prompts.size()) {
    front.diversity += cat(", ", count, count == 1 ? " prompt" : " prompts");
  }
  for (size_t group = 0; group < report.groups.size(); ++group) {
    const auto& cells = report.cells[group];
    const double likely = by ? 0 : std::exp(-report.losses[group].value());
    front.points.push_back({.name = report.groups[group].name,
                            .quality = by ? cells.at(by).value : metrics::Interval{likely, likely, likely},
                            .diversity = cells.at("diversity").value});
  }
  for (FrontPoint& point : front.points) {
    point.on_front = std::none_of(front.points.begin(), front.points.end(), [&](const FrontPoint& other) {
      const double q = other.quality.mean - point.quality.mean, d = other.diversity.mean - point.diversity.mean;
      return q >= 0 && d >= 0 && q + d > 0;
    });
  }
  return front;
}

}  // namespace hrm::commands
