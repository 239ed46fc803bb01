// hrm_train bench contrastive: how close the contrastive gradient is to the one of backprop.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
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
#include "hrm/nn/init.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/layered_task.h"
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

// A rule, its steps, and beta as a share of its limit.
struct GradientRequest {
  ContrastiveRule rule = ContrastiveRule::symmetric;
  int64_t steps = 64, nudge_steps = 64;
  double share = 0;
};

// A model of either kind with a batch.
struct ContrastiveSubject {
  config::Config config;
  Runtime runtime;
  std::string weights = "initial weights";
  bool half_values = false;
  data::VectorBatch batch;
  std::shared_ptr<torch::nn::Module> model;
  double limit = 0;                                                    // of beta
  std::function<models::Gradients(const GradientRequest&)> gradients;  // in the order of the model's parameters
  std::function<models::Gradients()> backprop;                         // through the configured free steps
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

void to_double(torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.set_data(parameter.to(at::kDouble));
  for (at::Tensor& buffer : model.buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(at::kDouble));
  }
}

constexpr double kNoCap = std::numeric_limits<float>::max();  // of beta: shares of its limit are asked for

// Weights of the checkpoint, and double precision, where they are asked for.
void finish_model(ContrastiveSubject& subject, const std::optional<tasks::StoredModel>& stored, bool float64) {
  if (stored) {
    const tasks::ChosenWeights chosen = tasks::choose_weights(stored->folder, "auto");
    tasks::ModelState state(*subject.model);
    checkpoint::load_weights_into(stored->folder, state, chosen.set());
    subject.weights = stored->folder.string();
  }
  if (float64) to_double(*subject.model);
}

void open_memory(ContrastiveSubject& subject, const tasks::ContrastiveSource& data,
                 const std::optional<tasks::StoredModel>& stored, bool float64) {
  const config::ContrastiveConfig& c = subject.config.contrastive;
  models::GeometricMemoryOptions options = tasks::memory_options(c, data.features(), data.classes());
  options.beta_cap = kNoCap;
  const auto memory = std::make_shared<models::GeometricMemory>(options, static_cast<uint64_t>(subject.config.run.seed),
                                                                subject.runtime.device);
  subject.model = memory;
  finish_model(subject, stored, float64);
  subject.half_values = !float64 && tasks::half_values(c, subject.runtime.device);
  const bool half = subject.half_values;
  const auto gradients = [memory, half, c, batch = subject.batch](const GradientRequest& request) {
    const at::NoGradGuard no_grad;
    models::GeometricMemory::Window window = memory->prepare(half);
    window.rates.select(0, 2).mul_(request.share / memory->options().beta_share);
    objectives::ContrastiveOptions how = tasks::contrastive_options(c);
    how.rule = request.rule;
    how.steps = request.steps;
    how.nudge_steps = request.nudge_steps;
    // Where a training refuses a nudge for each row, all have one.
    how.beta_per_row = c.beta_per_row && request.share <= config::kMostShareOfRows;
    return objectives::contrastive_gradients(*memory, window, batch.inputs, batch.labels, how).gradients;
  };
  subject.gradients = gradients;
  subject.backprop = [gradients, steps = c.tbptt_window_steps] {
    return gradients({.rule = ContrastiveRule::backprop, .steps = steps, .nudge_steps = steps});
  };
  const at::NoGradGuard no_grad;
  subject.limit = memory->prepare(half).rates.select(0, 2).item<double>() / options.beta_share;
}

void open_layered(ContrastiveSubject& subject, const tasks::ContrastiveSource& data,
                  const std::optional<tasks::StoredModel>& stored, bool float64) {
  const models::LayeredEnergyOptions options =
      tasks::layered_options(subject.config.contrastive, data.features(), data.classes());
  const auto network = std::make_shared<models::LayeredEnergy>(options, subject.runtime.device);
  nn::init_parameters(*network, static_cast<uint64_t>(subject.config.run.seed));
  network->project_();
  subject.model = network;
  finish_model(subject, stored, float64);
  subject.gradients = [network, batch = subject.batch,
                       device = subject.runtime.device](const GradientRequest& request) {
    // The same weights with other free steps.
    models::LayeredEnergyOptions options = network->options();
    options.free_steps = request.steps;
    models::LayeredEnergy other(options, device);
    std::vector<at::Tensor> own = other.parameters();
    const std::vector<at::Tensor> weights = network->parameters();
    for (size_t i = 0; i < own.size(); ++i) own[i].set_data(weights[i].detach());
    return other
        .contrast(batch.inputs, batch.labels,
                  {.beta = kNoCap,
                   .share = request.share,
                   .one_sided = request.rule == ContrastiveRule::one_sided,
                   .steps = request.nudge_steps})
        .gradients;
  };
  subject.backprop = [network, batch = subject.batch] {
    return network->backprop(batch.inputs, batch.labels).gradients;
  };
  subject.limit = network->beta_of({.beta = kNoCap, .share = 1}).item<double>();
}

