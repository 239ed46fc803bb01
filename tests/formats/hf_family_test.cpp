// Families of causal decoders: their configurations as published, kinds of rotation, and what is refused by its key.
#include "hrm/formats/hf_family.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/format_testing.h"
#include "hrm/formats/hf_config.h"

namespace hrm {
namespace {

using nlohmann::json;

HfModelConfig read_family(const json& config) {
  return parse_hf_config(config.dump(), "", "c.json");
}

// The same with other members; null takes one out.
json family_with(json config, const json& changes) {
  config.merge_patch(changes);
  return config;
}

void not_read(const json& config, const std::vector<std::string>& parts) {
  std::vector<std::string> all{"c.json: "};
  all.insert(all.end(), parts.begin(), parts.end());
  expect_error([&] { read_family(config); }, ExitCode::checkpoint, all);
}

json of_sizes(const char* type, int64_t vocabulary, int64_t width, int64_t inner, int64_t layers, int64_t heads,
              int64_t kv_heads, int64_t positions) {
  return {{"model_type", type},         {"vocab_size", vocabulary},        {"hidden_size", width},
          {"intermediate_size", inner}, {"num_hidden_layers", layers},     {"num_attention_heads", heads},
          {"hidden_act", "silu"},       {"num_key_value_heads", kv_heads}, {"max_position_embeddings", positions}};
}

// Members as the published files have them, written from their facts.
json llama32() {
  return family_with(of_sizes("llama", 128256, 2048, 8192, 16, 32, 8, 131072),
                     {{"attention_bias", false},
                      {"mlp_bias", false},
                      {"head_dim", 64},
                      {"pretraining_tp", 1},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 500000.0},
                      {"rope_scaling",
                       {{"factor", 32.0},
                        {"high_freq_factor", 4.0},
                        {"low_freq_factor", 1.0},
                        {"original_max_position_embeddings", 8192},
                        {"rope_type", "llama3"}}},
                      {"bos_token_id", 128000},
                      {"eos_token_id", {128001, 128008, 128009}},
                      {"tie_word_embeddings", true}});
}

json qwen25() {
  return family_with(of_sizes("qwen2", 151936, 896, 4864, 24, 14, 2, 32768), {{"max_window_layers", 21},
                                                                              {"sliding_window", 32768},
                                                                              {"use_sliding_window", false},
                                                                              {"use_mrope", false},
                                                                              {"rms_norm_eps", 1e-6},
                                                                              {"rope_theta", 1e6},
                                                                              {"bos_token_id", 151643},
                                                                              {"eos_token_id", 151643},
                                                                              {"tie_word_embeddings", true}});
}

json gemma() {
  return family_with(of_sizes("gemma", 256000, 2048, 16384, 18, 8, 1, 8192), {{"hidden_act", "gelu"},
                                                                              {"attention_bias", false},
                                                                              {"head_dim", 256},
                                                                              {"rms_norm_eps", 1e-6},
                                                                              {"rope_theta", 10000.0},
                                                                              {"bos_token_id", 2},
                                                                              {"eos_token_id", 1},
                                                                              {"pad_token_id", 0}});
}

json phi3() {
  json config =
      family_with(of_sizes("phi3", 32064, 3072, 8192, 32, 32, 32, 4096), {{"attention_bias", false},
                                                                          {"embd_pdrop", 0.0},
                                                                          {"resid_pdrop", 0.0},
                                                                          {"original_max_position_embeddings", 4096},
                                                                          {"rms_norm_eps", 1e-5},
                                                                          {"rope_theta", 10000.0},
                                                                          {"sliding_window", 2047},
                                                                          {"bos_token_id", 1},
                                                                          {"eos_token_id", 32000},
                                                                          {"tie_word_embeddings", false}});
  config["rope_scaling"] = nullptr;
  return config;
}

json olmo2() {
  json config = family_with(of_sizes("olmo2", 100352, 2048, 8192, 16, 16, 16, 4096), {{"attention_bias", false},
                                                                                      {"rms_norm_eps", 1e-6},
                                                                                      {"rope_theta", 500000},
                                                                                      {"eos_token_id", 100257},
                                                                                      {"tie_word_embeddings", false}});
  config["rope_scaling"] = nullptr;
  return config;
}

json mistral() {
  return family_with(of_sizes("mistral", 32000, 4096, 14336, 32, 32, 8, 32768),
                     {{"sliding_window", 4096}, {"rope_theta", 10000.0}, {"rms_norm_eps", 1e-5}, {"eos_token_id", 2}});
}

// Members as the published files of Qwen3-30B-A3B, Mixtral-8x7B and OLMoE-1B-7B have them.
json qwen3_moe() {
  json config =
      family_with(of_sizes("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, 40960), {{"attention_bias", false},
                                                                                {"decoder_sparse_step", 1},
                                                                                {"head_dim", 128},
                                                                                {"max_window_layers", 48},
                                                                                {"mlp_only_layers", json::array()},
                                                                                {"moe_intermediate_size", 768},
                                                                                {"norm_topk_prob", true},
                                                                                {"num_experts", 128},
                                                                                {"num_experts_per_tok", 8},
                                                                                {"output_router_logits", false},
                                                                                {"rms_norm_eps", 1e-6},
                                                                                {"rope_theta", 1e6},
                                                                                {"router_aux_loss_coef", 0.001},
                                                                                {"bos_token_id", 151643},
                                                                                {"eos_token_id", 151645},
                                                                                {"use_sliding_window", false},
                                                                                {"tie_word_embeddings", false}});
  config["rope_scaling"] = config["sliding_window"] = nullptr;
  return config;
}

json mixtral() {
  json config =
      family_with(of_sizes("mixtral", 32000, 4096, 14336, 32, 32, 8, 32768), {{"num_experts_per_tok", 2},
                                                                              {"num_local_experts", 8},
                                                                              {"output_router_logits", false},
                                                                              {"rms_norm_eps", 1e-5},
                                                                              {"rope_theta", 1e6},
                                                                              {"router_aux_loss_coef", 0.02},
                                                                              {"bos_token_id", 1},
                                                                              {"eos_token_id", 2},
                                                                              {"tie_word_embeddings", false}});
  config["sliding_window"] = nullptr;
  return config;
}

json olmoe() {
  json config = family_with(of_sizes("olmoe", 50304, 2048, 1024, 16, 16, 16, 4096), {{"attention_bias", false},
                                                                                     {"norm_topk_prob", false},
                                                                                     {"num_experts", 64},
                                                                                     {"num_experts_per_tok", 8},
                                                                                     {"output_router_logits", false},
                                                                                     {"rope_theta", 10000.0},
                                                                                     {"router_aux_loss_coef", 0.01},
                                                                                     {"eos_token_id", 50279},
                                                                                     {"pad_token_id", 1},
                                                                                     {"tie_word_embeddings", false}});
  config["clip_qkv"] = config["rope_scaling"] = nullptr;
  return config;
}

json rope(const json& parameters) {
  return {{"rope_scaling", parameters}};
}

TEST(HfFamily, PublishedConfigurations) {
  const HfModelConfig llama = read_family(llama32());
  EXPECT_EQ(llama.rope, (RopeScaling{.kind = RopeKind::llama3,
                                     .factor = 32,
                                     .original_positions = 8192,
                                     .low_freq_factor = 1,
                                     .high_freq_factor = 4}));
  EXPECT_TRUE(llama.tied);
  EXPECT_EQ(llama.eos_ids.size(), 3u);
  EXPECT_EQ(llama.form, DecoderForm{});

  const HfModelConfig qwen = read_family(qwen25());
  EXPECT_EQ(qwen.form, DecoderForm{.qkv_bias = true});
  EXPECT_EQ(qwen.window, 0);
  EXPECT_EQ(qwen.head_dim, 64);
  EXPECT_FALSE(qwen.qk_norm);

  const HfModelConfig first_gemma = read_family(gemma());
  EXPECT_EQ(first_gemma.form, (DecoderForm{.gelu_gate = true, .scaled_embedding = true, .centred_norms = true}));
  EXPECT_TRUE(first_gemma.tied) << "the library's default";
  EXPECT_EQ(first_gemma.head_dim, 256);
  EXPECT_EQ(read_family(family_with(gemma(), {{"head_dim", nullptr}})).head_dim, 256) << "not the width by the heads";

  const HfModelConfig phi = read_family(phi3());
  EXPECT_EQ(phi.form, DecoderForm{.joined_weights = true});
  EXPECT_EQ(phi.window, 2047);
  EXPECT_EQ(read_family(family_with(phi3(), {{"sliding_window", nullptr}})).window, 0);
  EXPECT_EQ(read_family(family_with(phi3(), {{"rms_norm_eps", nullptr}})).rms_norm_eps, 1e-5);

  EXPECT_EQ(read_family(olmo2()).form, (DecoderForm{.wide_qk_norm = true, .norms_behind = true}));
  EXPECT_EQ(read_family(mistral()).window, 4096);
  EXPECT_EQ(read_family(family_with(mistral(), {{"sliding_window", nullptr}})).window, 4096) << "a missing key";

  // Without a stretched rotation, and with fewer keys than newer files.
  const json llama2 = family_with(of_sizes("llama", 32000, 4096, 11008, 32, 32, 32, 4096), {{"rms_norm_eps", 1e-5}});
  EXPECT_EQ(read_family(llama2).rope, RopeScaling{});
  EXPECT_EQ(read_family(family_with(llama2, {{"num_key_value_heads", nullptr}})).kv_heads, 32);
  json smollm = family_with(of_sizes("llama", 49152, 576, 1536, 30, 9, 3, 8192),
                            {{"tie_word_embeddings", true}, {"rope_theta", 100000}, {"rope_interleaved", false}});
  smollm["rope_scaling"] = nullptr;
  EXPECT_EQ(read_family(smollm).head_dim, 64);
}

TEST(HfFamily, ExpertsAsPublished) {
  const HfModelConfig qwen = read_family(qwen3_moe());
  EXPECT_EQ(qwen.experts,
            (DecoderExperts{.count = 128, .top_k = 8, .inner = 768, .normalize = true, .load_weight = 0.001}));
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_EQ(qwen.window, 0);
  EXPECT_TRUE(qwen.experts.has(0));
  const HfModelConfig eight = read_family(mixtral());
  EXPECT_EQ(eight.experts,
            (DecoderExperts{.count = 8, .top_k = 2, .inner = 14336, .normalize = true, .load_weight = 0.02}));
  EXPECT_EQ(eight.form, DecoderForm{.mixtral_names = true});
  EXPECT_EQ(read_family(family_with(mixtral(), {{"sliding_window", 4096}})).window, 4096);
  EXPECT_EQ(read_family(family_with(mixtral(), {{"rope_theta", nullptr}})).rope_theta, 1e6) << "the library's default";
  const HfModelConfig olmo = read_family(olmoe());
  EXPECT_EQ(olmo.experts, (DecoderExperts{.count = 64, .top_k = 8, .inner = 1024, .load_weight = 0.01}));
  EXPECT_EQ(olmo.form, DecoderForm{.wide_qk_norm = true});
  EXPECT_EQ(olmo.rms_norm_eps, 1e-5) << "the library's default";

  // The library's defaults for keys that are missing, and another name of the number.
  json bare = qwen3_moe();
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                          "decoder_sparse_step", "mlp_only_layers", "router_aux_loss_coef"}) {
    bare.erase(key);
  }
  EXPECT_EQ(read_family(bare).experts, (DecoderExperts{.count = 128, .top_k = 8, .inner = 768, .load_weight = 0.001}));
  EXPECT_EQ(read_family(family_with(bare, {{"num_local_experts", 16}})).experts.count, 16);

  const auto dense = [](const json& changes) {
    return read_family(family_with(family_with(qwen3_moe(), {{"num_hidden_layers", 6}}), changes)).experts.dense_layers;
  };
  using Layers = std::vector<int64_t>;
  EXPECT_EQ(dense({{"decoder_sparse_step", 2}}), Layers({0, 2, 4}));
  EXPECT_EQ(dense({{"mlp_only_layers", {5, 1}}}), Layers({1, 5}));
  EXPECT_EQ(dense({{"mlp_only_layers", {5, 1}}, {"decoder_sparse_step", 3}}), Layers({0, 1, 3, 4, 5}));
  EXPECT_EQ(read_family(family_with(qwen3_moe(), {{"use_sliding_window", true}, {"sliding_window", 64}})).window, 64)
      << "all layers of this family have it";
}

