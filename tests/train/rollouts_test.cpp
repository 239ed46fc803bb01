// Rollouts: the first is a run without any, the others depend on nothing but their numbers, and each selector chooses
// what its name says.
#include <cmath>

#include "evaluation_cases.h"
#include "hrm/data/maze.h"
#include "hrm/tasks/puzzle_rules.h"
#include "hrm/tasks/rollouts.h"

namespace hrm {
namespace {

using config::RolloutSelector;
using tasks::RolloutEvaluator;
using testing::fresh_folder;
using testing::SmallRun;

constexpr int64_t kSegments = 4;

std::vector<int64_t> numbers(int64_t first, int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(first + i);
  return result;
}

data::PuzzleBatch part(const data::PuzzleBatch& batch, int64_t first, int64_t count) {
  return {batch.inputs.narrow(0, first, count), batch.labels.narrow(0, first, count),
          batch.puzzle_identifiers.narrow(0, first, count), count};
}

tasks::RolloutOptions few(int64_t rows, int64_t rollouts) {
  return {.rows = rows, .rollouts = rollouts, .segments = kSegments, .noise = 0.7, .seed = 3};
}

class Rollouts : public ::testing::Test {
 protected:
  SmallRun run_{fresh_folder("runs"), {"precision.compute=fp32"}};
  models::PuzzleModel& model_ = run_.task.model();
  data::PuzzleBatch batch_ = testing::some_puzzles(run_, 6);
};

TEST_F(Rollouts, TheFirstIsARunWithoutNoise) {
  testing::make_q_values_differ(run_);
  const auto got = RolloutEvaluator(model_, few(24, 4)).run(batch_, numbers(0, 6));
  const auto want = objectives::act_evaluate(model_, batch_, kSegments);
  EXPECT_TRUE(got.tokens.select(1, 0).equal(want.output.logits.argmax(-1).to(at::kInt)));
  EXPECT_LT((got.q_halt.select(1, 0) - want.output.q_halt).abs().max().item<double>(), 1e-4);
  for (int64_t k = 1; k < 4; ++k) {
    EXPECT_GT((got.q_halt.select(1, k) - got.q_halt.select(1, 0)).abs().max().item<double>(), 1e-3) << k;
  }
}

// Not on what runs beside them, nor on how many rollouts there are.
TEST_F(Rollouts, DependOnTheirNumbersAlone) {
  testing::make_q_values_differ(run_);
  const auto all = RolloutEvaluator(model_, few(24, 4)).run(batch_, numbers(10, 6));
  const auto expect_same = [&](const RolloutEvaluator::Answers& got, int64_t first, int64_t count, int64_t rollouts,
                               const std::string& what) {
    const auto want = [&](const at::Tensor& t) { return t.narrow(0, first, count).narrow(1, 0, rollouts); };
    EXPECT_LT((got.q_halt - want(all.q_halt)).abs().max().item<double>(), 1e-3) << what;
    EXPECT_LT((got.residual - want(all.residual)).abs().max().item<double>(), 1e-3 * all.residual.max().item<double>())
        << what;
  };
  expect_same(RolloutEvaluator(model_, few(5, 4)).run(batch_, numbers(10, 6)), 0, 6, 4, "five rows at a time");
  expect_same(RolloutEvaluator(model_, few(3, 4)).run(part(batch_, 2, 3), numbers(12, 3)), 2, 3, 4, "other puzzles");
  expect_same(RolloutEvaluator(model_, few(24, 2)).run(batch_, numbers(10, 6)), 0, 6, 2, "fewer rollouts");
  const auto other = RolloutEvaluator(model_, few(24, 4)).run(batch_, numbers(11, 6));
  EXPECT_GT((other.q_halt - all.q_halt).select(1, 1).abs().min().item<double>(), 0);
}

// Residual and settling from the outputs of each segment.
TEST_F(Rollouts, MeasureHowTheAnswerSettles) {
  testing::make_q_values_differ(run_);
  for (const int64_t window : {1, 3, 9}) {
    tasks::RolloutOptions options = few(6, 1);
    options.residual_window = window;
    const auto got = RolloutEvaluator(model_, options).run(batch_, numbers(0, 6));
    std::vector<at::Tensor> changes;
    at::Tensor before, settled = at::zeros({6}, at::kInt);
    objectives::act_evaluate(model_, batch_, kSegments, [&](int64_t, const models::SegmentOutput& out) {
      const at::Tensor logits = out.logits.clone();
      if (before.defined()) {
        changes.push_back((logits - before).square().sum(-1).sqrt().mean(-1));
        settled = (settled + 1) * logits.argmax(-1).eq(before.argmax(-1)).all(-1);
      }
      before = logits;
    });
    at::Tensor want = at::zeros({6});
    const auto used = std::min<size_t>(changes.size(), static_cast<size_t>(window));
    for (size_t i = changes.size() - used; i < changes.size(); ++i) want = want + changes[i];
    want = want / static_cast<double>(used);
    EXPECT_LT((got.residual.select(1, 0) - want).abs().max().item<double>(), 1e-3 * want.max().item<double>())
        << window;
    EXPECT_TRUE(got.settled.select(1, 0).equal(settled.to(at::kInt))) << window;
  }
}

// NaN that one batch leaves behind does not reach the next.
TEST_F(Rollouts, ForgetWhatRanBefore) {
  testing::make_q_values_differ(run_);
  tasks::RolloutOptions options = few(24, 4);
  options.segments = 2;
  RolloutEvaluator kept(model_, options);
  at::Tensor head = model_.named_parameters()["lm_head.weight"];
  const at::Tensor before = head.detach().clone();
  const auto set = [&](const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    head.copy_(values);
    model_.parameter_set().refresh_compute();
  };
  set(at::full_like(before, NAN));
  EXPECT_TRUE(kept.run(batch_, numbers(0, 6)).residual.isnan().all().item<bool>());
  set(before);
  const auto got = kept.run(batch_, numbers(0, 6));
  const auto want = RolloutEvaluator(model_, options).run(batch_, numbers(0, 6));
  EXPECT_TRUE(got.residual.equal(want.residual));
  EXPECT_TRUE(got.tokens.equal(want.tokens));
  EXPECT_TRUE(got.settled.equal(want.settled));
}

constexpr double kLittleNoise = 0.02;  // rollouts of an untrained model still agree here and there

// Stopping early: what the rule, applied to runs of 1, 2, ... segments, says. The puzzles of a call share few places.
// Returns how many stopped after each number of segments.
std::vector<int64_t> check_early_halt(SmallRun& run, int64_t rollouts, int64_t asked, int64_t agreeing) {
  const std::vector<int64_t> examples = numbers(5, 40);
  const data::PuzzleBatch batch = testing::some_puzzles(run, 40);
  const int64_t K = rollouts, S = batch.inputs.size(1);
  std::vector<RolloutEvaluator::Answers> after;
  for (int64_t segments = 1; segments <= kSegments; ++segments) {
    tasks::RolloutOptions options = few(40 * K, K);
    options.segments = segments;
    options.noise = kLittleNoise;
    after.push_back(RolloutEvaluator(run.task.model(), options).run(batch, examples));
  }
  tasks::RolloutOptions options = few(7 * K + K - 1, K);  // 7 places
  options.noise = kLittleNoise;
  options.early_halt = true;
  options.agreeing = asked;
  options.call_puzzles = 40;
  RolloutEvaluator early(run.task.model(), options);
  std::vector<int64_t> stops(static_cast<size_t>(kSegments) + 1);
  for (const int64_t count : {40, 3, 40}) {
    const auto got = early.run(part(batch, 0, count), examples);
    for (int64_t n = 0; n < count; ++n) {
      int64_t stop = 0;
      at::Tensor decided = at::zeros({K}, at::kBool);
      while (stop < kSegments && !decided.any().item<bool>()) {
        const auto& now = after[static_cast<size_t>(stop++)];
        for (int64_t a = 0; a < K; ++a) {
          int64_t agree = 0;
          for (int64_t b = 0; b < K; ++b) {
            const bool halt = now.q_halt[n][a].item<float>() > 0 && now.q_halt[n][b].item<float>() > 0;
            agree += halt && now.tokens[n][a].equal(now.tokens[n][b]);
          }
          decided[a] = agree >= agreeing;
        }
      }
      EXPECT_TRUE(got.decided[n].equal(decided.logical_or(decided.any().logical_not())));
      const auto& want = after[static_cast<size_t>(stop) - 1];
      SCOPED_TRACE(cat("puzzle ", n, " of ", count, ", ", K, " rollouts"));
      EXPECT_EQ(got.segments[n].item<int64_t>(), stop);
      EXPECT_TRUE(got.tokens[n].view({K, S}).equal(want.tokens[n]));
      EXPECT_LT((got.q_halt[n] - want.q_halt[n]).abs().max().item<double>(), 1e-3);
      EXPECT_LT((got.residual[n] - want.residual[n]).abs().max().item<double>(), 1e-2);
      EXPECT_TRUE(got.settled[n].equal(want.settled[n]));
      ++stops[static_cast<size_t>(stop)];
    }
  }
  return stops;
}

TEST(RolloutsThatStopEarly, StopWhereTheRuleSays) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"model.start_std=1"}}) {
    std::vector<std::string> overrides{"precision.compute=fp32", "model.no_ACT_continue=true"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    SmallRun run(fresh_folder("runs"), overrides);
    testing::make_q_values_differ(run);
    // Half of the puzzles would halt after two segments, others later or never. The border is between two values: at
    // one of them, rounding would decide.
    tasks::RolloutOptions two = few(40, 1);
    two.segments = 2;
    const auto second = RolloutEvaluator(run.task.model(), two).run(testing::some_puzzles(run, 40), numbers(5, 40));
    {
      const at::NoGradGuard no_grad;
      const at::Tensor sorted = std::get<0>(second.q_halt.flatten().sort());
      run.task.model().named_parameters()["q_head.bias"][0] -= sorted.narrow(0, 19, 2).mean();
      run.task.model().parameter_set().refresh_compute();
    }
    struct Case {
      int64_t rollouts, asked, agreeing;
    };
    for (const auto& [rollouts, asked, agreeing] :
         {Case{1, 0, 1}, Case{2, 0, 2}, Case{3, 0, 2}, Case{6, 0, 3}, Case{6, 1, 1}, Case{6, 4, 4}}) {
      const std::vector<int64_t> stops = check_early_halt(run, rollouts, asked, agreeing);
      if (!more.empty()) continue;  // rollouts from random states hardly agree
      for (const size_t stop : {size_t{2}, size_t{3}, static_cast<size_t>(kSegments)}) {
        EXPECT_GT(stops[stop], 0) << rollouts << " rollouts, " << agreeing << " agreeing, segment " << stop;
      }
    }
  }
}

