#include "hrm/parallel/gradient_reducer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "hrm/base/error.h"
#include "hrm/models/decoder.h"
#include "hrm/parallel/mesh.h"
#include "parallel/small_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

using test::build;
using test::Kind;
using test::pass;
using test::Ranks;

// Two ranks with the same gradients, in one thread. What is started is written down; the sum comes with wait().
class TwinComm : public Comm {
 public:
  struct Start {
    int64_t offset, numel;
    bool in_place = true;  // the sum arrives where the rank's own numbers were
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
  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    EXPECT_EQ(in.numel(), 2 * out.numel());
    const bool in_place = out.is_alias_of(in);
    if (in_place) {
      EXPECT_EQ(in.const_data_ptr(), out.const_data_ptr()) << "this rank's slice of the input is the first";
    } else {
      out.copy_(in.narrow(0, 0, out.size(0)));
    }
    starts.push_back({in.storage_offset(), in.numel(), in_place});
    return std::make_unique<Twice>(*this, out);
  }
  std::unique_ptr<Pending> start_all_gather(const at::Tensor& /*out*/, const at::Tensor& /*in*/) override {
    ADD_FAILURE();
    return nullptr;
  }
  std::unique_ptr<Pending> start_all_to_all(const at::Tensor&, const at::Tensor&) override {
    ADD_FAILURE();
    return nullptr;
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>&, const std::vector<Transfer>&) override {
    ADD_FAILURE();
    return nullptr;
  }
  std::unique_ptr<Comm> split(const Subgroup&) override {
    ADD_FAILURE();
    return nullptr;
  }
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

// The whole flat vector of `layout` from the ranks' shares, and from it the gradients in the order of parameters.
std::vector<at::Tensor> whole_of(Comm& comm, const FlatLayout& layout, const at::Tensor& share) {
  const at::Tensor flat = at::empty({layout.size}), all = at::empty({comm.ranks() * share.numel()});
  comm.all_gather(all, share);
  for (const FlatLayout::Piece& piece : layout.pieces) {
    const int64_t slice = layout.slice_size(piece);
    for (int64_t rank = 0; rank < layout.ranks; ++rank) {
      flat.narrow(0, piece.offset + rank * slice, slice)
          .copy_(all.narrow(0, rank * share.numel() + layout.share_offset(piece), slice));
    }
  }
  std::vector<at::Tensor> members;
  for (const FlatLayout::Member& member : layout.members) {
    members.push_back(flat.narrow(0, member.offset, c10::multiply_integers(member.sizes)).view(member.sizes));
  }
  EXPECT_EQ(flat.ne(0).sum().item<int64_t>(), [&] {
    int64_t count = 0;
    for (const at::Tensor& member : members) count += member.ne(0).sum().item<int64_t>();
    return count;
  }()) << "something between the parameters";
  return members;
}

// With threads the order of additions is that of zero 0: the same bits.
TEST_P(ReducerTest, SharesOfTheSum) {
  for (const std::string arch : {"hrm", "trm"}) {
    for (const int64_t bucket_bytes : {kEachGroup, int64_t{50000}, kAllTogether}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        for (const int64_t zero : {1, 2}) {
          test::on_ranks(GetParam(), [&](Comm& comm) {
            const auto model = build(arch), plain = build(arch);
            GradientReducer reducer(model->parameter_set(), comm, {bucket_bytes, dtype, zero});
            GradientReducer whole(plain->parameter_set(), comm, {bucket_bytes, dtype});
            ASSERT_EQ(whole.layout(), nullptr);
            const FlatLayout& layout = *reducer.layout();
            EXPECT_EQ(reducer.share().numel(), layout.share());
            for (int64_t step = 0; step < 2; ++step) {
              reducer.clear();
              whole.clear();
              for (int64_t micro = 0; micro < 3; ++micro) {
                const int64_t sample = (step * 3 + micro) * comm.ranks() + comm.rank();
                reducer.begin(/*last_micro_batch=*/micro == 2);
                pass(*model, sample);
                whole.begin(micro == 2);
                pass(*plain, sample);
              }
              reducer.finish();
              whole.finish();
              EXPECT_EQ(reducer.buckets(), whole.buckets());
              EXPECT_EQ(reducer.started_early(), whole.started_early());
              const std::vector<at::Tensor> sums = whole_of(comm, layout, reducer.share());
              const auto& parameters = plain->parameter_set().all();
              ASSERT_EQ(sums.size(), parameters.size());
              // Sums of micro-batches first, or of ranks first: another order but where each adds to zero.
              const double tolerance = dtype == at::kBFloat16 ? 3e-2 : 2e-6;
              for (size_t i = 0; i < sums.size(); ++i) {
                const at::Tensor expected = parameters[i].master.grad();
                const double error = (sums[i] - expected).norm().item<double>();
                EXPECT_LE(error, tolerance * expected.norm().item<double>())
                    << arch << " zero " << zero << " " << parameters[i].name;
                if (zero == 1 && GetParam().kind == Kind::threads) {
                  EXPECT_TRUE(at::equal(sums[i], expected)) << arch << " " << parameters[i].name;
                }
              }
            }
          });
        }
      }
    }
  }
}

