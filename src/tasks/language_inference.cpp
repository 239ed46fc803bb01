#include "hrm/tasks/language_inference.h"

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/config/load.h"
#include "hrm/models/make_language_model.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/language.h"

namespace hrm::tasks {

namespace fs = std::filesystem;

fs::path tokenizer_of_checkpoint(const data::LanguageMeta& meta, const fs::path& step_folder) {
  if (meta.tokenizer_file.empty() || meta.tokenizer_file == data::kByteTokenizer) return {};
  // <run>/checkpoints/<step>.
  const fs::path run = fs::absolute(step_folder).lexically_normal().parent_path().parent_path();
  fs::path file = step_folder / meta.tokenizer_file;
  std::error_code ignored;
  if (!fs::exists(file, ignored)) file = run / meta.tokenizer_file;
  require(fs::exists(file, ignored), ExitCode::checkpoint, "the model of '", step_folder.string(),
          "' was trained with the tokenizer '", meta.tokenizer_file, "', which lies neither there nor in '",
          run.string(), "'; copy it there from the training data");
  require(digest_hex(MappedFile(file, ExitCode::checkpoint).bytes()) == meta.tokenizer_digest, ExitCode::checkpoint,
          "'", file.string(), "' is not the tokenizer that the model of '", step_folder.string(),
          "' was trained with; copy that one from the training data");
  return file;
}

LanguageInference open_language_model(const fs::path& run_or_step, const std::vector<std::string>& overrides,
                                      const std::string& weights) {
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(run_or_step);
  LanguageInference out;
  out.config =
      config::config_from_json_text(found.meta.config_json, (found.dir / "config.json").string(), overrides).config;
  require(out.config.task == "language", ExitCode::usage, "'", found.dir.string(), "' holds a model of task ",
          out.config.task, ", not a language model; use hrm_train solve or eval");
  out.checkpoint = found.dir;
  out.step = found.meta.step;
  out.meta = meta_from_signature(found.meta.info, found.dir.string());
  out.text = data::encoder_of(out.meta, tokenizer_of_checkpoint(out.meta, found.dir).parent_path());
  out.runtime = ops::start_runtime_and_ops(out.config);

  const checkpoint::ModelWeights stored = checkpoint::load_weights(found.dir);
  require(weights != "ema" || !stored.ema.empty(), ExitCode::checkpoint, "'", found.dir.string(),
          "' holds no averaged weights (it was trained with optim.ema = 0); use --weights raw");
  out.averaged = weights == "ema" || (weights == "auto" && !stored.ema.empty());
  out.model = models::make_language_model(out.config, models::language_sizes(out.config.data, out.meta.vocab_size),
                                          /*seed=*/0, out.runtime.device, out.runtime.compute_dtype);
  ModelState state(*out.model);
  checkpoint::load_weights_into(found.dir, state,
                                out.averaged ? checkpoint::WeightSet::ema : checkpoint::WeightSet::raw);
  out.model->parameter_set().refresh_compute();
  return out;
}

}  // namespace hrm::tasks