TEST(HfFamily, ExpertsThatAreRefused) {
  const auto refuses = [](const json& config, const json& changes, const std::string& part) {
    not_read(family_with(config, changes), {part});
  };
  for (const json& config : {qwen3_moe(), mixtral(), olmoe()}) {
    refuses(config, {{"output_router_logits", 1}}, "'output_router_logits' must be true or false");
    EXPECT_FALSE(read_family(config).experts.load_loss);
    EXPECT_TRUE(read_family(family_with(config, {{"output_router_logits", true}})).experts.load_loss);
    refuses(config, {{"router_jitter_noise", 0.1}}, "'router_jitter_noise' must be 0");
    refuses(config, {{"clip_qkv", 8.0}}, "'clip_qkv' must be null");
    refuses(config, {{"num_experts_per_tok", 129}}, "'num_experts_per_tok' = 129 must be at most ");
    refuses(config, {{"num_experts_per_tok", 0}}, "'num_experts_per_tok' must be a whole number above 0");
    refuses(config, {{"router_aux_loss_coef", -1}}, "'router_aux_loss_coef' must be a number of at least 0");
    refuses(config, {{"hidden_act", "gelu"}}, "'hidden_act' must be silu");
  }
  refuses(qwen3_moe(), {{"num_experts_per_tok", 33}}, "must be at most 32 with 128 experts");
  refuses(qwen3_moe(), {{"num_experts", 2048}}, "'num_experts' = 2048 is more than this program has kernels for");
  refuses(qwen3_moe(), {{"num_local_experts", 64}}, "'num_experts' and 'num_local_experts' differ");
  refuses(qwen3_moe(), {{"norm_topk_prob", 1}}, "'norm_topk_prob' must be true or false");
  refuses(qwen3_moe(), {{"moe_intermediate_size", 0}}, "'moe_intermediate_size' must be a whole number");
  refuses(qwen3_moe(), {{"decoder_sparse_step", 0}}, "'decoder_sparse_step' must be a whole number above 0");
  refuses(qwen3_moe(), {{"decoder_sparse_step", 49}}, "leave no layer with experts");
  refuses(qwen3_moe(), {{"mlp_only_layers", 3}}, "'mlp_only_layers' must be a list");
  refuses(qwen3_moe(), {{"mlp_only_layers", {48}}}, "'mlp_only_layers' must list layers from 0 to 47");
  refuses(qwen3_moe(), {{"num_hidden_layers", 1 << 20}, {"decoder_sparse_step", 2}}, "is more than 4096");
}