// Two groups of two ranks: shares of a group are sums of both, and cross once a step, behind the backward pass.
TEST(GradientReducerGroups, SharesAreSumsOfAllGroups) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t zero : {1, 2}) {
      test::on_ranks({Kind::threads, 4}, [&](Comm& comm) {
        const auto counted = std::make_shared<CountingComm>(test::borrowed(comm));
        const Mesh mesh(counted, {.replicas = 2});
        Comm& shards = mesh.axis(Axis::shard);
        const auto model = build("hrm"), plain = build("hrm");
        GradientReducer reducer(model->parameter_set(), shards, {kEachGroup, dtype, zero}, &mesh.axis(Axis::replica));
        GradientReducer whole(plain->parameter_set(), comm, {kEachGroup});
        for (int64_t step = 0; step < 2; ++step) {
          reducer.clear();
          whole.clear();
          counted->forget();
          const auto crossed = [&] { return counted->traffic().calls(CommOperation::Kind::all_reduce); };
          for (int64_t micro = 0; micro < 3; ++micro) {
            EXPECT_EQ(crossed(), 0) << "before the last micro-batch";
            const int64_t sample = (step * 3 + micro) * comm.ranks() + comm.rank();
            reducer.begin(/*last_micro_batch=*/micro == 2);
            pass(*model, sample);
            whole.begin(micro == 2);
            pass(*plain, sample);
          }
          EXPECT_EQ(crossed(), static_cast<int64_t>(reducer.started_early()) - 2) << "in the backward pass";
          reducer.finish();
          whole.finish();
          EXPECT_EQ(crossed(), static_cast<int64_t>(reducer.buckets()));
          const auto crossing = static_cast<int64_t>(reducer.share().numel() * c10::elementSize(dtype));
          EXPECT_EQ(counted->traffic().bytes(CommOperation::Kind::all_reduce), crossing);
          const std::vector<at::Tensor> sums = whole_of(shards, *reducer.layout(), reducer.share());
          for (size_t i = 0; i < sums.size(); ++i) {
            const at::Tensor expected = plain->parameter_set().all()[i].master.grad();
            EXPECT_LE((sums[i] - expected).norm().item<double>(),
                      (dtype == at::kBFloat16 ? 3e-2 : 2e-6) * expected.norm().item<double>())
                << plain->parameter_set().all()[i].name;
          }
          const at::Tensor both = at::empty({2, reducer.share().numel()});
          mesh.axis(Axis::replica).all_gather(both, reducer.share().unsqueeze(0));
          EXPECT_TRUE(at::equal(both[0], both[1]));
        }
      });
    }
  }
  const auto model = build("hrm");
  const auto alone = make_fake_comm(0, 1), two = make_fake_comm(0, 2);
  EXPECT_THROW(GradientReducer(model->parameter_set(), *alone, {.zero = 1}, two.get()), Error);
  EXPECT_THROW(GradientReducer(model->parameter_set(), *two, {.zero = 0}, two.get()), Error);
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
  GradientReducer reducer(model->parameter_set(), *comm, {.zero = 2});
  EXPECT_EQ(reducer.buckets(), 0u);
  EXPECT_EQ(reducer.layout(), nullptr);
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

