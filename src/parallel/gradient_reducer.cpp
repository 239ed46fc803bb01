#include "hrm/parallel/gradient_reducer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/ops/stale_gradient.h"

namespace hrm::parallel {
namespace {

constexpr int64_t kAlignment = nn::ParameterSet::kGradAlignment;

int64_t aligned(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

// Elements that a parameter takes in the layout: those of the first part, which has the most. So the layouts of all
// parts of a model agree.
int64_t room_of(const nn::Parameter& parameter) {
  const int64_t size = parameter.master.numel();
  if (parameter.cut.whole() || size == 0) return aligned(size, kAlignment);
  nn::ParameterCut first = parameter.cut;
  first.cut.part = 0;
  int64_t here = 0, most = 0;
  for (const nn::ParameterCut::Box& box : parameter.cut.boxes()) here += box.size;
  for (const nn::ParameterCut::Box& box : first.boxes()) most += box.size;
  return aligned(size / here * most, kAlignment);
}

}  // namespace

// Parameters, one after the other in the flat vector, that are of one group and residence; or those of a bucket.
struct GradientReducer::Extent {
  int64_t begin = 0, end = 0;  // elements of the flat vector
  int group = nn::GradientReady::kNoGroup;
  Residence residence = Residence::whole;
  bool is_last = false;  // its gradients are complete after those of all groups
  int64_t room = 0;      // elements in the layout
  std::vector<size_t> parameters = {};
  std::vector<int> used_by = {};  // groups, also where the gradients are of none

