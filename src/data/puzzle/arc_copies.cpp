#include "data/puzzle/arc_copies.h"

#include "data/puzzle/token_rows.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::data {

int64_t arc_copy_code(const ArcAugmentation& augmentation, int row, int col) {
  ops::ArcCopy copy{.transform = augmentation.transform, .row = row, .col = col};
  for (size_t i = 0; i < augmentation.colours.size(); ++i) {
    copy.colours |= static_cast<uint64_t>(augmentation.colours[i]) << (4 * i);
  }
  return ops::arc_copy_code(copy);
}

ArcCopies::ArcCopies(const std::filesystem::path& file) : file_(file) {
  const ArrayView& array = file_.array();
  require(array.dtype == DType::i64 && array.shape.size() == 1, ExitCode::data, file.string(), ": has dtype ",
          name(array.dtype), " and shape ", shape_text(array.shape), ", must be I64 with one dimension");
}

int64_t ArcCopies::code(int64_t example) const {
  return token_at(reinterpret_cast<const int64_t*>(file_.array().bytes.data()), example);
}

void ArcCopies::place(const std::vector<int64_t>& groups, const std::vector<int64_t>& puzzles,
                      const std::vector<ArcPairSize>& pairs) {
  const std::string file = file_.path().string();
  const auto total = static_cast<int64_t>(pairs.size());
  int64_t pair = 0;
  for (size_t group = 0; group + 1 < groups.size(); ++group) {
    const auto first = static_cast<size_t>(groups[group]), end = static_cast<size_t>(groups[group + 1]);
    const int64_t count = puzzles[first + 1] - puzzles[first];
    require(pair + count <= total, ExitCode::data, file, ": group ", group, " needs ", count, " pairs, but only ",
            total - pair, " are left");
    for (size_t puzzle = first; puzzle < end; ++puzzle) {
      require(puzzles[puzzle + 1] - puzzles[puzzle] == count, ExitCode::data, file, ": puzzle ", puzzle, " has ",
              puzzles[puzzle + 1] - puzzles[puzzle], " examples, the first of its group ", count);
      first_pairs_.push_back(static_cast<int32_t>(pair));
      for (int64_t i = 0; i < count; ++i) check_code(puzzles[puzzle] + i, pairs[static_cast<size_t>(pair + i)]);
    }
    pair += count;
  }
  require(pair == total, ExitCode::data, file, ": its groups have ", pair, " pairs, but there are ", total);
}

void ArcCopies::check_code(int64_t example, const ArcPairSize& size) const {
  const int64_t bits = code(example);
  const ops::ArcCopy copy = ops::arc_copy_of(bits);
  uint32_t seen = 0;
  for (int i = 0; i < kArcColours; ++i) seen |= 1U << (copy.colours >> (4 * i) & 15);
  require(bits >= 0 && bits >> ops::kArcCopyBits == 0 && seen == (1U << kArcColours) - 1, ExitCode::data,
          file_.path().string(), ": entry ", example, " is ", bits, ", which is no copy of a pair");
  const bool swaps = ops::dihedral_swaps_axes(copy.transform);
  const int rows = swaps ? size.cols : size.rows, cols = swaps ? size.rows : size.cols;
  require(copy.row + rows <= kArcSide && copy.col + cols <= kArcSide, ExitCode::data, file_.path().string(), ": entry ",
          example, " moves grids of ", rows, " rows and ", cols, " columns to row ", copy.row, ", column ", copy.col,
          ", beyond the ", kArcSide, " of the square");
}

}  // namespace hrm::data
