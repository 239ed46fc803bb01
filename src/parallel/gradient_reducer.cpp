#include "hrm/parallel/gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

// Elements [begin, end) of the flat vector, of parameters side by side that are of one group.
struct Run {
  int64_t begin = 0, end = 0;
  int group = nn::GradientReady::kNoGroup;

  bool of_no_group() const { return group == nn::GradientReady::kNoGroup; }
};

std::vector<Run> runs_of(nn::ParameterSet& set) {
  const at::Tensor& flat = set.flat_grad();
  std::vector<Run> runs;
  for (const nn::Parameter& parameter : set.all()) {
    const int64_t begin = parameter.master.grad().storage_offset() - flat.storage_offset();
    if (!runs.empty() && runs.back().group == parameter.group) continue;
    if (!runs.empty()) runs.back().end = begin;
    runs.push_back({.begin = begin, .group = parameter.group});
  }
  runs.back().end = flat.numel();
  return runs;
}

}  // namespace

GradientReducer::GradientReducer(nn::ParameterSet& parameters, Comm& comm, const ReducerOptions& options)
    : parameters_(parameters), comm_(comm) {
  require(options.dtype == at::kFloat || options.dtype == at::kBFloat16, ExitCode::unexpected,
          "gradients are summed in float32 or bfloat16, not in ", c10::toString(options.dtype));
  if (!comm_.alone()) cut(options);
}

GradientReducer::~GradientReducer() {
  if (open_) parameters_.gradient_ready()->listen({});
}

void GradientReducer::cut(const ReducerOptions& options) {
  std::vector<Run> runs = runs_of(parameters_);
  const auto turn = [](const Run& run) { return run.of_no_group() ? std::numeric_limits<int>::max() : run.group; };
  std::stable_sort(runs.begin(), runs.end(), [&](const Run& a, const Run& b) { return turn(a) < turn(b); });

  const auto element_bytes = static_cast<int64_t>(c10::elementSize(options.dtype));
  std::vector<Run> joined;  // each the extent of one bucket
  for (const Run& run : runs) {
    if (!joined.empty()) {
      // Blocks come in the reverse order of their memory, so that the next one mostly ends where the last began.
      Run& last = joined.back();
      const bool neighbours = run.end == last.begin || run.begin == last.end;
      const bool full = (last.end - last.begin) * element_bytes >= options.bucket_bytes;
      if (neighbours && !full && run.of_no_group() == last.of_no_group()) {
        last.begin = std::min(last.begin, run.begin);
        last.end = std::max(last.end, run.end);
        if (!run.of_no_group()) buckets_.back().groups.push_back(run.group);
        continue;
      }
    }
    joined.push_back(run);
    Bucket& bucket = buckets_.emplace_back();
    if (!run.of_no_group()) bucket.groups.push_back(run.group);
  }

  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.gradients = parameters_.flat_grad().narrow(0, joined[i].begin, joined[i].end - joined[i].begin);
    bucket.sent =
        options.dtype == at::kFloat ? bucket.gradients : at::empty_like(bucket.gradients, at::dtype(options.dtype));
  }
}

void GradientReducer::begin(bool last_micro_batch) {
  if (comm_.alone()) return;
  require(started_ == 0, ExitCode::unexpected, "the sums of gradients over the ranks of the step before were started (",
          started_, " of ", buckets_.size(), ") but not finished: call finish() after the last backward pass");
  nn::GradientReady& gradients = *parameters_.gradient_ready();
  open_ = last_micro_batch;
  if (!last_micro_batch) {
    gradients.listen({});
    return;
  }
  started_early_ = 0;
  complete_.assign(gradients.groups().size(), 0);
  gradients.listen([this](int group) { ready(group); });
}

void GradientReducer::ready(int group) {
  require(open_, ExitCode::unexpected, "gradients of group ", group, " are complete outside of a last micro-batch");
  complete_.at(static_cast<size_t>(group)) = 1;
  const auto is_complete = [&](const Bucket& bucket) {
    return !bucket.groups.empty() && std::all_of(bucket.groups.begin(), bucket.groups.end(),
                                                 [&](int g) { return complete_[static_cast<size_t>(g)] != 0; });
  };
  while (started_ < buckets_.size() && is_complete(buckets_[started_])) start_next();
  started_early_ = started_;
}

void GradientReducer::start_next() {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[started_];
  if (!bucket.sent.is_same(bucket.gradients)) bucket.sent.copy_(bucket.gradients);
  bucket.pending = comm_.start_all_reduce(bucket.sent, Reduction::sum);
  ++started_;
}

void GradientReducer::finish() {
  if (comm_.alone()) return;
  require(open_, ExitCode::unexpected, "there are no gradients to finish: no micro-batch was begun as the last one");
  open_ = false;
  parameters_.gradient_ready()->listen({});
  while (started_ < buckets_.size()) start_next();
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    bucket.pending->wait();
    bucket.pending.reset();
    if (!bucket.sent.is_same(bucket.gradients)) bucket.gradients.copy_(bucket.sent);
  }
  started_ = 0;
}

}  // namespace hrm::parallel
