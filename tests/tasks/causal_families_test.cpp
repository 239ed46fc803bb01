// Steps of models of each family: with prompts that are shared or not, with adapters, with all weights, with quantised
// weights, and with blocks computed again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "hrm/formats/hf_family.h"
#include "support/expect_error.h"
#include "tasks/polychromic_steps.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::has_gradients;
using testing::largest_gap;
using testing::Overrides;
using testing::SmallPolychromic;
using testing::Step;
using testing::step_of;
using testing::with;

// A folder with a small config.json of the family, and changes to it.
std::string folder_of_family(const std::string& model_type, const nlohmann::json& changes = {}) {
  nlohmann::json config{{"model_type", model_type},   {"vocab_size", 264},      {"hidden_size", 32},
                        {"intermediate_size", 48},    {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},   {"head_dim", 8},          {"max_position_embeddings", 128},
                        {"sliding_window", 24},       {"eos_token_id", 1},      {"bos_token_id", 2},
                        {"tie_word_embeddings", true}};
  if (find_hf_family(model_type)->experts.count > 0) {
    config.update({{"num_experts", 5}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}});
  }
  if (!changes.is_null()) config.merge_patch(changes);
  const fs::path dir = fresh_folder("family_" + model_type);
  fs::create_directories(dir);
  std::ofstream(dir / "config.json") << config.dump();
  return dir.string();
}

class CausalFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(CausalFamilies, StepsAreTheSameHoweverTheyAreComputed) {
  const Overrides model{"hf.model=" + folder_of_family(GetParam()), "train.micro_batch_size=4"};
  for (const Overrides& kind : {model, with(model, {"lora.r=0"})}) {
    const Step rows = step_of(with(kind, {"polychromic.share_prompts=off"}));
    EXPECT_TRUE(has_gradients(rows)) << kind.back();
    for (const Overrides& way : {Overrides{"polychromic.share_prompts=responses"},
                                 Overrides{"polychromic.share_prompts=off", "hf.recompute=true"}}) {
      const Step other = step_of(with(kind, way));
      EXPECT_LE(largest_gap(other, rows), 1e-4) << kind.back() << ", " << way.back();
      EXPECT_TRUE(at::allclose(other.sums, rows.sums, 1e-4, 1e-5)) << other.sums << rows.sums;
    }
  }
}

TEST_P(CausalFamilies, AdaptersBesideQuantisedWeights) {
  const Overrides model{"hf.model=" + folder_of_family(GetParam())};
  for (const char* format : {"nf4", "fp8", "int8"}) {
    const Overrides quantized = with(model, {cat("hf.quantize=", format)});
    if (find_hf_family(GetParam())->experts.count > 0) {
      test::expect_error(ExitCode::usage, {cat("hf.quantize = ", format, " is for dense models"), GetParam()},
                         [&] { step_of(quantized); });
      continue;
    }
    const Step plain = step_of(model), held = step_of(quantized);
    EXPECT_TRUE(has_gradients(held)) << format;
    ASSERT_EQ(held.gradients.size(), plain.gradients.size()) << format;
    EXPECT_GT(largest_gap(held, plain), 1e-6) << format << ": quantised weights are others";
  }
}

INSTANTIATE_TEST_SUITE_P(All, CausalFamilies, ::testing::ValuesIn([] {
                           std::vector<std::string> types;
                           for (const HfFamily& family : hf_families()) types.emplace_back(family.model_type);
                           return types;
                         }()),
                         [](const auto& info) { return info.param; });

