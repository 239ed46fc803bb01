// NCCL between the GPUs of this machine, a thread for each; what needs two is skipped where there is one.

#include "hrm/parallel/nccl_comm.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

#include "hrm/runtime/captured_step.h"
#include "support/ranks.h"

namespace hrm::parallel {
namespace {

void on_gpus(int ranks, const std::function<void(Comm&, at::Device)>& body) {
  auto cpus = make_thread_comms(ranks);
  test::on_threads(ranks, [&](int rank) {
    const at::Device device(at::kCUDA, static_cast<int8_t>(rank));
    const c10::cuda::CUDAGuard guard(device);
    const auto comm = make_nccl_comm(std::move(cpus[static_cast<size_t>(rank)]), device);
    body(*comm, device);
    c10::cuda::device_synchronize();
    comm->barrier();
  });
}

class NcclCommGpu : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < GetParam()) GTEST_SKIP() << "this machine has fewer than " << GetParam() << " GPUs";
  }
};

class NcclCommCapturedGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < 1) GTEST_SKIP() << "this machine has no GPU";
  }
};

TEST_P(NcclCommGpu, AllReduce) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const int n = comm.ranks();
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16}) {
      const auto options = at::TensorOptions().device(device).dtype(dtype);
      const at::Tensor sum = at::arange(100, options) + comm.rank();
      comm.all_reduce(sum);
      EXPECT_TRUE(at::equal(sum, at::arange(100, options) * n + n * (n - 1) / 2)) << dtype;
      const at::Tensor max = at::full({3}, comm.rank() == n / 2 ? 7 : comm.rank() - n, options);
      comm.all_reduce(max, Reduction::max);
      EXPECT_TRUE(at::equal(max, at::full({3}, 7, options))) << dtype;
    }
    const at::Tensor host = at::full({3}, comm.rank(), at::kFloat);
    comm.all_reduce(host);
    EXPECT_TRUE(at::equal(host, at::full({3}, n * (n - 1) / 2, at::kFloat)));
  });
}

TEST_P(NcclCommGpu, GatherAndBroadcast) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const auto options = at::TensorOptions().device(device).dtype(at::kInt);
    const at::Tensor own = at::full({2, 3}, comm.rank(), options), all = at::empty({2 * comm.ranks(), 3}, options);
    comm.all_gather(all, own);
    for (int rank = 0; rank < comm.ranks(); ++rank) {
      EXPECT_TRUE(at::equal(all.narrow(0, 2 * rank, 2), at::full({2, 3}, rank, options)));
    }
    const at::Tensor flags = at::full({5}, comm.rank() == comm.ranks() - 1, options.dtype(at::kBool));
    comm.broadcast(flags, comm.ranks() - 1);
    EXPECT_TRUE(flags.all().item<bool>());
  });
}

// The parts of a sum, in place as gradients use it and into another tensor; then all of it back.
TEST_P(NcclCommGpu, ReduceScatterAndGatherInPlace) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const int n = comm.ranks(), rank = comm.rank();
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const auto options = at::TensorOptions().device(device).dtype(dtype);
      const at::Tensor values = at::arange(n * 64, options).remainder(50);
      const at::Tensor sum = values * n + n * (n - 1) / 2;
      const at::Tensor out = at::zeros({64}, options), in_place = values + rank;
      comm.reduce_scatter(out, values + rank);
      EXPECT_TRUE(at::equal(out, sum.narrow(0, rank * 64, 64))) << dtype;
      const auto pending = comm.start_reduce_scatter(in_place.narrow(0, rank * 64, 64), in_place);
      pending->wait();
      EXPECT_TRUE(at::equal(in_place.narrow(0, rank * 64, 64), out)) << dtype;
      comm.all_gather(in_place, in_place.narrow(0, rank * 64, 64));
      EXPECT_TRUE(at::equal(in_place, sum)) << dtype;
    }
  });
}

// Work on the current stream goes on beside the reduction, and what follows wait() sees its result.
TEST_P(NcclCommGpu, OrderOfStreams) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
    const at::Tensor a = at::ones({2048, 2048}, floats);
    for (int turn = 0; turn < 20; ++turn) {
      at::Tensor late = at::mm(a, a);  // 2048 everywhere, a while later
      const auto pending = comm.start_all_reduce(late, Reduction::sum);
      const at::Tensor beside = at::mm(a, a);
      pending->wait();
      late.add_(1);
      EXPECT_TRUE(late.eq(2048.0f * static_cast<float>(comm.ranks()) + 1).all().item<bool>()) << turn;
      EXPECT_TRUE(beside.eq(2048).all().item<bool>());
    }
  });
}

