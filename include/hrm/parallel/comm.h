#pragma once
// Collective operations between the ranks of one training.
//
// Every rank calls the same operations, with tensors of the same dtype and size, in the same order; otherwise all hang
// until the time limit. Results are the same bits on every rank, and between two runs with as many ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hrm::parallel {

enum class Reduction { sum, max };

// An operation that was started. The tensors must live, and not be touched, until wait() has returned; on a GPU that
// means: has been ordered into the current stream.
class Pending {
 public:
  virtual ~Pending() = default;
  // Once. On the CPU returns when the result is there. Throws as Comm.
  virtual void wait() = 0;
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

  // In place; contiguous, of floating type or int64.
  virtual std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) = 0;
  // `out` holds the ranks' `in` one after the other: (ranks * n, ...) for an `in` of (n, ...); both contiguous.
  virtual void all_gather(const at::Tensor& out, const at::Tensor& in) = 0;
  // Contiguous; of any type. All get what `root` has.
  virtual void broadcast(const at::Tensor& tensor, int root) = 0;
  // Returns when all ranks have come here.
  virtual void barrier() = 0;

  bool alone() const { return ranks() == 1; }
  bool main() const { return rank() == 0; }
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum) {
    start_all_reduce(tensor, reduction)->wait();
  }
  // Texts of any length from every rank, in the order of ranks, on every rank. By CPU tensors.
  std::vector<std::string> all_gather_text(const std::string& text);
};

// One rank: every operation is done at once.
std::unique_ptr<Comm> make_single_comm();

// `ranks` members of one group for as many threads of this process (tests): what one thread sends the others read from
// its memory. CPU tensors, and a wait of at most `timeout_s` for the others.
std::vector<std::unique_ptr<Comm>> make_thread_comms(int ranks, double timeout_s = 60);

}  // namespace hrm::parallel