// A model with random states of its own: each rollout starts elsewhere, the first as a run without rollouts does.
TEST(RolloutsOfRandomStates, StartElsewhere) {
  SmallRun run(fresh_folder("runs"), {"precision.compute=fp32", "model.start_std=1", "model.path_noise=0.05"});
  testing::make_q_values_differ(run);
  models::PuzzleModel& model = run.task.model();
  const data::PuzzleBatch batch = testing::some_puzzles(run, 6);
  tasks::RolloutOptions options = few(24, 4);
  options.noise = 0;
  options.seed = 0;
  const auto got = RolloutEvaluator(model, options).run(batch, numbers(0, 6));
  const auto want = objectives::act_evaluate(model, batch, kSegments);
  EXPECT_TRUE(got.tokens.select(1, 0).equal(want.output.logits.argmax(-1).to(at::kInt)));
  EXPECT_LT((got.q_halt.select(1, 0) - want.output.q_halt).abs().max().item<double>(), 1e-4);
  for (int64_t k = 1; k < 4; ++k) {
    EXPECT_GT((got.q_halt.select(1, k) - got.q_halt.select(1, 0)).abs().min().item<double>(), 1e-6) << k;
  }
}

// A model with one state reads noise on z_H, and none on z_L.
TEST(RolloutsOfOneState, DifferByNoiseOnIt) {
  SmallRun run(fresh_folder("runs"), {"precision.compute=fp32", "model.arch=urm", "model.H_layers=0",
                                      "model.H_cycles=2", "model.no_ACT_continue=true"});
  testing::make_q_values_differ(run);
  models::PuzzleModel& model = run.task.model();
  const data::PuzzleBatch batch = testing::some_puzzles(run, 6);
  tasks::RolloutOptions options = few(24, 4);
  options.noisy_state = config::NoisyState::z_L;
  const auto equal = RolloutEvaluator(model, options).run(batch, numbers(0, 6));
  options.noisy_state = config::NoisyState::z_H;
  const auto got = RolloutEvaluator(model, options).run(batch, numbers(0, 6));
  const auto want = objectives::act_evaluate(model, batch, kSegments);
  EXPECT_TRUE(got.tokens.select(1, 0).equal(want.output.logits.argmax(-1).to(at::kInt)));
  EXPECT_LT((got.q_halt.select(1, 0) - want.output.q_halt).abs().max().item<double>(), 1e-4);
  for (int64_t k = 1; k < 4; ++k) {
    EXPECT_GT((got.q_halt.select(1, k) - got.q_halt.select(1, 0)).abs().max().item<double>(), 1e-3) << k;
    EXPECT_LT((equal.q_halt.select(1, k) - equal.q_halt.select(1, 0)).abs().max().item<double>(), 1e-4) << k;
  }
}

