#pragma once
// Answers that share their prompts, and checks of a model that learns from them that hold on every device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/data/batch.h"
#include "hrm/tasks/prefix_sharing.h"
#include "tasks/small_language_models.h"

namespace hrm::test {

struct AnswerRows {
  at::Tensor ids, labels;  // (rows, T) int64
};

// Two micro-batches of two groups of three answers: prompts of 1 to 6 tokens, answers of 1 to 5, two rows that are left
// out, and a whole group.
inline AnswerRows rows_of_answers(int64_t positions = 12) {
  const std::vector<int64_t> prompts{3, 6, 1, 4};
  const std::vector<std::vector<int64_t>> answers{{2, 5, 1}, {3, 0, 4}, {1, 4, 4}, {0, 0, 0}};
  AnswerRows rows{at::zeros({12, positions}, at::kLong), at::full({12, positions}, data::kIgnoreLabel, at::kLong)};
  int64_t next = 0;
  const auto id = [&] { return next++ * 7 % (kVocabulary - 1) + 1; };
  for (size_t group = 0; group < prompts.size(); ++group) {
    std::vector<int64_t> prompt;
    for (int64_t t = 0; t < prompts[group]; ++t) prompt.push_back(id());
    for (size_t i = 0; i < 3; ++i) {
      const auto row = static_cast<int64_t>(3 * group + i);
      std::vector<int64_t> all = prompt;
      for (int64_t t = 0; t < answers[group][i]; ++t) all.push_back(id());
      for (size_t t = 0; t + 1 < all.size(); ++t) {
        const auto at = static_cast<int64_t>(t);
        rows.ids[row][at] = all[t];
        if (t + 1 >= prompt.size()) rows.labels[row][at] = all[t + 1];
      }
    }
  }
  return rows;
}

// (4, 10): each prompt with a response behind it, but the third, whose row begins otherwise.
inline at::Tensor rows_of_responses(const AnswerRows& rows) {
  const at::Tensor responses = at::arange(4 * 10, at::kLong).remainder(kVocabulary - 2).add(1).view({4, 10});
  const std::vector<int64_t> prompts{3, 6, 1, 4};
  for (int64_t group = 0; group < 4; ++group) {
    const int64_t count = prompts[static_cast<size_t>(group)];
    if (group != 2) responses[group].narrow(0, 0, count).copy_(rows.ids[3 * group].narrow(0, 0, count));
  }
  responses[2][0] = rows.ids[6][0] + 1;
  return responses;
}

// Hidden states that give labels, and of responses in the same pass, and the weights' gradients: as of rows that share
// nothing.
inline void expect_shared_as_rows(const std::shared_ptr<models::LanguageModel>& model, at::Device device, bool joins) {
  const AnswerRows rows = rows_of_answers();
  const int64_t T = rows.ids.size(1);
  tasks::PrefixSharing shared(2, 6, T, joins ? 2 * 10 : 0, device);
  const at::Tensor responses = joins ? rows_of_responses(rows) : at::Tensor();
  shared.write(shared.read(rows.ids, rows.labels, 2, 3, responses) + 3);
  nn::ParameterSet& parameters = model->parameter_set();
  for (int64_t micro = 0; micro < 2; ++micro) {
    const at::Tensor ids = rows.ids.narrow(0, 6 * micro, 6).to(device);
    const at::Tensor labels = rows.labels.narrow(0, 6 * micro, 6).to(device);
    const at::Tensor counts = labels.ne(data::kIgnoreLabel).unsqueeze(2);
    parameters.zero_grad();
    const at::Tensor plain = model->forward({.ids = ids}).hidden * counts;
    const at::Tensor weights = at::arange(plain.numel(), plain.options()).view(plain.sizes()).sin();
    (plain * weights).sum().backward();
    const tasks::PrefixSharedTokens part = shared.part(micro);
    at::Tensor shared_ids = part.ids, response_hidden;
    if (joins) {
      const at::Tensor whole = responses.narrow(0, 2 * micro, 2).to(device);
      shared_ids = at::cat({whole.reshape({1, -1}).to(at::kInt), part.ids}, 1);
      response_hidden = model->forward({.ids = whole}).hidden;
      response_hidden.cos().sum().backward();
    }
    const at::Tensor want = parameters.flat_grad().clone();
    parameters.zero_grad();
    const at::Tensor hidden = model->forward({.ids = shared_ids, .shared = part.tokens}).hidden;
    const at::Tensor given = ops::sum_rows(hidden.flatten(0, 1), part.labelled);
    const at::Tensor back = ops::sum_rows(given, part.to_rows).view(plain.sizes());
    EXPECT_TRUE(at::allclose(back, plain, 1e-4, 1e-5)) << (back - plain).abs().max();
    EXPECT_TRUE(at::equal(ops::sum_rows(part.labels.view({-1, 1}).to(at::kFloat), part.to_rows).view(labels.sizes()),
                          labels.to(at::kFloat) * counts.squeeze(2)));
    at::Tensor loss = (back * weights).sum();
    if (joins) {
      const at::Tensor whole = hidden.narrow(1, 0, 20).view(response_hidden.sizes());
      EXPECT_TRUE(at::allclose(whole, response_hidden, 1e-4, 1e-5)) << (whole - response_hidden).abs().max();
      loss = loss + whole.cos().sum();
    }
    loss.backward();
    const at::Tensor got = parameters.flat_grad();
    EXPECT_GT(want.abs().max().item<double>(), 0);
    EXPECT_TRUE(at::allclose(got, want, 1e-3, 1e-4 * want.abs().max().item<double>())) << (got - want).abs().max();
  }
}

}  // namespace hrm::test
