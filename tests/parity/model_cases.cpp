// hrm_forward, trm_forward: one segment from a given carry; checkpoint: an official file and its evaluation.

#include "hrm/base/error.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/models/puzzle_network.h"
#include "hrm/nn/block.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/state/tensor_bytes.h"
#include "parity/model_case.h"
#include "support/fixture_model.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

const std::string kPrefix = "model.inner.";

template <class Child>
std::shared_ptr<Child> child(const torch::nn::Module& module, const std::string& name) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    if (item.key() == name) return std::dynamic_pointer_cast<Child>(item.value());
  }
  return nullptr;
}

// The pieces of the first call of a module: its first block's parts, the block, the module.
void check_level(const Case& loaded, const models::PuzzleModel& model, const std::string& level, const at::Tensor& h,
                 const at::Tensor& injection, Tolerance tolerance) {
  const auto pieces = loaded.group("dbg." + level);
  const auto compare = [&](const std::string& piece, const at::Tensor& got) {
    if (pieces.count(piece) != 0) expect_close("dbg." + level + piece, got, pieces.at(piece), tolerance);
  };
  const double eps = model.config().rms_norm_eps;
  const at::Tensor sum = h + injection;
  at::Tensor mixed;
  if (const auto attention = child<nn::Attention>(model, level + ".layers.0.self_attn")) {
    const at::Tensor out = attention->forward(sum);
    compare(".layers.0.self_attn", out);
    mixed = ops::rms_norm_residual(out, sum, eps);
  } else {
    const at::Tensor turned = sum.transpose(1, 2).contiguous();
    const at::Tensor out = child<nn::SwiGLU>(model, level + ".layers.0.mlp_t")->forward(turned);
    compare(".layers.0.mlp_t", out);
    mixed = ops::rms_norm_residual(out, turned, eps).transpose(1, 2).contiguous();
  }
  compare(".layers.0.mlp", child<nn::SwiGLU>(model, level + ".layers.0.mlp")->forward(mixed));
  compare(".layers.0", child<nn::Block>(model, level + ".layers.0")->forward(sum));
  compare("", child<nn::ReasoningModule>(model, level)->forward(h, injection));
}

void check_pieces(const Case& loaded, models::PuzzleModel& model, const models::Carry& carry, const at::Tensor& inputs,
                  const at::Tensor& rows, Tolerance tolerance) {
  const at::Tensor x = dynamic_cast<models::PuzzleNetwork&>(model).embed_inputs(inputs, rows);
  if (loaded.has("dbg.input_embeddings")) {
    expect_close("dbg.input_embeddings", x, loaded.at("dbg.input_embeddings"), tolerance);
  }
  check_level(loaded, model, "L_level", carry.z_L, carry.z_H + x, tolerance);
  if (const auto H_level = child<nn::ReasoningModule>(model, "H_level")) {
    at::Tensor z_L = carry.z_L;
    for (int64_t l = 0; l < model.config().L_cycles; ++l) {
      z_L = child<nn::ReasoningModule>(model, "L_level")->forward(z_L, carry.z_H + x);
    }
    check_level(loaded, model, "H_level", carry.z_H, z_L, tolerance);
  }
}

std::string arch_of(const std::string& kind) {
  return kind.substr(0, 3);
}

void check_forward_case(const Case& loaded) {
  check_forward(loaded, {});
}

// Logits and Q values of every segment, each (segments, B, ...).
struct Rollout {
  at::Tensor logits, q_halt, q_continue;
};

Rollout roll_out(models::PuzzleModel& model, const Case& loaded, int64_t segments) {
  const at::Tensor inputs = loaded.at("in.inputs").to(device());
  const data::PuzzleBatch batch{.inputs = inputs,
                                .labels = at::full_like(inputs, data::kIgnoreLabel),
                                .puzzle_identifiers = loaded.at("in.puzzle_identifiers").to(device()),
                                .valid_rows = inputs.size(0)};
  std::vector<at::Tensor> logits, q_halt, q_continue;
  objectives::act_evaluate(model, batch, segments, [&](int64_t, const models::SegmentOutput& output) {
    logits.push_back(output.logits.to(at::kFloat));
    q_halt.push_back(output.q_halt);
    q_continue.push_back(output.q_continue);
  });
  return {at::stack(logits), at::stack(q_halt), at::stack(q_continue)};
}

