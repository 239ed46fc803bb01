#pragma once
// A training of a language model small enough for a unit test, on sums and on a short text.

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "hrm/commands/language_data.h"
#include "hrm/tasks/language.h"
#include "train/small_run.h"

namespace hrm::testing {

// Triples of sums, and packed text by bytes, made once per process.
inline std::filesystem::path sums_folder() {
  static const std::filesystem::path folder = [] {
    const auto dir = std::filesystem::path(::testing::TempDir()) / ("hrm_sums_" + std::to_string(getpid()));
    std::ostringstream out;
    data::run_data_arithmetic({.digits = 2, .samples = 400, .validation = 0.1, .out = dir.string()}, out);
    return dir;
  }();
  return folder;
}

inline std::filesystem::path text_folder() {
  static const std::filesystem::path folder = [] {
    const auto dir = std::filesystem::path(::testing::TempDir()) / ("hrm_text_" + std::to_string(getpid()));
    std::filesystem::create_directories(dir / "files");
    for (int i = 0; i < 20; ++i) {
      std::ofstream file(dir / "files" / ("f" + std::to_string(10 + i) + ".txt"));
      for (int j = 0; j < 40; ++j) file << "line " << j << " of file " << i << ": " << (i * j) % 17 << "\n";
    }
    data::TextCommand command;
    command.inputs = {(dir / "files").string()};
    command.validation = 0.2;
    command.out = (dir / "data").string();
    std::ostringstream out;
    data::run_data_text(command, out);
    return dir / "data";
  }();
  return folder;
}

inline config::LoadedConfig small_language_config(const std::filesystem::path& dir,
                                                  const std::vector<std::string>& more = {}) {
  // In a file: a variant that has no use for some of it need not take it out.
  const std::string model = R"({"lm": {"hidden_size": 32, "num_heads": 2, "layers": 2, "enc_layers": 1, "h_layers": 1,
      "l_layers": 1, "h_len": 2, "l_len": 3, "h_cycles": 2, "l_steps": 2, "prefix_len": 2}})";
  std::vector<std::string> overrides = {
      "task=language",           "run.name=small",
      "run.dir=" + dir.string(), "data.train=" + sums_folder().string(),
      "data.encoder_len=20",     "data.decoder_len=6",
      "optim.name=adamw",        "optim.lr=1e-3",
      "optim.warmup_steps=2",    "train.global_batch_size=8",
      "train.steps=8",           "train.log_every=4",
      "eval.max_samples=16",     "runtime.device=cpu",
      "runtime.threads=1",
  };
  overrides.insert(overrides.end(), more.begin(), more.end());
  // What is made in a test, not when a list of variants is.
  for (std::string& text : overrides) {
    if (text == "data.train={text}") text = "data.train=" + text_folder().string();
    if (text == "data.train={sums}") text = "data.train=" + sums_folder().string();
  }
  config::LoadedConfig loaded = config::config_from_json_text(model, "small.json", overrides);
  config::validate(loaded);
  return loaded;
}

struct SmallLanguage : SmallTraining<tasks::LanguageTask> {
  explicit SmallLanguage(const std::filesystem::path& dir, const std::vector<std::string>& more = {},
                         const std::shared_ptr<parallel::Comm>& comm = nullptr)
      : SmallTraining(small_language_config(dir, more), dir, comm) {}
};

}  // namespace hrm::testing
