#include "hrm/optim/ema.h"

#include <ATen/ATen.h>

#include <exception>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/log.h"

namespace hrm::optim {

namespace {

double checked_decay(double decay) {
  require(decay > 0 && decay < 1, ExitCode::usage, "the decay of the weights' EMA must be between 0 and 1, ", "got ",
          decay);
  return decay;
}

}  // namespace

Ema::Ema(std::vector<at::Tensor> masters, std::vector<at::Tensor> shadows, double decay)
    : masters_(std::move(masters)), shadows_(std::move(shadows)), decay_(checked_decay(decay)) {
  require(masters_.size() == shadows_.size(), ExitCode::unexpected, masters_.size(),
          " parts of parameters do not match ", shadows_.size(), " averages; give one for each");
  reset();
}

Ema::Ema(const nn::ParameterSet& parameters, double decay) : decay_(checked_decay(decay)) {
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
  for (size_t i = 0; i < names_.size(); ++i) visitor.tensor("ema." + names_[i], shadows_[i], StateRole::ema);
}

void Ema::swap_contents() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < shadows_.size(); ++i) {
    const at::Tensor kept = masters_[i].clone();
    masters_[i].copy_(shadows_[i]);
    shadows_[i].copy_(kept);
  }
}

EmaSwap::EmaSwap(Ema& ema, nn::ParameterSet& parameters, std::function<void()> share)
    : ema_(ema), parameters_(parameters), share_(std::move(share)), exceptions_(std::uncaught_exceptions()) {
  ema_.swap_contents();
  if (share_) share_();
  parameters_.refresh_compute();
}

void EmaSwap::undo() {
  if (std::exchange(undone_, true)) return;
  ema_.swap_contents();
  if (share_) share_();
  parameters_.refresh_compute();
}

EmaSwap::~EmaSwap() {
  if (undone_) return;
  // A destructor must not throw; callers that continue after the exchange use undo().
  try {
    ema_.swap_contents();
    if (share_ && std::uncaught_exceptions() > exceptions_) return;
    if (share_) share_();
    parameters_.refresh_compute();
  } catch (const std::exception& error) {
    log::error("the weights could not be exchanged with their averages: ", error.what());
  }
}

}  // namespace hrm::optim
