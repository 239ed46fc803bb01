#include "hrm/models/language_model.h"

#include "hrm/base/error.h"
#include "hrm/nn/init.h"

namespace hrm::models {

void LanguageModel::initialise(uint64_t seed, at::ScalarType compute_dtype, const std::vector<std::string>& freeze) {
  nn::init_parameters(*this, seed);
  for (const std::string& name : freeze) {
    bool found = false;
    for (auto& item : named_parameters()) {
      if (item.key() != name && !item.key().starts_with(name + ".")) continue;
      item.value().requires_grad_(false);
      found = true;
    }
    require(found, ExitCode::usage, "the model has no part '", name, "' that could be frozen");
  }
  parameters_.build(*this, compute_dtype, blocks_run_once());
}

}  // namespace hrm::models
