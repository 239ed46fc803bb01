#include "hrm/tasks/causal_inference.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/peft.h"
#include "hrm/config/load.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/tokenizer_folder.h"
#include "hrm/parallel/tensor_across.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostPositions = 8192;

bool overridden(const std::vector<std::string>& overrides, std::string_view key) {
  return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) { return o.starts_with(key); });
}

// The run keeps config.json and the tokenizer in hf/ (write_hf_files); the folders that they came from
// may be elsewhere now. Only weights that were frozen are in none of the run's files.
void use_kept_files(const fs::path& checkpoint, const std::vector<std::string>& overrides, config::HfConfig& hf,
                    bool all_trained) {
  const fs::path kept = fs::absolute(checkpoint).parent_path().parent_path() / "hf";
  std::error_code ignored;
  if (!overridden(overrides, "hf.tokenizer=") && fs::exists(kept / "tokenizer.json", ignored))
    hf.tokenizer = kept.string();
  if (all_trained) hf.weights = config::HfWeights::random;  // overwritten by the checkpoint's
  const bool needs_no_weights = hf.weights == config::HfWeights::random;
  if (!overridden(overrides, "hf.model=") && needs_no_weights && fs::exists(kept / "config.json", ignored)) {
    hf.model = kept.string();
  }
}

// What an adapter's own file says, as settings.
std::vector<std::string> adapter_settings(const fs::path& folder, const std::vector<std::string>& overrides) {
  const PeftConfig peft = checkpoint::read_peft_config(folder);
  const bool is_here = !peft.base_model.empty() && is_hf_folder(peft.base_model);
  require(overridden(overrides, "hf.model=") || is_here, ExitCode::checkpoint, "the adapter of '", folder.string(),
          "' is for the model '", printable_start(peft.base_model),
          "' (base_model_name_or_path), which is not a folder of a model here; give that folder, with --base or "
          "hf.model=FOLDER",
          hub_name_hint(peft.base_model));
  std::string saved;
  for (const std::string& name : peft.modules_to_save) saved += (saved.empty() ? "" : ",") + name;
  std::vector<std::string> settings{"hf.model=" + peft.base_model,
                                    cat("lora.r=", peft.r),
                                    "lora.alpha=" + nlohmann::json(peft.alpha).dump(),
                                    cat("lora.rslora=", peft.rslora ? "true" : "false"),
                                    cat("lora.dora=", peft.dora ? "true" : "false"),
                                    "lora.targets=" + peft.target_list(),
                                    "lora.modules_to_save=" + saved,
                                    "lora.adapter=" + folder.string()};
  // Who trains with other tokens of a chat keeps the tokenizer beside the adapter.
  if (has_tokenizer(folder)) settings.push_back("hf.tokenizer=" + folder.string());
  return settings;
}

// Of ranks with parts rank 0 reads all of the frozen weights for it.
std::string base_digest_of(const ModelPlace& place, const config::Config& config) {
  if (!place.tensor) return base_digest(config);
  return place.tensor->all_gather_text(place.tensor->main() ? base_digest(config) : "")[0];
}

}  // namespace