TEST_P(NcclCommGpu, AllToAllAndExchange) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const int n = comm.ranks(), rank = comm.rank();
    const auto options = at::TensorOptions().device(device).dtype(at::kInt);
    const at::Tensor in = at::arange(n * 6, options).view({n * 2, 3}) + 1000 * rank, out = at::zeros_like(in);
    comm.all_to_all(out, in);
    for (int other = 0; other < n; ++other) {
      const at::Tensor sent = at::arange(n * 6, options).view({n * 2, 3}).narrow(0, 2 * rank, 2) + 1000 * other;
      EXPECT_TRUE(at::equal(out.narrow(0, 2 * other, 2), sent)) << other;
    }
    if (n == 1) return;
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    for (int turn = 0; turn < 3; ++turn) {
      const at::Tensor from = at::zeros({100 + turn}, options), back = at::zeros({7}, options.dtype(at::kBFloat16));
      comm.exchange({{at::full_like(from, 10 * rank + turn), next}, {at::full_like(back, rank), previous}},
                    {{from, previous}, {back, next}});
      EXPECT_TRUE(from.eq(10 * previous + turn).all().item<bool>());
      EXPECT_TRUE(back.eq(next).all().item<bool>());
    }
  });
}

// Two groups of all ranks, urgent and not, whose operations are under way at the same time; and groups of one rank.
TEST_P(NcclCommGpu, Split) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    const int n = comm.ranks();
    std::vector<int> everyone(static_cast<size_t>(n));
    std::iota(everyone.begin(), everyone.end(), 0);
    const auto urgent = comm.split({.name = "urgent", .members = everyone, .priority = Priority::urgent});
    const auto alone = comm.split({.name = "alone", .members = {comm.rank()}});
    EXPECT_EQ(urgent->ranks(), n);
    EXPECT_NE(urgent->progress().find("has not come to"), std::string::npos) << urgent->progress();
    EXPECT_EQ(alone->ranks(), 1);
    const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
    for (int turn = 0; turn < 10; ++turn) {
      const at::Tensor large = at::full({1 << 20}, 1.0f, floats), small = at::full({2}, 2.0f, floats);
      const auto behind = comm.start_all_reduce(large, Reduction::sum);
      urgent->all_reduce(small);
      alone->all_reduce(small);
      behind->wait();
      EXPECT_TRUE(small.eq(2 * n).all().item<bool>()) << turn;
      EXPECT_TRUE(large.eq(n).all().item<bool>()) << turn;
    }
  });
}

// Every operation in one graph, with the allocator that the program uses.
TEST_F(NcclCommCapturedGpu, EveryOperationIsReplayed) {
  on_gpus(1, [](Comm& comm, at::Device device) {
    const auto urgent = comm.split({.name = "urgent", .members = {0}, .priority = Priority::urgent});
    const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
    const at::Tensor in = at::zeros({1000}, floats), out = at::zeros({1000}, floats);
    CapturedStep step({.name = "all operations", .device = device, .enabled = true, .warmup = 2});
    for (int turn = 0; turn < 6; ++turn) {
      in.fill_(turn);
      out.zero_();
      step.run({1}, {in}, [&] {
        at::Tensor a = in + 1, b = at::empty_like(a), c = at::empty_like(a);
        for (Comm* each : {&comm, urgent.get()}) {
          const auto gathered = each->start_all_gather(b, a);
          gathered->wait();
          const auto moved = each->start_all_to_all(c, b);
          moved->wait();
          each->reduce_scatter(a, c);
          each->all_reduce(a);
        }
        out.copy_(a);
      });
      EXPECT_TRUE(out.eq(turn + 1).all().item<bool>()) << turn;
    }
    EXPECT_GT(step.replays(), 0) << step.reason();
  });
}

