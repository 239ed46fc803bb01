#pragma once
// Operations between the ranks of one training, or of one axis of its mesh (mesh.h).
//
// Every rank calls the same operations, with tensors of the same dtype and size, in the same order; otherwise all hang
// until the time limit. Results are the same bits on every rank, and between two runs with as many ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hrm/parallel/step_clock.h"

namespace hrm::ops {
struct PeerRooms;
}

namespace hrm::parallel {

enum class Reduction { sum, max };

// What a GPU starts first where both could start: its kernels (background), or the operation (urgent), because the next
// kernels wait for it. Of no effect on a CPU.
enum class Priority { background, urgent };

// Some ranks of a Comm as a Comm of their own.
struct Subgroup {
  std::string name = {};          // in messages, e.g. "tensor"; the same on all ranks
  std::vector<int> members = {};  // ascending ranks of the Comm that is split; their places are the new ranks
  Priority priority = Priority::background;
};

// One message of an exchange.
struct Transfer {
  at::Tensor tensor = {};  // contiguous; of the same size and dtype on both sides
  int peer = 0;            // another rank
};

// An operation that was started. The tensors must live, and not be touched, until wait() has returned; on a GPU that
// means: has been ordered into the current stream.
class Pending {
 public:
  virtual ~Pending() = default;
  // Once. On the CPU returns when the result is there. Throws as Comm.
  virtual void wait() = 0;
};

// Of an operation that was done when it was started.
class Done : public Pending {
 public:
  void wait() override {}
};

// All throw Error (ExitCode::rank_failed) when another rank is gone, or does not come within the time limit. After that
// the object is of no use any more.
class Comm {
 public:
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // "4 ranks over gloo, 127.0.0.1".
  virtual std::string describe() const = 0;
  // Who this rank is in messages: "tensor axis, rank 1 of 2 (global rank 3)", or "rank 3 of 4" of all ranks.
  virtual std::string place() const;

  // In place; contiguous, of floating type or int64.
  virtual std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) = 0;
  // `out` becomes this rank's part of the sum of the ranks' `in`: rank r gets the r-th of `ranks` equal parts along
  // dimension 0. (n, ...) for an `in` of (ranks * n, ...), both contiguous, of floating type or int64. `out` may be
  // that part of `in`; what `in` holds elsewhere is lost.
  virtual std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) = 0;
  // `out` holds the ranks' `in` one after the other: (ranks * n, ...) for an `in` of (n, ...); both contiguous. `in`
  // may be its own place in `out`.
  virtual std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) = 0;
  // `in` is cut into `ranks` equal parts along dimension 0, and rank r gets the r-th part of every rank, in the order
  // of ranks. Both (ranks * n, ...), contiguous, of the same dtype, without common memory.
  virtual std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) = 0;
  // Messages between pairs of ranks, which travel together. Only ranks that send or receive something call it. Between
  // two ranks the first sent message is the first that is received, also over several calls.
  virtual std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                                  const std::vector<Transfer>& receives) = 0;
  // Contiguous; of any type. All get what `root` has.
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;
  // Returns when all ranks have come here.
  virtual void barrier() = 0;

  // All ranks call it, in the same order, each with the group that it belongs to: the groups of all ranks have one
  // name, and share no members. This Comm must live longer. Throws Error(unexpected) for members that cannot be a
  // group.
  virtual std::unique_ptr<Comm> split(const Subgroup& group) = 0;

  // Memory through which kernels of all ranks add sums without an operation of this Comm (hrm/ops/peer_sums.h); null
  // where there is none, on every rank alike. The first call is a collective operation, which a graph cannot hold:
  // while one is captured, null before that. The memory lives as long as this.
  virtual const ops::PeerRooms* peer_rooms() { return nullptr; }

  // What operation a device is in or did last, for the report of a rank that hangs; from any thread, without waiting.
  // Empty where there is nothing to tell.
  virtual std::string progress() const { return {}; }

  // The operation in which this rank waits for others on the CPU, e.g. "an all-reduce"; empty: in none. From any
  // thread.
  virtual std::string waiting() const { return {}; }

  // By which the users of this Comm measure how long they wait for others, and as waits of which axis; null: not at
  // all. Not owned.
  StepClock::Of clock() const { return clock_; }
  void set_clock(StepClock* clock, int axis = StepClock::kNoAxis) { clock_ = {clock, axis}; }

  bool alone() const { return ranks() == 1; }
  bool main() const { return rank() == 0; }
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum) {
    start_all_reduce(tensor, reduction)->wait();
  }
  // For the work of a step: its time counts as waiting for other ranks (clock()). With one rank nothing is done.
  void all_reduce_in_step(const at::Tensor& tensor, Reduction reduction = Reduction::sum) {
    if (alone()) return;
    const StepClock::Wait waiting(clock_);
    all_reduce(tensor, reduction);
  }
  void reduce_scatter(const at::Tensor& out, const at::Tensor& in) { start_reduce_scatter(out, in)->wait(); }
  void all_gather(const at::Tensor& out, const at::Tensor& in) { start_all_gather(out, in)->wait(); }
  void all_to_all(const at::Tensor& out, const at::Tensor& in) { start_all_to_all(out, in)->wait(); }
  void exchange(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) {
    start_exchange(sends, receives)->wait();
  }
  // Texts of any length from every rank, in the order of ranks, on every rank. By CPU tensors.
  std::vector<std::string> all_gather_text(const std::string& text);

 protected:
  // Throws Error(unexpected) unless `whole` holds as much as all ranks' `part` and both are contiguous, of one dtype.
  void check_parts(const char* what, const at::Tensor& whole, const at::Tensor& part) const;
  // Of start_all_to_all() and start_exchange().
  void check_all_to_all(const at::Tensor& out, const at::Tensor& in) const;
  void check_transfers(const std::vector<Transfer>& sends, const std::vector<Transfer>& receives) const;
  // The place of this rank among the group's members, which split() checks.
  int place_in(const Subgroup& group) const;

 private:
  StepClock::Of clock_ = {};
};

