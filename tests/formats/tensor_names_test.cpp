#include "hrm/formats/tensor_names.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

TEST(TensorNames, WrappersAreTakenAway) {
  const std::string core = "layers.0.mlp.up_proj.weight";
  for (const std::string prefix :
       {"", "model.", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.model.", "model._orig_mod.model.",
        "base_model.model.model.", "_forward_module.module.model.inner.", "_fsdp_wrapped_module.model."}) {
    EXPECT_EQ(core_tensor_name(prefix + core), core) << prefix;
  }
  EXPECT_EQ(core_tensor_name("model.layers.0._orig_mod.mlp._checkpoint_wrapped_module.up_proj.weight"), core);
  EXPECT_EQ(core_tensor_name("layers.0.mlp.up_proj.lora_A.default.weight"), "layers.0.mlp.up_proj.lora_A.weight");
  EXPECT_EQ(core_tensor_name("q_proj.lora_magnitude_vector.default"), "q_proj.lora_magnitude_vector");
}

TEST(TensorNames, WhatBelongsToTheModelStays) {
  for (const std::string name : {"lm_head.weight", "H_level.layers.0.mlp.down_proj.weight", "encoder.model.weight",
                                 "model", "module", "default", "", "modules.x", "my_model.x", "default.x"}) {
    EXPECT_EQ(core_tensor_name(name), name);
  }
}

TEST(TensorNames, TwoNamesOfOneTensor) {
  const std::map<std::string, std::string> want{{"a.w", "model.a.w"}, {"b", "module.b"}};
  EXPECT_EQ(by_core_name({"model.a.w", "module.b"}, "x", ExitCode::checkpoint), want);
  expect_error(
      [] {
        by_core_name({"model.a", "module.a"}, "folder", ExitCode::checkpoint);
      },
      ExitCode::checkpoint, {"'folder'", "'model.a'", "'module.a'"});
}

}  // namespace
}  // namespace hrm
