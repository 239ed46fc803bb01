// Generation on a GPU: captured steps give what eager ones give, and both what a pass over the whole row gives.

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/tasks/generation.h"
#include "tasks/small_language_models.h"

namespace hrm::tasks {
namespace {

using models::Bridge;
using models::LanguageModel;

#define NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

// float32 products without TF32, which would choose other tokens where two are near.
class WithoutTf32 {
 public:
  WithoutTf32() : before_(at::globalContext().allowTF32CuBLAS()) { at::globalContext().setAllowTF32CuBLAS(false); }
  ~WithoutTf32() { at::globalContext().setAllowTF32CuBLAS(before_); }

 private:
  bool before_;
};

std::vector<std::vector<int32_t>> many_prompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t p = 0; p < 40; ++p) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i <= p % 9; ++i) prompt.push_back((7 * p + 3 * i) % test::kVocabulary);
    prompts.push_back(prompt);
  }
  return prompts;
}

void expect_same_generated(const std::vector<Generated>& got, const std::vector<Generated>& want,
                           const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << what << ", row " << i;
    EXPECT_EQ(got[i].finish, want[i].finish) << what << ", row " << i;
  }
}

TEST(GenerationGpu, CapturedEagerAndWholeRowsAgree) {
  NEEDS_GPU();
  const WithoutTf32 exact;
  for (const auto& [name, model] : {std::pair{"decoder", test::small_decoder_lm(at::kCUDA)},
                                    std::pair{"window", test::small_decoder_lm(at::kCUDA, 4)},
                                    std::pair{"prefix", test::small_hrm_lm(Bridge::prefix, at::kCUDA)},
                                    std::pair{"cross", test::small_hrm_lm(Bridge::cross_attention, at::kCUDA)}}) {
    for (const double temperature : {0.0, 0.9}) {
      GenerateOptions options{.max_new_tokens = 20,
                              .sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.95},
                              .seed = 11,
                              .samples = 2,
                              .stop_ids = {4, 9, 17},
                              .begin_id = 29};
      Generator captured(*model, {.batch_size = 12});
      const std::vector<Generated> rows = captured.run(many_prompts(), options);
      EXPECT_GT(captured.counts().moves, 0) << name;
      // Prompts of a shape that comes again are read by a graph, too.
      for (int again = 0; again < 4; ++again) {
        expect_same_generated(captured.run(many_prompts(), options), rows, cat(name, ", again"));
      }
      EXPECT_EQ(captured.counts().captured_prefills > 0, !model->limits().prompted) << name;
      expect_same_generated(Generator(*model, {.batch_size = 12, .cuda_graphs = false}).run(many_prompts(), options),
                            rows, cat(name, ", eager"));
      expect_same_generated(Generator(*model, {.batch_size = 64}).run(many_prompts(), options), rows,
                            cat(name, ", batch 64"));
      expect_same_generated(Generator(*model, {.cache = false}).run(many_prompts(), options), rows,
                            cat(name, ", whole rows"));
    }
  }
}

TEST(GenerationGpu, ListenersEndRows) {
  NEEDS_GPU();
  const auto model = test::small_decoder_lm(at::kCUDA);
  const GenerateOptions options{.max_new_tokens = 20, .sampling = {.temperature = 1}, .seed = 3};
  const std::vector<Generated> whole = Generator(*model, {}).run(many_prompts(), options);
  std::vector<size_t> written(whole.size());
  Generator generator(*model, {.batch_size = 8});
  const std::vector<Generated> rows =
      generator.run(many_prompts(), options, {.on_token = [&](int64_t row, int32_t) {
                      return ++written[static_cast<size_t>(row)] < static_cast<size_t>(row) % 7 + 1;
                    }});
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::vector<int32_t>& all = whole[row].ids;
    EXPECT_EQ(rows[row].ids, std::vector<int32_t>(all.begin(), all.begin() + static_cast<int64_t>(row % 7 + 1))) << row;
    EXPECT_EQ(rows[row].finish, Finish::listener);
  }
}

}  // namespace
}  // namespace hrm::tasks
