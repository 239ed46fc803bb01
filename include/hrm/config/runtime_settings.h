#pragma once
// Settings of the arithmetic, the device, the kernels, the ranks and the profilers: sections precision, runtime, ops,
// parallel and profiling.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

inline const ReadWhen kConvolutionEncoder{"lm.encoder", {"mamba2"}, "has no convolutions", "set lm.encoder to mamba2"};
inline const ReadWhen kScaledLoss{
    "precision.compute", {"fp16"}, "needs no scaled loss", "set precision.compute to fp16"};
inline const ReadWhen kFp8Recursions{
    "precision.recursions", {"fp8"}, "has no fp8 scales", "set precision.recursions to fp8"};
inline const ReadWhen kNvtx{
    "profiling.nvtx.enabled", {"true"}, "names no ranges", "set profiling.nvtx.enabled to true"};
inline const ReadWhen kTrace{"profiling.trace", {"true"}, "records nothing", "set profiling.trace to true"};

enum class ComputePrecision { automatic, bf16, fp16, tf32, fp32 };
template <>
struct EnumNames<ComputePrecision> {
  static constexpr const char* kNames[] = {"auto", "bf16", "fp16", "tf32", "fp32"};
};

enum class RecursionPrecision { same, fp8 };
template <>
struct EnumNames<RecursionPrecision> {
  static constexpr const char* kNames[] = {"same", "fp8"};
};

// Arithmetic. Weights, gradients, optimizer and losses are float32 whatever is chosen here.
struct PrecisionConfig {
  ComputePrecision compute = ComputePrecision::automatic;
  RecursionPrecision recursions = RecursionPrecision::same;
  int64_t fp8_amax_history = 16;
  int64_t fp8_margin = 0;
  int64_t fp8_warmup_steps = 0;
  double loss_scale = 65536;
  int64_t loss_scale_growth_interval = 2000;

  template <class F>
  static void describe(F&& f) {
    f("compute", &PrecisionConfig::compute, Choice<ComputePrecision>{}, "",
      "arithmetic of the forward and backward pass; auto = bf16 on a GPU, fp32 on the CPU; tf32 = fp32 whose matrix "
      "products on a GPU round their inputs to TF32; fp32 = exact products",
      OtherName{"runtime.precision"});
    f("recursions", &PrecisionConfig::recursions, Choice<RecursionPrecision>{}, "",
      "matrix products of the recursions that are not differentiated; fp8 = e4m3 with scales by delayed maximum (on a "
      "GPU of compute capability 8.9 or later; with ops.backend=reference anywhere, slowly), same = as compute",
      Tasks{"puzzle"}, Resume::free);
    f("fp8_amax_history", &PrecisionConfig::fp8_amax_history, IntRange{1, 1024}, "steps",
      "the scale of an fp8 tensor follows the largest magnitude of so many past steps", Tasks{"puzzle"}, Resume::free,
      OtherName{"train.fp8.recipe.amax_history_len"}, kFp8Recursions);
    f("fp8_margin", &PrecisionConfig::fp8_margin, IntRange{0, 8}, "",
      "headroom of the fp8 scales: divide them by 2^margin", Tasks{"puzzle"}, Resume::free,
      OtherName{"train.fp8.recipe.margin"}, kFp8Recursions);
    f("fp8_warmup_steps", &PrecisionConfig::fp8_warmup_steps, IntRange{0}, "steps",
      "optimizer steps before fp8 begins; their recursions run as precision.compute", Tasks{"puzzle"}, Resume::free,
      OtherName{"train.fp8.warmup_steps"}, kFp8Recursions);
    f("loss_scale", &PrecisionConfig::loss_scale, RealRange{1, 16777216}, "",
      "scale of the loss at the start of an fp16 run; it halves when a gradient overflows, and that step is left out",
      Resume::free, kScaledLoss);
    f("loss_scale_growth_interval", &PrecisionConfig::loss_scale_growth_interval, IntRange{0, 1 << 24}, "steps",
      "finite steps after which the loss scale doubles; 0 = it never grows", Resume::free, kScaledLoss);
  }
};

enum class DeviceChoice { automatic, cpu, cuda };
template <>
struct EnumNames<DeviceChoice> {
  static constexpr const char* kNames[] = {"auto", "cpu", "cuda"};
};

enum class SdpaBackend { automatic, cudnn, flash, efficient, math };
template <>
struct EnumNames<SdpaBackend> {
  static constexpr const char* kNames[] = {"auto", "cudnn", "flash", "efficient", "math"};
};

