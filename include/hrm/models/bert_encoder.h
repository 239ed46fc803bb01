#pragma once
// BERT (Devlin et al., arXiv 1810.04805) as a sentence encoder: the mean of the last hidden states, as a unit vector
// (Reimers and Gurevych, arXiv 1908.10084). Only for inference: no gradient reaches its weights. Shapes: B rows, T
// tokens, D width, H heads.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hrm::models {

// The defaults are the sizes of MiniLM-L6 (Wang et al., arXiv 2002.10957).
struct BertOptions {
  int64_t vocabulary = 30522, width = 384, layers = 6, heads = 12;
  int64_t inner = 1536;     // of the feed-forward part
  int64_t positions = 512;  // the longest row
  int64_t token_types = 2;  // kinds of segments that the weights know; all tokens of a sentence are of kind 0
  double eps = 1e-12;       // of every LayerNorm
};

// Weights by their Hugging Face names: "embeddings.word_embeddings.weight",
// "encoder.layer.0.attention.self.query.weight". Any floating-point type, any device.
using BertWeights = std::map<std::string, at::Tensor>;

// An untrained BERT: matrices from a normal distribution of standard deviation 0.02, cut at two of them, biases 0,
// norms 1; float32 on the CPU. Draws depend only on seed and name. For timings and tests: its vectors have no meaning.
BertWeights random_bert_weights(const BertOptions& options, uint64_t seed);

class BertEncoder {
 public:
  // Copies the weights to `device` in `dtype`, float32 or bfloat16, which is also the dtype of the arithmetic (sums of
  // products, norms and pooling are in float32). Names may all start with "bert."; then names without it belong to a
  // head on top of the encoder and are not read. The pooler and embeddings.position_ids are not read either.
  // "LayerNorm.gamma" and "LayerNorm.beta" are other names of weight and bias. Error(usage): contradicting options,
  // another dtype. Error(checkpoint): weights that do not fit the options; the sentence starts with `source` and names
  // all that are missing, unknown or of another shape.
  BertEncoder(const BertOptions& options, const BertWeights& weights, at::Device device, at::ScalarType dtype,
              const std::string& source = "the set of weights");

  // The hidden states after the last layer, (B, T, D) in the encoder's dtype; those at padding have no meaning. ids:
  // (B, T) int32 or int64, every id in 0..vocabulary-1 (unchecked on a GPU), also at padding; mask: (B, T), nonzero for
  // a token. Both on the device. Reads nothing back, so it can be captured. Error(usage) if T exceeds
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
  at::Tensor positions_;  // (positions, D): a position's vector and that of token type 0
  Affine norm_;
  std::vector<Layer> layers_;
};

// The mean of the hidden states (B, T, D) where mask (B, T) is not 0: (B, D) float32, zeros where it is 0 everywhere.
at::Tensor mean_of_tokens(const at::Tensor& hidden, const at::Tensor& mask);

// x / max(|x|, 1e-12) in each row of (B, D).
at::Tensor normalised_rows(const at::Tensor& x);

// Rows that run together, all padded to one width.
struct LengthBatch {
  std::vector<int64_t> rows;
  int64_t width = 0;
};
// Batches of rows of these lengths (0..positions), the longest first, rows of equal length in their order. The width is
// the longest row's, rounded up to a multiple of 16, at most `positions`. rows * width is at most max_tokens, unless
// one row is longer. No row is in a batch more than twice as wide as itself. So padding does not double the work, and
// rows of many lengths do not become many small batches.
std::vector<LengthBatch> batches_by_length(const std::vector<int64_t>& lengths, int64_t positions, int64_t max_tokens);

// The unit vectors of all sentences, (sentences, D) float32 on the encoder's device, in the order given; zeros for a
// sentence without tokens. A sentence's vector is the same in every company but for rounding. Error(usage) for a
// sentence longer than the encoder's positions, an id outside of its vocabulary, and max_tokens below 1.
at::Tensor embed_all(const BertEncoder& encoder, const std::vector<std::vector<int32_t>>& sentences,
                     int64_t max_tokens = 32768);

}  // namespace hrm::models
