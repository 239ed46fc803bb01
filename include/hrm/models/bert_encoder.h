#pragma once
// BERT (Devlin et al., arXiv 1810.04805) as a sentence encoder (Reimers and Gurevych, arXiv 1908.10084). An embedding
// is the mean of the last hidden states, normalised to unit length. Frozen and for inference only: no gradient reaches
// the weights. Shapes: B rows, T tokens, D width, H heads.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hrm::models {

// The defaults are the sizes of MiniLM-L6 (Wang et al., arXiv 2002.10957).
struct BertOptions {
  int64_t vocabulary = 30522, width = 384, layers = 6, heads = 12;
  int64_t inner = 1536;     // inner width of the feed-forward part
  int64_t positions = 512;  // maximum row length
  int64_t token_types = 2;  // segment types that the weights know; all tokens of a sentence have type 0
  double eps = 1e-12;       // of every LayerNorm
};

// Weights by their Hugging Face names, e.g. "embeddings.word_embeddings.weight" or
// "encoder.layer.0.attention.self.query.weight". Any floating-point dtype, any device.
using BertWeights = std::map<std::string, at::Tensor>;

// An untrained BERT. Matrices are normal with standard deviation 0.02, truncated at two of them; biases are 0, norms 1;
// float32 on the CPU. Draws depend only on seed and name. For timings and tests: its vectors mean nothing.
BertWeights random_bert_weights(const BertOptions& options, uint64_t seed);

class BertEncoder {
 public:
  // Copies the weights to `device` in `dtype` (float32 or bfloat16), which is also the compute dtype. Accumulation in
  // GEMMs, norms and the pooling use float32.
  //
  // All names may start with "bert."; then names without it belong to a head on top of the encoder and are ignored. The
  // pooler and embeddings.position_ids are ignored too. "LayerNorm.gamma" and "LayerNorm.beta" are accepted for a
  // LayerNorm's weight and bias.
  //
  // Throws Error(usage) for contradictory options or another dtype. Throws Error(checkpoint) for weights that do not
  // fit the options: the text starts with `source` and lists all that are missing, unknown or misshapen.
  BertEncoder(const BertOptions& options, const BertWeights& weights, at::Device device, at::ScalarType dtype,
              const std::string& source = "the set of weights");

  // The hidden states after the last layer, (B, T, D) in the encoder's dtype; those at padding are meaningless. `ids`:
  // (B, T) int32 or int64, in 0..vocabulary-1 also at padding (unchecked on a GPU). `mask`: (B, T), non-zero for
  // tokens. Both are on the device. Reads nothing back, so it can be captured. Throws Error(usage) if T exceeds
  // options.positions.
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& mask) const;

  // normalised_rows(mean_of_tokens(forward(ids, mask), mask)): (B, D) float32. A row without tokens gives zeros.
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& mask) const;

  const BertOptions& options() const { return options_; }
  at::Device device() const { return words_.device(); }

 private:
  struct Affine {
    at::Tensor weight, bias;
  };
  struct Layer {
    Affine qkv;  // (3 D, D), (3 D): rows of q, then k, then v
    Affine attention_out, attention_norm;
    Affine up, down, norm;
  };
  at::Tensor normed(const at::Tensor& x, const Affine& norm) const;
  // x: (B T, D). bias: (B, 1, 1, T), added to the attention's scores.
  at::Tensor run_layer(const Layer& layer, const at::Tensor& x, const at::Tensor& bias) const;

  BertOptions options_;
  at::Tensor words_;      // (vocabulary, D)
  at::Tensor positions_;  // (positions, D): position embedding plus that of token type 0
  Affine norm_;
  std::vector<Layer> layers_;
};

// The mean of the hidden states (B, T, D) over tokens, where mask (B, T) is not 0: (B, D) float32, zeros without
// tokens.
at::Tensor mean_of_tokens(const at::Tensor& hidden, const at::Tensor& mask);

// x / max(|x|, 1e-12) for each row of (B, D).
at::Tensor normalised_rows(const at::Tensor& x);

// Rows that run together, padded to one width.
struct LengthBatch {
  std::vector<int64_t> rows;
  int64_t width = 0;
};
// Batches rows of these lengths (0..positions), longest first and stable for equal lengths. The width is the longest
// row's length rounded up to a multiple of 16, but at most `positions`. Rows times width is at most max_tokens, unless
// a single row is longer. A batch is at most twice as wide as the own width of each of its rows. This bounds the work
// on padding without splitting mixed lengths into many small batches.
std::vector<LengthBatch> batches_by_length(const std::vector<int64_t>& lengths, int64_t positions, int64_t max_tokens);

// The unit vectors of all sentences, (sentences, D) float32 on the encoder's device, in the given order; zeros for a
// sentence without tokens. Apart from rounding, a vector does not depend on the other sentences. Throws Error(usage)
// for a sentence longer than the encoder's positions, an id outside its vocabulary, or max_tokens below 1.
at::Tensor embed_all(const BertEncoder& encoder, const std::vector<std::vector<int32_t>>& sentences,
                     int64_t max_tokens = 32768);

}  // namespace hrm::models
