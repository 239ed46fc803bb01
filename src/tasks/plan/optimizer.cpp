#include "tasks/plan/optimizer.h"

#include <algorithm>

#include "hrm/optim/groups.h"
#include "hrm/optim/muon.h"
#include "hrm/optim/optimizer.h"
#include "tasks/plan/step.h"

namespace hrm::tasks {
namespace {

constexpr double kIterations = 5;  // of Newton and Schulz

// Bytes of an elementwise update per value: gradient, weight and moments in fp32, the copy in two bytes, the average.
double bytes_per_value(size_t moments, bool average) {
  return 14 + 8 * static_cast<double>(moments) + (average ? 8 : 0);
}

void add_muon(const PlanInput& in, PlannedOptimizer& out) {
  const bool average = in.config.optim.ema > 0;
  out.exact_products = in.config.optim.muon_precision == config::MuonPrecision::fp32;
  const double size = out.exact_products ? 4 : 2;
  double values = 0;
  for (const auto& [rows, columns] : in.muon_matrices) {
    const auto k = static_cast<double>(std::min(rows, columns)), l = static_cast<double>(std::max(rows, columns));
    values += k * l;
    out.products += kIterations * (4 * k * k * l + 2 * k * k * k);
    out.products_moved += kIterations * size * (6 * k * l + 7 * k * k);
  }
  const double others = static_cast<double>(in.parameters) - values;
  out.state = 4 * values + 8 * others;
  out.note = "momentum of matrices, two moments of the others, in fp32";
  out.buffers = static_cast<double>(optim::muon_buffer_bytes(in.muon_matrices, in.config.optim.muon_precision));
  // Of a matrix: the direction from gradient and momentum, its norm and quotient, its way back, and the update.
  out.moved = values * (20 + 8 + size + (out.exact_products ? 0 : 6) + bytes_per_value(0, average)) +
              others * bytes_per_value(2, average);
}

}  // namespace

PlannedOptimizer planned_optimizer(const PlanInput& in) {
  PlannedOptimizer out;
  if (in.config.optim.name == config::OptimizerKind::muon) {
    add_muon(in, out);
    out.moved -= 2 * static_cast<double>(in.cast_parameters());
    return out;
  }
  const size_t moments = optim::moment_names(in.config.optim.name).size();
  const auto n = static_cast<double>(in.parameters);
  out.state = 4 * static_cast<double>(moments) * n;
  out.note = moments == 1 ? "one moment in fp32" : "two moments in fp32";
  out.moved = n * bytes_per_value(moments, in.config.optim.ema > 0) - 2 * static_cast<double>(in.cast_parameters());
  return out;
}

void add_optimizer_times(const PlanInput& in, Plan& plan) {
  const PlannedOptimizer optimizer = planned_optimizer(in);
  const TimeModel clock(in.gpu);
  const int shards = in.config.parallel.zero > 0 ? in.place().size(parallel::Axis::shard) : 1;
  plan.time.push_back({"optimizer", clock.moved(optimizer.moved / shards),
                       shards > 1 ? "one pass over this rank's share of weights, gradients and moments"
                                  : "one pass over weights, gradients and moments"});
  if (optimizer.products > 0) {
    const double exact = optimizer.exact_products ? 16 : 1;
    plan.time.push_back({"Muon's products",
                         clock.slower(exact * optimizer.products, kMatmulShare, optimizer.products_moved),
                         "five iterations over each matrix"});
  }
}

void add_muon_matrix(PlanInput& in, const std::string& name, at::IntArrayRef sizes,
                     const optim::GroupDefaults& defaults) {
  const optim::GroupOptions options{.rules = optim::parse_group_rules(in.config.optim.groups),
                                    .defaults = defaults,
                                    .muon = in.config.optim.name == config::OptimizerKind::muon};
  if (!optim::is_muon_matrix(name, static_cast<int64_t>(sizes.size()), options)) return;
  const auto stack = defaults.stacks.find(name);
  const int64_t matrices = stack == defaults.stacks.end() ? 1 : stack->second, rows = sizes[0] / matrices;
  for (int64_t i = 0; i < matrices; ++i) {
    in.muon_matrices.emplace_back(rows, c10::multiply_integers(sizes) / sizes[0]);
  }
}

}  // namespace hrm::tasks