// Comm::place() of a rank of an axis; `global`: the rank of all.
std::string place_text(const std::string& axis, int rank, int ranks, int global);

// Before an operation: reaches Failpoint::collective_start and that of the axis (Subgroup::name; empty: all ranks).
void reach_failpoints(const std::string& axis);

// One rank: every operation is done at once.
std::unique_ptr<Comm> make_single_comm();

// One collective operation.
struct CommOperation {
  enum class Kind { all_reduce, reduce_scatter, all_gather, all_to_all, exchange, broadcast };
  Kind kind = Kind::all_reduce;
  // The tensor's. Of a reduce-scatter and an all-gather the parts of all ranks together; of an exchange what this rank
  // sends or receives, whichever is more.
  int64_t bytes = 0;
  std::string axis = {};  // Subgroup::name of the Comm; empty: all ranks

  bool operator==(const CommOperation&) const = default;
};

// What one rank took part in.
struct CommTraffic {
  std::vector<CommOperation> operations;  // in the order of their starts
  int64_t barriers = 0;

  int64_t calls(CommOperation::Kind kind) const;
  int64_t bytes(CommOperation::Kind kind) const;
  bool operator==(const CommTraffic&) const = default;
};

// Another Comm, and a record of all that goes through it and through what it is split into, which grows with every
// call. Operations that fail count, too.
class CountingComm : public Comm {
 public:
  explicit CountingComm(std::shared_ptr<Comm> comm)
      : comm_(std::move(comm)), traffic_(std::make_shared<CommTraffic>()) {}

  const CommTraffic& traffic() const { return *traffic_; }
  void forget() { *traffic_ = {}; }

  int rank() const override { return comm_->rank(); }
  int ranks() const override { return comm_->ranks(); }
  std::string describe() const override { return comm_->describe(); }
  std::string progress() const override { return comm_->progress(); }
  std::string place() const override { return comm_->place(); }
  std::string waiting() const override { return comm_->waiting(); }
  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override;
  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override;
  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override;
  void broadcast(const at::Tensor& tensor, int root) override;
  void barrier() override;
  std::unique_ptr<Comm> split(const Subgroup& group) override;

 private:
  void count(CommOperation::Kind kind, int64_t bytes) { traffic_->operations.push_back({kind, bytes, axis_}); }

  std::shared_ptr<Comm> comm_;
  std::shared_ptr<CommTraffic> traffic_;  // one for all that were split off
  std::string axis_ = {};
};

// One rank of this many that do not exist, for tests and plans. It counts what it would send; nothing is sent or waited
// for. A sum, a maximum and a broadcast leave the rank's own values, and an all-gather repeats its rows. An all-to-all
// returns what was sent, and an exchange receives nothing. Tensors of any device, also without memory (meta); on a GPU
// all is work of the current stream. Error(unexpected) for a rank outside of 0 to ranks - 1, and for tensors that do
// not fit the operation.
std::unique_ptr<CountingComm> make_fake_comm(int rank, int ranks);

// `ranks` members of one group for as many threads of this process (tests): what one thread sends the others read from
// its memory. CPU tensors, and a wait of at most `timeout_s` for the others.
std::vector<std::unique_ptr<Comm>> make_thread_comms(int ranks, double timeout_s = 60);

}  // namespace hrm::parallel
