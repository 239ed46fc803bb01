#pragma once
// Exponential moving average of the weights (TRM trains with decay 0.999 and evaluates the average).

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/state/registry.h"

namespace hrm::optim {

// shadow = decay * shadow + (1 - decay) * master after each step, from a copy of the initial masters. The optimizer
// computes it in the pass that updates the masters (group_of in hrm/optim/optimizer.h); this class owns the averages.
class Ema : public Stateful {
 public:
  // Copies the masters as they are now.
  Ema(const nn::ParameterSet& parameters, double decay);

  // Copies the masters again, in place.
  void reset();

  // "ema.<parameter>", role ema.
  void visit_state(StateVisitor& visitor) override;

  double decay() const { return decay_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<at::Tensor>& shadows() const { return shadows_; }  // float32, shaped as the masters

 private:
  friend class EmaSwap;
  void swap_contents();

  std::vector<std::string> names_;
  std::vector<at::Tensor> masters_;
  std::vector<at::Tensor> shadows_;
  double decay_;
};

// While it lives, the masters hold the averages (and the averages hold the masters' values), and the compute copies
// follow. Contents are exchanged in place, so graphs and views stay valid; the exchange is exact both ways. Take no
// checkpoint and no training step in between.
class EmaSwap {
 public:
  EmaSwap(Ema& ema, nn::ParameterSet& parameters);
  ~EmaSwap();
  EmaSwap(const EmaSwap&) = delete;
  EmaSwap& operator=(const EmaSwap&) = delete;

 private:
  Ema& ema_;
  nn::ParameterSet& parameters_;
};

}  // namespace hrm::optim
