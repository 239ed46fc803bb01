#include "hrm/tasks/causal_inference.h"

#include <algorithm>
#include <fstream>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/load.h"
#include "hrm/tasks/puzzle_inference.h"

namespace hrm::tasks {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostPositions = 8192;

// The run keeps config.json and the tokenizer in hf/ (PolychromicTask::write_files); the folders that they came from
// may be elsewhere now. Only weights that were frozen are in none of the run's files.
void use_kept_files(const fs::path& checkpoint, const std::vector<std::string>& overrides, config::HfConfig& hf,
                    bool all_trained) {
  const fs::path kept = fs::absolute(checkpoint).parent_path().parent_path() / "hf";
  const auto overridden = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) { return o.starts_with(key); });
  };
  std::error_code ignored;
  if (!overridden("hf.tokenizer=") && fs::exists(kept / "tokenizer.json", ignored)) hf.tokenizer = kept.string();
  if (all_trained) hf.weights = "random";  // overwritten by the checkpoint's
  if (!overridden("hf.model=") && hf.weights == "random" && fs::exists(kept / "config.json", ignored)) {
    hf.model = kept.string();
  }
}

}  // namespace

bool is_hf_folder(const fs::path& path) {
  // A checkpoint has a config.json, too, without this member. Weights may be missing: who opens the folder says so.
  std::ifstream in(path / "config.json");
  std::string start(size_t{1} << 16, '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  return start.find("\"model_type\"") != std::string::npos;
}

CausalInference open_causal_checkpoint(const fs::path& run_or_step, const std::vector<std::string>& overrides,
                                       const std::string& weights) {
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(run_or_step);
  CausalInference out;
  out.config =
      config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string(), overrides).config;
  require(out.config.task == "polychromic", ExitCode::usage, "'", found.dir.string(), "' holds a model of task ",
          out.config.task, ", not of task polychromic");
  out.checkpoint = found.dir;
  out.step = found.meta.step;
  // The adapter comes from the checkpoint.
  out.config.lora.adapter.clear();
  out.runtime = start_runtime_and_ops(out.config);
  const checkpoint::ModelWeights stored = checkpoint::load_weights(found.dir);
  require(weights != "ema" || !stored.ema.empty(), ExitCode::checkpoint, "'", found.dir.string(),
          "' holds no averaged weights (it was trained with optim.ema = 0); use --weights raw");
  out.averaged = weights == "ema" || (weights == "auto" && !stored.ema.empty());
  use_kept_files(found.dir, overrides, out.config.hf, out.config.lora.r == 0);
  const std::string quantized =
      config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string()).config.hf.quantize;
  require(out.config.hf.quantize == quantized, ExitCode::usage, "the adapter of '", found.dir.string(),
          "' was trained beside weights with hf.quantize = ", quantized, ", not ", out.config.hf.quantize,
          "; leave hf.quantize out");
  std::error_code ignored;
  require(out.config.lora.r == 0 || fs::exists(fs::path(out.config.hf.model) / "config.json", ignored),
          ExitCode::checkpoint, "the adapter of '", found.dir.string(), "' was trained beside the model in '",
          out.config.hf.model, "', and there is none here; give its folder, with --base or hf.model=FOLDER");
  const auto frozen = found.meta.info.find(cat("digest of the ", kFrozenModel));
  require(frozen == found.meta.info.end() || frozen->second == base_digest(out.config), ExitCode::checkpoint,
          "the weights of '", out.config.hf.model, "' are not those that the adapter of '", found.dir.string(),
          "' was trained beside; give that model's folder with hf.model=FOLDER");
  // Answers may be longer than those of the training, as long as the model was made for them.
  out.lm = open_causal_lm(out.config, out.runtime, kMostPositions);
  out.chat = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(out.config, out.lm.facts));
  TrainedWeights state(out.lm);
  checkpoint::load_weights_into(found.dir, state,
                                out.averaged ? checkpoint::WeightSet::ema : checkpoint::WeightSet::raw);
  out.lm.model->parameter_set().refresh_compute();
  return out;
}

CausalInference open_hf_folder(const fs::path& folder, const std::vector<std::string>& overrides, int64_t positions) {
  CausalInference out;
  std::vector<std::string> all{"task=polychromic", "hf.model=" + folder.string(), "lora.r=0",
                               "polychromic.objective=none"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  out.config = config::load_config({}, all).config;
  out.checkpoint = folder;
  out.runtime = start_runtime_and_ops(out.config);
  const HfModelConfig facts = read_hf_config(folder);
  out.chat = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(out.config, facts));
  const int64_t most = std::min(facts.max_position_embeddings, positions > 0 ? positions : kMostPositions);
  out.lm = open_frozen_lm(out.config, out.runtime, most);
  return out;
}

}  // namespace hrm::tasks
