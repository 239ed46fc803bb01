#include "hrm/runtime/captured_step.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/build_config.h"

#if HRM_WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "hrm/runtime/streams.h"
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

}  // namespace

#if HRM_WITH_CUDA

namespace {

std::string shapes_text(const CapturedStep::Key& key) {
  std::string text;
  for (const int64_t size : key) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

namespace allocator = c10::cuda::CUDACachingAllocator;

// The memory pool that all graphs of a device share while there are any. LibTorch frees it with the last graph, and the
// next graph starts a new pool.
struct Pool {
  c10::MempoolId_t id{0, 0};
  int64_t graphs = 0;
};
struct Pools {
  std::mutex mutex;
  std::map<c10::DeviceIndex, Pool> of_device;
};
Pools& pools() {
  static Pools instance;
  return instance;
}

std::atomic<uint64_t> launches{0};

// A capture from begin() to finish(), and the graph that it gave. (at::cuda::CUDAGraph does the same, but leaves
// the allocators and the random generator in the state of a capture when one fails.)
class Graph {
 public:
  explicit Graph(const c10::cuda::CUDAStream& stream) : stream_(stream) {
    const std::lock_guard lock(pools().mutex);
    Pool& pool = pools().of_device[stream.device_index()];
    if (pool.graphs == 0) pool.id = at::cuda::graph_pool_handle();
    pool_ = pool.id;
    ++pool.graphs;
  }

  void begin() {
    // Memory of the pool for what is allocated inside the capture, on whichever thread (autograd's is another).
    allocator::beginAllocateToPool(stream_.device_index(), pool_, [this](cudaStream_t asking) {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      unsigned long long id = 0;
      return cudaStreamGetCaptureInfo(asking, &status, &id) == cudaSuccess && status == cudaStreamCaptureStatusActive &&
             id == capture_id_;
    });
    began_ = capturing_ = true;
    // Thread-local: the prefetch thread may allocate pinned memory meanwhile, which the global mode forbids.
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream_.stream(), cudaStreamCaptureModeThreadLocal));
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamGetCaptureInfo(stream_.stream(), &status, &capture_id_));
  }

  void finish() {
    const cudaError_t ended = end();
    C10_CUDA_CHECK(ended);
    // The first for the cudaMallocAsync allocator, whose allocations are part of the graph. The second lets compute
    // kernels go before those of the communication, whatever stream the graph is launched in.
    C10_CUDA_CHECK(cudaGraphInstantiateWithFlags(
        &exec_, graph_, cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority));
    cudaGraphDestroy(graph_);
    graph_ = nullptr;
  }

  void replay() {
    ++launches;
    C10_CUDA_CHECK(cudaGraphLaunch(exec_, c10::cuda::getCurrentCUDAStream(stream_.device_index()).stream()));
  }

  ~Graph() {
    if (capturing_) end();
    if (graph_) cudaGraphDestroy(graph_);
    if (exec_) cudaGraphExecDestroy(exec_);
    cudaGetLastError();  // of an abandoned capture
    if (began_) allocator::releasePool(stream_.device_index(), pool_);
    const std::lock_guard lock(pools().mutex);
    --pools().of_device[stream_.device_index()].graphs;
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

 private:
  cudaError_t end() {
    capturing_ = false;
    const cudaError_t result = cudaStreamEndCapture(stream_.stream(), &graph_);
    allocator::endAllocateToPool(stream_.device_index(), pool_);
    return result;
  }

  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
  unsigned long long capture_id_ = 0;
  bool began_ = false, capturing_ = false;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& then) {
  c10::cuda::CUDAEvent event;
  event.record(first);
  event.block(then);
}

// What an exception says in one line.
std::string first_line_of(const std::exception& error) {
  const auto* known = dynamic_cast<const c10::Error*>(&error);
  const std::string text = known ? known->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

// The cuBLAS workspaces that a warm-up makes belong to this stream, so that the capture finds them there.
c10::cuda::CUDAStream compute_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  const std::lock_guard lock(mutex);
  if (const auto found = streams.find(device); found != streams.end()) return found->second;
  return streams.emplace(device, c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device)).first->second;
}

c10::cuda::CUDAStream communication_stream(c10::DeviceIndex device) {
  return c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
}

// LibTorch's pools do not reach the highest priority.
c10::cuda::CUDAStream urgent_communication_stream(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) {
    const c10::cuda::CUDAGuard guard(device);
    int lowest = 0, highest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  }
  return c10::cuda::getStreamFromExternal(stream, device);
}

struct CapturedStep::Entry {
  int64_t eager_runs = 0;
  std::vector<InputFacts> inputs;
  std::unique_ptr<Graph> graph;
};

