// Generation on the CPU in float32: the same tokens with and without a cache, in every batch and order.

#include "hrm/tasks/generation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "hrm/base/error.h"
#include "tasks/small_language_models.h"

namespace hrm::tasks {
namespace {

using models::Bridge;
using models::LanguageModel;
using Prompts = std::vector<std::vector<int32_t>>;

constexpr int64_t kBegin = 29;

struct NamedModel {
  const char* name;
  std::shared_ptr<LanguageModel> model;
};

std::vector<NamedModel> cached_models() {
  return {{"decoder", test::small_decoder_lm()},
          {"window", test::small_decoder_lm(at::kCPU, 4)},
          {"prefix", test::small_hrm_lm(Bridge::prefix)},
          {"cross-attention", test::small_hrm_lm(Bridge::cross_attention)}};
}

Prompts some_prompts() {
  return {{3, 1, 4}, {1, 5, 9, 2, 6}, {5}, {3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6}, {2, 6, 4}, {3, 3}, {8, 3, 2, 7}};
}

GenerateOptions sampled(int64_t new_tokens) {
  return {.max_new_tokens = new_tokens,
          .sampling = {.temperature = 0.9, .top_k = 20, .top_p = 0.95},
          .seed = 11,
          .begin_id = kBegin};
}

std::vector<Generated> generate(LanguageModel& model, const Prompts& prompts, const GenerateOptions& options,
                                const GeneratorOptions& how = {}) {
  return Generator(model, how).run(prompts, options);
}

void expect_same(const std::vector<Generated>& got, const std::vector<Generated>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].prompt, want[i].prompt) << what;
    EXPECT_EQ(got[i].sample, want[i].sample) << what;
    EXPECT_EQ(got[i].ids, want[i].ids) << what << ", row " << i;
    EXPECT_EQ(got[i].finish, want[i].finish) << what << ", row " << i;
  }
}

// The definition of greedy decoding, a row at a time.
std::vector<int32_t> plain_greedy(LanguageModel& model, const std::vector<int32_t>& prompt, int64_t new_tokens) {
  const at::NoGradGuard no_grad;
  const bool prompted = model.limits().prompted;
  std::vector<int32_t> row = prompted ? std::vector<int32_t>{kBegin} : prompt;
  for (int64_t i = 0; i < new_tokens; ++i) {
    models::LanguageInputs inputs{.ids = at::tensor(row, at::kLong).unsqueeze(0)};
    if (prompted) inputs.prompt_ids = at::tensor(prompt, at::kLong).unsqueeze(0);
    const at::Tensor hidden = model.forward(inputs).hidden.select(1, -1);
    row.push_back(static_cast<int32_t>(model.logits(hidden).argmax(-1).item<int64_t>()));
  }
  return {row.end() - new_tokens, row.end()};
}

TEST(Generation, GreedyIsTheBestTokenEachTime) {
  std::vector<NamedModel> all = cached_models();
  all.push_back({"prototype", test::small_prototype()});
  for (const auto& [name, model] : all) {
    const Prompts prompts = some_prompts();
    const GenerateOptions options{.max_new_tokens = 9, .sampling = {.temperature = 0}, .begin_id = kBegin};
    const std::vector<Generated> rows = generate(*model, prompts, options);
    ASSERT_EQ(rows.size(), prompts.size());
    for (size_t p = 0; p < prompts.size(); ++p) {
      EXPECT_EQ(rows[p].ids, plain_greedy(*model, prompts[p], 9)) << name << ", prompt " << p;
      EXPECT_EQ(rows[p].finish, Finish::length);
    }
  }
}

TEST(Generation, CacheGivesTheTokensOfWholeRows) {
  for (const auto& [name, model] : cached_models()) {
    GenerateOptions options = sampled(15);
    options.samples = 3;
    options.stop_ids = {7, 12};
    const std::vector<Generated> cached = generate(*model, some_prompts(), options);
    expect_same(cached, generate(*model, some_prompts(), options, {.cache = false}), name);
    std::set<std::vector<int32_t>> different;
    int64_t stopped = 0;
    for (const Generated& row : cached) {
      different.insert(row.ids);
      stopped += row.finish == Finish::stop_id;
      EXPECT_EQ(row.finish == Finish::length, row.ids.size() == 15) << name;
      EXPECT_EQ(std::count(row.ids.begin(), row.ids.end(), 7), 0) << name;
    }
    EXPECT_GT(different.size(), 15U) << name << ": samples must differ";
    EXPECT_GT(stopped, 3) << name;
    EXPECT_LT(stopped, 21) << name;
  }
}