// Two puzzles, four rollouts, made by hand.
TEST(RolloutSelector, ChoosesWhatItsNameSays) {
  const RolloutEvaluator::Answers answers{
      .tokens = at::tensor({1, 2, 3, 4, 1, 2, 9, 9, 5, 5, 6, 6, 7, 7, 7, 7}, at::kInt).view({2, 4, 2}),
      .q_halt = at::tensor({0.1f, 0.9f, 0.3f, 0.2f, -1.0f, -2.0f, -0.5f, -3.0f}).view({2, 4}),
      .residual = at::tensor({4.0f, 3.0f, 2.0f, 1.0f, 0.5f, 0.1f, NAN, 0.2f}).view({2, 4}),
      .settled = at::tensor({3, 1, 3, 2, 0, 0, 0, 0}, at::kInt).view({2, 4})};
  const auto chosen = [&](RolloutSelector selector) {
    const at::Tensor found = tasks::choose_rollouts(answers, selector);
    return std::pair{found[0].item<int64_t>(), found[1].item<int64_t>()};
  };
  using Pair = std::pair<int64_t, int64_t>;
  EXPECT_EQ(chosen(RolloutSelector::q), (Pair{1, 2}));
  EXPECT_EQ(chosen(RolloutSelector::first), (Pair{0, 0}));
  EXPECT_EQ(chosen(RolloutSelector::residual), (Pair{3, 1}));
  EXPECT_EQ(chosen(RolloutSelector::settled), (Pair{2, 2})) << "Q decides between equal ones";
  EXPECT_EQ(chosen(RolloutSelector::majority), (Pair{2, 2})) << "rollouts 0 and 2, and 2 and 3, have one answer";
}

