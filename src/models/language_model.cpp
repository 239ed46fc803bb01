#include "hrm/models/language_model.h"

#include "hrm/base/error.h"
#include "hrm/nn/init.h"

namespace hrm::models {

namespace {

constexpr const char* kNoCache = "this model has no KV cache; run forward() on the whole row for each token";

}  // namespace

DecodeCache LanguageModel::make_cache(int64_t, int64_t) const {
  fail(ExitCode::usage, kNoCache);
}

at::Tensor LanguageModel::prefill(const LanguageInputs&, const at::Tensor&, DecodeCache&) {
  fail(ExitCode::usage, kNoCache);
}

at::Tensor LanguageModel::step(const at::Tensor&, DecodeCache&) {
  fail(ExitCode::usage, kNoCache);
}

void LanguageModel::freeze(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    bool found = false;
    for (auto& item : named_parameters()) {
      if (item.key() != name && !item.key().starts_with(name + ".")) continue;
      item.value().requires_grad_(false);
      found = true;
    }
    require(found, ExitCode::usage, "the model has no module or parameter '", name, "' to freeze");
  }
}

void LanguageModel::initialise(uint64_t seed, at::ScalarType compute_dtype, const std::vector<std::string>& frozen) {
  nn::init_parameters(*this, seed);
  freeze(frozen);
  build_parameters(compute_dtype);
}

void LanguageModel::build_parameters(at::ScalarType compute_dtype) {
  parameters_.build(*this, compute_dtype, blocks_run_once());
}

}  // namespace hrm::models