  bool of_no_group() const { return group == nn::GradientReady::kNoGroup; }
};

bool is_mostly_frozen(const nn::ParameterSet& parameters, int group) {
  int64_t trained = 0, frozen = 0;
  for (const nn::Parameter& parameter : parameters.all()) {
    if (parameter.group == group) trained += static_cast<int64_t>(parameter.compute.nbytes());
  }
  for (const nn::FrozenTensor& each : parameters.frozen()) {
    if (each.group == group) frozen += static_cast<int64_t>(each.tensor.nbytes());
  }
  return frozen > trained;
}

ReducerOptions reducer_options(const config::ParallelConfig& config) {
  return {.bucket_bytes = config.bucket_mb << 20,
          .dtype = config.reduce == config::ReduceDtype::bf16 ? at::kBFloat16 : at::kFloat,
          .zero = config.zero};
}

GradientReducer::GradientReducer(nn::ParameterSet& parameters, Comm& comm, const ReducerOptions& options,
                                 Comm* replicas)
    : parameters_(parameters), comm_(comm), replicas_(replicas != nullptr && !replicas->alone() ? replicas : nullptr) {
  require(options.dtype == at::kFloat || options.dtype == at::kBFloat16, ExitCode::unexpected,
          "gradients are summed in float32 or bfloat16, not in ", c10::toString(options.dtype));
  require(options.zero >= 0 && options.zero <= 3, ExitCode::unexpected, "there is no zero ", options.zero);
  require(!parameters.gradients_are_placed(), ExitCode::unexpected, "the parameters are laid out for another reducer");
  require(replicas_ == nullptr || (options.zero > 0 && !comm_.alone()), ExitCode::unexpected, "groups of ",
          comm_.ranks(), " ranks with zero ", options.zero, " split nothing");
  if (comm_.alone() || options.zero == 0) parameters.materialise();
  if (comm_.alone()) return;
  zero_ = std::min<int64_t>(options.zero, 2);
  weights_take_turns_ = options.zero == 3;
  if (options.zero > 0) parameters.copy_embeddings();
  const at::NoGradGuard no_grad;
  cut(options);
}

GradientReducer::~GradientReducer() {
  if (open_) parameters_.gradient_ready()->listen({});
}

Residence GradientReducer::residence_of(const nn::Parameter& parameter, int64_t zero) const {
  if (zero == 0 || !parameter.only_compute_is_read) return Residence::whole;
  if (zero == 3 && parameters_.reports_use(parameter.group) && !is_mostly_frozen(parameters_, parameter.group)) {
    return Residence::turns;
  }
  return parameter.compute.is_same(parameter.master) ? Residence::whole : Residence::copies;
}

std::vector<GradientReducer::Extent> GradientReducer::runs_of_parameters(int64_t zero) const {
  const std::vector<nn::Parameter>& all = parameters_.all();
  const bool apart = std::any_of(all.begin(), all.end(), [&](const nn::Parameter& parameter) {
    return residence_of(parameter, zero) != Residence::whole;
  });
  const bool rotate = zero >= 2 && parameters_.blocks_run_once();
  std::vector<Extent> runs;
  for (size_t i = 0; i < all.size(); ++i) {
    const nn::Parameter& parameter = all[i];
    const int64_t begin = parameter.place;
    const Residence residence = residence_of(parameter, zero);
    const int group = apart && residence == Residence::whole ? nn::GradientReady::kNoGroup : parameter.group;
    const bool is_last = rotate && parameter.gradient_is_last;
    if (!runs.empty()) runs.back().end = begin;
    if (runs.empty() || runs.back().group != group || runs.back().residence != residence ||
        runs.back().is_last != is_last) {
      runs.push_back({.begin = begin, .group = group, .residence = residence, .is_last = is_last});
    }
    runs.back().room += room_of(parameter);
    runs.back().parameters.push_back(i);
    runs.back().used_by.push_back(parameter.group);
  }
  runs.back().end = parameters_.flat_size();
  return runs;
}

void GradientReducer::cut(const ReducerOptions& options) {
  std::vector<Extent> runs = runs_of_parameters(options.zero);
  const bool apart =
      std::any_of(runs.begin(), runs.end(), [](const Extent& run) { return run.residence != Residence::whole; });
  // Those of no group come last, of each residence together; the first of them are those that can take turns.
  const auto turn = [](const Extent& run) {
    constexpr int kBehindGroups = std::numeric_limits<int>::max() - 8;
    if (run.is_last) return kBehindGroups - 1;
    return run.of_no_group() ? kBehindGroups + static_cast<int>(run.residence) : run.group;
  };
  std::stable_sort(runs.begin(), runs.end(), [&](const Extent& a, const Extent& b) { return turn(a) < turn(b); });

  const auto element_bytes = static_cast<int64_t>(c10::elementSize(options.dtype));
  std::vector<Extent> joined;  // one for each bucket
  std::vector<int64_t> sizes;  // elements
  for (const Extent& run : runs) {
    if (!joined.empty()) {
      // Blocks come in the reverse order of their memory, so that the next one mostly ends where the last began.
      Extent& last = joined.back();
      const bool neighbours = apart || run.end == last.begin || run.begin == last.end;
      const bool same_group = !run.of_no_group() && run.group == last.group && run.residence == last.residence;
      const bool full = sizes.back() * element_bytes >= options.bucket_bytes;
      if (neighbours && (!full || same_group) && run.of_no_group() == last.of_no_group() &&
          run.residence == last.residence && run.is_last == last.is_last) {
        last.begin = std::min(last.begin, run.begin);
        last.end = std::max(last.end, run.end);
        last.group = run.group;
        last.parameters.insert(last.parameters.end(), run.parameters.begin(), run.parameters.end());
        last.used_by.insert(last.used_by.end(), run.used_by.begin(), run.used_by.end());
        sizes.back() += run.room;
        std::vector<int>& groups = buckets_.back().groups;
        if (!run.of_no_group() && groups.back() != run.group) groups.push_back(run.group);
        continue;
      }
    }
    joined.push_back(run);
    sizes.push_back(run.room);
    Bucket& bucket = buckets_.emplace_back();
    bucket.is_last = run.is_last;
    if (!run.of_no_group()) bucket.groups.push_back(run.group);
  }

  if (zero_ > 0) {
    lay_out(joined);
    make_buffers(options.dtype, zero_ == 2 && parameters_.blocks_run_once());
    return;
  }
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    bucket.offset = joined[i].begin;
    bucket.gradients = parameters_.flat_grad().narrow(0, bucket.offset, joined[i].end - joined[i].begin);
    bucket.sent =
        options.dtype == at::kFloat ? bucket.gradients : at::empty_like(bucket.gradients, at::dtype(options.dtype));
    for (const size_t member : joined[i].parameters) {
      const nn::Parameter& parameter = parameters_.all()[member];
      if (nn::ParameterSet::is_overwritten(parameter)) bucket.overwritten.push_back(parameter.master.grad());
    }
  }
}

// Every bucket, in the order of memory, becomes a piece that can be cut into aligned slices.
void GradientReducer::lay_out(const std::vector<Extent>& extents) {
  layout_ = std::make_unique<FlatLayout>();
  FlatLayout& layout = *layout_;
  layout.rank = comm_.rank();
  layout.ranks = comm_.ranks();
  const int64_t unit = layout.ranks * kAlignment;
  std::vector<size_t> by_memory(extents.size());
  std::iota(by_memory.begin(), by_memory.end(), size_t{0});
  std::sort(by_memory.begin(), by_memory.end(),
            [&](size_t a, size_t b) { return extents[a].begin < extents[b].begin; });
  std::vector<int64_t> offsets(parameters_.all().size());
  for (const size_t i : by_memory) {
    std::vector<size_t> members = extents[i].parameters;
    std::sort(members.begin(), members.end());
    int64_t size = 0;
    for (const size_t member : members) {
      offsets[member] = layout.size + size;
      size += room_of(parameters_.all()[member]);
    }
    size = aligned(size, unit);
    buckets_[i].offset = layout.size;
    layout.pieces.push_back({.offset = layout.size, .size = size});
    pieces_.push_back({.residence = extents[i].residence, .groups = extents[i].used_by});
    layout.size += size;
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    const nn::Parameter& parameter = parameters_.all()[i];
    layout.members.push_back({.name = parameter.name, .sizes = parameter.master.sizes().vec(), .offset = offsets[i]});
  }
}

void GradientReducer::make_buffers(at::ScalarType dtype, bool rotate) {
  const at::TensorOptions floats = parameters_.all().front().master.options().requires_grad(false);
  const auto piece_of = [&](const Bucket& bucket) {
    return *std::find_if(layout_->pieces.begin(), layout_->pieces.end(),
                         [&](const FlatLayout::Piece& piece) { return piece.offset == bucket.offset; });
  };
  const auto size_of = [&](const Bucket& bucket) { return piece_of(bucket).size; };
  // A group in two buckets would have gradients in the second before its turn.
  size_t blocks = 0, groups = 0;
  for (const Bucket& bucket : buckets_) {
    blocks += bucket.groups.empty() ? 0 : 1;
    groups += bucket.groups.size();
  }
  if (rotate && blocks > 2 && groups == parameters_.gradient_ready()->groups().size()) {
    rotating_ = blocks;
    while (rotating_ < buckets_.size() && buckets_[rotating_].is_last) ++rotating_;
  }
  if (rotating_ == 0) zero_ = 1;

  std::array<int64_t, 2> longest{};
  int64_t held = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (i < rotating_) {
      longest[i % 2] = std::max(longest[i % 2], size_of(buckets_[i]));
    } else {
      held += size_of(buckets_[i]);
    }
  }
  for (size_t turn = 0; turn < 2; ++turn) turns_[turn] = at::zeros({longest[turn]}, floats);
  held_ = at::zeros({held}, floats);
  std::array<at::Tensor, 2> turns_sent = turns_;
  if (dtype != at::kFloat) {
    for (at::Tensor& sent : turns_sent) sent = at::empty_like(sent, at::dtype(dtype));
  }
  at::Tensor held_sent = dtype == at::kFloat ? held_ : at::empty_like(held_, at::dtype(dtype));

