#pragma once
// Names and shapes of BERT's weights, for files and random weights.

#include <string>

#include "hrm/models/bert_encoder.h"

namespace hrm::models {

// The weights that the encoder reads, with names without "bert." and with current LayerNorm names. Throws like
// BertEncoder's constructor.
BertWeights checked_bert_weights(const BertOptions& options, const BertWeights& weights, const std::string& source);

}  // namespace hrm::models
