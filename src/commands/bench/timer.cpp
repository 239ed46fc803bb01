#include "commands/bench/timer.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/build_config.h"
#include "hrm/runtime/device.h"

#if HRM_WITH_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace hrm::commands {
namespace {

double median_interval(at::Device device, int64_t count, const std::function<void()>& work) {
  Timeline timeline(device);
  timeline.mark();
  for (int64_t i = 0; i < count; ++i) {
    work();
    timeline.mark();
  }
  return spread_of(timeline.intervals_ms()).median;
}

#if HRM_WITH_CUDA
// Ends a capture that failed. The generator of random numbers would continue in the belief that it is in one.
void abandon(at::cuda::CUDAGraph& graph, at::Device device) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {  // says that it failed
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  generator.graphsafe_set_state(at::cuda::detail::createCUDAGenerator(device.index()).graphsafe_get_state());
}

double time_of_graph(at::Device device, double budget_ms, const std::function<void()>& call) {
  at::cuda::CUDAGraph graph;
  const auto capture = [&](int64_t calls) {
    const c10::cuda::CUDAStreamGuard side(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
    for (int i = 0; i < 2; ++i) call();
    synchronize(device);
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      for (int64_t i = 0; i < calls; ++i) call();
    } catch (const c10::Error&) {
      abandon(graph, device);
      throw;
    }
    graph.capture_end();
  };
  capture(1);
  graph.replay();
  const double once = std::max(median_interval(device, 3, [&] { graph.replay(); }), 1e-3);
  // Enough that the start of a replay does not matter, and that a measurement takes a fifth of the budget.
  const auto calls = static_cast<int64_t>(std::clamp(budget_ms / 5 / once, 1.0, 200.0));
  if (calls > 1) {
    graph.reset();
    capture(calls);
    graph.replay();
  }
  return median_interval(device, 5, [&] { graph.replay(); }) / static_cast<double>(calls);
}
#endif

}  // namespace

Spread spread_of(std::vector<double> values) {
  require(!values.empty(), ExitCode::unexpected, "no times were measured");
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(place);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (place - static_cast<double>(low)) * (values[high] - values[low]);
  };
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return {mean, at(0.5), at(0.1), at(0.9), values.front(), values.back()};
}

void Timeline::mark() {
  if (device_.is_cpu()) {
    clock_.push_back(std::chrono::steady_clock::now());
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing
  events_.back().record(guard.getStream(device_));
}

std::vector<double> Timeline::intervals_ms() {
  std::vector<double> out;
  for (size_t i = 1; i < clock_.size(); ++i) {
    out.push_back(std::chrono::duration<double, std::milli>(clock_[i] - clock_[i - 1]).count());
  }
  if (!events_.empty()) events_.back().synchronize();
  for (size_t i = 1; i < events_.size(); ++i) out.push_back(events_[i - 1].elapsedTime(events_[i]));
  return out;
}

double time_of_call(at::Device device, double budget_ms, const std::function<void()>& call) {
#if HRM_WITH_CUDA
  if (device.is_cuda()) return time_of_graph(device, budget_ms, call);
#endif
  call();
  const double once = std::max(median_interval(device, 1, call), 1e-4);
  const auto count = static_cast<int64_t>(std::clamp(budget_ms / once, 3.0, 1000.0));
  return median_interval(device, count, call);
}

DeviceLimits measure_limits(at::Device device, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  DeviceLimits limits;
  const double budget_ms = device.is_cpu() ? 200 : 100;
  {
    const int64_t bytes = device.is_cpu() ? int64_t{64} << 20 : int64_t{1} << 30;
    const at::Tensor from = at::zeros({bytes}, at::device(device).dtype(at::kByte)), to = at::empty_like(from);
    const double ms = time_of_call(device, budget_ms, [&] { to.copy_(from); });
    limits.copy_bytes_per_s = 2e3 * static_cast<double>(bytes) / ms;
  }
  const int64_t n = device.is_cpu() ? 768 : 8192;
  // Random numbers: constant ones switch fewer transistors, and a GPU then runs faster than any real work.
  const at::Tensor a = at::randn({n, n}, at::device(device)).to(dtype),
                   b = at::randn({n, n}, at::device(device)).to(dtype);
  const double ms = time_of_call(device, budget_ms, [&] { at::mm(a, b); });
  limits.matmul_flops_per_s = 2e3 * std::pow(static_cast<double>(n), 3) / ms;
  return limits;
}

}  // namespace hrm::commands
