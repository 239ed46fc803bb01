#pragma once
// What `hrm_train bench ops` measures: every op with the shapes that the recipes give it.

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "ops/common/bench_cases.h"

namespace hrm::commands {

// The recipes' shapes on a GPU; on the CPU the same with a batch that takes milliseconds.
std::vector<ops::BenchShape> bench_shapes(bool on_cpu);

// Bytes that one call must move at least: its tensor arguments once, those that it writes once more, and its results.
double least_bytes(const std::string& op, const std::vector<c10::IValue>& arguments,
                   const std::vector<c10::IValue>& results);

}  // namespace hrm::commands
