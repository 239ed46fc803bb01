#pragma once
// Settings of task=contrastive: section contrastive. Names follow the trainer "Trainer2" of
// https://github.com/JewJitsu11B/Liorhybrid where the meaning is the same.

#include <cstdint>
#include <string>

#include "hrm/config/field.h"

namespace hrm::config {

enum class ContrastiveMode { sound, compat };
template <>
struct EnumNames<ContrastiveMode> {
  static constexpr const char* kNames[] = {"sound", "compat"};
};

enum class OriginalCommit { main, guide };
template <>
struct EnumNames<OriginalCommit> {
  static constexpr const char* kNames[] = {"main", "guide"};
};

enum class NudgeMode { target_embedding, off, template_ };
template <>
struct EnumNames<NudgeMode> {
  static constexpr const char* kNames[] = {"target_embedding", "off", "template"};
};

enum class ContrastiveRuleName { symmetric, one_sided, spsa, scalar, readout, backprop, feedforward };
template <>
struct EnumNames<ContrastiveRuleName> {
  static constexpr const char* kNames[] = {"symmetric", "one_sided", "spsa",       "scalar",
                                           "readout",   "backprop",  "feedforward"};
};

enum class ContrastiveNetwork { memory, layered };
template <>
struct EnumNames<ContrastiveNetwork> {
  static constexpr const char* kNames[] = {"memory", "layered"};
};

enum class ResilienceSource { slots, constitutive, curvature };
template <>
struct EnumNames<ResilienceSource> {
  static constexpr const char* kNames[] = {"slots", "constitutive", "curvature"};
};

enum class MetricMode { diag_rot, block_rot };
template <>
struct EnumNames<MetricMode> {
  static constexpr const char* kNames[] = {"diag_rot", "block_rot"};
};

enum class RotorMode { stateful, derived, off };
template <>
struct EnumNames<RotorMode> {
  static constexpr const char* kNames[] = {"stateful", "derived", "off"};
};

enum class BankDtype { automatic, float32, float16 };
template <>
struct EnumNames<BankDtype> {
  static constexpr const char* kNames[] = {"auto", "float32", "float16"};
};

enum class FieldDynamics { frozen, symplectic, dissipative };
template <>
struct EnumNames<FieldDynamics> {
  static constexpr const char* kNames[] = {"frozen", "symplectic", "dissipative"};
};

enum class FieldPotential { zero, harmonic, gaussian_well };
template <>
struct EnumNames<FieldPotential> {
  static constexpr const char* kNames[] = {"zero", "harmonic", "gaussian_well"};
};

inline const ReadWhen kSound{"contrastive.mode",
                             {"sound"},
                             "has the original's window, which does not read it",
                             "set contrastive.mode to sound"};
inline const ReadWhen kCompat{
    "contrastive.mode", {"compat"}, "does not run the original's window", "set contrastive.mode to compat"};
inline const ReadWhen kMemory{"contrastive.network", {"memory"}, "has no memory", "set contrastive.network to memory"};
inline const ReadWhen kLayered{
    "contrastive.network", {"layered"}, "has no hidden layers", "set contrastive.network to layered"};
inline const ReadWhen kRelaxed{.key = "contrastive.rule",
                               .values = {"feedforward"},
                               .why = "relaxes nothing",
                               .way_out = "set contrastive.rule to symmetric",
                               .unless = true};
inline const ReadWhen kNudged{"contrastive.rule",
                              {"symmetric", "one_sided", "scalar"},
                              "has no nudged phase",
                              "set contrastive.rule to symmetric"};
inline const ReadWhen kRowsNudged{
    "contrastive.rule", {"symmetric", "one_sided"}, "has no nudge for each row", "set contrastive.rule to symmetric"};
inline const ReadWhen kRotor{.key = "contrastive.rotor_mode",
                             .values = {"off"},
                             .why = "has no angles",
                             .way_out = "set contrastive.rotor_mode to stateful",
                             .unless = true};
inline const ReadWhen kSpsa{"contrastive.rule", {"spsa"}, "perturbs nothing", "set contrastive.rule to spsa"};
inline const ReadWhen kMovingField{.key = "contrastive.dynamics_mode",
                                   .values = {"frozen"},
                                   .why = "does not move the field",
                                   .way_out = "set contrastive.dynamics_mode to symplectic",
                                   .unless = true};
inline const ReadWhen kSymplectic{
    "contrastive.dynamics_mode", {"symplectic"}, "has no potential", "set contrastive.dynamics_mode to symplectic"};

// Largest beta_share with beta_per_row: r = exp(share r) has a solution up to exp(-1) (hrm/objectives/contrastive.h).
inline constexpr double kMostShareOfRows = 0.36;

struct ContrastiveConfig {
  ContrastiveMode mode = ContrastiveMode::sound;
  ContrastiveRuleName rule = ContrastiveRuleName::symmetric;
  ContrastiveNetwork network = ContrastiveNetwork::memory;
  int64_t layer_count = 1;
  int64_t layer_width = 256;
  int64_t coord_dim_n = 16;
  int64_t learned_slots = 128;
  int64_t state_dim = 32;
  MetricMode metric_mode = MetricMode::diag_rot;
  RotorMode rotor_mode = RotorMode::stateful;
  int64_t rotor_k = 16;
  int64_t lowrank_r = 0;
  int64_t hidden = 0;
  int64_t context = 12;
  double retrieval_beta = 5;
  double kappa = 20;
  double gamma = 0.1;
  double cost_eps = 0.1;
  double margin = 0.95;
  double beta_nudge = 0.1;
  double beta_share = 0.2;
  bool beta_per_row = true;
  int64_t tbptt_window_steps = 64;
  int64_t nudge_steps = 0;
  int64_t nudge_every_windows = 1;
  double momentum = 0;
  int64_t sdm_capacity = 0;
  BankDtype bank_dtype = BankDtype::automatic;
  ResilienceSource R_source = ResilienceSource::slots;
  int64_t spatial_rows = 4;
  int64_t spatial_cols = 4;
  int64_t field_dim = 8;
  FieldDynamics dynamics_mode = FieldDynamics::frozen;
  double symplectic_dt = 0.005;
  double symplectic_m_cog = 1;
  double symplectic_hbar_cog = 0.1;
  double symplectic_stiffness = 0.01;
  FieldPotential symplectic_potential = FieldPotential::harmonic;
  double spsa_sigma = 0.01;
  int64_t spsa_directions = 4;
  int64_t cosine_every = 0;
  int64_t progress_every = 0;
  OriginalCommit commit = OriginalCommit::main;
  double eps = 1e-8;
  NudgeMode nudge_mode = NudgeMode::target_embedding;
  double nudge_scale = 0.1;
  bool nudge_use_shifted_target = true;
  bool retrieve_each_step = true;

