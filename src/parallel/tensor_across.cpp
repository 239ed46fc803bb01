#include "hrm/parallel/tensor_across.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hrm/build_config.h"
#include "hrm/nn/recompute.h"
#include "hrm/ops/peer_sums.h"

namespace hrm::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// (tokens, D) -> (ranks * k, D), with zeros behind the tokens.
at::Tensor padded(const at::Tensor& rows, int64_t ranks) {
  const int64_t tokens = rows.size(0), k = (tokens + ranks - 1) / ranks;
  if (k * ranks == tokens) return rows.contiguous();
  const at::Tensor out = at::zeros({k * ranks, rows.size(1)}, rows.options());
  out.narrow(0, 0, tokens).copy_(rows);
  return out;
}

// (k, D) of each rank -> (tokens, D)
at::Tensor gather_rows(Comm& comm, const at::Tensor& rows, int64_t tokens) {
  const StepClock::Wait waiting(comm.clock());
  const at::Tensor out = at::empty({comm.ranks() * rows.size(0), rows.size(1)}, rows.options());
  comm.all_gather(out, rows.contiguous());
  return out.narrow(0, 0, tokens);
}

// (tokens, D) of each rank -> (ranks, k, D): all ranks' sums of this rank's rows.
at::Tensor exchange_sums(Comm& comm, const at::Tensor& sums) {
  const StepClock::Wait waiting(comm.clock());
  const at::Tensor own = padded(sums, comm.ranks()), pieces = at::empty_like(own);
  comm.all_to_all(pieces, own);
  return pieces.view({comm.ranks(), -1, own.size(1)});
}

struct Enter : torch::autograd::Function<Enter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, int64_t tokens, Comm* comm) {
    ctx->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    return gather_rows(*comm, rows, tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Comm& comm = *reinterpret_cast<Comm*>(ctx->saved_data["comm"].toInt());
    return {ops::add_pieces({}, {exchange_sums(comm, grads[0])}), at::Tensor(), at::Tensor()};
  }
};

struct Leave : torch::autograd::Function<Leave> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& sums, Comm* comm) {
    ctx->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    ctx->saved_data["tokens"] = sums.size(0);
    // Of a recomputed block nobody reads what its last layer gives, so nothing is sent.
    if (nn::result_is_unread()) {
      const int64_t ranks = comm->ranks();
      return at::empty({ranks, (sums.size(0) + ranks - 1) / ranks, sums.size(1)}, sums.options());
    }
    return exchange_sums(*comm, sums);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Comm& comm = *reinterpret_cast<Comm*>(ctx->saved_data["comm"].toInt());
    // The pieces are only added, so their gradients are one and the same.
    return {gather_rows(comm, grads[0][0], ctx->saved_data["tokens"].toInt()), at::Tensor()};
  }
};

struct EnterWhole : torch::autograd::Function<EnterWhole> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, int64_t tokens, Comm* comm) {
    ctx->saved_data["first"] = comm->rank() * rows.size(0);
    ctx->saved_data["rows"] = rows.size(0);
    return gather_rows(*comm, rows, tokens);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const int64_t first = ctx->saved_data["first"].toInt(), rows = ctx->saved_data["rows"].toInt();
    const int64_t begin = std::min(first, grads[0].size(0)), end = std::min(first + rows, grads[0].size(0));
    const at::Tensor own = grads[0].narrow(0, begin, end - begin);
    return {at::constant_pad_nd(own, {0, 0, 0, rows - own.size(0)}), at::Tensor(), at::Tensor()};
  }
};

struct Share : torch::autograd::Function<Share> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Comm* comm) {
    ctx->saved_data["comm"] = reinterpret_cast<int64_t>(comm);
    return x.view_as(x);
  }
  // In float32 in the order of parts, as all sums here.
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Comm& comm = *reinterpret_cast<Comm*>(ctx->saved_data["comm"].toInt());
    const at::Tensor own = grads[0].contiguous().view({-1, grads[0].size(-1)});
    const at::Tensor all = gather_rows(comm, own, comm.ranks() * own.size(0)).view({comm.ranks(), -1, own.size(1)});
    return {ops::add_pieces({}, {all}).view(grads[0].sizes()), at::Tensor()};
  }
};

