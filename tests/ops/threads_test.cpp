// Kernels of the CPU on several cores. Those of adam_, complex_field, conv_swiglu and rms_norm are also compared in
// their own tests.
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <functional>

#include "hrm/ops/attention.h"
#include "hrm/ops/augment.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/ops/swiglu.h"
#include "ops/op_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

class WithThreads {
 public:
  explicit WithThreads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~WithThreads() { at::set_num_threads(before_); }

 private:
  int before_;
};

double cpu_seconds(int who) {
  rusage use{};
  getrusage(who, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

// CPU time of this thread as a share of that of the process, so that other programs do not count.
double share_of_this_thread(const std::function<void()>& work) {
  const double process = cpu_seconds(RUSAGE_SELF), thread = cpu_seconds(RUSAGE_THREAD);
  for (int i = 0; i < 20; ++i) work();
  return (cpu_seconds(RUSAGE_THREAD) - thread) / (cpu_seconds(RUSAGE_SELF) - process);
}

at::Tensor augmented(int64_t rows) {
  const auto ints = at::TensorOptions().dtype(at::kInt);
  at::Tensor inputs = at::zeros({rows, 81}, ints), labels = at::zeros({rows, 81}, ints), ids = at::zeros({rows}, ints);
  const at::Tensor table = at::arange(2 * 81, ints).remainder(10).view({2, 81}).contiguous();
  const at::Tensor counts = at::arange(rows, at::kLong);
  const at::Tensor picks = at::stack({counts.remainder(2), counts, counts}, 1).contiguous();
  augment_rows_(inputs, labels, ids, table, table, picks,
                {.kind = AugmentKind::sudoku, .seed = 3, .box_rows = 3, .box_cols = 3});
  return at::cat({inputs, labels}, 1);
}

TEST(Threads, GiveTheSameBits) {
  const at::Tensor gate_up = normal({37, 5, 2 * 96}, 1, at::kFloat), grad = normal({37, 5, 96}, 2, at::kFloat);
  const at::Tensor qkv = normal({5, 19, 3 * 48}, 3, at::kFloat);
  const at::Tensor angles = normal({19, 6}, 4, at::kFloat);
  const auto results = [&](int threads) {
    const WithThreads with(threads);
    const at::NoGradGuard no_grad;
    return std::vector<at::Tensor>{swiglu(gate_up), swiglu_backward(grad, gate_up),
                                   attention(qkv, 4, angles.cos(), angles.sin()), augmented(301)};
  };
  const std::vector<at::Tensor> one = results(1);
  for (const int threads : {2, 3, 7}) {
    const std::vector<at::Tensor> many = results(threads);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(at::equal(one[i], many[i])) << "result " << i << ", " << threads;
  }
}

// Without OpenMP at::parallel_for is a plain loop, and this thread does all of it.
TEST(Threads, ShareTheWork) {
  const at::NoGradGuard no_grad;
  const at::Tensor gate_up = normal({2048, 2 * 512}, 1, at::kFloat), grad = normal({2048, 512}, 2, at::kFloat);
  const at::Tensor x = normal({4096, 512}, 3, at::kFloat);
  const at::Tensor qkv = normal({64, 81, 3 * 128}, 4, at::kFloat), angles = normal({81, 16}, 5, at::kFloat);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const std::pair<const char*, std::function<void()>> works[] = {
      {"swiglu_backward", [&] { swiglu_backward(grad, gate_up); }},
      {"rms_norm_residual", [&] { rms_norm_residual(x, x, 1e-5); }},
      {"attention", [&] { attention(qkv, 4, cos, sin); }},
      {"augment_rows_", [&] { augmented(4096); }},
  };
  for (const auto& [name, work] : works) {
    const WithThreads with(4);
    EXPECT_LT(share_of_this_thread(work), 0.7) << name;
  }
}

}  // namespace
}  // namespace hrm::ops
