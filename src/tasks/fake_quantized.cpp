#include "tasks/fake_quantized.h"

#include <set>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/models/make_language_model.h"
#include "hrm/ops/weight8.h"

namespace hrm::tasks {

using config::FakeQuantization;

std::string describe_fake_quantize(const config::Config& config, torch::nn::Module& model) {
  const FakeQuantization format = config.precision.fake_quantize;
  if (format == FakeQuantization::none) return "";
  return cat("\nweights      ", models::token_linears(model).size(),
             " linear layers of the blocks compute with weights ", "rounded to ",
             format == FakeQuantization::fp8 ? "e4m3" : "int8", ", with a scale for each output");
}

void round_exported(std::vector<std::pair<std::string, at::Tensor>>& weights, torch::nn::Module& model,
                    const config::Config& config, const ExportRequest& request) {
  const FakeQuantization format = config.precision.fake_quantize;
  if (format == FakeQuantization::none) return;
  if (request.dtype == "fp8" || request.dtype == "int8") {
    require(request.dtype == name_of(format), ExitCode::usage, "--dtype ", request.dtype,
            " is not the format that the run was trained for (precision.fake_quantize = ", format, "); use --dtype ",
            format);
    return;
  }
  std::set<std::string> names;
  for (const nn::NamedLinear& layer : models::token_linears(model)) names.insert(layer.name + ".weight");
  for (auto& [name, tensor] : weights) {
    if (names.erase(name) == 0) continue;
    const ops::Weight8 rounded = ops::quantize_weight8(tensor.to(at::kFloat), models::fake_quantized_type(format));
    tensor = ops::dequantize_weight8(rounded, at::kFloat);
  }
  require(names.empty(), ExitCode::unexpected, "no weight is called '", names.empty() ? "" : *names.begin(),
          "', which precision.fake_quantize rounds");
}

}  // namespace hrm::tasks