// Broken rollouts agree with each other and have settled, but none of them is chosen.
// Of a puzzle that stopped early: the third rollout, then the third and fourth.
TEST(RolloutSelector, ChoosesAmongWhatAPuzzleStoppedFor) {
  RolloutEvaluator::Answers answers{.tokens = at::tensor({7, 7, 1, 2}, at::kInt).view({1, 4, 1}),
                                    .q_halt = at::tensor({4.0F, 3.0F, 1.0F, 2.0F}).view({1, 4}),
                                    .residual = at::tensor({0.1F, 0.2F, 0.4F, 0.3F}).view({1, 4}),
                                    .settled = at::tensor({9, 8, 1, 2}, at::kInt).view({1, 4})};
  for (const bool fourth : {false, true}) {
    answers.decided = at::tensor({0, 0, 1, fourth ? 1 : 0}, at::kInt).to(at::kBool).view({1, 4});
    for (const auto selector : {RolloutSelector::q, RolloutSelector::majority, RolloutSelector::residual,
                                RolloutSelector::settled, RolloutSelector::first}) {
      const int64_t want = selector == RolloutSelector::first ? 0 : fourth ? 3 : 2;
      EXPECT_EQ(tasks::choose_rollouts(answers, selector).item<int64_t>(), want) << static_cast<int>(selector);
    }
  }
}

