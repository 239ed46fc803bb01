#include "hrm/runtime/memory_snapshot.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

struct Live {
  uint64_t size = 0;
  SourcePtr source;
};
using LiveTensors = std::unordered_map<uint64_t, Live>;  // by address

LiveTensors live_now(const MemorySnapshot& snapshot) {
  LiveTensors live;
  for (const MemorySegment& segment : snapshot.segments) {
    uint64_t address = segment.address;
    for (const MemoryBlock& block : segment.blocks) {
      if (block.allocated) live[address] = {block.requested, block.source};
      address += block.size;
    }
  }
  return live;
}

// The operation that a user knows: the innermost one that does more than make a tensor.
std::string operation_of(const AllocationSource& source) {
  constexpr std::string_view kMakers[] = {
      "aten::empty",     "aten::empty_strided", "aten::empty_like", "aten::resize_",    "aten::new_empty",
      "aten::zeros",     "aten::zeros_like",    "aten::ones",       "aten::contiguous", "aten::clone",
      "aten::new_zeros", "aten::full",          "aten::to",         "aten::_to_copy"};
  for (const std::string& operation : source.operations) {
    if (std::find(std::begin(kMakers), std::end(kMakers), operation) == std::end(kMakers)) return operation;
  }
  return source.operations.empty() ? std::string() : source.operations.back();
}

AllocationsAtPeak grouped(const LiveTensors& live) {
  AllocationsAtPeak result;
  std::map<std::tuple<std::string, std::string, uint64_t>, int64_t> counts;
  for (const auto& [address, tensor] : live) {
    result.bytes += tensor.size;
    ++result.tensors;
    const bool known = tensor.source != nullptr;
    ++counts[{known ? tensor.source->phase : "before the recording", known ? operation_of(*tensor.source) : "",
              tensor.size}];
  }
  for (const auto& [key, count] : counts) {
    result.groups.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), count});
  }
  std::stable_sort(result.groups.begin(), result.groups.end(),
                   [](const AllocationGroup& a, const AllocationGroup& b) { return a.bytes() > b.bytes(); });
  return result;
}

std::string bytes_text(uint64_t bytes) {
  return human_bytes(bytes);
}

// ---- the pickle ----

using List = c10::List<c10::IValue>;
using Dict = c10::Dict<c10::IValue, c10::IValue>;

List new_list() {
  return List(c10::AnyType::get());
}

Dict new_dict() {
  return Dict(c10::AnyType::get(), c10::AnyType::get());
}

c10::IValue int_value(uint64_t value) {
  return static_cast<int64_t>(value);
}

const char* name_of(MemoryEvent::Action action) {
  switch (action) {
    case MemoryEvent::Action::alloc:
      return "alloc";
    case MemoryEvent::Action::free_requested:
      return "free_requested";
    case MemoryEvent::Action::free_completed:
      return "free_completed";
    case MemoryEvent::Action::segment_alloc:
      return "segment_alloc";
    case MemoryEvent::Action::segment_free:
      return "segment_free";
    case MemoryEvent::Action::segment_map:
      return "segment_map";
    case MemoryEvent::Action::segment_unmap:
      return "segment_unmap";
    case MemoryEvent::Action::snapshot:
      return "snapshot";
    case MemoryEvent::Action::out_of_memory:
      return "oom";
  }
  return "snapshot";
}

// Each source once, however many blocks and events share it.
class Frames {
 public:
  List of(const SourcePtr& source) {
    if (!source) return new_list();
    const auto known = made_.find(source.get());
    if (known != made_.end()) return known->second;
    List frames = new_list();
    for (const std::string& operation : source->operations) frames.push_back(frame(operation));
    frames.push_back(frame(source->phase));
    return made_.emplace(source.get(), frames).first->second;
  }

 private:
  static Dict frame(const std::string& name) {
    Dict frame = new_dict();
    frame.insert("name", name);
    frame.insert("filename", "hrm_train");
    frame.insert("line", int64_t{0});
    return frame;
  }
  std::unordered_map<const AllocationSource*, List> made_;
};

Dict segment_dict(const MemorySegment& segment, int device, Frames& frames) {
  uint64_t allocated = 0, active = 0, requested = 0, address = segment.address;
  List blocks = new_list();
  for (const MemoryBlock& block : segment.blocks) {
    Dict out = new_dict();
    out.insert("address", int_value(address));
    out.insert("size", int_value(block.size));
    out.insert("requested_size", int_value(block.requested));
    out.insert("state", block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive");
    out.insert("frames", frames.of(block.source));
    blocks.push_back(out);
    address += block.size;
    if (block.allocated) allocated += block.size;
    if (block.active) active += block.size;
    if (block.active) requested += block.requested;
  }
  Dict out = new_dict();
  out.insert("device", int64_t{device});
  out.insert("address", int_value(segment.address));
  out.insert("total_size", int_value(segment.size));
  out.insert("allocated_size", int_value(allocated));
  out.insert("active_size", int_value(active));
  out.insert("requested_size", int_value(requested));
  out.insert("stream", int_value(segment.stream));
  out.insert("segment_type", segment.large ? "large" : "small");
  out.insert("segment_pool_id",
             c10::ivalue::Tuple::create({int_value(segment.pool.first), int_value(segment.pool.second)}));
  out.insert("is_expandable", segment.expandable);
  out.insert("frames", new_list());
  out.insert("blocks", blocks);
  return out;
}

Dict event_dict(const MemoryEvent& event, Frames& frames) {
  Dict out = new_dict();
  const bool failed = event.action == MemoryEvent::Action::out_of_memory;
  out.insert("action", name_of(event.action));
  out.insert(failed ? "device_free" : "addr", int_value(event.address));
  out.insert("size", int_value(event.size));
  out.insert("stream", int_value(event.stream));
  out.insert("time_us", event.time_us);
  out.insert("frames", frames.of(event.source));
  return out;
}

}  // namespace

