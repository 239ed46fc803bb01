#pragma once
// Prompts and responses as rows of a causal language model. Only response tokens are learned.

#include <memory>
#include <string>
#include <vector>

#include "hrm/data/chat_dataset.h"
#include "hrm/data/language_source.h"

namespace hrm::data {

// An example with n tokens is a row of n - 1 positions. The ids `decoder_ids[t]` are tokens t. The labels `labels[t]`
// are tokens t + 1 if these belong to the response, otherwise kIgnoreLabel. Rows have no encoder side.
//
// A packed row holds several whole examples as documents 0, 1, ..., each with positions from 0. Its padding is one more
// document. The same examples share a row in every epoch. Attention must stay within documents (data.document_masks).
class ChatSource : public LanguageSource {
 public:
  // `examples`: the examples of one split, or all. `name`: a name for messages, e.g. "train". `packed_len`: positions
  // of a packed row; 0: one example per row. Throws Error(data) if there are no examples.
  ChatSource(std::shared_ptr<const ChatDataset> dataset, std::vector<int64_t> examples, const std::string& name = "all",
             int64_t packed_len = 0);

  // Throws Error(usage) for packed rows if decoder_len is not packed_len.
  int64_t num_samples(int64_t decoder_len) const override;
  bool packed() const override { return packed_len_ > 0; }
  int64_t most_documents(int64_t decoder_len) const override;
  // Throws Error(usage) for a row with an encoder side.
  LanguageCounts row(int64_t index, const LanguageRow& row) const override;
  LanguageShape lengths(int64_t index, const LanguageShape& most) const override;
  std::string digest() const override { return digest_; }

  const ChatDataset& dataset() const { return *dataset_; }
  // The examples in a sample, as indices into the dataset; only one unless rows are packed.
  std::vector<int64_t> examples_of(int64_t index) const;
  const ChatExample& example(int64_t index) const { return (*dataset_)[examples_[rows_begin_[index]]]; }
  // Number of examples longer than rows of this many positions; training logs it at the start.
  int64_t cut_examples(int64_t decoder_len) const;

 private:
  void pack();

  std::shared_ptr<const ChatDataset> dataset_;
  int64_t packed_len_;
  std::vector<int64_t> examples_;    // indices into the dataset, grouped by row
  std::vector<int64_t> rows_begin_;  // (rows + 1) offsets into examples_
  std::string digest_;
};

}  // namespace hrm::data