  held = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    const int64_t size = size_of(bucket);
    const bool turns = i < rotating_;
    bucket.gradients = (turns ? turns_[i % 2] : held_).narrow(0, turns ? 0 : held, size);
    bucket.sent = dtype == at::kFloat ? bucket.gradients
                                      : (turns ? turns_sent[i % 2] : held_sent).narrow(0, turns ? 0 : held, size);
    if (!turns) held += size;
  }
  share_ = at::zeros({layout_->share()}, floats);
  if (replicas_ != nullptr) crossing_ = dtype == at::kFloat ? share_ : at::zeros_like(share_, at::dtype(dtype));

  std::vector<at::Tensor> gradients;
  for (const FlatLayout::Member& member : layout_->members) {
    const auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) {
      return b.offset <= member.offset && member.offset < b.offset + b.gradients.numel();
    });
    gradients.push_back(
        bucket->gradients
            .narrow(0, member.offset - bucket->offset, c10::multiply_integers(member.sizes.begin(), member.sizes.end()))
            .view(member.sizes));
  }
  parameters_.place_gradients(gradients);
  find_overwritten();
}

void GradientReducer::find_overwritten() {
  for (Bucket& bucket : buckets_) {
    int64_t end = 0;  // of what is overwritten or to be cleared
    const auto clear_to = [&](int64_t begin) {
      if (begin > end) bucket.cleared.push_back(bucket.gradients.narrow(0, end, begin - end));
    };
    for (size_t i = 0; i < layout_->members.size(); ++i) {  // in the order of memory within a piece
      const int64_t begin = layout_->members[i].offset - bucket.offset;
      if (begin < 0 || begin >= bucket.gradients.numel()) continue;
      const nn::Parameter& parameter = parameters_.all()[i];
      if (!nn::ParameterSet::is_overwritten(parameter)) continue;
      ops::allow_stale(parameter.master.grad());
      bucket.overwritten.push_back(parameter.master.grad());
      clear_to(begin);
      end = begin + parameter.master.numel();
    }
    clear_to(bucket.gradients.numel());
  }
}