enum class GpuAllocator { expandable, native, cuda_malloc_async };
template <>
struct EnumNames<GpuAllocator> {
  static constexpr const char* kNames[] = {"expandable", "native", "cuda_malloc_async"};
};

struct RuntimeConfig {
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;
  bool deterministic = false;
  bool cuda_graphs = true;
  int64_t graph_warmup_steps = 3;
  SdpaBackend sdpa = SdpaBackend::automatic;
  bool cudnn_benchmark = false;
  GpuAllocator allocator = GpuAllocator::expandable;

  template <class F>
  static void describe(F&& f) {
    f("device", &RuntimeConfig::device, Choice<DeviceChoice>{}, "", "auto = the GPU when there is a usable one");
    f("threads", &RuntimeConfig::threads, IntRange{0, 4096}, "threads", "CPU threads; 0 = one per core");
    f("deterministic", &RuntimeConfig::deterministic, Flag{}, "",
      "bit-identical results from run to run on the same device and build");
    f("cuda_graphs", &RuntimeConfig::cuda_graphs, Flag{}, "",
      "capture whole training steps and evaluation segments in CUDA graphs and replay them; the results are the same",
      OtherName{"train.use_cuda_graphs"}, OtherName{"use_cudagraphs"});
    f("graph_warmup_steps", &RuntimeConfig::graph_warmup_steps, IntRange{1, 1000}, "steps",
      "eager runs of a step before it is captured", OtherName{"warmup_steps"},
      ReadWhen{"runtime.cuda_graphs", {"true"}, "captures nothing", "set runtime.cuda_graphs to true"});
    f("sdpa", &RuntimeConfig::sdpa, Choice<SdpaBackend>{}, "",
      "backend of scaled dot-product attention where our own kernel does not apply; auto = LibTorch chooses");
    f("cudnn_benchmark", &RuntimeConfig::cudnn_benchmark, Flag{}, "",
      "cuDNN tries its algorithms at the first call of each shape and keeps the fastest", OtherName{"cudnn_benchmark"},
      ReadWhen{"task", {"language"}, "has no convolutions", ""}, kConvolutionEncoder);
    f("allocator", &RuntimeConfig::allocator, Choice<GpuAllocator>{}, "",
      "GPU memory: expandable = LibTorch's caching allocator with growing segments, native = with fixed ones, "
      "cuda_malloc_async = CUDA's own pool");
  }
};

enum class OpsBackend { fused, reference };
template <>
struct EnumNames<OpsBackend> {
  static constexpr const char* kNames[] = {"fused", "reference"};
};

enum class AttentionChoice { automatic, sdpa };
template <>
struct EnumNames<AttentionChoice> {
  static constexpr const char* kNames[] = {"auto", "sdpa"};
};

enum class GemmTuningChoice { automatic, off };
template <>
struct EnumNames<GemmTuningChoice> {
  static constexpr const char* kNames[] = {"auto", "off"};
};

struct OpsConfig {
  OpsBackend backend = OpsBackend::fused;
  AttentionChoice attention = AttentionChoice::automatic;
  GemmTuningChoice gemm_tuning = GemmTuningChoice::automatic;
  std::string gemm_cache = "";

  template <class F>
  static void describe(F&& f) {
    f("backend", &OpsConfig::backend, Choice<OpsBackend>{}, "",
      "fused = our kernels where the device has them; reference = plain ATen everywhere");
    f("attention", &OpsConfig::attention, Choice<AttentionChoice>{}, "",
      "auto = our kernel for short sequences where it fits, else scaled dot-product attention; sdpa = always the "
      "latter",
      ReadWhen{"task", {"puzzle"}, "has an attention of its own", ""},
      ReadWhen{.key = "model.mlp_t",
               .values = {"true"},
               .why = "replaces attention",
               .way_out = "set model.mlp_t to false",
               .unless = true},
      ReadWhen{"ops.backend", {"fused"}, "always takes scaled dot-product attention", "set ops.backend to fused"});
    f("gemm_tuning", &OpsConfig::gemm_tuning, Choice<GemmTuningChoice>{}, "",
      "matrix products of a GPU that none of our kernels does: auto = cuBLASLt's algorithms are timed at the first use "
      "of a shape and the fastest is kept in a file; off, and with runtime.deterministic = cuBLAS chooses");
    f("gemm_cache", &OpsConfig::gemm_cache, PathText{}, "",
      "folder of the file with the chosen algorithms; empty = $XDG_CACHE_HOME/hrm_train, or ~/.cache/hrm_train");
  }
};

enum class ReduceDtype { fp32, bf16 };
template <>
struct EnumNames<ReduceDtype> {
  static constexpr const char* kNames[] = {"fp32", "bf16"};
};

