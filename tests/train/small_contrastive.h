#pragma once
// A training of a geometric memory on the shipped digits, small enough for a unit test.

#include <fstream>

#include "hrm/tasks/registry.h"
#include "train/small_run.h"

namespace hrm::testing {

inline config::LoadedConfig small_contrastive_config(const std::filesystem::path& dir,
                                                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides = {"task=contrastive",
                                        "run.name=small",
                                        "run.dir=" + dir.string(),
                                        "data.train=" + test::source_dir() + "/data/digits",
                                        "contrastive.coord_dim_n=8",
                                        "contrastive.rotor_k=6",
                                        "contrastive.learned_slots=24",
                                        "contrastive.state_dim=16",
                                        "contrastive.tbptt_window_steps=16",
                                        "train.global_batch_size=32",
                                        "optim.schedule=constant",
                                        "train.steps=8",
                                        "train.log_every=4",
                                        "runtime.device=cpu",
                                        "runtime.threads=1"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  config::LoadedConfig loaded = config::load_config({}, overrides);
  config::validate(loaded);
  return loaded;
}

// Everything that a step can move: a ring of episodes that wraps, a field with momentum.
inline const std::vector<std::string>& ring_and_field() {
  static const std::vector<std::string> settings = {"contrastive.sdm_capacity=80",
                                                    "contrastive.dynamics_mode=symplectic"};
  return settings;
}

// `files`: whether the trainer has a run folder.
struct SmallContrastive {
  explicit SmallContrastive(const std::filesystem::path& dir, const std::vector<std::string>& more = {},
                            const std::shared_ptr<parallel::Comm>& comm = nullptr, bool files = true)
      : loaded(small_contrastive_config(dir, more)),
        runtime(ops::start_runtime_and_ops(loaded.config)),
        task(tasks::make_task(loaded.config, runtime, comm)),
        trainer(loaded.config, loaded.to_json(), runtime, *task, files ? dir / "small" : std::filesystem::path(),
                comm) {}

  std::map<std::string, at::Tensor> tensors() {
    std::map<std::string, at::Tensor> out;
    for (const TensorEntry& entry : list_state(trainer).tensors) out[entry.name] = entry.tensor.detach().clone();
    return out;
  }
  std::map<std::string, int64_t> integers() {
    std::map<std::string, int64_t> out;
    for (const auto& [name, value] : list_state(trainer).integers) out[name] = value;
    return out;
  }

  config::LoadedConfig loaded;
  Runtime runtime;
  std::unique_ptr<tasks::Task> task;
  train::Trainer trainer;
};

inline void expect_same_tensors(const std::map<std::string, at::Tensor>& got,
                                const std::map<std::string, at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_EQ(got.count(name), 1U) << name;
    EXPECT_TRUE(at::equal(got.at(name), tensor)) << name;
  }
}

// Bytes of physical memory of this process, now.
inline double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

}  // namespace hrm::testing
