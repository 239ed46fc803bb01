#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "hrm/base/error.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {
namespace {

// A barrier at which each rank lays down a tensor for the others to read; and letters between two of them.
class Table {
 public:
  Table(int ranks, double timeout_s) : timeout_s_(timeout_s), tensors_(static_cast<size_t>(ranks)) {}

  // The table of some of the ranks, the same for all who name it. It is forgotten when all of them have it.
  std::shared_ptr<Table> of_group(const std::string& name, int ranks) {
    const std::lock_guard lock(mutex_);
    auto& [table, taken] = groups_[name];
    if (!table) table = std::make_shared<Table>(ranks, timeout_s_);
    const std::shared_ptr<Table> result = table;
    if (++taken == ranks) groups_.erase(name);
    return result;
  }

  void post(int from, int to, at::Tensor letter) {
    const std::lock_guard lock(mutex_);
    letters_[{from, to}].push_back(std::move(letter));
    all_here_.notify_all();
  }

  at::Tensor receive(int from, int to) {
    std::unique_lock lock(mutex_);
    std::deque<at::Tensor>& box = letters_[{from, to}];
    const bool came =
        all_here_.wait_for(lock, std::chrono::duration<double>(timeout_s_), [&] { return !box.empty() || broken_; });
    if (!came || broken_) fail_waiting(to);
    at::Tensor letter = std::move(box.front());
    box.pop_front();
    return letter;
  }

  void put(int rank, const at::Tensor& tensor) { tensors_[static_cast<size_t>(rank)] = tensor; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  void meet(int rank) {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (++here_ == tensors_.size()) {
      here_ = 0;
      ++round_;
      all_here_.notify_all();
      return;
    }
    const bool came =
        all_here_.wait_for(lock, std::chrono::duration<double>(timeout_s_), [&] { return round_ != round || broken_; });
    if (!came || broken_) fail_waiting(rank);
  }

 private:
  [[noreturn]] void fail_waiting(int rank) {
    broken_ = true;
    all_here_.notify_all();
    fail(ExitCode::rank_failed, "rank ", rank, " waited ", timeout_s_, " s for the other ranks");
  }

  double timeout_s_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  size_t here_ = 0;
  uint64_t round_ = 0;
  bool broken_ = false;
  std::vector<at::Tensor> tensors_;
  std::map<std::pair<int, int>, std::deque<at::Tensor>> letters_;         // by sender and receiver
  std::map<std::string, std::pair<std::shared_ptr<Table>, int>> groups_;  // and how many have it
};

// The letters to a rank, which are opened when it waits for them.
class Letters : public Pending {
 public:
  Letters(std::shared_ptr<Table> table, int rank, std::vector<Transfer> receives)
      : table_(std::move(table)), rank_(rank), receives_(std::move(receives)) {}
  void wait() override {
    for (const Transfer& transfer : receives_) transfer.tensor.copy_(table_->receive(transfer.peer, rank_));
  }

 private:
  std::shared_ptr<Table> table_;
  int rank_;
  std::vector<Transfer> receives_;
};

class ThreadComm : public Comm {
 public:
  ThreadComm(std::shared_ptr<Table> table, int rank, int ranks, int global, std::string axis = {})
      : table_(std::move(table)), rank_(rank), ranks_(ranks), global_(global), axis_(std::move(axis)) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::string describe() const override { return cat(ranks_, " ranks as threads of one process"); }
  std::string place() const override {
    return axis_.empty() ? Comm::place() : place_text(axis_, rank_, ranks_, global_);
  }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    combine(tensor, [&](const std::vector<at::Tensor>& all) {
      // In the order of ranks on every rank.
      at::Tensor result = all[0].clone();
      for (size_t i = 1; i < all.size(); ++i) {
        if (reduction == Reduction::sum) {
          result.add_(all[i]);
        } else {
          at::maximum_out(result, result, all[i]);
        }
      }
      return result;
    });
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("a reduce-scatter", in, out);
    const int64_t rows = in.size(0) / ranks_;
    table_->put(rank_, in);
    table_->meet(rank_);
    const auto own = [&](const at::Tensor& all) { return all.narrow(0, rank_ * rows, rows); };
    at::Tensor sum = own(table_->tensors()[0]).clone();
    for (size_t i = 1; i < table_->tensors().size(); ++i) sum.add_(own(table_->tensors()[i]));
    table_->meet(rank_);
    out.copy_(sum);
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("an all-gather", out, in);
    const int64_t rows = in.size(0);
    table_->put(rank_, in);
    table_->meet(rank_);
    for (int i = 0; i < ranks_; ++i) {
      const at::Tensor place = out.narrow(0, i * rows, rows);
      const at::Tensor& from = table_->tensors()[static_cast<size_t>(i)];
      if (from.const_data_ptr() != place.const_data_ptr()) place.copy_(from);
    }
    table_->meet(rank_);
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    check_all_to_all(out, in);
    const int64_t rows = in.size(0) / ranks_;
    const at::Tensor to = out.view(in.sizes());
    table_->put(rank_, in);
    table_->meet(rank_);
    for (int i = 0; i < ranks_; ++i) {
      to.narrow(0, i * rows, rows).copy_(table_->tensors()[static_cast<size_t>(i)].narrow(0, rank_ * rows, rows));
    }
    table_->meet(rank_);
    return std::make_unique<Done>();
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    check_transfers(sends, receives);
    for (const Transfer& transfer : sends) table_->post(rank_, transfer.peer, transfer.tensor.clone());
    return std::make_unique<Letters>(table_, rank_, receives);
  }

  std::unique_ptr<Comm> split(const Subgroup& group) override {
    const int place = place_in(group), size = static_cast<int>(group.members.size());
    return std::make_unique<ThreadComm>(table_->of_group(cat(group.name, " ", group.members.front()), size), place,
                                        size, global_, group.name);
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    combine(tensor, [&](const std::vector<at::Tensor>& all) { return all[static_cast<size_t>(root)].clone(); });
  }

  void barrier() override { table_->meet(rank_); }

 private:
  // Nobody writes before all have read.
  template <class Of>
  void combine(const at::Tensor& tensor, const Of& result_of) {
    table_->put(rank_, tensor);
    table_->meet(rank_);
    const at::Tensor result = result_of(table_->tensors());
    table_->meet(rank_);
    tensor.copy_(result);
  }

  std::shared_ptr<Table> table_;
  int rank_, ranks_, global_;
  std::string axis_;
};

}  // namespace

std::vector<std::unique_ptr<Comm>> make_thread_comms(int ranks, double timeout_s) {
  const auto table = std::make_shared<Table>(ranks, timeout_s);
  std::vector<std::unique_ptr<Comm>> comms;
  for (int rank = 0; rank < ranks; ++rank) comms.push_back(std::make_unique<ThreadComm>(table, rank, ranks, rank));
  return comms;
}

}  // namespace hrm::parallel
