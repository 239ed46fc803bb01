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
#include "hrm/ops/linear.h"
#include "hrm/ops/moe.h"
#include "hrm/runtime/device.h"
#include "ops/moe/moe_impl.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

// A layer with a softmax router, as a model has it: masters in float32 with their gradients, copies to compute with.
struct Layer {
  at::Tensor x, grad_out;
  at::Tensor router_master, up_master, down_master, router, up, down;
  int64_t experts, top_k;
  ops::ExpertActivation activation;

  Layer(const BenchMoeOptions& o, at::Device device, at::ScalarType dtype)
      : experts(o.experts),
        top_k(o.top_k),
        activation(o.activation == "swiglu" ? ops::ExpertActivation::swiglu : ops::ExpertActivation::gelu) {
    const auto floats = at::device(device).dtype(at::kFloat);
    const auto leaf = [&](at::IntArrayRef sizes, int64_t inner) {
      at::Tensor weight = (at::randn(sizes, floats) / std::sqrt(static_cast<double>(inner))).requires_grad_();
      weight.mutable_grad() = at::zeros(sizes, floats);
      return weight;
    };
    x = at::randn({o.tokens, o.dim}, floats).to(dtype).requires_grad_();
    grad_out = at::randn({o.tokens, o.dim}, floats).to(dtype);
    router_master = leaf({o.experts, o.dim}, o.dim);
    up_master = leaf({o.experts, gated() ? 2 * o.width : o.width, o.dim}, o.dim);
    down_master = leaf({o.experts, o.dim, o.width}, o.width);
    const auto copy = [&](const at::Tensor& master) {
      return dtype == at::kFloat ? master : master.detach().to(dtype);
    };
    router = copy(router_master);
    up = copy(up_master);
    down = copy(down_master);
  }

  bool gated() const { return activation == ops::ExpertActivation::swiglu; }

  at::Tensor forward() const {
    const ops::MoeGate gate =
        ops::moe_gate(ops::moe_router(x, router, router_master), top_k, ops::MoeScore::softmax, /*normalize=*/false);
    // As the first micro-batch of a training step does it: the gradients of the step before are overwritten.
    return ops::moe_experts(x, gate.weights, ops::moe_plan(gate.ids, experts), up, up_master, down, down_master,
                            up_master.grad(), down_master.grad(), at::ones({2}, at::kBool), activation);
  }
};

}  // namespace

