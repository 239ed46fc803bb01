#pragma once
// Samples of the contrastive task: vectors with a class, or tokens of a text, each with the tokens before it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "hrm/config/config.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/vectors.h"

namespace hrm::tasks {

// A split on the device. Rows are numbered 0 .. rows() - 1.
class ContrastiveSource {
 public:
  virtual ~ContrastiveSource() = default;

  virtual int64_t rows() const = 0;
  virtual int64_t features() const = 0;
  virtual int64_t classes() const = 0;
  // Whether a class is a token of text, so that a loss is also bits per token.
  virtual bool is_text() const = 0;
  virtual const std::string& origin() const = 0;
  // Digest of the data, and of some rows of them.
  virtual std::string digest() const = 0;
  virtual std::string batch_digest(const data::VectorStreamOptions& options, int64_t position) const = 0;
  // Writes the rows `picks` (B) int64 to inputs (B, features) float32 and labels (B) int64, at their addresses.
  virtual void load(const at::Tensor& picks, const data::VectorBatch& batch) const = 0;
};

// The training and the test split of a run. `test` may be null. `scaling`: undefined tensors for text.
struct ContrastiveData {
  std::shared_ptr<const ContrastiveSource> train, test;
  data::VectorScaling scaling;
};

// data.train: a folder of vectors (hrm/data/vectors.h), or one folder of packed text. data.test: another folder of the
// kind, none, or empty: the test split of data.train (of text the val split). Throws Error(data) and Error(usage).
ContrastiveData open_contrastive_data(const config::Config& config, at::Device device);

// The training split of a folder of packed text, for rows of tokens. Throws Error(data), also for a folder of vectors.
std::shared_ptr<const data::TokenDataset> open_contrastive_text(const std::string& path);

// What a configured memory is made for, read without a device.
struct ContrastiveSizes {
  int64_t features = 0, classes = 0;
  bool is_text = false;
  int64_t data_bytes = 0;  // of the splits that a training keeps on the device
};
// `vocabulary` > 0: of text with this many token ids, whose splits need not exist and are not counted. Errors as above.
ContrastiveSizes contrastive_sizes(const config::Config& config, int64_t vocabulary = 0);

// A test split for a stored model, whose scaling is given. `path`: as data.test.
std::shared_ptr<const ContrastiveSource> open_contrastive_test(const config::Config& config, const std::string& path,
                                                               const data::VectorScaling& scaling, at::Device device);

}  // namespace hrm::tasks
