// The puzzle embeddings learn by the sign of a sum over the whole global batch. A sign taken per micro-batch would
// still train, and no tolerance would tell; here the updated table itself is compared, bit for bit.
#include <ATen/ops/index_add.h>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/objectives/act.h"
#include "hrm/optim/sparse_sign_sgd.h"
#include "hrm/tasks/puzzle_eval.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;

constexpr int64_t kBatch = 8, kIdentifiers = 5, kTokens = 16, kVocab = 7;
constexpr double kLr = 1e-3;
const std::vector<std::string> kMicroBatches = {"8", "4", "2", "1"};

// 24 puzzles of one example each that share four identifiers (0 is the blank one, which none has). Question and answer
// are drawn, so the gradients of the rows of one identifier point in all directions.
std::filesystem::path write_shared_identifiers(const std::filesystem::path& dir, int64_t identifiers = kIdentifiers) {
  data::PuzzleRows rows;
  rows.meta.vocab_size = kVocab;
  rows.meta.seq_len = kTokens;
  rows.meta.num_puzzle_identifiers = identifiers;
  CounterRng rng(11, Stream::init, 0);
  const auto tokens = [&] {
    std::vector<uint8_t> out(kTokens);
    for (uint8_t& token : out) token = static_cast<uint8_t>(1 + rng.below(kVocab - 1));
    return out;
  };
  for (int64_t puzzle = 0; puzzle < 24; ++puzzle) {
    rows.add_puzzle(tokens(), tokens());
    rows.puzzle_identifiers.back() = static_cast<int32_t>(1 + puzzle % (identifiers - 1));
    rows.end_group();
  }
  data::write_dataset(dir, "train", rows);
  return dir;
}

// A large epsilon, so that the dense weights do not turn rounding noise into steps (see equality_test.cpp).
std::vector<std::string> options(const std::filesystem::path& dataset, const std::string& micro, int64_t steps) {
  return {"data.train=" + dataset.string(),
          "data.test=",
          "data.augmentation=none",
          "optim.name=adamw",
          "optim.eps=1e-3",
          "optim.warmup_steps=0",
          "optim.schedule=constant",
          "optim.puzzle_emb_lr=1e-3",
          "optim.puzzle_emb_weight_decay=0.1",
          "train.micro_batch_size=" + micro,
          "train.steps=" + std::to_string(steps)};
}

std::map<std::string, at::Tensor> train_embedding(const std::filesystem::path& dir,
                                                  const std::vector<std::string>& options) {
  SmallRun run(dir, options);
  run.trainer.start_fresh();
  run.trainer.run();
  return run.tensors();
}

// What the first step of `options` does to the rows: the gradients of loss / batch, (batch, D), and their identifiers.
struct RowGradients {
  at::Tensor ids, grads;
};
RowGradients first_gradients(const std::filesystem::path& dir, const std::vector<std::string>& options) {
  const auto after =
      train_embedding(dir / "reached", options);  // the carry holds the rows of the last step, here the first
  SmallRun fresh(dir / "fresh", options);
  fresh.trainer.start_fresh();
  models::PuzzleModel& model = fresh.task.model();
  objectives::ActState state = objectives::make_act_state(model, kBatch);
  const data::PuzzleBatch batch{.inputs = after.at("carry.inputs"),
                                .labels = after.at("carry.labels"),
                                .puzzle_identifiers = after.at("carry.puzzle_identifiers"),
                                .valid_rows = kBatch};
  objectives::act_begin(state, batch, model.H_init(), model.L_init());
  at::Tensor rows = objectives::make_puzzle_rows(model, kBatch);
  // The draws decide who halts, which no loss depends on.
  const objectives::HaltDraws draws{at::ones({kBatch}), at::full({kBatch}, 2, at::kInt)};
  const auto segment = objectives::act_train_segment(model, state, rows, draws, fresh.loaded.config.objective);
  (segment.loss.loss / static_cast<double>(kBatch)).backward();
  return {batch.puzzle_identifiers.to(at::kLong), rows.grad().clone()};
}

// The table after one step from zero: -lr sign(sum of the identifier's rows), nothing where there are no rows.
at::Tensor expected_table(const RowGradients& rows) {
  const at::Tensor sums = at::zeros({kIdentifiers, rows.grads.size(1)}).index_add(0, rows.ids, rows.grads);
  return at::sign(sums) * -at::scalar_tensor(kLr, at::kFloat);
}

// The mistake: an update after each micro-batch.
at::Tensor table_of_separate_updates(const RowGradients& rows, int64_t micro) {
  at::Tensor table = at::zeros({kIdentifiers, rows.grads.size(1)});
  for (int64_t first = 0; first < kBatch; first += micro) {
    optim::sparse_sign_sgd_(table, rows.ids.narrow(0, first, micro), rows.grads.narrow(0, first, micro),
                            at::scalar_tensor(kLr, at::kFloat), 0, at::zeros({}));
  }
  return table;
}

