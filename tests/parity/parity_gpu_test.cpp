// The model, loss and optimizer cases on a GPU, in full float32. The tolerances are those of the CPU.

#include "ops/gpu_testing.h"
#include "parity/cases.h"
#include "support/paths.h"

namespace hrm::parity {
namespace {

class OnGpu {
 public:
  OnGpu() { device() = at::Device(at::kCUDA, 0); }
  ~OnGpu() { device() = at::kCPU; }

 private:
  ops::testing::WithoutTf32 full_;
};

class ParityGpu : public testing::TestWithParam<std::string> {};

TEST_P(ParityGpu, Case) {
  HRM_NEEDS_GPU();
  const Case loaded = load_case(std::filesystem::path(test::source_dir()) / "tests/fixtures" / GetParam());
  const OnGpu on_gpu;
  registered_kinds().at(loaded.kind)(loaded);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ParityGpu,
                         testing::Values("hrm_forward", "hrm_forward_s81", "hrm_forward_learned", "hrm_forward_bf16",
                                         "trm_forward_att", "trm_forward_mlp", "trm_forward_bf16", "hrm_train_trace",
                                         "hrm_train_trace_bf16", "trm_train_trace_att", "trm_train_trace_mlp",
                                         "checkpoint_hrm", "checkpoint_hrm_bf16", "checkpoint_trm", "losses",
                                         "grad_clip", "optim_adam_atan2", "optim_adamw", "bert_embed", "diversity"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hrm::parity
