#include "hrm/tasks/polychromic_responses.h"

#include <ATen/ATen.h>

#include "hrm/data/batch.h"

namespace hrm::tasks {

ResponseBatch::ResponseBatch(int64_t rows, int64_t positions, int64_t pad_id, int64_t most_documents, at::Device device)
    : most_documents_(most_documents) {
  const auto longs = at::device(device).dtype(at::kLong);
  ids_ = at::full({rows, positions}, pad_id, longs);
  labels_ = at::full_like(ids_, data::kIgnoreLabel);
  if (most_documents > 0) documents_ = at::zeros({rows, positions}, longs.dtype(at::kInt));
}

// Through page-locked memory, so that the host does not wait. Its allocator keeps that until the copy is done.
void ResponseBatch::copy(const at::Tensor& to, const at::Tensor& from) const {
  const at::Tensor rows = to.is_cuda() ? from.pin_memory() : from;
  to.narrow(1, 0, width_).copy_(rows, /*non_blocking=*/true);
}

void ResponseBatch::load(const data::LanguageBatch& batch) {
  width_ = batch.decoder_ids.size(1);
  host_ids_ = batch.decoder_ids;
  copy(ids_, batch.decoder_ids);
  copy(labels_, batch.labels);
  if (documents_.defined()) copy(documents_, batch.document_ids);
}

at::Tensor ResponseBatch::documents(int64_t first, int64_t count) const {
  return documents_.defined() ? part(documents_, first, count) : at::Tensor();
}

}  // namespace hrm::tasks
