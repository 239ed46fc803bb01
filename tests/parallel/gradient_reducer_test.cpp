#include "hrm/parallel/gradient_reducer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/models/puzzle_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

using test::Kind;
using test::Ranks;

// Three blocks of L, and with hrm two of H.
std::shared_ptr<models::PuzzleModel> build(const std::string& arch) {
  config::ModelConfig c;
  c.arch = arch;
  c.hidden_size = 16;
  c.num_heads = 2;
  c.L_layers = 3;
  c.H_layers = arch == "hrm" ? 2 : 0;
  c.H_cycles = 1;
  c.L_cycles = 2;
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = 9;
  return models::make_puzzle_model(c, models::resolve_dims(c, meta), 0, at::kCPU, at::kFloat);
}

// Forward and backward pass over rows that depend on `sample` alone.
void pass(models::PuzzleModel& model, int64_t sample) {
  const int64_t B = 2, P = model.dims().puzzle_emb_len, S = model.dims().seq_len, D = model.config().hidden_size;
  const auto values = [&](at::IntArrayRef sizes) {
    return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * (1.3 + static_cast<double>(sample)))
        .view(sizes);
  };
  const at::Tensor tokens = (at::arange(B * S, at::kInt) * (sample + 2) % 11).view({B, S});
  const auto out = model.segment({values({B, P + S, D}), values({B, P + S, D})}, tokens,
                                 values({B, model.dims().puzzle_emb_ndim}).requires_grad_());
  (out.logits.square().sum() + out.q.square().sum()).backward();
}

// Two ranks with the same gradients, in one thread. What is started is written down; the sum comes with wait().
class TwinComm : public Comm {
 public:
  struct Start {
    int64_t offset, numel;
  };

  int rank() const override { return 0; }
  int ranks() const override { return 2; }
  std::string describe() const override { return "a twin"; }
  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    EXPECT_EQ(reduction, Reduction::sum);
    if (static_cast<int>(starts.size()) == fail_at_start) fail(ExitCode::rank_failed, "the twin has left");
    starts.push_back({tensor.storage_offset(), tensor.numel()});
    return std::make_unique<Twice>(*this, tensor);
  }
  void all_gather(const at::Tensor&, const at::Tensor&) override { FAIL(); }
  void broadcast(const at::Tensor&, int) override { FAIL(); }
  void barrier() override { FAIL(); }

  std::vector<int64_t> offsets() const {
    std::vector<int64_t> result;
    for (const Start& start : starts) result.push_back(start.offset);
    return result;
  }

  std::vector<Start> starts;
  int waits = 0;
  int fail_at_start = -1, fail_at_wait = -1;

 private:
  struct Twice : Pending {
    Twice(TwinComm& comm, at::Tensor tensor) : comm_(comm), tensor_(std::move(tensor)) {}
    void wait() override {
      if (comm_.waits == comm_.fail_at_wait) fail(ExitCode::rank_failed, "the twin has left");
      ++comm_.waits;
      tensor_.mul_(2);
    }
    TwinComm& comm_;
    at::Tensor tensor_;
  };
};

constexpr int64_t kEachGroup = 1, kAllTogether = int64_t{8} << 20;

class ReducerTest : public testing::TestWithParam<Ranks> {};

