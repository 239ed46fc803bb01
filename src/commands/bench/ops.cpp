// hrm_train bench ops.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "commands/bench/ops_cases.h"
#include "commands/bench/timer.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/runtime/device.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

std::regex filter_of(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::icase);
  } catch (const std::regex_error& e) {
    fail(ExitCode::usage, "--filter '", printable(text), "' is not a regular expression (", e.what(), ")");
  }
}

// Milliseconds of one call with this backend, or why there are none.
struct Timing {
  double ms = 0;
  std::string why_not;
};

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

// A choice of the whole process, until the end of the scope.
template <auto kGet, auto kSet>
class With {
 public:
  using Value = decltype(kGet());
  explicit With(Value value) : before_(kGet()) { kSet(value); }
  ~With() { kSet(before_); }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  Value before_;
};
using WithBackend = With<&ops::backend, &ops::set_backend>;
using WithTuning = With<&ops::gemm_tuning, &ops::set_gemm_tuning>;

Timing time_with(ops::Backend backend, const ops::BenchOp& op, const ops::BenchCall& call, at::Device device,
                 double budget_ms) {
  const WithBackend with_backend(backend);
  Timing timing;
  try {
    timing.ms = time_of_call(device, budget_ms, [&] { ops::call_op(op.name, call.arguments); });
  } catch (const c10::Error& e) {
    timing.why_not = first_line(e);
  }
  return timing;
}

// The ops whose matrix products cuBLASLt does by tuned algorithms, with those that cuBLAS chooses.
Timing time_untuned(const ops::BenchOp& op, const ops::BenchCall& call, at::Device device, double budget_ms) {
  const std::string name = op.name;
  if (ops::gemm_tuning() == ops::GemmTuning::off ||
      (name != "hrm::linear" && name != "hrm::linear_accumulate_" && name.rfind("hrm::linear_grad_x", 0) != 0)) {
    return {0, "no tuned matrix product"};
  }
  const WithTuning untuned(ops::GemmTuning::off);
  return time_with(ops::Backend::fused, op, call, device, budget_ms);
}

void print_head(std::ostream& out) {
  out << "fused: our kernels; untuned: products by the algorithm that cuBLAS chooses; reference: plain ATen; ratio: "
         "reference / fused\n"
      << std::left << std::setw(34) << "op" << std::setw(14) << "shapes of" << std::right << std::setw(10) << "fused ms"
      << std::setw(12) << "untuned ms" << std::setw(14) << "reference ms" << std::setw(9) << "ratio" << std::setw(9)
      << "GB/s" << std::setw(11) << "of a copy" << std::setw(10) << "TFLOP/s" << std::setw(14) << "of a product"
      << "\n";
}

void print_op_row(const Json& row, std::ostream& out) {
  const auto text = [&](const char* key, double factor, int digits, const char* unit) {
    return row[key].is_number() ? metrics::fixed(factor * row[key].get<double>(), digits) + unit : std::string("-");
  };
  out << std::left << std::setw(34) << row["op"].get<std::string>() << std::setw(14) << row["shape"].get<std::string>()
      << std::right << std::setw(10) << text("fused_ms", 1, 4, "") << std::setw(12) << text("untuned_ms", 1, 4, "")
      << std::setw(14) << text("reference_ms", 1, 4, "") << std::setw(9) << text("ratio", 1, 2, "x") << std::setw(9)
      << text("bytes_per_s", 1e-9, 0, "") << std::setw(11) << text("of_copy", 100, 0, "%") << std::setw(10)
      << text("flops_per_s", 1e-12, 2, "") << std::setw(14) << text("of_matmul", 100, 0, "%") << "\n"
      << std::flush;
}