bool is_hf_folder(const fs::path& path) {
  // A checkpoint has a config.json, too, without this member. Weights may be missing: who opens the folder says so.
  std::ifstream in(path / "config.json");
  std::string start(size_t{1} << 16, '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<size_t>(in.gcount()));
  refuse_foreign_file(as_bytes(start), (path / "config.json").string(), ExitCode::checkpoint);
  return start.find("\"model_type\"") != std::string::npos;
}

CausalInference open_causal_checkpoint(const fs::path& run_or_step, const std::vector<std::string>& overrides,
                                       const std::string& weights) {
  return open_causal_checkpoint(open_stored_model(run_or_step, overrides), weights);
}

CausalInference open_causal_checkpoint(const StoredModel& stored, const std::string& weights) {
  CausalInference out;
  begin_opening(out, stored, config::polychromic_settings().name, "not of task polychromic");
  // The adapter comes from the checkpoint.
  out.config.lora.adapter.clear();
  out.config.precision.blocks = config::BlockPrecision::same;  // for training alone
  out.runtime = stored.place.start(out.config);
  use_kept_files(stored.folder, stored.overrides, out.config.hf, out.config.lora.r == 0);
  const config::Quantization quantized =
      config::config_from_json_text(stored.meta.config_json, (stored.folder / "config.json").string())
          .config.hf.quantize;
  require(out.config.hf.quantize == quantized, ExitCode::usage, "the adapter of '", stored.folder.string(),
          "' was trained beside weights with hf.quantize = ", quantized, ", not ", out.config.hf.quantize,
          "; leave hf.quantize out");
  std::error_code ignored;
  require(out.config.lora.r == 0 || fs::exists(fs::path(out.config.hf.model) / "config.json", ignored),
          ExitCode::checkpoint, "the adapter of '", stored.folder.string(), "' was trained beside the model in '",
          out.config.hf.model, "', and there is none here; give its folder, with --base or hf.model=FOLDER");
  const auto frozen = stored.meta.info.find(cat("digest of the ", kFrozenModel));
  require(frozen == stored.meta.info.end() || frozen->second == base_digest_of(stored.place, out.config),
          ExitCode::checkpoint, "the weights of '", out.config.hf.model, "' are not those that the adapter of '",
          stored.folder.string(), "' was trained beside; give that model's folder with hf.model=FOLDER");
  // Answers may be longer than those of the training, as long as the model was made for them.
  out.lm = open_causal_lm(out.config, out.runtime, kMostPositions, parallel::across_of(stored.place.tensor));
  out.chat = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(out.config, out.lm.facts));
  TrainedWeights state(out.lm);
  out.averaged = load_chosen_weights(stored.folder, weights, state, *out.lm.model);
  out.lm.model->parameter_set().refresh_compute();
  return out;
}

bool is_model_folder(const fs::path& path) {
  return checkpoint::is_peft_folder(path) || is_hf_folder(path);
}

config::Config model_folder_config(const fs::path& folder, const std::vector<std::string>& overrides) {
  const bool adapter = checkpoint::is_peft_folder(folder);
  std::vector<std::string> all{"task=polychromic", "polychromic.objective=none"};
  const std::vector<std::string> own = adapter ? adapter_settings(folder, overrides)
                                               : std::vector<std::string>{"hf.model=" + folder.string(), "lora.r=0"};
  all.insert(all.end(), own.begin(), own.end());
  all.insert(all.end(), overrides.begin(), overrides.end());
  config::Config config = config::load_config({}, all).config;
  require(config.eval.weights != config::EvalWeights::ema, ExitCode::checkpoint, "'", folder.string(),
          "' holds no averaged weights, as checkpoints may; leave eval.weights out");
  require(adapter || config.hf.model == folder.string(), ExitCode::usage, "'", folder.string(),
          "' is a whole model; --base and hf.model are for adapters, leave them out");
  require((config.lora.r > 0) == adapter && (!adapter || config.lora.adapter == folder.string()), ExitCode::usage,
          "lora.r and lora.adapter are what '", folder.string(), "' has; leave them out");
  return config;
}

CausalInference open_model_folder(const fs::path& folder, const std::vector<std::string>& overrides,
                                  int64_t positions) {
  StoredModel stored;
  stored.folder = folder;
  stored.overrides = overrides;
  stored.config = model_folder_config(folder, overrides);
  stored.foreign = true;
  return open_model_folder(stored, positions);
}

CausalInference open_model_folder(const StoredModel& stored, int64_t positions) {
  CausalInference out;
  out.config = stored.config;
  out.checkpoint = stored.folder;
  out.runtime = stored.place.start(out.config);
  const HfModelConfig facts = read_hf_config(out.config.hf.model);
  out.chat = std::make_unique<data::ChatEncoder>(open_causal_tokenizer(out.config, facts));
  const int64_t most = std::min(facts.max_position_embeddings, std::max(positions, kMostPositions));
  out.lm = open_frozen_lm(out.config, out.runtime, most, parallel::across_of(stored.place.tensor));
  return out;
}

}  // namespace hrm::tasks
