// A model in two parts on two GPUs writes what the whole one writes, captured and eagerly, and whichever way sums go.

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include "hrm/parallel/nccl_comm.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/tasks/generation.h"
#include "support/ranks.h"
#include "tasks/small_language_models.h"

namespace hrm::tasks::parts {
namespace {

using parallel::Comm;

std::vector<std::vector<int32_t>> prompts() {
  std::vector<std::vector<int32_t>> out;
  for (int32_t p = 0; p < 14; ++p) {
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i <= p % 5; ++i) prompt.push_back((7 * p + 3 * i) % test::kVocabulary);
    out.push_back(prompt);
  }
  return out;
}

std::vector<Generated> gpu_rows(std::shared_ptr<const nn::TensorAcross> across, at::Device device, at::ScalarType dtype,
                                bool captured, double temperature) {
  models::DecoderOptions options = test::small_decoder();
  options.inner = 32;
  options.across = std::move(across);
  models::DecoderLm model(options, device);
  model.initialise(/*seed=*/1, dtype);
  Generator generator(model, {.batch_size = 12, .cuda_graphs = captured});
  const GenerateOptions how{.max_new_tokens = 12,
                            .sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.95},
                            .seed = 11,
                            .samples = 2,
                            .stop_ids = {4, 9},
                            .begin_id = 29};
  generator.run(prompts(), how);
  return generator.run(prompts(), how);
}

void expect_gpu_rows(const std::vector<Generated>& got, const std::vector<Generated>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, want[i].ids) << what << ", row " << i;
}

void on_axis(bool peer_memory, const std::function<void(const std::shared_ptr<Comm>&, at::Device)>& body) {
  auto cpus = parallel::make_thread_comms(2);
  test::on_threads(2, [&](int rank) {
    const at::Device device(at::kCUDA, static_cast<int8_t>(rank));
    const c10::cuda::CUDAGuard guard(device);
    const auto comm = parallel::make_nccl_comm(std::move(cpus[static_cast<size_t>(rank)]), device, peer_memory);
    const std::shared_ptr<Comm> axis =
        comm->split({.name = "tensor", .members = {0, 1}, .priority = parallel::Priority::urgent});
    body(axis, device);
    c10::cuda::device_synchronize();
    comm->barrier();
  });
}

TEST(PartsGenerationGpu, WritesWhatTheWholeModelWrites) {
  if (c10::cuda::device_count() < 2) GTEST_SKIP() << "this machine has fewer than 2 GPUs";
  const bool before = at::globalContext().allowTF32CuBLAS();
  at::globalContext().setAllowTF32CuBLAS(false);
  const at::Device first(at::kCUDA, 0);
  const auto best = gpu_rows(nullptr, first, at::kFloat, true, 0),
             drawn = gpu_rows(nullptr, first, at::kFloat, true, 0.9);
  // In bfloat16 two parts round otherwise than one, but not otherwise than themselves.
  std::vector<std::vector<Generated>> half(2);
  for (const bool peer_memory : {true, false}) {
    for (const bool captured : {true, false}) {
      on_axis(peer_memory, [&](const std::shared_ptr<Comm>& axis, at::Device device) {
        const std::string what = cat(peer_memory ? "memory" : "NCCL", captured ? ", captured" : ", eager");
        const auto across = parallel::make_tensor_across(axis);
        expect_gpu_rows(gpu_rows(across, device, at::kFloat, captured, 0), best, what + ", greedy");
        expect_gpu_rows(gpu_rows(across, device, at::kFloat, captured, 0.9), drawn, what + ", sampled");
        const auto rows = gpu_rows(across, device, at::kBFloat16, captured, 0.9);
        auto& kept = half[static_cast<size_t>(axis->rank())];
        if (kept.empty()) kept = rows;
        expect_gpu_rows(rows, kept, what + ", bf16");
      });
    }
  }
  expect_gpu_rows(half[0], half[1], "both ranks");
  at::globalContext().setAllowTF32CuBLAS(before);
}

}  // namespace
}  // namespace hrm::tasks::parts
