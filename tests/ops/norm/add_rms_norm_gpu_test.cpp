#include "hrm/ops/add_rms_norm.h"

#include "ops/gpu_testing.h"
#include "ops/norm/add_rms_norm_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(AddPiecesGpu, SameBitsAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      for (const int64_t width : {1, 7, 64, 520}) {
        const at::Tensor residual = normal({37, width}, 1, dtype, at::kCUDA);
        const at::Tensor pieces = normal({parts, 37, width}, 2, dtype, at::kCUDA);
        expect_same_bits(add_pieces(residual, {pieces}), reference::add_pieces(residual, pieces));
        expect_same_bits(add_pieces({}, {pieces}), reference::add_pieces({}, pieces));
      }
    }
  }
  const at::Tensor none = at::zeros({2, 0, 8}, at::device(at::kCUDA));
  EXPECT_EQ(add_pieces({}, {none}).numel(), 0);
}

// Pieces with gaps, at any address, and of more rows than a grid has blocks at once.
TEST(AddPiecesGpu, AnyStrides) {
  HRM_NEEDS_GPU();
  const at::Tensor wide = normal({3, 50, 24}, 1, at::kBFloat16, at::kCUDA);
  for (const at::Tensor& pieces :
       {wide.narrow(1, 7, 20), wide.narrow(2, 3, 9), wide.transpose(1, 2), wide.narrow(0, 0, 1).expand({4, -1, -1})}) {
    const at::Tensor residual = normal({pieces.size(2), pieces.size(1)}, 2, at::kBFloat16, at::kCUDA).t();
    expect_same_bits(add_pieces(residual, {pieces}), reference::add_pieces(residual, pieces));
  }
  const at::Tensor large = normal({2, 40000, 256}, 1, at::kBFloat16, at::kCUDA);
  expect_same_bits(add_pieces(large[1], {large}), reference::add_pieces(large[1], large));
}

TEST(AddPiecesGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const at::Tensor pieces = normal({2, 5, 24}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor expected = reference::add_pieces(pieces[0], pieces);
  const WithReference with_reference;
  expect_same_bits(add_pieces(pieces[0], {pieces}), expected);
}

TEST(AddPiecesGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const at::Tensor pieces = normal({2, 65, 24}, 1, at::kBFloat16, at::kCUDA);
  at::Tensor got;
  Captured captured([&] { got = add_pieces(pieces[0], {pieces}); });
  for (uint64_t round = 0; round < 3; ++round) {
    pieces.copy_(normal({2, 65, 24}, 10 + round, at::kBFloat16));
    captured.replay();
    expect_same_bits(got, reference::add_pieces(pieces[0], pieces));
  }
}

}  // namespace
}  // namespace hrm::ops
