#pragma once
// Times of work on a device.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

namespace hrm::commands {

struct Spread {
  double mean = 0, median = 0, p10 = 0, p90 = 0, min = 0, max = 0;
};
// Of at least one value; percentiles by linear interpolation.
Spread spread_of(std::vector<double> values);

// Marks on the timeline of the device's current stream (on the CPU: of the clock). Marking does not wait.
class Timeline {
 public:
  explicit Timeline(at::Device device) : device_(device) {}
  void mark();
  // Milliseconds between neighbouring marks; waits for the last one.
  std::vector<double> intervals_ms();

 private:
  at::Device device_;
  std::vector<c10::Event> events_;
  std::vector<std::chrono::steady_clock::time_point> clock_;
};

// Milliseconds of one call, the median of several measurements that take about `budget_ms` together. On a GPU the calls
// are replayed from a captured graph, so launch time does not count. Work that cannot be captured throws c10::Error.
double time_of_call(at::Device device, double budget_ms, const std::function<void()>& call);

// What this device reaches: the rates that an op's are compared with.
struct DeviceLimits {
  double copy_bytes_per_s = 0;    // of a large copy, read and written bytes together
  double matmul_flops_per_s = 0;  // of a large matrix product in `dtype` of random numbers
};
DeviceLimits measure_limits(at::Device device, at::ScalarType dtype);

}  // namespace hrm::commands
