#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/embedding/augment_impl.h"
#include "ops/embedding/cuda/augment.h"

namespace hrm::ops {
namespace {

void augment_cuda(const AugmentArgs& args) {
  check_augment(args);
  const c10::cuda::CUDAGuard guard(args.inputs.device());
  if (backend() == Backend::reference) return reference::augment_rows_(args);
  if (args.picks.size(0) == 0) return;
  cuda::AugmentParams params{};
  params.table_inputs = args.table_inputs.const_data_ptr<int32_t>();
  params.table_labels = args.table_labels.const_data_ptr<int32_t>();
  params.picks = args.picks.const_data_ptr<int64_t>();
  params.inputs = args.inputs.mutable_data_ptr<int32_t>();
  params.labels = args.labels.mutable_data_ptr<int32_t>();
  params.identifiers = args.identifiers.mutable_data_ptr<int32_t>();
  params.rows = args.picks.size(0);
  params.cells = args.table_inputs.size(1);
  params.seed = args.how.seed;
  params.rule = args.how.kind == AugmentKind::none     ? cuda::AugmentRule::none
                : args.how.kind == AugmentKind::sudoku ? cuda::AugmentRule::sudoku
                : args.how.kind == AugmentKind::arc    ? cuda::AugmentRule::arc
                                                       : cuda::AugmentRule::dihedral;
  params.side = static_cast<int>(square_side(params.cells));
  params.box_rows = static_cast<int>(args.how.box_rows);
  params.box_cols = static_cast<int>(args.how.box_cols);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("augment_rows_", &augment_kernel<augment_cuda>);
}

}  // namespace hrm::ops
