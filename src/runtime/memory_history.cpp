#include "hrm/runtime/memory_history.h"

#include <ATen/record_function.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/runtime/nvtx.h"

#if HRM_WITH_CUDA
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace hrm {
namespace {

constexpr const char* kNoPhase = "start";

thread_local std::vector<const char*> t_phases;
// Autograd's threads have no range of their own: what they do belongs to the phase that was entered last anywhere.
std::atomic<const char*> g_phase{kNoPhase};

std::mutex g_text_mutex;
std::string g_out_of_memory_text;

#if HRM_WITH_CUDA

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;

constexpr size_t kMostEvents = 200'000;

const char* phase_now() {
  return t_phases.empty() ? g_phase.load(std::memory_order_relaxed) : t_phases.back();
}

struct Context : c10::GatheredContext {
  explicit Context(AllocationSource of) : source(std::make_shared<AllocationSource>(std::move(of))) {}
  SourcePtr source;
};

thread_local std::vector<const std::string*> t_operations;  // outermost first

// Phases alone: one object for each, so that recording allocates no memory.
std::shared_ptr<c10::GatheredContext> phase_context() {
  thread_local const char* known = nullptr;
  thread_local std::shared_ptr<Context> context;
  const char* const phase = phase_now();
  if (phase != known) {
    context = std::make_shared<Context>(AllocationSource{.phase = phase});
    known = phase;
  }
  return context;
}

std::shared_ptr<c10::GatheredContext> operation_context() {
  AllocationSource source{.phase = phase_now()};
  for (auto operation = t_operations.rbegin(); operation != t_operations.rend(); ++operation) {
    source.operations.push_back(**operation);
  }
  return std::make_shared<Context>(std::move(source));
}

// A name that outlives the operation.
const std::string* kept(const char* name) {
  thread_local std::unordered_set<std::string> names;  // its elements stay where they are
  return &*names.emplace(name).first;
}

std::unique_ptr<at::ObserverContext> enter_operation(const at::RecordFunction& function) {
  t_operations.push_back(kept(function.name()));
  return nullptr;
}

void leave_operation(const at::RecordFunction&, at::ObserverContext*) {
  if (!t_operations.empty()) t_operations.pop_back();  // empty: entered before the recording
}

at::CallbackHandle g_operations = at::INVALID_CALLBACK_HANDLE;
std::atomic<bool> g_watching{false};

bool sees_memory() {
  return allocator::name() != "cudaMallocAsync";
}

void require_sight() {
  require(
      sees_memory(), ExitCode::environment,
      "LibTorch does not see the memory of runtime.allocator=cuda_malloc_async; set runtime.allocator=expandable to "
      "record it");
}

void record_phases() {
  allocator::recordHistory(true, &phase_context, 1, allocator::RecordContext::STATE, /*clearHistory=*/true, {});
}

SourcePtr source_of(const std::shared_ptr<c10::GatheredContext>& context) {
  const auto* known = dynamic_cast<const Context*>(context.get());
  return known == nullptr ? nullptr : known->source;
}

MemoryEvent::Action action_of(TraceEntry::Action action) {
  using Action = MemoryEvent::Action;
  switch (action) {
    case TraceEntry::ALLOC:
      return Action::alloc;
    case TraceEntry::FREE_REQUESTED:
      return Action::free_requested;
    case TraceEntry::FREE_COMPLETED:
      return Action::free_completed;
    case TraceEntry::SEGMENT_ALLOC:
      return Action::segment_alloc;
    case TraceEntry::SEGMENT_FREE:
      return Action::segment_free;
    case TraceEntry::SEGMENT_MAP:
      return Action::segment_map;
    case TraceEntry::SEGMENT_UNMAP:
      return Action::segment_unmap;
    case TraceEntry::OOM:
      return Action::out_of_memory;
    case TraceEntry::SNAPSHOT:
      break;
  }
  return Action::snapshot;
}

// Runs in the allocation that fails, which then throws. It must not throw itself.
void on_out_of_memory(int index, const std::filesystem::path& file) noexcept {
  std::string text;
  try {
    const MemorySnapshot snapshot = memory_snapshot(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
    const AllocationsAtPeak now = allocations_now(snapshot);
    if (!now.groups.empty()) {
      const AllocationGroup& most = now.groups.front();
      text = cat("; ", human_bytes(now.bytes), " are in tensors, most of them ", most.tensors, " of ",
                 human_bytes(most.each), " from ", most.phase,
                 most.operation.empty() ? std::string() : cat(", ", most.operation));
    }
    if (!file.empty()) {
      write_memory_snapshot(file, snapshot);
      text += cat("; ", file.string(), " has all of them, for https://pytorch.org/memory_viz");
    }
  } catch (const std::exception& e) {
    text += cat("; a snapshot could not be written: ", e.what());
  }
  const std::scoped_lock lock(g_text_mutex);
  g_out_of_memory_text = text;
}
#endif

}  // namespace

void enter_memory_phase(const char* name) {
  t_phases.push_back(name);
  g_phase.store(name, std::memory_order_relaxed);
}

void leave_memory_phase() {
  if (!t_phases.empty()) t_phases.pop_back();
  g_phase.store(t_phases.empty() ? kNoPhase : t_phases.back(), std::memory_order_relaxed);
}

std::string out_of_memory_text() {
  const std::scoped_lock lock(g_text_mutex);
  return g_out_of_memory_text;
}

#if HRM_WITH_CUDA

void start_memory_history(at::Device device) {
  require(device.is_cuda(), ExitCode::usage,
          "the history of memory is that of a GPU, and this runs on a CPU; leave profiling.memory=false there");
  require_sight();
  at::globalContext().lazyInitDevice(at::kCUDA);
  if (g_operations == at::INVALID_CALLBACK_HANDLE) {
    g_operations = at::addGlobalCallback(at::RecordFunctionCallback(&enter_operation, &leave_operation)
                                             .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  track_memory_phases(true);
  allocator::recordHistory(true, &operation_context, kMostEvents, allocator::RecordContext::ALLOC,
                           /*clearHistory=*/true, {});
}

bool records_memory(at::Device device) {
  return device.is_cuda() && g_operations != at::INVALID_CALLBACK_HANDLE;
}

void stop_memory_history(at::Device device) {
  if (!records_memory(device)) return;
  at::removeCallback(std::exchange(g_operations, at::INVALID_CALLBACK_HANDLE));
  if (g_watching) {
    record_phases();
  } else {
    allocator::recordHistory(false, nullptr, 1, allocator::RecordContext::NEVER, /*clearHistory=*/true, {});
    track_memory_phases(false);
  }
}

MemorySnapshot memory_snapshot(at::Device device) {
  require_sight();
  at::globalContext().lazyInitDevice(at::kCUDA);
  const allocator::SnapshotInfo from = allocator::snapshot();
  MemorySnapshot out{.device = device.index(), .expandable_segments = from.config_metadata.expandable_segments};
  for (const auto& segment : from.segments) {
    if (segment.device != device.index()) continue;
    MemorySegment to{.address = segment.address,
                     .size = segment.total_size,
                     .stream = reinterpret_cast<uint64_t>(segment.stream),
                     .large = segment.is_large,
                     .expandable = segment.is_expandable,
                     .pool = {segment.owner_private_pool_id.first, segment.owner_private_pool_id.second}};
    for (const auto& block : segment.blocks) {
      to.blocks.push_back({.size = block.size,
                           .requested = block.requested_size,
                           .allocated = block.allocated,
                           .active = block.active,
                           .source = source_of(block.context_when_allocated)});
    }
    out.segments.push_back(std::move(to));
  }
  const auto index = static_cast<size_t>(device.index());
  if (index < from.device_traces.size() && records_memory(device)) {
    for (const auto& event : from.device_traces[index]) {
      out.events.push_back({.action = action_of(event.action_),
                            .address = event.addr_,
                            .size = event.size_,
                            .stream = reinterpret_cast<uint64_t>(event.stream_),
                            .time_us = event.time_.t_,
                            .source = source_of(event.context_)});
    }
  }
  return out;
}

void watch_out_of_memory(at::Device device, const std::filesystem::path& file) {
  if (!device.is_cuda() || !sees_memory()) return;
  at::globalContext().lazyInitDevice(at::kCUDA);
  static std::mutex mutex;
  static std::filesystem::path target;
  const std::scoped_lock lock(mutex);
  target = file;
  if (g_watching.exchange(true)) return;
  allocator::attachOutOfMemoryObserver([](int64_t index, size_t, size_t, size_t) {
    std::filesystem::path to;
    {
      const std::scoped_lock inner(mutex);
      to = target;
    }
    on_out_of_memory(static_cast<int>(index), to);
  });
  track_memory_phases(true);
  if (!records_memory(device)) record_phases();
}

std::string memory_pools_text(at::Device device) {
  if (!device.is_cuda() || !sees_memory()) return {};
  return pools_text(pool_uses(memory_snapshot(device)));
}

#else

void start_memory_history(at::Device) {
  fail(ExitCode::usage,
       "the history of memory is that of a GPU, and this runs on a CPU; leave profiling.memory=false there");
}
bool records_memory(at::Device) {
  return false;
}
void stop_memory_history(at::Device) {}
MemorySnapshot memory_snapshot(at::Device) {
  return {};
}
void watch_out_of_memory(at::Device, const std::filesystem::path&) {}
std::string memory_pools_text(at::Device) {
  return {};
}

#endif

}  // namespace hrm
