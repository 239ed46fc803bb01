// How `bench ops` calls an op, and what the call must move.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <unordered_set>

#include "commands/bench/ops_cases.h"
#include "hrm/base/error.h"

namespace hrm::commands {
namespace {

using c10::IValue;

// Calls `give` for the tensors in a value: itself, or those of a list.
template <class F>
void for_tensors(const IValue& value, F give) {
  if (value.isTensor()) give(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) give(tensor);
  }
}

c10::OperatorHandle find_op(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

}  // namespace

double least_bytes(const std::string& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
  const c10::OperatorHandle handle = find_op(op);
  const auto& schema = handle.schema().arguments();
  double bytes = 0;
  std::unordered_set<const void*> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    for_tensors(arguments[i], [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !seen.insert(tensor.const_data_ptr()).second) return;
      bytes += (written ? 2.0 : 1.0) * static_cast<double>(tensor.nbytes());
    });
  }
  for (const IValue& result : results) {
    for_tensors(result, [&](const at::Tensor& tensor) {
      if (tensor.defined() && seen.insert(tensor.const_data_ptr()).second)
        bytes += static_cast<double>(tensor.nbytes());
    });
  }
  return bytes;
}

std::vector<IValue> call_op(const std::string& op, const std::vector<IValue>& arguments) {
  const c10::OperatorHandle handle = find_op(op);
  std::vector<IValue> stack = arguments;
  // Defaults of the schema for arguments that the caller leaves out.
  for (size_t i = stack.size(); i < handle.schema().arguments().size(); ++i) {
    const auto& missing = handle.schema().arguments()[i];
    require(missing.default_value().has_value(), ExitCode::unexpected, op, ": no value for '", missing.name(), "'");
    stack.push_back(*missing.default_value());
  }
  handle.callBoxed(&stack);
  return stack;
}

}  // namespace hrm::commands