// Two steps of two micro-batches; the rank's own gradients come from a model that nobody listens to.
TEST_P(ReducerTest, SumsOverTheRanks) {
  for (const std::string arch : {"hrm", "trm"}) {
    for (const int64_t bucket_bytes : {kEachGroup, kAllTogether}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        test::on_ranks(GetParam(), [&](Comm& comm) {
          const auto model = build(arch), own = build(arch);
          const at::Tensor &flat = model->parameter_set().flat_grad(), &own_flat = own->parameter_set().flat_grad();
          GradientReducer reducer(model->parameter_set(), comm, {bucket_bytes, dtype});
          for (int64_t step = 0; step < 2; ++step) {
            model->parameter_set().zero_grad();
            own->parameter_set().zero_grad();
            for (int64_t micro = 0; micro < 2; ++micro) {
              const int64_t sample = (step * 2 + micro) * comm.ranks() + comm.rank();
              pass(*own, sample);
              reducer.begin(/*last_micro_batch=*/micro == 1);
              pass(*model, sample);
            }
            reducer.finish();

            at::Tensor all_own = at::empty({comm.ranks(), flat.numel()}), all_sums = at::empty_like(all_own);
            comm.all_gather(all_own, own_flat.unsqueeze(0));
            comm.all_gather(all_sums, flat.unsqueeze(0));
            const at::Tensor sum = all_own.sum(0);
            EXPECT_GT(sum.abs().max().item<double>(), 1e-3);
            EXPECT_GT((all_own[0] - all_own[1]).norm().item<double>(), 0.1 * all_own[0].norm().item<double>())
                << "the ranks have other rows";
            const double error = (flat - sum).norm().item<double>() / sum.norm().item<double>();
            EXPECT_LT(error, dtype == at::kFloat ? 1e-6 : 1e-2) << arch;
            EXPECT_EQ(error > 1e-5, dtype == at::kBFloat16) << "only bfloat16 rounds: " << error;
            for (int rank = 0; rank < comm.ranks(); ++rank) EXPECT_TRUE(at::equal(all_sums[rank], flat)) << rank;

            const size_t levels = arch == "hrm" ? 2 : 1, blocks = arch == "hrm" ? 5 : 3;
            const size_t early = bucket_bytes == kEachGroup ? blocks : levels;
            EXPECT_EQ(reducer.started_early(), early);
            EXPECT_EQ(reducer.buckets(), early + 1) << "the embedding and the heads lie side by side";
          }
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ReducerTest, testing::Values(Ranks{Kind::threads, 2}, Ranks{Kind::threads, 3}));
INSTANTIATE_TEST_SUITE_P(Gloo, ReducerTest, testing::Values(Ranks{Kind::gloo, 2}));

TEST(GradientReducer, BucketsCoverAllGradientsOnce) {
  for (const int64_t bucket_bytes : {kEachGroup, int64_t{100000}, kAllTogether}) {
    const auto model = build("hrm");
    TwinComm comm;
    GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = bucket_bytes});
    reducer.begin(true);
    reducer.finish();
    ASSERT_EQ(comm.starts.size(), reducer.buckets());
    std::sort(comm.starts.begin(), comm.starts.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    int64_t end = 0;
    for (const TwinComm::Start& start : comm.starts) {
      EXPECT_EQ(start.offset, end) << bucket_bytes;
      end = start.offset + start.numel;
    }
    EXPECT_EQ(end, model->parameter_set().flat_grad().numel()) << bucket_bytes;
  }
}

TEST(GradientReducer, BlocksShareABucketUntilItIsFull) {
  const auto model = build("hrm");
  TwinComm comm;
  const auto buckets = [&](int64_t bytes, at::ScalarType dtype) {
    return GradientReducer(model->parameter_set(), comm, {bytes, dtype}).buckets();
  };
  int64_t block = 0;  // bytes in float32
  for (const nn::Parameter& parameter : model->parameter_set().all()) {
    if (parameter.group == 0) block += parameter.master.numel() * 4;
  }
  EXPECT_EQ(buckets(block, at::kFloat), 6u);
  EXPECT_EQ(buckets(block + 1, at::kFloat), 4u);  // H.1 H.0 | L.2 L.1 | L.0 | rest
  EXPECT_EQ(buckets(block / 2 + 1, at::kBFloat16), 4u);
  EXPECT_EQ(buckets(block + block / 2, at::kBFloat16), 3u);
  EXPECT_EQ(buckets(3 * block, at::kFloat), 3u);
}

TEST(GradientReducer, OnlyTheLastMicroBatchStarts) {
  const auto model = build("trm");
  const at::Tensor& flat = model->parameter_set().flat_grad();
  TwinComm comm;
  GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup});
  for (int64_t micro = 0; micro < 3; ++micro) {
    reducer.begin(/*last_micro_batch=*/false);
    pass(*model, micro);
  }
  EXPECT_TRUE(comm.starts.empty());
  const at::Tensor before = flat.clone();
  reducer.begin(true);
  pass(*model, 3);
  EXPECT_EQ(comm.starts.size(), 3u);
  EXPECT_EQ(comm.waits, 0);
  const at::Tensor own = flat.clone();
  EXPECT_FALSE(at::equal(own, before));
  reducer.finish();
  EXPECT_EQ(comm.waits, 4);
  EXPECT_EQ(reducer.started_early(), 3u);
  EXPECT_TRUE(at::equal(flat, 2 * own));
  // Nobody listens any more: an evaluation of gradients between two steps is none of ours.
  pass(*model, 4);
  EXPECT_EQ(comm.starts.size(), 4u);
}

// In whatever order the groups become complete, the buckets start in the same one.
TEST(GradientReducer, OrderOfStartsIsFixed) {
  const auto model = build("hrm");
  std::vector<int> order{0, 1, 2, 3, 4};
  std::vector<int64_t> first_offsets;
  do {
    TwinComm comm;
    GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup});
    reducer.begin(true);
    std::vector<bool> complete(order.size());
    for (const int group : order) {
      reducer.ready(group);
      complete[static_cast<size_t>(group)] = true;
      const auto in_turn = std::find(complete.begin(), complete.end(), false) - complete.begin();
      ASSERT_EQ(comm.starts.size(), static_cast<size_t>(in_turn));
    }
    reducer.finish();
    ASSERT_EQ(comm.starts.size(), 6u);
    if (first_offsets.empty()) first_offsets = comm.offsets();
    ASSERT_EQ(comm.offsets(), first_offsets);
  } while (std::next_permutation(order.begin(), order.end()));

  // The first is the last block of H, the last what lies in front of the blocks.
  const nn::ParameterSet& set = model->parameter_set();
  const auto offset_of = [&](const std::string& name) {
    for (const nn::Parameter& parameter : set.all()) {
      if (parameter.name.find(name) == 0) return parameter.master.grad().storage_offset();
    }
    return int64_t{-1};
  };
  EXPECT_EQ(first_offsets.front(), offset_of("H_level.layers.1."));
  EXPECT_EQ(first_offsets[2], offset_of("L_level.layers.2."));
  EXPECT_EQ(first_offsets.back(), offset_of("embed_tokens."));
}