// Whatever runs beside a row, and whichever places rows take.
TEST(Generation, BatchesDoNotChangeRows) {
  std::vector<NamedModel> all = cached_models();
  all.push_back({"prototype", test::small_prototype()});
  for (const auto& [name, model] : all) {
    GenerateOptions options = sampled(14);
    options.samples = 2;
    options.stop_ids = {4, 9, 17};
    const Prompts prompts = some_prompts();
    const std::vector<Generated> together = generate(*model, prompts, options);
    for (const int64_t batch : {1, 2, 3, 5, 64}) {
      expect_same(generate(*model, prompts, options, {.batch_size = batch}), together, cat(name, ", batch ", batch));
    }
    for (size_t p = 0; p < prompts.size(); ++p) {
      GenerateOptions alone = options;
      alone.first_key = p;
      std::vector<Generated> rows = generate(*model, {prompts[p]}, alone);
      for (Generated& row : rows) row.prompt = static_cast<int64_t>(p);
      expect_same(rows, {together[2 * p], together[2 * p + 1]}, cat(name, ", alone ", p));
    }
  }
}

TEST(Generation, SamplesGoOnWhenMoreAreAskedFor) {
  const auto model = test::small_decoder_lm();
  GenerateOptions options = sampled(8);
  options.samples = 2;
  const std::vector<Generated> two = generate(*model, some_prompts(), options);
  options.samples = 5;
  options.max_new_tokens = 12;
  const std::vector<Generated> five = generate(*model, some_prompts(), options);
  for (size_t row = 0; row < two.size(); ++row) {
    const std::vector<int32_t>& more = five[row / 2 * 5 + row % 2].ids;
    EXPECT_EQ(two[row].ids, std::vector<int32_t>(more.begin(), more.begin() + 8)) << row;
  }
  options.seed = 12;
  EXPECT_NE(generate(*model, some_prompts(), options)[0].ids, five[0].ids);
}

TEST(Generation, PromptsAreReadOnceAndBatchesShrink) {
  const auto model = test::small_decoder_lm();
  GenerateOptions options = sampled(20);
  options.samples = 4;
  options.stop_ids = {4, 9, 17};
  Generator generator(*model, {.batch_size = 16});
  generator.run(some_prompts(), options);
  EXPECT_EQ(generator.counts().prompts, 7) << "each once, not for each sample";
  EXPECT_GT(generator.counts().prefills, 1) << "28 rows in batches of 16";
  EXPECT_GT(generator.counts().moves, 1);
  // Rows that wait take places that are free: fewer steps than batch after batch, which needs 19 for each.
  EXPECT_LT(generator.counts().steps, 3 * 19);
  const std::vector<Generated> again = generator.run(some_prompts(), options);
  expect_same(again, generate(*model, some_prompts(), options), "the same generator once more");
  // More samples than places.
  options.samples = 9;
  Generator narrow(*model, {.batch_size = 4});
  expect_same(narrow.run({{3, 1, 4}}, options), generate(*model, {{3, 1, 4}}, options), "more samples than places");
}

TEST(Generation, StopIdsCutTheRow) {
  const auto model = test::small_decoder_lm();
  const GenerateOptions options = sampled(16);
  const std::vector<Generated> whole = generate(*model, some_prompts(), options);
  GenerateOptions stopping = options;
  stopping.stop_ids = {whole[1].ids[5], whole[3].ids[0]};
  const std::vector<Generated> cut = generate(*model, some_prompts(), stopping);
  for (size_t row = 0; row < whole.size(); ++row) {
    std::vector<int32_t> want = whole[row].ids;
    want.erase(std::find_first_of(want.begin(), want.end(), stopping.stop_ids.begin(), stopping.stop_ids.end()),
               want.end());
    EXPECT_EQ(cut[row].ids, want) << row;
    EXPECT_EQ(cut[row].finish, want.size() < 16 ? Finish::stop_id : Finish::length);
  }
  EXPECT_LE(cut[1].ids.size(), 5U);
  EXPECT_TRUE(cut[3].ids.empty());
}

