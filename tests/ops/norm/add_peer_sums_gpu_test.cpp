// Two parts on one GPU, on a stream each: their kernels run at the same time and write into each other's rooms.

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "hrm/ops/add_rms_norm.h"
#include "hrm/ops/peer_sums.h"
#include "ops/gpu_testing.h"
#include "ops/norm/add_rms_norm_impl.h"

namespace hrm::ops::peer_sums {
namespace {

using namespace testing;  // NOLINT

constexpr int kParts = 2;

class PeerSumsGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    HRM_NEEDS_GPU();
    for (int part = 0; part < kParts; ++part) {
      memory_.push_back(at::zeros({static_cast<int64_t>(peer_room_bytes())}, at::device(at::kCUDA).dtype(at::kByte)));
      streams_.push_back(c10::cuda::getStreamFromPool());
    }
    for (int part = 0; part < kParts; ++part) {
      rooms_.push_back({.part = part});
      for (const at::Tensor& memory : memory_) rooms_.back().rooms.push_back(memory.mutable_data_ptr());
    }
  }

  // What all parts get. A part that waits must not be waited for by the host, so memory is there before.
  std::vector<DecodedAhead> exchanged(const at::Tensor& residual, const at::Tensor& pieces,
                                      const at::Tensor& next_norm) {
    std::vector<DecodedAhead> out(kParts);
    for (const bool warm : {true, false}) {
      c10::cuda::device_synchronize();
      for (int part = 0; part < kParts; ++part) {
        const c10::cuda::CUDAStreamGuard guard(streams_[static_cast<size_t>(part)]);
        DecodedAhead made = warm ? add_pieces_ahead(residual, {pieces}, next_norm)
                                 : add_peer_sums(residual, pieces[part], next_norm, rooms_[static_cast<size_t>(part)]);
        if (!warm) out[static_cast<size_t>(part)] = std::move(made);
      }
    }
    c10::cuda::device_synchronize();
    return out;
  }

  std::vector<at::Tensor> memory_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::vector<PeerRooms> rooms_;
};

TEST_F(PeerSumsGpu, SameBitsAsPiecesThatWereGathered) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 64}, {3, 192}, {12, 4096}, {64, 4096}, {5, 8}}) {
      const at::Tensor residual = normal({rows, width}, 1, dtype, at::kCUDA);
      const at::Tensor norm = normal({width}, 3, at::kFloat, at::kCUDA);
      // More times than there are rooms.
      for (uint64_t round = 0; round < 5; ++round) {
        const at::Tensor pieces = normal({kParts, rows, width}, 10 + round, dtype, at::kCUDA);
        ASSERT_EQ(takes_peer_sums(pieces[0], rooms_[0]), rows * width * pieces.element_size() <= 1 << 20);
        if (!takes_peer_sums(pieces[0], rooms_[0])) continue;
        const at::Tensor& first = round % 2 == 0 ? residual : at::Tensor();
        const DecodedAhead want = add_pieces_ahead(first, {pieces}, norm);
        for (const DecodedAhead& got : exchanged(first, pieces, norm)) {
          expect_same_bits(got.y,
                           reference::add_pieces(first.defined() ? OptionalTensor(first) : OptionalTensor(), pieces));
          ASSERT_EQ(got.ahead.scaled.defined(), want.ahead.scaled.defined());
          if (!want.ahead.scaled.defined()) continue;
          expect_same_bits(got.ahead.scaled, want.ahead.scaled);
          expect_same_bits(got.ahead.squares, want.ahead.squares);
        }
      }
    }
  }
}

// The next norm is prepared as the definition says.
TEST_F(PeerSumsGpu, PreparesTheNorm) {
  const at::Tensor pieces = normal({kParts, 12, 512}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor norm = normal({512}, 2, at::kFloat, at::kCUDA);
  const DecodedAhead made = add_pieces_ahead({}, {pieces}, norm);
  if (!made.ahead.scaled.defined()) GTEST_SKIP() << "this GPU has no products that read it";
  const at::Tensor y = made.y.to(at::kFloat);
  expect_same_bits(made.ahead.scaled, y.mul(norm).to(at::kBFloat16));
  EXPECT_TRUE(at::allclose(made.ahead.squares, y.square().view({12, 8, 64}).sum(-1), 1e-5));
}

// Replays alternate between both rooms.
TEST_F(PeerSumsGpu, InsideCapturedGraphs) {
  const at::Tensor residual = normal({12, 4096}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor pieces = normal({kParts, 12, 4096}, 2, at::kBFloat16, at::kCUDA);
  const at::Tensor norm = normal({4096}, 3, at::kFloat, at::kCUDA);
  exchanged(residual, pieces, norm);  // loads the kernels
  std::vector<at::cuda::CUDAGraph> graphs(kParts);
  std::vector<DecodedAhead> got(kParts);
  for (size_t part = 0; part < kParts; ++part) {
    const c10::cuda::CUDAStreamGuard guard(streams_[part]);
    graphs[part].capture_begin();
    for (int i = 0; i < 3; ++i) {
      got[part] = add_peer_sums(residual, pieces[static_cast<int64_t>(part)], norm, rooms_[part]);
    }
    graphs[part].capture_end();
  }
  for (uint64_t round = 0; round < 20; ++round) {
    pieces.copy_(normal({kParts, 12, 4096}, 10 + round, at::kBFloat16));
    c10::cuda::device_synchronize();
    for (size_t part = 0; part < kParts; ++part) {
      const c10::cuda::CUDAStreamGuard guard(streams_[part]);
      graphs[part].replay();
    }
    c10::cuda::device_synchronize();
    for (const DecodedAhead& each : got) expect_same_bits(each.y, reference::add_pieces(residual, pieces));
  }
}

TEST_F(PeerSumsGpu, RefusesWhatDoesNotFit) {
  const at::Tensor sums = normal({12, 64}, 1, at::kBFloat16, at::kCUDA);
  EXPECT_TRUE(takes_peer_sums(sums, rooms_[0]));
  EXPECT_FALSE(takes_peer_sums(sums.to(at::kDouble), rooms_[0]));
  EXPECT_FALSE(takes_peer_sums(at::zeros({129, 4096}, sums.options()), rooms_[0]));
  EXPECT_FALSE(takes_peer_sums(at::zeros({1, 3}, sums.options()), rooms_[0]));
  EXPECT_THROW(add_peer_sums({}, sums.to(at::kDouble), {}, rooms_[0]), c10::Error);
  const WithReference with_reference;
  EXPECT_FALSE(takes_peer_sums(sums, rooms_[0]));
}

}  // namespace
}  // namespace hrm::ops::peer_sums
