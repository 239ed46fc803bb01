// Defaults and rules of task=contrastive. Free of torch.
#include <cmath>

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

using Choose = std::function<std::optional<TaskDefault::Chosen>(const LoadedConfig&)>;

bool has_original_window(const Config& config) {
  return config.contrastive.mode == ContrastiveMode::compat;
}

// Another default where contrastive.mode is compat.
template <class T>
Choose of_mode(T sound, T compat) {
  return [sound, compat](const LoadedConfig& loaded) {
    return has_original_window(loaded.config) ? TaskDefault::Chosen{compat, "for contrastive.mode compat"}
                                              : TaskDefault::Chosen{sound, ""};
  };
}
template <class T>
Choose of_compat(T compat) {
  return [compat](const LoadedConfig& loaded) -> std::optional<TaskDefault::Chosen> {
    if (!has_original_window(loaded.config)) return std::nullopt;
    return TaskDefault::Chosen{compat, "for contrastive.mode compat"};
  };
}
template <class T>
Choose of_sound(T sound) {
  return [sound](const LoadedConfig& loaded) -> std::optional<TaskDefault::Chosen> {
    if (has_original_window(loaded.config)) return std::nullopt;
    return TaskDefault::Chosen{sound, ""};
  };
}

// What the original's window and its update do not have.
void check_compat(const Checker& check) {
  const Config& c = check.loaded().config;
  const ContrastiveConfig& memory = c.contrastive;
  const auto at = [&](const char* key) { return check.at(key); };
  const std::string compat = at("contrastive.mode");
  check.require(memory.R_source == ResilienceSource::constitutive, at("contrastive.R_source"), ", but for ", compat,
                " the resilience is the mean of |T|; set contrastive.R_source to constitutive");
  check.require(memory.dynamics_mode == FieldDynamics::dissipative, at("contrastive.dynamics_mode"), ", but for ",
                compat, " the field always takes the dissipative step; set contrastive.dynamics_mode to dissipative");
  check.require(memory.tbptt_window_steps >= 2, at("contrastive.tbptt_window_steps"), ", but for ", compat,
                " the diagnostics compare two steps; set contrastive.tbptt_window_steps to 2 or more");
  check.require(memory.sdm_capacity >= 1, at("contrastive.sdm_capacity"), ", but for ", compat,
                " it is the whole memory; set contrastive.sdm_capacity to 1 or more");
  const auto plain = [&](bool is_plain, const char* key, const char* way_out) {
    check.require(is_plain, at(key), ", but for ", compat,
                  " the update is eta times a direction and nothing else; set ", key, " to ", way_out);
  };
  plain(c.optim.name == OptimizerKind::sgd, "optim.name", "sgd");
  plain(c.optim.momentum == 0, "optim.momentum", "0");
  plain(c.optim.weight_decay == 0, "optim.weight_decay", "0");
  plain(c.optim.grad_clip == 0, "optim.grad_clip", "0");
  plain(c.optim.groups.empty(), "optim.groups", "an empty text");
  check.require(c.train.micro_batch_size == 0, at("train.micro_batch_size"), ", but for ", compat,
                " a window takes the whole batch; set train.micro_batch_size to 0");
  check.require(c.parallel.reduce == ReduceDtype::fp32, at("parallel.reduce"), ", but for ", compat,
                " the update is the original's in float32; set parallel.reduce to fp32");
  check.require(c.train.eval_every == 0, at("train.eval_every"), ", but for ", compat,
                " there is nothing to evaluate, for the window predicts nothing; set train.eval_every to 0");
}

// Layers need momentum to relax in as few steps as a memory does.
std::optional<TaskDefault::Chosen> momentum(const LoadedConfig& loaded) {
  if (loaded.config.contrastive.network == ContrastiveNetwork::memory) return std::nullopt;
  return TaskDefault::Chosen{0.5, "for contrastive.network layered"};
}

