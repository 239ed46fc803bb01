#pragma once
// Exponential moving average (EMA) of weights. TRM trains with decay 0.999 and evaluates the average.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/state/registry.h"

namespace hrm::optim {

// After each step, shadow = decay * shadow + (1 - decay) * master, starting from a copy of the initial masters. The
// optimizer computes it in the pass that updates the masters (group_of in hrm/optim/optimizer.h); this class owns the
// averages.
class Ema : public Stateful {
 public:
  // Copies the current masters.
  Ema(const nn::ParameterSet& parameters, double decay);

  // For parts of the masters, when ranks share the work. masters[i] and its average shadows[i] are float32 of the same
  // length. The caller registers the averages.
  Ema(std::vector<at::Tensor> masters, std::vector<at::Tensor> shadows, double decay);

  // Copies the masters again, in place.
  void reset();

  // Visits "ema.<parameter>", role ema; nothing if the caller provided the averages.
  void visit_state(StateVisitor& visitor) override;

  double decay() const { return decay_; }
  const std::vector<std::string>& names() const { return names_; }     // empty if the caller provided the averages
  const std::vector<at::Tensor>& shadows() const { return shadows_; }  // float32, shaped like the masters

 private:
  friend class EmaSwap;
  void swap_contents();

  std::vector<std::string> names_;
  std::vector<at::Tensor> masters_;
  std::vector<at::Tensor> shadows_;
  double decay_;
};

// While alive, the masters hold the averages and the averages hold the masters' values; the compute copies follow. The
// exchange is in place and exact both ways, so graphs and views stay valid. Do not checkpoint or train in between.
//
// `share`, for an Ema of parts, is called after each exchange and distributes every rank's part of the masters. The
// destructor skips it while an exception propagates: other ranks may wait for this one in another operation, and the
// masters are no longer needed.
class EmaSwap {
 public:
  EmaSwap(Ema& ema, nn::ParameterSet& parameters, std::function<void()> share = {});
  ~EmaSwap();
  // Exchanges back now. Throws if the device or other ranks fail, which leaves the masters unusable. The destructor can
  // only log such an error.
  void undo();
  EmaSwap(const EmaSwap&) = delete;
  EmaSwap& operator=(const EmaSwap&) = delete;

 private:
  Ema& ema_;
  nn::ParameterSet& parameters_;
  std::function<void()> share_;
  int exceptions_;  // in flight at construction
  bool undone_ = false;
};

}  // namespace hrm::optim
