#include "hrm/tasks/fp8_blocks.h"

#include <ATen/ATen.h>

#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/models/make_language_model.h"
#include "hrm/tasks/reduce_maxima.h"

namespace hrm::tasks {
namespace {

nn::Fp8LinearsOptions options_of(const config::PrecisionConfig& p) {
  return {.history = p.fp8_amax_history,
          .margin = static_cast<double>(p.fp8_margin),
          .e5m2 = p.fp8_gradients == config::Fp8Gradients::e5m2,
          .current = p.fp8_scaling == config::Fp8Scaling::current,
          .rows = p.fp8_scaling == config::Fp8Scaling::rows,
          .skip = p.fp8_skip};
}

// What is told of each layer, in the order of Fp8Linears::saturated() and layer_values().
constexpr const char* kLayerValues[] = {"input/saturated", "gradient/saturated", "input/scale",  "input/amax",
                                        "gradient/scale",  "gradient/amax",      "weight/scale", "weight/amax"};

std::string layer_name(const nn::NamedLinear& layer, const char* value) {
  return cat("fp8/", layer.name, "/", value);
}

}  // namespace

std::vector<nn::NamedLinear> fp8_candidates(torch::nn::Module& model) {
  std::vector<nn::NamedLinear> layers = models::token_linears(model);
  std::erase_if(layers, [](const nn::NamedLinear& layer) { return layer.linear->bias().defined(); });
  return layers;
}

std::vector<nn::NamedLinear> fp8_layers(torch::nn::Module& model, const config::PrecisionConfig& precision) {
  return nn::without_skipped(fp8_candidates(model), precision.fp8_skip);
}

std::vector<std::string> fp8_metric_names(torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const std::string& value : nn::Fp8Linears::value_names()) names.push_back("fp8/" + value);
  for (const char* value : kLayerValues) {
    for (const nn::NamedLinear& layer : fp8_candidates(model)) names.push_back(layer_name(layer, value));
  }
  return names;
}

Fp8Blocks::Fp8Blocks(const config::PrecisionConfig& precision, models::LanguageModel& model, bool keeps_copies)
    : precision_(precision),
      all_(models::token_linears(model).size()),
      with_bias_(all_ - fp8_candidates(model).size()),
      linears_(fp8_candidates(model), options_of(precision)) {
  for (const char* value : kLayerValues) {
    for (const nn::NamedLinear& layer : fp8_candidates(model)) unused_metrics_.insert(layer_name(layer, value));
    for (const nn::NamedLinear& layer : linears_.layers()) unused_metrics_.erase(layer_name(layer, value));
  }
  if (keeps_copies) return;
  std::vector<nn::Linear*> layers;
  for (const nn::NamedLinear& layer : linears_.layers()) layers.push_back(layer.linear);
  model.parameter_set().cast_when_read(layers);
}

void Fp8Blocks::begin_step(int64_t step) {
  const nn::Fp8Mode before = linears_.mode();
  linears_.begin_step(/*warm_up=*/step <= precision_.fp8_warmup_steps);
  changed_mode_ = before != nn::Fp8Mode::off && before != linears_.mode();
  const bool gathered = before == nn::Fp8Mode::gather;
  if (linears_.mode() == nn::Fp8Mode::gather || (linears_.steps() > 0 && !gathered)) return;
  log::info("blocks in fp8 from step ", step, " on, ",
            linears_.steps() > 0 ? "with the scales of the warm-up" : "with scales of the first tensors");
}

void Fp8Blocks::update_scales(parallel::Comm& comm) const {
  if (!comm.alone()) reduce_maxima(comm, linears_.maxima());
  linears_.update_scales();
}

at::Tensor Fp8Blocks::metrics(const parallel::Comm& comm) const {
  // All ranks know the values alike, and each has as many positions as the others.
  const int known = comm.main() ? 1 : 0;
  return at::cat({linears_.values() * known, linears_.saturated().flatten() / comm.ranks(),
                  linears_.layer_values().flatten() * known});
}

NamedValues Fp8Blocks::only_used(NamedValues metrics) const {
  std::erase_if(metrics, [&](const auto& metric) { return unused_metrics_.count(metric.first) > 0; });
  return metrics;
}

std::string Fp8Blocks::describe(const std::string& others, const Runtime& runtime) const {
  std::set<std::string> blocks;
  for (const nn::NamedLinear& layer : linears_.layers()) {
    const size_t number = layer.name.find(".layers.");
    blocks.insert(layer.name.substr(0, layer.name.find('.', number + 8)));
  }
  const config::PrecisionConfig& p = precision_;
  std::string text = cat(linears_.layers().size(), " of ", all_, " linear layers in ", blocks.size(),
                         " blocks train in 8 bits: activations and weights e4m3, gradients ", p.fp8_gradients, ", ",
                         p.fp8_scaling, " scaling");
  if (p.fp8_warmup_steps > 0) text += cat(", after ", p.fp8_warmup_steps, " steps of warm-up");
  text += cat("\n             in ", runtime.compute_dtype == at::kFloat ? "fp32" : "bf16",
              " as before: embeddings, norms, attention, head", others,
              with_bias_ > 0 ? cat(", ", with_bias_, " linear layers with a bias") : std::string());
  if (runtime.device.is_cpu()) text += "\n             the CPU multiplies in fp8 by the reference, which is slow";
  return text;
}

}  // namespace hrm::tasks
