// hrm_train bench contrastive: how close the contrastive gradient is to the one of backprop.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <vector>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/config/load.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;
using objectives::ContrastiveRule;

constexpr double kShares[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8};  // of the nudge's limit
struct PhaseSteps {
  int64_t free, nudged;
};
constexpr PhaseSteps kSteps[] = {{64, 64}, {16, 16}, {64, 8}, {64, 4}, {8, 8}};

struct ContrastiveSubject {
  config::Config config;
  Runtime runtime;
  std::string weights = "initial weights";
  std::shared_ptr<models::GeometricMemory> memory;
  data::VectorBatch batch;
};

config::Config configuration(const BenchContrastiveOptions& o, std::optional<tasks::StoredModel>& stored) {
  if (!o.checkpoint.empty()) {
    require(o.config_files.empty(), ExitCode::usage, "give --checkpoint or --config, not both");
    stored = tasks::open_stored_model(o.checkpoint, o.overrides);
    return stored->config;
  }
  config::LoadedConfig loaded = config::load_config(o.config_files, o.overrides);
  config::Config& config = loaded.config;
  config.train.steps = std::max(config.train.steps, config.optim.warmup_steps + 1);  // need not be given
  if (config.task == "contrastive") tasks::check_settings(loaded);
  return config;
}

void to_double(models::GeometricMemory& memory) {
  for (at::Tensor& parameter : memory.parameters()) parameter.set_data(parameter.to(at::kDouble));
  for (at::Tensor& buffer : memory.buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(at::kDouble));
  }
}

ContrastiveSubject open_subject(const BenchContrastiveOptions& o) {
  ContrastiveSubject subject;
  std::optional<tasks::StoredModel> stored;
  config::Config& config = subject.config;
  config = configuration(o, stored);
  require(config.task == "contrastive", ExitCode::usage,
          "bench contrastive compares gradients of task=contrastive; the configuration says task=", config.task);
  if (o.float64) {
    require(config.runtime.device != config::DeviceChoice::cuda, ExitCode::usage,
            "--float64 computes on the CPU; runtime.device is 'cuda'; set runtime.device to cpu");
    config.runtime.device = config::DeviceChoice::cpu;
  }
  subject.runtime = ops::start_runtime_and_ops(config);
  const at::Device device = subject.runtime.device;
  const tasks::ContrastiveData data = tasks::open_contrastive_data(config, device);
  models::GeometricMemoryOptions options =
      tasks::memory_options(config.contrastive, data.train->features(), data.train->classes());
  options.beta_cap = std::numeric_limits<float>::max();  // shares of the limit are asked for
  subject.memory = std::make_shared<models::GeometricMemory>(options, static_cast<uint64_t>(config.run.seed), device);
  if (stored) {
    const tasks::ChosenWeights chosen = tasks::choose_weights(stored->folder, "auto");
    tasks::ModelState state(*subject.memory);
    checkpoint::load_weights_into(stored->folder, state, chosen.set());
    subject.weights = stored->folder.string();
  }
  const int64_t rows = std::min(o.rows, data.train->rows());
  subject.batch = data::empty_vector_batch(rows, data.train->features(), device);
  data::VectorStream stream(data.train->rows(),
                            {.seed = static_cast<uint64_t>(config.run.seed), .global_batch_size = rows},
                            /*position=*/0);
  data.train->load(stream.next().rows, subject.batch);
  if (o.float64) {
    to_double(*subject.memory);
    subject.batch.inputs = subject.batch.inputs.to(at::kDouble);
  }
  return subject;
}

// A rule's gradient beside backprop's: of each parameter, and of all but the readout, whose gradient is exact.
class GradientComparison {
 public:
  explicit GradientComparison(const ContrastiveSubject& subject, bool half_values)
      : subject_(subject), half_values_(half_values) {
    const int64_t steps = subject.config.contrastive.tbptt_window_steps;
    exact_ = gradients({.rule = ContrastiveRule::backprop, .steps = steps, .nudge_steps = steps}, 0);
    for (size_t i = 0; i < exact_.size(); ++i) {
      if (exact_[i].defined() && exact_[i].numel() > 0) compared_.push_back(i);
    }
  }

  // At 0-dim beta = share of the limit. null for a parameter whose exact gradient is zero.
  Json compare(const objectives::ContrastiveOptions& options, double share) const {
    const models::Gradients ours = gradients(options, share);
    Json cosines = Json::object(), errors = Json::object();
    Sums all;
    for (const size_t i : compared_) {
      const std::string& name = subject_.memory->parameter_names()[i];
      Sums one;
      one.add(ours[i], exact_[i]);
      if (!name.starts_with("readout")) all.add(ours[i], exact_[i]);
      cosines[name] = one.cosine();
      errors[name] = one.relative_error();
    }
    cosines[kAll] = all.cosine();
    errors[kAll] = all.relative_error();
    return {{"rule", options.rule == ContrastiveRule::symmetric ? "symmetric" : "one_sided"},
            {"share", share},
            {"steps", options.steps},
            {"nudge_steps", options.nudge_steps},
            {"cosine", cosines},
            {"relative_error", errors}};
  }

  double limit() const {
    return subject_.memory->prepare(half_values_).rates.select(0, 2).item<double>() /
           subject_.memory->options().beta_share;
  }

  static constexpr const char* kAll = "all but the readout";