// Another mistake, whose values look right: each micro-batch has one vote on the sign.
at::Tensor table_of_votes(const RowGradients& rows, int64_t micro) {
  return at::sign(table_of_separate_updates(rows, micro)) * at::scalar_tensor(kLr, at::kFloat);
}

// A third: the gradient of the last micro-batch alone.
at::Tensor table_of_last(const RowGradients& rows, int64_t micro) {
  return expected_table({rows.ids.narrow(0, kBatch - micro, micro), rows.grads.narrow(0, kBatch - micro, micro)});
}

double share_that_differs(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).to(at::kDouble).mean().item<double>();
}

TEST(PuzzleEmbedding, OneStepIsTheSignOfTheSumOverAllMicroBatches) {
  const auto dir = fresh_folder("runs");
  const auto dataset = write_shared_identifiers(dir / "data");
  const RowGradients rows = first_gradients(dir / "oracle", options(dataset, "0", 1));

  // The case must be able to fail: identifiers have rows in several micro-batches, no sum is so near to zero that
  // rounding decides its sign, and each mistake gives another table for every real split.
  const at::Tensor count = at::bincount(rows.ids, {}, kIdentifiers);
  EXPECT_GE(count.ge(2).sum().item<int64_t>(), 2) << rows.ids;
  const at::Tensor sums = at::zeros({kIdentifiers, rows.grads.size(1)}).index_add(0, rows.ids, rows.grads);
  const at::Tensor used = sums.index_select(0, count.gt(0).nonzero().flatten());
  EXPECT_GT((used.abs().min() / rows.grads.abs().max()).item<double>(), 1e-5);
  const at::Tensor want = expected_table(rows);
  for (const int64_t micro : {4, 2, 1}) {
    EXPECT_GT(share_that_differs(want, table_of_separate_updates(rows, micro)), 0.1) << micro;
    EXPECT_GT(share_that_differs(want, table_of_votes(rows, micro)), 0.05) << micro;
    EXPECT_GT(share_that_differs(want, table_of_last(rows, micro)), 0.1) << micro;
  }

  for (const std::string& micro : kMicroBatches) {
    // Weight decay has nothing to shrink in a table of zeros.
    const at::Tensor table = train_embedding(dir / micro, options(dataset, micro, 1)).at("puzzle_emb.weights");
    EXPECT_TRUE(at::equal(table, want)) << "micro-batch " << micro << ": " << share_that_differs(table, want) * 100
                                        << " % of the elements differ";
  }
}

// After more steps too: decay and signs are the same operations in every split, so the table stays bit-equal as long as
// no sum comes within rounding of zero, which among these few hundred does not happen.
TEST(PuzzleEmbedding, StaysEqualOverSteps) {
  const auto dir = fresh_folder("runs");
  const auto dataset = write_shared_identifiers(dir / "data");
  const auto whole = train_embedding(dir / "whole", options(dataset, "0", 4));
  EXPECT_GT(std::get<0>(at::_unique(whole.at("puzzle_emb.weights"))).numel(), 4);  // some elements turned round
  for (const std::string& micro : kMicroBatches) {
    const auto split = train_embedding(dir / micro, options(dataset, micro, 4));
    for (const char* exact : {"carry.halted", "carry.puzzle_identifiers", "puzzle_emb.weights"}) {
      EXPECT_TRUE(at::equal(whole.at(exact), split.at(exact))) << exact << ", micro-batch " << micro;
    }
  }
}

// Sudoku: one identifier for all rows, which is an update of its own in the optimizer.
TEST(PuzzleEmbedding, OneIdentifierStaysEqualOverSteps) {
  const auto dir = fresh_folder("runs");
  std::map<std::string, at::Tensor> whole;
  for (const int64_t steps : {1, 4}) {
    for (const std::string micro : {"0", "8", "4", "2", "1"}) {
      const auto split =
          train_embedding(dir / (micro + "_" + std::to_string(steps)),
                          {"optim.name=adamw", "optim.eps=1e-3", "optim.warmup_steps=0",
                           "data.test=", "train.micro_batch_size=" + micro, "train.steps=" + std::to_string(steps)});
      if (micro == "0") whole = split;
      EXPECT_GT(split.at("puzzle_emb.weights").abs().min().item<double>(), 0);
      EXPECT_TRUE(at::equal(whole.at("puzzle_emb.weights"), split.at("puzzle_emb.weights")))
          << "micro-batch " << micro << ", steps " << steps;
    }
  }
}