// Slices are equal and aligned, whatever the number of ranks, and every parameter lies whole in one bucket.
TEST(GradientReducer, LayoutOfShares) {
  struct ManyRanks : TwinComm {
    int ranks() const override { return count; }
    int count = 2;
  };
  for (const int ranks : {2, 3, 8, 64}) {
    for (const int64_t bucket_bytes : {kEachGroup, kAllTogether}) {
      const auto model = build("hrm"), plain = build("hrm");
      ManyRanks comm;
      comm.count = ranks;
      const GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = bucket_bytes, .zero = 1});
      const FlatLayout& layout = *reducer.layout();
      int64_t end = 0;
      for (const FlatLayout::Piece& piece : layout.pieces) {
        EXPECT_EQ(piece.offset, end);
        EXPECT_EQ(piece.size % (ranks * nn::ParameterSet::kGradAlignment), 0);
        end = piece.offset + piece.size;
      }
      EXPECT_EQ(end, layout.size);
      EXPECT_EQ(layout.share() * ranks, layout.size);
      const int64_t padding = static_cast<int64_t>(reducer.buckets()) * ranks * nn::ParameterSet::kGradAlignment;
      EXPECT_LE(layout.size, plain->parameter_set().flat_grad().numel() + padding);

      const auto& parameters = model->parameter_set().all();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const nn::Parameter& parameter = parameters[i];
        EXPECT_EQ(layout.members[i].name, parameter.name);
        EXPECT_EQ(layout.members[i].offset % nn::ParameterSet::kGradAlignment, 0) << parameter.name;
        EXPECT_TRUE(at::equal(parameter.master, plain->parameter_set().all()[i].master)) << parameter.name;
        EXPECT_TRUE(parameter.master.is_leaf() && parameter.master.requires_grad());
      }
    }
  }
}

// Zero 2 holds the gradients of two blocks instead of five; TRM, whose blocks run several times, holds all.
TEST(GradientReducer, BuffersTakeTurns) {
  const auto bytes = [](const std::string& arch, int64_t zero, at::ScalarType dtype) {
    const auto model = build(arch);
    TwinComm comm;
    return GradientReducer(model->parameter_set(), comm, {kEachGroup, dtype, zero}).gradient_bytes();
  };
  const auto model = build("hrm");
  int64_t block = 0, rest = 0;  // bytes in float32
  for (const nn::Parameter& parameter : model->parameter_set().all()) {
    if (parameter.group == 0) block += parameter.master.numel() * 4;
    if (parameter.group == nn::GradientReady::kNoGroup) rest += parameter.master.numel() * 4;
  }
  const int64_t share = (5 * block + rest) / 2, padding = 6 * 2 * 64 * 4 * 2 + 8 * 256;
  EXPECT_NEAR(bytes("hrm", 0, at::kFloat), 5 * block + rest, padding);
  EXPECT_NEAR(bytes("hrm", 1, at::kFloat), 5 * block + rest + share, padding);
  EXPECT_NEAR(bytes("hrm", 2, at::kFloat), 2 * block + rest + share, padding);
  EXPECT_NEAR(bytes("hrm", 2, at::kBFloat16), 1.5 * (2 * block + rest) + share, padding);
  EXPECT_EQ(bytes("trm", 2, at::kFloat), bytes("trm", 1, at::kFloat));

  TwinComm comm;
  const GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup, .zero = 2});
  std::map<std::string, const void*> memory;
  for (const nn::Parameter& parameter : model->parameter_set().all()) {
    if (parameter.name.ends_with("self_attn.qkv_proj.weight")) {
      memory[parameter.name.substr(0, parameter.name.find(".self"))] = parameter.master.grad().storage().data();
    }
  }
  ASSERT_EQ(memory.size(), 5u);
  EXPECT_EQ(memory["H_level.layers.1"], memory["L_level.layers.2"]);
  EXPECT_EQ(memory["H_level.layers.1"], memory["L_level.layers.0"]);
  EXPECT_EQ(memory["H_level.layers.0"], memory["L_level.layers.1"]);
  EXPECT_NE(memory["H_level.layers.1"], memory["H_level.layers.0"]);
}

