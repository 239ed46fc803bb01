#pragma once
// Weights of models that the transformers library has saved, into ours.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "hrm/formats/hf_config.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/models/decoder_lm.h"

namespace hrm::checkpoint {

// The decoder that a config.json describes, for rows of this many positions.
models::DecoderOptions decoder_options_of(const HfModelConfig& config, int64_t positions);

// Fills every parameter of the model. q_proj, k_proj and v_proj are rows of one weight here, as are gate_proj and
// up_proj. Rows are copied from the mapped files straight to the parameter, in its dtype, so the host holds a second
// copy of only one tensor's rows. Outlines (nn/outline.h) and
// parts of weights read the rows that they are, the former when a ParameterSet asks; quantised layers all of their
// weight. Names may have the prefixes of wrappers (core_tensor_name). `options`: those the
// model was built with. A separate head in the files of a tied model is accepted if it equals the embedding. Without
// gradient. Throws Error(checkpoint), one sentence with everything that is missing, unknown or of another shape.
//
// untie: the files are those of a tied model, and the model here has its own head, which starts as the embedding.
// stored: of the folder's config.json. Weights in 8 bits are kept as they are in layers of the same format, and
// dequantised in layers that are not quantised. Layers in another quantised format are an Error(usage).
void load_hf_weights(const SafetensorsSet& files, const models::DecoderOptions& options, models::DecoderLm& model,
                     bool untie = false, HfStoredWeights stored = HfStoredWeights::floats);

// Copies of all tensors, on the CPU, e.g. for models::BertEncoder.
std::map<std::string, at::Tensor> tensors_of(const SafetensorsSet& files);

}  // namespace hrm::checkpoint
