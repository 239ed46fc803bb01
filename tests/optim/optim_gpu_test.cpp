// The optimizers' parts on a GPU, eager and inside a captured graph.
#include <ATen/Context.h>

#include "hrm/optim/groups.h"
#include "ops/gpu_testing.h"
#include "optim/ema_cases.h"
#include "optim/muon_cases.h"

namespace hrm::optim {
namespace {

using ops::testing::Captured;
using namespace testing;  // NOLINT

TEST(OptimGpu, OptimizersFollowTheirEquations) {
  HRM_NEEDS_GPU();
  for (const OptimizerKind name : kElementwise) {
    expect_exact_steps(name, at::kCUDA);
    expect_skip(name, at::kCUDA);
  }
  expect_skip(OptimizerKind::muon, at::kCUDA);
}

TEST(OptimGpu, Muon) {
  HRM_NEEDS_GPU();
  expect_newton_schulz(at::kCUDA);
  expect_muon_steps(at::kCUDA, MuonScale::original);
  expect_muon_steps(at::kCUDA, MuonScale::match_rms_adamw);
  expect_muon_steps(at::kCUDA, MuonScale::original, /*stack=*/50);  // two of 6 x 4 at a time, and one of 33 x 3
  expect_muon_follows(at::kCUDA);
  expect_muon_takes_stacks_apart(at::kCUDA);
}

// The process allows TF32, as a training in bf16 does: the float32 iteration stays exact, and the setting is back.
TEST(OptimGpu, MuonIsExactInFloat32) {
  HRM_NEEDS_GPU();
  at::globalContext().setAllowTF32CuBLAS(true);
  const at::Tensor u = normal({3, 64, 48}, 5, at::kCUDA);
  EXPECT_LE(largest_difference(newton_schulz(u, at::kFloat), exact_newton_schulz(u)), 2e-5);
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  at::globalContext().setAllowTF32CuBLAS(false);
}

TEST(OptimGpu, GlobalNorm) {
  HRM_NEEDS_GPU();
  expect_norms(at::kCUDA);
}

TEST(OptimGpu, SparseSignSgd) {
  HRM_NEEDS_GPU();
  expect_sparse_signs(at::kCUDA);
}

TEST(OptimGpu, Ema) {
  HRM_NEEDS_GPU();
  expect_average(at::kCUDA);
}

// Bit for bit, NaN included: the metrics of a bad step hold some.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == at::kDouble ? at::equal(a.nan_to_num(-1), b.nan_to_num(-1)) : at::equal(a, b);
}

// Norm, clipping, update and averages of one step, captured together: what would wait for the host fails to capture.
TEST(OptimGpu, WholeStepInACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const OptimizerKind name : {OptimizerKind::adam_atan2, OptimizerKind::adamw, OptimizerKind::lion,
                                   OptimizerKind::sgd, OptimizerKind::muon}) {
    struct Side {
      explicit Side(OptimizerKind name) : layer(at::kCUDA) {
        parameters.build(layer, at::kBFloat16);
        ema = std::make_unique<Ema>(parameters, 0.9);
        optimizer = make_optimizer({name, 0.9, 0.95, 1e-8, 0.9},
                                   make_groups(parameters, group_of(parameters, 0.1, ema.get()),
                                               {.weight_decay = 0.1, .muon = name == OptimizerKind::muon}));
      }
      void step() {
        const at::NoGradGuard no_grad;
        parameters.flat_grad().copy_(grad);
        const GradNorm norm = global_norm(parameters.flat_grad(), 1.0, 2, {.report = metrics.narrow(0, 0, 3)});
        optimizer->step(lr, norm.coef, norm.nonfinite, metrics.select(0, 3));
        sparse_sign_sgd_(table, ids, rows, lr, 0.1, norm.nonfinite);
      }
      std::vector<at::Tensor> all() {
        std::vector<at::Tensor> out = {layer.weight.detach(), layer.bias.detach(), layer.compute, table, metrics};
        for (const TensorEntry& entry : list_state(*optimizer).tensors) out.push_back(entry.tensor);
        for (const at::Tensor& shadow : ema->shadows()) out.push_back(shadow);
        return out;
      }
      TinyLayer layer;
      nn::ParameterSet parameters;
      std::unique_ptr<Ema> ema;
      std::unique_ptr<Optimizer> optimizer;
      at::Tensor grad = at::zeros({128}, at::device(at::kCUDA));
      at::Tensor lr = scalar(1e-2, at::kCUDA);
      at::Tensor metrics = at::zeros({4}, at::device(at::kCUDA).dtype(at::kDouble));
      at::Tensor table = normal({50, 8}, 5, at::kCUDA);
      at::Tensor ids = at::zeros({16}, at::device(at::kCUDA).dtype(at::kInt));
      at::Tensor rows = at::zeros({16, 8}, at::device(at::kCUDA));
    };
    Side graphed(name), eager(name);
    ASSERT_EQ(graphed.parameters.flat_grad().numel(), graphed.grad.numel());
    std::vector<at::Tensor> start;
    for (const at::Tensor& tensor : graphed.all()) start.push_back(tensor.clone());
    Captured captured([&] { graphed.step(); });
    for (size_t i = 0; i < start.size(); ++i) graphed.all()[i].copy_(start[i]);  // undo the warm-up
    for (uint64_t t = 1; t <= 5; ++t) {
      for (Side* side : {&graphed, &eager}) {
        side->grad.copy_(normal({128}, t, at::kCPU) * (t == 3 ? NAN : 1.0));
        side->lr.fill_(1e-2 / static_cast<double>(t));
        auto generator = at::detail::createCPUGenerator(t);
        side->ids.copy_(at::randint(50, {16}, generator, at::kInt));
        side->rows.copy_(normal({16, 8}, 50 + t, at::kCPU));
      }
      captured.replay();
      eager.step();
      at::cuda::device_synchronize();
      const auto a = graphed.all(), b = eager.all();
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(same(a[i], b[i])) << name << " step " << t << ", tensor " << i
                                      << " of all(): " << ops::testing::describe_differences(a[i], b[i]);
      }
    }
    EXPECT_EQ(list_state(*graphed.optimizer).tensors[0].tensor.item<float>(), 4) << "the NaN step was left out";
  }
}

}  // namespace
}  // namespace hrm::optim
