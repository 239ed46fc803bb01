#include "hrm/parallel/nccl_comm.h"

#include <ATen/ops/empty.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/runtime/streams.h"
#include "parallel/cuda/peer_memory.h"

namespace hrm::parallel {
namespace {

using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;

ncclDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kHalf:
      return ncclFloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kChar:
      return ncclInt8;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    default:
      fail(ExitCode::unexpected, "NCCL knows no ", tensor.dtype().name());
  }
}

ncclRedOp_t op_of(Reduction reduction) {
  return reduction == Reduction::sum ? ncclSum : ncclMax;
}

// Which operation the GPU has reached. The stream writes its number into host memory before and after each, also in a
// captured graph, where the host sees nothing. After a hang, it shows what the GPU waits in.
//
// Of urgent operations a captured step has hundreds, and a mark in a graph takes as long as a small one of them. So
// there only the begin of one in kSparse is marked.
class DeviceProgress {
 public:
  explicit DeviceProgress(Priority priority) : urgent_(priority == Priority::urgent) {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, 2, cudaHostAllocMapped | cudaHostAllocPortable) != cudaSuccess)
      fail_with(cudaGetLastError());
    bytes_ = static_cast<volatile uint8_t*>(memory);
    bytes_[kBegun] = 0;
    bytes_[kDone] = 0;
    if (cudaHostGetDevicePointer(&device_, memory, 0) != cudaSuccess) fail_with(cudaGetLastError());
  }
  ~DeviceProgress() { cudaFreeHost(const_cast<uint8_t*>(bytes_)); }
  DeviceProgress(const DeviceProgress&) = delete;
  DeviceProgress& operator=(const DeviceProgress&) = delete;

  // Around the operation, on its stream. 0: it is not marked. Numbers come again after kHalf operations; those of
  // graphs, which replays repeat, are others than those of eager ones.
  uint8_t begin(const char* what, size_t bytes, bool captured, cudaStream_t stream) {
    const bool sparse = captured && urgent_;
    uint64_t& count = captured ? captured_ : eager_;
    const uint64_t index = count++;
    if (sparse && index % kSparse != 0) return 0;
    const uint64_t place = (sparse ? index / kSparse : index) % kHalf;
    const auto number = static_cast<uint8_t>(1 + place + (captured ? kHalf : 0));
    {
      const std::lock_guard lock(mutex_);
      operations_[number] = {what, bytes, sparse};
    }
    write(kBegun, number, stream);
    return number;
  }
  void end(uint8_t number, cudaStream_t stream) {
    if (number != 0 && !operations_[number].sparse) write(kDone, number, stream);
  }

  std::string text() const {
    const uint8_t begun = bytes_[kBegun], done = bytes_[kDone];
    if (begun == 0) return "the GPU has not come to a collective operation";
    const std::unique_lock lock(mutex_, std::try_to_lock);
    const Operation operation = lock ? operations_[begun] : Operation{};
    const std::string what = lock ? cat(operation.what, " of ", human_bytes(operation.bytes)) : "one";
    if (operation.sparse) {
      return cat("the GPU has come to ", what, " (mark ", begun - kHalf, "; in graphs, one operation in ", kSparse,
                 " is marked), and waits for other ranks in this or one of those that follow, or computes");
    }
    return begun == done ? cat("the GPU is in no collective operation; the last was ", what)
                         : cat("the GPU is in ", what, " and waits for other ranks, or for what comes before it");
  }

 private:
  static constexpr uint64_t kSparse = 16, kHalf = 127;  // kHalf: of the numbers of a byte, without 0
  enum Place { kBegun, kDone };
  struct Operation {
    const char* what = "";
    size_t bytes = 0;
    bool sparse = false;
  };

  [[noreturn]] static void fail_with(cudaError_t status) {
    fail(ExitCode::environment, "no memory of the host can be shared with the GPU (", cudaGetErrorString(status), ")");
  }
  void write(Place place, uint8_t value, cudaStream_t stream) {
    const cudaError_t status = cudaMemsetAsync(static_cast<uint8_t*>(device_) + place, value, 1, stream);
    require(status == cudaSuccess, ExitCode::unexpected, "the GPU's progress cannot be written (",
            cudaGetErrorString(status), ")");
  }

  bool urgent_;
  volatile uint8_t* bytes_ = nullptr;
  void* device_ = nullptr;
  uint64_t eager_ = 0, captured_ = 0;  // operations of one thread at a time, as all
  mutable std::mutex mutex_;
  std::array<Operation, 256> operations_;
};

