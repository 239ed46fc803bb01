#pragma once
// Settings of the loss and the optimizer: sections objective and optim.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"
#include "hrm/config/language_settings.h"

namespace hrm::config {

inline const ReadWhen kMuon{"optim.name", {"muon"}, "is not muon", "set optim.name to muon"};

enum class TokenLoss { stablemax, softmax };
template <>
struct EnumNames<TokenLoss> {
  static constexpr const char* kNames[] = {"stablemax", "softmax"};
};

enum class TokenLossPrecision { f64, f32 };
template <>
struct EnumNames<TokenLossPrecision> {
  static constexpr const char* kNames[] = {"f64", "f32"};
};

struct ObjectiveConfig {
  TokenLoss loss = TokenLoss::stablemax;
  TokenLossPrecision loss_precision = TokenLossPrecision::f64;
  double deep_supervision = 0;
  double halting = 0;
  double halting_target = 1;
  int64_t chunk = 2048;

  template <class F>
  static void describe(F&& f) {
    f("loss", &ObjectiveConfig::loss, Choice<TokenLoss>{}, "", "cross-entropy over tokens", Tasks{"puzzle"});
    f("loss_precision", &ObjectiveConfig::loss_precision, Choice<TokenLossPrecision>{}, "",
      "arithmetic of the stablemax loss; f64 is the official exact mode (softmax is always f32)", Tasks{"puzzle"},
      ReadWhen{"objective.loss", {"stablemax"}, "is always computed in f32", "set objective.loss to stablemax"});
    f("deep_supervision", &ObjectiveConfig::deep_supervision, RealRange{0, 1e3}, "",
      "lm.arch=hrm: weight of the cross-entropy of the answers of earlier cycles (mean over them)", Tasks{"language"});
    f("halting", &ObjectiveConfig::halting, RealRange{0, 1e3}, "",
      "lm.arch=hrm: weight of the squared distance of the expected number of halts from halting_target; 0 = the model "
      "has no probability of halting",
      Tasks{"language"});
    f("halting_target", &ObjectiveConfig::halting_target, RealRange{0, 1e3}, "", "see halting", Tasks{"language"},
      kReasoningCore,
      ReadWhen{.key = "objective.halting",
               .values = {"0"},
               .why = "gives the model no probability of halting",
               .way_out = "set objective.halting to 0.01",
               .unless = true});
    f("chunk", &ObjectiveConfig::chunk, IntRange{1, 1 << 24}, "tokens",
      "task=language and polychromic: tokens whose logits exist at one time", Tasks{"language polychromic"},
      Resume::free);
  }
};

enum class OptimizerKind { adam_atan2, adamw, lion, sgd, muon };
template <>
struct EnumNames<OptimizerKind> {
  static constexpr const char* kNames[] = {"adam_atan2", "adamw", "lion", "sgd", "muon"};
};

enum class MuonScale { original, match_rms_adamw };
template <>
struct EnumNames<MuonScale> {
  static constexpr const char* kNames[] = {"original", "match_rms_adamw"};
};

enum class MuonPrecision { bf16, fp32 };
template <>
struct EnumNames<MuonPrecision> {
  static constexpr const char* kNames[] = {"bf16", "fp32"};
};

enum class Schedule { cosine, constant, linear, wsd };
template <>
struct EnumNames<Schedule> {
  static constexpr const char* kNames[] = {"cosine", "constant", "linear", "wsd"};
};

enum class WsdShape { one_minus_sqrt, linear, cosine };
template <>
struct EnumNames<WsdShape> {
  static constexpr const char* kNames[] = {"1-sqrt", "linear", "cosine"};
};

struct OptimConfig {
  OptimizerKind name = OptimizerKind::adam_atan2;
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.95;
  double weight_decay = 0.1;
  std::string groups;
  MuonScale muon_scale = MuonScale::original;
  MuonPrecision muon_precision = MuonPrecision::bf16;
  double adamw_lr = 3e-4;
  double puzzle_emb_lr = 1e-2;
  double puzzle_emb_weight_decay = 0.1;
  double grad_clip = 0;
  Schedule schedule = Schedule::cosine;
  int64_t warmup_steps = 2000;
  int64_t wsd_stable_steps = -1;
  int64_t wsd_decay_steps = -1;
  WsdShape wsd_shape = WsdShape::one_minus_sqrt;
  double min_ratio = 1.0;
  double ema = 0;

