// Sums through memory that GPUs share, a thread for each GPU; skipped where there is one.

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include "hrm/ops/peer_sums.h"
#include "hrm/parallel/nccl_comm.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/runtime/captured_step.h"
#include "support/ranks.h"

namespace hrm::parallel::peer_memory {
namespace {

class PeerMemoryGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < 2) GTEST_SKIP() << "this machine has fewer than 2 GPUs";
  }

  // The body with the tensor axis of two GPUs.
  static void on_axis(bool peer_memory, const std::function<void(const std::shared_ptr<Comm>&, at::Device)>& body) {
    auto cpus = make_thread_comms(2);
    test::on_threads(2, [&](int rank) {
      const at::Device device(at::kCUDA, static_cast<int8_t>(rank));
      const c10::cuda::CUDAGuard guard(device);
      const auto comm = make_nccl_comm(std::move(cpus[static_cast<size_t>(rank)]), device, peer_memory);
      const std::shared_ptr<Comm> axis =
          comm->split({.name = "tensor", .members = {0, 1}, .priority = Priority::urgent});
      body(axis, device);
      c10::cuda::device_synchronize();
      comm->barrier();
    });
  }
};

at::Tensor drawn(at::IntArrayRef sizes, double seed, at::Device device) {
  const at::Tensor values = at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 1.7 + seed).view(sizes);
  return values.to(device, at::kBFloat16);
}

// What either way gives, for each of `rounds`, eagerly and by a graph that is replayed.
std::vector<at::Tensor> summed(const std::shared_ptr<Comm>& axis, at::Device device, bool captured) {
  const at::NoGradGuard no_grad;
  const auto across = make_tensor_across(axis);
  const at::Tensor residual = drawn({12, 4096}, 0, device), sums = at::empty_like(residual);
  const at::Tensor norm = drawn({4096}, 3, device).to(at::kFloat);
  at::Tensor out = at::zeros({3, 12, 4096}, residual.options());
  {
    // Memory is there before one rank's kernel waits for the other's.
    std::vector<at::Tensor> room;
    for (int i = 0; i < 40; ++i) room.push_back(at::empty_like(residual));
  }
  axis->barrier();
  CapturedStep step({.name = "sums", .device = device, .enabled = captured, .warmup = 1});
  std::vector<at::Tensor> results;
  for (int round = 0; round < 6; ++round) {
    sums.copy_(drawn({12, 4096}, 10 * round + axis->rank(), device));
    step.run({0}, {sums}, [&] {
      const ops::DecodedAhead made = across->add_sums(residual, sums, norm);
      out[0].copy_(made.y);
      out[1].copy_(made.ahead.scaled.defined() ? made.ahead.scaled : made.y);
      out[2].copy_(across->add_sums({}, sums, {}).y);
    });
    results.push_back(out.cpu());
  }
  EXPECT_EQ(step.replays() > 0, captured);
  return results;
}

TEST_F(PeerMemoryGpu, GivesTheBitsOfNccl) {
  std::vector<std::vector<at::Tensor>> nccl(2);
  on_axis(false, [&](const auto& axis, at::Device device) {
    EXPECT_EQ(axis->peer_rooms(), nullptr);
    nccl[static_cast<size_t>(axis->rank())] = summed(axis, device, false);
  });
  for (size_t round = 0; round < nccl[0].size(); ++round) EXPECT_TRUE(at::equal(nccl[0][round], nccl[1][round]));
  for (const bool captured : {false, true}) {
    on_axis(true, [&](const auto& axis, at::Device device) {
      const auto got = summed(axis, device, captured);
      const ops::PeerRooms* const rooms = axis->peer_rooms();
      if (rooms == nullptr) GTEST_SKIP() << "these GPUs do not reach each other's memory";
      EXPECT_EQ(rooms->parts(), 2);
      for (size_t round = 0; round < got.size(); ++round) {
        EXPECT_TRUE(at::equal(got[round], nccl[0][round])) << captured << " " << round;
      }
    });
  }
}

}  // namespace
}  // namespace hrm::parallel::peer_memory