// How NCCL treats captured operations, unless the environment says otherwise.
struct GraphSettings {
  bool mixes;  // operations outside of graphs may start while a graph with some is under way

  GraphSettings() {
    // NCCL makes the tensors of captured operations known to the other GPUs, which then read and write them in place.
    // With segments that grow, replays of all-to-all and of sending hang from 16 MiB on (NCCL 2.28.9, two H200).
    if (c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments()) {
      setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
    }
    // An operation of a few bytes takes 7 instead of 23 us in a graph that need not be mixed with other work.
    constexpr const char* kMixing = "NCCL_GRAPH_MIXING_SUPPORT";
    setenv(kMixing, "0", /*overwrite=*/0);
    mixes = std::string_view(std::getenv(kMixing)) != "0";
  }
};

class NcclComm : public Comm {
 public:
  NcclComm(std::shared_ptr<Comm> cpu, at::Device device, bool peer_memory)
      : cpu_(std::move(cpu)),
        device_(device),
        side_(communication_stream(device.index())),
        progress_(Priority::background),
        peer_memory_(peer_memory) {
    const c10::cuda::CUDAGuard guard(device_);
    ncclUniqueId id{};
    if (main()) check(ncclGetUniqueId(&id), "the start");
    const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof id)}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof id);
    cpu_->broadcast(bytes, /*root=*/0);
    std::memcpy(&id, bytes.data_ptr(), sizeof id);
    check(ncclCommInitRank(&comm_, ranks(), id, rank()), "the start");
    int version = 0;
    check(ncclGetVersion(&version), "the start");
    version_ = cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  // Some ranks of `whole`.
  NcclComm(const NcclComm& whole, const Subgroup& group)
      : cpu_(whole.cpu_->split(group)),
        device_(whole.device_),
        side_(group.priority == Priority::urgent ? urgent_communication_stream(device_.index())
                                                 : communication_stream(device_.index())),
        progress_(group.priority),
        peer_memory_(whole.peer_memory_),
        axis_(group.name),
        version_(whole.version_) {
    const c10::cuda::CUDAGuard guard(device_);
    check(ncclCommSplit(whole.comm_, group.members.front(), rank(), &comm_, /*config=*/nullptr), "the start");
  }

  ~NcclComm() override {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
  }

  int rank() const override { return cpu_->rank(); }
  int ranks() const override { return cpu_->ranks(); }
  std::string describe() const override { return cat(ranks(), " ranks over NCCL ", version_, "; ", cpu_->describe()); }
  std::string place() const override { return cpu_->place(); }
  std::string waiting() const override { return cpu_->waiting(); }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    if (tensor.is_cpu()) return cpu_->start_all_reduce(tensor, reduction);
    return aside(tensor, "an all-reduce", [&] {
      return ncclAllReduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(), elements(tensor), type_of(tensor),
                           op_of(reduction), comm_, side_.stream());
    });
  }

  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    if (in.is_cpu()) return cpu_->start_reduce_scatter(out, in);
    check_parts("a reduce-scatter", in, out);
    return aside(in, "a reduce-scatter",
                 [&] {
                   return ncclReduceScatter(in.const_data_ptr(), out.mutable_data_ptr(), elements(out), type_of(in),
                                            ncclSum, comm_, side_.stream());
                 },
                 {out});
  }

  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (in.is_cpu()) return cpu_->start_all_gather(out, in);
    check_parts("an all-gather", out, in);
    return aside(out, "an all-gather",
                 [&] {
                   return ncclAllGather(in.const_data_ptr(), out.mutable_data_ptr(), elements(in), type_of(in), comm_,
                                        side_.stream());
                 },
                 {in});
  }

  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    if (in.is_cpu()) return cpu_->start_all_to_all(out, in);
    check_all_to_all(out, in);
    const size_t bytes = in.nbytes() / static_cast<size_t>(ranks());
    return aside(out, "an all-to-all",
                 [&] {
                   ncclGroupStart();
                   for (int peer = 0; peer < ranks(); ++peer) {
                     const size_t place = static_cast<size_t>(peer) * bytes;
                     ncclSend(static_cast<const char*>(in.const_data_ptr()) + place, bytes, ncclUint8, peer, comm_,
                              side_.stream());
                     ncclRecv(static_cast<char*>(out.mutable_data_ptr()) + place, bytes, ncclUint8, peer, comm_,
                              side_.stream());
                   }
                   return ncclGroupEnd();
                 },
                 {in});
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    check_transfers(sends, receives);
    if (sends.empty() && receives.empty()) return std::make_unique<Done>();
    const at::Tensor& first = sends.empty() ? receives.front().tensor : sends.front().tensor;
    if (first.is_cpu()) return cpu_->start_exchange(sends, receives);
    std::vector<at::Tensor> tensors;
    for (const std::vector<Transfer>* side : {&sends, &receives}) {
      for (const Transfer& transfer : *side) tensors.push_back(transfer.tensor);
    }
    return aside(
        first, "an exchange",
        [&] {
          ncclGroupStart();
          for (const Transfer& t : sends) {
            ncclSend(t.tensor.const_data_ptr(), t.tensor.nbytes(), ncclUint8, t.peer, comm_, side_.stream());
          }
          for (const Transfer& t : receives) {
            ncclRecv(t.tensor.mutable_data_ptr(), t.tensor.nbytes(), ncclUint8, t.peer, comm_, side_.stream());
          }
          return ncclGroupEnd();
        },
        tensors);
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    if (tensor.is_cpu()) return cpu_->broadcast(tensor, root);
    aside(tensor, "a broadcast", [&] {
      return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root, comm_,
                           side_.stream());
    })->wait();
  }

  void barrier() override { cpu_->barrier(); }
  const ops::PeerRooms* peer_rooms() override {
    if (peer_memory_ && !capturing()) {
      peer_memory_ = false;
      const c10::cuda::CUDAGuard guard(device_);
      rooms_ = PeerMemory::make(*cpu_, device_);
    }
    return rooms_ ? &rooms_->rooms() : nullptr;
  }
  std::string progress() const override { return progress_.text(); }
  std::unique_ptr<Comm> split(const Subgroup& group) override {
    place_in(group);
    return std::make_unique<NcclComm>(*this, group);
  }

 private:
  // Holds the tensors' memory until the current stream is behind the operation.
  class Ordered : public Pending {
   public:
    Ordered(at::Tensor tensor, std::vector<at::Tensor> others, CUDAEvent done)
        : tensor_(std::move(tensor)), others_(std::move(others)), done_(std::move(done)) {}
    void wait() override { done_.block(c10::cuda::getCurrentCUDAStream(tensor_.device().index())); }

   private:
    at::Tensor tensor_;
    std::vector<at::Tensor> others_;
    CUDAEvent done_;
  };

  static size_t elements(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

  template <class F>
  std::unique_ptr<Pending> aside(const at::Tensor& tensor, const char* what, const F& operation,
                                 const std::vector<at::Tensor>& others = {}) {
    require(tensor.is_contiguous() && tensor.device() == device_, ExitCode::unexpected, what, " of a tensor on ",
            tensor.device().str(), " with gaps, or by a rank of ", device_.str());
    reach_failpoints(axis_);
    const c10::cuda::CUDAGuard guard(device_);
    const bool captured = capturing();
    if (!graphs_.mixes && !captured) wait_for_replays();
    CUDAEvent ready, done;
    ready.record(c10::cuda::getCurrentCUDAStream(device_.index()));
    ready.block(side_);
    const uint8_t number = progress_.begin(what, tensor.nbytes(), captured, side_.stream());
    check(operation(), what);
    progress_.end(number, side_.stream());
    done.record(side_);
    return std::make_unique<Ordered>(tensor, others, std::move(done));
  }

  static bool capturing() {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

  // Outside of a capture: until the graphs that were launched are done.
  void wait_for_replays() {
    const uint64_t launches = graph_launches();
    if (launches == launches_) return;
    c10::cuda::device_synchronize();
    launches_ = launches;
  }

  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    const std::string reason = cat(ncclGetErrorString(result), "; ", printable(ncclGetLastError(comm_)));
    fail(ExitCode::rank_failed, place(), ": NCCL failed in ", what, " (", reason, "); NCCL_DEBUG=INFO tells more");
  }

  std::shared_ptr<Comm> cpu_;
  at::Device device_;
  CUDAStream side_;
  GraphSettings graphs_;  // before comm_: NCCL reads them once
  uint64_t launches_ = 0;
  ncclComm_t comm_ = nullptr;
  DeviceProgress progress_;
  std::unique_ptr<PeerMemory> rooms_;  // null before peer_rooms(), and where there is none
  bool peer_memory_;                   // to be tried
  std::string axis_, version_;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(std::shared_ptr<Comm> cpu, at::Device device, bool peer_memory) {
  return std::make_unique<NcclComm>(std::move(cpu), device, peer_memory);
}

}  // namespace hrm::parallel
