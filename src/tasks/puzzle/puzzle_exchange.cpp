#include "hrm/tasks/puzzle_exchange.h"

#include <ATen/ops/empty.h>

namespace hrm::tasks {

at::Tensor gather_taken(parallel::Comm& comm, const at::Tensor& taken) {
  at::Tensor all = at::empty({comm.ranks()}, taken.options());
  const parallel::StepClock::Wait waiting(comm.clock());
  comm.all_gather(all, taken);
  return all;
}

EmbeddingRows gather_embedding_rows(parallel::Comm& comm, const EmbeddingRows& own) {
  const int64_t rows = own.identifiers.size(0) * comm.ranks();
  EmbeddingRows all{at::empty({rows}, own.identifiers.options()),
                    at::empty({rows, own.gradients.size(1)}, own.gradients.options())};
  const parallel::StepClock::Wait waiting(comm.clock());
  comm.all_gather(all.identifiers, own.identifiers);
  comm.all_gather(all.gradients, own.gradients);
  return all;
}

}  // namespace hrm::tasks
