#include "hrm/ops/augment.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "hrm/ops/symmetry.h"
#include "ops/common/op.h"
#include "ops/embedding/augment_impl.h"

namespace hrm::ops {

int64_t square_side(int64_t cells) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(cells))));
  return side * side == cells ? side : 0;
}

void check_augment(const AugmentArgs& args) {
  const at::Device device = args.inputs.device();
  const auto check = [&](const char* name, const at::Tensor& tensor, int64_t dim, at::ScalarType type) {
    TORCH_CHECK(
        tensor.dim() == dim && tensor.scalar_type() == type && tensor.is_contiguous() && tensor.device() == device,
        "hrm::augment_rows_: ", name, " must be a contiguous ", type, " tensor of ", dim, " dimensions on ", device,
        ", got ", tensor.scalar_type(), " of shape ", tensor.sizes(), " with strides ", tensor.strides(), " on ",
        tensor.device());
  };
  check("inputs", args.inputs, 2, at::kInt);
  check("labels", args.labels, 2, at::kInt);
  check("identifiers", args.identifiers, 1, at::kInt);
  check("table_inputs", args.table_inputs, 2, at::kInt);
  check("table_labels", args.table_labels, 2, at::kInt);
  check("picks", args.picks, 2, at::kLong);
  const int64_t rows = args.picks.size(0), cells = args.table_inputs.size(1);
  TORCH_CHECK(args.picks.size(1) == 3 && args.identifiers.size(0) == rows && args.inputs.size(0) == rows &&
                  args.inputs.size(1) == cells && args.labels.sizes() == args.inputs.sizes() &&
                  args.table_labels.sizes() == args.table_inputs.sizes(),
              "hrm::augment_rows_: picks (N, 3), identifiers (N), inputs and labels (N, S), table_inputs and "
              "table_labels (E, S) do not fit, got ",
              args.picks.sizes(), ", ", args.identifiers.sizes(), ", ", args.inputs.sizes(), ", ", args.labels.sizes(),
              ", ", args.table_inputs.sizes(), " and ", args.table_labels.sizes());
  const int64_t box_rows = args.how.box_rows, box_cols = args.how.box_cols;
  switch (args.how.kind) {
    case AugmentKind::none:
      break;
    case AugmentKind::sudoku: {
      const int64_t size = box_rows * box_cols;
      TORCH_CHECK(box_rows >= 1 && box_cols >= 1 && size <= kMaxSymmetrySize && size * size == cells,
                  "hrm::augment_rows_: boxes of ", box_rows, "x", box_cols, " cells do not make up a Sudoku of ", cells,
                  " cells and at most ", kMaxSymmetrySize, " rows");
      break;
    }
    case AugmentKind::dihedral:
      TORCH_CHECK(square_side(cells) > 0, "hrm::augment_rows_: the ", cells, " cells of a row are not a square grid");
      break;
    case AugmentKind::arc:
      TORCH_CHECK(square_side(cells) > 0 && square_side(cells) <= kMaxArcCopySide, "hrm::augment_rows_: the ", cells,
                  " cells of a row are not a square grid of at most ", kMaxArcCopySide, " rows");
      break;
    default:
      TORCH_CHECK(false, "hrm::augment_rows_: no kind ", static_cast<int>(args.how.kind));
  }
}

void augment_rows_(const at::Tensor& inputs, const at::Tensor& labels, const at::Tensor& identifiers,
                   const at::Tensor& table_inputs, const at::Tensor& table_labels, const at::Tensor& picks,
                   const Augmentation& how) {
  static const Op<AugmentSignature> op("hrm::augment_rows_");
  op(inputs, labels, identifiers, table_inputs, table_labels, picks, static_cast<int64_t>(how.kind),
     static_cast<int64_t>(how.seed), how.box_rows, how.box_cols);
}

namespace {

void augment_cpu(const AugmentArgs& args) {
  check_augment(args);
  reference::augment_rows_(args);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "augment_rows_(Tensor(a!) inputs, Tensor(b!) labels, Tensor(c!) identifiers, Tensor table_inputs, "
      "Tensor table_labels, Tensor picks, int kind, int seed, int box_rows, int box_cols) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("augment_rows_", &augment_kernel<augment_cpu>);
}

}  // namespace hrm::ops
