// Weights that take turns (zero 3): the same training as with whole weights, few blocks at a time.

#include "hrm/parallel/weight_gather.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

#include "hrm/base/error.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/nn/lora.h"
#include "hrm/ops/stale_gradient.h"
#include "hrm/optim/groups.h"
#include "hrm/parallel/parameter_shards.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/whole_state.h"

namespace hrm::parallel {
namespace {

// Bounds of this program hold with the products that every CPU has (tests/support/main.cpp).
[[maybe_unused]] const int kCompatibleProducts = setenv("MKL_CBWR", "COMPATIBLE", /*overwrite=*/0);

using models::LanguageInputs;
using models::LanguageModel;
using test::Kind;
using test::Ranks;

constexpr int64_t kVocabulary = 31, kLength = 7, kRows = 24, kEachBlock = 1;

models::DecoderOptions decoder_options() {
  return {.vocabulary = kVocabulary, .width = 16, .layers = 4, .heads = 4, .kv_heads = 2, .inner = 24, .positions = 32};
}

struct Net {
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<nn::LoraSet> lora = {};
  bool prompted = false;
};
using MakeNet = std::function<Net(at::ScalarType)>;

MakeNet decoder(const std::function<void(models::DecoderOptions&)>& change) {
  return [change](at::ScalarType dtype) {
    models::DecoderOptions options = decoder_options();
    change(options);
    const auto model = std::make_shared<models::DecoderLm>(options, at::kCPU);
    model->initialise(/*seed=*/1, dtype);
    return Net{model};
  };
}

// Entries of embeddings of which a rank has copies in bfloat16, and a share of the masters.
constexpr int64_t kLargeVocabulary = 300;

MakeNet large_decoder(bool tied) {
  return decoder([tied](models::DecoderOptions& o) {
    o.vocabulary = kLargeVocabulary;
    o.tied = tied;
  });
}

// Adapters on all layers, large enough for eight shares; `frozen`: how the blocks' weights are stored.
MakeNet adapted(nn::WeightFormat frozen) {
  return [frozen](at::ScalarType dtype) {
    models::DecoderOptions options = decoder_options();
    options.weights = frozen;
    const auto model = std::make_shared<models::DecoderLm>(options, at::kCPU);
    nn::init_parameters(*model, 1);
    Net net{.model = model};
    net.lora = std::make_shared<nn::LoraSet>(*model, nn::LoraOptions{.rank = 8, .alpha = 8}, at::kCPU);
    net.lora->initialise(1);
    for (auto& item : model->named_parameters()) {  // B is zero at first
      const at::NoGradGuard no_grad;
      if (item.key().find("lora_B") == std::string::npos) continue;
      nn::init_parameter(item.value(), 2, item.key());
      item.value().mul_(0.05);
    }
    nn::keep_frozen_as(*model, dtype);
    model->build_parameters(dtype);
    nn::share_quantized_workspace(*model, dtype);
    return net;
  };
}

MakeNet hrm_lm(models::Bridge bridge, int64_t vocabulary = kVocabulary) {
  return [=](at::ScalarType dtype) {
    models::ModernLmOptions o;
    o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2};
    o.lm.bridge = bridge;
    o.lm.prefix_len = 3;
    o.decoder = decoder_options();
    o.decoder.vocabulary = vocabulary;
    o.enc_layers = 3;
    o.h_layers = o.l_layers = 1;
    o.max_prompt = 16;
    const auto model = models::make_modern_lm(o, at::kCPU);
    // With other seeds, the gradient of the gate's bias is a small difference of large sums, which rounding changes.
    model->initialise(/*seed=*/3, dtype);
    return Net{.model = model, .prompted = true};
  };
}

// Rows `first` to `first + count` of the batch of a step.
LanguageInputs inputs(int64_t step, int64_t first, int64_t count, bool prompted) {
  const at::Tensor rows = at::arange(first, first + count).unsqueeze(1) + 100 * step;
  const auto tokens = [&](int64_t length, double factor) {
    return (at::sin((rows * 7 + at::arange(length)).to(at::kDouble) * factor).abs() * kVocabulary)
        .to(at::kLong)
        .clamp_max(kVocabulary - 1);
  };
  LanguageInputs in{.ids = tokens(kLength, 1.7)};
  if (prompted) in.prompt_ids = tokens(5, 2.3);
  return in;
}

// What a trainer has, on a batch of kRows that the ranks share.
struct LmTraining : Stateful {
  LmTraining(const MakeNet& make, Comm& ranks, int64_t zero, at::ScalarType dtype = at::kFloat,
             const GatherOptions& options = {})
      : comm(ranks),
        net(make(dtype)),
        set(net.model->parameter_set()),
        reducer(set, comm, {.bucket_bytes = kEachBlock, .zero = zero}) {
    optim::ParameterGroup group;
    const auto moments = optim::moment_names(config::OptimizerKind::adamw);
    if (reducer.layout() != nullptr) {
      shards = std::make_unique<ParameterShards>(set, comm, reducer, 0.9, moments, options);
      group = shards->group(0.1);
    } else {
      average = std::make_unique<optim::Ema>(set, 0.9);
      group = optim::group_of(set, 0.1, average.get());
    }
    optimizer = optim::make_optimizer({.name = config::OptimizerKind::adamw, .eps = 0.1, .average_decay = 0.9},
                                      optim::make_groups(set, group, {.weight_decay = 0.1}));
  }

