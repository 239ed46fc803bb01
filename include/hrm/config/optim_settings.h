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
    f("loss", &ObjectiveConfig::loss, Choice<TokenLoss>{}, "", "which cross-entropy over tokens is used",
      Tasks{"puzzle"});
    f("loss_precision", &ObjectiveConfig::loss_precision, Choice<TokenLossPrecision>{}, "",
      "arithmetic of the stablemax loss: f64 = as the official code computes it, f32 = faster. Softmax always uses f32",
      Tasks{"puzzle"},
      ReadWhen{"objective.loss", {"stablemax"}, "is always computed in f32", "set objective.loss to stablemax"});
    f("deep_supervision", &ObjectiveConfig::deep_supervision, RealRange{0, 1e3}, "",
      "weight of the mean cross-entropy that earlier cycles of an HRM language model would give", Tasks{"language"});
    f("halting", &ObjectiveConfig::halting, RealRange{0, 1e3}, "",
      "weight of the squared difference between the expected number of halts and halting_target; 0 = the model has no "
      "halting probability",
      Tasks{"language"});
    f("halting_target", &ObjectiveConfig::halting_target, RealRange{0, 1e3}, "",
      "expected number of halts that objective.halting asks for", Tasks{"language"}, kReasoningCore,
      ReadWhen{.key = "objective.halting",
               .values = {"0"},
               .why = "gives the model no probability of halting",
               .way_out = "set objective.halting to 0.01",
               .unless = true});
    f("chunk", &ObjectiveConfig::chunk, IntRange{1, 1 << 24}, "tokens",
      "number of tokens whose logits exist at the same time", Tasks{"language polychromic"}, Resume::free);
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
      "optimizer of all dense parameters. sgd uses Nesterov momentum and coupled weight decay; muon updates matrices, "
      "with adamw for vectors, embeddings and output heads",
      Resume::fixed);
    f("lr", &OptimConfig::lr, RealRange{0, 1e3}, "", "learning rate after warm-up, which the schedule scales");
    f("beta1", &OptimConfig::beta1, RealRange{0, 1, false, true}, "",
      "decay of the first moment; for lion, its share in the blend whose sign is used",
      ReadWhen{.key = "optim.name",
               .values = {"sgd"},
               .why = "has no moments with a decay of their own",
               .way_out = "set optim.momentum",
               .unless = true});
    f("beta2", &OptimConfig::beta2, RealRange{0, 1, false, true}, "",
      "decay of the second moment; for lion, it is the decay of the only moment",
      ReadWhen{.key = "optim.name",
               .values = {"sgd"},
               .why = "has no moments with a decay of their own",
               .way_out = "set optim.momentum",
               .unless = true});
    f("eps", &OptimConfig::eps, RealRange{0, 1}, "", "epsilon that adamw adds to the denominator, also beside muon",
      ReadWhen{"optim.name", {"adamw", "muon"}, "has no epsilon", "set optim.name to adamw"});
    f("momentum", &OptimConfig::momentum, RealRange{0, 1, false, true}, "", "momentum that muon and sgd use",
      ReadWhen{"optim.name", {"sgd", "muon"}, "has no momentum", "set optim.name to sgd or muon"});
    f("weight_decay", &OptimConfig::weight_decay, RealRange{0, 1e3}, "",
      "decoupled weight decay, which sgd couples to the gradient; 0 = do not decay");
    f("groups", &OptimConfig::groups, AnyText{}, "",
      "set weight decay, rate factor or optimizer by parameter name, as PATTERN=DECAY, PATTERN=DECAY:FACTOR or "
      "PATTERN=DECAY:FACTOR:adamw, separated by commas, e.g. *.bias=0,*embed*=0:0.5. The first matching pattern "
      "counts");
    f("muon_scale", &OptimConfig::muon_scale, Choice<MuonScale>{}, "",
      "scales muon's update: original = sqrt(max(1, rows / columns)); match_rms_adamw = 0.2 sqrt(max(rows, columns)), "
      "which suits adamw's lr and weight_decay",
      kMuon);
    f("muon_precision", &OptimConfig::muon_precision, Choice<MuonPrecision>{}, "",
      "arithmetic that muon's matrix products use", kMuon);
    f("adamw_lr", &OptimConfig::adamw_lr, RealRange{0, 1e3}, "",
      "learning rate of the parameters that adamw updates beside muon; it follows the same schedule", kMuon);
    f("puzzle_emb_lr", &OptimConfig::puzzle_emb_lr, RealRange{0, 1e3}, "",
      "learning rate of the puzzle embeddings, which sparse SignSGD updates", Tasks{"puzzle"},
      ReadWhen{.key = "model.puzzle_emb_ndim",
               .values = {"0"},
               .why = "means no puzzle embedding",
               .way_out = "set model.puzzle_emb_ndim to -1",
               .unless = true});
    f("puzzle_emb_weight_decay", &OptimConfig::puzzle_emb_weight_decay, RealRange{0, 1e3}, "",
      "decoupled weight decay that is applied to the puzzle embeddings", Tasks{"puzzle"},
      ReadWhen{.key = "model.puzzle_emb_ndim",
               .values = {"0"},
               .why = "means no puzzle embedding",
               .way_out = "set model.puzzle_emb_ndim to -1",
               .unless = true});
    f("grad_clip", &OptimConfig::grad_clip, RealRange{0, 1e9}, "",
      "clip the global gradient norm to this value; 0 = no clipping");
    f("schedule", &OptimConfig::schedule, Choice<Schedule>{}, "",
      "how the learning rate changes after warm-up; wsd = stays flat, then decays (wsd_*)");
    f("warmup_steps", &OptimConfig::warmup_steps, IntRange{0}, "steps", "length of the linear warm-up");
    f("wsd_stable_steps", &OptimConfig::wsd_stable_steps, IntRange{-1}, "steps",
      "flat steps of wsd after warm-up; -1 = what the decay leaves, or half of the rest");
    f("wsd_decay_steps", &OptimConfig::wsd_decay_steps, IntRange{-1}, "steps",
      "length of wsd's decay; -1 = the rest of the run");
    f("wsd_shape", &OptimConfig::wsd_shape, Choice<WsdShape>{}, "", "curve that wsd's decay follows");
    f("min_ratio", &OptimConfig::min_ratio, RealRange{0, 1}, "",
      "the learning rate ends at this fraction of lr (cosine, linear, wsd)",
      ReadWhen{.key = "optim.schedule",
               .values = {"constant"},
               .why = "keeps the rate",
               .way_out = "set optim.schedule to cosine",
               .unless = true});
    f("ema", &OptimConfig::ema, RealRange{0, 1, false, true}, "",
      "decay of the exponential moving average of the weights; 0 = keep none. Evaluation uses the average, and "
      "checkpoints hold both");
  }
};

}  // namespace hrm::config
