#pragma once
// Which implementation of our ops runs, and a table of what is registered.

#include <string>
#include <vector>

namespace hrm::ops {

// fused: our own kernels where the device has them. reference: the plain ATen formula on every device.
enum class Backend { fused, reference };

// Process-wide (config key ops.backend). Set it before the first step: a captured graph keeps what it captured.
void set_backend(Backend backend);
Backend backend();

// One op of the `hrm` namespace and the dispatch keys that have a kernel of ours.
struct OpInfo {
  std::string name;  // "hrm::rms_norm_residual"
  bool cpu = false;
  bool cuda = false;
  bool autograd = false;
};

// All ops that are registered in this process, sorted by name. A program that was linked without the ops' object
// files gets an empty table.
std::vector<OpInfo> op_table();

}  // namespace hrm::ops