void CapturedStep::run_aside(const std::function<void()>& work) {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream(options_.device.index());
  const c10::cuda::CUDAStream side = compute_stream(current.device_index());
  order(current, side);
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    work();
  }
  order(side, current);
}

bool CapturedStep::capture(const Key& key, Entry& entry, const std::function<void()>& work) {
  const c10::cuda::CUDAStream side = compute_stream(options_.device.index());
  c10::cuda::device_synchronize();
  // The warm-up's temporaries are of no more use: the graph has memory of its own.
  allocator::emptyCache();
  const c10::cuda::CUDAStreamGuard guard(side);
  std::unique_ptr<Graph> graph;
  try {
    graph = std::make_unique<Graph>(side);
    graph->begin();
    work();
    graph->finish();
  } catch (const std::exception& error) {
    refuse(cat(shapes_text(key), shapes_text(key).empty() ? "" : ": ", first_line_of(error)));
    return false;
  }
  entry.graph = std::move(graph);
  return true;
}

void CapturedStep::run(const Key& key, const std::vector<at::Tensor>& inputs, const std::function<void()>& work) {
  ++eager_runs_;  // unless it is replayed
  if (!options_.enabled || !options_.device.is_cuda()) return work();
  std::unique_ptr<Entry>& slot = entries_[key];
  if (!slot) slot = std::make_unique<Entry>();
  Entry& entry = *slot;
  if (!entry.graph) {
    if (!reason_.empty() || (options_.most > 0 && graphs_ >= options_.most)) return work();
    if (entry.eager_runs < options_.warmup) {
      ++entry.eager_runs;
      return run_aside(work);
    }
    for (const at::Tensor& input : inputs) entry.inputs.emplace_back(input);
    if (!capture(key, entry, work)) return work();
    ++graphs_;
  }
  require(inputs.size() == entry.inputs.size(), ExitCode::unexpected, options_.name, ": ", inputs.size(),
          " inputs, but ", entry.inputs.size(), " were captured");
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(InputFacts(inputs[i]) == entry.inputs[i], ExitCode::unexpected, options_.name, ": input ", i,
            " is not where or what it was at the capture (", inputs[i].scalar_type(), " ", inputs[i].sizes(), ")");
  }
  entry.graph->replay();
  ++replays_;
  --eager_runs_;
}

void CapturedStep::forget_others(const Key& key) {
  const auto is_other = [&](const auto& item) { return item.first != key && item.second->graph; };
  if (std::none_of(entries_.begin(), entries_.end(), is_other)) return;
  c10::cuda::device_synchronize();  // a replay may be under way
  graphs_ -= std::erase_if(entries_, is_other);
}

uint64_t graph_launches() {
  return launches;
}

int64_t graph_pool_bytes_in_use() {
  int64_t bytes = 0;
  const std::lock_guard lock(pools().mutex);
  for (const auto& [device, pool] : pools().of_device) {
    if (pool.graphs == 0) continue;
    for (const auto& segment : allocator::snapshot(pool.id).segments) {
      if (segment.owner_private_pool_id == pool.id) bytes += static_cast<int64_t>(segment.allocated_size);
    }
  }
  return bytes;
}

#else

struct CapturedStep::Entry {};

void CapturedStep::run(const Key&, const std::vector<at::Tensor>&, const std::function<void()>& work) {
  ++eager_runs_;
  work();
}

void CapturedStep::forget_others(const Key&) {}

uint64_t graph_launches() {
  return 0;
}

int64_t graph_pool_bytes_in_use() {
  return 0;
}

#endif

namespace {

// All objects, in the order of their construction.
struct Registry {
  std::mutex mutex;
  std::vector<const CapturedStep*> steps;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::vector<CapturedWork> captured_works() {
  const std::lock_guard lock(registry().mutex);
  std::vector<CapturedWork> works;
  for (const CapturedStep* step : registry().steps) {
    works.push_back({.name = step->options_.name,
                     .enabled = step->options_.enabled && step->options_.device.is_cuda(),
                     .graphs = static_cast<int64_t>(step->graphs_),
                     .eager_runs = step->eager_runs_,
                     .replays = step->replays_,
                     .reason = step->reason_});
  }
  return works;
}

CapturedStep::CapturedStep(CapturedStepOptions options) : options_(std::move(options)) {
  {
    const std::lock_guard lock(registry().mutex);
    registry().steps.push_back(this);
  }
  if (options_.enabled && options_.device.is_cuda() && !options_.refusal.empty()) refuse(options_.refusal);
}

CapturedStep::~CapturedStep() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().steps, this);
}

void CapturedStep::refuse(std::string reason) {
  reason_ = std::move(reason);
  log::warn(options_.name, ": not captured in a CUDA graph, runs eagerly (", reason_, ")");
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