  template <class F>
  static void describe(F&& f) {
    using C = ContrastiveConfig;
    f("mode", &C::mode, Choice<ContrastiveMode>{}, "",
      "what is trained: sound = an energy, whose gradient the phases give; compat = the window of Trainer2 of "
      "Liorhybrid, number for number, on packed text. It does not learn and is there for comparison");
    f("rule", &C::rule, Choice<ContrastiveRuleName>{}, "",
      "how gradients are made: symmetric = difference of the phases nudged by +beta and -beta; one_sided = of the "
      "nudged and the free phase; spsa = random perturbations; scalar = Trainer2's, which moves metric and angles by "
      "one number and learns no more than readout; readout = train only the readout; backprop = autograd through the "
      "free phase; feedforward = autograd through a layered network without feedback",
      Resume::free, kSound);
    f("network", &C::network, Choice<ContrastiveNetwork>{}, "",
      "network that is trained: memory = a geometric memory; layered = hidden layers with symmetric weights", kSound,
      Resume::architecture);
    f("layer_count", &C::layer_count, IntRange{1, 64}, "layers", "hidden layers of the layered network", kSound,
      kLayered, Resume::architecture);
    f("layer_width", &C::layer_width, IntRange{1, 65536}, "units", "units of each hidden layer", kSound, kLayered,
      Resume::architecture);
    f("coord_dim_n", &C::coord_dim_n, IntRange{1, 64}, "", "dimensions n that the chart has", kMemory);
    f("learned_slots", &C::learned_slots, IntRange{1, 1 << 20}, "slots", "slots of the memory that are learned", kSound,
      kMemory);
    f("state_dim", &C::state_dim, IntRange{1, 4096}, "",
      "width d that values and retrieved outputs have; in mode compat also that of the embedding", kMemory);
    f("metric_mode", &C::metric_mode, Choice<MetricMode>{}, "",
      "form that the metric has in the rotated frame: diag_rot = diagonal; block_rot = positive definite blocks of two "
      "coordinates",
      kSound, kMemory, Resume::architecture);
    f("rotor_mode", &C::rotor_mode, Choice<RotorMode>{}, "",
      "where the rotor's angles come from: stateful = trained; derived = towards the principal axes of the keys, "
      "renewed after each step; off = no rotor",
      kSound, kMemory, Resume::architecture);
    f("rotor_k", &C::rotor_k, IntRange{0, 4096}, "angles", "angles of the rotor", kMemory, kRotor);
    f("lowrank_r", &C::lowrank_r, IntRange{0, 64}, "directions",
      "directions of a learned low-rank part of the metric; 0 = none", kSound, kMemory);
    f("hidden", &C::hidden, IntRange{0, 65536}, "units", "hidden units between input and chart; 0 = none", kSound,
      kMemory);
    f("context", &C::context, IntRange{1, 4096}, "tokens",
      "tokens before the predicted one that a sample of text reads; in mode compat the tokens of a row");
    f("retrieval_beta", &C::retrieval_beta, RealRange{0, 1e6, true}, "",
      "multiplies the logits of retrieval; larger values choose fewer slots", kMemory);
    f("kappa", &C::kappa, RealRange{0, 1e6, true}, "", "ties the chart state to its input with this stiffness", kSound,
      kMemory);
    f("gamma", &C::gamma, RealRange{0, 1e6, true}, "", "ties the output to the retrieved values with this stiffness",
      kSound, kMemory);
    f("cost_eps", &C::cost_eps, RealRange{1e-12, 1e3}, "",
      "is added to squared distances, so that the cost has no cusp at a slot", kSound, kMemory);
    f("margin", &C::margin, RealRange{0, 1, true, true}, "",
      "bounds the condition for one equilibrium; the weights are projected to it after each step", kSound, kRelaxed);
    f("beta_nudge", &C::beta_nudge, RealRange{0, 1e3, true}, "",
      "largest strength that the nudge may have; in mode compat it divides the difference of the phases", kNudged);
    f("beta_share", &C::beta_share, RealRange{0, 1, true}, "",
      "limits the nudge to this share of the strength up to which the negative phase is stable", kSound, kNudged);
    f("beta_per_row", &C::beta_per_row, Flag{}, "",
      "nudge a row harder the nearer it is to its target, up to beta_nudge; needs a beta_share of at most 0.36", kSound,
      kMemory, kRowsNudged);
    f("tbptt_window_steps", &C::tbptt_window_steps, IntRange{1, 65536}, "steps",
      "steps of the free phase; in mode compat of each phase", kRelaxed);
    f("nudge_steps", &C::nudge_steps, IntRange{0, 65536}, "steps",
      "relaxation steps of a nudged phase; 0 = as many as the free phase", kSound, kNudged);
    f("nudge_every_windows", &C::nudge_every_windows, IntRange{1, 1 << 20}, "steps",
      "nudge in one of so many steps; the others train only the readout, which needs plain SGD", kSound, kMemory,
      kNudged);
    f("momentum", &C::momentum, RealRange{0, 1, false, true}, "", "damped momentum that the relaxation uses; 0 = none",
      kSound, kRelaxed);
    f("sdm_capacity", &C::sdm_capacity, IntRange{0, 1 << 20}, "slots",
      "capacity of the ring of episodic slots behind the learned ones; 0 = no ring. In mode compat the whole memory",
      kMemory);
    f("bank_dtype", &C::bank_dtype, Choice<BankDtype>{}, "",
      "dtype that values have in a window; auto = float16 on a GPU, float32 on a CPU", kMemory, Resume::free);
    f("R_source", &C::R_source, Choice<ResilienceSource>{}, "",
      "what the resilience of a slot is taken from: slots = its cell of the field; constitutive = the whole field; "
      "curvature = how the whole field bends from cell to cell",
      kMemory);
    f("spatial_rows", &C::spatial_rows, IntRange{1, 4096}, "cells", "rows of the field", kMemory);
    f("spatial_cols", &C::spatial_cols, IntRange{1, 4096}, "cells", "columns of the field", kMemory);
    f("field_dim", &C::field_dim, IntRange{1, 65536}, "",
      "complex components that each cell of the field has; in mode compat D of D x D matrices", kMemory);
    f("dynamics_mode", &C::dynamics_mode, Choice<FieldDynamics>{}, "",
      "how the field is moved between windows: frozen = only by learning; symplectic = velocity Verlet; dissipative = "
      "the dissipative step",
      kMemory, Resume::free);
    f("symplectic_dt", &C::symplectic_dt, RealRange{0, 1e3, true}, "", "time step that the field uses", kMemory,
      kMovingField);
    f("symplectic_m_cog", &C::symplectic_m_cog, RealRange{1e-6, 1e6, true}, "", "mass that the field has", kMemory,
      kMovingField);
    f("symplectic_hbar_cog", &C::symplectic_hbar_cog, RealRange{0, 1e6, true}, "",
      "multiplies the field's Laplacian by hbar^2 / 2m", kMemory, kMovingField);
    f("symplectic_stiffness", &C::symplectic_stiffness, RealRange{0, 1e6}, "",
      "pulls the field to its equilibrium with this stiffness", kSound, kMemory, kSymplectic);
    f("symplectic_potential", &C::symplectic_potential, Choice<FieldPotential>{}, "",
      "which potential is used to pull the field to its equilibrium", kSound, kMemory, kSymplectic);
    f("spsa_sigma", &C::spsa_sigma, RealRange{0, 1e3, true}, "", "size that perturbations have", kSound, kSpsa);
    f("spsa_directions", &C::spsa_directions, IntRange{1, 1024}, "directions",
      "random directions that a gradient averages over", kSound, kSpsa);
    f("cosine_every", &C::cosine_every, IntRange{0}, "steps",
      "log the cosine with the gradient of backprop on one batch in step 1 and every so many steps; 0 = never",
      Resume::free, kSound, kNudged);
    f("progress_every", &C::progress_every, IntRange{0}, "steps",
      "every so many steps log how the free phase settles: loss, action and residual over its steps; 0 = never",
      Resume::free, kSound, kMemory);
    f("commit", &C::commit, Choice<OriginalCommit>{}, "",
      "which commit of Liorhybrid is followed: main = 9450d00, whose field is periodic; guide = 2b922e8, whose field "
      "is zero outside its edges",
      kCompat);
    f("eps", &C::eps, RealRange{0, 1, true}, "", "is added under the square roots of costs and speeds", kCompat);
    f("nudge_mode", &C::nudge_mode, Choice<NudgeMode>{}, "",
      "what the query is nudged to: target_embedding = the mean embedding of the target tokens; off = nothing; "
      "template = a template of the batch. Text has no templates, so that template is off",
      kCompat);
    f("nudge_scale", &C::nudge_scale, RealRange{0, 1e6}, "", "share of the way to the target that the query is moved",
      kCompat,
      ReadWhen{"contrastive.nudge_mode",
               {"target_embedding"},
               "moves no query",
               "set contrastive.nudge_mode to target_embedding"});
    f("nudge_use_shifted_target", &C::nudge_use_shifted_target, Flag{}, "",
      "the target of a token is the next one of its row, that of the last token itself; false = each token itself",
      kCompat,
      ReadWhen{"contrastive.nudge_mode",
               {"target_embedding"},
               "has no target",
               "set contrastive.nudge_mode to target_embedding"});
    f("retrieve_each_step", &C::retrieve_each_step, Flag{}, "",
      "retrieve in every step as the original does, although nothing reads the result; false = in the last step alone. "
      "All other numbers are the same",
      Resume::free, kCompat);
  }
};

}  // namespace hrm::config
