// The report as Markdown, as a page, and as a picture.
#include <algorithm>
#include <cmath>

#include "commands/answer_report.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"

namespace hrm::commands {
namespace {

// Told apart by the colour-blind, too.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

const char* colour(size_t i) {
  return kColours[i % (sizeof kColours / sizeof *kColours)];
}

std::string interval_text(const metrics::Interval& i, bool signs = false) {
  const auto number = [&](double value) { return (signs && value > 0 ? "+" : "") + metrics::fixed(value, 3); };
  return cat(number(i.mean), " [", number(i.low), ", ", number(i.high), "]");
}

bool excludes_zero(const metrics::Interval& i) {
  return i.low > 0 || i.high < 0;
}

std::string loss_text(const AnswerReport& report, size_t group) {
  return report.losses[group] ? metrics::fixed(*report.losses[group], 4) : "-";
}

std::string relative_loss(const AnswerReport& report, size_t group) {
  const std::optional<double>&own = report.losses[group], &first = report.losses[0];
  if (group == 0 || !own || !first) return "";
  const double change = 100 * (*own / *first - 1);
  return cat(change > 0 ? "+" : "", metrics::fixed(change, 2), " %");
}

// A cell of a table may hold no line end and no bar.
std::string cell_text(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
    if (c == '|') c = '/';
  }
  return printable(text);
}

std::string metric_table(const AnswerReport& report) {
  std::string out = "<table><thead><tr><th>metric</th>";
  for (const ReportGroup& group : report.groups) out += cat("<th>", escaped_markup(group.name), "</th>");
  out += "</tr></thead><tbody>";
  for (const std::string& metric : report.metrics) {
    out += cat("<tr><th title=\"", metric_meaning(metric), "\">", metric_label(report, metric), "</th>");
    for (const auto& cells : report.cells) {
      const ReportCell& cell = cells.at(metric);
      out += cat("<td>", interval_text(cell.value));
      if (cell.difference) {
        out += cat("<br><span class=\"", excludes_zero(*cell.difference) ? "sure" : "unsure", "\">",
                   interval_text(*cell.difference, true), "</span>");
      }
      out += "</td>";
    }
    out += "</tr>";
  }
  out += "<tr><th title=\"cross-entropy of the data's responses, nats per token\">loss</th>";
  for (size_t group = 0; group < report.groups.size(); ++group) {
    out += cat("<td>", loss_text(report, group), "<br>", relative_loss(report, group), "</td>");
  }
  out += "</tr></tbody></table>\n";
  for (const std::string& sentence : {loss_sentence(report), measures_sentence(report)}) {
    if (!sentence.empty()) out += cat("<p>", escaped_markup(sentence), "</p>\n");
  }
  return out;
}

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; --line: #8886; --right: #009e7333; --soft: #8882; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem; text-align: left; vertical-align: top; }
.sure { font-weight: 600; } .unsure { opacity: .6; }
section { border-top: 2px solid var(--line); margin-top: 1.6rem; padding-top: .4rem; }
h2 { font-size: 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.runs { display: grid; gap: 1rem; grid-auto-columns: minmax(14rem, 1fr); grid-auto-flow: column; overflow-x: auto; }
.run h3 { font-size: .9rem; margin: .2rem 0; }
ol { list-style: none; margin: 0; padding: 0; }
li { background: var(--soft); border-radius: .3rem; margin: .25rem 0; padding: .15rem .5rem; white-space: pre-wrap;
     overflow-wrap: anywhere; }
li.right { background: var(--right); } li.right::before { content: "\2713  "; }
.best { border: 1px solid var(--line); } .note { opacity: .7; font-size: .85rem; white-space: pre-wrap; }
figure { margin: 1rem 0; } figure svg { background: #fff; max-width: 100%; height: auto; }
</style>
)";

// The same answer several times stands once, with its number.
std::string answer_list(const ReportedPrompt& prompt) {
  std::vector<std::pair<std::string, int>> counted;
  std::vector<bool> right;
  for (size_t i = 0; i < prompt.sampled.size(); ++i) {
    const auto known =
        std::find_if(counted.begin(), counted.end(), [&](const auto& one) { return one.first == prompt.sampled[i]; });
    if (known != counted.end()) {
      ++known->second;
      continue;
    }
    counted.emplace_back(prompt.sampled[i], 1);
    right.push_back(!prompt.right.empty() && prompt.right[i]);
  }
  std::string out = "<ol>";
  for (size_t i = 0; i < counted.size(); ++i) {
    out += cat("<li", right[i] ? " class=\"right\"" : "", ">", escaped_markup(counted[i].first));
    if (counted[i].second > 1) out += cat(" <span class=\"note\">\xC3\x97 ", counted[i].second, "</span>");
    out += "</li>";
  }
  return out + "</ol>";
}

// Distances of 1, 2 or 5 times a power of ten.
std::vector<double> ticks(double low, double high) {
  const double raw = (high - low) / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= raw) break;
  }
  std::vector<double> out;
  for (double i = std::ceil(low / step); i * step <= high + 1e-9 * step; ++i) out.push_back(i * step);
  return out;
}