// A valid answer first, then one that the puzzle stopped for, then the larger Q value.
TEST(RolloutSelector, ChoosesByTheRules) {
  RolloutEvaluator::Answers answers{.tokens = at::zeros({1, 4, 1}, at::kInt),
                                    .q_halt = at::tensor({4.0F, 3.0F, 1.0F, 2.0F}).view({1, 4}),
                                    .residual = at::zeros({1, 4}),
                                    .settled = at::zeros({1, 4}, at::kInt)};
  const auto chosen = [&](std::vector<int64_t> valid) {
    return tasks::choose_valid(answers, at::tensor(valid, at::kLong).to(at::kBool).view({1, 4})).item<int64_t>();
  };
  EXPECT_EQ(chosen({0, 0, 0, 0}), 0);
  EXPECT_EQ(chosen({0, 0, 1, 1}), 3);
  answers.decided = at::tensor({0, 1, 1, 0}, at::kInt).to(at::kBool).view({1, 4});
  EXPECT_EQ(chosen({0, 0, 0, 0}), 1);
  EXPECT_EQ(chosen({1, 0, 1, 1}), 2);
  EXPECT_EQ(chosen({1, 0, 0, 1}), 0);
  answers.q_halt[0][0] = NAN;
  EXPECT_EQ(chosen({1, 0, 0, 1}), 3);
}

TEST(RolloutSelector, NeverChoosesWhatIsNoNumber) {
  const RolloutEvaluator::Answers answers{.tokens = at::tensor({0, 0, 0, 0, 0, 0, 1, 2}, at::kInt).view({1, 4, 2}),
                                          .q_halt = at::tensor({NAN, NAN, NAN, -5.0f}).view({1, 4}),
                                          .residual = at::tensor({NAN, 0.0f, NAN, 2.0f}).view({1, 4}),
                                          .settled = at::tensor({9, 9, 9, 0}, at::kInt).view({1, 4})};
  for (const auto selector :
       {RolloutSelector::q, RolloutSelector::majority, RolloutSelector::residual, RolloutSelector::settled}) {
    EXPECT_EQ(tasks::choose_rollouts(answers, selector).item<int64_t>(), 3) << config::name_of(selector);
  }
}

// `eval` with rollouts: one that is the run without, bounds, and no effect of the batch size.
TEST(RolloutEvaluation, ReportsEachSelector) {
  const auto evaluated = [](const std::vector<std::string>& more) {
    std::vector<std::string> overrides{"eval.max_samples=20", "model.halt_max_steps=4", "precision.compute=fp32"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    SmallRun run(fresh_folder("runs"), overrides);
    testing::make_q_values_differ(run);
    return run.task.evaluate([](const tasks::EvalProgress&) {});
  };
  const tasks::NamedValues plain = evaluated({});
  const tasks::NamedValues moving = evaluated({"eval.rollouts=2", "eval.selector=first"});
  EXPECT_GT(tasks::value_of(moving, "residual"), 0);
  EXPECT_GE(tasks::value_of(moving, "settled"), 0);
  EXPECT_LE(tasks::value_of(moving, "settled"), 3) << "four segments change the answer at most three times";
  tasks::NamedValues first;
  for (const char* batch : {"eval.batch_size=0", "eval.batch_size=7", "eval.batch_size=60"}) {
    const tasks::NamedValues wide = evaluated({"eval.rollouts=3", "eval.noise=0.5", batch});
    EXPECT_EQ(tasks::value_of(wide, "count"), 20);
    EXPECT_EQ(tasks::value_of(wide, "steps"), 4);
    EXPECT_NE(tasks::puzzle_eval_text(wide).find("some rollout"), std::string::npos);
    EXPECT_EQ(tasks::value_of(wide, "exact_first"), tasks::value_of(plain, "exact_accuracy"));
    EXPECT_EQ(tasks::value_of(wide, "exact_accuracy"), tasks::value_of(wide, "exact_q"));
    EXPECT_GE(tasks::value_of(wide, "exact_valid"), tasks::value_of(wide, "exact_q"));
    for (const char* name :
         {"exact_valid", "exact_q", "exact_majority", "exact_residual", "exact_settled", "exact_mean"}) {
      EXPECT_LE(tasks::value_of(wide, name), tasks::value_of(wide, "exact_any")) << name;
    }
    if (first.empty()) first = wide;
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_NEAR(wide[i].second, first[i].second, 0.051) << wide[i].first << " " << batch;  // one sample by rounding
    }
  }
  const tasks::NamedValues chosen = evaluated({"eval.rollouts=3", "eval.noise=0.5", "eval.selector=first"});
  EXPECT_NEAR(tasks::value_of(chosen, "accuracy"), tasks::value_of(plain, "accuracy"), 1e-6);
}

