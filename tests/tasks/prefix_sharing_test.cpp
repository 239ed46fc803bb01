// Answers that go through a model with their prompt once: which tokens are kept, where they stand, and that nothing
// else is computed.

#include "tasks/prefix_sharing_cases.h"

#include "hrm/base/error.h"
#include "support/expect_error.h"

namespace hrm::tasks {
namespace {

using test::AnswerRows;
using test::rows_of_answers;

// Of each token, all of which have one.
at::Tensor first_places(const ops::RowMap& spread) {
  const at::Tensor begin = spread.back_begin;
  return spread.back.index_select(0, begin.narrow(0, 0, begin.numel() - 1).to(at::kLong));
}

TEST(SharedAnswers, KeepsEachTokenOnce) {
  const AnswerRows rows = rows_of_answers();
  PrefixSharing shared(2, 6, 12, 0, at::kCPU);
  // The last token of an answer is not read: 3 + 1 + 4 + 0, 6 + 2 + 3, and of the second half 1 + 0 + 3 + 3. Labels are
  // as many as tokens of answers: 8 + 7, 9.
  EXPECT_EQ(shared.read(rows.ids, rows.labels, 2, 3), 19);
  shared.write(19);
  const PrefixSharedTokens first = shared.part(0);
  EXPECT_EQ(first.ids.sizes(), (std::vector<int64_t>{1, 19}));
  const at::Tensor there = ops::sum_rows(first.ids.view({-1, 1}).to(at::kFloat), first.tokens.spread).view({6, 12});
  const at::Tensor counts = rows.labels.narrow(0, 0, 6).ne(data::kIgnoreLabel).any(1, /*keepdim=*/true);
  EXPECT_TRUE(at::equal(there, (rows.ids.narrow(0, 0, 6) * counts).to(at::kFloat))) << there;
  EXPECT_EQ(first.labels.ne(data::kIgnoreLabel).sum().item<int64_t>(), 15);
  // Each token is read from a place where it stands, and stands there.
  const at::Tensor places = at::arange(6 * 12, at::kFloat).view({-1, 1});
  const at::Tensor from = ops::sum_rows(places, first.tokens.collect).to(at::kInt);
  EXPECT_TRUE(at::equal(from.view(-1), first_places(first.tokens.spread)));
  EXPECT_EQ(first.tokens.whole_rows, 0);
  // The second half needs fewer: what is left over has no place.
  const PrefixSharedTokens second = shared.part(1);
  EXPECT_EQ(second.tokens.spread.back_begin.diff().ge(1).sum().item<int64_t>(), 7);
  EXPECT_EQ(second.tokens.spread.rows.narrow(0, 3 * 12, 3 * 12).ge(0).sum().item<int64_t>(), 0);
}

// The prompts that responses begin with are not kept again: 3 and 6 tokens of the first half, and of the second none of
// the one whose response begins otherwise.
TEST(SharedAnswers, PromptsOfResponses) {
  const AnswerRows rows = rows_of_answers();
  const at::Tensor responses = test::rows_of_responses(rows);
  PrefixSharing shared(2, 6, 12, 2 * 10, at::kCPU);
  EXPECT_EQ(shared.read(rows.ids, rows.labels, 2, 3, responses), 15) << "labels; tokens are 10";
  shared.write(15);
  for (const int64_t micro : {0, 1}) {
    const PrefixSharedTokens part = shared.part(micro);
    const at::Tensor all = at::cat({responses.narrow(0, 2 * micro, 2).reshape({1, -1}).to(at::kInt), part.ids}, 1);
    EXPECT_EQ(part.tokens.whole_rows * part.tokens.whole_positions, 20);
    const at::Tensor there = ops::sum_rows(all.view({-1, 1}).to(at::kFloat), part.tokens.spread).view({6, 12});
    const at::Tensor counts = rows.labels.narrow(0, 6 * micro, 6).ne(data::kIgnoreLabel).any(1, /*keepdim=*/true);
    EXPECT_TRUE(at::equal(there, (rows.ids.narrow(0, 6 * micro, 6) * counts).to(at::kFloat))) << there;
    const auto own = part.tokens.collect.rows.ge(0).sum().item<int64_t>();
    EXPECT_EQ(own, micro == 0 ? 10 : 7)
        << "answers of 2, 5, 1, 3 and 4 without their last; of 1, 4, 4, and a prompt of 1";
    EXPECT_EQ(part.tokens.collect.rows.narrow(0, 0, 20).ge(0).sum().item<int64_t>(), 0);
  }
}

TEST(SharedAnswers, MapsAreThoseOfBothSides) {
  const AnswerRows rows = rows_of_answers();
  PrefixSharing shared(2, 6, 12, 2 * 10, at::kCPU);
  const at::Tensor responses = test::rows_of_responses(rows);
  shared.write(shared.read(rows.ids, rows.labels, 2, 3, responses) + 5);
  const PrefixSharedTokens part = shared.part(0);
  for (const ops::RowMap& map : {part.tokens.spread, part.tokens.collect, part.labelled, part.to_rows}) {
    const int64_t from = map.reversed().count(), to = map.count();
    const at::Tensor forward = ops::sum_rows(at::eye(from), map);
    EXPECT_GT(forward.sum().item<double>(), 0);
    EXPECT_TRUE(at::equal(forward.t(), ops::sum_rows(at::eye(to), map.reversed())));
  }
}

TEST(SharedAnswers, CapacitiesAreFew) {
  EXPECT_EQ(PrefixSharing::capacity(1456, 12, 168), 1536);
  EXPECT_EQ(PrefixSharing::capacity(1, 12, 168), 256);
  EXPECT_EQ(PrefixSharing::capacity(0, 12, 168), 256);
  EXPECT_EQ(PrefixSharing::capacity(1900, 12, 168), 0) << "as many as there are places";
  EXPECT_EQ(PrefixSharing::capacity(10, 4, 16), 0) << "a few places are not worth it";
}

TEST(SharedAnswers, AsRowsThatShareNothing) {
  for (const bool joins : {false, true}) {
    test::expect_shared_as_rows(test::small_decoder_lm(), at::kCPU, joins);
    test::expect_shared_as_rows(test::small_decoder_lm(at::kCPU, /*window=*/4), at::kCPU, joins);
  }
}

TEST(SharedAnswers, RefusesWhatDoesNotFit) {
  AnswerRows rows = rows_of_answers();
  PrefixSharing shared(1, 6, 12, 0, at::kCPU);
  shared.read(rows.ids, rows.labels, 2, 3);
  test::expect_error(ExitCode::unexpected, {"more than there is room for"}, [&] { shared.write(30); });
  rows.ids[1][0] = 0;
  PrefixSharing room(2, 6, 12, 0, at::kCPU);
  test::expect_error(ExitCode::unexpected, {"do not begin alike"}, [&] { room.read(rows.ids, rows.labels, 2, 3); });
  // A model that reads its prompts apart has no rows of prompt and answer.
  const auto model = test::small_hrm_lm(models::Bridge::prefix);
  const PrefixSharedTokens part = [&] {
    const AnswerRows good = rows_of_answers();
    room.write(room.read(good.ids, good.labels, 2, 3));
    return room.part(0);
  }();
  test::expect_error(ExitCode::unexpected, {"one document per row"},
                     [&] { model->forward({.ids = part.ids, .shared = part.tokens, .prompt_ids = part.ids}); });
}

}  // namespace
}  // namespace hrm::tasks