AllocationsAtPeak allocations_now(const MemorySnapshot& snapshot) {
  return grouped(live_now(snapshot));
}

AllocationsAtPeak allocations_at_peak(const MemorySnapshot& snapshot) {
  using Action = MemoryEvent::Action;
  // Back to the beginning of the events: what was there then.
  LiveTensors live = live_now(snapshot);
  for (auto event = snapshot.events.rbegin(); event != snapshot.events.rend(); ++event) {
    if (event->action == Action::alloc) live.erase(event->address);
    if (event->action == Action::free_requested) live[event->address] = {event->size, nullptr};
  }
  uint64_t bytes = 0;
  for (const auto& [address, tensor] : live) bytes += tensor.size;
  const auto replay = [&](size_t count, LiveTensors& now) {
    uint64_t sum = bytes, most = bytes;
    size_t at_most = 0;
    for (size_t i = 0; i < count; ++i) {
      const MemoryEvent& event = snapshot.events[i];
      if (event.action == Action::alloc) {
        now[event.address] = {event.size, event.source};
        sum += event.size;
      } else if (event.action == Action::free_requested) {
        const auto gone = now.find(event.address);
        if (gone == now.end()) continue;
        sum -= gone->second.size;
        now.erase(gone);
      }
      if (sum > most) {
        most = sum;
        at_most = i + 1;
      }
    }
    return at_most;
  };
  LiveTensors scratch = live;
  const size_t peak = replay(snapshot.events.size(), scratch);
  replay(peak, live);
  return grouped(live);
}

std::string allocations_table(const AllocationsAtPeak& peak, size_t most) {
  std::ostringstream out;
  const auto row = [&](const std::string& bytes, const std::string& share, const std::string& tensors,
                       const std::string& each, const std::string& phase, const std::string& operation) {
    out << std::setw(12) << bytes << std::setw(8) << share << std::setw(9) << tensors << std::setw(12) << each << "  "
        << std::left << std::setw(20) << phase << std::right << operation << "\n";
  };
  const auto share_of = [&](uint64_t bytes) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(1)
         << (peak.bytes > 0 ? 100.0 * static_cast<double>(bytes) / static_cast<double>(peak.bytes) : 0) << "%";
    return text.str();
  };
  row("bytes", "share", "tensors", "each", "phase", "operation");
  uint64_t shown = 0;
  int64_t tensors = 0;
  for (size_t i = 0; i < std::min(most, peak.groups.size()); ++i) {
    const AllocationGroup& group = peak.groups[i];
    row(bytes_text(group.bytes()), share_of(group.bytes()), std::to_string(group.tensors), bytes_text(group.each),
        group.phase, group.operation.empty() ? "-" : group.operation);
    shown += group.bytes();
    tensors += group.tensors;
  }
  if (tensors < peak.tensors) {
    row(bytes_text(peak.bytes - shown), share_of(peak.bytes - shown), std::to_string(peak.tensors - tensors), "", "",
        "all others");
  }
  return out.str();
}

std::vector<PoolUse> pool_uses(const MemorySnapshot& snapshot) {
  std::map<std::pair<bool, bool>, PoolUse> found;  // graphs, small
  for (const MemorySegment& segment : snapshot.segments) {
    const bool graphs = segment.pool != std::pair<uint64_t, uint64_t>{0, 0};
    PoolUse& pool = found[{graphs, !segment.large}];
    pool.name = cat(graphs ? "graphs" : "default", segment.large ? ", large blocks" : ", small blocks");
    ++pool.segments;
    pool.reserved += segment.size;
    uint64_t allocated = 0;
    for (const MemoryBlock& block : segment.blocks) allocated += block.allocated ? block.size : 0;
    pool.allocated += allocated;
    if (allocated > 0) pool.unused_parts += segment.size - allocated;
  }
  std::vector<PoolUse> pools;
  for (auto& [key, pool] : found) pools.push_back(std::move(pool));
  return pools;
}

std::string pools_text(const std::vector<PoolUse>& pools) {
  std::string text;
  for (const PoolUse& pool : pools) {
    text += cat(text.empty() ? "" : "; ", pool.name, ": ", bytes_text(pool.reserved), " reserved in ", pool.segments,
                pool.segments == 1 ? " segment, " : " segments, ", bytes_text(pool.allocated), " in tensors, ",
                bytes_text(pool.unused_parts), " free between tensors");
  }
  return text;
}

void write_memory_snapshot(const std::filesystem::path& file, const MemorySnapshot& snapshot) {
  Frames frames;
  List segments = new_list(), events = new_list(), traces = new_list();
  for (const MemorySegment& segment : snapshot.segments) {
    segments.push_back(segment_dict(segment, snapshot.device, frames));
  }
  for (const MemoryEvent& event : snapshot.events) events.push_back(event_dict(event, frames));
  for (int other = 0; other < snapshot.device; ++other) traces.push_back(new_list());  // a list for each device
  traces.push_back(events);
  Dict settings = new_dict();
  settings.insert("PYTORCH_CUDA_ALLOC_CONF", "");
  settings.insert("expandable_segments", snapshot.expandable_segments);
  Dict whole = new_dict();
  whole.insert("segments", segments);
  whole.insert("device_traces", traces);
  whole.insert("allocator_settings", settings);
  whole.insert("external_annotations", new_list());

  std::string bytes;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { bytes.append(data, size); }, nullptr, nullptr,
                              nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(c10::IValue(whole));
  pickler.stop();
  write_text_atomic(file, bytes);
}

}  // namespace hrm
