#pragma once
// Exponential EMA (EMA) of weights (TRM trains with decay 0.999 and evaluates the average).

#include <ATen/core/Tensor.h>

#include <functional>
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

  // EMA of parts of the masters, if several ranks share the work. masters[i] and its average shadows[i] are float32 of
  // the same length. The caller registers the shadows.
  Ema(std::vector<at::Tensor> masters, std::vector<at::Tensor> shadows, double decay);

  // Copies the masters again, in place.
  void reset();

  // "ema.<parameter>", role ema; nothing where the averages were given.
  void visit_state(StateVisitor& visitor) override;

  double decay() const { return decay_; }
  const std::vector<std::string>& names() const { return names_; }     // empty where the averages were given
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
// follow. Contents are exchanged in place, so graphs and views stay valid; the exchange is exact both ways. Save no
// checkpoint and run no training step in between.
//
// `share`, for an Ema of parts, is called after each exchange and gives every rank the other ranks' parts of the
// masters. The destructor does not call it during an exception: others may wait for this rank in another operation, and
// the masters are of no use any more.
class EmaSwap {
 public:
  EmaSwap(Ema& ema, nn::ParameterSet& parameters, std::function<void()> share = {});
  ~EmaSwap();
  // Exchanges back, now. Throws where the device or the other ranks fail: the masters are of no use then. The
  // destructor could only log it.
  void undo();
  EmaSwap(const EmaSwap&) = delete;
  EmaSwap& operator=(const EmaSwap&) = delete;

 private:
  Ema& ema_;
  nn::ParameterSet& parameters_;
  std::function<void()> share_;
  int exceptions_;  // under way when this was made
  bool undone_ = false;
};

}  // namespace hrm::optim
