#include "hrm/data/arc_votes.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "data/puzzle/arc_files.h"

namespace hrm::data {
namespace {

nlohmann::ordered_json grid_json(const ArcGrid& grid) {
  auto rows = nlohmann::ordered_json::array();
  for (int r = 0; r < grid.rows; ++r) {
    rows.push_back(std::vector<int>(grid.cells.begin() + r * grid.cols, grid.cells.begin() + (r + 1) * grid.cols));
  }
  return rows;
}

}  // namespace

ArcVotes::ArcVotes(const std::vector<std::string>& identifiers, std::vector<ArcTask> tasks) : tasks_(std::move(tasks)) {
  std::map<std::string, int64_t> seen;
  for (size_t i = 0; i < identifiers.size(); ++i) {
    names_.push_back(i == 0 ? ArcName{} : parse_arc_name(identifiers[i]));
    copies_.push_back(seen[names_.back().task]++);
  }
}

void ArcVotes::add(int32_t identifier, const int32_t* question, const int32_t* answer, float q_halt) {
  if (identifier <= 0 || static_cast<size_t>(identifier) >= names_.size()) return;
  const ArcName& name = names_[static_cast<size_t>(identifier)];
  const ArcGrid input = name.augmentation.undo(crop_arc(question)), output = name.augmentation.undo(crop_arc(answer));
  answers_[{name.task, input}].push_back({output, copies_[static_cast<size_t>(identifier)],
                                          std::isnan(q_halt) ? 0 : 1 / (1 + std::exp(-static_cast<double>(q_halt)))});
}

std::vector<ArcVotes::Candidate> ArcVotes::ranking(const std::string& task, const ArcGrid& input,
                                                   int64_t copies) const {
  std::vector<Candidate> candidates;
  const auto found = answers_.find({task, input});
  if (found == answers_.end()) return candidates;
  std::map<ArcGrid, size_t> places;
  for (const Answer& answer : found->second) {
    if (copies > 0 && answer.copy >= copies) continue;
    const auto [place, fresh] = places.emplace(answer.grid, candidates.size());
    if (fresh) candidates.push_back({answer.grid, 0, 0});
    ++candidates[place->second].votes;
    candidates[place->second].mean_q += answer.q;
  }
  for (Candidate& candidate : candidates) candidate.mean_q /= static_cast<double>(candidate.votes);
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.votes, a.mean_q) > std::pair(b.votes, b.mean_q);
  });
  return candidates;
}

double ArcVotes::mean_over_tasks(int64_t k, int64_t copies, bool whole) const {
  double sum = 0;
  for (const ArcTask& task : tasks_) {
    size_t solved = 0;
    for (const ArcPair& pair : task.test) {
      const auto candidates = ranking(task.name, pair.input, copies);
      const auto end = candidates.begin() + std::min<int64_t>(k, static_cast<int64_t>(candidates.size()));
      solved += std::any_of(candidates.begin(), end, [&](const Candidate& c) { return c.grid == pair.output; });
    }
    sum += whole ? (solved == task.test.size() ? 1 : 0)
                 : static_cast<double>(solved) / static_cast<double>(task.test.size());
  }
  return tasks_.empty() ? 0 : sum / static_cast<double>(tasks_.size());
}

double ArcVotes::pass(int64_t k, int64_t copies) const {
  return mean_over_tasks(k, copies, /*whole=*/false);
}

double ArcVotes::pass_whole(int64_t k, int64_t copies) const {
  return mean_over_tasks(k, copies, /*whole=*/true);
}

std::string ArcVotes::submission() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const ArcTask& task : tasks_) {
    auto attempts = nlohmann::ordered_json::array();
    for (const ArcPair& pair : task.test) {
      const auto candidates = ranking(task.name, pair.input);
      const ArcGrid none{1, 1, {0}};
      const ArcGrid& first = candidates.empty() ? none : candidates[0].grid;
      const ArcGrid& second = candidates.size() > 1 ? candidates[1].grid : first;
      attempts.push_back({{"attempt_1", grid_json(first)}, {"attempt_2", grid_json(second)}});
    }
    json[task.name] = attempts;
  }
  return python_json(json);
}

}  // namespace hrm::data