  // The loss of the whole batch.
  double loss(int64_t step, int64_t first, int64_t count, bool backward) {
    const LanguageInputs in = inputs(step, first, count, net.prompted);
    const at::Tensor hidden = net.model->forward(in).hidden;
    const at::Tensor logits = net.model->logits(hidden).to(at::kFloat).narrow(1, 0, kLength - 1);
    const at::Tensor loss = at::cross_entropy_loss(
        logits.reshape({-1, logits.size(-1)}), in.ids.narrow(1, 1, kLength - 1).reshape({-1}), {}, at::Reduction::Sum);
    const at::Tensor share = loss / static_cast<double>(kRows * (kLength - 1));
    if (backward) share.backward();
    return share.item<double>();
  }

  double step(int64_t number, int64_t accumulation) {
    const int64_t own = kRows / comm.ranks(), micro = own / accumulation;
    reducer.clear();
    if (shards) shards->begin_pass();
    double sum = 0;
    for (int64_t i = 0; i < accumulation; ++i) {
      reducer.begin(i + 1 == accumulation);
      sum += loss(number, comm.rank() * own + i * micro, micro, /*backward=*/true);
    }
    reducer.finish();
    // Near plain descent: divided by their own size, small gradients would show their rounding.
    const at::Tensor rate = at::full({}, 0.02), one = at::ones({}), never = at::zeros({});
    const at::Tensor ratio = at::zeros({}, at::kDouble);
    if (shards) {
      shards->step(*optimizer, rate, one, never, ratio);
    } else {
      optimizer->step(rate, one, never, ratio);
    }
    const at::Tensor all = at::full({1}, sum, at::kDouble);
    comm.all_reduce(all);
    return all.item<double>();
  }

  void visit_state(StateVisitor& visitor) override {
    struct Weights : Stateful {
      void visit_state(StateVisitor& out) override {
        for (auto& item : model->named_parameters()) {
          if (item.value().requires_grad()) out.tensor(item.key(), item.value(), StateRole::weight);
        }
      }
      LanguageModel* model = nullptr;
    } weights;
    weights.model = net.model.get();
    if (shards) {
      shards->visit_weights(weights, visitor);
    } else {
      weights.visit_state(visitor);
    }
    optimizer->visit_state(visitor);
    if (average) average->visit_state(visitor);
    if (shards) shards->visit_state(visitor);
  }