 private:
  struct Sums {
    void add(const at::Tensor& ours, const at::Tensor& exact) {
      const at::Tensor b = exact.to(at::kDouble), a = ours.defined() ? ours.to(at::kDouble) : at::zeros_like(b);
      product += (a * b).sum().item<double>();
      own += a.square().sum().item<double>();
      other += b.square().sum().item<double>();
      difference += (a - b).square().sum().item<double>();
    }
    Json cosine() const { return own > 0 && other > 0 ? Json(product / std::sqrt(own * other)) : Json(); }
    Json relative_error() const { return other > 0 ? Json(std::sqrt(difference / other)) : Json(); }

    double product = 0, own = 0, other = 0, difference = 0;
  };

  models::Gradients gradients(const objectives::ContrastiveOptions& options, double share) const {
    const at::NoGradGuard no_grad;
    const models::GeometricMemory& memory = *subject_.memory;
    models::GeometricMemory::Window window = memory.prepare(half_values_);
    if (share > 0) window.rates.select(0, 2).mul_(share / memory.options().beta_share);
    return objectives::contrastive_gradients(memory, window, subject_.batch.inputs, subject_.batch.labels, options)
        .gradients;
  }

  const ContrastiveSubject& subject_;
  bool half_values_;
  models::Gradients exact_;
  std::vector<size_t> compared_;
};

// One row for each parameter, one column for each comparison. `what`: "cosine" or "relative_error".
void print_table(std::ostream& out, const std::string& title, const std::vector<std::string>& columns,
                 const std::vector<Json>& comparisons, const char* what) {
  out << "\n" << title << "\n" << std::left << std::setw(24) << "" << std::right;
  for (const std::string& column : columns) out << std::setw(11) << column;
  out << "\n";
  const bool is_cosine = std::string(what) == "cosine";
  for (const auto& [name, first] : comparisons.front()[what].items()) {
    out << std::left << std::setw(24) << name << std::right;
    for (const Json& comparison : comparisons) {
      const Json& value = comparison[what][name];
      std::ostringstream text;
      text << std::setprecision(is_cosine ? 6 : 1) << (is_cosine ? std::fixed : std::scientific);
      if (value.is_null()) {
        text << '-';
      } else {
        text << value.get<double>();
      }
      out << std::setw(11) << text.str();
    }
    out << "\n";
  }
}

const char* rule_text(ContrastiveRule rule) {
  return rule == ContrastiveRule::symmetric ? "symmetric" : "one-sided";
}

}  // namespace

int run_bench_contrastive(const BenchContrastiveOptions& o) {
  const ContrastiveSubject subject = open_subject(o);
  const config::ContrastiveConfig& c = subject.config.contrastive;
  const bool half = !o.float64 && tasks::half_values(c, subject.runtime.device);
  const GradientComparison comparison(subject, half);
  const objectives::ContrastiveOptions configured = tasks::contrastive_options(c);

  Json json{{"device", subject.runtime.device_name},
            {"dtype", o.float64 ? "float64" : "float32"},
            {"values", half ? "float16" : (o.float64 ? "float64" : "float32")},
            {"weights", subject.weights},
            {"rows", subject.batch.labels.size(0)},
            {"parameters", subject.memory->parameter_names()},
            {"reference_steps", c.tbptt_window_steps},
            {"beta_limit", comparison.limit()}};
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  std::cout << "device        " << subject.runtime.device_name << ", " << json["dtype"].get<std::string>()
            << (half ? ", values in float16" : "") << "\n"
            << "weights       " << subject.weights << "\n"
            << "batch         " << json["rows"] << " training rows\n"
            << "reference     backprop through " << c.tbptt_window_steps << " free steps\n"
            << "limit of beta " << std::setprecision(4) << json["beta_limit"].get<double>() << "\n";

  const auto print = [&](const std::string& title, const std::vector<std::string>& columns,
                         const std::vector<Json>& all) {
    print_table(std::cout, title + ": cosine", columns, all, "cosine");
    print_table(std::cout, title + ": relative error", columns, all, "relative_error");
    std::cout << std::flush;
  };
  for (const ContrastiveRule rule : {ContrastiveRule::symmetric, ContrastiveRule::one_sided}) {
    std::vector<Json> over_beta;
    std::vector<std::string> columns;
    for (const double share : kShares) {
      columns.push_back(Json(share).dump());
      over_beta.push_back(
          comparison.compare({.rule = rule, .steps = configured.steps, .nudge_steps = configured.nudge_steps}, share));
      json["over_beta"].push_back(over_beta.back());
    }
    print(cat(rule_text(rule), ", ", configured.steps, " free and ", configured.nudge_steps,
              " nudged steps, over beta / limit"),
          columns, over_beta);
  }
  for (const ContrastiveRule rule : {ContrastiveRule::symmetric, ContrastiveRule::one_sided}) {
    std::vector<Json> over_steps;
    std::vector<std::string> columns;
    for (const PhaseSteps steps : kSteps) {
      columns.push_back(cat(steps.free, ", ", steps.nudged));
      over_steps.push_back(
          comparison.compare({.rule = rule, .steps = steps.free, .nudge_steps = steps.nudged}, c.beta_share));
      json["over_steps"].push_back(over_steps.back());
    }
    print(cat(rule_text(rule), ", beta / limit ", Json(c.beta_share).dump(), ", over free and nudged steps"), columns,
          over_steps);
  }
  if (!o.json_out.empty()) {
    write_text_atomic(o.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