// Phi-3's layers are joined: all parts together mean the layer, some of them are no layer.
TEST(CausalJoinedLayers, NamesOfTargets) {
  const std::string folder = folder_of_family("phi3");
  const auto names = [&](const std::string& targets) {
    SmallPolychromic run(fresh_folder("targets"),
                         {"hf.model=" + folder, targets.empty() ? "lora.r=4" : "lora.targets=" + targets});
    std::set<std::string> ends;
    for (const nn::LoraAdapter::Pair& pair : run.task.lm().lora->pairs()) {
      ends.insert(pair.name.substr(pair.name.rfind('.') + 1));
    }
    return ends;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(names(""), (Names{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}));
  EXPECT_EQ(names("q_proj,k_proj,v_proj"), Names{"qkv_proj"});
  EXPECT_EQ(names("gate_up_proj"), Names{"gate_up_proj"});
  EXPECT_EQ(names("all-linear"), (Names{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}));
  test::expect_error(ExitCode::usage, {"no layer is called 'q_proj'", "qkv_proj"}, [&] { names("q_proj,v_proj"); });
}

// Adapters are on the experts unless the targets leave them out. What they have not is refused.
TEST(CausalExperts, Targets) {
  const std::string folder = folder_of_family("mixtral");
  const auto names = [&](const Overrides& more) {
    SmallPolychromic run(fresh_folder("targets"), with({"hf.model=" + folder, "lora.r=4"}, more));
    std::set<std::string> names;
    for (const nn::LoraAdapter::Pair& pair : run.task.lm().lora->pairs()) names.insert(pair.name);
    return names;
  };
  const std::set<std::string> all = names({});
  EXPECT_EQ(all.size(), 2u * (4 + 5 * 3));
  for (const char* name :
       {"model.layers.1.block_sparse_moe.experts.4.w1", "model.layers.0.block_sparse_moe.experts.0.w2",
        "model.layers.1.block_sparse_moe.experts.2.w3", "model.layers.0.self_attn.q_proj"}) {
    EXPECT_TRUE(all.contains(name)) << name;
  }
  EXPECT_EQ(names({"lora.targets=q_proj,k_proj,v_proj,o_proj"}).size(), 2u * 4);
  EXPECT_EQ(names({"lora.targets=w2", "lora.dropout=0"}).size(), 2u * 5);
  EXPECT_EQ(names({"lora.targets=q_proj", "lora.dropout=0.1"}).size(), 2u);
  test::expect_error(ExitCode::usage, {"adapters on experts have no dropout"}, [&] { names({"lora.dropout=0.1"}); });
}

// A loss that the file asks for is not left out silently.
TEST(CausalExperts, LossOfTheLoadIsRefused) {
  const std::string folder = folder_of_family("olmoe", {{"output_router_logits", true}});
  test::expect_error(ExitCode::usage, {"sets output_router_logits", "set it to false"},
                     [&] { SmallPolychromic run(fresh_folder("loss"), {"hf.model=" + folder}); });
}

// Experts beside an adapter are stored only in the compute dtype, and trained ones in float32.
TEST(CausalExperts, Dtype) {
  const std::string folder = folder_of_family("olmoe");
  const auto dtype = [&](const Overrides& more) {
    SmallPolychromic run(fresh_folder("dtype"), with({"hf.model=" + folder, "precision.compute=bf16"}, more));
    return run.task.lm().model->named_parameters()["model.layers.0.mlp.down.weight"].scalar_type();
  };
  EXPECT_EQ(dtype({}), at::kBFloat16);
  EXPECT_EQ(dtype({"lora.r=0"}), at::kFloat);
}

// The estimate of a token's products counts the experts that it goes to.
TEST(CausalExperts, MatrixElements) {
  SmallPolychromic run(fresh_folder("elements"), {"hf.model=" + folder_of_family("qwen3_moe"), "lora.r=0"});
  const double D = 32, attention = (32 + 2 * 16) * D + 32 * D, head = 264 * D;
  EXPECT_DOUBLE_EQ(tasks::matrix_elements(run.task.lm()), 2 * (attention + 5 * D + 2 * 3 * D * 16) + head);
}

// Rows of a dynamic rotation may be as long as the model was trained for, and no longer.
TEST(CausalDynamicRotation, LongerRowsAreRefused) {
  const auto folder = [](int64_t positions) {
    return folder_of_family("llama", {{"max_position_embeddings", positions},
                                      {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4.0}}}});
  };
  const auto open = [&](int64_t positions) {
    SmallPolychromic run(fresh_folder("dynamic"), {"hf.model=" + folder(positions)});
    return run.task.lm().facts.rope.kind;
  };
  EXPECT_EQ(open(128), RopeKind::dynamic);
  test::expect_error(ExitCode::usage,
                     {"longer than the model of",
                      "max_position_embeddings = 32, beyond which a rotation of kind "
                      "'dynamic' changes with the length"},
                     [&] { open(32); });
}

}  // namespace
}  // namespace hrm
