#pragma once
// Weights that are on a rank only while they are used: ZeRO stage 3 (Rajbhandari et al., "ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models", 2020).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/nn/block_use.h"
#include "hrm/nn/parameter.h"
#include "hrm/parallel/comm.h"
#include "hrm/state/registry.h"

namespace hrm::parallel {

struct GatherOptions {
  // How many units are on a rank at the same time. One is in use, and the others are the next in the order of the pass,
  // which travel meanwhile. At least 1.
  int64_t buffers = 2;
};

// The compute weights of a model's blocks. Each rank holds a slice of every unit, which is a block, or several small
// ones. Units take turns in a few buffers, unit i in buffer i mod `buffers`, so that a weight always lies at the same
// address and a step can be captured.
//
// A unit is gathered when one of its blocks is about to be used (nn::BlockUse), unless it is still there or under way,
// and then the gathering of the next units begins: upwards in a forward pass, downwards in a backward pass. Every use
// counts, whatever the order, so evaluations and models that run blocks again work. All ranks must use the same units
// in the same order. No two blocks are in use at the same time.
//
// Saved tensors keep their version: the buffers have another version counter than the weights in them.
class WeightGather : public nn::BlockUse::Listener {
 public:
  // What is gathered together. All tensors but `source` are views of the unit's buffer, which WeightGather makes.
  struct Unit {
    std::vector<int> groups;
    // Of trained weights: this rank's slice of the float32 masters, (n), and the dtype that passes read. Of frozen
    // ones: bytes.
    at::Tensor source;
    at::ScalarType dtype = at::kByte;
    struct Member {
      size_t index;    // in parameters.all(), or of frozen weights in parameters.frozen()
      int64_t offset;  // elements of `dtype`
    };
    std::vector<Member> members;
  };

  // In the order of a forward pass. All must outlive this. Moves the weights into the buffers (ParameterSet::
  // place_compute, place_frozen): their values are then only in the sources.
  WeightGather(nn::ParameterSet& parameters, Comm& comm, std::vector<Unit> units, const GatherOptions& options = {});
  ~WeightGather() override;
  WeightGather(const WeightGather&) = delete;
  WeightGather& operator=(const WeightGather&) = delete;

  // The sources changed, or a pass failed: what is in the buffers counts no more. All ranks at the same time.
  void forget();

  void before_forward(int block) override { use(block, +1); }
  void before_backward(int block) override { use(block, -1); }
  // Throws Error(unexpected): ranks decode on their own.
  void before_step(int block) override;

  size_t units() const { return units_.size(); }
  int64_t buffer_bytes() const { return static_cast<int64_t>(memory_.nbytes()); }
  int64_t source_bytes() const;
  // How many gatherings began, and for how many of them a pass had to wait from the start.
  int64_t gathered() const { return gathered_; }
  int64_t gathered_late() const { return late_; }
  // The most units that were on this rank, or on their way, at the same time.
  int64_t most_held() const { return most_held_; }

 private:
  struct Buffer {
    at::Tensor bytes;
    int64_t unit = -1;  // in it or on the way
    std::unique_ptr<Pending> pending;
  };
  void use(int block, int direction);
  void start(int64_t unit);
  Buffer& buffer_of(int64_t unit) { return buffers_[static_cast<size_t>(unit) % buffers_.size()]; }
  int64_t bytes_of(const Unit& unit) const;

  nn::ParameterSet& parameters_;
  Comm& comm_;
  std::vector<Unit> units_;
  std::vector<int64_t> unit_of_;  // by group; -1: none
  at::Tensor memory_;
  std::vector<Buffer> buffers_;
  int64_t gathered_ = 0, late_ = 0, most_held_ = 0;
};

// Whether a task's model is to be an outline (nn/outline.h), of which ParameterShards reads this rank's part: its
// weights take turns.
bool builds_outline(const config::ParallelConfig& config, const Comm& comm);

// One unit for each mostly frozen block of the model, in the order of a forward pass. Sources are made from this rank's
// slices of the weights, also where these are outlines.
std::vector<WeightGather::Unit> frozen_units(const nn::ParameterSet& parameters, Comm& comm);

}  // namespace hrm::parallel
