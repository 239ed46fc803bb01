#pragma once
// A training step of a language model, for plan.h.

#include "commands/plan/plan.h"
#include "commands/plan/step.h"
#include "hrm/models/make_language_model.h"

namespace hrm::commands {

// Numbers of values.
struct LanguageWidths {
  double model = 0;                // D
  double queries = 0, values = 0;  // heads * head width: of queries, and of keys or values
  double heads = 0;                // of queries
  double inner = 0;                // of the feed-forward part without experts
  double vocabulary = 0;
};
LanguageWidths language_widths(const PlanInput& in);
bool prototype(const PlanInput& in);  // of the HRM language model, instead of the modern style

// A run of blocks over so many rows of so many positions.
struct BlockStack {
  int64_t layers = 0;
  double rows = 0, length = 0;
  double keys = 0;  // that a position attends to, on average
  double mask = 0;  // values of a mask, which each attention turns into the compute dtype; 0: none
  bool cross = false;
  double memory = 0;    // vectors that blocks with cross attend to
  bool mamba2 = false;  // instead of attention and feed-forward part
  enum class Reads { prompt, answer, memory } reads = Reads::answer;
  double positions() const { return rows * length; }
};

// How the passes of a step go over the blocks.
struct LanguagePasses {
  BlockStack encoder, fast, slow, decoder;  // layers 0: the model has none
  double prefix = 0;                        // vectors in front of the answer's tokens
  double cycles = 0, recorded = 0;          // of the core
  double steps = 0;                         // of the fast memory in a cycle
  double answers = 1;                       // passes of the decoder: of deep supervision one for each cycle
};
LanguagePasses language_passes(const PlanInput& in, double rows);

// Whether a block has experts in place of its feed-forward part.
bool has_experts(const PlanInput& in, const BlockStack& stack, int64_t layer);

// What the device holds beside the parameters and what the optimizer has of them; without workspaces.
void add_language_memory(const PlanInput& in, int64_t micro, PlannedMemory& memory);
void add_language_times(const PlanInput& in, Plan& plan);
std::string language_shares();  // of the data sheet that the times assume
// As backward_done().
double language_backward_done(const PlanInput& in, int64_t groups, int64_t count);

}  // namespace hrm::commands
