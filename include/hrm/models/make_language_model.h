#pragma once
// The language model that a configuration describes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/language_model.h"
#include "hrm/nn/mamba2.h"
#include "hrm/nn/moe.h"

namespace hrm::models {

// Rows of a training: what a model must be able to hold, in tokens.
struct LanguageSizes {
  int64_t vocabulary = 0;
  int64_t encoder_len = 0;  // S; 0: no prompts
  int64_t decoder_len = 0;  // T
};

// The sizes that `data` gives a vocabulary's rows.
LanguageSizes language_sizes(const config::DataConfig& data, int64_t vocabulary);

// Built, initialised by the seed, frozen as lm.freeze says. Error(usage) where values contradict each other.
std::shared_ptr<LanguageModel> make_language_model(const config::Config& config, const LanguageSizes& sizes,
                                                   uint64_t seed, at::Device device, at::ScalarType compute_dtype);

// Its modules and parameters without memory (device meta), not initialised, frozen as lm.freeze says: for counting, and
// for rehearsing what ranks send each other.
std::shared_ptr<LanguageModel> make_language_model_outline(const config::Config& config, const LanguageSizes& sizes);

// The options of the plain decoder (lm.arch=decoder), resolved; without the mixtures of experts of its layers.
DecoderOptions plain_decoder_options(const config::Config& config, const LanguageSizes& sizes);

// Whether the prompt is an input of its own (arch hrm), or is in front of the answer in one row (decoder).
bool reads_prompts(const config::LmConfig& config);
// Whether the blocks are those of the first HRM-LM (LayerNorm, sinusoidal positions, GELU).
bool is_prototype(const config::LmConfig& config);
// Tokens that one row of the decoder may hold, prompt included where it is in front, prefix vectors not.
int64_t decoder_positions(const config::LmConfig& config, const LanguageSizes& sizes);
// Tokens that a prompt may hold, and rows of the encoder's table of positions.
int64_t prompt_positions(const config::LmConfig& config, const LanguageSizes& sizes);
// Width of the SwiGLU in blocks without experts.
int64_t swiglu_inner(const config::LmConfig& config);

// Whether the feed-forward part of a block that reads tokens is a mixture of experts.
enum class BlockPlace { encoder, decoder };
bool is_expert_block(const config::Config& config, BlockPlace place, int64_t layer);

// The options of the Mamba2 encoder and of the mixtures of experts. Each mixture has its own seed for its jitter (here
// 0).
nn::MoeOptions expert_options(const config::Config& config);
nn::Mamba2Options mamba2_options(const config::LmConfig& config);

// The mixtures of experts of a model and their names, in the order of the module tree.
std::vector<std::pair<std::string, nn::MoeFeedForward*>> mixtures_of(torch::nn::Module& model);

// Floating-point operations of the matrix products of one training row, forward and backward; of padded rows.
double training_flops_per_row(const config::Config& config, const LanguageSizes& sizes);

}  // namespace hrm::models
