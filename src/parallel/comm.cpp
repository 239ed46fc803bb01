#include "hrm/parallel/comm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"

namespace hrm::parallel {
namespace {

class SingleComm : public Comm {
 public:
  int rank() const override { return 0; }
  int ranks() const override { return 1; }
  std::string describe() const override { return "one rank"; }
  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& /*tensor*/, Reduction /*reduction*/) override {
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    out.copy_(in);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    out.copy_(in);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    check_all_to_all(out, in);
    out.copy_(in);
    return std::make_unique<Done>();
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    check_transfers(sends, receives);
    return std::make_unique<Done>();
  }
  void broadcast(const at::Tensor& /*tensor*/, int /*root*/) override {}
  void barrier() override {}
  std::unique_ptr<Comm> split(const Subgroup& group) override {
    place_in(group);
    return make_single_comm();
  }
};

}  // namespace

std::string Comm::place() const {
  return cat("rank ", rank(), " of ", ranks());
}

std::string place_text(const std::string& axis, int rank, int ranks, int global) {
  return cat(axis, " axis, rank ", rank, " of ", ranks, " (global rank ", global, ")");
}

void reach_failpoints(const std::string& axis) {
  failpoint::hit(Failpoint::collective_start);
  if (!failpoint::armed() || axis.empty()) return;
  for (const auto& [name, point] :
       {std::pair{"tensor", Failpoint::collective_tensor}, std::pair{"shard", Failpoint::collective_shard},
        std::pair{"replica", Failpoint::collective_replica}, std::pair{"data", Failpoint::collective_data}}) {
    if (axis == name) failpoint::hit(point);
  }
}

std::vector<std::string> Comm::all_gather_text(const std::string& text) {
  at::Tensor length = at::zeros({1}, at::kLong), lengths = at::empty({ranks()}, at::kLong);
  length.data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  all_gather(lengths, length);
  const int64_t* sizes = lengths.const_data_ptr<int64_t>();
  const int64_t longest = std::max<int64_t>(*std::max_element(sizes, sizes + ranks()), 1);
  at::Tensor bytes = at::zeros({longest}, at::kByte), all = at::empty({ranks() * longest}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  all_gather(all, bytes);
  std::vector<std::string> texts;
  for (int i = 0; i < ranks(); ++i) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + i * longest, static_cast<size_t>(sizes[i]));
  }
  return texts;
}

void Comm::check_parts(const char* what, const at::Tensor& whole, const at::Tensor& part) const {
  require(whole.is_contiguous() && part.is_contiguous() && whole.scalar_type() == part.scalar_type() &&
              whole.numel() == part.numel() * ranks(),
          ExitCode::unexpected, what, " between ", ranks(), " ranks of ", whole.numel(), " elements of ",
          whole.dtype().name(), " in all and ", part.numel(), " of ", part.dtype().name(), " for each");
}

void Comm::check_all_to_all(const at::Tensor& out, const at::Tensor& in) const {
  require(out.is_contiguous() && in.is_contiguous() && out.scalar_type() == in.scalar_type() &&
              out.numel() == in.numel() && in.dim() > 0 && in.size(0) % ranks() == 0 && !out.is_alias_of(in),
          ExitCode::unexpected, "an all-to-all between ", ranks(), " ranks of ", in.sizes(), " elements of ",
          in.dtype().name(), " to ", out.sizes(), " of ", out.dtype().name(), in.is_alias_of(out) ? " in place" : "");
}

void Comm::check_transfers(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const {
  for (const std::vector<Transfer>* side : {&sends, &receives}) {
    for (const Transfer& transfer : *side) {
      require(
          transfer.tensor.is_contiguous() && transfer.peer >= 0 && transfer.peer < ranks() && transfer.peer != rank(),
          ExitCode::unexpected, "rank ", rank(), " of ", ranks(), " in an exchange with rank ", transfer.peer,
          transfer.tensor.is_contiguous() ? "" : " of a tensor with gaps");
    }
  }
}

int Comm::place_in(const Subgroup& group) const {
  const auto& members = group.members;
  const bool ascending = std::adjacent_find(members.begin(), members.end(), std::greater_equal()) == members.end();
  const auto own = std::find(members.begin(), members.end(), rank());
  require(ascending && own != members.end() && members.front() >= 0 && members.back() < ranks(), ExitCode::unexpected,
          "rank ", rank(), " of ", ranks(), " cannot be in the group '", group.name, "' of ", members.size(), " ranks");
  return static_cast<int>(own - members.begin());
}

std::unique_ptr<Comm> make_single_comm() {
  return std::make_unique<SingleComm>();
}

}  // namespace hrm::parallel
