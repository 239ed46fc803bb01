// The CPU implementation and the oracle of the CUDA kernel.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "hrm/ops/symmetry.h"
#include "ops/embedding/augment_impl.h"

namespace hrm::ops::reference {
namespace {

// The cells and the tokens of one sample; `cell` and `token` are functions of a number.
template <class Cell, class Token>
void move_row(const int32_t* from, int32_t* to, int64_t cells, const Cell& cell, const Token& token) {
  for (int64_t i = 0; i < cells; ++i) to[i] = token(from[cell(i)]);
}

void on_host(const AugmentArgs& args) {
  const int64_t cells = args.table_inputs.size(1);
  const int64_t entries = args.table_inputs.size(0);
  const auto* table_inputs = args.table_inputs.const_data_ptr<int32_t>();
  const auto* table_labels = args.table_labels.const_data_ptr<int32_t>();
  const auto* picks = args.picks.const_data_ptr<int64_t>();
  auto* inputs = args.inputs.mutable_data_ptr<int32_t>();
  auto* labels = args.labels.mutable_data_ptr<int32_t>();
  auto* identifiers = args.identifiers.mutable_data_ptr<int32_t>();
  const auto same_token = [](int32_t token) { return token; };
  const auto one_row = [&](int64_t row) {
    const int64_t entry = picks[row * 3];
    TORCH_CHECK(entry >= 0 && entry < entries, "hrm::augment_rows_: picks[", row, "] names row ", entry,
                " of a table of ", entries);
    identifiers[row] = static_cast<int32_t>(picks[row * 3 + 2]);
    CounterRng rng(args.how.seed, Stream::augment, static_cast<uint64_t>(picks[row * 3 + 1]));
    const auto both = [&](const auto& cell, const auto& token) {
      move_row(table_inputs + entry * cells, inputs + row * cells, cells, cell, token);
      move_row(table_labels + entry * cells, labels + row * cells, cells, cell, token);
    };
    switch (args.how.kind) {
      case AugmentKind::none:
        both([](int64_t i) { return i; }, same_token);
        break;
      case AugmentKind::sudoku: {
        SudokuSymmetry symmetry{};
        draw_sudoku_symmetry(rng, static_cast<int>(args.how.box_rows), static_cast<int>(args.how.box_cols), symmetry);
        const int n = static_cast<int>(args.how.box_rows * args.how.box_cols);
        both([&](int64_t i) { return sudoku_source(symmetry, n, static_cast<int>(i) / n, static_cast<int>(i) % n); },
             [&](int32_t token) { return sudoku_token(symmetry, token); });
        break;
      }
      case AugmentKind::dihedral: {
        const auto transform = static_cast<int>(rng.below(8));
        const auto side = static_cast<int>(square_side(cells));
        both(
            [&](int64_t i) {
              return dihedral_source_cell(transform, side, side, static_cast<int>(i) / side,
                                          static_cast<int>(i) % side);
            },
            same_token);
        break;
      }
      case AugmentKind::arc: {
        const ArcCopy copy = arc_copy_of(picks[row * 3 + 1]);
        const auto side = static_cast<int>(square_side(cells));
        arc_copy_row(copy, table_inputs + entry * cells, side, 0, inputs + row * cells);
        arc_copy_row(copy, table_labels + entry * cells, side, kArcIgnored, labels + row * cells);
        break;
      }
    }
  };
  at::parallel_for(0, args.picks.size(0), 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) one_row(row);
  });
}

}  // namespace

void augment_rows_(const AugmentArgs& args) {
  if (args.inputs.is_cpu()) return on_host(args);
  const at::Tensor inputs = at::empty_like(args.inputs, at::kCPU), labels = at::empty_like(args.labels, at::kCPU);
  const at::Tensor identifiers = at::empty_like(args.identifiers, at::kCPU);
  on_host({inputs, labels, identifiers, args.table_inputs.cpu(), args.table_labels.cpu(), args.picks.cpu(), args.how});
  at::Tensor(args.inputs).copy_(inputs);
  at::Tensor(args.labels).copy_(labels);
  at::Tensor(args.identifiers).copy_(identifiers);
}

}  // namespace hrm::ops::reference