// As the official code loads a checkpoint of other puzzles: every row is the mean of the old ones, all else is kept.
TEST(PuzzleEmbedding, OtherPuzzlesBeginWithTheMeanOfTheRows) {
  const auto dir = fresh_folder("runs");
  SmallRun old(dir / "old", options(write_shared_identifiers(dir / "few"), "8", 2));
  old.trainer.start_fresh();
  old.trainer.prepare_checkpoints();
  old.trainer.run();
  const auto before = old.tensors();
  SmallRun tuned(dir / "new", options(write_shared_identifiers(dir / "many", 9), "8", 2));
  checkpoint::load_weights_into(checkpoint::open_checkpoint(dir / "old" / "small").dir, tuned.task,
                                checkpoint::WeightSet::ema_or_raw, tuned.task.weights_by_sample());
  const auto after = tuned.tensors();
  const at::Tensor mean = before.at("puzzle_emb.weights").mean(0, /*keepdim=*/true);
  EXPECT_GT(mean.abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(after.at("puzzle_emb.weights"), mean.expand({9, mean.size(1)})));
  for (const char* name : {"embed_tokens.embedding_weight", "lm_head.weight", "H_init"}) {
    ASSERT_TRUE(before.count(name) > 0 && after.count(name) > 0) << name;
    EXPECT_TRUE(at::equal(after.at(name), before.at(name))) << name;
  }
}

// A pass that fails after its backward (a capture may) leaves nothing that the next one adds to.
TEST(PuzzleEmbedding, AFailedPassLeavesNoGradient) {
  const auto dir = fresh_folder("runs");
  const auto dataset = write_shared_identifiers(dir / "data");
  const at::Tensor no_skip = at::zeros({});
  const auto table_after = [&](const std::string& name, int64_t sums_of_the_first) {
    SmallRun run(dir / name, options(dataset, "8", 4));
    run.trainer.start_fresh();
    run.task.load_batch(1, 1.0);
    const auto wanted = static_cast<int64_t>(run.task.metric_names().size());
    for (const int64_t size : {sums_of_the_first, wanted}) {
      at::Tensor sums = at::zeros({size}, at::kDouble);
      if (size == wanted) {
        run.task.forward_backward(0, /*loss_scale=*/{}, sums);
      } else {
        EXPECT_THROW(run.task.forward_backward(0, {}, sums), c10::Error);
      }
    }
    run.task.update_extra(no_skip);
    return run.task.model().puzzle_embedding().clone();
  };
  const auto names = static_cast<int64_t>(objectives::act_metric_names().size());
  EXPECT_TRUE(at::equal(table_after("failed", names + 1), table_after("plain", names)));
}

// With the blank identifier, answers are those of the blank row; the samples keep their own identifiers.
TEST(PuzzleEmbedding, ABlankIdentifierStandsForAllInAnEvaluation) {
  const auto dir = fresh_folder("runs");
  const auto dataset = write_shared_identifiers(dir / "data");
  SmallRun run(dir / "run", options(dataset, "8", 4));
  models::PuzzleModel& model = run.task.model();
  const config::Config& config = run.loaded.config;
  const auto train = data::open_dataset(dataset, "train", config.data);
  struct Seen {
    at::Tensor identifiers, q_halt;
  };
  const auto evaluated = [&](bool blank, int64_t rollouts) {
    tasks::PuzzleEvalOptions options = tasks::puzzle_eval_options(config, model, run.runtime, /*training_batch=*/0);
    options.blank_identifier = blank;
    options.rollouts.rollouts = rollouts;
    std::vector<at::Tensor> identifiers, q_halt;
    options.on_answers = [&](const tasks::PuzzleAnswers& answers) {
      identifiers.push_back(answers.identifiers);
      q_halt.push_back(answers.q_halt);
    };
    tasks::PuzzleEvaluation(model, train, config.objective, options, run.runtime.device).run([](const auto&) {});
    return Seen{at::cat(identifiers), at::cat(q_halt)};
  };
  const auto set = [&](const at::Tensor& rows) {
    const at::NoGradGuard no_grad;
    model.named_parameters()["q_head.weight"].copy_(
        at::arange(model.named_parameters()["q_head.weight"].numel(), at::kFloat).sin().view({2, -1}));
    model.puzzle_embedding().copy_(rows);
    model.parameter_set().refresh_compute();
  };
  const at::Tensor table =
      at::arange(model.puzzle_embedding().numel(), at::kFloat).mul(1.3).cos().view_as(model.puzzle_embedding());
  for (const int64_t rollouts : {1, 2}) {
    SCOPED_TRACE(rollouts);
    set(table);
    const Seen own = evaluated(false, rollouts), blank = evaluated(true, rollouts);
    EXPECT_TRUE(blank.identifiers.equal(own.identifiers));
    EXPECT_GT(own.identifiers.min().item<int64_t>(), 0);
    EXPECT_GT((blank.q_halt - own.q_halt).abs().max().item<double>(), 1e-3);
    set(table[0].expand_as(table));
    EXPECT_TRUE(evaluated(false, rollouts).q_halt.equal(blank.q_halt));
  }
}

}  // namespace
}  // namespace hrm
