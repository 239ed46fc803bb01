// eqr_forward: segments from given random states with given noise, the choice by convergence, and a training step.

#include "hrm/tasks/rollouts.h"
#include "parity/model_case.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

const std::string kStatePrefix = "state.model.inner.", kGradPrefix = "grad.model.inner.";

std::shared_ptr<models::PuzzleModel> eqr_model(const Case& loaded) {
  json config = loaded.json.at("config");
  config["puzzle_emb_ndim"] = 0;
  config["num_puzzle_identifiers"] = 1;
  config["no_ACT_continue"] = true;
  const auto model = build_model("trm", config, at::kFloat, {.config = [&](config::ModelConfig& c) {
                                   c.damping = 1 - config.at("lambda_").get<double>();
                                   c.path_noise = config.at("noise_scale");
                                 }});
  auto weights = loaded.group(kStatePrefix);
  for (const auto& item : model->named_buffers()) weights[item.key()] = item.value();  // not part of EqR
  load_weights(*model, weights);
  return model;
}

void check_eqr(const Case& loaded) {
  const json& config = loaded.json.at("config");
  const json& stated = loaded.json.at("tolerance");
  const auto compare = [&](const std::string& name, const at::Tensor& got) {
    const double noise = loaded.json.at("rounding_noise").value(name, 0.0);
    const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
    expect_close(name, got, loaded.at(name), {tolerance.rtol, std::max(tolerance.atol, 10 * noise)});
  };
  const auto model = eqr_model(loaded);
  const int64_t segments = config.at("segments"), rollouts = config.at("rollouts"), rows = config.at("rows");
  const int64_t window = config.at("convergence_window");
  const auto to_device = [](const at::Tensor& t) { return t.to(device()); };
  const at::Tensor puzzle = at::arange(rows).floor_divide(rollouts);
  const at::Tensor inputs = to_device(loaded.at("in.inputs").index_select(0, puzzle));
  const auto noise_of = [&](int64_t segment) {
    return models::SegmentDraws{.first = {}, .given = to_device(loaded.at("in.noise").select(0, segment))};
  };

  std::vector<models::SegmentOutput> outputs;
  {
    const at::NoGradGuard no_grad;
    models::Carry carry{to_device(loaded.at("in.z_H0")), to_device(loaded.at("in.z_L0"))};
    for (int64_t s = 0; s < segments; ++s) {
      outputs.push_back(model->segment(carry, inputs, {}, noise_of(s)));
      const std::string at = cat("out.seg", s + 1, ".");
      compare(at + "logits", outputs.back().logits);
      compare(at + "q_halt", outputs.back().q_halt);
      if (loaded.has(at + "z_H")) compare(at + "z_H", outputs.back().carry.z_H);
      if (loaded.has(at + "z_L")) compare(at + "z_L", outputs.back().carry.z_L);
      carry = outputs.back().carry;
    }
  }

  // The answers as rollouts have them: residual is the convergence score.
  at::Tensor score = at::zeros({rows}, inputs.options().dtype(at::kFloat));
  for (int64_t s = segments - window; s < segments; ++s) {
    const auto at = static_cast<size_t>(s);
    score += (outputs[at].logits - outputs[at - 1].logits).norm(2, -1).mean(-1) / static_cast<double>(window);
  }
  compare("out.convergence_score", score.view({-1, rollouts}));
  const at::Tensor tokens = outputs.back().logits.argmax(-1).to(at::kInt);
  expect_equal("out.preds", tokens, loaded.at("out.preds"));
  const tasks::RolloutEvaluator::Answers answers{.tokens = tokens.view({-1, rollouts, tokens.size(1)}),
                                                 .q_halt = outputs.back().q_halt.view({-1, rollouts}),
                                                 .residual = score.view({-1, rollouts}),
                                                 .settled = at::zeros({rows / rollouts, rollouts}, tokens.options())};
  expect_equal("the first of out.order", tasks::choose_rollouts(answers, config::RolloutSelector::residual),
               loaded.at("out.order").select(1, 0));
  expect_equal("out.best_q", tasks::choose_rollouts(answers, config::RolloutSelector::q), loaded.at("out.best_q"));

  // One training step: rows that start have their own data and states, the others go on from the first segment.
  const at::Tensor restarted = to_device(loaded.at("in.train.halted").to(at::kBool));
  const auto choose = [&](const char* fresh, const at::Tensor& kept) {
    std::vector<int64_t> shape(static_cast<size_t>(kept.dim()), 1);
    shape[0] = rows;
    return at::where(restarted.view(shape), to_device(loaded.at(fresh)), kept);
  };
  objectives::ActState state = objectives::make_act_state(*model, rows);
  state.carry = {choose("in.train.z_H0", outputs[0].carry.z_H), choose("in.train.z_L0", outputs[0].carry.z_L)};
  state.inputs = choose("in.train.inputs", inputs).to(at::kInt);
  state.labels = choose("in.train.labels", to_device(loaded.at("in.labels").index_select(0, puzzle))).to(at::kInt);
  state.steps = to_device(loaded.at("in.train.steps").to(at::kInt)) * restarted.logical_not();
  const models::SegmentOutput output = model->segment(state.carry, state.inputs, {}, noise_of(1));
  objectives::act_end(state, output,
                      {.uniform = to_device(loaded.at("in.train.draw_rand").to(at::kFloat)),
                       .min_steps = to_device(loaded.at("in.train.draw_randint").to(at::kInt))},
                      /*training=*/true, model->config());
  const objectives::ActLoss loss = objectives::act_loss(output, state, std::nullopt, config::ObjectiveConfig{});
  model->parameter_set().zero_grad();
  (loss.loss / static_cast<double>(rows)).backward();
  compare("out.train.logits", output.logits);
  compare("out.train.q_halt", output.q_halt);
  compare("out.train.z_H", output.carry.z_H);
  compare("out.train.z_L", output.carry.z_L);
  expect_equal("out.train.halted", state.halted, loaded.at("out.train.halted"));
  expect_equal("out.train.steps", state.steps, loaded.at("out.train.steps"));
  expect_close("loss", loss.loss.item<double>(), loaded.json.at("train_scalars").at("loss").get<double>(), {1e-5, 0});
  for (const nn::Parameter& parameter : model->parameter_set().all()) {
    compare(kGradPrefix + parameter.name, parameter.master.grad());
  }
}

const RegisterKind kEqr("eqr_forward", check_eqr);

}  // namespace
}  // namespace hrm::parity
