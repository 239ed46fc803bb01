#pragma once
// The rows of prompts and responses of a step, where its captured work reads them: the same addresses in each step.
// Shapes: R rows of this rank, S positions at most, W positions of this step.

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "hrm/data/language_batch.h"

namespace hrm::tasks {

class ResponseBatch {
 public:
  // most_documents: how many documents packed rows hold at most (data::ChatSource); 0: rows are not packed.
  ResponseBatch(int64_t rows, int64_t positions, int64_t pad_id, int64_t most_documents, at::Device device);

  // Copies the R rows of a batch on the CPU, at most S wide.
  void load(const data::LanguageBatch& batch);

  int64_t width() const { return width_; }                  // W; 0 before the first load()
  const at::Tensor& host_ids() const { return host_ids_; }  // (R, W) int64 on the CPU; undefined before

  // (count, W), contiguous, from row `first` on: ids and labels int64, documents int32 or undefined. Device work.
  at::Tensor ids(int64_t first, int64_t count) const { return part(ids_, first, count); }
  at::Tensor labels(int64_t first, int64_t count) const { return part(labels_, first, count); }
  at::Tensor documents(int64_t first, int64_t count) const;
  int64_t most_documents() const { return most_documents_; }
  at::Tensor step_labels() const { return labels_.narrow(1, 0, width_); }  // (R, W), a view

  // (R, S): static addresses.
  const at::Tensor& all_ids() const { return ids_; }
  const at::Tensor& all_labels() const { return labels_; }
  const at::Tensor& all_documents() const { return documents_; }  // undefined where rows are not packed

 private:
  void copy(const at::Tensor& to, const at::Tensor& from) const;
  at::Tensor part(const at::Tensor& all, int64_t first, int64_t count) const {
    return all.narrow(0, first, count).narrow(1, 0, width_).contiguous();
  }

  at::Tensor ids_, labels_;  // int64
  at::Tensor documents_;     // int32
  at::Tensor host_ids_;
  int64_t width_ = 0, most_documents_ = 0;
};

}  // namespace hrm::tasks