void check_contrastive(const Checker& check) {
  const Config& c = check.loaded().config;
  const ContrastiveConfig& memory = c.contrastive;
  const auto at = [&](const char* key) { return check.at(key); };
  const bool layered = memory.network == ContrastiveNetwork::layered;
  check.require(layered || memory.rule != ContrastiveRuleName::feedforward, at("contrastive.rule"),
                " takes the feedback out of hidden layers, but ", at("contrastive.network"),
                " has none; set contrastive.network to layered, or contrastive.rule to backprop");
  check.require(!layered || memory.rule != ContrastiveRuleName::scalar, at("contrastive.rule"),
                " moves a metric and angles, but ", at("contrastive.network"),
                " has none; set contrastive.rule to symmetric");
  check.require(layered || memory.rotor_mode == RotorMode::off || memory.rotor_k == 0 || memory.coord_dim_n >= 2,
                at("contrastive.rotor_k"), " rotates planes, of which ", at("contrastive.coord_dim_n"),
                " has none; set ",
                has_original_window(c) ? "contrastive.rotor_k to 0" : "contrastive.rotor_mode to off");
  check.require(memory.metric_mode == MetricMode::diag_rot || memory.coord_dim_n % 2 == 0,
                at("contrastive.metric_mode"), " has blocks of two coordinates, but ", at("contrastive.coord_dim_n"),
                " is odd; set contrastive.coord_dim_n to an even number");
  check.require(memory.metric_mode == MetricMode::diag_rot || memory.rule != ContrastiveRuleName::scalar,
                at("contrastive.rule"), " moves a diagonal metric alone; set contrastive.metric_mode to diag_rot");
  // In the windows between, all gradients but the readout's are zeros. An optimizer with memory would still move.
  check.require(memory.nudge_every_windows == 1 || (c.optim.name == OptimizerKind::sgd && c.optim.momentum == 0 &&
                                                    c.optim.weight_decay == 0 && c.optim.groups.empty()),
                at("contrastive.nudge_every_windows"), " needs plain SGD, but the optimizer is ", at("optim.name"),
                " with ", at("optim.momentum"), ", ", at("optim.weight_decay"), " and ", at("optim.groups"),
                "; set optim.name to sgd, optim.momentum and optim.weight_decay to 0 and optim.groups to nothing");
  // The other rules have no negative phase with a nudge for each row.
  const bool rows_nudged =
      !layered && !has_original_window(c) && memory.rule == ContrastiveRuleName::symmetric && memory.beta_per_row;
  check.require(!rows_nudged || memory.beta_share <= kMostShareOfRows, at("contrastive.beta_share"), ", but with ",
                at("contrastive.beta_per_row"), " the negative phase of a row is stable only up to 0.36; set ",
                "contrastive.beta_share to 0.36 or less, or contrastive.beta_per_row to false");
  if (has_original_window(c)) check_compat(check);
  check.require(c.optim.ema == 0, at("optim.ema"), ", but an average of weights is not projected to the condition for ",
                "one equilibrium; set optim.ema to 0");
  check.require(c.parallel.zero == 0, at("parallel.zero"), ", but the projections need whole weights on every rank; ",
                "set parallel.zero to 0");
  check.require(c.parallel.tensor == 1, at("parallel.tensor"),
                " cuts layers, but the projections need whole weights on ", "every rank; set parallel.tensor to 1");
  check.require(c.precision.compute != ComputePrecision::bf16 && c.precision.compute != ComputePrecision::fp16,
                at("precision.compute"), ", but the difference of two phases needs float32; set precision.compute to ",
                "fp32 or tf32 (contrastive.bank_dtype halves the memory of the values)");
}

// Settings without effect, and steps of the field that would blow up.
void check_contrastive_run(const Checker& check) {
  const Config& c = check.loaded().config;
  const ContrastiveConfig& memory = c.contrastive;
  if (has_original_window(c)) {
    check.require(c.data.test.empty() || c.data.test == "none" || !check.asked_beside("data.test", "contrastive.mode"),
                  check.at("data.test"), " has no effect, for ", check.at("contrastive.mode"),
                  " predicts nothing that could be tested; leave it out");
  }
  check.require(has_original_window(c) || memory.network == ContrastiveNetwork::layered ||
                    memory.rotor_mode == RotorMode::off || memory.rotor_k > 0,
                check.at("contrastive.rotor_mode"), " needs angles, but ", check.at("contrastive.rotor_k"),
                "; set contrastive.rotor_mode to off");
  if (memory.dynamics_mode != FieldDynamics::symplectic) return;
  // Of velocity Verlet: the Laplacian's largest eigenvalue is 8.
  const double mass = memory.symplectic_m_cog, hbar = memory.symplectic_hbar_cog;
  const double stiffness = memory.symplectic_potential == FieldPotential::zero ? 0 : memory.symplectic_stiffness;
  const double limit = 2 * std::sqrt(mass / (4 * hbar * hbar / mass + stiffness));
  check.require(memory.symplectic_dt < limit, check.at("contrastive.symplectic_dt"),
                " lets the field grow without bound, for a step must be below 2 sqrt(m / (k + 4 hbar^2 / m)) = ", limit,
                "; set contrastive.symplectic_dt to ", limit / 4, " or less");
}

