#pragma once
// The implementation that our ops use, and a table of the registered ops.

#include <string>
#include <vector>

namespace hrm::ops {

// fused: our kernels where the device has them. reference: the plain ATen formula on every device.
enum class Backend { fused, reference };

// Process-wide (config key ops.backend). Set it before the first step: a captured graph keeps the setting of its
// capture.
void set_backend(Backend backend);
Backend backend();

// An op of the `hrm` namespace and the dispatch keys for which we register a kernel.
struct OpInfo {
  std::string name;  // "hrm::rms_norm_residual"
  bool cpu = false;
  bool cuda = false;
  bool autograd = false;
};

// All ops registered in this process, sorted by name. Empty if the program was linked without the ops' object files.
std::vector<OpInfo> op_table();

}  // namespace hrm::ops
