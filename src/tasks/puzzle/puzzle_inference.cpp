#include "hrm/tasks/puzzle_inference.h"

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/official.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/puzzle.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

models::PuzzleModelDims dims_of(const config::ModelConfig& config, const StoredModel& stored,
                                const checkpoint::ModelWeights& weights, std::optional<int64_t> seq_len) {
  const std::string folder = stored.folder.string();
  models::PuzzleModelDims dims = checkpoint::check_weights(config, weights.raw, folder);
  const auto known = stored.meta.info.find("seq_len");
  if (dims.seq_len == 0 && known != stored.meta.info.end()) {
    const auto length = whole_number(known->second);
    require(length && *length >= 1 && *length <= static_cast<uint64_t>(INT32_MAX), ExitCode::checkpoint,
            "the manifest of '", folder, "' gives the puzzles a length of '", printable_start(known->second),
            "', which is not a whole number of one or more");
    dims.seq_len = static_cast<int64_t>(*length);
  }
  if (dims.seq_len == 0 && seq_len) dims.seq_len = *seq_len;
  require(dims.seq_len > 0, ExitCode::usage, "the checkpoint '", folder,
          "' does not say how long its puzzles are; give data or a puzzle");
  return dims;
}

// The manifest has the vocabulary as printable() writes it: an ASCII text with every backslash doubled.
std::optional<data::PuzzleVocabulary> vocabulary_of(const StoredModel& stored, const models::PuzzleModelDims& dims) {
  const auto found = stored.meta.info.find(kVocabularyInfo);
  if (found == stored.meta.info.end()) return std::nullopt;
  std::string text;
  for (size_t i = 0; i < found->second.size(); ++i) {
    text += found->second[i];
    if (found->second[i] == '\\') ++i;
  }
  const std::string origin = cat("the vocabulary in the manifest of '", stored.folder.string(), "'");
  data::PuzzleVocabulary vocabulary = data::parse_vocabulary(text, origin, ExitCode::checkpoint);
  require(vocabulary.cells() == dims.seq_len && static_cast<int64_t>(vocabulary.tokens.size()) == dims.vocab_size,
          ExitCode::checkpoint, origin, " does not fit the model of ", dims.seq_len, " cells and ", dims.vocab_size,
          " tokens");
  return vocabulary;
}

// A model that was trained with fp8 recursions answers on every device: where that has no fp8, in the compute dtype.
void settle_fp8(config::Config& config) {
  if (config.precision.recursions != config::RecursionPrecision::fp8) return;
  const bool reference_ops = config.ops.backend == config::OpsBackend::reference;
  const std::string reason = why_no_fp8(choose_device(config.runtime), reference_ops);
  if (reason.empty()) return;
  log::info("the model was trained with fp8 recursions; here they run without, because ", reason);
  config.precision.recursions = config::RecursionPrecision::same;
}

// The scales that the model was trained with; `config` is the checkpoint's with overrides.
void open_fp8(models::PuzzleModel& model, const config::PrecisionConfig& config, const std::filesystem::path& dir) {
  model.enable_fp8(config.fp8_amax_history, static_cast<double>(config.fp8_margin));
  nn::Fp8Recursions& fp8 = *model.fp8();
  if (checkpoint::load_state_part(dir, fp8, nn::Fp8Recursions::kStatePrefix)) {
    fp8.set_active(fp8.steps() > 0);
    return;
  }
  fp8.calibrate_weights();
  fp8.set_active(true);
  log::info("'", dir.string(), "' holds no fp8 scales: weights get theirs from their values, activations 1");
}

}  // namespace

PuzzleInference open_puzzle_model(const std::filesystem::path& run_or_step, const std::vector<std::string>& overrides,
                                  const std::string& weights, std::optional<int64_t> seq_len) {
  return open_puzzle_model(open_stored_model(run_or_step, overrides), weights, seq_len);
}

PuzzleInference open_puzzle_model(const StoredModel& stored, const std::string& weights,
                                  std::optional<int64_t> seq_len) {
  PuzzleInference out;
  begin_opening(out, stored, config::puzzle_settings().name, "which solves no puzzles; use hrm_train generate or eval");
  settle_fp8(out.config);
  out.runtime = ops::start_runtime_and_ops(out.config);

  const ChosenWeights chosen = choose_weights(stored.folder, weights);
  out.averaged = chosen.averaged;
  const auto dims = dims_of(out.config.model, stored, chosen.stored, seq_len);
  out.vocabulary = vocabulary_of(stored, dims);
  out.model =
      models::make_puzzle_model(out.config.model, dims, /*seed=*/0, out.runtime.device, out.runtime.compute_dtype);
  ModelState state(*out.model);
  checkpoint::load_weights_into(stored.folder, state, chosen.set());
  out.model->parameter_set().refresh_compute();
  if (out.runtime.precision.fp8_recursions) open_fp8(*out.model, out.config.precision, stored.folder);
  return out;
}

}  // namespace hrm::tasks