// Without a reference answer, by the tokens alone.
TEST(PuzzleRules, KnowASolution) {
  models::PuzzleModelDims dims;
  dims.seq_len = 16;
  dims.vocab_size = 6;
  config::DataConfig data;
  data.kind = config::PuzzleFileKind::sudoku;
  EXPECT_EQ(tasks::game_of(dims, data), tasks::PuzzleGame::sudoku);
  const tasks::PuzzleRules sudoku = tasks::puzzle_rules(dims, data);
  ASSERT_TRUE(sudoku);
  const std::vector<int32_t> answer{2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2};
  std::vector<int32_t> question(16, 1);
  question[5] = 5;
  EXPECT_TRUE(sudoku(question.data(), answer.data()));
  question[5] = 3;
  EXPECT_FALSE(sudoku(question.data(), answer.data())) << "a given digit was changed";
  question[5] = 1;
  std::vector<int32_t> wrong = answer;
  std::swap(wrong[0], wrong[1]);
  EXPECT_FALSE(sudoku(question.data(), wrong.data())) << "a digit stands twice in a column";
  for (const int32_t no_digit : {0, 1, 6, -100}) {
    wrong = answer;
    wrong[3] = no_digit;
    EXPECT_FALSE(sudoku(question.data(), wrong.data())) << no_digit;
  }

  data.kind = config::PuzzleFileKind::automatic;
  EXPECT_FALSE(tasks::puzzle_rules(dims, data)) << "a Sudoku, or a maze";
  data.kind = config::PuzzleFileKind::maze;
  EXPECT_EQ(tasks::game_of(dims, data), tasks::PuzzleGame::maze);
  const tasks::PuzzleRules maze = tasks::puzzle_rules(dims, data);
  const auto tokens = [](const std::string& text) {
    std::vector<int32_t> result;
    for (const char c : text) result.push_back(data::maze_token(c));
    return result;
  };
  const std::vector<int32_t> asked = tokens("S   ### G   ####");
  EXPECT_TRUE(maze(asked.data(), tokens("Sooo###oGooo####").data()));
  EXPECT_FALSE(maze(asked.data(), tokens("Soo ###oGooo####").data())) << "the path has a gap";

  EXPECT_FALSE(maze(tokens("    ### G   ####").data(), tokens("oooo###oGooo####").data())) << "a maze without start";

  dims.vocab_size = 40;
  EXPECT_FALSE(tasks::puzzle_rules(dims, data)) << "not a game that is known";
  dims.seq_len = 100;
  dims.vocab_size = 12;
  data.kind = config::PuzzleFileKind::sudoku;
  EXPECT_EQ(tasks::game_of(dims, data), tasks::PuzzleGame::sudoku);
  EXPECT_FALSE(tasks::puzzle_rules(dims, data)) << "boxes that nobody named";
}

}  // namespace
}  // namespace hrm
