#pragma once
// The sum of all ranks' gradients, computed while the backward pass still runs.

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/nn/parameter.h"
#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

// Where the ranks of a training with zero of at least 1 have the weights of a bucket. Optimizer state is always split.
enum class Residence {
  whole,   // every rank has the float32 masters, which are gathered after a step
  copies,  // every rank has the compute copies, which are gathered after a step, and masters as shards only
  turns,   // with zero 3: masters as shards only; compute weights are gathered where they are used (WeightGather)
};

// Whether most bytes of a block's weights are frozen. With zero 3 those take turns then, and every rank has all that is
// trained beside them (an adapter).
bool is_mostly_frozen(const nn::ParameterSet& parameters, int group);

struct ReducerOptions {
  // Groups (blocks of the model) travel together until they are this large.
  int64_t bucket_bytes = int64_t{8} << 20;
  // What is sent and summed: float32, or bfloat16, which halves the bytes and rounds every sum to 8 bits.
  at::ScalarType dtype = at::kFloat;
  // 0: every rank gets the whole sum. 1 and 2: each gets its share of it (state/registry.h, FlatLayout) for ZeRO. 1
  // keeps all gradients of a rank until then; with 2 they live no longer than their bucket's reduction, which therefore
  // follows every micro-batch. 3: gradients as with 2, and weights take turns, too.
  int64_t zero = 0;
};

ReducerOptions reducer_options(const config::ParallelConfig& config);

// Splits the flat gradient vector of a ParameterSet into contiguous buckets. Each bucket is summed over the ranks as
// soon as its groups are complete (nn::GradientReady). Gradients without a group (embeddings, norms) come last.
//
// All ranks start the buckets in the same order, which depends only on the model's names. A bucket that is complete
// early waits for those before it. Nothing here waits for a device, so a step can be captured. With one rank nothing is
// done, for any `zero`, and nothing listens to the backward pass.
//
// With zero 1 to 3 the buckets are padded, so that each splits into equal slices, and hold weights of one residence.
// Where parts of the masters exist as shards only, norms and biases of the blocks, of which every rank has all, are of
// no group. Gradients move to that layout once (ParameterSet::place_gradients). With zero 2 and 3 two buffers take
// turns for the gradients of the blocks. When a bucket starts to travel, the other buffer, whose bucket has arrived, is
// cleared for the next, but for large weights (hrm/ops/stale_gradient.h). The first turn is that of an untied head, the
// last that of an embedding that is read before all blocks. Other gradients without a group stay until the end of the
// micro-batch. Buffers cannot take turns if the model runs its blocks several times in
// a pass (TRM) or has only two buckets of them; then gradients are as with zero 1.
//
// Of a part of a model (tensor parallelism) all parts are laid out alike, although the last may have fewer rows of the
// vocabulary: rank r of the parts' ranks holds the same elements of weights that all parts hold whole.
//
// With zero 1 to 3 the ranks may be one of several groups with the same state (`replicas`). Each group splits the state
// among its own ranks, and the shares of the sums are then added up over the groups: in float32 or `dtype`, once a
// step, while the backward pass still runs.
//
// For each step:
//   clear()
//   for each micro-batch: begin(whether it is the last); forward; backward
//   finish()
class GradientReducer {
 public:
  // All must outlive this; the set must be built, and not be built again. `comm`: the ranks that split the state.
  // `replicas`: ranks with the same share, one of each group; null or alone: there is one group. Throws
  // Error(unexpected) for several groups without a `zero`, or of one rank each.
  GradientReducer(nn::ParameterSet& parameters, Comm& comm, const ReducerOptions& options = {},
                  Comm* replicas = nullptr);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Clears the gradients.
  void clear();

  // Before the forward pass of each micro-batch. The gradients of all but the last are only added up; with zero 2 those
  // of each travel, and the sums are added up. An Error of the Comm in the backward pass that follows is thrown by
  // backward(); after that there is no next step. With zero 2 also Error(unexpected), where blocks do not run once and
  // in order.
  void begin(bool last_micro_batch);