int64_t GradientReducer::gradient_bytes() const {
  if (!layout_) {
    auto bytes = static_cast<int64_t>(parameters_.flat_grad().nbytes());
    for (const Bucket& bucket : buckets_) {
      if (!bucket.sent.is_same(bucket.gradients)) bytes += static_cast<int64_t>(bucket.sent.nbytes());
    }
    return bytes;
  }
  const auto storage = [](const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); };
  int64_t bytes = storage(share_) + storage(held_) + storage(turns_[0]) + storage(turns_[1]);
  if (crossing_.defined() && !crossing_.is_same(share_)) bytes += storage(crossing_);
  std::vector<const void*> counted;
  for (const Bucket& bucket : buckets_) {
    const void* memory = bucket.sent.storage().unsafeGetStorageImpl();
    const bool known = bucket.sent.is_same(bucket.gradients) || std::count(counted.begin(), counted.end(), memory) > 0;
    if (known) continue;
    counted.push_back(memory);
    bytes += storage(bucket.sent);
  }
  return bytes;
}

void GradientReducer::clear() {
  if (!layout_) return parameters_.zero_grad();
  check_nothing_started();
  open_ = summed_ = false;
  if (zero_ != 1) return;  // else at the beginning of each micro-batch
  for (const Bucket& bucket : buckets_) {
    for (const at::Tensor& gradient : bucket.overwritten) ops::forget_passes(gradient);
    discard(bucket);
  }
}

// What the bucket's gradients were counts no more.
void GradientReducer::discard(const Bucket& bucket) {
  const at::NoGradGuard no_grad;
  if (!bucket.cleared.empty()) at::_foreach_zero_(bucket.cleared);
  for (const at::Tensor& gradient : bucket.overwritten) ops::discard_gradient_(gradient);
}

void GradientReducer::check_nothing_started() const {
  require(started_ == 0, ExitCode::unexpected, "the sums of gradients over the ranks of the step before were started (",
          started_, " of ", buckets_.size(), ") but not finished: call finish() after the last backward pass");
}

void GradientReducer::begin(bool last_micro_batch) {
  if (comm_.alone()) return;
  if (zero_ == 2 && open_ && !last_) settle();
  check_nothing_started();
  nn::GradientReady& gradients = *parameters_.gradient_ready();
  open_ = last_micro_batch || zero_ == 2;
  last_ = last_micro_batch;
  if (!open_) {
    gradients.listen({});
    return;
  }
  started_early_ = 0;
  complete_.assign(gradients.groups().size(), 0);
  if (zero_ == 2) {
    const at::NoGradGuard no_grad;
    for (const Bucket& bucket : buckets_) {
      for (const at::Tensor& gradient : bucket.overwritten) ops::forget_passes(gradient);
    }
    for (size_t i = rotating_; i < buckets_.size(); ++i) discard(buckets_[i]);
    open_buffer(0);
  }
  const auto used_again = [&gradients](int group) {
    fail(ExitCode::unexpected, "the block '", gradients.groups()[static_cast<size_t>(group)],
         "' is used twice in a pass, but its model says that blocks run once");
  };
  gradients.listen([this](int group) { ready(group); },
                   rotating_ > 0 ? nn::GradientReady::Listener(used_again) : nn::GradientReady::Listener());
}

void GradientReducer::ready(int group) {
  require(open_, ExitCode::unexpected, "gradients of group ", group, " are complete outside of a last micro-batch");
  if (rotating_ > 0) {
    const std::vector<int>& turn = buckets_[opened_].groups;
    require(std::count(turn.begin(), turn.end(), group) > 0, ExitCode::unexpected, "gradients of group ", group,
            " are complete before those of the groups before it");
  }
  complete_.at(static_cast<size_t>(group)) = 1;
  const auto is_complete = [&](const Bucket& bucket) {
    return !bucket.groups.empty() && std::all_of(bucket.groups.begin(), bucket.groups.end(),
                                                 [&](int g) { return complete_[static_cast<size_t>(g)] != 0; });
  };
  while (started_ < buckets_.size() && is_complete(buckets_[started_])) start_next();
  started_early_ = started_;
}

