#include <ATen/Tensor.h>

#include <algorithm>

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
    if (out.is_meta()) return std::make_unique<Done>();  // plans have a thousand ranks
    const int64_t size = in.numel();
    const at::Tensor rows = in.is_alias_of(out) && !is_part(out, in) ? in.clone().view(-1) : in.view(-1);
    for (int rank = 0; rank < ranks_; ++rank) {  // part by part, which moves bytes as fast as the memory does
      const at::Tensor part = out.view(-1).narrow(0, rank * size, size);
      if (part.const_data_ptr() != rows.const_data_ptr()) part.copy_(rows);
    }
    return std::make_unique<Done>();
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    check(tensor);
    require(root >= 0 && root < ranks_, ExitCode::unexpected, "a broadcast from rank ", root, " of ", ranks_, " ranks");
  }

  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    check_all_to_all(out, in);
    out.view(-1).copy_(in.view(-1));
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    check_transfers(sends, receives);
    return std::make_unique<Done>();
  }

  void barrier() override {}

  std::unique_ptr<Comm> split(const Subgroup& group) override {
    return std::make_unique<FakeComm>(place_in(group), static_cast<int>(group.members.size()));
  }

 private:
  // Whether `in` is one of the parts of `out`, none of which it overlaps otherwise.
  static bool is_part(const at::Tensor& out, const at::Tensor& in) {
    const int64_t distance = in.storage_offset() - out.storage_offset();
    return in.numel() > 0 && distance >= 0 && distance % in.numel() == 0;
  }
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
  count(Kind::all_reduce, static_cast<int64_t>(tensor.nbytes()));
  return comm_->start_all_reduce(tensor, reduction);
}

std::unique_ptr<Pending> CountingComm::start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) {
  count(Kind::reduce_scatter, static_cast<int64_t>(in.nbytes()));
  return comm_->start_reduce_scatter(out, in);
}

std::unique_ptr<Pending> CountingComm::start_all_gather(const at::Tensor& out, const at::Tensor& in) {
  count(Kind::all_gather, static_cast<int64_t>(out.nbytes()));
  return comm_->start_all_gather(out, in);
}

void CountingComm::broadcast(const at::Tensor& tensor, int root) {
  count(Kind::broadcast, static_cast<int64_t>(tensor.nbytes()));
  comm_->broadcast(tensor, root);
}

void CountingComm::barrier() {
  ++traffic_->barriers;
  comm_->barrier();
}

std::unique_ptr<Pending> CountingComm::start_all_to_all(const at::Tensor& out, const at::Tensor& in) {
  count(Kind::all_to_all, static_cast<int64_t>(in.nbytes()));
  return comm_->start_all_to_all(out, in);
}

std::unique_ptr<Pending> CountingComm::start_exchange(const std::vector<Transfer>& sends,
                                                      const std::vector<Transfer>& receives) {
  const auto bytes_of = [](const std::vector<Transfer>& transfers) {
    int64_t bytes = 0;
    for (const Transfer& transfer : transfers) bytes += static_cast<int64_t>(transfer.tensor.nbytes());
    return bytes;
  };
  count(Kind::exchange, std::max(bytes_of(sends), bytes_of(receives)));
  return comm_->start_exchange(sends, receives);
}

std::unique_ptr<Comm> CountingComm::split(const Subgroup& group) {
  auto part = std::make_unique<CountingComm>(comm_->split(group));
  part->traffic_ = traffic_;
  part->axis_ = group.name;
  return part;
}

std::unique_ptr<CountingComm> make_fake_comm(int rank, int ranks) {
  return std::make_unique<CountingComm>(std::make_shared<FakeComm>(rank, ranks));
}

}  // namespace hrm::parallel
