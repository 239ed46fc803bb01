// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

// Rows of 1,000 puzzles; kind 1: Sudoku's symmetries, 2: those of a square.
BenchCall augment_rows(const BenchShape& s, at::Device device, at::ScalarType) {
  const auto ints = at::device(device).dtype(at::kInt);
  const at::Tensor table = at::randint(1, s.vocab, {1000, s.tokens}, ints);
  at::Tensor picks = at::randint(0, 1000, {s.batch, 3}, at::device(device).dtype(at::kLong));
  const bool sudoku = s.tokens == 81;
  return {{at::zeros({s.batch, s.tokens}, ints), at::zeros({s.batch, s.tokens}, ints), at::zeros({s.batch}, ints),
           table, table.clone(), picks, int64_t{sudoku ? 1 : 2}, int64_t{0}, int64_t{sudoku ? 3 : 0},
           int64_t{sudoku ? 3 : 0}}};
}

// The input of the recursion.
BenchCall embed(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {
      {labels(s, device), random.floats({s.vocab, s.width}), random.floats({s.batch, s.width}), s.prefix, 22.6, dtype}};
}

BenchCall embed_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  return {
      {Random{device, dtype}.activations({s.batch, s.length(), s.width}), labels(s, device), s.vocab, s.width, 22.6}};
}

// A language model's table.
BenchCall embed_tokens_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kVocabulary = 32000;
  const Random random{device, dtype};
  return {{random.floats({kVocabulary, s.width}), random.activations({s.batch, s.length(), s.width}),
           at::randint(0, kVocabulary, {s.batch, s.length()}, at::device(device).dtype(at::kInt))}};
}

const KernelGroups kEmbeddingGroups{
    {"Embed", "embedding"},
    {"hrm::embed", "embedding"},
    {"Augment", "augmentation"},
    {"augment", "augmentation"},
};

}  // namespace

std::vector<BenchOp> embedding_cases() {
  return {
      {"hrm::augment_rows_", augment_rows},
      {"hrm::embed", embed},
      {"hrm::embed_backward", embed_backward},
      {"hrm::embed_tokens_backward_", embed_tokens_backward},
  };
}

}  // namespace hrm::ops::bench