// The stored low-precision results give the error that is allowed, against the same file evaluated in float32.
void check_low_precision(const std::string& what, const at::Tensor& got, const at::Tensor& reference,
                         const at::Tensor& stored) {
  const at::Tensor theirs = (stored.to(at::kCPU) - reference.to(at::kCPU)).abs();
  expect_within_twice(what, got, reference,
                      {{"max_abs", theirs.max().item<double>()}, {"mean_abs", theirs.mean().item<double>()}});
}

void check_checkpoint(const Case& loaded) {
  const json& config = loaded.json.at("config");
  const TorchArchive archive(loaded.folder / loaded.json.at("files").at(0).get<std::string>());
  const std::string prefix = "_orig_mod." + kPrefix;
  std::map<std::string, at::Tensor> weights;
  for (const NamedTensor& entry : archive.tensors()) {
    ASSERT_TRUE(entry.name.starts_with(prefix)) << entry.name;
    const json& declared = loaded.json.at("keys").at(entry.name);
    const at::Tensor tensor = tensor_from_bytes(entry.dtype, entry.shape, entry.bytes);
    EXPECT_EQ(tensor.scalar_type(), declared.at(0) == "bfloat16" ? at::kBFloat16 : at::kFloat) << entry.name;
    EXPECT_EQ(tensor.sizes().vec(), declared.at(1).get<std::vector<int64_t>>()) << entry.name;
    weights.emplace(entry.name.substr(prefix.size()), tensor);
  }
  EXPECT_EQ(weights.size(), loaded.json.at("keys").size());

  const std::string arch = config.contains("no_ACT_continue") ? "trm" : "hrm";
  const int64_t segments = loaded.at("out.logits").size(0);
  const auto evaluate = [&](at::ScalarType dtype) {
    const auto model = build_model(arch, config, dtype);
    load_weights(*model, weights);
    return roll_out(*model, loaded, segments);
  };
  const Rollout got = evaluate(forward_dtype(config));
  if (forward_dtype(config) == at::kFloat) {
    const json& stated = loaded.json.at("tolerance");
    const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
    // Segments feed on each other, so rounding grows from one to the next (TRM's fourth segment: the reference's own
    // float32 numbers are 4e-3 off a float64 evaluation). Later segments may move by ten times what they move when all
    // weights move by 1e-7, the rule of the cases that state their rounding noise.
    for (auto& [name, weight] : weights) {
      const at::Tensor sign = at::arange(weight.numel()).mul(7919).remainder(13).lt(6).to(at::kFloat) * 2 - 1;
      weight = weight * (1 + 1e-7 * sign.view(weight.sizes()));
    }
    const Rollout moved = evaluate(at::kFloat);
    const auto compare = [&](const std::string& what, const at::Tensor& values, const at::Tensor& shifted,
                             const at::Tensor& want) {
      for (int64_t segment = 0; segment < segments; ++segment) {
        const double noise = (values[segment] - shifted[segment]).abs().max().item<double>();
        expect_close(what + " of segment " + std::to_string(segment + 1), values[segment], want[segment],
                     {tolerance.rtol, segment == 0 ? tolerance.atol : std::max(tolerance.atol, 10 * noise)});
        EXPECT_LT(10 * noise, want[segment].std().item<double>()) << what << ": a comparison this loose says nothing";
      }
    };
    compare("logits", got.logits, moved.logits, loaded.at("out.logits"));
    compare("q_halt", got.q_halt, moved.q_halt, loaded.at("out.q_halt_logits"));
    compare("q_continue", got.q_continue, moved.q_continue, loaded.at("out.q_continue_logits"));
  } else {
    const Rollout reference = evaluate(at::kFloat);
    check_low_precision("logits", got.logits, reference.logits, loaded.at("out.logits"));
    check_low_precision("q_halt", got.q_halt, reference.q_halt, loaded.at("out.q_halt_logits"));
    check_low_precision("q_continue", got.q_continue, reference.q_continue, loaded.at("out.q_continue_logits"));
  }
}

