// hrm_train_trace, trm_train_trace: ACT training steps, with the optimizers, against the reference's numbers.

#include "hrm/base/error.h"
#include "hrm/optim/ema.h"
#include "hrm/optim/optimizer.h"
#include "hrm/optim/schedules.h"
#include "hrm/optim/sparse_sign_sgd.h"
#include "parity/model_case.h"

namespace hrm::parity {
namespace {

using nlohmann::json;

const std::string kTracePrefix = "model.inner.";

// What a trace allows. float32: ten times the change that a 1e-7 move of the weights makes, plus 1e-5 relative.
// bfloat16: looser rules, and the comparison ends where a decision closer than the margin goes the other way.
class Rules {
 public:
  explicit Rules(const Case& loaded)
      : noise_(loaded.json.at("rounding_noise")), low_(forward_dtype(loaded.json.at("config")) != at::kFloat) {}

  bool low_precision() const { return low_; }

  // `measured`: noise that was found here, where it is more than the case's own.
  void series(const std::string& name, const at::Tensor& got, const at::Tensor& want, const std::string& at,
              double measured = 0) const {
    const double noise = std::max(noise_.at("series").value(name, 0.0), measured);
    const std::string what = at + name;
    if (!low_) {
      expect_close(what, got, want, {1e-5, 10 * noise});
    } else if (name == "loss") {
      expect_close(what, got, want, {3e-2, 0});
    } else if (name.starts_with("metric.")) {
      // Counts depend on argmax decisions that a bfloat16 run may take otherwise; the loss terms do not.
      if (name.ends_with("_loss")) expect_close(what, got, want, {3e-2, 2 * noise});
    } else {
      ASSERT_EQ(got.sizes(), want.sizes()) << what;
      const at::Tensor error = (got.detach().to(at::kCPU, at::kDouble) - want.to(at::kCPU, at::kDouble)).abs();
      EXPECT_LE(error.mean().item<double>(), 2 * noise) << what << ": mean error";
    }
  }

  void gradient(const std::string& step, const std::string& name, const at::Tensor& got, const at::Tensor& want) const {
    const std::string what = "grad." + step + "." + name;
    if (low_) return expect_relative_l2(what, got, want, 3e-2);
    // The noise of a later step's gradient includes that of the weights before it.
    const double noise = noise_.at("tensors").at("grad." + step).at("max");
    expect_close(what, got, want, {1e-4, step == "step1" ? 1e-6 : std::max(1e-6, 10 * noise)});
  }

  // AdamATan2 ignores the scale of a gradient: an element whose gradient is rounding noise may go either way.
  void weights(const std::string& what, const at::Tensor& got, const at::Tensor& want, double lr, int64_t steps) const {
    if (low_) return expect_relative_l2(what, got, want, 1e-2);
    ASSERT_EQ(got.sizes(), want.sizes()) << what;
    const at::Tensor error = (got.detach().to(at::kCPU, at::kDouble) - want.to(at::kCPU, at::kDouble)).abs();
    EXPECT_GE(error.le(1e-5).to(at::kDouble).mean().item<double>(), 0.995) << what << ": elements within 1e-5";
    EXPECT_LE(error.max().item<double>(), 2 * lr * static_cast<double>(steps)) << what << ": largest error";
  }

 private:
  json noise_;
  bool low_;
};

at::Tensor scalar(double value) {
  return at::scalar_tensor(value, at::device(device()).dtype(at::kFloat));
}

// Model, state and optimizers of a trace.
struct Trainer {
  std::shared_ptr<models::PuzzleModel> model;
  objectives::ActState state;
  at::Tensor rows;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Ema> ema;

