#pragma once
// The two-phase window of "Trainer2" (https://github.com/JewJitsu11B/Liorhybrid), number for number, with an embedding
// table as its encoder and without dropout.
//
// A window runs `steps` steps free, restores the field, and runs as many with the query moved towards the target. The
// difference dL of the two mean LIoR actions, one number, then scales an update of metric and angles. dL does not
// depend on the target: with v = Q q in the free phase and v = q in the nudged one,
//   dL = R mean_b [ |q_b|_g - |Q q_b|_g ],  |v|_g = sqrt(sum_i g_i v_i^2 + eps)
// but for the field's history in the first window. The rule therefore does not learn a task; it is here for comparison.
//
// Within a window the encoder's results are constant. Only the field, and with it the resilience R, changes from step
// to step. So what depends on neither is computed once.
//
// All tensors are float32 (float64 for tests) on one device. Nothing waits for the device, and counters are device
// tensors: a window with its update can be captured. No function uses autograd.
//
// Shapes: B rows, T tokens, n axes, k angles, d width, M slots, S steps.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace hrm::objectives {

// The commit of the original that is followed.
enum class CompatCommit {
  main,   // 9450d00: periodic Laplacian. With n = D, the nudged phase adds a source of ones to the field
  guide,  // 2b922e8: the field is zero outside its edges
};

struct CompatField {
  double dt = 0.005;
  double hbar = 0.1;
  double mass = 1;
  double memory_gain = 0.025;  // lambda_F alpha
  int64_t history_capacity = 20;
};

struct CompatSettings {
  CompatCommit commit = CompatCommit::main;
  int64_t steps = 64;  // S, at least 2
  double retrieval_beta = 5;
  double eps = 1e-8;
  double beta_nudge = 1e-3;  // divides dL; the size of the nudge is nudge_scale
  double nudge_scale = 0.1;
  bool nudge = true;           // false: nudge_mode off
  bool shifted_target = true;  // nudge_use_shifted_target: the target of a token is the next one
  // Every step retrieves, as in the original, though nothing reads the result: all steps of a phase in two products,
  // since only the resilience changes from step to step. false: the last step alone.
  bool retrieve_each_step = true;
  CompatField field = {};
};

struct CompatSizes {
  int64_t axes = 8;                                  // n
  int64_t angles = 6;                                // k
  int64_t width = 0;                                 // d
  int64_t slots = 2048;                              // M
  int64_t field_x = 8, field_y = 8, field_dim = 16;  // Nx, Ny, D
};

// What a window reads and writes; addresses are stable.
struct CompatState {
  at::Tensor field;       // (Nx, Ny, D, D, 2), real and imaginary part
  at::Tensor g;           // (n)
  at::Tensor theta;       // (k)
  at::Tensor bank_coord;  // (M, n)
  at::Tensor bank_state;  // (M, d), float32, bfloat16 or float16
  // 0-dim int64.
  at::Tensor bank_next;    // the slot that is written next
  at::Tensor bank_filled;  // slots that were written, at most M
  at::Tensor history;      // past states of the field, at most history_capacity
  at::Tensor window;       // windows so far
};

// g = 1, theta = 0, an empty bank, and a field (a + i b) / sqrt(2) with a and b from N(0, 1), a drawn first, on the
// CPU.
CompatState make_compat_state(const CompatSizes& sizes, at::Device device, std::optional<at::Generator> generator = {},
                              at::ScalarType bank_dtype = at::kFloat);

// A batch behind the encoder.
struct CompatBatch {
  at::Tensor states;  // (B, T, d), in the bank's dtype
  at::Tensor coords;  // (B, T, n), the first n columns, or all and zeros
  at::Tensor query;   // (B, n), q: mean of coords over the mask
  at::Tensor state;   // (B, d), s: mean of states over the mask
  at::Tensor target;  // (B, n), mean of the coordinates of the target tokens over the mask
};

// Means over a window, and what belongs to single steps. Metrics are 0-dim.
struct CompatPhase {
  at::Tensor lior, resilience, speed;
  at::Tensor velocity;     // (B, n), v: the same in all steps
  at::Tensor retrieved;    // (B, d), y of the last step
  at::Tensor resiliences;  // (S), R of each step
  at::Tensor liors;        // (S), batch mean of each step
};

