#pragma once
// Which weights of the transformers library our decoder's weights are made of.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hrm/models/decoder.h"

namespace hrm::checkpoint {

// The head, which is beside the model in transformers' classes and inside it in ours.
inline constexpr const char* kOurHead = "model.lm_head.weight";
inline constexpr const char* kTheirHead = "lm_head.weight";

// A weight of ours: its shape, and what of its rows is what of theirs, in order.
struct HfWeight {
  std::vector<int64_t> shape;
  std::vector<std::pair<std::string, int64_t>> parts;  // their name and its rows
  // What the classes of transformers 5 call the whole of it in memory, and its shape there. Files have it if somebody
  // saved a state dict instead of the model.
  std::string in_memory = {};
  std::vector<int64_t> shape_in_memory = {};
};

// By our names, of a DecoderLm with these options (resolved).
std::map<std::string, HfWeight> hf_weights(const models::DecoderOptions& options);

}  // namespace hrm::checkpoint
