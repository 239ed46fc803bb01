#include "hrm/runtime/captured_step.h"

#include "hrm/base/error.h"
#include "hrm/base/log.h"

#if HRM_WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace hrm {
namespace {

struct InputFacts {
  const void* data;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;

  explicit InputFacts(const at::Tensor& t)
      : data(t.const_data_ptr()), sizes(t.sizes().vec()), strides(t.strides().vec()), dtype(t.scalar_type()) {}
  bool operator==(const InputFacts&) const = default;
};

std::string shapes_text(const CapturedStep::Key& key) {
  std::string text;
  for (const int64_t size : key) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

}  // namespace

#if HRM_WITH_CUDA

struct CapturedStep::Entry {
  int64_t eager_runs = 0;
  std::vector<InputFacts> inputs;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
};

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// One pool and one side stream for all graphs of the process: they never run at the same time. The cuBLAS workspaces
// that the warm-up makes belong to the side stream, so the capture finds them there.
c10::MempoolId_t shared_pool() {
  static const c10::MempoolId_t pool = at::cuda::graph_pool_handle();
  return pool;
}

c10::cuda::CUDAStream side_stream(c10::DeviceIndex device) {
  static const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
  return stream;
}

void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(then);
}

// What an exception says in one line.
std::string first_line(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known ? known->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// After a failed capture: the allocator stops handing out memory of the pool, and CUDA's error is taken back. The graph
// object stays behind, for LibTorch's list of captures under way still points to it.
void abandon(std::unique_ptr<at::cuda::CUDAGraph> graph, const c10::cuda::CUDAStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream.stream(), &status) != cudaSuccess || status != cudaStreamCaptureStatusNone) {
    cudaGraph_t broken = nullptr;
    cudaStreamEndCapture(stream.stream(), &broken);
    if (broken) cudaGraphDestroy(broken);
  }
  cudaGetLastError();
  allocator::endAllocateToPool(stream.device_index(), shared_pool());
  allocator::releasePool(stream.device_index(), shared_pool());
  graph.release();  // NOLINT(bugprone-unused-return-value)
}

}  // namespace

void CapturedStep::run_aside(const std::function<void()>& work) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(options_.device.index());
  const c10::cuda::CUDAStream side = side_stream(current.device_index());
  order(current, side);
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    work();
  }
  order(side, current);
}

bool CapturedStep::capture(const Key& key, Entry& entry, const std::function<void()>& work) {
  const c10::cuda::CUDAStream side = side_stream(options_.device.index());
  c10::cuda::device_synchronize();
  // The warm-up's temporaries are of no more use: the graph has memory of its own.
  allocator::emptyCache();
  const c10::cuda::CUDAStreamGuard guard(side);
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  try {
    // Thread-local: the prefetch thread may allocate pinned memory meanwhile, which the global mode forbids.
    graph->capture_begin(shared_pool(), cudaStreamCaptureModeThreadLocal);
    work();
    graph->capture_end();
  } catch (const std::exception& error) {
    const std::string reason = first_line(error);
    abandon(std::move(graph), side);
    refuse(cat(shapes_text(key), ": ", reason));
    return false;
  }
  entry.graph = std::move(graph);
  return true;
}

void CapturedStep::run(const Key& key, const std::vector<at::Tensor>& inputs, const std::function<void()>& work) {
  if (!options_.enabled || !options_.device.is_cuda() || !reason_.empty()) return work();
  std::unique_ptr<Entry>& slot = entries_[key];
  if (!slot) slot = std::make_unique<Entry>();
  Entry& entry = *slot;
  if (!entry.graph) {
    if (entry.eager_runs < options_.warmup) {
      ++entry.eager_runs;
      return run_aside(work);
    }
    for (const at::Tensor& input : inputs) entry.inputs.emplace_back(input);
    if (!capture(key, entry, work)) return work();
  }
  require(inputs.size() == entry.inputs.size(), ExitCode::unexpected, options_.name, ": ", inputs.size(),
          " inputs, but ", entry.inputs.size(), " were captured");
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(InputFacts(inputs[i]) == entry.inputs[i], ExitCode::unexpected, options_.name, ": input ", i,
            " is not where or what it was at the capture (", inputs[i].scalar_type(), " ", inputs[i].sizes(), ")");
  }
  entry.graph->replay();
  ++replays_;
}

int64_t graph_pool_bytes_in_use() {
  int64_t bytes = 0;
  for (const auto& segment : allocator::snapshot(shared_pool()).segments) {
    if (segment.owner_private_pool_id == shared_pool()) bytes += static_cast<int64_t>(segment.allocated_size);
  }
  return bytes;
}

#else

struct CapturedStep::Entry {};

void CapturedStep::run(const Key&, const std::vector<at::Tensor>&, const std::function<void()>& work) {
  work();
}

int64_t graph_pool_bytes_in_use() {
  return 0;
}

#endif

CapturedStep::CapturedStep(CapturedStepOptions options) : options_(std::move(options)) {
  if (options_.enabled && options_.device.is_cuda() && !options_.refusal.empty()) refuse(options_.refusal);
}

CapturedStep::~CapturedStep() = default;

void CapturedStep::refuse(std::string reason) {
  reason_ = std::move(reason);
  log::warn(options_.name, ": not captured in a CUDA graph, runs eagerly (", reason_, ")");
}

void CapturedStep::clear() {
  entries_.clear();
}

bool CapturedStep::captured(const Key& key) const {
#if HRM_WITH_CUDA
  const auto found = entries_.find(key);
  return found != entries_.end() && found->second->graph;
#else
  (void)key;
  return false;
#endif
}

}  // namespace hrm
