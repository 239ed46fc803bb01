#pragma once
// How rotary positions are stretched beyond the length that a model was first trained for: the kinds of the
// transformers library that this program computes.

#include <string_view>

namespace hrm {

enum class RopeKind {
  standard,  // "default": theta^(-2i/d)
  linear,    // divided by `factor`
  dynamic,   // as `standard` up to the trained length; longer rows are refused
  yarn,      // Peng et al., arXiv 2309.00071
  llama3,    // as Llama 3.1: only slow pairs are stretched
};
// The library's name: "default", "linear", ...
std::string_view name(RopeKind kind);

struct RopeScaling {
  RopeKind kind = RopeKind::standard;
  double factor = 1;
  double original_positions = 0;                     // yarn and llama3: the length before stretching
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn: turns within original_positions
  double attention_factor = 1;                       // yarn: multiplies cos and sin
  bool truncate = true;                              // yarn: whole pairs as bounds

  bool operator==(const RopeScaling&) const = default;
};

}  // namespace hrm
