#include "hrm/ops/backend.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <atomic>

namespace hrm::ops {
namespace {

std::atomic<Backend> g_backend{Backend::fused};

}  // namespace

void set_backend(Backend backend) {
  g_backend = backend;
}

Backend backend() {
  return g_backend;
}

std::vector<OpInfo> op_table() {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<OpInfo> table;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("hrm::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    table.push_back({name.name, op->hasKernelForDispatchKey(c10::DispatchKey::CPU),
                     op->hasKernelForDispatchKey(c10::DispatchKey::CUDA),
                     op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)});
  }
  std::sort(table.begin(), table.end(), [](const OpInfo& a, const OpInfo& b) { return a.name < b.name; });
  return table;
}

}  // namespace hrm::ops