class PendingMove : public nn::Moving {
 public:
  PendingMove(const Comm& comm, std::unique_ptr<Pending> pending) : comm_(comm), pending_(std::move(pending)) {}
  void wait() override {
    const StepClock::Wait waiting(comm_.clock());
    pending_->wait();
  }

 private:
  const Comm& comm_;
  std::unique_ptr<Pending> pending_;
};

class CommAcross : public nn::TensorAcross {
 public:
  explicit CommAcross(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

  nn::Cut cut() const override { return {.part = comm_->rank(), .parts = comm_->ranks()}; }

  at::Tensor enter(const at::Tensor& rows, int64_t tokens) const override {
    TORCH_CHECK(rows.dim() == 2 && rows.size(0) == own_rows(tokens), "TensorAcross::enter: each of ", comm_->ranks(),
                " parts has ", own_rows(tokens), " rows of ", tokens, " tokens, got ", rows.sizes());
    return Enter::apply(rows, tokens, comm_.get());
  }

  ops::Pieces leave(const at::Tensor& sums) const override {
    TORCH_CHECK(sums.dim() == 2, "TensorAcross::leave: partial sums must be (tokens, D), got ", sums.sizes());
    return {Leave::apply(sums, comm_.get())};
  }

  at::Tensor enter_whole(const at::Tensor& rows, int64_t tokens) const override {
    TORCH_CHECK(rows.dim() == 2 && rows.size(0) == own_rows(tokens), "TensorAcross::enter_whole: each of ",
                comm_->ranks(), " parts has ", own_rows(tokens), " rows of ", tokens, " tokens, got ", rows.sizes());
    return EnterWhole::apply(rows, tokens, comm_.get());
  }

  at::Tensor share(const at::Tensor& x) const override { return Share::apply(x, comm_.get()); }

  at::Tensor gather(const at::Tensor& own) const override {
    const at::NoGradGuard no_grad;
    const StepClock::Wait waiting(comm_->clock());
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), comm_->ranks());
    const at::Tensor all = at::empty(sizes, own.options());
    comm_->all_gather(all, own.contiguous().unsqueeze(0));
    return all;
  }

  ops::DecodedAhead add_sums(const at::Tensor& residual, const at::Tensor& sums,
                             const at::Tensor& next_norm) const override {
#if HRM_WITH_CUDA
    const ops::PeerRooms* const rooms = sums.is_cuda() ? comm_->peer_rooms() : nullptr;
    if (rooms != nullptr && ops::takes_peer_sums(sums, *rooms)) {
      return ops::add_peer_sums(residual, sums, next_norm, *rooms);
    }
#endif
    return nn::TensorAcross::add_sums(residual, sums, next_norm);
  }

  std::unique_ptr<nn::Moving> start_gather(const at::Tensor& all, const at::Tensor& rows) const override {
    return std::make_unique<PendingMove>(*comm_, comm_->start_all_gather(all, rows));
  }

  std::unique_ptr<nn::Moving> start_exchange(const at::Tensor& pieces, const at::Tensor& sums) const override {
    std::vector<Transfer> sends, receives;
    for (int peer = 0; peer < comm_->ranks(); ++peer) {
      if (peer == comm_->rank()) continue;
      sends.push_back({sums[peer], peer});
      receives.push_back({pieces[peer], peer});
    }
    return std::make_unique<PendingMove>(*comm_, comm_->start_exchange(sends, receives));
  }

 private:
  std::shared_ptr<Comm> comm_;
};

}  // namespace

std::shared_ptr<const nn::TensorAcross> make_tensor_across(std::shared_ptr<Comm> comm) {
  return std::make_shared<CommAcross>(std::move(comm));
}

std::shared_ptr<const nn::TensorAcross> across_of(std::shared_ptr<Comm> comm) {
  return !comm || comm->alone() ? nullptr : make_tensor_across(std::move(comm));
}

}  // namespace hrm::parallel
