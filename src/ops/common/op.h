#pragma once
// Calls ops through torch's dispatcher, so that each runs the kernel of its device and its derivative.

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace hrm::ops {

template <class Signature>
class Op;

// An op of ours by its name, such as "hrm::moe_plan", and its C++ signature. The look-up takes a lock: keep the object,
// as in `static const Op<at::Tensor(const at::Tensor&, double)> op("hrm::name");`. The constructor throws c10::Error
// where there is no such op or its schema has another signature.
template <class Result, class... Parameters>
class Op<Result(Parameters...)> {
 public:
  explicit Op(const char* name)
      : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Parameters...)>()) {}

  Result operator()(Parameters... arguments) const { return handle_.call(std::forward<Parameters>(arguments)...); }

 private:
  c10::TypedOperatorHandle<Result(Parameters...)> handle_;
};

}  // namespace hrm::ops