TEST(HfFamily, RotationsWithAllTheirNumbers) {
  const auto scaling = [](const json& parameters) { return read_family(family_with(olmo2(), rope(parameters))).rope; };
  EXPECT_EQ(scaling({{"type", "linear"}, {"factor", 2}}), (RopeScaling{.kind = RopeKind::linear, .factor = 2}));
  EXPECT_EQ(scaling({{"rope_type", "dynamic"}, {"factor", 2}}), (RopeScaling{.kind = RopeKind::dynamic, .factor = 2}));
  EXPECT_EQ(scaling({{"rope_type", "linear"}, {"type", "other"}, {"factor", 2}}).kind, RopeKind::linear);
  const json yarn{{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}};
  const RopeScaling plain = scaling(yarn);
  EXPECT_EQ(plain.original_positions, 1024);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_TRUE(plain.truncate);
  EXPECT_NEAR(plain.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  const RopeScaling full =
      scaling(family_with(yarn, {{"beta_fast", 16}, {"beta_slow", 2}, {"attention_factor", 0.5}, {"truncate", false}}));
  EXPECT_EQ(full.beta_fast, 16);
  EXPECT_EQ(full.beta_slow, 2);
  EXPECT_EQ(full.attention_factor, 0.5);
  EXPECT_FALSE(full.truncate);
  const RopeScaling both = scaling(family_with(yarn, {{"mscale", 2.0}, {"mscale_all_dim", 0.5}}));
  EXPECT_NEAR(both.attention_factor, (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  EXPECT_EQ(scaling(family_with(yarn, {{"mscale", 2.0}})).attention_factor, plain.attention_factor)
      << "one is not enough";
  EXPECT_EQ(scaling(family_with(yarn, {{"factor", 1}})).attention_factor, 1);
  EXPECT_EQ(scaling(family_with(yarn, {{"original_max_position_embeddings", nullptr}})).original_positions, 4096)
      << "all positions, as in the library";
  const json file = family_with(family_with(olmo2(), rope(yarn)), {{"original_max_position_embeddings", 512}});
  EXPECT_EQ(read_family(file).rope.original_positions, 512) << "the file's own comes first, as in the library";
  const json twice = family_with(file, {{"rope_parameters", yarn}});
  EXPECT_EQ(read_family(twice).rope.kind, RopeKind::yarn) << "at both places, as long as they agree";
  not_read(family_with(twice, {{"rope_parameters", {{"factor", 8}}}}),
           {"'rope_scaling' asks for another rotation than"});
}

TEST(HfFamily, RotationsThatAreRefused) {
  const auto refuses = [](const json& config, const json& parameters, const std::string& part) {
    not_read(family_with(config, rope(parameters)), {part});
  };
  refuses(llama32(), {{"rope_type", "longrope"}}, "a rotation of kind 'longrope'; for llama this program has default,");
  refuses(phi3(), {{"type", "longrope"}}, "a rotation of kind 'longrope'; for phi3 this program has default");
  refuses(phi3(), {{"type", "su"}}, "of kind 'su'");
  refuses(phi3(), {{"type", "yarn"}, {"factor", 2}}, "of kind 'yarn'; for phi3 this program has default");
  refuses(qwen25(), {{"type", "mrope"}}, "of kind 'mrope'");
  refuses(olmo2(), {{"type", "linear"}}, "the rotation of kind 'linear' lacks 'factor'");
  refuses(olmo2(), {{"type", "linear"}, {"factor", 0}}, "'factor' must be a number above 0");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 2}, {"beta_fast", -1}}, "'beta_fast' must be a number above 0");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 2}, {"beta_slow", "x"}}, "'beta_slow' must be a number above 0");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}, "'truncate' must be true or false");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}, "'attention_factor' must be a number");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 2}, {"mscale", -1}}, "'mscale' must be a number of at least 0");
  refuses(olmo2(), {{"type", "yarn"}, {"factor", 1e9}, {"mscale", 1e308}, {"mscale_all_dim", 1e308}},
          "'mscale' and 'mscale_all_dim' make no finite factor");
  refuses(family_with(olmo2(), {{"rope_theta", 1}}), {{"type", "yarn"}, {"factor", 2}}, "'rope_theta' must be above 1");
  refuses(llama32(), {{"low_freq_factor", nullptr}}, "the rotation of kind 'llama3' lacks 'low_freq_factor'");
  refuses(llama32(), {{"high_freq_factor", nullptr}}, "the rotation of kind 'llama3' lacks 'high_freq_factor'");
  refuses(llama32(), {{"high_freq_factor", 1}}, "'high_freq_factor' must be above 'low_freq_factor'");
}