struct CompatUpdate {
  at::Tensor dL;          // 0-dim, LIoR of the nudged phase less that of the free one
  at::Tensor accepted;    // 0-dim bool: dL is finite
  at::Tensor g_grad;      // (n): the update is g -= lr * g_grad; zero where rejected
  at::Tensor theta_grad;  // (k)
};

struct CompatResult {
  CompatPhase free, nudged;
  at::Tensor nudge;  // (B, n)
  CompatUpdate update;
};

class CompatWindow {
 public:
  // Keeps the state's tensors. Throws c10::Error that names the shapes where they do not fit each other.
  CompatWindow(const CompatSettings& settings, CompatState state);

  const CompatSettings& settings() const { return settings_; }
  const CompatState& state() const { return state_; }

  // embedding: (V, d); ids: (B, T) int32 or int64; mask: (B, T) of any dtype, or undefined for all. modality: (d),
  // added to the embedding of each token and each target, or undefined: the original has such a vector for text.
  CompatBatch encode(const at::Tensor& embedding, const at::Tensor& ids, const at::Tensor& mask = {},
                     const at::Tensor& modality = {}) const;

  // Moves the field by S steps. v is Q q: the original's rotor writes into its argument.
  CompatPhase free_phase(const CompatBatch& batch);
  // nudge_scale (target - Q q), (B, n).
  at::Tensor nudge(const CompatBatch& batch, const CompatPhase& free) const;
  // Moves the field by S steps. The query is Q (q + nudge), v stays q. An undefined nudge: nudge_mode off.
  CompatPhase nudged_phase(const CompatBatch& batch, const at::Tensor& nudge);
  // From the difference of the phases; changes nothing.
  CompatUpdate update(const CompatPhase& free, const CompatPhase& nudged) const;
  // g -= lr g_grad and theta -= lr theta_grad, then clamps g and wraps theta. lr: 0-dim, eta_update.
  void apply(const CompatUpdate& update, const at::Tensor& lr);
  // Writes (v, s) of the free phase into the ring, the last M rows at most.
  void commit(const CompatBatch& batch, const CompatPhase& free) { commit(free.velocity, batch.state); }
  // The same of coords (B, n) and states (B, d). skip: 0-dim float32; where it is not zero, the ring stays as it is.
  void commit(const at::Tensor& coords, const at::Tensor& states, const at::Tensor& skip = {});

  // Both phases, each from the same field, and the nudge between them. `update` is left empty.
  CompatResult phases(const CompatBatch& batch);
  // Both phases, the update, and the two commits of a two-phase window. The field goes on from the nudged phase.
  CompatResult run(const CompatBatch& batch, const at::Tensor& lr);

 private:
  CompatPhase phase(const CompatBatch& batch, const at::Tensor& query, const at::Tensor& velocity, bool source);
  at::Tensor retrieve_each(const CompatBatch& batch, const at::Tensor& query, const at::Tensor& resiliences) const;
  at::Tensor rotate(const at::Tensor& v) const;  // Q v for rows v

  CompatSettings settings_;
  CompatState state_;
};

// The three numbers that the original prints after a window, 0-dim.
struct PathDiagnostics {
  at::Tensor geodesic;    // E_geo = |v_S - v_(S-1)|
  at::Tensor optimality;  // E_var = mean over draws of max(0, R |v|^2 - R |v + 0.1 N|^2) at the last step
  at::Tensor coupling;    // E_struct = |corr(R, |v|) + 1| over the steps, with 1e-8 added to both sums of squares
};

// velocities: (S, n), batch means, S >= 2; resiliences: (S); noise: (draws, n) from N(0, 1), the original draws 8.
PathDiagnostics path_diagnostics(const at::Tensor& velocities, const at::Tensor& resiliences, const at::Tensor& noise);
// Of a phase.
PathDiagnostics path_diagnostics(const CompatPhase& phase, const at::Tensor& noise);

}  // namespace hrm::objectives
