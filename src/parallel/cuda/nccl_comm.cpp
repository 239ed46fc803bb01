#include "hrm/parallel/nccl_comm.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <cstring>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

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

class NcclComm : public Comm {
 public:
  NcclComm(std::unique_ptr<Comm> cpu, at::Device device)
      : cpu_(std::move(cpu)),
        device_(device),
        side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
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

  ~NcclComm() override {
    if (comm_ != nullptr) ncclCommDestroy(comm_);
  }

  int rank() const override { return cpu_->rank(); }
  int ranks() const override { return cpu_->ranks(); }
  std::string describe() const override { return cat(ranks(), " ranks over NCCL ", version_, "; ", cpu_->describe()); }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    if (tensor.is_cpu()) return cpu_->start_all_reduce(tensor, reduction);
    return aside(tensor, "an all-reduce", [&] {
      return ncclAllReduce(tensor.const_data_ptr(), tensor.mutable_data_ptr(), elements(tensor), type_of(tensor),
                           op_of(reduction), comm_, side_.stream());
    });
  }

  void all_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (in.is_cpu()) return cpu_->all_gather(out, in);
    require(out.is_contiguous() && out.numel() == in.numel() * ranks(), ExitCode::unexpected, "an all-gather of ",
            in.numel(), " elements from ", ranks(), " ranks into ", out.numel());
    aside(in, "an all-gather", [&] {
      return ncclAllGather(in.const_data_ptr(), out.mutable_data_ptr(), elements(in), type_of(in), comm_,
                           side_.stream());
    })->wait();
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    if (tensor.is_cpu()) return cpu_->broadcast(tensor, root);
    aside(tensor, "a broadcast", [&] {
      return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root, comm_,
                           side_.stream());
    })->wait();
  }

  void barrier() override { cpu_->barrier(); }

 private:
  // Holds the tensor's memory until the current stream is behind the operation.
  class Ordered : public Pending {
   public:
    Ordered(at::Tensor tensor, CUDAEvent done) : tensor_(std::move(tensor)), done_(std::move(done)) {}
    void wait() override { done_.block(c10::cuda::getCurrentCUDAStream(tensor_.device().index())); }

   private:
    at::Tensor tensor_;
    CUDAEvent done_;
  };

  static size_t elements(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

  template <class F>
  std::unique_ptr<Pending> aside(const at::Tensor& tensor, const char* what, const F& operation) {
    require(tensor.is_contiguous() && tensor.device() == device_, ExitCode::unexpected, what, " of a tensor on ",
            tensor.device().str(), " with gaps, or by a rank of ", device_.str());
    const c10::cuda::CUDAGuard guard(device_);
    CUDAEvent ready, done;
    ready.record(c10::cuda::getCurrentCUDAStream(device_.index()));
    ready.block(side_);
    check(operation(), what);
    done.record(side_);
    return std::make_unique<Ordered>(tensor, std::move(done));
  }

  void check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess) return;
    const std::string reason = cat(ncclGetErrorString(result), "; ", printable(ncclGetLastError(comm_)));
    fail(ExitCode::rank_failed, "rank ", rank(), ": NCCL failed in ", what, " (", reason,
         "); NCCL_DEBUG=INFO tells more");
  }

  std::unique_ptr<Comm> cpu_;
  at::Device device_;
  CUDAStream side_;
  ncclComm_t comm_ = nullptr;
  std::string version_;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Comm> cpu, at::Device device) {
  return std::make_unique<NcclComm>(std::move(cpu), device);
}

}  // namespace hrm::parallel