// "gelu" means the tanh approximation in this family, at the one of the two keys that released files have it at.
TEST(HfFamily, GatesOfGemma) {
  EXPECT_TRUE(read_family(family_with(gemma(), {{"hidden_act", "gelu_pytorch_tanh"}})).form.gelu_gate);
  EXPECT_TRUE(read_family(family_with(gemma(), {{"hidden_activation", "gelu_pytorch_tanh"}})).form.gelu_gate);
  EXPECT_TRUE(read_family(family_with(gemma(), {{"hidden_act", nullptr}})).form.gelu_gate);
  json none = gemma();
  none["hidden_activation"] = nullptr;
  EXPECT_TRUE(read_family(none).form.gelu_gate);
  not_read(family_with(gemma(), {{"hidden_act", "silu"}}), {"'hidden_act' must be gelu_pytorch_tanh"});
  not_read(family_with(gemma(), {{"hidden_activation", "gelu"}}), {"'hidden_activation' must be gelu_pytorch_tanh"});
  not_read(family_with(olmo2(), {{"hidden_act", "gelu_pytorch_tanh"}}), {"'hidden_act' must be silu"});
}

TEST(HfFamily, WhatChangesTheArithmeticIsRefusedByItsKey) {
  for (const json& config :
       {llama32(), qwen25(), gemma(), phi3(), olmo2(), mistral(), qwen3_moe(), mixtral(), olmoe()}) {
    for (const char* key : {"attention_bias", "mlp_bias", "use_bidirectional_attention", "use_mrope"}) {
      not_read(family_with(config, {{key, true}}), {cat("'", key, "' is true")});
    }
    not_read(family_with(config, {{"partial_rotary_factor", 0.5}}), {"'partial_rotary_factor' must be 1"});
    not_read(family_with(config, {{"quantization_config", {{"quant_method", "gptq"}}}}), {"quantised (gptq)"});
  }
  not_read(family_with(qwen25(), {{"use_sliding_window", true}}), {"'max_window_layers' lets some layers see all"});
}