// Limits of an axis: all intervals and a margin. If all values are equal, the margin is wide enough that ticks of three
// digits differ.
std::pair<double, double> range(const Front& front, metrics::Interval FrontPoint::*axis) {
  double low = INFINITY, high = -INFINITY;
  for (const FrontPoint& point : front.points) {
    low = std::min(low, (point.*axis).low);
    high = std::max(high, (point.*axis).high);
  }
  const double room = std::max(0.08 * (high - low), 0.01);
  return {std::max(0.0, low - room), high + room};
}

}  // namespace

std::string report_markdown(const AnswerReport& report) {
  std::string out = cat("# Sampled answers\n\n", report.prompts.size(),
                        " prompts. Intervals are 95 % by bootstrap over prompts; of several runs a prompt's value is "
                        "their mean, and `a..b` are the means of the runs. Differences are to `",
                        cell_text(report.groups[0].name), "`, prompt by prompt; those in bold exclude zero.\n\n");
  out += "| | checkpoints | answers | temperature | top-p | loss | change |\n|---|---|---:|---:|---:|---:|---:|\n";
  for (size_t i = 0; i < report.groups.size(); ++i) {
    const ReportGroup& group = report.groups[i];
    std::string checkpoints;
    for (const ReportedEvaluation& run : group.runs) {
      checkpoints += cat(checkpoints.empty() ? "" : ", ", "`", cell_text(run.checkpoint), "`");
    }
    const ReportedEvaluation& first = group.runs[0];
    out += cat("| ", cell_text(group.name), " | ", checkpoints, " | ", first.prompts[0].sampled.size(), " | ",
               metrics::fixed(first.temperature, 2), " | ", metrics::fixed(first.top_p, 2), " | ", loss_text(report, i),
               " | ", relative_loss(report, i), " |\n");
  }
  if (const std::string sentence = loss_sentence(report); !sentence.empty()) out += cat("\n", sentence, "\n");
  out += "\n| metric |";
  std::string rule = "|---|";
  for (const ReportGroup& group : report.groups) {
    out += cat(" ", cell_text(group.name), " |");
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const std::string& metric : report.metrics) {
    out += cat("| ", metric_label(report, metric), " |");
    for (size_t i = 0; i < report.groups.size(); ++i) {
      const ReportCell& cell = report.cells[i].at(metric);
      out += " " + interval_text(cell.value);
      if (report.groups[i].runs.size() > 1)
        out += cat(", ", metrics::fixed(cell.least, 3), "..", metrics::fixed(cell.most, 3));
      if (cell.difference) {
        const char* mark = excludes_zero(*cell.difference) ? "**" : "";
        out += cat("; ", mark, interval_text(*cell.difference, true), mark);
      }
      out += " |";
    }
    out += "\n";
  }
  const std::string data = cat("`", cell_text(report.groups[0].runs[0].data), "`.");
  out += report.different_measures
             ? cat("\n", cell_text(measures_sentence(report)), " Data: ", data)
             : cat("\nDiversity is by ", cell_text(report.groups[0].runs[0].diversity_metric), "; data: ", data);
  const std::string missing = quality_diversity_front(report).missing;
  out += cat(missing.empty() ? "" : " ", missing, "\n\n");
  for (const std::string& metric : report.metrics) out += cat("- `", metric, "`: ", metric_meaning(metric), ".\n");
  return out;
}