const RegisterKind kHrmForward("hrm_forward", check_forward_case);
const RegisterKind kTrmForward("trm_forward", check_forward_case);
const RegisterKind kCheckpoint("checkpoint", check_checkpoint);

}  // namespace

at::ScalarType forward_dtype(const json& config) {
  return config.at("forward_dtype").get<std::string>() == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

std::shared_ptr<models::PuzzleModel> build_model(const std::string& arch, const json& config, at::ScalarType dtype,
                                                 const Mutation& mutation) {
  config::ModelConfig model = test::fixture_model(arch, config);
  if (mutation.config) mutation.config(model);
  const data::PuzzleMeta meta{.vocab_size = config.at("vocab_size"),
                              .seq_len = config.at("seq_len"),
                              .num_puzzle_identifiers = config.at("num_puzzle_identifiers")};
  const models::PuzzleModelDims dims = models::resolve_dims(model, meta);
  EXPECT_EQ(dims.puzzle_emb_len, config.value("puzzle_emb_len_effective", dims.puzzle_emb_len));
  return models::make_puzzle_model(model, dims, /*seed=*/0, device(), dtype);
}

void load_weights(models::PuzzleModel& model, const std::map<std::string, at::Tensor>& weights) {
  const at::NoGradGuard no_grad;
  size_t found = 0;
  const auto load = [&](const std::string& name, at::Tensor tensor) {
    const auto weight = weights.find(name);
    ASSERT_NE(weight, weights.end()) << "the case has no weight '" << name << "'";
    ASSERT_EQ(tensor.sizes(), weight->second.sizes()) << name;
    tensor.copy_(weight->second);
    ++found;
  };
  for (const auto& item : model.named_parameters()) load(item.key(), item.value());
  for (const auto& item : model.named_buffers()) load(item.key(), item.value());
  EXPECT_EQ(found, weights.size()) << "the case has weights that the model has not";
  model.parameter_set().refresh_compute();
}

void check_forward(const Case& loaded, const Mutation& mutation) {
  const at::NoGradGuard no_grad;
  const at::ScalarType dtype = forward_dtype(loaded.json.at("config"));
  const auto model = build_model(arch_of(loaded.kind), loaded.json.at("config"), dtype, mutation);
  load_weights(*model, loaded.group("state." + kPrefix));
  if (mutation.weights) mutation.weights(*model);

  const at::Tensor inputs = loaded.at("in.inputs").to(device());
  const at::Tensor ids = loaded.at("in.puzzle_identifiers").to(device());
  const models::Carry carry{loaded.at("in.z_H").to(device(), dtype), loaded.at("in.z_L").to(device(), dtype)};
  const at::Tensor rows = model->puzzle_embedding().index_select(0, ids);
  const models::SegmentOutput out = model->segment(carry, inputs, rows);
  const std::map<std::string, at::Tensor> results{{"logits", out.logits},
                                                  {"q_halt", out.q_halt},
                                                  {"q_continue", out.q_continue},
                                                  {"z_H", out.carry.z_H},
                                                  {"z_L", out.carry.z_L}};
  if (dtype == at::kFloat) {
    const json& stated = loaded.json.at("tolerance");
    const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
    for (const auto& [name, got] : results) {
      const double noise = loaded.json.at("rounding_noise").value(name, 0.0);
      expect_close(name, got, loaded.at("out." + name), {tolerance.rtol, std::max(tolerance.atol, 10 * noise)});
    }
    check_pieces(loaded, *model, carry, inputs, rows, tolerance);
  } else {
    for (const auto& [name, got] : results) {
      expect_within_twice(name, got, loaded.at("ref32." + name), loaded.json.at("bf16_error_vs_f32").at(name));
    }
  }
}

}  // namespace hrm::parity
