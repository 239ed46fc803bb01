#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "hrm/base/text.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/tasks/contrastive_progress.h"

namespace hrm::tasks {
namespace {

std::string scientific(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1e", value);
  return text.data();
}

}  // namespace

void RelaxationProgress::measure(int64_t step, const models::GeometricMemory& memory,
                                 const models::GeometricMemory::Window& window, const at::Tensor& inputs,
                                 const at::Tensor& targets, int64_t steps) {
  const at::NoGradGuard no_grad;
  const int64_t rows = std::min(inputs.size(0), kRows), parts = std::min(steps, kParts);
  const at::Tensor chosen = targets.narrow(0, 0, rows);
  const auto drive = memory.drive(window, inputs.narrow(0, 0, rows));
  ops::GeometricState state = memory.free_phase(window, drive, 0);
  const at::Tensor free = at::zeros({rows}, state.o.options());  // signs of no nudge
  std::vector<int64_t> ends;
  std::vector<at::Tensor> values;
  for (int64_t part = 0; part <= parts; ++part) {
    const int64_t end = steps * part / parts, count = ends.empty() ? 0 : end - ends.back();
    if (count > 0) state = memory.nudged_phase(window, drive, state, chosen, free, count);
    ends.push_back(end);
    values.push_back(at::cross_entropy_loss(memory.logits(state.o), chosen));
    values.push_back(window.cells.mean() * state.speed.mean() / static_cast<double>(std::max<int64_t>(count, 1)));
    values.push_back(state.residual.max());
  }
  reader_.push(step, at::stack(values));
  ends_.push_back(std::move(ends));
}

std::vector<std::string> RelaxationProgress::take() {
  std::vector<std::string> lines;
  while (const auto entry = reader_.pop(/*wait=*/false)) {
    std::string line = cat("step ", entry->tag, ", relaxation");
    const std::vector<int64_t>& ends = ends_.front();
    for (size_t i = 0; i < ends.size(); ++i) {
      line += cat(i == 0 ? " " : " | ", ends[i], ": loss ", metrics::fixed(entry->values[3 * i], 4));
      if (i == 0) continue;
      line += cat(" lior ", metrics::fixed(entry->values[3 * i + 1], 4), " residual ",
                  scientific(entry->values[3 * i + 2]));
    }
    lines.push_back(std::move(line));
    ends_.pop_front();
  }
  return lines;
}

}  // namespace hrm::tasks
