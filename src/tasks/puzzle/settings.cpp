// Defaults and rules of task=puzzle. Free of torch.
#include <algorithm>

#include "tasks/task_settings.h"

namespace hrm::config {
namespace {

// The test puzzles that ship with the project belong to its training puzzles.
std::optional<TaskDefault::Chosen> no_test(const LoadedConfig& loaded) {
  if (loaded.by_default("data.train")) return std::nullopt;
  return TaskDefault::Chosen{std::string(), "where data.train is set"};
}

std::string of_arch(const LoadedConfig& loaded) {
  return std::string("for model.arch ") + name_of(loaded.config.model.arch);
}

std::optional<TaskDefault::Chosen> h_layers(const LoadedConfig& loaded) {
  if (loaded.config.model.facts().h_module) return std::nullopt;
  return TaskDefault::Chosen{int64_t{0}, of_arch(loaded)};
}

std::optional<TaskDefault::Chosen> cycles(const LoadedConfig& loaded) {
  if (loaded.config.model.facts().cycles) return std::nullopt;
  return TaskDefault::Chosen{int64_t{1}, of_arch(loaded)};
}

void check_model(const Checker& check, const ModelConfig& m) {
  if (!m.mlp_t) {
    check.require(m.hidden_size % m.num_heads == 0, check.at("model.num_heads"), " does not divide ",
                  check.at("model.hidden_size"), "; ", nearest_divisors(m.hidden_size, m.num_heads), " heads");
    const int64_t head_size = m.hidden_size / m.num_heads;
    check.require(m.pos_encodings != PositionEncoding::rope || head_size % 2 == 0, check.at("model.pos_encodings"),
                  " rotates pairs of values, but a head has an odd number of them: hidden_size / num_heads = ",
                  head_size, "; change ", check.at("model.num_heads"), " or ", check.at("model.hidden_size"));
  }
  check.require(!(m.mlp_t && m.pos_encodings == PositionEncoding::rope), check.at("model.pos_encodings"),
                " belongs to attention, and ", check.at("model.mlp_t"),
                " has none; set model.pos_encodings to none or learned");
  if (m.facts().h_module) {
    check.require(m.H_layers > 0, check.at("model.H_layers"), ", but ", check.at("model.arch"),
                  " needs an H module; set model.H_layers to 4, or model.arch to trm");
  } else {
    check.require(m.H_layers == 0, check.at("model.H_layers"), ", but ", check.at("model.arch"),
                  " has no H module; set model.H_layers to 0");
  }
  if (!m.facts().cycles) {
    const auto once = [&](const char* key, int64_t cycles) {
      check.require(cycles == 1, check.at(key), ", but ", check.at("model.arch"),
                    " runs its blocks once per segment; set ", key, " to 1");
    };
    once("model.H_cycles", m.H_cycles);
    once("model.L_cycles", m.L_cycles);
    for (const auto& [key, off] : {std::pair{"model.damping", m.damping == 0},
                                   {"model.path_noise", m.path_noise == 0},
                                   {"model.depth_curriculum", !m.depth_curriculum},
                                   {"model.recompute", !m.recompute}}) {
      check.require(off, check.at(key), " is of recursions, and ", check.at("model.arch"), " has none; leave ", key,
                    " out");
    }
    check.require(!m.mlp_t, check.at("model.mlp_t"), ", but ", check.at("model.arch"),
                  " is the attention baseline; set model.mlp_t to false, or model.arch to trm");
  }
  if (!m.facts().cycles || m.facts().one_step_gradient) {
    for (const auto& [key, off] : {std::pair{"model.gradient_cycles", m.gradient_cycles == 1},
                                   {"model.loss_every_cycle", !m.loss_every_cycle}}) {
      check.require(off, check.at(key), " is of models that differentiate whole H cycles, which ",
                    check.at("model.arch"), " does not; leave ", key, " out");
    }
  }
  check.require(m.gradient_cycles <= m.H_cycles, check.at("model.gradient_cycles"), " is more than ",
                check.at("model.H_cycles"), "; set it to ", m.H_cycles, " at most");
  check.require(!m.mlp_t || !m.facts().convolution, check.at("model.mlp_t"), ", but ", check.at("model.arch"),
                " mixes positions by attention and a convolution; set model.mlp_t to false, or model.arch to trm");
  check.require(m.puzzle_emb_ndim != 0 || m.puzzle_emb_len == 0, check.at("model.puzzle_emb_len"),
                " reserves slots for a puzzle embedding, but ", check.at("model.puzzle_emb_ndim"),
                " means that there is none; set model.puzzle_emb_len to 0");
  if (m.puzzle_emb_len > 0) {
    const int64_t width = m.puzzle_emb_ndim < 0 ? m.hidden_size : m.puzzle_emb_ndim;
    const int64_t needed = (width + m.hidden_size - 1) / m.hidden_size;
    check.require(m.puzzle_emb_len >= needed, check.at("model.puzzle_emb_len"), " is too short for ",
                  check.at("model.puzzle_emb_ndim"), ", which needs ", needed, " slots of ",
                  check.at("model.hidden_size"), "; set model.puzzle_emb_len to 0 (as many as needed) or to ", needed,
                  " or more");
  }
}

void check_data(const Checker& check, const DataConfig& d) {
  check.require((d.box_rows == 0) == (d.box_cols == 0), check.at("data.box_rows"), " and ", check.at("data.box_cols"),
                ": give both sizes of a box, or neither");
  if (d.kind == PuzzleFileKind::maze) {
    check.require(d.augmentation != Augmentation::sudoku, check.at("data.augmentation"), " would break a maze, and ",
                  check.at("data.kind"), "; set data.augmentation to dihedral or none");
    check.require(d.box_rows == 0, check.at("data.box_rows"), ", but ", check.at("data.kind"),
                  " has no boxes; set data.box_rows and data.box_cols to 0");
  }
  check.require(!(d.augmentation == Augmentation::dihedral && d.box_rows != d.box_cols), check.at("data.augmentation"),
                " turns boxes on their side, which needs square ones: ", check.at("data.box_rows"), ", ",
                check.at("data.box_cols"), "; set data.augmentation to sudoku or none");
}

void check_recursions(const Checker& check, const Config& c) {
  const bool fits_fp8 =
      c.precision.compute == ComputePrecision::automatic || c.precision.compute == ComputePrecision::bf16;
  check.require(c.precision.recursions != RecursionPrecision::fp8 || fits_fp8, check.at("precision.recursions"),
                " stands beside bf16 alone, and not beside ", check.at("precision.compute"),
                "; set precision.compute to bf16, or precision.recursions to same");
  if (c.precision.recursions == RecursionPrecision::fp8) {
    const ModelConfig& m = c.model;
    check.require(!m.facts().convolution, check.at("precision.recursions"), " has no kernel for the convolution of ",
                  check.at("model.arch"), "; set precision.recursions to same");
    // Of a one-step gradient also the whole pass for the target of Q learning.
    const bool recurs = m.facts().one_step_gradient
                            ? m.H_cycles * m.L_cycles > 1 || (!m.no_ACT_continue && m.halt_max_steps > 1)
                            : m.facts().cycles && m.H_cycles > m.gradient_cycles;
    check.require(recurs, check.at("precision.recursions"), " has nothing to do: with ", check.at("model.arch"), ", ",
                  check.at("model.H_cycles"), " and ", check.at("model.gradient_cycles"),
                  " all passes are differentiated; set precision.recursions to same");
    check.require(m.hidden_size % 16 == 0, check.at("precision.recursions"), " needs a width of a multiple of 16, not ",
                  check.at("model.hidden_size"), "; set precision.recursions to same");
  }
}

void check_puzzle(const Checker& check) {
  const Config& c = check.loaded().config;
  check_data(check, c.data);
  check_model(check, c.model);
  check_recursions(check, c);
  check.require(c.parallel.tensor == 1, check.at("parallel.tensor"),
                " cuts layers, but those of puzzle models are so small that the exchange would take longer than the "
                "products; set parallel.tensor to 1");
  check.require(c.parallel.zero < 3, check.at("parallel.zero"),
                " would gather each block again for every pass of a recursion, and these models fit any GPU; set ",
                "parallel.zero to 2 or less");
  check.require(c.eval.rollouts == 1 || !c.model.facts().one_state || c.eval.noisy_state == NoisyState::z_H ||
                    c.model.start_std > 0,
                check.at("eval.noisy_state"), " is not read by ", check.at("model.arch"),
                ", so all rollouts would be equal; set eval.noisy_state to z_H");
  check.require(c.eval.rollouts == 1 || c.eval.noise > 0 || c.model.start_std > 0 || c.model.path_noise > 0,
                check.at("eval.noise"),
                " leaves all rollouts of a model without random states equal; set eval.noise to "
                "0.1 or so, or eval.rollouts to 1");
  const int64_t segments = std::max(c.eval.segments, c.model.halt_max_steps);
  check.require(c.model.path_noise == 0 || segments * c.model.H_cycles * (c.model.L_cycles + 1) <= 1 << 16,
                check.at("model.path_noise"), " has noise for 65,536 updates of a puzzle, and ", segments,
                " segments make ", segments * c.model.H_cycles * (c.model.L_cycles + 1), "; use fewer segments");
  check.require(
      c.eval.rollouts == 1 || !c.eval.early_halt || c.eval.batch_size == 0 || c.eval.batch_size >= c.eval.rollouts,
      check.at("eval.batch_size"), " has no room for all rollouts of a puzzle, which ", check.at("eval.early_halt"),
      " stops together; set eval.batch_size to at least ", c.eval.rollouts);
  check.require(c.eval.agreeing_rollouts <= c.eval.rollouts, check.at("eval.agreeing_rollouts"), " is more than ",
                check.at("eval.rollouts"), "; set it to ", c.eval.rollouts, " at most");
}

}  // namespace

const TaskSettings& puzzle_settings() {
  static const TaskSettings row{
      .name = "puzzle",
      .help = "reasoning models (section model) on grids",
      .defaults = {{"data.test", no_test},
                   {"model.H_layers", h_layers},
                   {"model.H_cycles", cycles},
                   {"model.L_cycles", cycles}},
      .train_data = "a dataset directory or a CSV file, or start from a configuration in configs/ with --config",
      .test_data = "a dataset directory or a CSV file",
      .may_evaluate = [](const Config& config) { return !config.data.test.empty(); },
      .check = check_puzzle};
  return row;
}

}  // namespace hrm::config