TEST(HfFamily, OtherFamiliesAreRefusedByWhatDiffers) {
  const std::vector<std::pair<const char*, const char*>> others = {{"gemma2", "attn_logit_softcapping"},
                                                                   {"gemma3", "rope_local_base_freq"},
                                                                   {"gemma3_text", "layer_types"},
                                                                   {"gpt_oss", "swiglu_limit"},
                                                                   {"olmo", "clip_qkv"},
                                                                   {"phi", "partial_rotary_factor"},
                                                                   {"phimoe", "router_jitter_noise"},
                                                                   {"qwen2_moe", "shared_expert_intermediate_size"},
                                                                   {"smollm3", "no_rope_layers"}};
  for (const auto& [type, key] : others) {
    not_read(family_with(olmo2(), {{"model_type", type}}),
             {cat("the architecture '", type, "' is not known to this program, because "), key, "; it reads qwen3, "});
    EXPECT_EQ(find_hf_family(type), nullptr);
  }
}

TEST(HfFamily, TargetsOfJoinedLayers) {
  using List = std::vector<std::string>;
  const auto joined_targets = [](const List& list) { return family_targets({.joined_weights = true}, list); };
  EXPECT_EQ(family_targets({}, {"q_proj", "k_proj", "v_proj"}), List({"q_proj", "k_proj", "v_proj"}));
  EXPECT_EQ(family_targets({.mixtral_names = true}, {"q_proj", "gate_proj", "up_proj", "down_proj", "w2"}),
            List({"q_proj", "w1", "w3", "w2", "w2"}));
  EXPECT_EQ(joined_targets({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
            List({"o_proj", "down_proj", "qkv_proj", "gate_up_proj"}));
  EXPECT_EQ(joined_targets({"qkv_proj", "o_proj"}), List({"qkv_proj", "o_proj"}));
  EXPECT_EQ(joined_targets({"q_proj", "v_proj"}), List({"q_proj", "v_proj"})) << "no layer is called so, then";
  EXPECT_EQ(joined_targets({"all-linear"}), List({"all-linear"}));
}

// docs/polychromic.md lists the families of the table, row by row.
TEST(HfFamily, TheDocumentationListsTheTable) {
  const std::string page = read_text(test::source_dir() + "/docs/polychromic.md", ExitCode::data);
  std::set<std::string_view> types;
  for (const HfFamily& family : hf_families()) {
    EXPECT_TRUE(types.insert(family.model_type).second) << family.model_type;
    const std::string row = cat("| `", family.model_type, "` | ", family.models, " | ");
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
  size_t rows = 0, at = page.find("| `model_type` |");
  ASSERT_NE(at, std::string::npos);
  while ((at = page.find("\n| `", at + 1)) != std::string::npos &&
         at < page.find("\n\n", page.find("| `model_type` |"))) {
    ++rows;
  }
  EXPECT_EQ(rows, types.size()) << "rows that the table in code has not";
}

}  // namespace
}  // namespace hrm
