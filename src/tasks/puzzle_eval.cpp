#include "hrm/base/error.h"
#include "hrm/data/test_reader.h"
#include "hrm/tasks/puzzle.h"

namespace hrm::tasks {

NamedValues evaluate_puzzles(models::PuzzleModel& model, std::shared_ptr<const data::PuzzleDataset> dataset,
                             const config::ObjectiveConfig& objective, const PuzzleEvalOptions& options,
                             at::Device device, const std::function<void(const EvalProgress&)>& progress) {
  data::TestReaderOptions reader_options;
  reader_options.global_batch_size = options.batch_size;
  reader_options.max_samples = options.max_samples;
  reader_options.pinned = device.is_cuda();
  const data::TestReader reader(std::move(dataset), reader_options);
  require(reader.num_samples() > 0, ExitCode::data, "the test data hold no sample");

  const auto& names = objectives::act_metric_names();
  const at::NoGradGuard no_grad;
  at::Tensor sums =
      at::zeros({static_cast<int64_t>(names.size())}, at::TensorOptions().device(device).dtype(at::kDouble));
  int64_t done = 0;
  for (int64_t index = 0; index < reader.num_batches(); ++index) {
    const data::TestBatch test = reader.batch(index);
    // Padding rows are left out: they would enter the Q loss as solved puzzles.
    const auto valid = [&](const at::Tensor& t) {
      return t.narrow(0, 0, test.batch.valid_rows).to(device, /*non_blocking=*/true);
    };
    const data::PuzzleBatch batch{valid(test.batch.inputs), valid(test.batch.labels),
                                  valid(test.batch.puzzle_identifiers), test.batch.valid_rows};
    const objectives::Evaluation result = objectives::act_evaluate(model, batch, options.segments);
    sums.add_(objectives::act_loss(result.output, result.state, std::nullopt, objective).metrics);
    done += test.batch.valid_rows;
    progress({done, reader.num_samples()});
  }

  const at::Tensor host = sums.to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  double count = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "count") count = values[i];
  }
  NamedValues out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "q_continue_loss") continue;  // has no target without training
    out.emplace_back(names[i], names[i] == "count" ? count : values[i] / std::max(count, 1.0));
  }
  return out;
}

}  // namespace hrm::tasks