  Comm& comm;
  Net net;
  nn::ParameterSet& set;
  GradientReducer reducer;
  std::unique_ptr<ParameterShards> shards;
  std::unique_ptr<optim::Ema> average;
  std::unique_ptr<optim::Optimizer> optimizer;
};

using Tensors = std::map<std::string, at::Tensor>;

Tensors whole_state(LmTraining& run) {
  return test::whole_state(run, run.comm);
}

// Largest difference of a tensor by the largest value in it.
void expect_near(const Tensors& got, const Tensors& want, double tolerance, const std::string& what,
                 const std::function<bool(const std::string&)>& wanted = {}) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << what << ": " << name;
    if (tolerance > 0 && !wanted(name)) continue;
    const double most = tensor.abs().max().item<double>();
    const double differs = (got.at(name) - tensor).abs().max().item<double>();
    EXPECT_FALSE(differs > tolerance * most || std::isnan(differs))
        << what << ": " << name << " differs by " << differs << " of " << most;
  }
}

struct Result {
  std::vector<double> losses;
  Tensors first, last;  // state after the first step, whose moments are its gradients, and at the end
};

Result trained(const MakeNet& make, const Ranks& ranks, int64_t zero, int64_t accumulation,
               at::ScalarType dtype = at::kFloat, int64_t steps = 5) {
  Result result;
  test::on_ranks(ranks, [&](Comm& comm) {
    LmTraining run(make, comm, zero, dtype);
    std::vector<double> losses;
    Tensors first;
    for (int64_t step = 0; step < steps; ++step) {
      losses.push_back(run.step(step, accumulation));
      if (step == 0) first = whole_state(run);
    }
    const Tensors last = whole_state(run);
    if (comm.main()) result = {losses, first, last};
  });
  return result;
}

struct Case {
  const char* name;
  MakeNet make;
  double rounding = 1e-6;  // of the gradients; a recurrent core adds to it
  int most_ranks = 2;
};
void PrintTo(const Case& value, std::ostream* out) {
  *out << value.name;
}
class WeightGatherTest : public testing::TestWithParam<Case> {};

// Beside one rank that computes the same micro-batches: only the order of their sum differs.
TEST_P(WeightGatherTest, TrainsAsOneRank) {
  for (const auto& [ranks, accumulation] : {std::pair{2, 3}, std::pair{4, 1}, std::pair{8, 1}}) {
    if (ranks > GetParam().most_ranks) continue;
    const Result alone = trained(GetParam().make, {Kind::threads, 1}, 0, ranks * accumulation);
    EXPECT_LT(alone.losses.back(), alone.losses.front());
    const std::string what = cat(ranks, " ranks, ", accumulation, " micro-batches");
    const Result several = trained(GetParam().make, {Kind::threads, ranks}, 3, accumulation);
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      EXPECT_NEAR(several.losses[i], alone.losses[i], 1e-6 * alone.losses[i]) << what << ", step " << i;
    }
    expect_near(several.first, alone.first, GetParam().rounding, what + ", gradients",
                [](const std::string& name) { return name.ends_with("exp_avg"); });
    expect_near(several.last, alone.last, 5e-6, what + ", after 5 steps",
                [](const std::string& name) { return !name.starts_with("optim."); });
  }
}

// Whatever travels, the sums are of the same terms in the same order.
TEST_P(WeightGatherTest, SameBitsAsWholeWeights) {
  // Sums of several micro-batches are grouped otherwise by zero 2 than by zero 0.
  for (const auto& [dtype, accumulation, zero] :
       {std::tuple{at::kFloat, 1, 0}, std::tuple{at::kBFloat16, 1, 0}, std::tuple{at::kBFloat16, 2, 2}}) {
    const Result whole = trained(GetParam().make, {Kind::threads, 2}, zero, accumulation, dtype, /*steps=*/2);
    const Result turns = trained(GetParam().make, {Kind::threads, 2}, 3, accumulation, dtype, /*steps=*/2);
    EXPECT_EQ(turns.losses, whole.losses) << dtype;
    expect_near(turns.last, whole.last, 0, cat(c10::toString(dtype), " beside zero ", zero));
  }
}

