#include "hrm/tasks/language_inference.h"

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/models/make_language_model.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/tasks/language.h"
#include "tasks/task_settings.h"

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
  return open_language_model(open_stored_model(run_or_step, overrides), weights);
}

LanguageInference open_language_model(const StoredModel& stored, const std::string& weights) {
  LanguageInference out;
  begin_opening(out, stored, config::language_settings().name, "not a language model; use hrm_train solve or eval");
  out.meta = meta_from_signature(stored.meta.info, stored.folder.string());
  out.text = data::encoder_of(out.meta, tokenizer_of_checkpoint(out.meta, stored.folder).parent_path());
  out.config.precision.blocks = config::BlockPrecision::same;  // for training alone
  out.runtime = stored.place.start(out.config);
  out.model = models::make_language_model(out.config, models::language_sizes(out.config.data, out.meta.vocab_size),
                                          /*seed=*/0, out.runtime.device, out.runtime.compute_dtype,
                                          parallel::across_of(stored.place.tensor));
  ModelState state(*out.model);
  out.averaged = load_chosen_weights(stored.folder, weights, state, *out.model);
  out.model->parameter_set().refresh_compute();
  return out;
}

}  // namespace hrm::tasks
