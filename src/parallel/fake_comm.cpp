#include <ATen/Tensor.h>

#include "hrm/base/error.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {
namespace {

using Kind = CommOperation::Kind;

class FakeComm : public Comm {
 public:
  FakeComm(int rank, int ranks) : rank_(rank), ranks_(ranks) {
    require(rank >= 0 && rank < ranks, ExitCode::unexpected, "rank ", rank, " of ", ranks, " ranks");
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string describe() const override { return cat(ranks_, " ranks, of which this one alone is there"); }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction /*reduction*/) override {
    check(tensor);
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("a reduce-scatter", in, out);
    const at::Tensor own = in.view(-1).narrow(0, rank_ * out.numel(), out.numel());
    if (!own.is_alias_of(out)) out.view(-1).copy_(own);
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("an all-gather", out, in);
    const at::Tensor rows = in.is_alias_of(out) ? in.clone() : in;
    out.view({ranks_, in.numel()}).copy_(rows.view({1, in.numel()}).expand({ranks_, in.numel()}));
    return std::make_unique<Done>();
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    check(tensor);
    require(root >= 0 && root < ranks_, ExitCode::unexpected, "a broadcast from rank ", root, " of ", ranks_, " ranks");
  }

  void barrier() override {}

 private:
  static void check(const at::Tensor& tensor) {
    require(tensor.is_contiguous(), ExitCode::unexpected, "a collective operation on a tensor with gaps");
  }

  int rank_, ranks_;
};

}  // namespace

int64_t CommTraffic::calls(Kind kind) const {
  int64_t sum = 0;
  for (const CommOperation& operation : operations) sum += operation.kind == kind ? 1 : 0;
  return sum;
}

int64_t CommTraffic::bytes(Kind kind) const {
  int64_t sum = 0;
  for (const CommOperation& operation : operations) sum += operation.kind == kind ? operation.bytes : 0;
  return sum;
}

std::unique_ptr<Pending> CountingComm::start_all_reduce(const at::Tensor& tensor, Reduction reduction) {
  traffic_.operations.push_back({Kind::all_reduce, static_cast<int64_t>(tensor.nbytes())});
  return comm_->start_all_reduce(tensor, reduction);
}

std::unique_ptr<Pending> CountingComm::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) {
  traffic_.operations.push_back({Kind::reduce_scatter, static_cast<int64_t>(in.nbytes())});
  return comm_->start_reduce_scatter(out, in);
}

std::unique_ptr<Pending> CountingComm::start_all_gather(const at::Tensor& out, const at::Tensor& in) {
  traffic_.operations.push_back({Kind::all_gather, static_cast<int64_t>(out.nbytes())});
  return comm_->start_all_gather(out, in);
}

void CountingComm::broadcast(const at::Tensor& tensor, int root) {
  traffic_.operations.push_back({Kind::broadcast, static_cast<int64_t>(tensor.nbytes())});
  comm_->broadcast(tensor, root);
}

void CountingComm::barrier() {
  ++traffic_.barriers;
  comm_->barrier();
}

std::unique_ptr<CountingComm> make_fake_comm(int rank, int ranks) {
  return std::make_unique<CountingComm>(std::make_shared<FakeComm>(rank, ranks));
}

}  // namespace hrm::parallel