// Ranks whose groups become complete in different orders still meet.
TEST(GradientReducer, RanksThatAreReadyInDifferentOrders) {
  const auto comms = make_thread_comms(2, /*timeout_s=*/30);
  test::on_threads(2, [&](int rank) {
    const auto model = build("hrm");
    const at::Tensor& flat = model->parameter_set().flat_grad();
    flat.copy_(at::arange(flat.numel()) * (rank + 1));
    GradientReducer reducer(model->parameter_set(), *comms[static_cast<size_t>(rank)], {.bucket_bytes = kEachGroup});
    reducer.begin(true);
    const std::vector<int> order = rank == 0 ? std::vector<int>{0, 1, 2, 3, 4} : std::vector<int>{3, 1, 4, 0, 2};
    for (const int group : order) reducer.ready(group);
    EXPECT_EQ(reducer.started_early(), 5u);
    reducer.finish();
    EXPECT_TRUE(at::equal(flat, at::arange(flat.numel()) * 3));
  });
}

// A group that nobody reports, and those after it, are taken at the end.
TEST(GradientReducer, FinishStartsWhatIsLeft) {
  const auto model = build("hrm");
  const at::Tensor& flat = model->parameter_set().flat_grad();
  flat.fill_(1);
  TwinComm comm;
  GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup});
  reducer.begin(true);
  for (const int group : {0, 1, 3, 4}) reducer.ready(group);
  EXPECT_EQ(comm.starts.size(), 2u);
  reducer.finish();
  EXPECT_EQ(reducer.started_early(), 2u);
  EXPECT_EQ(comm.starts.size(), 6u);
  EXPECT_TRUE(at::equal(flat, at::full_like(flat, 2)));
}

TEST(GradientReducer, AloneItDoesNothing) {
  const auto model = build("trm"), plain = build("trm");
  const auto comm = make_single_comm();
  GradientReducer reducer(model->parameter_set(), *comm);
  EXPECT_EQ(reducer.buckets(), 0u);
  reducer.begin(true);
  const at::Tensor x = at::ones({1}).requires_grad_();
  EXPECT_TRUE(model->parameter_set().gradient_ready()->mark(x, 0).is_same(x)) << "somebody listens";
  pass(*model, 0);
  pass(*plain, 0);
  reducer.finish();
  EXPECT_EQ(reducer.started_early(), 0u);
  EXPECT_TRUE(at::equal(model->parameter_set().flat_grad(), plain->parameter_set().flat_grad()));
}

TEST(GradientReducer, ErrorsKeepTheirKind) {
  const auto model = build("hrm");
  {
    TwinComm comm;
    comm.fail_at_start = 1;
    GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup});
    reducer.begin(true);
    test::expect_error(ExitCode::rank_failed, {"the twin has left"}, [&] { pass(*model, 0); });
    EXPECT_EQ(comm.starts.size(), 1u);
    test::expect_error(ExitCode::unexpected, {"1 of 6", "finish()"}, [&] { reducer.begin(true); });
  }
  {
    TwinComm comm;
    comm.fail_at_wait = 2;
    GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup});
    reducer.begin(true);
    pass(*model, 0);
    test::expect_error(ExitCode::rank_failed, {"the twin has left"}, [&] { reducer.finish(); });
  }
  {
    const auto comms = make_thread_comms(2, /*timeout_s=*/0.05);
    GradientReducer reducer(model->parameter_set(), *comms[0]);
    reducer.begin(true);
    test::expect_error(ExitCode::rank_failed, {"rank 0 waited"}, [&] { pass(*model, 0); });
  }
  pass(*model, 0);  // the reducers are gone, and nobody listens
}

TEST(GradientReducer, CallsOutOfTurn) {
  const auto model = build("trm");
  TwinComm comm;
  GradientReducer reducer(model->parameter_set(), comm);
  test::expect_error(ExitCode::unexpected, {"no micro-batch was begun as the last"}, [&] { reducer.finish(); });
  reducer.begin(false);
  test::expect_error(ExitCode::unexpected, {"no micro-batch was begun as the last"}, [&] { reducer.finish(); });
  test::expect_error(ExitCode::unexpected, {"group 1", "last micro-batch"}, [&] { reducer.ready(1); });
  test::expect_error(ExitCode::unexpected, {"float32 or bfloat16"},
                     [&] { GradientReducer(model->parameter_set(), comm, {.dtype = at::kHalf}); });
}

}  // namespace
}  // namespace hrm::parallel
