#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands/bench/timer.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/commands/commands.h"
#include "hrm/ops/selective_scan.h"
#include "hrm/runtime/device.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

int run_bench_scan(const BenchScanOptions& o) {
  require(o.heads % o.groups == 0, ExitCode::usage, "--groups ", o.groups, " does not divide --heads ", o.heads);
  config::Config config;
  config.runtime.device = config::value_of_name<config::DeviceChoice>(o.device);
  const Runtime runtime = start_runtime(config);
  const at::Device device = runtime.device;
  const auto floats = at::device(device).dtype(at::kFloat);
  const auto leaf = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, floats).to(runtime.compute_dtype).requires_grad_();
  };
  const at::Tensor x = leaf({o.rows, o.length, o.heads, o.head_dim});
  const at::Tensor B = leaf({o.rows, o.length, o.groups, o.state}), C = leaf({o.rows, o.length, o.groups, o.state});
  const at::Tensor dt = at::softplus(at::randn({o.rows, o.length, o.heads}, floats) - 3).requires_grad_();
  const at::Tensor A = at::randn({o.heads}, floats).exp().neg().requires_grad_();
  const at::Tensor D = at::ones({o.heads}, floats).requires_grad_();
  const at::Tensor grad_y = at::randn(x.sizes(), floats).to(runtime.compute_dtype);
  const auto forward = [&] { return std::get<0>(ops::ssd_scan(x, dt, A, B, C, D, o.chunk)); };

  Json json{{"device", runtime.device_name},
            {"precision", runtime.precision.name},
            {"rows", o.rows},
            {"length", o.length},
            {"heads", o.heads},
            {"head_dim", o.head_dim},
            {"groups", o.groups},
            {"state", o.state},
            {"chunk", o.chunk}};
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  const double budget_ms = device.is_cpu() ? 500 : 200;
  const double both = time_of_call(device, budget_ms, [&] {
    torch::autograd::grad({forward()}, {x, dt, A, B, C, D}, {grad_y});
  });
  const at::NoGradGuard no_grad;
  const double alone = time_of_call(device, budget_ms, [&] { forward(); });
  const double backward =
      time_of_call(device, budget_ms, [&] { ops::ssd_scan_backward(grad_y, {}, x, dt, A, B, C, D, o.chunk); });
  json["forward_ms"] = alone;
  json["backward_ms"] = backward;
  json["forward_backward_ms"] = both;
  std::cout << std::fixed << std::setprecision(4) << "forward " << alone << " ms, backward " << backward
            << " ms, together " << both << " ms\n";
  if (!o.json_out.empty()) {
    write_text_atomic(o.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
