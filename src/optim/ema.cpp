#include "hrm/optim/ema.h"

#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/base/log.h"

namespace hrm::optim {

Ema::Ema(const nn::ParameterSet& parameters, double decay) : decay_(decay) {
  require(decay > 0 && decay < 1, ExitCode::usage,
          "the decay of the weights' moving average must lie between 0 and 1, ", "got ", decay);
  for (const nn::Parameter& parameter : parameters.all()) {
    names_.push_back(parameter.name);
    masters_.push_back(parameter.master);
    shadows_.push_back(parameter.master.detach().clone());
  }
}

void Ema::reset() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shadows_.size(); ++i) shadows_[i].copy_(masters_[i]);
}

void Ema::visit_state(StateVisitor& visitor) {
  for (size_t i = 0; i < shadows_.size(); ++i) visitor.tensor("ema." + names_[i], shadows_[i], StateRole::ema);
}

void Ema::swap_contents() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    const at::Tensor kept = masters_[i].clone();
    masters_[i].copy_(shadows_[i]);
    shadows_[i].copy_(kept);
  }
}

EmaSwap::EmaSwap(Ema& ema, nn::ParameterSet& parameters) : ema_(ema), parameters_(parameters) {
  ema_.swap_contents();
  parameters_.refresh_compute();
}

EmaSwap::~EmaSwap() {
  // A destructor must not throw; when the device fails here, the next operation reports it.
  try {
    ema_.swap_contents();
    parameters_.refresh_compute();
  } catch (const std::exception& error) {
    log::error("the weights could not be exchanged with their averages: ", error.what());
  }
}

}  // namespace hrm::optim
