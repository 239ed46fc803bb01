#pragma once
// A training of contrastive.mode=compat that is small enough for a unit test.

#include "hrm/tasks/contrastive_compat.h"
#include "train/small_language.h"

namespace hrm::testing {

inline config::LoadedConfig small_compat_config(const std::filesystem::path& dir,
                                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"task=contrastive",
                                        "contrastive.mode=compat",
                                        "run.name=small",
                                        "run.dir=" + dir.string(),
                                        "data.train=" + text_folder().string(),
                                        "contrastive.context=24",
                                        "contrastive.state_dim=16",
                                        "contrastive.sdm_capacity=40",
                                        "contrastive.spatial_rows=4",
                                        "contrastive.spatial_cols=5",
                                        "contrastive.field_dim=6",
                                        "contrastive.tbptt_window_steps=12",
                                        "train.global_batch_size=6",
                                        "train.steps=8",
                                        "train.log_every=1",
                                        "runtime.device=cpu",
                                        "runtime.threads=1"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  config::LoadedConfig loaded = config::load_config({}, overrides);
  config::validate(loaded);
  return loaded;
}

struct SmallCompat : SmallTraining<tasks::CompatTask> {
  explicit SmallCompat(const std::filesystem::path& dir, const std::vector<std::string>& more = {},
                       const std::shared_ptr<parallel::Comm>& comm = nullptr)
      : SmallTraining(small_compat_config(dir, more), dir, comm) {}

  // Angles and a metric at which the difference of the phases is not zero.
  void turn() {
    const objectives::CompatState& state = task.state();
    state.theta.copy_(at::linspace(-0.9, 1.1, state.theta.numel()));
    state.g.copy_(at::linspace(0.5, 1.9, state.g.numel()));
  }
};

}  // namespace hrm::testing
