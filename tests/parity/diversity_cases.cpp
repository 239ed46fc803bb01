// diversity: groups of embeddings with their diversity, row scores, leave-one-out values and advantages.

#include "hrm/ops/backend.h"
#include "hrm/ops/diversity.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

void check_way(const Case& loaded, const Tolerance& tolerance, const std::string& way) {
  int groups = 0;
  for (const auto& [name, tensor] : loaded.tensors) {
    if (!name.ends_with(".emb")) continue;
    const std::string group = name.substr(0, name.size() - 4);
    const at::Tensor embeddings = tensor.to(device()).unsqueeze(0);
    const ops::Diversity d = ops::semantic_diversity(embeddings);
    const auto compare = [&](const char* value, const at::Tensor& got) {
      expect_close(group + "." + value + way, got, loaded.at(group + "." + value), tolerance);
    };
    compare("D", d.totals[0]);
    compare("row", d.rows[0]);
    compare("loo", d.loo[0]);
    compare("adv", (d.totals.unsqueeze(1) - d.loo)[0]);
    ++groups;
  }
  EXPECT_GT(groups, 0) << loaded.name;
}

void check_diversity(const Case& loaded) {
  const auto& stated = loaded.json.at("tolerance");
  const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
  check_way(loaded, tolerance, "");
  ops::set_backend(ops::Backend::reference);
  check_way(loaded, tolerance, ", of all pairs");
  ops::set_backend(ops::Backend::fused);
}

const RegisterKind kDiversity("diversity", check_diversity);

}  // namespace
}  // namespace hrm::parity
