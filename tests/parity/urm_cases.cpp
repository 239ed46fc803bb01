// urm_forward: evaluation segments from a fresh start, and a training step whose gradients go through the last cycle,
// or through the whole segment: as one H cycle, or with all cycles differentiated.

#include "hrm/ops/backend.h"
#include "parity/model_case.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

const std::string kUrmPrefix = "state.model.inner.";

at::Tensor urm_tensor(const at::Tensor& t) {
  return t.to(device());
}

// Which updates of a segment are differentiated.
enum class Gradient { last_cycle, one_long_cycle, all_cycles, all_computed_again };

class UrmCase {
 public:
  UrmCase(const Case& loaded, Gradient gradient, const Mutation& mutation)
      : loaded_(loaded), full_(gradient != Gradient::last_cycle), config_(loaded.json.at("config")) {
    config_["H_layers"] = 0;
    config_["L_layers"] = config_.at("num_layers");
    config_["halt_max_steps"] = config_.at("loops");
    config_["no_ACT_continue"] = true;
    model_ = build_model("urm", config_, at::kFloat, {.config = [&](config::ModelConfig& c) {
                           if (gradient == Gradient::one_long_cycle) {
                             c.L_cycles *= c.H_cycles;
                             c.H_cycles = 1;
                           } else if (gradient != Gradient::last_cycle) {
                             c.gradient_cycles = c.H_cycles;
                             c.recompute = gradient == Gradient::all_computed_again;
                           }
                         }});
    load_weights(*model_, loaded.group(kUrmPrefix));
    if (mutation.weights) mutation.weights(*model_);
  }

  void check() {
    const objectives::ActState state = check_evaluation();
    check_training(state);
  }

 private:
  void compare(const std::string& name, const at::Tensor& got) const {
    const json& stated = loaded_.json.at("tolerance");
    const double noise = loaded_.json.at("rounding_noise").value(name, 0.0);
    const Tolerance tolerance{.rtol = stated.at("rtol"), .atol = stated.at("atol")};
    expect_close(name, got, loaded_.at(name), {tolerance.rtol, std::max(tolerance.atol, 10 * noise)});
  }

  void compare_output(const std::string& at, const models::SegmentOutput& output) const {
    compare(at + "logits", output.logits);
    compare(at + "q_halt", output.q_halt);
    compare(at + "q_continue", output.q_continue);
    if (loaded_.has(at + "hidden")) compare(at + "hidden", output.carry.z_H);
  }

  data::PuzzleBatch batch(const std::string& prefix) const {
    const at::Tensor inputs = urm_tensor(loaded_.at(prefix + "inputs").to(at::kInt));
    return {.inputs = inputs,
            .labels = urm_tensor(loaded_.at(prefix + "labels").to(at::kInt)),
            .puzzle_identifiers = urm_tensor(loaded_.at(prefix + "puzzle_identifiers").to(at::kInt)),
            .valid_rows = inputs.size(0)};
  }

  // Returns the state after the second segment.
  objectives::ActState check_evaluation() {
    const at::NoGradGuard no_grad;
    objectives::ActState state = objectives::make_act_state(*model_, config_.at("batch_size")), second;
    objectives::act_begin(state, batch("in."), model_->H_init(), model_->L_init());
    const at::Tensor rows = model_->puzzle_embedding().index_select(0, state.puzzle_identifiers);
    const int64_t segments = config_.at("segments");
    // Not read outside of training.
    const objectives::HaltDraws draws{.uniform = at::zeros({state.size()}, at::device(device())),
                                      .min_steps = at::full({state.size()}, 100, at::device(device()).dtype(at::kInt))};
    for (int64_t s = 1; s <= segments; ++s) {
      const models::SegmentOutput output = model_->segment(state.carry, state.inputs, rows);
      compare_output(cat("out.seg", s, "."), output);
      objectives::act_end(state, output, draws, /*training=*/false, model_->config());
      expect_equal(cat("out.seg", s, ".halted"), state.halted, loaded_.at(cat("out.seg", s, ".halted")));
      if (s == 2) {
        second = objectives::make_act_state(*model_, state.size());
        second.carry = {state.carry.z_H.clone(), state.carry.z_L.clone()};
        for (auto part : {&objectives::ActState::inputs, &objectives::ActState::labels,
                          &objectives::ActState::puzzle_identifiers}) {
          (second.*part).copy_(state.*part);
        }
      }
    }
    return second;
  }

  // Halted rows begin the samples of in.train, the others go on with those of the evaluation.
  void check_training(objectives::ActState state) {
    state.halted.copy_(loaded_.at("in.train.halted").to(at::kBool));
    state.steps.copy_(loaded_.at("in.train.steps").to(at::kInt));
    objectives::act_begin(state, batch("in.train."), model_->H_init(), model_->L_init());
    at::Tensor rows = objectives::make_puzzle_rows(*model_, state.size());
    model_->parameter_set().zero_grad();
    const objectives::TrainSegment step =
        objectives::act_train_segment(*model_, state, rows,
                                      {.uniform = urm_tensor(loaded_.at("in.train.draw_rand").to(at::kFloat)),
                                       .min_steps = urm_tensor(loaded_.at("in.train.draw_randint").to(at::kInt))},
                                      config::ObjectiveConfig{});
    (step.loss.loss / static_cast<double>(state.size())).backward();
    compare_output("out.train.", step.output);
    expect_equal("out.train.halted", state.halted, loaded_.at("out.train.halted"));
    expect_equal("out.train.steps", state.steps, loaded_.at("out.train.steps"));
    const json& scalars = loaded_.json.at("train_scalars");
    expect_close("loss", step.loss.loss.item<double>(), scalars.at("loss").get<double>(), {1e-5, 0});
    const std::vector<std::string>& names = objectives::act_metric_names();
    size_t found = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!scalars.contains(names[i])) continue;
      expect_close(names[i], step.loss.metrics[static_cast<int64_t>(i)].item<double>(), scalars.at(names[i]),
                   {1e-5, 0});
      ++found;
    }
    EXPECT_EQ(found + 1, scalars.size()) << "all but the loss";

    const std::string prefix = full_ ? "grad.full.model.inner." : "grad.trunc.model.inner.";
    size_t compared = 1;
    compare(prefix + "puzzle_emb.local_weights", rows.grad());
    for (const nn::Parameter& parameter : model_->parameter_set().all()) {
      compare(prefix + parameter.name, parameter.master.grad());
      ++compared;
    }
    EXPECT_EQ(compared, loaded_.group(prefix).size());
  }

  const Case& loaded_;
  bool full_;
  json config_;
  std::shared_ptr<models::PuzzleModel> model_;
};

void check_urm_case(const Case& loaded) {
  check_urm(loaded, {});
}

const RegisterKind kUrm("urm_forward", check_urm_case);

}  // namespace

void check_urm(const Case& loaded, const Mutation& mutation) {
  const ops::Backend before = ops::backend();
  for (const ops::Backend backend : {ops::Backend::fused, ops::Backend::reference}) {
    ops::set_backend(backend);
    for (const Gradient gradient :
         {Gradient::last_cycle, Gradient::one_long_cycle, Gradient::all_cycles, Gradient::all_computed_again}) {
      SCOPED_TRACE(cat("gradient ", static_cast<int>(gradient), backend == before ? "" : ", the other backend"));
      UrmCase(loaded, gradient, mutation).check();
    }
  }
  ops::set_backend(before);
}

}  // namespace hrm::parity