// In bfloat16 other micro-batches round otherwise.
TEST_P(WeightGatherTest, HalfPrecisionIsNearOneRank) {
  if (GetParam().most_ranks < 4) return;
  const Result alone = trained(GetParam().make, {Kind::threads, 1}, 0, 1, at::kBFloat16);
  const Result several = trained(GetParam().make, {Kind::threads, 2}, 3, 2, at::kBFloat16);
  for (size_t i = 0; i < alone.losses.size(); ++i) {
    EXPECT_NEAR(several.losses[i], alone.losses[i], 5e-3 * alone.losses[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WeightGatherTest,
                         testing::Values(Case{"tied", decoder([](auto& o) { o.tied = true; }), 1e-6, 8},
                                         Case{"untied", decoder([](auto& o) { o.tied = false; }), 1e-6, 4},
                                         Case{"tied_large", large_decoder(true), 1e-6, 8},
                                         Case{"untied_large", large_decoder(false), 1e-6, 4},
                                         Case{"hrm_large", hrm_lm(models::Bridge::prefix, kLargeVocabulary), 3e-6, 4},
                                         Case{"recompute", decoder([](auto& o) { o.recompute = true; })},
                                         Case{"norms_behind", decoder([](auto& o) { o.form.norms_behind = true; })},
                                         Case{"lora", adapted(nn::WeightFormat::f32), 1e-6, 8},
                                         Case{"lora_nf4", adapted(nn::WeightFormat::nf4)},
                                         Case{"lora_int8", adapted(nn::WeightFormat::int8)},
                                         Case{"lora_e4m3", adapted(nn::WeightFormat::fp8)},
                                         Case{"hrm_prefix", hrm_lm(models::Bridge::prefix), 3e-6, 4},
                                         Case{"hrm_cross", hrm_lm(models::Bridge::cross_attention), 3e-6}),
                         [](const auto& info) { return info.param.name; });

// A forward and a backward pass fetch every block once each, but for those that are still there where the pass turns,
// and only the first has to be waited for from the start.
TEST(WeightGather, FewBlocksAtATime) {
  for (const int64_t buffers : {1, 2, 3}) {
    test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
      LmTraining run(decoder([](auto&) {}), comm, 3, at::kFloat, {.buffers = buffers});
      const WeightGather& weights = *run.shards->weights();
      ASSERT_EQ(weights.units(), 4u);
      run.step(0, 1);
      EXPECT_EQ(weights.most_held(), buffers);
      EXPECT_EQ(weights.gathered(), 8 - buffers);
      EXPECT_EQ(weights.gathered_late(), buffers == 1 ? 7 : 1);
      int64_t block = 0;  // elements that take turns
      for (const nn::Parameter& parameter : run.set.all()) {
        if (parameter.group == 0 && parameter.only_compute_is_read) block += parameter.master.numel();
      }
      EXPECT_LE(weights.buffer_bytes(), buffers * (4 * block + 2 * 64 * 4 + 256));
      // Once more with other weights, without a gradient: upwards, each block once.
      const at::NoGradGuard no_grad;
      run.loss(1, 0, 2, /*backward=*/false);
      EXPECT_EQ(weights.gathered(), 8 - buffers + 4);
      EXPECT_EQ(weights.most_held(), buffers);
    });
  }
}

// Of a model in NF4, whose rows are whole blocks, each rank reads and quantises about its share of the rows, to the
// bits of whole layers. A value that is not finite is found by all.
TEST(WeightGather, RanksQuantiseTheirOwnRowsInNf4) {
  struct Nf4Model {
    explicit Nf4Model(bool outline, double value = 1) {
      {
        const nn::OutlineScope scope(outline);
        model = std::make_shared<models::DecoderLm>(options(), at::kCPU);
      }
      nn::init_parameters(*model, 1);
      for (const nn::QuantizedLayer& layer : nn::quantized_layers(*model)) {
        const int64_t columns = layer.linear->weight().size(1);
        layer.linear->hold_by([this, columns, value, name = layer.weight](nn::Linear& to, int64_t first,
                                                                          int64_t count) {
          const at::Tensor rows = at::arange(first * columns, (first + count) * columns, at::kFloat).sin().mul(value);
          read += count;
          to.hold_quantized(rows.view({count, columns}), name);
        });
        rows += layer.linear->weight().size(0);
      }
      lora = std::make_shared<nn::LoraSet>(*model, nn::LoraOptions{.rank = 2}, at::kCPU);
      lora->initialise(1);
      model->build_parameters(at::kFloat);
    }
    auto units(Comm& comm) { return frozen_units(model->parameter_set(), comm); }
    static models::DecoderOptions options() {
      models::DecoderOptions o = decoder_options();
      o.width = 64;
      o.inner = 128;
      o.weights = nn::WeightFormat::nf4;
      return o;
    }
    std::shared_ptr<models::DecoderLm> model;
    std::shared_ptr<nn::LoraSet> lora;
    int64_t rows = 0, read = 0;
  };
  for (const int ranks : {2, 3, 4}) {
    test::on_ranks({Kind::threads, ranks}, [&](Comm& comm) {
      Nf4Model whole(false), outline(true), broken(true, std::numeric_limits<double>::infinity());
      EXPECT_EQ(whole.read, whole.rows);
      EXPECT_EQ(outline.read, 0);
      const auto expected = whole.units(comm), got = outline.units(comm);
      EXPECT_LT(outline.read, whole.rows * 1.3 / ranks) << "slices begin within rows, at multiples of 256 bytes";
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i].source, expected[i].source)) << i;
      test::expect_error(ExitCode::checkpoint, {"not finite"}, [&] { broken.units(comm); });
    });
  }
}

