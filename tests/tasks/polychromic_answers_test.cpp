// Rows of sampled answers: what a step reads of them, updates from one batch, ranks, checkpoints; answers as rewards
// read them.

#include "hrm/tasks/polychromic_answers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/data/batch.h"
#include "hrm/tasks/polychromic_responses.h"
#include "hrm/tasks/polychromic_rewards.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/state_check.h"

namespace hrm::tasks {
namespace {

constexpr int64_t kPad = 99, kNone = data::kIgnoreLabel;

// Two prompts with two answers each, in two micro-batches.
const std::vector<std::vector<int32_t>> kPrompts{{1, 2, 3}, {4}};

Answers four_answers() {
  return {.samples = 2,
          .ids = {{10, 11}, {12}, {13, 14, 15}, {16}},
          .texts = {"ab", "", "cde", "f"},
          .finished = {true, false, true, false}};
}

AnswerBatch::Options room(int64_t positions = 20) {
  return {.rows = 4, .positions = positions, .micro_batches = 2, .pad_id = kPad, .buckets = 2, .keeps_log_p = true};
}

const AnswerLayout kLayout{.rows = 2, .samples = 2};

TEST(AnswerBatch, LabelsAreTheTokensOfTheAnswer) {
  const auto comm = parallel::make_single_comm();
  AnswerBatch batch(room(), at::kCPU);
  EXPECT_EQ(batch.width(), 0);
  batch.write(kPrompts, four_answers(), kLayout, /*only_finished=*/false, *comm);
  EXPECT_EQ(batch.width(), 16) << "the first of two widths of 20 positions, in multiples of 8";
  const AnswerRows first = batch.rows(0), second = batch.rows(1);
  const auto is = [](const at::Tensor& row, std::vector<int64_t> want, int64_t fill) {
    want.resize(16, fill);
    return at::equal(row, at::tensor(want));
  };
  EXPECT_TRUE(is(first.ids[0], {1, 2, 3, 10}, kPad)) << first.ids[0];
  EXPECT_TRUE(is(first.labels[0], {kNone, kNone, 10, 11}, kNone)) << first.labels[0];
  EXPECT_TRUE(is(first.ids[1], {1, 2, 3}, kPad)) << first.ids[1];
  EXPECT_TRUE(is(second.ids[0], {4, 13, 14}, kPad)) << second.ids[0];
  EXPECT_TRUE(is(second.labels[0], {13, 14, 15}, kNone)) << second.labels[0];
  EXPECT_EQ(second.first, 2);
  EXPECT_EQ(second.count, 2);
  EXPECT_FALSE(first.shared);
  // What was cut off teaches nothing then.
  batch.write(kPrompts, four_answers(), kLayout, /*only_finished=*/true, *comm);
  EXPECT_TRUE(is(batch.rows(0).labels[0], {kNone, kNone, 10, 11}, kNone));
  EXPECT_TRUE(is(batch.rows(0).labels[1], {}, kNone));
  EXPECT_TRUE(is(batch.rows(0).ids[1], {1, 2, 3}, kPad));
  batch.clear();
  EXPECT_EQ(batch.width(), 0);
}

TEST(AnswerBatch, WidthsArePaddedToAMultiple) {
  EXPECT_EQ(answer_width(17, 20, 2), 20);
  EXPECT_EQ(answer_width(17, 20, 2, 16), 32) << "above the most positions";
  EXPECT_EQ(answer_width(3, 20, 2, 16), 16);
  EXPECT_EQ(answer_width(3, 24, 3, 16), 16) << "8 padded";
  EXPECT_EQ(answer_width(24, 24, 3, 2), 24);
}

// Rows that were written without padding, or with another, and are learned from again after a resume.
TEST(AnswerBatch, RowsOfACheckpointAreWidenedOrCut) {
  const auto comm = parallel::make_single_comm();
  AnswerBatch::Options plain = room(/*positions=*/13), padded = plain;
  plain.buckets = padded.buckets = 1;
  padded.multiple = 16;
  AnswerBatch from(plain, at::kCPU), to(padded, at::kCPU), back(plain, at::kCPU);
  from.write(kPrompts, four_answers(), kLayout, /*only_finished=*/false, *comm);
  from.set_advantages(at::tensor({1.0, 2.0, 3.0, 4.0}));
  EXPECT_EQ(from.width(), 13);
  // Longer rows of before stand where the padding comes.
  to.write({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {4}}, four_answers(), kLayout, /*only_finished=*/false, *comm);
  EXPECT_EQ(to.width(), 16);
  const auto copy = [](AnswerBatch& a, AnswerBatch& b) {
    struct State : Stateful {
      explicit State(AnswerBatch& of) : batch(of) {}
      void visit_state(StateVisitor& visitor) override { batch.visit_state(visitor, 4, 0, 4); }
      AnswerBatch& batch;
    } source(a);
    const StateListing listed = list_state(source);
    struct Loader : StateVisitor {
      explicit Loader(const StateListing& from) : listing(from) {}
      void tensor(const std::string& name, at::Tensor& tensor, StateRole, const StatePart&) override {
        for (const TensorEntry& entry : listing.tensors) {
          if (entry.name != name) continue;
          ASSERT_EQ(tensor.sizes(), entry.tensor.sizes()) << name;
          tensor.copy_(entry.tensor);
        }
      }
      void integer(const std::string& name, int64_t& value) override {
        for (const auto& [other, number] : listing.integers) value = other == name ? number : value;
      }
      void real(const std::string&, double&) override {}
      const StateListing& listing;
    } loader(listed);
    b.visit_state(loader, 4, 0, 4);
  };
  copy(from, to);
  to.learn_again(kLayout, *comm);
  EXPECT_EQ(to.width(), 16);
  for (int64_t micro = 0; micro < 2; ++micro) {
    const AnswerRows want = from.rows(micro), got = to.rows(micro);
    EXPECT_TRUE(at::equal(got.ids.narrow(1, 0, 13), want.ids));
    EXPECT_TRUE(at::equal(got.labels.narrow(1, 0, 13), want.labels));
    EXPECT_TRUE((got.ids.narrow(1, 13, 3) == kPad).all().item<bool>()) << got.ids;
    EXPECT_TRUE((got.labels.narrow(1, 13, 3) == kNone).all().item<bool>()) << got.labels;
  }
  copy(to, back);
  back.learn_again(kLayout, *comm);
  EXPECT_EQ(back.width(), 13);
  EXPECT_TRUE(at::equal(back.rows(1).ids, from.rows(1).ids));
}

TEST(AnswerBatch, RefusesRowsThatDoNotFit) {
  const auto comm = parallel::make_single_comm();
  AnswerBatch batch(room(/*positions=*/3), at::kCPU);
  test::expect_error(ExitCode::unexpected, {"a sampled row of 4 positions, room is for 3"},
                     [&] { batch.write(kPrompts, four_answers(), kLayout, false, *comm); });
}

// The widest rank's rows give all ranks their width.
TEST(AnswerBatch, RanksHaveOneWidth) {
  test::on_ranks({test::Kind::threads, 2}, [](parallel::Comm& comm) {
    Answers answers = four_answers();
    if (comm.rank() == 1) answers.ids[3].resize(19, 7);
    AnswerBatch batch(room(), at::kCPU);
    batch.write(kPrompts, answers, kLayout, false, comm);
    EXPECT_EQ(batch.width(), 20);
  });
}

TEST(AnswerBatch, WeightsAndAdvantagesAreOfTheRowsWritten) {
  const auto comm = parallel::make_single_comm();
  AnswerBatch batch(room(), at::kCPU);
  batch.write(kPrompts, four_answers(), kLayout, false, *comm);
  EXPECT_EQ(batch.updates(), 0);
  batch.set_weights(at::arange(4 * 16).view({4, 16}));
  EXPECT_EQ(batch.rows(1).weights[1][3].item<float>(), 3 * 16 + 3);
  EXPECT_EQ(batch.all_weights().narrow(1, 16, 4).abs().max().item<float>(), 0) << "beyond the rows' width";
  batch.set_advantages(at::tensor({1.0, 2.0, 3.0, 4.0}));
  EXPECT_TRUE(at::equal(batch.advantages(batch.rows(1)), at::tensor({3.0f, 4.0f})));
  EXPECT_EQ(batch.updates(), 1);
}

TEST(AnswerBatch, LaterUpdatesReadTheFirstOnesLogProbabilities) {
  const auto comm = parallel::make_single_comm();
  AnswerBatch batch(room(), at::kCPU);
  batch.write(kPrompts, four_answers(), kLayout, false, *comm);
  batch.set_advantages(at::ones({4}));
  const at::Tensor first = at::rand({2, 16});
  EXPECT_FALSE(batch.sampled_log_p(batch.rows(1), first).defined());
  batch.learn_again(kLayout, *comm);
  EXPECT_EQ(batch.updates(), 2);
  EXPECT_TRUE(at::equal(batch.sampled_log_p(batch.rows(1), at::rand({2, 16})), first));
  AnswerBatch::Options once = room();
  once.keeps_log_p = false;
  AnswerBatch forgetful(once, at::kCPU);
  forgetful.write(kPrompts, four_answers(), kLayout, false, *comm);
  EXPECT_FALSE(forgetful.sampled_log_p(forgetful.rows(0), first).defined());
  EXPECT_FALSE(forgetful.all_log_p().defined());
}

// What is shared between rows is made anew from the rows that a checkpoint brought back.
TEST(AnswerBatch, GoesOnFromItsState) {
  struct Registered : Stateful {
    explicit Registered(AnswerBatch& own) : batch(own) {}
    void visit_state(StateVisitor& visitor) override { batch.visit_state(visitor, 4, 0, 4); }
    AnswerBatch& batch;
  };
  const auto comm = parallel::make_single_comm();
  AnswerBatch::Options options = room(64);
  options.shares_prompts = true;
  options.buckets = 1;
  AnswerBatch batch(options, at::kCPU), other(options, at::kCPU);
  const std::vector<std::vector<int32_t>> prompts{std::vector<int32_t>(40, 5), std::vector<int32_t>(40, 6)};
  batch.write(prompts, four_answers(), kLayout, false, *comm);
  batch.set_advantages(at::tensor({1.0, -1.0, 0.5, -0.5}));
  batch.sampled_log_p(batch.rows(0), at::rand({2, 64}));
  ASSERT_GT(batch.shared_tokens(), 0);
  EXPECT_LT(batch.shared_tokens(), 2 * 64);
  Registered from(batch), to(other);
  test::copy_state(from, to);
  EXPECT_EQ(list_state(from).tensors.front().name, "answers.ids");
  EXPECT_EQ(other.updates(), 1);
  for (AnswerBatch* one : {&batch, &other}) one->learn_again(kLayout, *comm);
  EXPECT_EQ(other.shared_tokens(), batch.shared_tokens());
  EXPECT_TRUE(at::equal(other.shared_buffer(), batch.shared_buffer()));
  EXPECT_TRUE(at::equal(other.all_log_p(), batch.all_log_p()));
  EXPECT_TRUE(at::equal(other.rows(1).ids, batch.rows(1).ids));
}

TEST(ResponseBatch, RowsAreAsWideAsTheBatch) {
  ResponseBatch batch(4, 12, kPad, /*packed=*/true, at::kCPU);
  const void* address = batch.all_ids().data_ptr();
  data::LanguageBatch rows;
  rows.decoder_ids = at::arange(4 * 8).view({4, 8});
  rows.labels = rows.decoder_ids + 1;
  rows.document_ids = at::ones({4, 8}, at::kInt);
  batch.load(rows);
  EXPECT_EQ(batch.width(), 8);
  EXPECT_TRUE(at::equal(batch.ids(2, 2), rows.decoder_ids.narrow(0, 2, 2)));
  EXPECT_TRUE(at::equal(batch.labels(0, 1), rows.labels.narrow(0, 0, 1)));
  EXPECT_TRUE(at::equal(batch.documents(1, 3), rows.document_ids.narrow(0, 1, 3)));
  EXPECT_TRUE(at::equal(batch.host_ids(), rows.decoder_ids));
  EXPECT_EQ(batch.all_ids().data_ptr(), address);
  EXPECT_TRUE(batch.all_ids().narrow(1, 8, 4).eq(kPad).all().item<bool>());
  const ResponseBatch apart(4, 12, kPad, /*packed=*/false, at::kCPU);
  EXPECT_FALSE(apart.documents(0, 4).defined());
}

TEST(PolychromicRewards, NamesHaveWeights) {
  using Names = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(weighted_reward_names("answer*2,length"), (Names{{"answer", 2}, {"length", 1}}));
  EXPECT_EQ(weighted_reward_names("length*-0.5"), (Names{{"length", -0.5}}));
  for (const char* wrong : {"length*", "length*x", "length*1x", "length*inf"}) {
    test::expect_error(ExitCode::usage, {"grpo.rewards", wrong, "no weight"}, [&] { weighted_reward_names(wrong); });
  }
}

TEST(PolychromicRewards, AreThoseOfTheConfiguration) {
  config::GrpoConfig config;
  config.rewards = "finished,length*0.5";
  EXPECT_FALSE(rewards_need_diversity(config));
  EXPECT_FALSE(rewards_need_embeddings(config));
  EXPECT_EQ(make_rewards(config).names(), (std::vector<std::string>{"finished", "length"}));
  config.diversity_weight = 0.1;
  EXPECT_TRUE(rewards_need_diversity(config));
  const WeightedRewards made = make_rewards(config);
  EXPECT_EQ(made.names().back(), "diversity");
  EXPECT_EQ(made.weights, (std::vector<double>{1, 0.5, 0.1}));
  config.rewards = "relevance";
  EXPECT_TRUE(rewards_need_embeddings(config));
}

TEST(PolychromicRewards, GroupsHoldTheAnswersToOnePrompt) {
  const std::vector<AskedPrompt> prompts{{"first", {"ab"}}, {"second", {}}};
  const std::vector<objectives::AnswerGroup> plain = answer_groups(prompts, four_answers());
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0].prompt, "first");
  EXPECT_EQ(plain[0].references, std::vector<std::string>{"ab"});
  EXPECT_EQ(plain[1].texts, (std::vector<std::string>{"cde", "f"}));
  EXPECT_EQ(plain[1].tokens, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(plain[1].finished, (std::vector<bool>{true, false}));
  EXPECT_TRUE(plain[0].diversity.empty());
  EXPECT_FALSE(plain[0].embeddings.defined());
  const MeasuredAnswers measured{.diversity = at::tensor({0.25, 0.5, 0.75, 1.0}).view({2, 2}),
                                 .embeddings = at::arange(12, at::kFloat).view({2, 2, 3}),
                                 .prompt_embeddings = at::arange(6, at::kFloat).view({2, 3})};
  const std::vector<objectives::AnswerGroup> groups = answer_groups(prompts, four_answers(), measured);
  EXPECT_EQ(groups[0].diversity, (std::vector<double>{0.25, 0})) << "an empty answer has none";
  EXPECT_EQ(groups[1].diversity, (std::vector<double>{0.75, 1}));
  EXPECT_TRUE(at::equal(groups[1].embeddings, measured.embeddings[1]));
  EXPECT_TRUE(at::equal(groups[1].prompt_embedding, measured.prompt_embeddings[1]));
}

}  // namespace
}  // namespace hrm::tasks