  // After the last backward pass: starts the rest and waits for all, on a GPU by ordering the current stream. Then
  // flat_grad(), with zero 1 to 3 share(), holds the sum over all ranks, the same bits on each. Throws as Comm.
  void finish();

  // A step that failed, as one may in a capture, is given up: the next begins anew.
  void abandon();

  // What the listener does in begin(true)'s backward pass: the gradients of this group are complete.
  void ready(int group);

  // Whether the gradients of each micro-batch travel, not their sum alone.
  bool every_micro_batch() const { return zero_ == 2; }

  // With zero 1 to 3 and several ranks; otherwise null, undefined.
  const FlatLayout* layout() const { return layout_.get(); }
  // Of the pieces of the layout; `groups` are those whose weights lie in it.
  struct PieceUse {
    Residence residence = Residence::whole;
    std::vector<int> groups;
  };
  const std::vector<PieceUse>& pieces() const { return pieces_; }
  // With zero 3 and several ranks.
  bool weights_take_turns() const { return weights_take_turns_; }
  // This rank's share of the sum, (layout()->share()) float32.
  const at::Tensor& share() const { return share_; }
  // Of all that holds gradients on this rank: buffers, what travels, the share.
  int64_t gradient_bytes() const;

  // 0 with one rank.
  size_t buckets() const { return buckets_.size(); }
  // How many of them had been started before finish(), in the step that is running or was the last.
  size_t started_early() const { return started_early_; }

 private:
  struct Bucket {
    int64_t offset = 0;       // in the flat vector
    at::Tensor gradients;     // of that place in it
    at::Tensor sent;          // the same, or its copy in the dtype that travels
    std::vector<int> groups;  // that must be complete; empty: those of no group, at the end
    bool is_last = false;     // of no group, and complete after all groups
    // Gradients of large weights, which the first product of a pass overwrites, and what lies between them.
    std::vector<at::Tensor> overwritten, cleared;
    std::unique_ptr<Pending> pending;
    std::unique_ptr<Pending> crossing;  // the sum over the groups
  };

  struct Extent;
  Residence residence_of(const nn::Parameter& parameter, int64_t zero) const;
  std::vector<Extent> runs_of_parameters(int64_t zero) const;
  void cut(const ReducerOptions& options);
  void lay_out(const std::vector<Extent>& extents);
  void make_buffers(at::ScalarType dtype, bool rotate);
  void find_overwritten();
  static void discard(const Bucket& bucket);
  at::Tensor own_slice(const Bucket& bucket) const;
  at::Tensor sum_of(const Bucket& bucket) const;
  at::Tensor place_in_share(const Bucket& bucket, const at::Tensor& of) const;
  void open_buffer(size_t bucket);
  void check_nothing_started() const;
  void start_next();
  void take_in(Bucket& bucket);
  void take_in_crossing(Bucket& bucket);
  void settle();

  nn::ParameterSet& parameters_;
  Comm& comm_;
  Comm* replicas_ = nullptr;     // null: there is one group
  std::vector<Bucket> buckets_;  // in the order in which they are started
  std::vector<char> complete_;   // by group
  size_t started_ = 0, started_early_ = 0;
  bool open_ = false;  // gradients of the micro-batch under way will travel
  bool last_ = false;  // it is the step's last

  // With zero 1 to 3:
  int64_t zero_ = 0;  // of gradients, 2 at most
  std::unique_ptr<FlatLayout> layout_;
  std::vector<PieceUse> pieces_;
  bool weights_take_turns_ = false;
  at::Tensor share_;
  at::Tensor crossing_;              // what travels between the groups: share_, or its copy in another dtype
  bool summed_ = false;              // share_ holds the sums of earlier micro-batches of this step
  at::Tensor held_;                  // gradients of all buckets but those that take turns,
  size_t rotating_ = 0;              // the first so many,
  std::array<at::Tensor, 2> turns_;  // with these, the even and the odd ones
  size_t opened_ = 0;                // the one whose turn it is
};

}  // namespace hrm::parallel