// Of the weights that are built as outlines, also of those that every rank has whole in float32 (a core and a head).
TEST(WeightGather, RanksDrawTheirOwnElements) {
  constexpr int kRanks = 4;
  test::on_ranks({Kind::threads, kRanks}, [&](Comm& comm) {
    models::ModernLmOptions o;
    o.decoder = decoder_options();
    o.decoder.width = 64;
    o.decoder.tied = false;
    o.lm.core = {.width = 64, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2};
    o.lm.prefix_len = 3;
    o.enc_layers = o.h_layers = o.l_layers = 1;
    o.max_prompt = 16;
    std::shared_ptr<LanguageModel> model;
    {
      const nn::OutlineScope scope(true);
      model = models::make_modern_lm(o, at::kCPU);
    }
    nn::init_parameters(*model, 1);
    int64_t outlined = 0, drawn = 0;
    const nn::OutlineOwners owners(*model);
    for (const at::Tensor& parameter : model->parameters()) {
      nn::HasComputeWeight* const owner = owners.of(parameter);
      if (owner == nullptr) continue;
      outlined += parameter.numel();
      owner->set_source([&drawn, rows = owner->source()](int64_t first, int64_t count) {
        at::Tensor some = rows(first, count);
        drawn += some.numel();
        return some;
      });
    }
    model->build_parameters(at::kFloat);
    GradientReducer reducer(model->parameter_set(), comm, {.bucket_bytes = kEachBlock, .zero = 3});
    const ParameterShards shards(model->parameter_set(), comm, reducer, 0, {"momentum"});
    EXPECT_GT(outlined, model->parameter_set().count() / 2);
    EXPECT_LT(drawn, outlined * 1.2 / kRanks) << "slices begin within rows";
    EXPECT_GT(drawn, outlined * 0.8 / kRanks);
  });
}