std::string answers_page(const AnswerReport& report) {
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sampled answers</title>\n";
  out += "<meta name=\"viewport\" content=\"width=device-width\">\n";
  out += kStyle;
  out +=
      cat("</head><body>\n<h1>Sampled answers</h1>\n<p>", report.prompts.size(),
          " prompts. Means with 95 % intervals by bootstrap over prompts; below them differences to the first column, "
          "prompt by prompt, in bold where they exclude zero. Right answers are marked.</p>\n");
  out += metric_table(report);
  const Front front = quality_diversity_front(report);
  out += front.missing.empty() ? cat("<figure>", front_picture(front), "</figure>\n")
                               : cat("<p>", front.missing, "</p>\n");
  std::vector<std::map<std::string, const ReportedPrompt*>> of;
  for (const ReportGroup& group : report.groups) {
    of.emplace_back();
    std::map<std::string, int> seen;
    for (const ReportedPrompt& prompt : group.runs[0].prompts) {
      if (seen[prompt.prompt]++ == 0) of.back()[prompt.prompt] = &prompt;
    }
  }
  for (const std::string& key : report.prompts) {
    if (key.find('\0') != key.npos) continue;  // a prompt that is there already
    const ReportedPrompt& first = *of[0].at(key);
    out += cat("<section><h2>", escaped_markup(key), "</h2>");
    if (!first.reference.empty()) out += cat("<p class=\"note\">data: ", escaped_markup(first.reference), "</p>");
    if (!first.answers.empty()) {
      std::string all;
      for (const std::string& answer : first.answers) all += cat(all.empty() ? "" : " \xC2\xB7 ", answer);
      out += cat("<p class=\"note\">right: ", escaped_markup(all), "</p>");
    }
    out += "<div class=\"runs\">";
    for (size_t i = 0; i < report.groups.size(); ++i) {
      const ReportedPrompt& prompt = *of[i].at(key);
      const auto diversity = prompt.values.find("diversity");
      out += cat("<div class=\"run\"><h3>", escaped_markup(report.groups[i].name), "</h3>");
      if (diversity != prompt.values.end()) {
        out += cat("<p class=\"note\">diversity ", metrics::fixed(diversity->second, 3), "</p>");
      }
      out += cat("<ol><li class=\"best\"><span class=\"note\">greedy </span>", escaped_markup(prompt.greedy),
                 "</li></ol>");
      out += answer_list(prompt) + "</div>";
    }
    out += "</div></section>\n";
  }
  return out + "</body></html>\n";
}