ContrastiveSubject open_subject(const BenchContrastiveOptions& o) {
  ContrastiveSubject subject;
  std::optional<tasks::StoredModel> stored;
  config::Config& config = subject.config;
  config = configuration(o, stored);
  require(config.task == "contrastive", ExitCode::usage,
          "bench contrastive compares gradients of task=contrastive; the configuration says task=", config.task,
          "; give --config configs/contrastive/digits_cpu.json or --checkpoint RUN");
  require(config.contrastive.mode == config::ContrastiveMode::sound, ExitCode::usage,
          "bench contrastive compares gradients; contrastive.mode is 'compat', whose window has none");
  if (o.float64) {
    require(config.runtime.device != config::DeviceChoice::cuda, ExitCode::usage,
            "--float64 computes on the CPU; runtime.device is 'cuda'; set runtime.device to cpu");
    config.runtime.device = config::DeviceChoice::cpu;
  }
  subject.runtime = ops::start_runtime_and_ops(config);
  const at::Device device = subject.runtime.device;
  const tasks::ContrastiveData data = tasks::open_contrastive_data(config, device);
  const int64_t rows = std::min(o.rows, data.train->rows());
  subject.batch = data::empty_vector_batch(rows, data.train->features(), device);
  data::VectorStream stream(data.train->rows(),
                            {.seed = static_cast<uint64_t>(config.run.seed), .global_batch_size = rows},
                            /*position=*/0);
  data.train->load(stream.next().rows, subject.batch);
  if (o.float64) subject.batch.inputs = subject.batch.inputs.to(at::kDouble);
  if (config.contrastive.network == config::ContrastiveNetwork::layered) {
    open_layered(subject, *data.train, stored, o.float64);
  } else {
    open_memory(subject, *data.train, stored, o.float64);
  }
  return subject;
}

// A rule's gradient beside backprop's: of each parameter, and of all but the readout, whose gradient is exact.
class GradientComparison {
 public:
  explicit GradientComparison(const ContrastiveSubject& subject) : subject_(subject), exact_(subject.backprop()) {
    for (const auto& parameter : subject.model->named_parameters()) names_.push_back(parameter.key());
    for (size_t i = 0; i < exact_.size(); ++i) {
      if (exact_[i].defined() && exact_[i].numel() > 0) compared_.push_back(i);
    }
  }

  // null for a parameter whose exact gradient is zero.
  Json compare(const GradientRequest& request) const {
    const models::Gradients ours = subject_.gradients(request);
    Json cosines = Json::object(), errors = Json::object();
    Sums all;
    for (const size_t i : compared_) {
      Sums one;
      one.add(ours[i], exact_[i]);
      if (!names_[i].starts_with("readout")) all.add(ours[i], exact_[i]);
      cosines[names_[i]] = one.cosine();
      errors[names_[i]] = one.relative_error();
    }
    cosines[kAll] = all.cosine();
    errors[kAll] = all.relative_error();
    return {{"rule", request.rule == ContrastiveRule::symmetric ? "symmetric" : "one_sided"},
            {"share", request.share},
            {"steps", request.steps},
            {"nudge_steps", request.nudge_steps},
            {"cosine", cosines},
            {"relative_error", errors}};
  }

  const std::vector<std::string>& names() const { return names_; }

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

  const ContrastiveSubject& subject_;
  models::Gradients exact_;
  std::vector<std::string> names_;
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
  const GradientComparison comparison(subject);
  const objectives::ContrastiveOptions configured = tasks::contrastive_options(c);

  Json json{{"device", subject.runtime.device_name},
            {"dtype", o.float64 ? "float64" : "float32"},
            {"values", subject.half_values ? "float16" : (o.float64 ? "float64" : "float32")},
            {"model", tasks::task_spec(subject.config).model_name(subject.config)},
            {"weights", subject.weights},
            {"rows", subject.batch.labels.size(0)},
            {"parameters", comparison.names()},
            {"reference_steps", c.tbptt_window_steps},
            {"beta_limit", subject.limit}};
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  std::cout << "device        " << subject.runtime.device_name << ", " << json["dtype"].get<std::string>()
            << (subject.half_values ? ", values in float16" : "") << "\n"
            << "model         " << json["model"].get<std::string>() << "\n"
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
      over_beta.push_back(comparison.compare(
          {.rule = rule, .steps = configured.steps, .nudge_steps = configured.nudge_steps, .share = share}));
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
          comparison.compare({.rule = rule, .steps = steps.free, .nudge_steps = steps.nudged, .share = c.beta_share}));
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
