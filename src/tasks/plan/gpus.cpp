#include <algorithm>
#include <cctype>

#include "hrm/tasks/plan.h"

namespace hrm::tasks {
namespace {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

const std::vector<GpuFacts>& known_gpus() {
  static const std::vector<GpuFacts> gpus{
      {"H200", 989e12, 4.8e12, 150.7e9, 90, 450e9, true},     {"H100 PCIe", 756e12, 2.0e12, 85.0e9, 90, 64e9, false},
      {"H100 NVL", 835e12, 3.9e12, 100.0e9, 90, 64e9, false}, {"H100", 989e12, 3.35e12, 85.0e9, 90, 450e9, true},
      {"B200", 2250e12, 8.0e12, 191.0e9, 100, 900e9, true},   {"A100", 312e12, 2.0e12, 85.0e9, 80, 300e9, true},
      {"L40S", 362e12, 864e9, 47.7e9, 89, 32e9, false},       {"A10G", 70e12, 600e9, 23.7e9, 86, 32e9, false},
      {"L4", 121e12, 300e9, 23.7e9, 89, 32e9, false},         {"RTX 4090", 165e12, 1008e9, 25.3e9, 89, 32e9, false},
  };
  return gpus;
}

const GpuFacts* find_gpu(const std::string& name) {
  const std::string wanted = lower_case(name);
  for (const GpuFacts& gpu : known_gpus()) {
    if (wanted.find(lower_case(gpu.name)) != std::string::npos) return &gpu;
  }
  return nullptr;
}

}  // namespace hrm::tasks
