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
inline const ReadWhen kFp8Blocks{"precision.blocks", {"fp8"}, "has no fp8 scales", "set precision.blocks to fp8"};
inline const ReadWhen kNvtx{
    "profiling.nvtx.enabled", {"true"}, "names no ranges", "set profiling.nvtx.enabled to true"};
inline const ReadWhen kMemoryHistory{"profiling.memory", {"true"}, "records nothing", "set profiling.memory to true"};
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

enum class BlockPrecision { same, fp8 };
template <>
struct EnumNames<BlockPrecision> {
  static constexpr const char* kNames[] = {"same", "fp8"};
};

enum class Fp8Gradients { e5m2, e4m3 };
template <>
struct EnumNames<Fp8Gradients> {
  static constexpr const char* kNames[] = {"e5m2", "e4m3"};
};

enum class Fp8Scaling { delayed, current, rows };
template <>
struct EnumNames<Fp8Scaling> {
  static constexpr const char* kNames[] = {"delayed", "current", "rows"};
};

enum class FakeQuantization { none, fp8, int8 };
template <>
struct EnumNames<FakeQuantization> {
  static constexpr const char* kNames[] = {"none", "fp8", "int8"};
};

// Arithmetic. Weights, gradients, optimizer and losses are float32 whatever is chosen here.
struct PrecisionConfig {
  ComputePrecision compute = ComputePrecision::automatic;
  RecursionPrecision recursions = RecursionPrecision::same;
  BlockPrecision blocks = BlockPrecision::same;
  FakeQuantization fake_quantize = FakeQuantization::none;
  Fp8Scaling fp8_scaling = Fp8Scaling::delayed;
  Fp8Gradients fp8_gradients = Fp8Gradients::e5m2;
  std::string fp8_skip;
  int64_t fp8_amax_history = 16;
  int64_t fp8_margin = 0;
  int64_t fp8_warmup_steps = 0;
  double loss_scale = 65536;
  int64_t loss_scale_growth_interval = 2000;