TEST(Generation, ListenersSeeEachTokenAndEndRows) {
  const auto model = test::small_hrm_lm(Bridge::cross_attention);
  const GenerateOptions options = sampled(16);
  const std::vector<Generated> whole = generate(*model, some_prompts(), options);
  std::vector<std::vector<int32_t>> seen(whole.size());
  std::vector<int64_t> ended;
  const GenerateListener listener{.on_token =
                                      [&](int64_t row, int32_t id) {
                                        seen[static_cast<size_t>(row)].push_back(id);
                                        return row % 2 == 0 || seen[static_cast<size_t>(row)].size() < 6;
                                      },
                                  .on_end = [&](int64_t row, const Generated&) { ended.push_back(row); }};
  Generator generator(*model, {.batch_size = 3});
  const std::vector<Generated> rows = generator.run(some_prompts(), options, listener);
  for (size_t row = 0; row < whole.size(); ++row) {
    const size_t length = row % 2 == 0 ? 16 : 6;
    EXPECT_EQ(rows[row].ids, std::vector<int32_t>(whole[row].ids.begin(), whole[row].ids.begin() + length)) << row;
    EXPECT_EQ(seen[row], rows[row].ids);
    EXPECT_EQ(rows[row].finish, row % 2 == 0 ? Finish::length : Finish::listener);
  }
  std::sort(ended.begin(), ended.end());
  EXPECT_EQ(ended, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(Generation, RowsEndWhereTheModelDoes) {
  const GenerateOptions options = sampled(100);
  const auto decoder = test::small_decoder_lm();
  const std::vector<Generated> rows = generate(*decoder, some_prompts(), options);
  for (size_t p = 0; p < rows.size(); ++p) {
    // The last token is not read again.
    EXPECT_EQ(rows[p].ids.size(), test::kPositions + 1 - some_prompts()[p].size());
    EXPECT_EQ(rows[p].finish, Finish::length);
  }
  expect_same(generate(*decoder, some_prompts(), options, {.cache = false}), rows, "whole rows");
  const auto prefix = test::small_hrm_lm(Bridge::prefix);
  EXPECT_EQ(generate(*prefix, {{1, 2}}, options)[0].ids.size(), test::kPositions - 3U);
  EXPECT_EQ(generate(*test::small_prototype(), {{1, 2}}, options)[0].ids.size(), 24U);
  GenerateOptions one = options;
  one.max_new_tokens = 1;
  EXPECT_EQ(generate(*decoder, {std::vector<int32_t>(32, 5)}, one)[0].ids.size(), 1U);
}

TEST(Generation, IdsThatNoTokenHasAreNeverChosen) {
  const auto model = test::small_decoder_lm();
  GenerateOptions options = sampled(16);
  options.sampling = {.temperature = 5};
  options.vocabulary = 8;
  options.samples = 4;
  for (const Generated& row : generate(*model, some_prompts(), options)) {
    for (const int32_t id : row.ids) EXPECT_LT(id, 8);
  }
}

TEST(Generation, AnEmptyPromptBeginsWithTheBeginOfAText) {
  const auto model = test::small_decoder_lm();
  GenerateOptions options = sampled(6);
  expect_same(generate(*model, {{}}, options), generate(*model, {{kBegin}}, options), "begin");
  EXPECT_TRUE(generate(*model, {}, options).empty());
}

void expect_refused(LanguageModel& model, const Prompts& prompts, const GenerateOptions& options, ExitCode code,
                    const std::string& part) {
  try {
    generate(model, prompts, options);
    ADD_FAILURE() << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Generation, WrongInput) {
  const auto decoder = test::small_decoder_lm();
  const auto hrm = test::small_hrm_lm(Bridge::prefix);
  GenerateOptions options = sampled(4);
  expect_refused(*decoder, {{1}, std::vector<int32_t>(33, 1)}, options, ExitCode::usage, "prompt 2 has 33 tokens");
  expect_refused(*hrm, {std::vector<int32_t>(17, 1)}, options, ExitCode::usage, "at most 16");
  expect_refused(*hrm, {{}}, options, ExitCode::usage, "prompt 1 is empty");
  options.begin_id = -1;
  expect_refused(*decoder, {{}}, options, ExitCode::usage, "prompt 1 is empty");
  expect_refused(*hrm, {{1}}, options, ExitCode::usage, "meta.json");
  options = sampled(0);
  expect_refused(*decoder, {{1}}, options, ExitCode::usage, "new tokens");
  options = sampled(4);
  options.samples = 0;
  expect_refused(*decoder, {{1}}, options, ExitCode::usage, "samples");
  options = sampled(4);
  options.stop_ids.resize(17);
  expect_refused(*decoder, {{1}}, options, ExitCode::usage, "16 ids");
  options = sampled(4);
  options.sampling.top_p = 2;
  expect_refused(*decoder, {{1}}, options, ExitCode::usage, "top_p");
}

TEST(Generation, ModelsThatAreNoLongerFinite) {
  const auto model = test::small_decoder_lm();
  {
    const at::NoGradGuard no_grad;
    model->named_parameters()["model.norm.weight"].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  model->parameter_set().refresh_compute();
  for (const bool greedy : {false, true}) {
    GenerateOptions options = sampled(4);
    if (greedy) options.sampling.temperature = 0;
    expect_refused(*model, some_prompts(), options, ExitCode::diverged, "not finite");
  }
}

TEST(Generation, Buckets) {
  int64_t shapes = 0, last = 0;
  for (int64_t rows = 1; rows <= 1024; ++rows) {
    const int64_t bucket = generation_bucket(rows);
    EXPECT_GE(bucket, rows);
    EXPECT_LE(bucket * 2, std::max<int64_t>(rows * 3, 2));
    shapes += bucket != last;
    last = bucket;
  }
  EXPECT_EQ(shapes, 20);
}

}  // namespace
}  // namespace hrm::tasks