Json measure_op(const ops::BenchOp& op, const ops::BenchShape& shape, const ops::BenchCall& call, at::Device device,
                const DeviceLimits& limits) {
  const double budget_ms = device.is_cpu() ? 100 : 20;
  const double bytes = least_bytes(op.name, call.arguments, ops::call_op(op.name, call.arguments));
  const Timing fused = time_with(ops::Backend::fused, op, call, device, budget_ms);
  const Timing untuned = time_untuned(op, call, device, budget_ms);
  const Timing reference = time_with(ops::Backend::reference, op, call, device, budget_ms);
  Json row{{"op", op.name}, {"shape", shape.name}};
  const auto rate = [&](double amount) { return amount / (fused.ms * 1e-3); };
  const bool timed = fused.why_not.empty();
  row["fused_ms"] = timed ? Json(fused.ms) : Json();
  row["untuned_ms"] = untuned.why_not.empty() ? Json(untuned.ms) : Json();
  row["reference_ms"] = reference.why_not.empty() ? Json(reference.ms) : Json();
  row["ratio"] = timed && reference.why_not.empty() ? Json(reference.ms / fused.ms) : Json();
  row["least_bytes"] = bytes;
  row["bytes_per_s"] = timed ? Json(rate(bytes)) : Json();
  row["of_copy"] = timed ? Json(rate(bytes) / limits.copy_bytes_per_s) : Json();
  row["flops"] = call.flops;
  row["flops_per_s"] = timed && call.flops > 0 ? Json(rate(call.flops)) : Json();
  row["of_matmul"] = timed && call.flops > 0 ? Json(rate(call.flops) / limits.matmul_flops_per_s) : Json();
  if (!timed) row["why_not_fused"] = fused.why_not;
  if (!reference.why_not.empty()) row["why_not_reference"] = reference.why_not;
  return row;
}

}  // namespace

int run_bench_ops(const BenchOpsOptions& options) {
  const std::regex filter = filter_of(options.filter);
  config::Config config;
  config.runtime.device = config::value_of_name<config::DeviceChoice>(options.device);
  config.precision.compute = config::value_of_name<config::ComputePrecision>(options.precision);
  const Runtime runtime = start_runtime(config);
  const WithTuning tuned(runtime.device.is_cuda() ? ops::GemmTuning::auto_ : ops::GemmTuning::off);
  // The algorithms that runs take, but no new ones for them: what is timed here is nobody's choice.
  ops::set_gemm_cache("", /*writes=*/false);
  const at::NoGradGuard no_grad;
  const DeviceLimits limits = measure_limits(runtime.device, runtime.compute_dtype);

  Json json;
  json["device"] = runtime.device_name;
  json["precision"] = runtime.precision.name;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["copy_bytes_per_s"] = limits.copy_bytes_per_s;
  json["matmul_flops_per_s"] = limits.matmul_flops_per_s;
  json["ops"] = Json::array();
  std::cout << "device " << runtime.device_name << ", " << runtime.precision.name << "; limits measured now: copy "
            << metrics::fixed(limits.copy_bytes_per_s * 1e-9, 0) << " GB/s, matrix product "
            << metrics::fixed(limits.matmul_flops_per_s * 1e-12, 2) << " TFLOP/s\n";
  bool headed = false;
  for (const ops::BenchShape& shape : bench_shapes(runtime.device.is_cpu())) {
    for (const ops::BenchOp& op : ops::bench_ops()) {
      if (!shape.has(op.name) || !std::regex_search(cat(op.name, " ", shape.name), filter)) continue;
      if (!headed) print_head(std::cout);
      headed = true;
      try {
        const ops::BenchCall call = op.make(shape, runtime.device, runtime.compute_dtype);
        if (call.arguments.empty()) continue;
        json["ops"].push_back(measure_op(op, shape, call, runtime.device, limits));
        print_op_row(json["ops"].back(), std::cout);
      } catch (const c10::OutOfMemoryError& e) {
        log::warn(op.name, " with the shapes of ", shape.name, ": not enough memory");
      }
    }
  }
  require(headed, ExitCode::usage, "--filter '", printable(options.filter),
          "' fits no op; without it all are measured");
  if (ops::gemm_tuning() != ops::GemmTuning::off) std::cout << "matrix products: " << ops::gemm_tuning_text() << "\n";
  if (!options.json_out.empty()) {
    write_text_atomic(options.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
