#pragma once
// An estimate of the memory and time of training, from shapes alone.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/make_language_model.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::commands {

// What a GPU's data sheet says.
struct GpuFacts {
  std::string name;             // part of the name that the driver gives
  double flops = 0;             // dense bf16 matrix products, FLOP/s
  double bytes_per_s = 0;       // memory
  double memory_bytes = 0;      // in tensors, caches, context and all
  int capability = 0;           // compute capability, 90 for 9.0
  double link_bytes_per_s = 0;  // to any other GPU of its node, in one direction
  bool nvlink = false;          // what links them; else PCI Express, as where NVLink bridges join pairs only
};
const std::vector<GpuFacts>& known_gpus();

struct PlanInput {
  config::Config config;
  models::PuzzleModelDims dims;      // of task=puzzle
  models::LanguageSizes sizes = {};  // of task=language
  int64_t parameters = 0;            // trainable values
  int64_t frozen_parameters = 0;     // values beside them
  int64_t copied_parameters = 0;     // of these, values with a copy in the compute dtype
  int64_t fp8_parameters = 0;        // values of the recurrent modules' weights that fp8 recursions read
  std::vector<std::pair<int64_t, int64_t>> muon_matrices = {};  // rows and columns of what Muon iterates over
  int64_t train_examples = 0;   // of a table on the device; 0: the rows come from the host
  double flops_per_sample = 0;  // of the matrix products of a step, as Task::flops_per_step
  GpuFacts gpu;
  int64_t ranks = 1;  // that train together; what is planned is one of them
};

// Counts the parameters of the configured model; `train_examples` is left 0.
PlanInput make_plan_input(const config::Config& config, const models::PuzzleModelDims& dims, const GpuFacts& gpu);
PlanInput make_plan_input(const config::Config& config, const models::LanguageSizes& sizes, const GpuFacts& gpu);

struct PlanItem {
  std::string name;
  double value = 0;  // bytes, or milliseconds
  std::string note;
};

struct Plan {
  std::vector<PlanItem> memory;     // add up to tensors_peak
  double tensors_peak = 0;          // bytes: the allocator's peak of allocated memory
  std::string peak_moment;          // when in a step
  double reserved = 0;              // bytes that the allocator takes from the driver
  double device_used = 0;           // reserved, and what the CUDA context and the libraries take
  int64_t fitting_micro_batch = 0;  // largest divisor of the rank's batch that fits; 0: none
  std::vector<PlanItem> time;       // add up to step_ms
  double step_ms = 0;               // of several ranks: without what they send each other (plan_ranks.h)
  double backward_ms = 0;           // of it, the backward passes of all micro-batches
  std::vector<std::string> assumptions;
};

// The share of the backward pass that is done when the gradients of the first `groups` of `count` gradient groups
// (nn/gradient_ready.h) are complete, with blocks that take the same time.
double backward_done(const PlanInput& input, int64_t groups, int64_t count);

// Error(usage) where the GPU cannot do what the configuration asks for, or the batch cannot be split.
Plan make_plan(const PlanInput& input);

}  // namespace hrm::commands