// One rank: graphs of several threads of a process disturb each other. tests/ranks/ranks.py --device cuda has several
// processes with captured steps.
TEST_F(NcclCommCapturedGpu, SumIsReplayed) {
  on_gpus(1, [](Comm& comm, at::Device device) {
    const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
    const at::Tensor in = at::zeros({1000}, floats), sum = at::zeros({1000}, floats);
    CapturedStep step({.name = "sum", .device = device, .enabled = true, .warmup = 2});
    for (int turn = 0; turn < 6; ++turn) {
      in.fill_(turn + comm.rank());
      step.run({1}, {in}, [&] {
        sum.copy_(in);
        const auto pending = comm.start_all_reduce(sum, Reduction::sum);
        pending->wait();
        sum.mul_(2);
      });
      const int n = comm.ranks();
      EXPECT_TRUE(sum.eq(2 * (turn * n + n * (n - 1) / 2)).all().item<bool>()) << turn;
    }
    EXPECT_GT(step.replays(), 0) << step.reason();
  });
}

// Known on the host without waiting.
TEST_P(NcclCommGpu, Progress) {
  on_gpus(GetParam(), [](Comm& comm, at::Device device) {
    EXPECT_NE(comm.progress().find("has not come to"), std::string::npos) << comm.progress();
    const at::Tensor small = at::zeros({256}, at::TensorOptions().device(device));
    const at::Tensor large = at::zeros({1024}, small.options());
    comm.all_reduce(small);
    c10::cuda::device_synchronize();
    EXPECT_EQ(comm.progress(), "the GPU is in no collective operation; the last was an all-reduce of 1.0 KiB");
    if (comm.alone()) return;
    // One that the others have not begun.
    comm.barrier();
    if (comm.main()) {
      const auto pending = comm.start_all_reduce(large, Reduction::sum);
      for (int i = 0; i < 1000 && comm.progress().find("is in no") != std::string::npos; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_NE(comm.progress().find("is in an all-reduce of 4.0 KiB"), std::string::npos) << comm.progress();
      comm.barrier();
      pending->wait();
    } else {
      comm.barrier();
      comm.all_reduce(large);
    }
  });
}

// In replays, too, of which the host sees nothing.
TEST_F(NcclCommCapturedGpu, ProgressOfReplays) {
  on_gpus(1, [](Comm& comm, at::Device device) {
    const at::Tensor small = at::zeros({256}, at::TensorOptions().device(device));
    CapturedStep step({.name = "sum", .device = device, .enabled = true, .warmup = 1});
    const at::Tensor large = at::zeros({1024}, small.options());
    for (int turn = 0; turn < 4; ++turn) {
      step.run({1}, {large}, [&] { comm.all_reduce(large); });
      comm.broadcast(small, 0);
      c10::cuda::device_synchronize();
      EXPECT_NE(comm.progress().find("the last was a broadcast of 1.0 KiB"), std::string::npos) << comm.progress();
      step.run({1}, {large}, [&] { comm.all_reduce(large); });
      c10::cuda::device_synchronize();
      EXPECT_NE(comm.progress().find("the last was an all-reduce of 4.0 KiB"), std::string::npos) << comm.progress();
    }
  });
}

// Of urgent operations each outside of graphs, and in graphs one in 16, here the first and the 17th.
TEST_F(NcclCommCapturedGpu, ProgressOfUrgentOperations) {
  on_gpus(1, [](Comm& comm, at::Device device) {
    const auto urgent = comm.split({.name = "urgent", .members = {0}, .priority = Priority::urgent});
    const auto is_at = [&](const char* text) {
      c10::cuda::device_synchronize();
      EXPECT_NE(urgent->progress().find(text), std::string::npos) << urgent->progress();
    };
    const at::Tensor tensor = at::zeros({64}, at::TensorOptions().device(device));
    CapturedStep step({.name = "sums", .device = device, .enabled = true, .warmup = 1});
    for (int turn = 0; turn < 4; ++turn) {
      urgent->all_reduce(tensor.narrow(0, 0, 32));
      is_at("in no collective operation; the last was an all-reduce of 128 B");
      step.run({1}, {tensor}, [&] {
        for (int64_t i = 1; i <= 20; ++i) urgent->all_reduce(tensor.narrow(0, 0, i));
      });
      is_at(turn == 0 ? "in no collective operation; the last was an all-reduce of 80 B"
                      : "has come to an all-reduce of 68 B (mark 2; in graphs, one operation in 16 is marked)");
    }
    EXPECT_GT(step.replays(), 0) << step.reason();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCommGpu, testing::Values(1, 2));

}  // namespace
}  // namespace hrm::parallel
