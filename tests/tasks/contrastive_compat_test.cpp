// contrastive.mode=compat: the task against its window, from settings to a resume.
#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "tasks/small_compat.h"

namespace hrm::tasks {
namespace {

namespace fs = std::filesystem;
using test::Overrides;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallCompat;

std::vector<nlohmann::json> compat_lines(const fs::path& dir) {
  std::ifstream in(dir / "small" / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  std::string line;
  while (std::getline(in, line)) {
    if (line.find("train/loss") != std::string::npos) lines.push_back(nlohmann::json::parse(line));
  }
  return lines;
}

objectives::CompatState copy_of(const objectives::CompatState& s) {
  return {s.field.clone(),     s.g.clone(),           s.theta.clone(),   s.bank_coord.clone(), s.bank_state.clone(),
          s.bank_next.clone(), s.bank_filled.clone(), s.history.clone(), s.window.clone()};
}

// The trainer's update is the original's: four steps beside CompatWindow::run.
TEST(ContrastiveCompatTask, EqualsItsWindow) {
  for (const Overrides& more : std::vector<Overrides>{{},
                                                      {"contrastive.commit=guide"},
                                                      {"contrastive.field_dim=8"},
                                                      {"contrastive.nudge_mode=off"},
                                                      {"contrastive.rotor_k=0"},
                                                      {"contrastive.sdm_capacity=4"}}) {
    SCOPED_TRACE(more.empty() ? "defaults" : more[0]);
    const auto dir = fresh_folder("run");
    SmallCompat run(dir, more);
    run.trainer.start_fresh();
    run.turn();
    objectives::CompatState state = copy_of(run.task.state());
    state.field.copy_(run.task.field());
    objectives::CompatWindow window(compat_settings(run.loaded.config.contrastive), state);
    std::vector<objectives::CompatResult> want;
    for (int i = 0; i < 4; ++i) {
      run.trainer.run_steps(1);
      want.push_back(window.run(window.encode(run.task.model().embedding(), run.task.ids()), at::full({}, 0.01)));
      const objectives::CompatState& got = run.task.state();
      EXPECT_LT((got.g - state.g).abs().max().item<double>(), 1e-6);
      EXPECT_TRUE(at::allclose(got.theta, state.theta, 0, 1e-6));
      EXPECT_TRUE(at::allclose(got.bank_coord, state.bank_coord, 1e-5, 1e-8));
      EXPECT_TRUE(at::equal(got.bank_state, state.bank_state));
      EXPECT_TRUE(at::equal(run.task.field(), state.field));
      EXPECT_EQ(got.bank_next.item<int64_t>(), state.bank_next.item<int64_t>());
      EXPECT_EQ(got.bank_filled.item<int64_t>(), state.bank_filled.item<int64_t>());
      EXPECT_EQ(run.task.history().item<int64_t>(), state.history.item<int64_t>());
      EXPECT_EQ(got.window.item<int64_t>(), i + 1);
    }
    run.trainer.run();
    const auto lines = compat_lines(dir);
    ASSERT_EQ(lines.size(), 8u);
    for (size_t i = 0; i < 4; ++i) {
      const auto near = [&](const char* key, const at::Tensor& value) {
        EXPECT_NEAR(lines[i].at(key).get<double>(), value.item<double>(), 1e-6) << key << " " << i;
      };
      near("train/lior", want[i].free.lior);
      near("train/loss", want[i].free.lior);
      near("train/lior_plus", want[i].nudged.lior);
      near("train/dL", want[i].update.dL);
      near("train/R_mean", want[i].free.resilience);
      near("train/spd_mean", want[i].free.speed);
      EXPECT_EQ(lines[i].at("train/E_geo").get<double>(), 0);
      EXPECT_NEAR(lines[i].at("train/E_struct").get<double>(), 1, 0.05);
      EXPECT_GE(lines[i].at("train/E_var").get<double>(), 0);
    }
  }
}

TEST(ContrastiveCompatTask, ResumesBitForBit) {
  const auto dir = fresh_folder("runs");
  SmallCompat straight(dir / "straight");
  straight.trainer.start_fresh();
  straight.trainer.run();
  {
    SmallCompat first(dir / "resumed", {"train.steps=5"});
    first.trainer.start_fresh();
    first.trainer.run();
  }
  SmallCompat second(dir / "resumed");
  const auto found = checkpoint::find_latest_valid(dir / "resumed" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 5);
  second.trainer.resume(found->dir, found->meta.info);
  second.trainer.run();
  const auto want = straight.tensors(), got = second.tensors();
  ASSERT_EQ(want.size(), got.size());
  int64_t ours = 0;
  for (const auto& [name, tensor] : want) {
    ours += name.find("compat.") != std::string::npos;
    EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  }
  EXPECT_EQ(ours, 8);
  EXPECT_EQ(straight.task.state().window.item<int64_t>(), 8);
  EXPECT_GT(straight.task.state().bank_filled.item<int64_t>(), 0);
  EXPECT_EQ(metrics_without_timing(dir / "straight"), metrics_without_timing(dir / "resumed"));
}

TEST(ContrastiveCompatTask, ASkippedStepMovesNothing) {
  SmallCompat run(fresh_folder("run"));
  run.trainer.start_fresh();
  run.turn();
  run.trainer.run_steps(2);
  // At the bounds, where clamping and wrapping would round.
  run.task.state().theta.fill_(3.1);
  const auto before = run.tensors();
  const at::Tensor skip = at::ones({}), go = at::zeros({});
  at::Tensor sums = at::zeros({static_cast<int64_t>(run.task.metric_names().size())}, at::kDouble);
  run.task.load_batch(3, 1);
  run.task.forward_backward(0, {}, sums);
  run.task.update_extra(skip);
  for (const auto& [name, tensor] : run.tensors()) {
    EXPECT_TRUE(name == "compat.changes" || at::equal(tensor, before.at(name))) << name;
  }
  EXPECT_GT(run.task.model().g().grad().abs().sum().item<double>(), 0);
  run.task.update_extra(at::full({}, std::nan("")));
  for (const auto& [name, tensor] : run.tensors()) {
    EXPECT_TRUE(name == "compat.changes" || at::equal(tensor, before.at(name))) << name;
  }
  run.task.update_extra(go);
  const auto after = run.tensors();
  for (const char* moved : {"field", "bank_coord", "bank_state", "bank_next", "bank_filled", "window"}) {
    bool found = false;
    for (const auto& [name, tensor] : after) {
      if (!name.ends_with(cat("compat.", moved))) continue;
      found = true;
      EXPECT_FALSE(at::equal(tensor, before.at(name))) << name;
    }
    EXPECT_TRUE(found) << moved;
  }
}

// A difference that is not finite ends in a gradient that is not, which the trainer skips.
TEST(ContrastiveCompatTask, ADifferenceThatIsNotFiniteIsSkipped) {
  const auto dir = fresh_folder("run");
  SmallCompat run(dir);
  run.trainer.start_fresh();
  run.trainer.run_steps(1);
  run.task.field().view({-1}).select(0, 0).fill_(std::nan(""));
  const auto before = run.tensors();
  run.trainer.run_steps(1);
  EXPECT_TRUE(at::equal(run.task.state().g, before.at("g")));
  EXPECT_TRUE(at::equal(run.task.state().bank_coord, before.at("compat.bank_coord")));
  EXPECT_EQ(run.task.state().window.item<int64_t>(), 1);
}

TEST(ContrastiveCompatTask, TwoRanksTrainTheSame) {
  for (const Overrides& more : std::vector<Overrides>{{}, {"contrastive.sdm_capacity=5"}}) {
    const auto dir = fresh_folder("runs");
    SmallCompat one(dir / "one", more);
    one.trainer.start_fresh();
    one.turn();
    one.trainer.run();
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
    std::vector<std::map<std::string, at::Tensor>> states(2);
    test::on_threads(2, [&](int rank) {
      SmallCompat run(dir / "two", more, comms[static_cast<size_t>(rank)]);
      run.trainer.start_fresh();
      run.turn();
      EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
      states[static_cast<size_t>(rank)] = run.tensors();
    });
    for (const auto& [name, want] : one.tensors()) {
      if (name.find("compat.") == std::string::npos && name != "g" && name != "theta") continue;
      EXPECT_TRUE(at::equal(states[0].at(name), states[1].at(name))) << name;
      const double error = (states[0].at(name).to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
      EXPECT_LE(error, 2e-5 * std::max(1.0, want.abs().max().item<double>())) << name;
    }
    const auto a = compat_lines(dir / "one"), b = compat_lines(dir / "two");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const std::string& name : one.task.metric_names()) {
        // Of nearly constant numbers: a quotient of rounding.
        if (name == "E_struct") continue;
        const double want = a[i].at("train/" + name).get<double>();
        EXPECT_NEAR(b[i].at("train/" + name).get<double>(), want, 2e-5 * std::max(1.0, std::abs(want))) << name;
      }
    }
  }
}

// The target does not occur in what is learned: all numbers but the nudge's are the same bits.
TEST(ContrastiveCompatTask, DifferenceDoesNotDependOnTheTarget) {
  std::vector<std::vector<double>> seen;
  std::vector<at::Tensor> metric;
  for (const char* scale : {"0", "0.1", "100"}) {
    const auto dir = fresh_folder(cat("scale_", scale));
    SmallCompat run(dir, {cat("contrastive.nudge_scale=", scale)});
    run.trainer.start_fresh();
    run.turn();
    run.trainer.run();
    std::vector<double> values;
    for (const auto& line : compat_lines(dir)) values.push_back(line.at("train/dL").get<double>());
    ASSERT_EQ(values.size(), 8u);
    EXPECT_GT(std::abs(values[0]), 1e-5);
    seen.push_back(values);
    metric.push_back(run.task.state().g.clone());
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  EXPECT_TRUE(at::equal(metric[0], metric[2]));
}

TEST(ContrastiveCompatTask, DefaultsAreTheOriginals) {
  const config::LoadedConfig loaded = config::load_config({}, {"task=contrastive", "contrastive.mode=compat"});
  const config::ContrastiveConfig& c = loaded.config.contrastive;
  EXPECT_EQ(c.coord_dim_n, 8);
  EXPECT_EQ(c.rotor_k, 6);
  EXPECT_EQ(c.sdm_capacity, 2048);
  EXPECT_EQ(c.spatial_rows, 8);
  EXPECT_EQ(c.spatial_cols, 8);
  EXPECT_EQ(c.field_dim, 16);
  EXPECT_EQ(c.beta_nudge, 1e-3);
  EXPECT_EQ(c.retrieval_beta, 5);
  EXPECT_EQ(c.eps, 1e-8);
  EXPECT_EQ(c.nudge_scale, 0.1);
  EXPECT_EQ(c.tbptt_window_steps, 64);
  EXPECT_EQ(c.dynamics_mode, config::FieldDynamics::dissipative);
  EXPECT_EQ(loaded.config.optim.name, config::OptimizerKind::sgd);
  EXPECT_EQ(loaded.config.optim.lr, 1e-2);
  EXPECT_EQ(loaded.config.optim.momentum, 0);
  EXPECT_NE(loaded.origin("contrastive.rotor_k").text().find("contrastive.mode compat"), std::string::npos);
  const config::Config sound = config::load_config({}, {"task=contrastive"}).config;
  EXPECT_EQ(sound.contrastive.coord_dim_n, 16);
  EXPECT_EQ(sound.contrastive.sdm_capacity, 0);
  EXPECT_EQ(sound.optim.name, config::OptimizerKind::adamw);
  EXPECT_EQ(sound.optim.beta2, 0.99);
}

TEST(ContrastiveCompatTask, RefusesWhatTheWindowDoesNotHave) {
  const auto dir = fresh_folder("run");
  const auto refuse = [&](const Overrides& more, const std::vector<std::string>& parts) {
    SCOPED_TRACE(more[0]);
    test::expect_error(ExitCode::usage, parts, [&] { testing::small_compat_config(dir, more); });
  };
  for (const char* other : {"optim.name=adamw", "optim.momentum=0.9", "optim.weight_decay=0.1", "optim.grad_clip=1",
                            "optim.groups=g=0:2", "optim.ema=0.99"}) {
    refuse({other}, {std::string(other).substr(0, std::string(other).find('=')), "set optim."});
  }
  refuse({"train.micro_batch_size=3"}, {"train.micro_batch_size", "whole batch"});
  refuse({"train.eval_every=5"}, {"train.eval_every", "nothing to evaluate", "set train.eval_every to 0"});
  refuse({"data.test=data"}, {"data.test", "has no effect"});
  refuse({"parallel.reduce=bf16"}, {"parallel.reduce", "fp32"});
  refuse({"contrastive.R_source=slots"}, {"contrastive.R_source", "set contrastive.R_source to constitutive"});
  refuse({"contrastive.dynamics_mode=symplectic"}, {"contrastive.dynamics_mode", "dissipative step"});
  refuse({"contrastive.tbptt_window_steps=1"}, {"contrastive.tbptt_window_steps", "2 or more"});
  refuse({"contrastive.sdm_capacity=0"}, {"contrastive.sdm_capacity", "1 or more"});
  for (const char* sound : {"rule=spsa",
                            "learned_slots=7",
                            "lowrank_r=2",
                            "hidden=3",
                            "kappa=3",
                            "gamma=1",
                            "cost_eps=0.5",
                            "margin=0.5",
                            "beta_share=0.5",
                            "beta_per_row=false",
                            "nudge_steps=3",
                            "momentum=0.5",
                            "symplectic_stiffness=1",
                            "symplectic_potential=zero",
                            "spsa_sigma=1",
                            "spsa_directions=2",
                            "cosine_every=3",
                            "progress_every=3",
                            "nudge_every_windows=2",
                            "metric_mode=block_rot",
                            "rotor_mode=derived",
                            "network=layered",
                            "layer_count=2",
                            "layer_width=8"}) {
    refuse({cat("contrastive.", sound)}, {"has no effect", "contrastive.mode", "set contrastive.mode to sound"});
  }
  refuse({"contrastive.nudge_mode=off", "contrastive.nudge_scale=1"}, {"contrastive.nudge_scale", "moves no query"});
  // What the original refuses, too.
  for (const char* wrong : {"coord_dim_n=0", "eps=0", "retrieval_beta=0", "beta_nudge=0", "tbptt_window_steps=0",
                            "nudge_scale=-1", "symplectic_dt=0", "symplectic_m_cog=1e-6", "symplectic_stiffness=-1"}) {
    refuse({cat("contrastive.", wrong)}, {"is out of range"});
  }
  refuse({"contrastive.coord_dim_n=1"}, {"contrastive.rotor_k", "set contrastive.rotor_k to 0"});
  // And in the sound mode.
  const auto sound = [&](const Overrides& more, const std::vector<std::string>& parts) {
    SCOPED_TRACE(more[0]);
    test::expect_error(ExitCode::usage, parts, [&] {
      Overrides all{"task=contrastive", "data.train=x", "train.steps=1"};
      all.insert(all.end(), more.begin(), more.end());
      config::validate(config::load_config({}, all));
    });
  };
  for (const char* key : {"commit=guide", "eps=1e-3", "nudge_mode=off", "nudge_scale=1",
                          "nudge_use_shifted_target=false", "retrieve_each_step=false"}) {
    sound({cat("contrastive.", key)}, {"has no effect", "contrastive.mode", "set contrastive.mode to compat"});
  }
  sound({"contrastive.symplectic_dt=9", "contrastive.dynamics_mode=symplectic"},
        {"contrastive.symplectic_dt", "2 sqrt(m / (k + 4 hbar^2 / m)) = 8.94", "or less"});
}

TEST(ContrastiveCompatTask, OldNamesAreAnswered) {
  const auto answer = [](const std::string& argument) {
    try {
      config::load_config({}, {"task=contrastive", argument});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [old, key] :
       std::map<std::string, std::string>{{"eta_update", "optim.lr"},
                                          {"max_epochs", "train.epochs"},
                                          {"max_windows", "train.steps"},
                                          {"enable_spsa_fallback", "contrastive.rule"},
                                          {"spsa_lr", "optim.lr"},
                                          {"frame_mode", "contrastive.lowrank_r"},
                                          {"lowrank_r", "contrastive.lowrank_r"},
                                          {"coord_dim_n", "contrastive.coord_dim_n"},
                                          {"retrieval_beta", "contrastive.retrieval_beta"},
                                          {"nudge_scale", "contrastive.nudge_scale"},
                                          {"symplectic_dt", "contrastive.symplectic_dt"},
                                          {"_m_cog", "contrastive.symplectic_m_cog"},
                                          {"_hbar_cog", "contrastive.symplectic_hbar_cog"},
                                          {"cudnn_deterministic", "runtime.deterministic"},
                                          {"allow_tf32", "precision.compute"},
                                          {"matmul_allow_tf32", "precision.compute"},
                                          {"log_every_windows", "train.log_every"},
                                          {"save_every_windows", "train.checkpoint_every"},
                                          {"run_dir", "run.dir"},
                                          {"run_name", "run.name"},
                                          {"telemetry_jsonl", "metrics.jsonl"},
                                          {"step_progress_every", "contrastive.progress_every"},
                                          {"timing_debug", "profiling.trace"},
                                          {"run_smoke_tests", "scripts/test"},
                                          {"trainer2_sdm_capacity", "contrastive.sdm_capacity"},
                                          {"trainer2_sdm_static_shapes", "always static"},
                                          {"bptt_window", "contrastive.tbptt_window_steps"},
                                          {"log_interval", "train.log_every"},
                                          {"save_interval", "train.checkpoint_every"},
                                          {"output_dir", "run.dir"}}) {
    const std::string sentence = answer(old + "=1");
    EXPECT_NE(sentence.find(cat("unknown key '", old, "'")), std::string::npos) << sentence;
    EXPECT_NE(sentence.find(key), std::string::npos) << old << ": " << sentence;
  }
  // A section before it does not matter.
  EXPECT_NE(answer("contrastive.eta_update=0.1").find("; it is called optim.lr here"), std::string::npos);
  EXPECT_NE(answer("train.save_every_windows=5").find("; it is called train.checkpoint_every here"), std::string::npos);
  EXPECT_EQ(answer("eta_update=0.1"),
            "command line argument 'eta_update=0.1': unknown key 'eta_update' = 0.1; it is called optim.lr here");
  // Names that are taken as they are.
  EXPECT_EQ(answer("use_cudagraphs=true"), "");
  EXPECT_EQ(answer("warmup_steps=4"), "");
  EXPECT_EQ(answer("static_shapes=true"), "");
  EXPECT_EQ(answer("capture_batch_size=64"), "");
  // The named keys exist, and no key has such a name by itself.
  for (const config::TaskSettings* task : config::all_task_settings()) {
    for (const config::ForeignName& foreign : task->foreign_names) {
      EXPECT_TRUE(*foreign.key == 0 || config::find_field(foreign.key) != nullptr) << foreign.key;
      EXPECT_TRUE(*foreign.key != 0 || *foreign.note != 0) << foreign.name;
      for (const std::string& key : config::keys()) EXPECT_FALSE(key.ends_with(cat(".", foreign.name))) << key;
    }
  }
}

TEST(ContrastiveCompatTask, TrainsByItsCommandAndIsNotEvaluated) {
  const auto dir = fresh_folder("run");
  commands::TrainOptions training;
  training.overrides = {"task=contrastive",
                        "contrastive.mode=compat",
                        "run.dir=" + dir.string(),
                        "data.train=" + testing::text_folder().string(),
                        "contrastive.context=16",
                        "contrastive.state_dim=8",
                        "contrastive.sdm_capacity=16",
                        "contrastive.tbptt_window_steps=4",
                        "train.global_batch_size=2",
                        "train.steps=2",
                        "runtime.device=cpu",
                        "runtime.threads=1"};
  commands::run_train(training);
  commands::EvalOptions evaluation;
  evaluation.checkpoint = (dir / "run").string();
  test::expect_error(ExitCode::usage, {"contrastive.mode=compat", "predicts nothing", "contrastive.mode=sound"},
                     [&] { commands::run_eval(evaluation); });
  training.overrides.push_back("data.train=" + test::source_dir() + "/data/digits");
  training.overrides.push_back("run.name=vectors");
  test::expect_error(ExitCode::data, {"folder of vectors", "hrm_train data text"},
                     [&] { commands::run_train(training); });
}

}  // namespace
}  // namespace hrm::tasks