  template <class F>
  static void describe(F&& f) {
    f("compute", &PrecisionConfig::compute, Choice<ComputePrecision>{}, "",
      "arithmetic that the forward and backward pass use: auto = bf16 on a GPU and fp32 on a CPU; tf32 = fp32 whose "
      "matrix products on a GPU round their inputs to TF32; fp32 = exact products",
      OtherName{"runtime.precision"});
    f("recursions", &PrecisionConfig::recursions, Choice<RecursionPrecision>{}, "",
      "arithmetic of matrix products in recursions without gradient: same = as precision.compute; fp8 = e4m3 with "
      "delayed scaling. fp8 needs a GPU of compute capability 8.9 or later; with ops.backend=reference it runs "
      "anywhere, slowly",
      Tasks{"puzzle"}, Resume::free);
    f("blocks", &PrecisionConfig::blocks, Choice<BlockPrecision>{}, "",
      "arithmetic of linear layers in token blocks while they train: same = as precision.compute; fp8 = 8-bit operands "
      "in all three products, but not in heads, embeddings, norms, experts, the reasoning core and layers with biases. "
      "fp8 needs lora.r=0 and a GPU of compute capability 8.9 or later; a CPU runs the reference, slowly",
      Tasks{"language polychromic"}, Resume::free);
    f("fake_quantize", &PrecisionConfig::fake_quantize, Choice<FakeQuantization>{}, "",
      "train for weights in 8 bits (QAT): products of the blocks' linear layers read weights rounded to e4m3 (fp8) or "
      "to integers (int8), both with a scale for each output, and the float32 weights get their gradient; none = "
      "products read the weights themselves. Evaluation, sampling and exports compute with the rounded weights, too",
      Tasks{"language polychromic"}, Resume::free);
    f("fp8_scaling", &PrecisionConfig::fp8_scaling, Choice<Fp8Scaling>{}, "",
      "scales of activations and gradients of fp8 blocks: delayed = from the maxima of earlier steps; current = from "
      "each tensor's own maximum, which reads it once more; rows = each token and each output has a scale of its own, "
      "and weights' gradients are as with current, which takes most time. Weights always have current scales",
      Tasks{"language polychromic"}, Resume::free, kFp8Blocks);
    f("fp8_gradients", &PrecisionConfig::fp8_gradients, Choice<Fp8Gradients>{}, "",
      "format of the gradients of fp8 blocks: e5m2 has a wider range, e4m3 one more bit of mantissa. After a change on "
      "resume, scales start afresh",
      Tasks{"language polychromic"}, Resume::free, kFp8Blocks);
    f("fp8_skip", &PrecisionConfig::fp8_skip, AnyText{}, "",
      "comma-separated globs of linear layers that stay in precision.compute, e.g. *.layers.0.*,*down_proj",
      Tasks{"language polychromic"}, Resume::free, kFp8Blocks);
    f("fp8_amax_history", &PrecisionConfig::fp8_amax_history, IntRange{1, 1024}, "steps",
      "number of past steps whose largest magnitude sets the scale of an fp8 tensor",
      Tasks{"puzzle language polychromic"}, Resume::free, OtherName{"train.fp8.recipe.amax_history_len"},
      kFp8Recursions, kFp8Blocks);
    f("fp8_margin", &PrecisionConfig::fp8_margin, IntRange{0, 8}, "",
      "leave headroom by dividing fp8 scales by 2^margin", Tasks{"puzzle language polychromic"}, Resume::free,
      OtherName{"train.fp8.recipe.margin"}, kFp8Recursions, kFp8Blocks);
    f("fp8_warmup_steps", &PrecisionConfig::fp8_warmup_steps, IntRange{0}, "steps",
      "steps before fp8 begins; until then recursions or blocks run in precision.compute, and blocks gather maxima",
      Tasks{"puzzle language polychromic"}, Resume::free, OtherName{"train.fp8.warmup_steps"}, kFp8Recursions,
      kFp8Blocks);
    f("loss_scale", &PrecisionConfig::loss_scale, RealRange{1, 16777216}, "",
      "scale that multiplies the loss at the start of an fp16 run. It halves when a gradient overflows, and that step "
      "is skipped",
      Resume::free, kScaledLoss);
    f("loss_scale_growth_interval", &PrecisionConfig::loss_scale_growth_interval, IntRange{0, 1 << 24}, "steps",
      "double the loss scale after this many finite steps; 0 = never", Resume::free, kScaledLoss);
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
    f("device", &RuntimeConfig::device, Choice<DeviceChoice>{}, "",
      "device that runs the model; auto = the GPU if a usable one is present");
    f("threads", &RuntimeConfig::threads, IntRange{0, 4096}, "threads", "CPU threads that ATen uses; 0 = one per core");
    f("deterministic", &RuntimeConfig::deterministic, Flag{}, "",
      "give bit-identical results from run to run on the same device and build");
    f("cuda_graphs", &RuntimeConfig::cuda_graphs, Flag{}, "",
      "capture whole training steps and evaluation segments in CUDA graphs and replay them. Results are the same",
      OtherName{"train.use_cuda_graphs"}, OtherName{"use_cudagraphs"});
    f("graph_warmup_steps", &RuntimeConfig::graph_warmup_steps, IntRange{1, 1000}, "steps",
      "eager runs of a step before it is captured", OtherName{"warmup_steps"},
      ReadWhen{"runtime.cuda_graphs", {"true"}, "captures nothing", "set runtime.cuda_graphs to true"});
    f("sdpa", &RuntimeConfig::sdpa, Choice<SdpaBackend>{}, "",
      "backend of scaled dot-product attention if our own kernel does not apply; auto = LibTorch chooses");
    f("cudnn_benchmark", &RuntimeConfig::cudnn_benchmark, Flag{}, "",
      "let cuDNN time its algorithms at the first call of each shape and keep the fastest",
      OtherName{"cudnn_benchmark"}, ReadWhen{"task", {"language"}, "has no convolutions", ""}, kConvolutionEncoder);
    f("allocator", &RuntimeConfig::allocator, Choice<GpuAllocator>{}, "",
      "how GPU memory is allocated: expandable = LibTorch's caching allocator with growing segments; native = the same "
      "with fixed ones; cuda_malloc_async = CUDA's own pool");
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
      "fused = use our kernels where the device has them; reference = use plain ATen everywhere");
    f("attention", &OpsConfig::attention, Choice<AttentionChoice>{}, "",
      "auto = use our kernel for short sequences where it fits, otherwise scaled dot-product attention; with a sliding "
      "window or document masks, kernels that skip what they hide. sdpa = always use scaled dot-product attention, "
      "there with a mask of all pairs of positions",
      ReadWhen{"task", {"puzzle", "language"}, "has an attention of its own", ""},
      ReadWhen{.key = "model.mlp_t",
               .values = {"true"},
               .why = "replaces attention",
               .way_out = "set model.mlp_t to false",
               .unless = true},
      ReadWhen{"ops.backend", {"fused"}, "always takes scaled dot-product attention", "set ops.backend to fused"});
    f("gemm_tuning", &OpsConfig::gemm_tuning, Choice<GemmTuningChoice>{}, "",
      "matrix products that have no kernel of ours: auto = time cuBLASLt's algorithms at the first use of a shape and "
      "keep the fastest in a file; off = cuBLAS chooses. runtime.deterministic also switches it off");
    f("gemm_cache", &OpsConfig::gemm_cache, PathText{}, "",
      "folder that keeps the chosen algorithms; empty = $XDG_CACHE_HOME/hrm_train or ~/.cache/hrm_train");
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
  int64_t tensor = 1;
  bool peer_memory = true;
  int64_t replicas = 1;
  int64_t check_replicas_every = 0;