// Copies of a large embedding travel, of the same values as those of whole weights; shares of its masters stay.
TEST(WeightGather, EmbeddingsAreCopied) {
  struct SmallOnesToo {  // gradients of products are overwritten, however small
    ~SmallOnesToo() { ops::set_overwritten_elements(before); }
    int64_t before = ops::overwritten_elements();
  } const restored;
  ops::set_overwritten_elements(1);
  for (const int64_t zero : {1, 2, 3}) {
    for (const bool tied : {true, false}) {
      const std::string what = cat("zero ", zero, tied ? ", tied" : ", untied");
      const MakeNet make = large_decoder(tied);
      const Result whole = trained(make, {Kind::threads, 2}, 0, 1, at::kBFloat16, /*steps=*/2);
      const Result copied = trained(make, {Kind::threads, 2}, zero, 1, at::kBFloat16, /*steps=*/2);
      EXPECT_EQ(copied.losses, whole.losses) << what;
      expect_near(copied.last, whole.last, 0, what);
      test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
        const LmTraining run(make, comm, zero, at::kBFloat16), all(make, comm, 0, at::kBFloat16),
            wide(make, comm, zero, at::kFloat);
        const nn::Parameter &table = run.set.all()[0], &other = all.set.all()[0];
        ASSERT_EQ(table.name, "model.embed_tokens.weight");
        EXPECT_TRUE(table.only_compute_is_read);
        EXPECT_TRUE(table.master.isnan().all().item<bool>()) << what;
        EXPECT_TRUE(at::equal(table.compute, other.master.detach().to(at::kBFloat16))) << what;
        EXPECT_FALSE(other.only_compute_is_read) << "without zero its master is read";
        EXPECT_FALSE(wide.set.all()[0].only_compute_is_read) << "in float32 there is no copy";
        EXPECT_FALSE(nn::ParameterSet::is_overwritten(table)) << "its gradient is added to";
        EXPECT_GT(std::count_if(run.set.all().begin(), run.set.all().end(), nn::ParameterSet::is_overwritten), 4);
      });
    }
  }
}

// A Mamba2 encoder reads its embedding in float32, so every rank keeps the masters of that one.
TEST(WeightGather, EmbeddingsReadInFloat32AreNot) {
  const MakeNet make = [](at::ScalarType dtype) {
    models::ModernLmOptions o;
    o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 2, .l_steps = 2};
    o.lm.prefix_len = 3;
    o.decoder = decoder_options();
    o.decoder.vocabulary = kLargeVocabulary;
    o.encoder = models::EncoderKind::mamba2;
    o.mamba2 = {.head_dim = 8, .state = 4, .groups = 2, .chunk = 4};
    o.enc_layers = o.h_layers = o.l_layers = 1;
    o.max_prompt = 16;
    const auto model = models::make_modern_lm(o, at::kCPU);
    model->initialise(/*seed=*/3, dtype);
    return Net{.model = model, .prompted = true};
  };
  const Result whole = trained(make, {Kind::threads, 2}, 0, 1, at::kBFloat16, /*steps=*/2);
  const Result copied = trained(make, {Kind::threads, 2}, 1, 1, at::kBFloat16, /*steps=*/2);
  EXPECT_EQ(copied.losses, whole.losses);
  expect_near(copied.last, whole.last, 0, "mamba2");
  test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
    const LmTraining run(make, comm, 1, at::kBFloat16);
    std::map<std::string, bool> read;
    for (const nn::Parameter& parameter : run.set.all()) {
      if (parameter.name.ends_with("embed_tokens.weight")) read[parameter.name] = parameter.only_compute_is_read;
    }
    ASSERT_EQ(read.size(), 2U);
    for (const auto& [name, copy] : read) EXPECT_EQ(copy, name.starts_with("dec")) << name;
  });
}

