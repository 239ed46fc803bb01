// What profiles count the kernels of the ops as (the families' *_bench.cpp).
#include "hrm/runtime/kernel_groups.h"

#include <gtest/gtest.h>

namespace hrm::ops {
namespace {

TEST(KernelGroup, NamesOfOurs) {
  EXPECT_EQ(kernel_group("void hrm::ops::cuda::(anonymous namespace)::forward<__nv_bfloat16, 8, unsigned int>("
                         "hrm::ops::cuda::SwigluForward, unsigned int)"),
            "SwiGLU");
  EXPECT_EQ(kernel_group("hrm::linear_swiglu_forward"), "matrix products with SwiGLU");
  EXPECT_EQ(kernel_group("sm90::swiglu_gradient_kernel<(sm90::Input)0, 3, 5>(CUtensorMap_st, SwigluGradient)"),
            "matrix products with SwiGLU");
  EXPECT_EQ(kernel_group("sm90::tile_kernel<sm90::LinearRotatedTile<(sm90::Input)0>, 3>(CUtensorMap_st)"),
            "matrix products with rotation");
  // Of two parts that fit, the longer one counts.
  EXPECT_EQ(kernel_group("hrm::linear_rms_norm_fp8"), "matrix products with RMSNorm");
  EXPECT_EQ(kernel_group("hrm::linear_fp8"), "matrix products");
  EXPECT_EQ(kernel_group("hrm::attention_fp8"), "quantisation");
  EXPECT_EQ(kernel_group("hrm::qkv_heads_norm"), "rotary positions");
}

}  // namespace
}  // namespace hrm::ops
