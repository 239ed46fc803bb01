#pragma once
// Creates the language model that a configuration describes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/models/language_model.h"
#include "hrm/nn/fp8_linears.h"
#include "hrm/nn/mamba2.h"
#include "hrm/nn/moe.h"

namespace hrm::models {

// Row sizes of a training run, in tokens, which the model must support.
struct LanguageSizes {
  int64_t vocabulary = 0;
  int64_t encoder_len = 0;  // S; 0: no prompts
  int64_t decoder_len = 0;  // T
};

// The row sizes that `data` configures, with this vocabulary.
LanguageSizes language_sizes(const config::DataConfig& data, int64_t vocabulary);

// Builds the model, initialises it from the seed and freezes lm.freeze; fake_quantize() as configured. Throws
// Error(usage) for contradictory values. `across`: not null for a part of the model (DecoderOptions::across); of an
// HRM language model, encoder and decoder are cut, all else is whole on every part.
std::shared_ptr<LanguageModel> make_language_model(const config::Config& config, const LanguageSizes& sizes,
                                                   uint64_t seed, at::Device device, at::ScalarType compute_dtype,
                                                   std::shared_ptr<const nn::TensorAcross> across = nullptr);

// The same model on the meta device, uninitialised, with lm.freeze applied: for counting parameters and for planning
// the communication between ranks.
std::shared_ptr<LanguageModel> make_language_model_outline(const config::Config& config, const LanguageSizes& sizes,
                                                           std::shared_ptr<const nn::TensorAcross> across = nullptr);

// The resolved options of the plain decoder (lm.arch=decoder), without its experts.
DecoderOptions plain_decoder_options(const config::Config& config, const LanguageSizes& sizes);

// The same with the experts as families of transformers have them, named as Mixtral's where there is no norm of q and
// k. Without experts, or with ones that no family has (GELU, sigmoid scores, a capacity, a selection bias, shared
// experts), as above.
DecoderOptions family_decoder_options(const config::Config& config, const LanguageSizes& sizes);

// Whether the prompt is a separate input (arch hrm) or precedes the response in one row (decoder).
bool reads_prompts(const config::LmConfig& config);
// Whether the blocks are those of the prototype HRM-LM (LayerNorm, sinusoidal positions, GELU).
bool is_prototype(const config::LmConfig& config);
// Maximum tokens in a row of the decoder: includes a prompt that precedes the response, but not prefix vectors.
int64_t decoder_positions(const config::LmConfig& config, const LanguageSizes& sizes);
// Maximum tokens in a prompt, and rows of the encoder's position table.
int64_t prompt_positions(const config::LmConfig& config, const LanguageSizes& sizes);
// Inner width of the SwiGLU in blocks without experts.
int64_t swiglu_inner(const config::LmConfig& config);

// Inner width of one expert in a model of this width, and how many matrices D x inner it has.
int64_t expert_inner(const config::MoeConfig& config, int64_t width);
double expert_matrices(const config::MoeConfig& config);

// Whether the feed-forward part of a block that reads tokens is a mixture of experts.
enum class BlockPlace { encoder, decoder };
bool is_expert_block(const config::Config& config, BlockPlace place, int64_t layer);

// The options of the mixtures of experts and of the Mamba2 encoder. jitter_seed is 0 here; each mixture gets its own.
nn::MoeOptions expert_options(const config::Config& config);
nn::Mamba2Options mamba2_options(const config::LmConfig& config);

// The mixtures of experts of a model and their names, in module-tree order.
std::vector<std::pair<std::string, nn::MoeFeedForward*>> mixtures_of(torch::nn::Module& model);

// The linear layers of a model's token blocks, in module-tree order: what precision.blocks=fp8 and
// precision.fake_quantize are for. Not those of experts, of the reasoning core, or of keys and values that
// cross-attention reads from a memory.
std::vector<nn::NamedLinear> token_linears(torch::nn::Module& model);

// Lets these layers compute with weights rounded to 8 bits, as precision.fake_quantize says
// (nn::ParameterSet::fake_quantize); `none` does nothing. Build the model's ParameterSet first.
void fake_quantize(LanguageModel& model, config::FakeQuantization format);
// The numbers' type; not for `none`.
at::ScalarType fake_quantized_type(config::FakeQuantization format);

// FLOPs of the GEMMs for one training row, forward and backward, counting padded rows.
double training_flops_per_row(const config::Config& config, const LanguageSizes& sizes);

}  // namespace hrm::models