  template <class F>
  static void describe(F&& f) {
    f("name", &OptimConfig::name, Choice<OptimizerKind>{}, "",
      "optimizer of all dense parameters; sgd = with Nesterov's momentum and coupled weight decay; muon = of matrices, "
      "beside adamw for vectors, embeddings and output heads",
      Resume::fixed);
    f("lr", &OptimConfig::lr, RealRange{0, 1e3}, "", "learning rate");
    f("beta1", &OptimConfig::beta1, RealRange{0, 1, false, true}, "",
      "decay of the first moment; lion: its share in the blend whose sign is taken",
      ReadWhen{.key = "optim.name",
               .values = {"sgd"},
               .why = "has no moments with a decay of their own",
               .way_out = "set optim.momentum",
               .unless = true});
    f("beta2", &OptimConfig::beta2, RealRange{0, 1, false, true}, "",
      "decay of the second moment; lion: of its only one",
      ReadWhen{.key = "optim.name",
               .values = {"sgd"},
               .why = "has no moments with a decay of their own",
               .way_out = "set optim.momentum",
               .unless = true});
    f("eps", &OptimConfig::eps, RealRange{0, 1}, "", "epsilon (adamw, also beside muon; no other has one)",
      ReadWhen{"optim.name", {"adamw", "muon"}, "has no epsilon", "set optim.name to adamw"});
    f("momentum", &OptimConfig::momentum, RealRange{0, 1, false, true}, "", "momentum of muon and sgd",
      ReadWhen{"optim.name", {"sgd", "muon"}, "has no momentum", "set optim.name to sgd or muon"});
    f("weight_decay", &OptimConfig::weight_decay, RealRange{0, 1e3}, "", "decoupled weight decay (sgd: coupled)");
    f("groups", &OptimConfig::groups, AnyText{}, "",
      "parameters with a weight decay, learning rate or optimizer of their own, by name: pattern=decay, "
      "pattern=decay:factor of the rate, or pattern=decay:factor:adamw (beside muon), with commas between; the first "
      "pattern that matches counts, e.g. *.bias=0,*embed*=0:0.5");
    f("muon_scale", &OptimConfig::muon_scale, Choice<MuonScale>{}, "",
      "size of muon's update: original = sqrt(max(1, rows / columns)); match_rms_adamw = 0.2 sqrt(max(rows, columns)), "
      "which takes adamw's lr and weight_decay",
      kMuon);
    f("muon_precision", &OptimConfig::muon_precision, Choice<MuonPrecision>{}, "",
      "arithmetic of the matrix products of muon's iteration", kMuon);
    f("adamw_lr", &OptimConfig::adamw_lr, RealRange{0, 1e3}, "",
      "learning rate of what adamw updates beside muon; follows the same schedule", kMuon);
    f("puzzle_emb_lr", &OptimConfig::puzzle_emb_lr, RealRange{0, 1e3}, "",
      "learning rate of the puzzle embeddings (sparse SignSGD)", Tasks{"puzzle"},
      ReadWhen{.key = "model.puzzle_emb_ndim",
               .values = {"0"},
               .why = "means no puzzle embedding",
               .way_out = "set model.puzzle_emb_ndim to -1",
               .unless = true});
    f("puzzle_emb_weight_decay", &OptimConfig::puzzle_emb_weight_decay, RealRange{0, 1e3}, "",
      "decoupled weight decay of the puzzle embeddings", Tasks{"puzzle"},
      ReadWhen{.key = "model.puzzle_emb_ndim",
               .values = {"0"},
               .why = "means no puzzle embedding",
               .way_out = "set model.puzzle_emb_ndim to -1",
               .unless = true});
    f("grad_clip", &OptimConfig::grad_clip, RealRange{0, 1e9}, "", "largest global gradient norm; 0 = no clipping");
    f("schedule", &OptimConfig::schedule, Choice<Schedule>{}, "",
      "learning rate after the warm-up; wsd = flat, then a decay (wsd_*)");
    f("warmup_steps", &OptimConfig::warmup_steps, IntRange{0}, "steps", "steps of linear warm-up");
    f("wsd_stable_steps", &OptimConfig::wsd_stable_steps, IntRange{-1}, "steps",
      "flat steps of wsd after the warm-up; -1 = what the decay leaves, or half of the rest");
    f("wsd_decay_steps", &OptimConfig::wsd_decay_steps, IntRange{-1}, "steps", "steps of wsd's decay; -1 = the rest");
    f("wsd_shape", &OptimConfig::wsd_shape, Choice<WsdShape>{}, "", "how wsd decays");
    f("min_ratio", &OptimConfig::min_ratio, RealRange{0, 1}, "",
      "the learning rate ends at this fraction of lr (cosine, linear, wsd)",
      ReadWhen{.key = "optim.schedule",
               .values = {"constant"},
               .why = "keeps the rate",
               .way_out = "set optim.schedule to cosine",
               .unless = true});
    f("ema", &OptimConfig::ema, RealRange{0, 1, false, true}, "",
      "decay of the moving average of the weights; 0 = none. Evaluation uses the average, both are saved");
  }
};

}  // namespace hrm::config
