// Steps of models of each family: with prompts that are shared or not, with adapters, with all weights, with NF4, and
// with blocks computed again.
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

TEST_P(CausalFamilies, AdaptersBesideNf4) {
  const Overrides model{"hf.model=" + folder_of_family(GetParam())};
  const Step plain = step_of(model), nf4 = step_of(with(model, {"hf.quantize=nf4"}));
  EXPECT_TRUE(has_gradients(nf4));
  ASSERT_EQ(nf4.gradients.size(), plain.gradients.size());
  EXPECT_GT(largest_gap(nf4, plain), 1e-6) << "quantised weights are others";
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