at::Tensor GradientReducer::own_slice(const Bucket& bucket) const {
  const int64_t size = bucket.sent.numel() / comm_.ranks();
  return bucket.sent.narrow(0, comm_.rank() * size, size);
}

// Where the sum of this rank's slice arrives: in its share, if that holds nothing yet and needs no other dtype.
at::Tensor GradientReducer::sum_of(const Bucket& bucket) const {
  const at::Tensor place = place_in_share(bucket, share_);
  return summed_ || bucket.sent.scalar_type() != place.scalar_type() ? own_slice(bucket) : place;
}

// It is this bucket's turn: its buffer must have been emptied by the one before the last.
void GradientReducer::open_buffer(size_t bucket) {
  if (bucket >= 2) {
    const StepClock::Wait waiting(comm_.clock());
    take_in(buckets_[bucket - 2]);
  }
  discard(buckets_[bucket]);
  opened_ = bucket;
}

void GradientReducer::start_next() {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[started_];
  for (const at::Tensor& gradient : bucket.overwritten) ops::settle_gradient_(gradient);
  if (!bucket.sent.is_same(bucket.gradients)) bucket.sent.copy_(bucket.gradients);
  bucket.pending = layout_ ? comm_.start_reduce_scatter(sum_of(bucket), bucket.sent)
                           : comm_.start_all_reduce(bucket.sent, Reduction::sum);
  ++started_;
  // What came in between travels on to the other groups, behind the backward pass too.
  if (replicas_ != nullptr && last_ && started_ >= 3) {
    const StepClock::Wait waiting(comm_.clock());
    take_in(buckets_[started_ - 3]);
  }
  if (started_ < rotating_) open_buffer(started_);
}

// Waits for a bucket's sum and takes it to where it is wanted.
void GradientReducer::take_in(Bucket& bucket) {
  if (!bucket.pending) return;
  bucket.pending->wait();
  bucket.pending.reset();
  if (layout_) {
    const at::Tensor sum = sum_of(bucket), place = place_in_share(bucket, share_);
    if (summed_) {
      place.add_(sum);
    } else if (!sum.is_alias_of(place)) {
      place.copy_(sum);
    }
    if (replicas_ == nullptr || !last_) return;
    const at::Tensor crossing = place_in_share(bucket, crossing_);
    if (!crossing_.is_same(share_)) crossing.copy_(place);
    bucket.crossing = replicas_->start_all_reduce(crossing, Reduction::sum);
  } else if (!bucket.sent.is_same(bucket.gradients)) {
    bucket.gradients.copy_(bucket.sent);
  }
}

// Where the sum of this rank's slice is, in its share.
at::Tensor GradientReducer::place_in_share(const Bucket& bucket, const at::Tensor& of) const {
  return of.narrow(0, bucket.offset / comm_.ranks(), bucket.sent.numel() / comm_.ranks());
}

void GradientReducer::take_in_crossing(Bucket& bucket) {
  if (!bucket.crossing) return;
  bucket.crossing->wait();
  bucket.crossing.reset();
  if (!crossing_.is_same(share_)) place_in_share(bucket, share_).copy_(place_in_share(bucket, crossing_));
}

// All gradients of the micro-batch under way are there.
void GradientReducer::settle() {
  // The last may be missing: the first block's input needs no gradient where the embedding is frozen, so that nothing
  // reports its end. Its buffer was open for it.
  require(started_ + 1 >= rotating_, ExitCode::unexpected, "a backward pass left out blocks: ", started_, " of ",
          rotating_, " buckets are complete");
  open_ = false;
  parameters_.gradient_ready()->listen({});
  while (started_ < buckets_.size()) start_next();
  const at::NoGradGuard no_grad;
  const StepClock::Wait waiting(comm_.clock());
  for (Bucket& bucket : buckets_) take_in(bucket);
  for (Bucket& bucket : buckets_) take_in_crossing(bucket);
  started_ = 0;
  summed_ = true;
}

void GradientReducer::abandon() {
  for (Bucket& bucket : buckets_) {
    bucket.pending.reset();
    bucket.crossing.reset();
  }
  started_ = started_early_ = 0;
  open_ = last_ = summed_ = false;
  if (!comm_.alone()) parameters_.gradient_ready()->listen({});
}

void GradientReducer::finish() {
  if (comm_.alone()) return;
  require(open_ && last_, ExitCode::unexpected,
          "there are no gradients to finish: no micro-batch was begun as the last one");
  settle();
}

}  // namespace hrm::parallel
