#include "hrm/tasks/language_rows.h"

#include <ATen/ATen.h>

#include "hrm/data/batch.h"

namespace hrm::tasks {

LanguageRows language_rows(const data::LanguageBatch& batch, bool prompted) {
  if (prompted) {
    return {{.ids = batch.decoder_ids, .prompt_ids = batch.encoder_ids, .prompt_mask = batch.encoder_mask},
            batch.labels};
  }
  if (!batch.encoder_ids.defined()) {
    return {{.ids = batch.decoder_ids, .documents = batch.document_ids, .most_documents = batch.most_documents},
            batch.labels};
  }
  // Place p of a row with n tokens of prompt: the prompt's p-th, then the answer's (p - n)-th.
  const int64_t S = batch.encoder_ids.size(1), length = S + batch.decoder_ids.size(1);
  const at::Tensor place = at::arange(length, batch.decoder_ids.options().dtype(at::kLong));
  const at::Tensor prompt = batch.encoder_mask.to(at::kLong).sum(1, /*keepdim=*/true);  // (B, 1)
  const at::Tensor source = at::where(place.lt(prompt), place, place - prompt + S);
  const at::Tensor behind = source.ge(length), index = source.clamp_max(length - 1);
  const at::Tensor ids = at::cat({batch.encoder_ids, batch.decoder_ids}, 1).gather(1, index);
  const at::Tensor labels =
      at::cat({at::full_like(batch.encoder_ids, data::kIgnoreLabel), batch.labels}, 1).gather(1, index);
  return {{.ids = ids}, labels.masked_fill(behind, data::kIgnoreLabel)};
}

}  // namespace hrm::tasks
