#pragma once
// What the files of adam share: checks, the flat form of the arguments that a schema can express, and the plain ATen
// reference.

#include <optional>

#include "hrm/ops/adam.h"

namespace hrm::ops {

// The op's signature, in the order of its schema.
using AdamSignature = void(int64_t rule, at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                           at::TensorList exp_avg_sqs, at::TensorList averages, at::TensorList copies,
                           at::ArrayRef<double> weight_decay, at::ArrayRef<double> lr_factor, const at::Tensor& step,
                           const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                           const std::optional<at::Tensor>& update_ratio, double beta1, double beta2, double eps,
                           double average_decay);

// A kernel of that signature from a function of AdamArgs.
template <void (*run)(const AdamArgs&)>
void adam_kernel(int64_t rule, at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                 at::TensorList exp_avg_sqs, at::TensorList averages, at::TensorList copies,
                 at::ArrayRef<double> weight_decay, at::ArrayRef<double> lr_factor, const at::Tensor& step,
                 const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                 const std::optional<at::Tensor>& update_ratio, double beta1, double beta2, double eps,
                 double average_decay) {
  run({static_cast<AdamRule>(rule), params, grads, exp_avgs, exp_avg_sqs, averages, copies, weight_decay, lr_factor,
       step, lr, grad_scale, skip, update_ratio.value_or(at::Tensor()), beta1, beta2, eps, average_decay});
}

// Throws c10::Error with the op's name, the index and the shapes of what does not fit.
void check_adam(const AdamArgs& args);

// True when params[i] has a copy of its own.
inline bool has_copy(const AdamArgs& args, size_t i) {
  return !args.copies.empty() && !args.copies[i].is_same(args.params[i]);
}

inline double lr_factor(const AdamArgs& args, size_t i) {
  return args.lr_factor.empty() ? 1 : args.lr_factor[i];
}

namespace cpu {

// One pass over memory, shared by the cores; the number of threads does not change the result.
void adam_(const AdamArgs& args);

}  // namespace cpu

namespace reference {

// Any device, without host synchronisation on a GPU.
void adam_(const AdamArgs& args);

}  // namespace reference
}  // namespace hrm::ops