int run_bench_moe(const BenchMoeOptions& o) {
  require(o.top_k <= o.experts, ExitCode::usage, "--top-k ", o.top_k, " is more than --experts ", o.experts);
  config::Config config;
  config.runtime.device = config::value_of_name<config::DeviceChoice>(o.device);
  config.precision.compute = config::value_of_name<config::ComputePrecision>(o.precision);
  const Runtime runtime = start_runtime(config);
  const at::Device device = runtime.device;
  const Layer layer(o, device, runtime.compute_dtype);
  const double budget_ms = device.is_cpu() ? 500 : 200;

  Json json{{"device", runtime.device_name},
            {"precision", runtime.precision.name},
            {"tokens", o.tokens},
            {"dim", o.dim},
            {"width", o.width},
            {"experts", o.experts},
            {"top_k", o.top_k},
            {"activation", o.activation}};
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  const double step =
      time_of_call(device, budget_ms, [&] { torch::autograd::grad({layer.forward()}, {layer.x}, {layer.grad_out}); });
  const double forward = time_of_call(device, budget_ms, [&] {
    const at::NoGradGuard no_grad;
    layer.forward();
  });
  // Two products forward, four backward; that of up counts double where it has a gate.
  const double product = 2.0 * static_cast<double>(o.tokens * o.top_k * o.dim) * static_cast<double>(o.width);
  json["forward_ms"] = forward;
  json["forward_backward_ms"] = step;
  json["flops_per_s"] = (layer.gated() ? 9 : 6) * product / (step * 1e-3);
  json["way"] = ops::moe_experts_way(device, runtime.compute_dtype, o.dim, o.width);
  std::cout << "by " << json["way"].get<std::string>() << ", " << runtime.precision.name << "\n";
  std::cout << std::fixed << std::setprecision(4) << "forward " << forward << " ms, with backward " << step << " ms, "
            << std::setprecision(0) << json["flops_per_s"].get<double>() * 1e-12
            << " TFLOP/s in the experts' products\n";

  const at::NoGradGuard no_grad;
  const at::Tensor x = layer.x.detach(), logits = ops::moe_router(x, layer.router, layer.router_master);
  const ops::MoeGate gate = ops::moe_gate(logits, o.top_k, ops::MoeScore::softmax, false);
  const ops::MoePlan plan = ops::moe_plan(gate.ids, o.experts);
  const at::Tensor &tiles = plan.tile_experts, &starts = plan.starts;
  const at::Tensor xp = ops::moe_gather(x, plan.picks, starts, o.top_k);
  const bool gated = layer.gated();
  const auto up = [&] {
    return gated ? ops::moe_up_swiglu(xp, layer.up, tiles, starts, /*keep=*/true)
                 : ops::moe_up(xp, layer.up, tiles, starts);
  };
  const auto [act, kept] = up();
  const at::Tensor y = ops::moe_linear(act, layer.down, tiles, starts, false);
  const at::Tensor grad_y = std::get<0>(ops::moe_combine_backward(layer.grad_out, y, plan.picks, starts, gate.weights));
  const auto up_backward = [&, &kept = kept] {
    return gated ? ops::moe_up_swiglu_backward(grad_y, layer.down, kept, tiles, starts)
                 : ops::moe_up_backward(grad_y, layer.down, kept, tiles, starts);
  };
  const at::Tensor grad_pre = up_backward();
  const at::Tensor up_grad = layer.up_master.grad(), down_grad = layer.down_master.grad();
  json["parts_ms"] = Json::object();
  const auto part = [&](const std::string& name, int products, const std::function<void()>& call) {
    const double ms = time_of_call(device, budget_ms / 4, call);
    json["parts_ms"][name] = ms;
    std::cout << "  " << std::left << std::setw(36) << name << std::right << std::setprecision(4) << std::setw(9) << ms
              << " ms";
    if (products > 0) {
      std::cout << std::setprecision(0) << std::setw(7) << products * product / (ms * 1e9) << " TFLOP/s";
    }
    std::cout << "\n";
  };
  part("router", 0, [&] { ops::moe_router(x, layer.router, layer.router_master); });
  part("gate", 0, [&] { ops::moe_gate(logits, o.top_k, ops::MoeScore::softmax, false); });
  part("plan", 0, [&] { ops::moe_plan(gate.ids, o.experts); });
  part("gather", 0, [&] { ops::moe_gather(x, plan.picks, starts, o.top_k); });
  const std::string up_name = "up and " + o.activation;
  const int of_up = gated ? 2 : 1;
  part(up_name, of_up, up);
  part("down", 1, [&] { ops::moe_linear(act, layer.down, tiles, starts, false); });
  part("combine", 0, [&] { ops::moe_combine(y, plan.rows, gate.weights); });
  part("combine, backward", 0, [&] { ops::moe_combine_backward(layer.grad_out, y, plan.picks, starts, gate.weights); });
  part("gradient of down", 1, [&] { ops::moe_accumulate_(down_grad, grad_y, act, tiles, starts, true); });
  part(up_name + ", backward", 1, up_backward);
  part("gradient of up", of_up, [&] { ops::moe_accumulate_(up_grad, grad_pre, xp, tiles, starts, true); });
  part("gradient of the experts' input", of_up, [&] { ops::moe_linear(grad_pre, layer.up, tiles, starts, true); });
  part("gather, backward", 0, [&] { ops::moe_combine(xp, plan.rows, {}); });
  if (!o.json_out.empty()) {
    write_text_atomic(o.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
