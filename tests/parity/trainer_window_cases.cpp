// trainer_window: two-phase windows of the original contrastive trainer, with an embedding table as encoder.

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/objectives/contrastive_compat.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using namespace objectives;  // NOLINT

// Before an update, and what carries dL, a difference, times ten.
constexpr Tolerance kBefore{.rtol = 1e-5, .atol = 1e-5}, kAfter{.rtol = 1e-3, .atol = 1e-3};

CompatSettings settings_of(const nlohmann::json& config) {
  CompatSettings settings;
  settings.commit = config.at("laplacian") == "periodic" ? CompatCommit::main : CompatCommit::guide;
  settings.steps = config.at("steps");
  settings.retrieval_beta = config.at("retrieval_beta");
  settings.eps = config.at("eps");
  settings.beta_nudge = config.at("beta_nudge");
  settings.nudge_scale = config.at("nudge_scale");
  return settings;
}

CompatState state_of(const Case& loaded) {
  const auto& config = loaded.json.at("config");
  const CompatSizes sizes{.axes = config.at("n"),
                          .angles = loaded.at("in.theta").size(0),
                          .width = config.at("d"),
                          .slots = config.at("bank"),
                          .field_x = config.at("field").at(0),
                          .field_y = config.at("field").at(1),
                          .field_dim = config.at("field").at(2)};
  CompatState state = make_compat_state(sizes, device());
  state.field.copy_(loaded.at("in.field"));
  state.g.copy_(loaded.at("in.g_diag"));
  state.theta.copy_(loaded.at("in.theta"));
  return state;
}

// The vector that the original's encoder adds to each token, (d). A case that does not hold it shows it in the first
// window's bank: a row there is the mean of its tokens' embeddings plus this vector. It is the mean over the rows; that
// all rows agree with it is part of the check.
at::Tensor modality_of(const Case& loaded) {
  if (loaded.has("in.modality")) return loaded.at("in.modality");
  const at::Tensor ids = loaded.at("w0.ids").to(at::kLong), mask = loaded.at("w0.mask").to(at::kDouble).unsqueeze(2);
  const at::Tensor embedding = loaded.at("in.embedding").to(at::kDouble), bank = loaded.at("w0.bank_state");
  const int64_t rows = std::min(ids.size(0), bank.size(0)), next = loaded.at("w0.ptr_filled")[0].item<int64_t>();
  const at::Tensor x = embedding.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), embedding.size(1)});
  const at::Tensor means = ((x * mask).sum(1) / mask.sum(1).clamp_min(1)).narrow(0, ids.size(0) - rows, rows);
  const at::Tensor places = at::remainder(at::arange(rows, at::kLong) + next - rows, bank.size(0));
  return (bank.to(at::kDouble).index_select(0, places) - means).mean(0).to(at::kFloat);
}

void check_trainer_window(const Case& loaded) {
  CompatWindow window(settings_of(loaded.json.at("config")), state_of(loaded));
  const at::Tensor embedding = loaded.at("in.embedding").to(device()), modality = modality_of(loaded).to(device());
  const at::Tensor lr = at::full({}, loaded.json.at("config").at("eta_update").get<double>(), at::device(device()));
  int windows = 0;
  for (; loaded.has(cat("w", windows, ".ids")); ++windows) {
    const std::string name = cat("w", windows, ".");
    const auto compare = [&](const std::string& tensor, const at::Tensor& got, const Tolerance& limit) {
      expect_close(name + tensor, got, loaded.at(name + tensor), limit);
    };
    const CompatBatch batch =
        window.encode(embedding, loaded.at(name + "ids").to(device()), loaded.at(name + "mask").to(device()), modality);
    const CompatResult result = window.run(batch, lr);
    for (const auto& [part, phase] : {std::pair{"free.", &result.free}, std::pair{"nudged.", &result.nudged}}) {
      compare(cat(part, "metrics"), at::stack({phase->lior, phase->resilience, phase->speed}), kBefore);
      compare(cat(part, "velocity"), phase->velocity, kBefore);
      compare(cat(part, "y"), phase->retrieved, kBefore);
    }
    compare("nudge", result.nudge, kBefore);
    const CompatState& state = window.state();
    compare("g_diag", state.g, kAfter);
    compare("theta", state.theta, kAfter);
    compare("field", state.field, kBefore);
    compare("bank_coord", state.bank_coord, kBefore);
    compare("bank_state", state.bank_state, kBefore);
    expect_equal(name + "ptr_filled", at::stack({state.bank_next, state.bank_filled}), loaded.at(name + "ptr_filled"));
    const at::Tensor slots = at::arange(state.bank_coord.size(0), state.bank_filled.options());
    expect_equal(name + "valid", slots.lt(state.bank_filled), loaded.at(name + "valid"));
  }
  EXPECT_GT(windows, 0) << loaded.name;
}

const RegisterKind kTrainerWindow("trainer_window", check_trainer_window);

}  // namespace
}  // namespace hrm::parity
