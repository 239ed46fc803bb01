#pragma once
// The names and shapes of BERT's weights, which its files and its random ones share.

#include <string>

#include "hrm/models/bert_encoder.h"

namespace hrm::models {

// Those of `weights` that the encoder reads, by their names without "bert." and with today's names of LayerNorm. Throws
// as BertEncoder's constructor does.
BertWeights checked_bert_weights(const BertOptions& options, const BertWeights& weights, const std::string& source);

}  // namespace hrm::models
