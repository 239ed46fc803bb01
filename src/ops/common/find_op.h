#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace hrm::ops {

// The op of that name, e.g. "hrm::moe_plan", called through the dispatcher. Throws c10::Error where there is none.
template <class Signature>
c10::TypedOperatorHandle<Signature> find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace hrm::ops
