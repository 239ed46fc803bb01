#pragma once
// Prompts and responses as rows of a causal language model: ids of the prompt, then of the response, of which alone
// something is learned.

#include <memory>
#include <string>
#include <vector>

#include "hrm/data/chat_dataset.h"
#include "hrm/data/language_source.h"

namespace hrm::data {

// An example with n ids is a row of n - 1 positions: decoder_ids[t] is id t, and labels[t] is id t + 1 if that belongs
// to the response, otherwise kIgnoreLabel. Rows have no encoder side.
//
// A packed row holds several whole examples as documents 0, 1, ..., each with positions from 0, and its padding as one
// more document. The same examples share a row in every epoch. Attention must stay within documents
// (data.document_masks).
class ChatSource : public LanguageSource {
 public:
  // `examples`: a side of a split, or all. `name`: what it is for messages, e.g. "train". `packed_len`: positions of a
  // packed row; 0: a row for each example. Throws Error(data) for no examples.
  ChatSource(std::shared_ptr<const ChatDataset> dataset, std::vector<int64_t> examples, const std::string& name = "all",
             int64_t packed_len = 0);

  // Packed rows are made for one length. Throws Error(usage) for another.
  int64_t num_samples(int64_t decoder_len) const override;
  bool packed() const override { return packed_len_ > 0; }
  // Throws Error(usage) for a row with an encoder side.
  LanguageCounts row(int64_t index, const LanguageRow& row) const override;
  LanguageShape lengths(int64_t index, const LanguageShape& most) const override;
  std::string digest() const override { return digest_; }

  const ChatDataset& dataset() const { return *dataset_; }
  // Of the dataset: the examples of a sample, one where rows are not packed.
  std::vector<int64_t> examples_of(int64_t index) const;
  const ChatExample& example(int64_t index) const { return (*dataset_)[examples_[rows_begin_[index]]]; }
  // Number of examples longer than rows of this many positions: a training reports it before it begins.
  int64_t cut_examples(int64_t decoder_len) const;

 private:
  void pack();

  std::shared_ptr<const ChatDataset> dataset_;
  int64_t packed_len_;
  std::vector<int64_t> examples_;    // of the dataset, those of a row together
  std::vector<int64_t> rows_begin_;  // (rows + 1) in examples_
  std::string digest_;
};

}  // namespace hrm::data
