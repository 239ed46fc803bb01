// Every op with its kernels. An op that is missing here was dropped by the linker: the ops' object files must be linked
// by name, because a static archive leaves out objects that only register themselves.
#include <gtest/gtest.h>

#include <map>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"

namespace hrm::ops {
namespace {

TEST(Registration, EveryOpHasItsKernels) {
  const std::vector<std::string> expected = {
      "hrm::act_begin_",
      "hrm::act_end_",
      "hrm::act_loss",
      "hrm::act_loss_backward",
      "hrm::act_q_target",
      "hrm::adam_",
      "hrm::add_fp8",
      "hrm::attention",
      "hrm::attention_backward",
      "hrm::attention_forward",
      "hrm::attention_fp8",
      "hrm::attention_projected",
      "hrm::augment_rows_",
      "hrm::bridge_gate",
      "hrm::bridge_gate_backward_",
      "hrm::decode_attention_",
      "hrm::decode_linear",
      "hrm::decode_linear_ahead",
      "hrm::dropout",
      "hrm::dropout_add_",
      "hrm::embed",
      "hrm::embed_backward",
      "hrm::embed_tokens_backward_",
      "hrm::fp8_update_scales_",
      "hrm::grad_norm",
      "hrm::halt_probabilities",
      "hrm::halt_probabilities_backward_",
      "hrm::halting_loss",
      "hrm::linear",
      "hrm::linear_accumulate_",
      "hrm::linear_add",
      "hrm::linear_fp8",
      "hrm::linear_grad_x",
      "hrm::linear_grad_x_add_",
      "hrm::linear_rms_norm",
      "hrm::linear_rms_norm_add",
      "hrm::linear_rms_norm_forward",
      "hrm::linear_rms_norm_fp8",
      "hrm::linear_swiglu",
      "hrm::linear_swiglu_backward",
      "hrm::linear_swiglu_forward",
      "hrm::linear_swiglu_fp8",
      "hrm::lora_add_",
      "hrm::lora_gradients",
      "hrm::lora_merge_",
      "hrm::memory_blocks",
      "hrm::memory_blocks_forward",
      "hrm::mlp_mix",
      "hrm::mlp_mix_backward",
      "hrm::mlp_mix_forward",
      "hrm::moe_accumulate_",
      "hrm::moe_combine",
      "hrm::moe_combine_backward",
      "hrm::moe_experts",
      "hrm::moe_gate",
      "hrm::moe_gate_backward",
      "hrm::moe_gather",
      "hrm::moe_jitter",
      "hrm::moe_linear",
      "hrm::moe_load_loss_",
      "hrm::moe_loads_",
      "hrm::moe_plan",
      "hrm::moe_router",
      "hrm::moe_up",
      "hrm::moe_up_backward",
      "hrm::next_tokens_",
      "hrm::nf4_dequantize_",
      "hrm::nf4_quantize",
      "hrm::qkv_heads_backward",
      "hrm::qkv_heads_norm",
      "hrm::qkv_heads_product",
      "hrm::qkv_heads_rotate_",
      "hrm::quantize_fp8",
      "hrm::quantize_fp8_",
      "hrm::rms_norm_backward",
      "hrm::rms_norm_residual",
      "hrm::rms_norm_residual_forward",
      "hrm::rotate_qkv",
      "hrm::rotate_qkv_",
      "hrm::rotate_qkv_backward",
      "hrm::sample_tokens",
      "hrm::semantic_diversity",
      "hrm::softmax_loss_",
      "hrm::sparse_sign_sgd_",
      "hrm::ssd_scan",
      "hrm::ssd_scan_backward",
      "hrm::sum_rows",
      "hrm::swiglu",
      "hrm::swiglu_backward",
      "hrm::token_loss",
      "hrm::token_loss_backward",
      "hrm::weighted_rms_norm",
      "hrm::weighted_rms_norm_backward",
      "hrm::weighted_rms_norm_forward",
  };
  std::vector<std::string> found;
  for (const OpInfo& op : op_table()) {
    found.push_back(op.name);
    EXPECT_TRUE(op.cpu) << op.name << " has no CPU kernel";
    EXPECT_EQ(op.cuda, bool{HRM_WITH_CUDA}) << op.name;
    EXPECT_TRUE(op.autograd) << op.name << " has no Autograd kernel";
  }
  EXPECT_EQ(found, expected);
}

TEST(Backend, IsFusedUnlessSet) {
  EXPECT_EQ(backend(), Backend::fused);
  set_backend(Backend::reference);
  EXPECT_EQ(backend(), Backend::reference);
  set_backend(Backend::fused);
}

}  // namespace
}  // namespace hrm::ops