  Trainer(const Case& loaded, const Mutation& mutation) {
    const json& train = loaded.json.at("config").at("train");
    model = build_model(loaded.kind.substr(0, 3), loaded.json.at("config"), forward_dtype(loaded.json.at("config")),
                        mutation);
    load_weights(*model, loaded.group("state." + kTracePrefix));
    if (mutation.weights) mutation.weights(*model);
    state = objectives::make_act_state(*model, train.at("batch"));
    rows = objectives::make_puzzle_rows(*model, train.at("batch"));
    if (train.contains("ema_rate")) ema = std::make_unique<optim::Ema>(model->parameter_set(), train.at("ema_rate"));
    optimizer = optim::make_optimizer({.name = config::OptimizerKind::adam_atan2,
                                       .beta1 = train.at("betas").at(0),
                                       .beta2 = train.at("betas").at(1),
                                       .average_decay = ema ? ema->decay() : 0},
                                      {optim::group_of(model->parameter_set(), train.at("weight_decay"), ema.get())});
  }
};

// The smallest Q difference that decided about halting.
double closest_decision(const models::SegmentOutput& output, const config::ModelConfig& config) {
  const at::Tensor difference = config.no_ACT_continue ? output.q_halt : output.q_halt - output.q_continue;
  return difference.detach().abs().min().item<double>();
}

// The reference's parameters and puzzle embeddings after the last step; H_init and L_init do not change.
void load_final_weights(const Case& loaded, models::PuzzleModel& model, int64_t steps) {
  auto weights = loaded.group("param.step" + std::to_string(steps) + "." + kTracePrefix);
  for (const char* row : {"H_init", "L_init"}) weights[row] = loaded.at("state." + kTracePrefix + row);
  weights["puzzle_emb.weights"] = loaded.at("step.puzzle_emb.weights").select(0, steps - 1);
  load_weights(model, weights);
}

using Weights = std::map<std::string, at::Tensor>;

// Parameters and buffers, as the reference names them.
Weights weights_of(const models::PuzzleModel& model) {
  Weights weights;
  for (const auto& item : model.named_parameters()) weights[item.key()] = item.value().detach().to(at::kCPU).clone();
  for (const auto& item : model.named_buffers()) weights[item.key()] = item.value().detach().to(at::kCPU).clone();
  return weights;
}

// Names as in "eval.*"; one row for each sample, and the metrics, which are of all samples, with one.
std::map<std::string, at::Tensor> evaluate(const Case& loaded, models::PuzzleModel& model,
                                           const data::PuzzleBatch& batch) {
  const objectives::Evaluation evaluation =
      objectives::act_evaluate(model, batch, loaded.at("eval.segments").item<int64_t>());
  std::map<std::string, at::Tensor> values{{"logits", evaluation.output.logits},
                                           {"q_halt_logits", evaluation.output.q_halt}};
  const at::Tensor metrics = objectives::act_loss(evaluation.output, evaluation.state, {}, {}).metrics;
  for (size_t i = 0; i < objectives::act_metric_names().size(); ++i) {
    values["metric." + objectives::act_metric_names()[i]] = metrics.narrow(0, static_cast<int64_t>(i), 1);
  }
  for (auto& [name, value] : values) value = value.to(at::kCPU, at::kDouble).clone();
  return values;
}

// How far each sample's values of an evaluation move when the weights move by 1e-7 of themselves, or by as much as they
// differ from `other` where that is more: the largest change of a few moves, each weight up or down. Rounding in
// float32 is such a move, and a recursion of many segments amplifies it, each sample in its own measure. So the noise
// that a case states for its training steps does not hold for its evaluation.
//
// docs/building.md has the numbers of a case where both sides were evaluated in float64.
std::map<std::string, at::Tensor> evaluation_noise(const Case& loaded, models::PuzzleModel& model,
                                                   const data::PuzzleBatch& batch, const Weights& other) {
  constexpr int kMoves = 4;
  const Weights weights = weights_of(model);
  const auto base = evaluate(loaded, model, batch);
  std::map<std::string, at::Tensor> noise;
  for (int move = 0; move < kMoves; ++move) {
    Weights moved;
    for (const auto& [name, weight] : weights) {
      at::Tensor size = weight.abs() * 1e-7;
      if (const auto found = other.find(name); found != other.end()) {
        size = at::maximum(size, (found->second - weight).abs());
      }
      const at::Tensor sign = at::arange(weight.numel()).add(move).mul(7919 + move).remainder(13).lt(6).to(at::kFloat);
      moved[name] = weight + size * (sign * 2 - 1).view(weight.sizes());
    }
    load_weights(model, moved);
    for (const auto& [name, value] : evaluate(loaded, model, batch)) {
      const at::Tensor change = (value - base.at(name)).abs().reshape({value.size(0), -1});
      const at::Tensor largest = change.amax(1);
      noise[name] = noise.count(name) == 0 ? largest : at::maximum(noise[name], largest);
    }
  }
  load_weights(model, weights);
  return noise;
}

// `other`: weights that the model might have had as well.
void check_evaluation(const Case& loaded, const Rules& rules, models::PuzzleModel& model,
                      const data::PuzzleBatch& batch, const Weights& other, const std::string& at) {
  const auto got = evaluate(loaded, model, batch);
  const auto noise = rules.low_precision() ? got : evaluation_noise(loaded, model, batch, other);
  size_t meaningful = 0, samples = 0;
  for (const auto& [name, value] : got) {
    if (!loaded.has("eval." + name)) continue;
    at::Tensor want = loaded.at("eval." + name);
    if (name.starts_with("metric.")) want = want.reshape({1});
    if (rules.low_precision()) {
      // The Q values are compared by themselves; a sum over them after several segments says nothing more.
      if (!name.starts_with("metric.") || name == "metric.lm_loss") rules.series(name, value, want, at);
      continue;
    }
    ASSERT_EQ(value.sizes(), want.sizes()) << at << name;
    for (int64_t row = 0; row < want.size(0); ++row) {
      const double measured = noise.at(name)[row].item<double>();
      rules.series(name, value[row], want[row], cat(at, "sample ", row, ": "), measured);
      if (name != "logits") continue;
      ++samples;
      meaningful += 10 * measured < 0.1 * want[row].std().item<double>() ? 1 : 0;
    }
  }
  // Our own weights differ from the reference's by whole steps where a gradient is rounding noise.
  if (other.empty()) {
    EXPECT_GE(2 * meaningful, samples) << at << "a comparison this loose says nothing";
  }
}

void check_trace_case(const Case& loaded) {
  check_train_trace(loaded, {});
}

const RegisterKind kHrmTrace("hrm_train_trace", check_trace_case);
const RegisterKind kTrmTrace("trm_train_trace", check_trace_case);

}  // namespace

void check_train_trace(const Case& loaded, const Mutation& mutation) {
  const Rules rules(loaded);
  const json& train = loaded.json.at("config").at("train");
  Trainer trainer(loaded, mutation);
  models::PuzzleModel& model = *trainer.model;
  objectives::ActState& state = trainer.state;
  const int64_t steps = train.at("steps"), slots = train.at("batch");
  const config::ObjectiveConfig objective;  // stablemax in float64, as the reference
  const at::Tensor no_skip = scalar(0);

  const auto row_of = [&](const std::string& name, int64_t step) { return loaded.at(name).select(0, step - 1); };
  data::PuzzleBatch batch;
  for (int64_t step = 1; step <= steps; ++step) {
    const std::string at = "step " + std::to_string(step) + ": ";
    const std::string step_name = "step" + std::to_string(step);
    batch = {.inputs = row_of("batch.inputs", step).to(device()),
             .labels = row_of("batch.labels", step).to(device()),
             .puzzle_identifiers = row_of("batch.puzzle_identifiers", step).to(device()),
             .valid_rows = slots};
    const objectives::HaltDraws draws{.uniform = row_of("draw.rand", step).to(device()),
                                      .min_steps = row_of("draw.randint", step).to(device())};
    const at::Tensor halted_before = state.halted.clone();
    objectives::act_begin(state, batch, model.H_init(), model.L_init());
    if (mutation.after_begin) mutation.after_begin(state, halted_before);
    const objectives::TrainSegment segment =
        objectives::act_train_segment(model, state, trainer.rows, draws, objective);
    model.parameter_set().zero_grad();
    trainer.rows.mutable_grad() = at::Tensor();
    (segment.loss.loss / static_cast<double>(slots)).backward();

    // Decisions and data.
    expect_equal(at + "steps", state.steps, row_of("step.steps", step));
    expect_equal(at + "inputs", state.inputs, row_of("step.cur.inputs", step));
    expect_equal(at + "labels", state.labels, row_of("step.cur.labels", step));
    expect_equal(at + "puzzle_identifiers", state.puzzle_identifiers, row_of("step.cur.puzzle_identifiers", step));
    const at::Tensor halted = row_of("step.halted", step);
    const double margin = loaded.json.at("margins").at("halt_margin");
    if (rules.low_precision() && !at::equal(state.halted.to(at::kCPU), halted) &&
        closest_decision(segment.output, model.config()) < margin) {
      std::cout << "[ parity   ] " << loaded.name << ": a decision of step " << step
                << " was closer than the margin and went the other way, the rest is not compared\n";
      EXPECT_GT(step, 1);
      return;
    }
    expect_equal(at + "halted", state.halted, halted);

    // Values.
    rules.series("loss", segment.loss.loss, row_of("step.loss", step), at);
    const auto& names = objectives::act_metric_names();
    for (size_t i = 0; i < names.size(); ++i) {
      if (!loaded.has("step.metric." + names[i])) continue;
      rules.series("metric." + names[i], segment.loss.metrics[static_cast<int64_t>(i)],
                   row_of("step.metric." + names[i], step), at);
    }
    rules.series("logits", segment.output.logits, row_of("step.logits", step), at);
    rules.series("q_halt_logits", segment.output.q_halt, row_of("step.q_halt_logits", step), at);
    rules.series("q_continue_logits", segment.output.q_continue, row_of("step.q_continue_logits", step), at);
    EXPECT_EQ(segment.target_q_continue.has_value(), loaded.has("step.target_q_continue"));
    if (segment.target_q_continue) {
      rules.series("target_q_continue", *segment.target_q_continue, row_of("step.target_q_continue", step), at);
    }
    rules.series("puzzle_emb_grad", trainer.rows.grad(), row_of("step.puzzle_emb_grad", step), at);
    const auto grads = loaded.group("grad." + step_name + "." + kTracePrefix);
    for (const nn::Parameter& parameter : model.parameter_set().all()) {
      if (!grads.empty()) rules.gradient(step_name, parameter.name, parameter.master.grad(), grads.at(parameter.name));
    }

    // Updates.
    const auto rate = [&](const char* key) {
      return optim::scheduled(config::Schedule::cosine, train.at(key), step, train.at("total_steps"),
                              train.at("warmup"), train.at("min_ratio"));
    };
    const double lr = rate("lr"), embedding_lr = rate("puzzle_emb_lr");
    expect_close(at + "lr", lr, row_of("step.lr", step).item<double>(), {1e-12, 0});
    expect_close(at + "puzzle_emb_lr", embedding_lr, row_of("step.puzzle_emb_lr", step).item<double>(), {1e-12, 0});
    optim::sparse_sign_sgd_(model.puzzle_embedding(), state.puzzle_identifiers, trainer.rows.grad(),
                            scalar(embedding_lr), train.at("puzzle_emb_weight_decay"), no_skip);
    trainer.optimizer->step(scalar(lr), scalar(1), no_skip);
    rules.series("puzzle_emb.weights", model.puzzle_embedding(), row_of("step.puzzle_emb.weights", step), at);

    const double top_lr = train.at("lr");
    const auto params = loaded.group("param." + step_name + "." + kTracePrefix);
    for (const nn::Parameter& parameter : model.parameter_set().all()) {
      if (params.empty()) break;
      rules.weights(at + parameter.name, parameter.master, params.at(parameter.name), top_lr, step);
    }
    const auto averages = loaded.group("ema." + step_name + "." + kTracePrefix);
    EXPECT_TRUE(averages.empty() || trainer.ema);
    for (size_t i = 0; !averages.empty() && trainer.ema && i < trainer.ema->names().size(); ++i) {
      const std::string& name = trainer.ema->names()[i];
      rules.weights(at + "ema " + name, trainer.ema->shadows()[i], averages.at(name), top_lr, step);
    }
  }

  // The carry is worth as much as the logits read from it.
  if (!rules.low_precision()) {
    const double noise = loaded.json.at("rounding_noise").at("series").at("logits");
    expect_close("final.z_H", state.carry.z_H, loaded.at("final.z_H"), {1e-5, 10 * noise});
    expect_close("final.z_L", state.carry.z_L, loaded.at("final.z_L"), {1e-5, 10 * noise});
  }
  // Our own weights after the last step: not in float32 on a GPU. The updates are scale-invariant, so where a gradient
  // is rounding noise another order of summation moves a weight by up to 2 lr (Rules::weights allows just that), more
  // than the tolerance of the logits leaves room for. The reference's weights test the evaluation itself, everywhere.
  const Weights ours = weights_of(model);
  load_final_weights(loaded, model, steps);
  check_evaluation(loaded, rules, model, batch, {}, "evaluation of the reference's weights: ");
  if (!rules.low_precision() && device().is_cpu()) {
    const auto wide = build_model(loaded.kind.substr(0, 3), loaded.json.at("config"), at::kDouble, mutation);
    load_final_weights(loaded, *wide, steps);
    check_evaluation(loaded, rules, *wide, batch, {}, "evaluation of the reference's weights in float64: ");
  }
  if (rules.low_precision() || device().is_cpu()) {
    const Weights theirs = weights_of(model);
    load_weights(model, ours);
    check_evaluation(loaded, rules, model, batch, theirs, "evaluation of our weights: ");
  }
}

}  // namespace hrm::parity
