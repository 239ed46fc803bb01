// Defaults and rules of task=contrastive. Free of torch.
#include "tasks/task_settings.h"

namespace hrm::config {
namespace {

// The puzzles that ship with the project have no classes.
std::optional<TaskDefault::Chosen> no_data(const LoadedConfig&) {
  return TaskDefault::Chosen{std::string(), ""};
}

template <class T>
std::function<std::optional<TaskDefault::Chosen>(const LoadedConfig&)> always(T value) {
  return [value](const LoadedConfig&) { return TaskDefault::Chosen{value, ""}; };
}

void check_contrastive(const Checker& check) {
  const Config& c = check.loaded().config;
  const ContrastiveConfig& memory = c.contrastive;
  const auto at = [&](const char* key) { return check.at(key); };
  check.require(memory.rotor_k == 0 || memory.coord_dim_n >= 2, at("contrastive.rotor_k"), " rotates planes, of which ",
                at("contrastive.coord_dim_n"), " has none; set contrastive.rotor_k to 0");
  check.require(c.optim.ema == 0, at("optim.ema"), ", but an average of weights is not projected to the condition for ",
                "one equilibrium; set optim.ema to 0");
  check.require(c.parallel.zero == 0, at("parallel.zero"), ", but the projections need whole weights on every rank; ",
                "set parallel.zero to 0");
  check.require(c.precision.compute != ComputePrecision::bf16 && c.precision.compute != ComputePrecision::fp16,
                at("precision.compute"), ", but the difference of two phases needs float32; set precision.compute to ",
                "fp32 or tf32 (contrastive.bank_dtype halves the memory of the values)");
}

}  // namespace

const TaskSettings& contrastive_settings() {
  static const TaskSettings row{
      .name = "contrastive",
      .help = "a geometric memory (section contrastive) that learns without autograd",
      .defaults = {{"data.train", no_data},
                   {"data.test", no_data},
                   {"optim.name", always(std::string("adamw")), "adamw"},
                   {"optim.lr", always(2e-2), "2e-2"},
                   {"optim.beta2", always(0.99), "0.99"},
                   {"optim.weight_decay", always(0.0), "0"},
                   {"optim.warmup_steps", always(int64_t{0}), "0"},
                   {"optim.min_ratio", always(0.0), "0"},
                   {"train.global_batch_size", always(int64_t{64}), "64"},
                   {"precision.compute", always(std::string("fp32")), "fp32"}},
      .data = TrainingData::vectors,
      .train_data = "a folder of vectors or of packed text ('hrm_train data --help' says how to make one)",
      .test_data = "a folder of the same kind",
      .may_evaluate = [](const Config& config) { return config.data.test != "none"; },
      .check = check_contrastive};
  return row;
}

}  // namespace hrm::config
