#include "hrm/base/error.h"
#include "hrm/models/hrm.h"
#include "hrm/models/transformer.h"
#include "hrm/models/trm.h"
#include "hrm/models/urm.h"

namespace hrm::models {
namespace {

void check_arch(const config::ModelConfig& c) {
  if (c.facts().h_module) {
    require(c.H_layers > 0, ExitCode::usage, "model.arch=", c.arch, " needs model.H_layers of at least 1");
  } else {
    require(c.H_layers == 0, ExitCode::usage, "model.arch=", c.arch, " has no H module, but model.H_layers is ",
            c.H_layers, "; set model.H_layers=0");
  }
  if (!c.facts().cycles) {
    require(c.H_cycles == 1 && c.L_cycles == 1, ExitCode::usage, "model.arch=", c.arch,
            " makes one pass per segment, but model.H_cycles is ", c.H_cycles, " and model.L_cycles ", c.L_cycles,
            "; set both to 1");
    require(c.damping == 0 && c.path_noise == 0, ExitCode::usage, "model.arch=", c.arch,
            " has no recursion that model.damping or model.path_noise could act on; leave both 0");
    require(!c.depth_curriculum, ExitCode::usage, "model.arch=", c.arch,
            " has no cycles that model.depth_curriculum could cut; leave it false");
    require(!c.recompute, ExitCode::usage, "model.arch=", c.arch,
            " makes one update per segment, which model.recompute could not spare; leave it false");
  }
  if (!c.facts().cycles || c.facts().one_step_gradient) {
    require(c.gradient_cycles == 1 && !c.loss_every_cycle, ExitCode::usage, "model.arch=", c.arch,
            " does not differentiate whole H cycles; set model.gradient_cycles=1 and model.loss_every_cycle=false");
  }
  require(c.gradient_cycles >= 1 && c.gradient_cycles <= c.H_cycles, ExitCode::usage, "model.gradient_cycles is ",
          c.gradient_cycles, " but must be at least 1 and at most model.H_cycles (", c.H_cycles, ")");
  require(!c.mlp_t || !c.facts().convolution, ExitCode::usage, "model.arch=", c.arch,
          " mixes positions by attention and a convolution; leave model.mlp_t false");
  if (c.mlp_t) {
    require(c.pos_encodings != config::PositionEncoding::rope, ExitCode::usage,
            "model.mlp_t=true has no attention that could use model.pos_encodings=rope; use none or learned");
    return;
  }
  require(c.hidden_size % c.num_heads == 0, ExitCode::usage, "model.num_heads (", c.num_heads,
          ") must divide model.hidden_size (", c.hidden_size, ")");
  require(c.pos_encodings != config::PositionEncoding::rope || c.hidden_size / c.num_heads % 2 == 0, ExitCode::usage,
          "model.pos_encodings=rope needs an even head width, but model.hidden_size / model.num_heads is ",
          c.hidden_size / c.num_heads);
}

// Builds the module tree with uninitialised parameters.
std::shared_ptr<PuzzleNetwork> construct(const config::ModelConfig& config, const PuzzleModelDims& dims,
                                         at::Device device) {
  check_arch(config);
  switch (config.arch) {
    case config::PuzzleArch::hrm:
      return std::make_shared<Hrm>(config, dims, device);
    case config::PuzzleArch::trm:
      return std::make_shared<Trm>(config, dims, device);
    case config::PuzzleArch::transformer:
      return std::make_shared<Transformer>(config, dims, device);
    case config::PuzzleArch::urm:
      return std::make_shared<Urm>(config, dims, device);
  }
  fail(ExitCode::unexpected, "no model implements this model.arch");
}

}  // namespace

PuzzleModelDims resolve_dims(const config::ModelConfig& config, const data::PuzzleMeta& meta) {
  check_arch(config);
  require(meta.seq_len > 0 && meta.vocab_size > 0 && meta.num_puzzle_identifiers > 0, ExitCode::data,
          "the data set describes itself with seq_len ", meta.seq_len, ", vocab_size ", meta.vocab_size,
          " and num_puzzle_identifiers ", meta.num_puzzle_identifiers, "; all must be positive");
  const int64_t D = config.hidden_size;
  const int64_t ndim = config.puzzle_emb_ndim < 0 ? D : config.puzzle_emb_ndim;
  const int64_t needed = (ndim + D - 1) / D;
  const int64_t len = config.puzzle_emb_len == 0 ? needed : config.puzzle_emb_len;
  require(ndim > 0 || len == 0, ExitCode::usage, "model.puzzle_emb_len is ", len,
          " but model.puzzle_emb_ndim=0 leaves nothing to put there; set model.puzzle_emb_len=0");
  require(len >= needed, ExitCode::usage, "model.puzzle_emb_len=", len, " slots of ", D,
          " values are too few for model.puzzle_emb_ndim=", ndim, "; use 0 or at least ", needed);
  return {.seq_len = meta.seq_len,
          .vocab_size = meta.vocab_size,
          .num_puzzle_identifiers = meta.num_puzzle_identifiers,
          .puzzle_emb_ndim = ndim,
          .puzzle_emb_len = len};
}

std::shared_ptr<PuzzleModel> make_puzzle_model(const config::ModelConfig& config, const PuzzleModelDims& dims,
                                               uint64_t seed, at::Device device, at::ScalarType compute_dtype) {
  const std::shared_ptr<PuzzleNetwork> model = construct(config, dims, device);
  model->initialise(seed, compute_dtype);
  return model;
}

std::shared_ptr<PuzzleModel> make_puzzle_model_outline(const config::ModelConfig& config, const PuzzleModelDims& dims) {
  return construct(config, dims, at::kMeta);
}

}  // namespace hrm::models
