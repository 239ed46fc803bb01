// Decoders that are cut over ranks train as one that is whole.
#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "hrm/nn/lora.h"
#include "hrm/objectives/language.h"
#include "hrm/objectives/token_log_probs.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/optimizer.h"
#include "hrm/parallel/gradient_reducer.h"
#include "hrm/parallel/mesh.h"
#include "hrm/parallel/parameter_shards.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/parallel/tensor_gradients.h"
#include "parallel/small_lm.h"
#include "support/ranks.h"

namespace hrm {
namespace {

constexpr int64_t kSteps = 5;
constexpr uint64_t kSeed = 3;

struct CutCase {
  const char* name;
  test::SmallLm lm = {};
  int64_t rows = 2, length = 12, accumulation = 1;
  bool documents = false;
  int ranks = 2;
  // With adapters of this rank; 0: all weights are trained.
  int64_t lora = 0;
  double dropout = 0;
  std::vector<std::string> saved = {};
};

struct Model {
  std::shared_ptr<models::LanguageModel> lm;
  std::unique_ptr<nn::LoraSet> lora;
};

Model make_model(const CutCase& c, std::shared_ptr<const nn::TensorAcross> across = nullptr) {
  Model model;
  model.lm = test::make_small_lm(c.lm, std::move(across));
  if (c.lora == 0) {
    model.lm->initialise(kSeed, at::kFloat);
    return model;
  }
  nn::init_parameters(*model.lm, kSeed);
  nn::LoraOptions options{.rank = c.lora, .dropout = c.dropout, .seed = 5, .modules_to_save = c.saved};
  if (test::small_decoder_options(c.lm).form.joined_weights)
    options.targets = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"};
  model.lora = std::make_unique<nn::LoraSet>(*model.lm, options, at::kCPU);
  model.lora->initialise(kSeed);
  // B begins as zeros, with which A would have no gradient.
  const nn::ParameterCuts cuts(*model.lm);
  for (const auto& item : model.lm->named_parameters()) {
    if (item.key().ends_with("lora_B.weight")) {
      nn::init_parameter(item.value().detach(), kSeed, item.key(), cuts.of(item.value()));
      item.value().detach().mul_(0.05);
    }
  }
  model.lm->build_parameters(at::kFloat);
  return model;
}

// What each step gives.
struct Trace {
  std::vector<double> losses, norms, ratios;
  std::vector<std::vector<at::Tensor>> gradients;  // of each parameter
};

at::Tensor ids_of(const CutCase& c, int64_t seed) {
  return (at::arange(c.rows * c.length, at::kLong) * (7 + seed) + seed * 5)
      .remainder(test::kSmallVocabulary)
      .view({c.rows, -1});
}

at::Tensor loss_of(models::LanguageModel& model, const CutCase& c, int64_t seed) {
  models::LanguageInputs inputs{.ids = ids_of(c, seed)};
  if (c.documents) {
    inputs.documents = at::arange(c.length, at::kInt).ge(c.length / 3).to(at::kInt).expand({c.rows, -1}).contiguous();
    inputs.most_documents = 2;
  }
  if (c.lm.bridge) {
    inputs.prompt_ids =
        (at::arange(c.rows * 7, at::kLong) * (5 + seed)).remainder(test::kSmallVocabulary).view({c.rows, 7});
    inputs.prompt_mask = at::ones({c.rows, 7}, at::kBool);
    inputs.prompt_mask[0].narrow(0, 4, 3).fill_(false);
    inputs.earlier_cycles = true;
  }
  const models::LanguageOutput out = model.forward(inputs);
  at::Tensor labels = inputs.ids.roll(-1, 1).clone();
  labels.select(1, c.length - 1).fill_(-100);
  const at::Tensor tokens = at::full({}, static_cast<double>(c.rows * (c.length - 1) * c.accumulation));
  return objectives::language_loss(model, out, labels, {.deep_supervision = 0.3, .halting = 0.1, .chunk = 10}, tokens)
      .loss;
}

Trace train(const Model& cut, const CutCase& c, parallel::Comm* comm) {
  models::LanguageModel& model = *cut.lm;
  nn::ParameterSet& parameters = model.parameter_set();
  const auto optimizer = optim::make_optimizer({.name = config::OptimizerKind::sgd, .momentum = 0.9},
                                               {optim::group_of(parameters, /*weight_decay=*/0.01)});
  std::unique_ptr<parallel::TensorGradients> sums;
  if (comm != nullptr) sums = std::make_unique<parallel::TensorGradients>(parameters, *comm);
  Trace trace;
  for (int64_t step = 0; step < kSteps; ++step) {
    parameters.zero_grad();
    double loss = 0;
    for (int64_t micro = 0; micro < c.accumulation; ++micro) {
      const at::Tensor part = loss_of(model, c, step * c.accumulation + micro);
      part.backward();
      loss += part.item<double>();
      if (cut.lora) cut.lora->step().add_(1);
    }
    if (sums) sums->sum();
    const optim::GradNorm norm =
        sums ? sums->global_norm(/*max_norm=*/0.5, {}) : optim::global_norm(parameters.flat_grad(), 0.5, 2, {});
    trace.losses.push_back(loss);
    trace.norms.push_back(norm.norm.item<double>());
    std::vector<at::Tensor>& gradients = trace.gradients.emplace_back();
    for (const nn::Parameter& parameter : parameters.all()) gradients.push_back(parameter.master.grad().clone());
    const at::Tensor ratio = at::zeros({}, at::kDouble);
    if (sums) {
      sums->step(*optimizer, at::full({}, 0.03), norm.coef, at::zeros({}), ratio);
    } else {
      optimizer->step(at::full({}, 0.03), norm.coef, at::zeros({}), ratio);
    }
    trace.ratios.push_back(ratio.item<double>());
  }
  return trace;
}

// The whole gradients of this part's parameters, from the shares of its data ranks.
std::vector<at::Tensor> gathered_gradients(const FlatLayout& layout, const at::Tensor& share, parallel::Comm& shards) {
  const at::Tensor all = at::empty({shards.ranks() * share.numel()}), flat = at::empty({layout.size});
  shards.all_gather(all, share);
  for (const FlatLayout::Piece& piece : layout.pieces) {
    const int64_t size = layout.slice_size(piece);
    for (int rank = 0; rank < shards.ranks(); ++rank) {
      flat.narrow(0, piece.offset + rank * size, size)
          .copy_(all.narrow(0, rank * share.numel() + layout.share_offset(piece), size));
    }
  }
  std::vector<at::Tensor> gradients;
  for (const FlatLayout::Member& member : layout.members) {
    gradients.push_back(flat.narrow(0, member.offset, c10::multiply_integers(member.sizes)).view(member.sizes));
  }
  return gradients;
}

// Each data rank has its own micro-batches of those that `train` has.
Trace train_sharded(const Model& cut, const CutCase& c, int64_t zero, const parallel::Mesh& mesh) {
  using parallel::Axis;
  models::LanguageModel& model = *cut.lm;
  nn::ParameterSet& parameters = model.parameter_set();
  parallel::Comm& shard = mesh.axis(Axis::shard);
  parallel::GradientReducer reducer(parameters, shard, {.bucket_bytes = 1 << 14, .zero = zero},
                                    &mesh.axis(Axis::replica));
  parallel::ParameterShards shards(parameters, shard, reducer, /*average_decay=*/0, {"momentum"});
  parallel::TensorGradients sums(shards.gradients(), shards.held_alike(), mesh.axis(Axis::tensor));
  const auto optimizer = optim::make_optimizer({.name = config::OptimizerKind::sgd, .momentum = 0.9},
                                               {shards.group(/*weight_decay=*/0.01)});
  const int64_t own = c.accumulation / mesh.size(Axis::data), first = own * mesh.coordinate(Axis::data);
  Trace trace;
  for (int64_t step = 0; step < kSteps; ++step) {
    shards.begin_pass();
    reducer.clear();
    at::Tensor loss = at::zeros({1}, at::kDouble);
    for (int64_t micro = 0; micro < own; ++micro) {
      reducer.begin(micro + 1 == own);
      const at::Tensor part = loss_of(model, c, step * c.accumulation + first + micro);
      part.backward();
      loss += part.detach();
    }
    reducer.finish();
    sums.sum();
    mesh.axis(Axis::data).all_reduce(loss);
    const optim::GradNorm norm = shards.global_norm(/*max_norm=*/0.5, {}, &sums);
    trace.losses.push_back(loss.item<double>());
    trace.norms.push_back(norm.norm.item<double>());
    trace.gradients.push_back(gathered_gradients(*reducer.layout(), reducer.share(), shard));
    const at::Tensor ratio = at::zeros({}, at::kDouble);
    shards.step(*optimizer, at::full({}, 0.03), norm.coef, at::zeros({}), ratio, &sums);
    trace.ratios.push_back(ratio.item<double>());
  }
  return trace;
}

// |a - b| / |b|, or / least if that is more.
double distance(const at::Tensor& a, const at::Tensor& b, double least = 0) {
  const double size = std::max(b.norm().item<double>(), least);
  return (a - b).norm().item<double>() / (size > 0 ? size : 1);
}

constexpr double kClose = 1e-6;

// The more parts, the more roundings. Gradients of norms are small differences of large sums, those of adapters come
// through two products, and those of HRM language models through cycles, most of all the gate's.
double tolerance(const std::string& parameter, const CutCase& c) {
  const auto is_of = [&](const char* part) { return parameter.find(part) != std::string::npos; };
  const double of_model = c.lm.bridge ? (is_of("gate.") ? 40 : 8) : 1;
  return kClose * c.ranks / 2 * of_model * (is_of("norm") ? 4 : is_of("lora") ? 2 : 1);
}

void expect_same_training(const Trace& part, const Trace& whole, const nn::ParameterSet& parameters, const CutCase& c) {
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    EXPECT_NEAR(part.losses[step] / whole.losses[step], 1, kClose) << "step " << step;
    EXPECT_NEAR(part.norms[step] / whole.norms[step], 1, kClose) << "step " << step;
    EXPECT_NEAR(part.ratios[step] / whole.ratios[step], 1, kClose) << "step " << step;
    // The memories of a core begin alike, so that gradients of its queries and keys are nothing but rounding.
    const double least = c.lm.bridge ? 1e-3 * whole.norms[step] : 0;
    for (size_t i = 0; i < parameters.all().size(); ++i) {
      const nn::Parameter& parameter = parameters.all()[i];
      const at::Tensor expected = parameter.cut.part_of(whole.gradients[step][i]);
      ASSERT_EQ(expected.sizes(), parameter.master.sizes()) << parameter.name;
      EXPECT_TRUE(c.lm.bridge || expected.norm().item<double>() > 0) << parameter.name;
      EXPECT_LE(distance(part.gradients[step][i], expected, least), tolerance(parameter.name, c))
          << parameter.name << " of step " << step;
    }
  }
}

class TensorParallel : public testing::TestWithParam<CutCase> {};
void PrintTo(const CutCase& c, std::ostream* out) {
  *out << c.name;
}

TEST_P(TensorParallel, TrainsAsTheWhole) {
  const CutCase& c = GetParam();
  const Model whole = make_model(c);
  std::vector<at::Tensor> begin;
  for (const nn::Parameter& parameter : whole.lm->parameter_set().all()) begin.push_back(parameter.master.clone());
  const Trace expected = train(whole, c, nullptr);
  test::on_ranks({test::Kind::threads, c.ranks}, [&](parallel::Comm& comm) {
    const Model model = make_model(c, parallel::make_tensor_across(test::borrowed(comm)));
    const nn::ParameterSet& parameters = model.lm->parameter_set();
    ASSERT_EQ(parameters.all().size(), begin.size());
    for (size_t i = 0; i < begin.size(); ++i) {
      const nn::Parameter& parameter = parameters.all()[i];
      EXPECT_TRUE(at::equal(parameter.master, parameter.cut.part_of(begin[i]))) << parameter.name;
      if (c.lora == 0 && !c.lm.bridge) {
        EXPECT_NE(parameter.cut.whole(), parameter.name.find("norm") == std::string::npos) << parameter.name;
      }
    }
    expect_same_training(train(model, c, &comm), expected, parameters, c);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TensorParallel,
    testing::Values(
        CutCase{.name = "tied"}, CutCase{.name = "untied", .lm = {[](auto& o) { o.tied = false; }}, .ranks = 4},
        CutCase{.name = "recompute", .lm = {[](auto& o) { o.recompute = true; }}},
        CutCase{.name = "three_micro_batches", .accumulation = 3},
        CutCase{.name = "window", .lm = {[](auto& o) { o.window = 4; }}},
        CutCase{.name = "documents", .documents = true},
        CutCase{.name = "odd_tokens", .rows = 3, .length = 7, .ranks = 4},
        CutCase{.name = "other_forms",
                .lm = {[](auto& o) {
                  o.qk_norm = false;
                  o.form = {.qkv_bias = true, .gelu_gate = true, .scaled_embedding = true, .centred_norms = true};
                }}},
        CutCase{
            .name = "odd_vocabulary", .lm = {[](auto& o) { o.vocabulary = test::kSmallVocabulary + 3; }}, .ranks = 4},
        CutCase{.name = "lora", .lora = 3}, CutCase{.name = "lora_4", .ranks = 4, .lora = 2, .saved = {"norm"}},
        CutCase{.name = "lora_dropout", .accumulation = 2, .lora = 3, .dropout = 0.3},
        CutCase{.name = "lora_recompute",
                .lm = {[](auto& o) { o.recompute = true; }},
                .lora = 2,
                .dropout = 0.3,
                .saved = {"embed_tokens"}},
        CutCase{.name = "lora_joined", .lm = {[](auto& o) { o.form.joined_weights = true; }}, .lora = 2},
        CutCase{.name = "prefix", .lm = {.bridge = models::Bridge::prefix}},
        CutCase{.name = "cross_attention", .lm = {.bridge = models::Bridge::cross_attention}, .ranks = 4},
        CutCase{.name = "cross_recompute",
                .lm = {[](auto& o) { o.recompute = true; }, models::Bridge::cross_attention},
                .accumulation = 2},
        CutCase{.name = "mamba2", .lm = {.bridge = models::Bridge::prefix, .encoder = models::EncoderKind::mamba2}},
        CutCase{.name = "no_groups", .lm = {[](auto& o) { o.kv_heads = 8; }}, .ranks = 4}));

struct ShardedCase {
  CutCase cut;
  int64_t zero = 1;
  int data = 2, replicas = 1;
};
void PrintTo(const ShardedCase& c, std::ostream* out) {
  *out << c.cut.name << "_zero_" << c.zero;
}

class ShardedTensorParallel : public testing::TestWithParam<ShardedCase> {};

TEST_P(ShardedTensorParallel, TrainsAsTheWhole) {
  const ShardedCase& c = GetParam();
  const Trace expected = train(make_model(c.cut), c.cut, nullptr);
  test::on_ranks({test::Kind::threads, c.cut.ranks * c.data}, [&](parallel::Comm& comm) {
    const parallel::Mesh mesh(test::borrowed(comm), {.tensor = c.cut.ranks, .replicas = c.replicas});
    const Model model = make_model(c.cut, parallel::across_of(mesh.shared_axis(parallel::Axis::tensor)));
    const Trace got = train_sharded(model, c.cut, c.zero, mesh);
    CutCase all = c.cut;
    all.ranks = comm.ranks();
    expect_same_training(got, expected, model.lm->parameter_set(), all);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ShardedTensorParallel,
    testing::Values(
        // The last part has fewer rows of the vocabulary. In `narrow` the norms behind them are on several ranks.
        ShardedCase{{.name = "narrow",
                     .lm = {[](auto& o) {
                       o.vocabulary = test::kSmallVocabulary + 1;
                       o.width = 32;
                       o.heads = 4;
                       o.kv_heads = 2;
                     }},
                     .accumulation = 4},
                    3,
                    4},
        ShardedCase{
            {.name = "odd", .lm = {[](auto& o) { o.vocabulary = test::kSmallVocabulary + 3; }}, .accumulation = 2}, 1},
        ShardedCase{{.name = "untied", .lm = {[](auto& o) { o.tied = false; }}, .accumulation = 4}, 2},
        ShardedCase{{.name = "deep", .lm = {[](auto& o) { o.layers = 3; }}, .accumulation = 4}, 2},
        ShardedCase{{.name = "tied", .accumulation = 4}, 3},
        ShardedCase{{.name = "recompute", .lm = {[](auto& o) { o.recompute = true; }}, .accumulation = 2}, 3},
        ShardedCase{{.name = "lora", .accumulation = 2, .lora = 3}, 1},
        ShardedCase{{.name = "lora_turns", .accumulation = 2, .lora = 2}, 3},
        ShardedCase{{.name = "hrm", .lm = {.bridge = models::Bridge::cross_attention}, .accumulation = 2}, 3},
        ShardedCase{
            {.name = "replicas", .lm = {[](auto& o) { o.layers = 3; }}, .accumulation = 4, .ranks = 1}, 2, 4, 2},
        ShardedCase{{.name = "replicas_turn", .accumulation = 4, .ranks = 1}, 3, 4, 2},
        ShardedCase{{.name = "replicas_of_parts", .accumulation = 4}, 1, 4, 2}));

// The greedy continuation of prompts of several lengths.
std::vector<at::Tensor> continued(const Model& model, const CutCase& c, int64_t steps) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = ids_of(c, 1), lengths = at::arange(c.length - c.rows + 1, c.length + 1, at::kLong);
  models::DecodeCache cache = model.lm->make_cache(c.rows, c.length + steps);
  models::LanguageInputs inputs{.ids = ids};
  if (c.lm.bridge) inputs.prompt_ids = ids_of(c, 3).narrow(1, 0, 5);
  const at::Tensor hidden = model.lm->prefill(inputs, lengths, cache);
  at::Tensor last = hidden.gather(1, (lengths - 1).view({-1, 1, 1}).expand({-1, 1, hidden.size(2)})).squeeze(1);
  std::vector<at::Tensor> out;
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor logits = model.lm->logits(last);
    out.push_back(logits);
    last = model.lm->step(logits.argmax(-1), cache);
  }
  return out;
}

TEST(TensorDecoding, ContinuesAsTheWhole) {
  for (const CutCase& c : {CutCase{.name = "plain", .rows = 3},
                           CutCase{.name = "window", .lm = {[](auto& o) { o.window = 4; }}, .rows = 3, .ranks = 4},
                           CutCase{.name = "odd", .lm = {[](auto& o) { o.vocabulary = 99; }}, .rows = 3, .ranks = 4},
                           CutCase{.name = "lora", .rows = 3, .lora = 2},
                           CutCase{.name = "prefix", .lm = {.bridge = models::Bridge::prefix}, .rows = 3},
                           CutCase{.name = "cross", .lm = {.bridge = models::Bridge::cross_attention}, .rows = 3}}) {
    const std::vector<at::Tensor> expected = continued(make_model(c), c, 6);
    test::on_ranks({test::Kind::threads, c.ranks}, [&](parallel::Comm& comm) {
      const auto got = continued(make_model(c, parallel::make_tensor_across(test::borrowed(comm))), c, 6);
      for (size_t step = 0; step < got.size(); ++step) {
        EXPECT_LE(distance(got[step], expected[step]), 1e-5) << c.name << " step " << step;
        EXPECT_TRUE(at::equal(got[step].argmax(-1), expected[step].argmax(-1))) << c.name << " step " << step;
      }
    });
  }
}

// Log-probabilities and entropies over a vocabulary that is cut, and the gradient of the head's input.
TEST(TensorLogProbs, AreThoseOfTheWholeVocabulary) {
  const CutCase c{.name = "odd",
                  .lm = {[](auto& o) {
                    o.vocabulary = 99;
                    o.tied = false;
                  }},
                  .ranks = 4};
  const auto scores = [&](const Model& model) {
    const at::Tensor ids = ids_of(c, 2), hidden = model.lm->forward({.ids = ids_of(c, 1)}).hidden;
    const objectives::TokenLogProbs out =
        objectives::token_log_probs(hidden, model.lm->head(), ids, /*temperature=*/0.7, /*chunk=*/10, true);
    out.log_p.mul(at::arange(c.rows * c.length).view({c.rows, -1}) - 7).sum().backward();
    return out;
  };
  const Model whole = make_model(c);
  const objectives::TokenLogProbs expected = scores(whole);
  test::on_ranks({test::Kind::threads, c.ranks}, [&](parallel::Comm& comm) {
    const Model part = make_model(c, parallel::make_tensor_across(test::borrowed(comm)));
    const objectives::TokenLogProbs got = scores(part);
    EXPECT_LE(distance(got.log_p, expected.log_p), kClose);
    EXPECT_LE(distance(got.entropy, expected.entropy), kClose);
    const std::vector<nn::Parameter>& all = part.lm->parameter_set().all();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].sum_over_parts) continue;
      const at::Tensor gradient = whole.lm->parameter_set().all()[i].master.grad();
      EXPECT_LE(distance(all[i].master.grad(), all[i].cut.part_of(gradient)), 2 * kClose) << all[i].name;
    }
  });
}

}  // namespace
}  // namespace hrm