// Of a decoder whose head is not tied the head's gradient comes first and the embedding's last, into buffers of the
// blocks. The head may be used several times.
TEST_P(ReducerTest, HeadAndEmbeddingTakeTurns) {
  struct Trained {
    explicit Trained(bool tied)
        : decoder({.vocabulary = 301, .width = 32, .layers = 4, .heads = 2, .tied = tied}, /*cross=*/false, at::kCPU) {
      const at::NoGradGuard no_grad;
      for (const at::Tensor& weight : decoder.parameters()) {
        if (weight.dim() == 1) {
          weight.fill_(1);
        } else {
          weight.uniform_(-0.1, 0.1, at::detail::createCPUGenerator(static_cast<uint64_t>(weight.size(0))));
        }
      }
      set.build(decoder, at::kFloat, /*blocks_run_once=*/true);
    }
    void pass(int64_t sample) {
      const at::Tensor ids = (at::arange(12, at::kLong) * (sample + 2)).remainder(301).view({2, 6});
      const at::Tensor hidden = decoder.forward(ids, at::kFloat);
      (decoder.head().forward(hidden).square().sum() + decoder.head().forward(hidden.sin()).sum()).backward();
    }
    models::Decoder decoder;
    nn::ParameterSet set;
  };
  for (const bool tied : {false, true}) {
    test::on_ranks(GetParam(), [&](Comm& comm) {
      Trained model(tied), plain(tied);
      GradientReducer reducer(model.set, comm, {.bucket_bytes = kEachGroup, .zero = 2});
      GradientReducer whole(plain.set, comm, {.bucket_bytes = kEachGroup});
      std::map<std::string, const void*> memory;
      for (const nn::Parameter& parameter : model.set.all()) {
        memory[parameter.name] = parameter.master.grad().storage().data();
      }
      const void* const embedding = memory.at("embed_tokens.weight");
      EXPECT_EQ(embedding == memory.at("layers.0.mlp.down_proj.weight") ||
                    embedding == memory.at("layers.1.mlp.down_proj.weight"),
                !tied);
      if (!tied) {
        EXPECT_EQ(memory.at("lm_head.weight"), memory.at("layers.2.mlp.down_proj.weight"));
        EXPECT_EQ(memory.at("lm_head.weight"), memory.at("layers.0.mlp.down_proj.weight"));
      }
      EXPECT_EQ(embedding == memory.at("norm.weight"), tied) << "that norm's gradient comes first";
      for (int64_t step = 0; step < 2; ++step) {
        reducer.clear();
        whole.clear();
        for (int64_t micro = 0; micro < 2; ++micro) {
          const int64_t sample = (step * 2 + micro) * comm.ranks() + comm.rank();
          reducer.begin(/*last_micro_batch=*/micro == 1);
          model.pass(sample);
          whole.begin(micro == 1);
          plain.pass(sample);
        }
        reducer.finish();
        whole.finish();
        const std::vector<at::Tensor> sums = whole_of(comm, *reducer.layout(), reducer.share());
        for (size_t i = 0; i < sums.size(); ++i) {
          const at::Tensor expected = plain.set.all()[i].master.grad();
          EXPECT_GT(expected.norm().item<double>(), 0) << plain.set.all()[i].name;
          EXPECT_LE((sums[i] - expected).norm().item<double>(), 2e-6 * expected.norm().item<double>())
              << plain.set.all()[i].name << (tied ? ", tied" : "");
        }
      }
    });
  }
}

// What would mix the gradients of two blocks is an error, not a wrong sum.
// A step's first sums arrive in the share, without a copy; those of later micro-batches are added to it. A TRM's blocks
// run several times, so that its gradients are summed once a step.
TEST(GradientReducer, FirstSumsArriveInTheShare) {
  for (const std::string arch : {"hrm", "trm"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto model = build(arch);
      TwinComm comm;
      GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachGroup, .dtype = dtype, .zero = 2});
      for (int step = 0; step < 2; ++step) {
        reducer.clear();
        for (int64_t micro = 0; micro < 2; ++micro) {
          reducer.begin(/*last_micro_batch=*/micro == 1);  // starts what the one before left
          comm.starts.clear();
          pass(*model, micro);
          if (micro == 1) reducer.finish();
          const bool first = arch == "trm" || micro == 0;
          for (const TwinComm::Start& start : comm.starts) EXPECT_EQ(start.in_place, !first || dtype != at::kFloat);
        }
        EXPECT_FALSE(comm.starts.empty());
      }
    }
  }
}

TEST(GradientReducer, TurnsMustBeInOrder) {
  const auto model = build("hrm");
  TwinComm comm;
  const ReducerOptions options{.bucket_bytes = kEachGroup, .zero = 2};
  {
    GradientReducer reducer(model->parameter_set(), comm, options);
    reducer.clear();
    reducer.begin(true);
    const int64_t B = 2, D = model->config().hidden_size, L = model->dims().puzzle_emb_len + model->dims().seq_len;
    const at::Tensor tokens = at::ones({B, model->dims().seq_len}, at::kInt), rows = at::ones({B, D});
    const models::Carry carry{at::ones({B, L, D}), at::ones({B, L, D})};
    model->segment(carry, tokens, rows);
    test::expect_error(ExitCode::unexpected, {"'L_level.layers.0' is used twice"},
                       [&] { model->segment(carry, tokens, rows); });
  }
  {
    const auto other = build("hrm");
    GradientReducer reducer(other->parameter_set(), comm, options);
    reducer.begin(true);
    reducer.ready(0);
    test::expect_error(ExitCode::unexpected, {"group 2", "before those of the groups before it"},
                       [&] { reducer.ready(2); });
  }
  {
    const auto other = build("hrm");
    GradientReducer reducer(other->parameter_set(), comm, options);
    reducer.begin(true);
    reducer.ready(0);
    test::expect_error(ExitCode::unexpected, {"left out blocks", "1 of 5"}, [&] { reducer.finish(); });
  }
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
