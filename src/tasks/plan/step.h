#pragma once
// What the estimates of the tasks (tasks/*/plan.h) are made with.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/tasks/plan.h"

namespace hrm::tasks {

// Measured on one H200 with `bench step`; see docs/profiling.md.
inline constexpr double kMatmulShare = 0.62;         // of the data sheet's FLOP/s in a step's matrix products
inline constexpr double kAttentionShare = 0.13;      // the same for sequences of about a hundred positions
inline constexpr double kLongAttentionShare = 0.35;  // and for long ones
inline constexpr double kMemoryShare = 0.75;         // of the data sheet's bytes per second
inline constexpr double kStepOverheadMs = 0.5;       // starts of kernels, losses, metrics
// What the allocator (expandable segments) reserves for `tensors` bytes at the peak. Above the tensors were 30 to 110
// MiB below 9 GiB, 65 MiB of 44.5 GiB, 180 MiB of 33.8 GiB and 500 MiB of 54.7 GiB.
inline double reserved_bytes(double tensors) {
  return 1.005 * tensors + 100.0 * (1 << 20);
}
inline constexpr double kContext = 800.0 * (1 << 20);
// Of each communicator of NCCL 2.28.9, with two ranks of a host. A rank with one had 0.75 GiB more in use than a rank
// alone, one with two 1.75 GiB.
inline constexpr double kCommBytes = 850.0 * (1 << 20);

// Of language models. Fractions of the data sheet's FLOP/s, from the step of the plain decoder in
// docs/measurements/log.md: 10.77 TFLOP of products in 16.2 ms, and 1.1 TFLOP of causal attention, both passes, in
// 4.6 ms.
inline constexpr double kProductShare = 0.67;
inline constexpr double kCausalShare = 0.24;
// Of causal attention with heads of 64, whose exponentials take as long as its products, whatever a row's length; and
// of heads of 128, for which `keys` are seen by a query on average. Fitted to 0.19 at 256 keys (4 x 512 tokens of
// Qwen3-0.6B's shape) and 0.43 at 2,048 (the decoder of 1.26 billion parameters), both in docs/measurements/log.md.
inline double causal_share(double head_dim, double keys) {
  const double wide = 0.525 * keys / (keys + 451);
  return std::lerp(kCausalShare, wide, std::clamp(head_dim / 64 - 1, 0.0, 1.0));
}
// Of products in 8 bits: a share of the data sheet's bf16 FLOP/s, which is half of its 8-bit rate. Fitted to the steps
// of four decoders (tests/commands/language_plan_test.cpp). By themselves such products reach 1.07 to 1.28.
inline constexpr double kFp8Share = 1.26;
// The least time of a product, an attention or a pass over memory inside a graph. Fitted to the step of the HRM
// language model with experts in docs/measurements/log.md, whose core is 72 blocks over few vectors, one after the
// other.
inline constexpr double kLeastMs = 0.007;

// Bytes held at a moment of the step, and the moment at which they were most.
class Ledger {
 public:
  void take(double bytes) {
    now_ += bytes;
    if (now_ <= peak_) return;
    peak_ = now_;
    moment_ = moment;
    kept_at_peak_ = kept;
  }
  void give(double bytes) { now_ -= bytes; }

  std::string moment;  // what is continuing, to be set by the walk
  double kept = 0;     // of what is held: activations that the backward pass needs

  double peak() const { return peak_; }
  double kept_at_peak() const { return kept_at_peak_; }
  const std::string& peak_moment() const { return moment_; }

 private:
  double now_ = 0, peak_ = 0, kept_at_peak_ = 0;
  std::string moment_;
};

// Of the compute dtype, bytes.
inline double element_size(const config::Config& config) {
  const config::ComputePrecision compute = config.precision.compute;
  return compute == config::ComputePrecision::fp32 || compute == config::ComputePrecision::tf32 ? 4 : 2;
}

// Of products and of the copies that they read. By default the CPU computes in float32, a GPU in bfloat16.
inline at::ScalarType planned_compute_dtype(const config::Config& config) {
  using config::ComputePrecision;
  const ComputePrecision compute = config.precision.compute;
  const bool on_cpu = config.runtime.device == config::DeviceChoice::cpu;
  if (element_size(config) == 4 || (compute == ComputePrecision::automatic && on_cpu)) return at::kFloat;
  return compute == ComputePrecision::fp16 ? at::kHalf : at::kBFloat16;
}

inline std::string percent(double share) {
  return cat(std::lround(100 * share), " %");
}

// How much longer products take than in 16 bits.
inline double product_slowdown(const config::Config& config) {
  if (element_size(config) < 4) return 1;
  return config.precision.compute == config::ComputePrecision::tf32 ? 2 : 16;
}

// Times by the slower of computing and moving, product by product.
class TimeModel {
 public:
  explicit TimeModel(const GpuFacts& gpu) : gpu_(gpu) {}
  double product(double rows, double in, double out, double moved_bytes) const {
    return slower(2 * rows * in * out, kMatmulShare, moved_bytes);
  }
  double slower(double flops, double share, double bytes) const {
    return 1e3 * std::max(flops / (share * gpu_.flops), bytes / (kMemoryShare * gpu_.bytes_per_s));
  }
  double moved(double bytes) const { return 1e3 * bytes / (kMemoryShare * gpu_.bytes_per_s); }
  // The parts' sums of this rank's rows are added to its residual stream in one pass (ops::add_pieces). `values`: of
  // the rows of all parts, `size` bytes each.
  double pieces(double parts, double values, double size) const {
    return std::max(kLeastMs, moved(size * values * (1 + 2 / parts)));
  }

 private:
  const GpuFacts& gpu_;
};

}  // namespace hrm::tasks
