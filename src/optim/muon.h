#pragma once
// Muon, with AdamW for the other parameters. The equations: hrm/optim/muon.h.

#include <map>
#include <utility>

#include "hrm/optim/muon.h"
#include "optim/elementwise.h"

namespace hrm::optim {

class Muon final : public Optimizer {
 public:
  Muon(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups);
  void step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
            const at::Tensor& update_ratio) override;
  void visit_state(StateVisitor& visitor) override;

 private:
  // Matrices of one shape that are iterated together, with their buffers.
  struct Stack {
    std::vector<at::Tensor> params, grads, momenta, averages, copies;
    std::vector<double> weight_decay, lr_factor;
    double scale = 1;
    NewtonSchulzBuffers buffers;
    std::vector<at::Tensor> directions;  // views of the buffer, shaped as the parameters
  };
  // `matrices`: number of matrices in each parameter.
  void make_stacks(const FlatGroups& all, const std::vector<int64_t>& matrices);
  void add_matrix(const FlatGroups& all, size_t parameter, int64_t first_row, int64_t rows);
  void make_buffers(at::Device device);
  void step_stack(const Stack& stack, const at::Tensor& counter, const at::Tensor& lr, const at::Tensor& grad_scale,
                  const at::Tensor& skip, const at::Tensor& squares);

  OptimizerOptions options_;
  std::unique_ptr<Elementwise> others_;  // null: all parameters are matrices
  std::vector<std::string> names_;       // of the matrices
  std::vector<at::Tensor> momenta_;      // of the matrices
  std::vector<Stack> stacks_;
  std::map<std::pair<int64_t, int64_t>, size_t> open_;  // the stack of each shape that still has room
  at::Tensor step_;       // 0-dim float32: updates done; registered only without `others_`, which have their own count
  at::Tensor uncounted_;  // 0-dim float32: absorbs the counts of ops that are part of a step
  at::Tensor squares_;    // (stacks and others, 2) float64: terms of the update ratio
};

}  // namespace hrm::optim