// Settings of Trainer2 that have another name here, and what else its users type.
std::vector<ForeignName> names_of_trainer2() {
  return {{"eta_update", "optim.lr"},
          {"spsa_lr", "optim.lr"},
          {"enable_spsa_fallback", "", "set contrastive.rule to spsa"},
          {"max_epochs", "train.epochs"},
          {"max_windows", "train.steps"},
          {"frame_mode", "contrastive.rotor_mode", "learned_lowrank is contrastive.lowrank_r of 1 or more"},
          {"theta_wrap", "", "angles are always wrapped to [-pi, pi), so leave it out"},
          {"_m_cog", "contrastive.symplectic_m_cog"},
          {"_hbar_cog", "contrastive.symplectic_hbar_cog"},
          {"_stiffness", "contrastive.symplectic_stiffness"},
          {"_potential", "contrastive.symplectic_potential"},
          {"cudnn_deterministic", "runtime.deterministic"},
          {"allow_tf32", "precision.compute", "its values are tf32 and fp32"},
          {"matmul_allow_tf32", "precision.compute", "its values are tf32 and fp32"},
          {"use_torch_compile", "", "nothing is compiled while it runs, and runtime.cuda_graphs captures steps"},
          {"log_every_windows", "train.log_every"},
          {"log_interval", "train.log_every"},
          {"save_every_windows", "train.checkpoint_every"},
          {"save_interval", "train.checkpoint_every"},
          {"run_dir", "run.dir"},
          {"output_dir", "run.dir"},
          {"run_name", "run.name"},
          {"telemetry_jsonl", "", "each run folder has a metrics.jsonl, so leave it out"},
          {"telemetry_jsonl_filename", "", "it is metrics.jsonl in the run folder, so leave it out"},
          {"timing_debug", "profiling.trace", "metrics.jsonl has the times of steps"},
          {"step_progress_every", "contrastive.progress_every"},
          {"run_smoke_tests", "", "scripts/test runs the tests"},
          {"trainer2_sdm_capacity", "contrastive.sdm_capacity"},
          {"trainer2_sdm_static_shapes", "", "shapes are always static, so leave it out"},
          {"bptt_window", "contrastive.tbptt_window_steps"},
          {"spatial_size", "contrastive.spatial_rows", "contrastive.spatial_cols is the other size"}};
}

}  // namespace

const TaskSettings& contrastive_settings() {
  static const TaskSettings row{
      .name = "contrastive",
      .help = "a geometric memory or a layered network (section contrastive) that learns without autograd",
      .defaults = {{"data.train", no_data},
                   {"data.test", no_data},
                   {"contrastive.coord_dim_n", of_compat(int64_t{8}), "8 in mode compat"},
                   {"contrastive.state_dim", of_compat(int64_t{512}), "512 in mode compat"},
                   {"contrastive.rotor_k", of_compat(int64_t{6}), "6 in mode compat"},
                   {"contrastive.context", of_compat(int64_t{512}), "512 in mode compat"},
                   {"contrastive.beta_nudge", of_compat(1e-3), "1e-3 in mode compat"},
                   {"contrastive.sdm_capacity", of_compat(int64_t{2048}), "2048 in mode compat"},
                   {"contrastive.R_source", of_compat(std::string("constitutive")), "constitutive in mode compat"},
                   {"contrastive.spatial_rows", of_compat(int64_t{8}), "8 in mode compat"},
                   {"contrastive.spatial_cols", of_compat(int64_t{8}), "8 in mode compat"},
                   {"contrastive.field_dim", of_compat(int64_t{16}), "16 in mode compat"},
                   {"contrastive.dynamics_mode", of_compat(std::string("dissipative")), "dissipative in mode compat"},
                   {"contrastive.momentum", momentum, "0.5 with contrastive.network=layered"},
                   {"contrastive.bank_dtype", of_compat(std::string("float32")), "float32 in mode compat"},
                   {"optim.name", of_mode(std::string("adamw"), std::string("sgd")), "adamw, and sgd in mode compat"},
                   {"optim.lr", of_mode(2e-2, 1e-2), "2e-2, and 1e-2 in mode compat"},
                   {"optim.beta2", of_sound(0.99), "0.99"},
                   {"optim.momentum", of_compat(0.0), "0 in mode compat"},
                   {"optim.weight_decay", always(0.0), "0"},
                   {"optim.schedule", of_compat(std::string("constant")), "constant in mode compat"},
                   {"optim.warmup_steps", always(int64_t{0}), "0"},
                   {"optim.min_ratio", of_sound(0.0), "0"},
                   {"train.global_batch_size", of_mode(int64_t{64}, int64_t{16}), "64, and 16 in mode compat"},
                   {"precision.compute", always(std::string("fp32")), "fp32"}},
      .data = TrainingData::vectors,
      .train_data = "a folder of vectors or of packed text ('hrm_train data --help' says how to make one)",
      .test_data = "a folder of the same kind",
      .may_evaluate = [](const Config& config) { return config.data.test != "none" && !has_original_window(config); },
      .check = check_contrastive,
      .check_run = check_contrastive_run,
      .foreign_names = names_of_trainer2()};
  return row;
}

}  // namespace hrm::config