// Several processes as one training (parallel/launch.h says how they are started).
struct ParallelConfig {
  int64_t meet_timeout_s = 300;
  int64_t timeout_s = 120;
  double heartbeat_s = 1;
  std::string interface = "";
  int64_t bucket_mb = 8;
  ReduceDtype reduce = ReduceDtype::fp32;
  int64_t zero = 0;
  int64_t check_replicas_every = 0;

  template <class F>
  static void describe(F&& f) {
    f("meet_timeout_s", &ParallelConfig::meet_timeout_s, IntRange{1, 86400}, "s",
      "how long the ranks wait for each other at the start");
    f("timeout_s", &ParallelConfig::timeout_s, IntRange{1, 86400}, "s",
      "how long a rank waits for the others in one operation, or for a sign of life, before the training ends");
    f("heartbeat_s", &ParallelConfig::heartbeat_s, RealRange{0.01, 60}, "s",
      "each rank shows the others so often that it lives; at most half of timeout_s");
    f("interface", &ParallelConfig::interface, AnyText{}, "",
      "network interface for connections between CPUs, e.g. eth0; empty = GLOO_SOCKET_IFNAME, else the one that leads "
      "to the meeting place");
    f("bucket_mb", &ParallelConfig::bucket_mb, IntRange{1, 4096}, "MiB",
      "gradients are summed in parts of about this size, while the backward pass goes on");
    f("reduce", &ParallelConfig::reduce, Choice<ReduceDtype>{}, "",
      "what gradients are sent and summed in; bf16 halves the bytes and rounds every sum to 8 bits");
    f("zero", &ParallelConfig::zero, IntRange{0, 2}, "",
      "ZeRO stage: 0 = every rank has the whole optimizer state; 1 = each has and updates its share of moments and "
      "averages, the weights are gathered after the step; 2 = gradients of a model whose blocks run once (HRM) live no "
      "longer than their reduction, too, which follows every micro-batch");
    f("check_replicas_every", &ParallelConfig::check_replicas_every, IntRange{0}, "steps",
      "compare weights and optimizer state of all ranks every so many steps, at the start and before each checkpoint; "
      "0 = only at these two");
  }
};

struct ProfilingConfig {
  bool nvtx_enabled = false;
  bool nvtx_include_data = true;
  bool nvtx_include_eval = true;
  bool trace = false;
  int64_t trace_steps = 5;
  int64_t trace_after = 20;
  bool trace_shapes = true;
  bool trace_flops = false;
  bool trace_memory = false;
  bool trace_stacks = false;
  bool nsight_window = false;

  template <class F>
  static void describe(F&& f) {
    f("nvtx.enabled", &ProfilingConfig::nvtx_enabled, Flag{}, "", "name the phases of a step for Nsight (NVTX ranges)");
    f("nvtx.include_data", &ProfilingConfig::nvtx_include_data, Flag{}, "", "also the loading of batches", kNvtx);
    f("nvtx.include_eval", &ProfilingConfig::nvtx_include_eval, Flag{}, "", "also evaluations", kNvtx,
      ReadWhen{"task", {"puzzle"}, "names no ranges of evaluations", ""});
    f("trace", &ProfilingConfig::trace, Flag{}, "",
      "record some steps with LibTorch's profiler into <run folder>/trace.json (Perfetto, scripts/trace_table); giving "
      "trace_steps alone switches it on, too");
    f("trace_steps", &ProfilingConfig::trace_steps, IntRange{0, 1000}, "steps", "steps to record; 0 = no trace");
    f("trace_after", &ProfilingConfig::trace_after, IntRange{0}, "steps",
      "steps of this process before the recording starts");
    f("trace_shapes", &ProfilingConfig::trace_shapes, Flag{}, "", "record the shapes of every operation's inputs",
      kTrace);
    f("trace_flops", &ProfilingConfig::trace_flops, Flag{}, "", "estimate every operation's FLOPs", kTrace);
    f("trace_memory", &ProfilingConfig::trace_memory, Flag{}, "", "record allocations", kTrace);
    f("trace_stacks", &ProfilingConfig::trace_stacks, Flag{}, "",
      "also write <run folder>/trace_stacks.txt: the C++ call stacks of the operations with their time on the CPU, as "
      "flame-graph tools read them",
      kTrace);
    f("nsight_window", &ProfilingConfig::nsight_window, Flag{}, "",
      "instead of recording a trace, tell Nsight where these steps begin and end (scripts/capture_nsight.py sets it)");
  }
};

}  // namespace hrm::config