// Weights, gradients and moments of a rank: its share of the blocks.
TEST(WeightGather, RanksHoldShares) {
  test::on_ranks({Kind::threads, 4}, [&](Comm& comm) {
    LmTraining run(decoder([](auto& o) { o.tied = false; }), comm, 3, at::kBFloat16);
    int64_t spread = 0, whole = 0;
    for (const nn::Parameter& parameter : run.set.all()) {
      // A master without storage cannot be mistaken for one.
      const bool gone = parameter.master.storage().nbytes() == sizeof(float);
      EXPECT_EQ(gone, parameter.only_compute_is_read) << parameter.name;
      EXPECT_EQ(parameter.master.isnan().all().item<bool>(), gone) << parameter.name;
      (gone ? spread : whole) += parameter.master.numel();
    }
    EXPECT_GT(spread, 5 * whole);
    int64_t registered = 0;
    for (const TensorEntry& entry : list_state(run).tensors) {
      if (entry.role == StateRole::weight && entry.part.split) registered += entry.tensor.numel();
    }
    EXPECT_LE(registered, spread / 4 + 6 * 64);
    const at::Tensor of_all = at::full({1}, registered, at::kLong);
    comm.all_reduce(of_all);
    EXPECT_EQ(of_all.item<int64_t>(), spread);
  });
}

// A pass that failed leaves nothing behind: the next one begins anew.
TEST(WeightGather, BeginsAnewAfterAFailure) {
  const MakeNet make = decoder([](auto&) {});
  const Result expected = trained(make, {Kind::threads, 2}, 3, 1);
  test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
    LmTraining run(make, comm, 3);
    run.reducer.clear();
    run.reducer.begin(true);
    run.loss(0, 0, 2, /*backward=*/false);  // no backward pass: blocks are missing at the end
    EXPECT_THROW(run.reducer.finish(), Error);
    run.reducer.abandon();
    run.shards->begin_pass();
    for (int64_t step = 0; step < 5; ++step) {
      EXPECT_EQ(run.step(step, 1), expected.losses[static_cast<size_t>(step)]);
    }
  });
}

// The average of the weights is evaluated, then exactly the weights are there again.
TEST(WeightGather, AverageTakesTurns) {
  test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
    LmTraining run(decoder([](auto&) {}), comm, 3), whole(decoder([](auto&) {}), comm, 0);
    for (int64_t step = 0; step < 3; ++step) EXPECT_EQ(run.step(step, 1), whole.step(step, 1));
    const at::NoGradGuard no_grad;
    const auto evaluate = [](LmTraining& of) { return of.loss(9, 0, kRows, /*backward=*/false); };
    run.shards->begin_pass();
    const double raw = evaluate(run);
    EXPECT_EQ(raw, evaluate(whole));
    {
      const optim::EmaSwap swap(*run.shards->ema(), run.set, [&] { run.shards->gather(); });
      const optim::EmaSwap other(*whole.average, whole.set);
      EXPECT_EQ(evaluate(run), evaluate(whole));
      EXPECT_NE(evaluate(run), raw);
    }
    EXPECT_EQ(evaluate(run), raw);
  });
}

TEST(WeightGather, DecodingIsRefused) {
  test::on_ranks({Kind::threads, 2}, [&](Comm& comm) {
    LmTraining run(decoder([](auto&) {}), comm, 3);
    models::DecodeCache cache = run.net.model->make_cache(1, 8);
    test::expect_error(ExitCode::unexpected, {"decoding needs the weights of all blocks", "parallel.zero=3"},
                       [&] { run.net.model->step(at::zeros({1}, at::kLong), cache); });
  });
}

// With one rank there is nothing to share, and no entry changes.
TEST(WeightGather, OneRankHasAll) {
  const auto comm = make_single_comm();
  LmTraining run(decoder([](auto&) {}), *comm, 3);
  EXPECT_EQ(run.shards, nullptr);
  run.step(0, 1);
}

}  // namespace
}  // namespace hrm::parallel
