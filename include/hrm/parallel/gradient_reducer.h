#pragma once
// The sum of all ranks' gradients, computed while the backward pass still runs.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

struct ReducerOptions {
  // Groups (blocks of the model) travel together until they are this large.
  int64_t bucket_bytes = int64_t{8} << 20;
  // What is sent and summed: float32, or bfloat16, which halves the bytes and rounds every sum to 8 bits.
  at::ScalarType dtype = at::kFloat;
};

// Cuts the flat gradient vector of a ParameterSet into contiguous buckets and sums each over the ranks, from the moment
// when the groups in it are complete (nn::GradientReady). What belongs to no group (embeddings, heads) comes at the
// end.
//
// All ranks start the buckets in the same order, which follows from the names of the model alone: a bucket that is
// complete early waits for those before it. Nothing here waits for a device, so that a step can be captured. With one
// rank nothing is done and nobody listens to the backward pass.
//
// For each step:
//   for each micro-batch: begin(whether it is the last); forward; backward
//   finish()
class GradientReducer {
 public:
  // Both must outlive this; the set must be built, and not be built again.
  GradientReducer(nn::ParameterSet& parameters, Comm& comm, const ReducerOptions& options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Before the forward pass of each micro-batch. The gradients of all but the last are only added up. An Error of the
  // Comm in the backward pass that follows is thrown by backward(); after that there is no next step.
  void begin(bool last_micro_batch);

  // After the last backward pass. Starts what is left and waits for all, on a GPU by ordering the current stream: then
  // flat_grad() holds the sum over the ranks, the same bits on each. Throws as Comm.
  void finish();

  // What the listener does in begin(true)'s backward pass: the gradients of this group are complete.
  void ready(int group);

  // 0 with one rank.
  size_t buckets() const { return buckets_.size(); }
  // How many of them had been started before finish(), in the step that is running or was the last.
  size_t started_early() const { return started_early_; }

 private:
  struct Bucket {
    at::Tensor gradients;     // a slice of flat_grad()
    at::Tensor sent;          // the same, or its copy in the dtype that travels
    std::vector<int> groups;  // that must be complete; empty: those of no group, at the end
    std::unique_ptr<Pending> pending;
  };

  void cut(const ReducerOptions& options);
  void start_next();

  nn::ParameterSet& parameters_;
  Comm& comm_;
  std::vector<Bucket> buckets_;  // in the order in which they are started
  std::vector<char> complete_;   // by group
  size_t started_ = 0, started_early_ = 0;
  bool open_ = false;  // between begin(true) and finish()
};

}  // namespace hrm::parallel
