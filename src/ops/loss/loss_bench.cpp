// Cases of `bench ops`, and the kinds of work that profiles count the kernels as.
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "hrm/runtime/kernel_groups.h"
#include "ops/common/bench_cases.h"

namespace hrm::ops::bench {
namespace {

BenchCall token_loss(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{random.activations({s.batch, s.length(), s.vocab}), labels(s, device), s.prefix, int64_t{0}, int64_t{0}}};
}

BenchCall token_loss_backward(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  return {{at::ones({s.batch}, at::device(device).dtype(at::kDouble)),
           random.activations({s.batch, s.length(), s.vocab}), labels(s, device), s.prefix, int64_t{0}, int64_t{0}}};
}

// A chunk of a language model's tokens: the vocabulary is no recipe's.
BenchCall softmax_loss(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  constexpr int64_t kVocabulary = 32000;
  const Random random{device, dtype};
  const int64_t rows = std::min<int64_t>(s.rows(), 4096);
  return {{random.activations({rows, kVocabulary}),
           at::randint(0, kVocabulary, {rows}, at::device(device).dtype(at::kInt)), random.floats({rows}).abs()}};
}

// One of two parts of that vocabulary.
constexpr int64_t kLossPart = 16000;

BenchCall softmax_loss_facts(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const int64_t rows = std::min<int64_t>(s.rows(), 4096);
  return {{Random{device, dtype}.activations({rows, kLossPart}),
           at::randint(0, 2 * kLossPart, {rows}, at::device(device).dtype(at::kInt)), kLossPart, false}};
}

BenchCall softmax_loss_part(const BenchShape& s, at::Device device, at::ScalarType dtype) {
  const Random random{device, dtype};
  const int64_t rows = std::min<int64_t>(s.rows(), 4096);
  return {{random.activations({rows, kLossPart}),
           at::randint(0, 2 * kLossPart, {rows}, at::device(device).dtype(at::kInt)), kLossPart,
           at::ones({2, rows, 3}, at::device(device)), random.floats({rows}).abs()}};
}

const KernelGroups kLossGroups{
    {"SoftmaxLoss", "loss"},
    {"softmax_loss", "loss"},
    {"TokenLoss", "loss"},
    {"token_loss", "loss"},
};

}  // namespace

std::vector<BenchOp> loss_cases() {
  return {
      {"hrm::token_loss", token_loss},
      {"hrm::token_loss_backward", token_loss_backward},
      {"hrm::softmax_loss_", softmax_loss},
      {"hrm::softmax_loss_facts", softmax_loss_facts},
      {"hrm::softmax_loss_part_", softmax_loss_part},
  };
}

}  // namespace hrm::ops::bench
