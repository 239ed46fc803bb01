#include "hrm/optim/muon.h"

#include "optim/muon_cases.h"

namespace hrm::optim {
namespace {

using namespace testing;  // NOLINT

TEST(NewtonSchulz, DrivesSingularValuesToOne) {
  expect_newton_schulz(at::kCPU);
}

TEST(Muon, FollowsItsEquations) {
  expect_muon_steps(at::kCPU, MuonScale::original);
  expect_muon_steps(at::kCPU, MuonScale::match_rms_adamw);
  expect_muon_steps(at::kCPU, MuonScale::original, /*stack=*/50);  // two of 6 x 4 at a time, and one of 33 x 3
}

TEST(Muon, AveragesAndCopiesFollow) {
  expect_muon_follows(at::kCPU);
}

// More elements than a stack takes are iterated in parts, with one pair of buffers.
TEST(Muon, BuffersAreThoseOfTheLargestStack) {
  const int64_t most = kMuonStackElements;
  const std::vector<std::pair<int64_t, int64_t>> few(3, {64, 32}), mixed = {{64, 32}, {8, 16}, {64, 32}},
                                                                   many(40, {1024, 1024}), huge = {{16384, 8192}};
  EXPECT_EQ(muon_buffer_bytes(few, MuonPrecision::fp32), 8 * (3 * 64 * 32 + 3 * 32 * 32));
  EXPECT_EQ(muon_buffer_bytes(few, MuonPrecision::bf16), 8 * 3 * 64 * 32 + 4 * 3 * 32 * 32);
  EXPECT_EQ(muon_buffer_bytes(mixed, MuonPrecision::fp32), 8 * (2 * 64 * 32 + 2 * 32 * 32));
  EXPECT_EQ(muon_buffer_bytes(many, MuonPrecision::bf16), 8 * most + 4 * most) << "32 of the 40 fit into a stack";
  EXPECT_EQ(muon_buffer_bytes(huge, MuonPrecision::fp32), 8 * (int64_t{16384} * 8192 + int64_t{8192} * 8192))
      << "one alone";
}

TEST(Muon, TakesStacksApart) {
  expect_muon_takes_stacks_apart(at::kCPU);
}

}  // namespace
}  // namespace hrm::optim