std::string front_picture(const Front& front) {
  constexpr double kWidth = 680, kPlot = 360, kLeft = 70, kRight = 30, kTop = 24, kLine = 22;
  const double bottom = kTop + kPlot, height = bottom + 58 + kLine * static_cast<double>(front.points.size());
  const auto [x0, x1] = range(front, &FrontPoint::diversity);
  const auto [y0, y1] = range(front, &FrontPoint::quality);
  const auto x = [&, x0 = x0, x1 = x1](double v) { return kLeft + (v - x0) / (x1 - x0) * (kWidth - kLeft - kRight); };
  const auto y = [&, y0 = y0, y1 = y1](double v) { return bottom - (v - y0) / (y1 - y0) * kPlot; };
  const auto n = [](double v) { return metrics::fixed(v, 1); };
  std::string out =
      cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", n(kWidth), " ", n(height), "\" width=\"",
          n(kWidth), "\" height=\"", n(height),
          "\" font-family=\"system-ui, DejaVu Sans, sans-serif\" font-size=\"13\" fill=\"#222\">\n<rect width=\"",
          n(kWidth), "\" height=\"", n(height), "\" fill=\"#fff\"/>\n");
  const auto line = [&](double xa, double ya, double xb, double yb, const std::string& style) {
    out += cat("<line x1=\"", n(xa), "\" y1=\"", n(ya), "\" x2=\"", n(xb), "\" y2=\"", n(yb), "\" ", style, "/>\n");
  };
  const auto text = [&](double xa, double ya, const std::string& anchor, const std::string& what,
                        const std::string& more = "") {
    out += cat("<text x=\"", n(xa), "\" y=\"", n(ya), "\" text-anchor=\"", anchor, "\"", more, ">",
               escaped_markup(what), "</text>\n");
  };
  const std::string grid = "stroke=\"#ddd\"";
  for (const double v : ticks(x0, x1)) {
    line(x(v), kTop, x(v), bottom, grid);
    text(x(v), bottom + 18, "middle", metrics::fixed(v, 3));
  }
  for (const double v : ticks(y0, y1)) {
    line(kLeft, y(v), kWidth - kRight, y(v), grid);
    text(kLeft - 8, y(v) + 4, "end", metrics::fixed(v, 3));
  }
  text((kLeft + kWidth - kRight) / 2, bottom + 40, "middle", front.diversity);
  text(18, kTop + kPlot / 2, "middle", front.quality, cat(" transform=\"rotate(-90 18 ", n(kTop + kPlot / 2), ")\""));
  std::vector<const FrontPoint*> best;
  for (const FrontPoint& point : front.points) {
    if (point.on_front) best.push_back(&point);
  }
  std::sort(best.begin(), best.end(),
            [](const FrontPoint* a, const FrontPoint* b) { return a->diversity.mean < b->diversity.mean; });
  for (size_t i = 1; i < best.size(); ++i) {
    line(x(best[i - 1]->diversity.mean), y(best[i - 1]->quality.mean), x(best[i]->diversity.mean),
         y(best[i]->quality.mean), "stroke=\"#666\" stroke-dasharray=\"5 4\"");
  }
  for (size_t i = 0; i < front.points.size(); ++i) {
    const FrontPoint& point = front.points[i];
    const double px = x(point.diversity.mean), py = y(point.quality.mean);
    const std::string stroke = cat("stroke=\"", colour(i), "\"");
    line(x(point.diversity.low), py, x(point.diversity.high), py, stroke);
    line(px, y(point.quality.low), px, y(point.quality.high), stroke);
    out += cat("<circle cx=\"", n(px), "\" cy=\"", n(py), "\" r=\"5\" fill=\"", point.on_front ? colour(i) : "#fff",
               "\" ", stroke, " stroke-width=\"2\"/>\n");
    const double at = bottom + 62 + kLine * static_cast<double>(i);
    out += cat("<circle cx=\"", n(kLeft + 6), "\" cy=\"", n(at - 4), "\" r=\"5\" fill=\"",
               point.on_front ? colour(i) : "#fff", "\" ", stroke, " stroke-width=\"2\"/>\n");
    text(kLeft + 20, at, "start",
         cat(printable_start(point.name, 40), ": quality ", metrics::fixed(point.quality.mean, 3), ", diversity ",
             metrics::fixed(point.diversity.mean, 3), point.on_front ? "" : " (another has more of both)"));
  }
  return out + "</svg>\n";
}

}  // namespace hrm::commands
