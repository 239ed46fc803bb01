// sampling_filters: probabilities after temperature, top-k, top-p and min-p, as Hugging Face's warpers leave them.

#include "hrm/tasks/sampling.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

void check_sampling_filters(const Case& loaded) {
  const at::Tensor& logits = loaded.at("logits");
  const Tolerance tolerance{loaded.json.at("tolerance").at("rtol"), loaded.json.at("tolerance").at("atol")};
  size_t number = 0;
  for (const auto& combo : loaded.json.at("combos")) {
    const tasks::SamplingOptions options{.temperature = combo.at("temperature"),
                                         .top_k = combo.at("top_k"),
                                         .top_p = combo.at("top_p"),
                                         .min_p = combo.at("min_p")};
    const std::string name = "probs" + std::to_string(number++);
    const at::Tensor& want = loaded.at(name);
    const at::Tensor got = tasks::filtered_probabilities(logits, options);
    // The logits of the last row are all equal: which of them top-p leaves is not the case's to say.
    const int64_t clear = logits.size(0) - 1;
    expect_equal(name + ", what stays", got.narrow(0, 0, clear).gt(0), want.narrow(0, 0, clear).gt(0));
    expect_close(name, got.narrow(0, 0, clear), want.narrow(0, 0, clear), tolerance);
    const auto kept = [&](const at::Tensor& t) { return t[clear].gt(0).sum().item<int64_t>(); };
    EXPECT_LE(std::abs(kept(got) - kept(want)), 1) << name;
    expect_close(name + ", sums", got.sum(-1), at::ones_like(got.sum(-1)), tolerance);
  }
  EXPECT_GT(number, 0U);
}

const RegisterKind kSamplingFilters("sampling_filters", check_sampling_filters);

}  // namespace
}  // namespace hrm::parity
