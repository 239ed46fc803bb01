#pragma once
// The process's memory of tuned matrix products, as the layer over cuBLASLt uses it.

#include <cstdint>
#include <optional>
#include <string>

#include "hrm/runtime/tuning_cache.h"

namespace hrm::ops {

enum class GemmOrigin { reused, timed, untimed };

// The choice that the file or a checkpoint has for this product.
std::optional<TunedChoice> find_gemm(const std::string& device, const std::string& library, const std::string& key);

// Says which algorithm this process now uses. What was timed goes into the file (instead of `refused`, an algorithm
// that cannot run); returned is what holds, which is another process's choice where that one
// was stored earlier.
TunedChoice keep_gemm(const std::string& device, const std::string& library, const std::string& key,
                      const TunedChoice& choice, GemmOrigin origin, double seconds = 0,
                      const std::string& refused = "");

// Grows whenever earlier answers hold no more.
int64_t gemm_generation();

}  // namespace hrm::ops