  template <class F>
  static void describe(F&& f) {
    f("meet_timeout_s", &ParallelConfig::meet_timeout_s, IntRange{1, 86400}, "s",
      "time that ranks wait for each other at the start");
    f("timeout_s", &ParallelConfig::timeout_s, IntRange{1, 86400}, "s",
      "end the training if a rank waits longer for the others in one operation, or for a sign of life");
    f("heartbeat_s", &ParallelConfig::heartbeat_s, RealRange{0.01, 60}, "s",
      "time between two signs of life of a rank; at most half of timeout_s");
    f("interface", &ParallelConfig::interface, AnyText{}, "",
      "network interface that connects CPUs, e.g. eth0; empty = GLOO_SOCKET_IFNAME, or the one that leads to the "
      "rendezvous");
    f("bucket_mb", &ParallelConfig::bucket_mb, IntRange{1, 4096}, "MiB",
      "size of a gradient bucket, which is reduced while the backward pass continues");
    f("reduce", &ParallelConfig::reduce, Choice<ReduceDtype>{}, "",
      "dtype in which gradients are sent and summed; bf16 halves the bytes and rounds every sum to 8 bits");
    f("zero", &ParallelConfig::zero, IntRange{0, 3}, "",
      "ZeRO stage: 0 = every rank holds the whole optimizer state; 1 = moments and EMA are split over ranks, and "
      "weights are gathered after the step; 2 = gradients of models whose blocks run once (HRM) are also freed when "
      "they are reduced, after every micro-batch; 3 = weights of language models are also split, and each block is "
      "gathered when a pass needs it");
    f("tensor", &ParallelConfig::tensor, IntRange{1, 1024}, "ranks",
      "ranks that hold one part of every layer each and read the same rows (tensor and sequence parallelism of "
      "language models); must divide the ranks, heads, key and value heads, and inner width");
    f("peer_memory", &ParallelConfig::peer_memory, Flag{}, "",
      "with parallel.tensor, sums of a decoding step go through memory that the GPUs of a host share; false = by NCCL, "
      "as between GPUs that share none");
    f("replicas", &ParallelConfig::replicas, IntRange{1, 1024}, "groups",
      "groups of ranks that each hold one whole training state; parallel.zero splits it in each group alone, so that "
      "weights travel within a group and only sums of gradients between groups; must divide the ranks that read "
      "different rows");
    f("check_replicas_every", &ParallelConfig::check_replicas_every, IntRange{0}, "steps",
      "compare weights and optimizer state of all ranks this often. They are always compared at the start and before "
      "each checkpoint; 0 = only then");
  }
};

struct ProfilingConfig {
  bool phases = true;
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
  double gpu_health_s = 1;
  bool memory = false;
  int64_t memory_steps = 10;

  template <class F>
  static void describe(F&& f) {
    f("phases", &ProfilingConfig::phases, Flag{}, "",
      "record the time of each phase of every step by the device's clock, replayed steps included: perf/phase/* in "
      "the metrics");
    f("nvtx.enabled", &ProfilingConfig::nvtx_enabled, Flag{}, "",
      "name the phases of a step for Nsight by NVTX ranges");
    f("nvtx.include_data", &ProfilingConfig::nvtx_include_data, Flag{}, "", "also name the loading of batches", kNvtx);
    f("nvtx.include_eval", &ProfilingConfig::nvtx_include_eval, Flag{}, "", "also name evaluations", kNvtx);
    f("trace", &ProfilingConfig::trace, Flag{}, "",
      "record some steps with LibTorch's profiler in <run folder>/traces, one file a rank, for Perfetto and HTA. "
      "Setting trace_steps also switches it on");
    f("trace_steps", &ProfilingConfig::trace_steps, IntRange{0, 1000}, "steps",
      "steps that are recorded; 0 = no trace");
    f("trace_after", &ProfilingConfig::trace_after, IntRange{0}, "steps",
      "steps of this process before the recording starts");
    f("trace_shapes", &ProfilingConfig::trace_shapes, Flag{}, "", "record the input shapes of every operation", kTrace);
    f("trace_flops", &ProfilingConfig::trace_flops, Flag{}, "", "estimate the FLOPs of every operation", kTrace);
    f("trace_memory", &ProfilingConfig::trace_memory, Flag{}, "", "record memory allocations", kTrace);
    f("trace_stacks", &ProfilingConfig::trace_stacks, Flag{}, "",
      "also write <run folder>/traces/trace_rank_N_stacks.txt: C++ call stacks of the operations with their CPU time, "
      "for flame-graph tools",
      kTrace);
    f("nsight_window", &ProfilingConfig::nsight_window, Flag{}, "",
      "tell Nsight where these steps begin and end instead of recording a trace; scripts/capture_nsight.py sets it");
    f("gpu_health_s", &ProfilingConfig::gpu_health_s, RealRange{0, 3600}, "s",
      "ask the driver (NVML) this often for utilisation, power, clocks, temperature, memory and traffic of the GPU, "
      "for "
      "perf/gpu/... and a warning when heat or a power brake throttles the clocks; 0 = never");
    f("memory", &ProfilingConfig::memory, Flag{}, "",
      "record every allocation of GPU memory in <run folder>/memory.pickle, for PyTorch's memory viewer, and log which "
      "operations took most at the peak");
    f("memory_steps", &ProfilingConfig::memory_steps, IntRange{1, 1000000}, "steps",
      "record from the start of this process until the end of this step of it; the recording keeps the last 200,000 "
      "events",
      kMemoryHistory);
  }
};

}  // namespace hrm::config
