// config.json of decoders and of BERT encoders: what is read, what defaults stand for, what is refused.
#include "hrm/formats/hf_config.h"

#include <nlohmann/json.hpp>

#include "formats/format_testing.h"

namespace hrm {
namespace {

using nlohmann::json;

json qwen3() {
  return {{"model_type", "qwen3"},  {"vocab_size", 640},        {"hidden_size", 64},
          {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"head_dim", 32},         {"intermediate_size", 128}, {"max_position_embeddings", 256}};
}

HfModelConfig parse_model(const json& config, const std::string& generation = "") {
  return parse_hf_config(config.dump(), generation, "c.json");
}

// The same with other members; null takes one out.
json with(json config, const json& changes) {
  config.merge_patch(changes);
  return config;
}

void model_refused(const json& config, const std::string& part) {
  expect_error([&] { parse_model(config); }, ExitCode::checkpoint, {"c.json: ", part});
}

void write_json(const std::filesystem::path& file, const json& value) {
  std::filesystem::create_directories(file.parent_path());
  write_file(file, as_bytes(value.dump()));
}

TEST(HfConfig, ReadsASavedFolder) {
  for (const bool tied : {true, false}) {
    const HfModelConfig c = read_hf_config(fixture(tied ? "qwen3_tied" : "qwen3_untied"));
    EXPECT_EQ(c.model_type, "qwen3");
    EXPECT_EQ(c.tied, tied);
    EXPECT_TRUE(c.qk_norm);
    EXPECT_EQ(c.window, 0) << "a window that use_sliding_window switches off";
    EXPECT_EQ(c.rope_theta, tied ? 1e6 : 1e4);
    EXPECT_EQ(c.rms_norm_eps, 1e-6);
  }
  const HfModelConfig c = read_hf_config(fixture("qwen3_tied"));
  EXPECT_EQ(std::vector<int64_t>({c.vocab_size, c.hidden_size, c.layers, c.heads, c.kv_heads, c.head_dim,
                                  c.intermediate_size, c.max_position_embeddings}),
            std::vector<int64_t>({640, 64, 2, 4, 2, 32, 128, 256}));
  EXPECT_EQ(c.eos_ids, std::vector<int64_t>{639}) << "once, though both files name it";
  EXPECT_EQ(c.bos_id, -1);
  EXPECT_EQ(c.pad_id, 0);
}

// What the library's classes have for keys that are missing, and what null means.
TEST(HfConfig, DefaultsOfEachFamily) {
  const json least = with(qwen3(), {{"head_dim", nullptr}, {"num_key_value_heads", nullptr}});
  const HfModelConfig wide = parse_model(with(least, {{"num_attention_heads", 64}}));
  EXPECT_EQ(wide.head_dim, 128);
  EXPECT_EQ(wide.kv_heads, 32);
  EXPECT_EQ(wide.rope_theta, 10000);
  EXPECT_EQ(parse_model(with(least, {{"model_type", "mistral"}, {"num_attention_heads", 16}})).kv_heads, 8);
  const HfModelConfig llama = parse_model(with(least, {{"model_type", "llama"}}));
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_FALSE(llama.qk_norm);
  EXPECT_FALSE(llama.tied);
  json none = least;
  none["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse_model(none).kv_heads, 4);
}

TEST(HfConfig, RotationAtEitherPlace) {
  EXPECT_EQ(parse_model(with(qwen3(), {{"rope_theta", 5000}})).rope_theta, 5000);
  EXPECT_EQ(
      parse_model(with(qwen3(), {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}}})).rope_theta,
      7e5);
  // At both, as long as they agree.
  const json both{{"rope_theta", 5000}, {"rope_parameters", {{"rope_theta", 5000}}}};
  EXPECT_EQ(parse_model(with(qwen3(), both)).rope_theta, 5000);
  model_refused(with(qwen3(), {{"rope_theta", 5000}, {"rope_parameters", {{"rope_theta", 1e4}}}}),
                "'rope_theta' is 5000 in the file and 10000 in rope_parameters");
  json null_scaling = qwen3();
  null_scaling["rope_scaling"] = nullptr;
  EXPECT_EQ(parse_model(null_scaling).rope_theta, 10000);
  model_refused(with(qwen3(), {{"rope_parameters", {{"rope_type", 3}}}}), "'rope_type' in 'rope_parameters' must be a");
  model_refused(with(qwen3(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}),
                "'partial_rotary_factor' must be 1");
  model_refused(with(qwen3(), {{"partial_rotary_factor", 0.25}}), "'partial_rotary_factor' must be 1");
  model_refused(with(qwen3(), {{"rope_scaling", 2}}), "'rope_scaling' must be an object");
  model_refused(with(qwen3(), {{"rope_theta", -1}}), "'rope_theta' must be a number above 0");
  model_refused(with(qwen3(), {{"rope_parameters", {{"sliding_attention", {{"rope_theta", 1e4}}}}}}),
                "'rope_parameters' has a rotation of its own for 'sliding_attention'");
}

TEST(HfConfig, Windows) {
  const json mistral = with(qwen3(), {{"model_type", "mistral"}});
  EXPECT_EQ(parse_model(with(mistral, {{"sliding_window", 9}})).window, 9);
  EXPECT_EQ(parse_model(mistral).window, 4096) << "the library's default";
  json none = mistral;
  none["sliding_window"] = nullptr;
  EXPECT_EQ(parse_model(none).window, 0);
  const json some = with(qwen3(), {{"use_sliding_window", true}, {"sliding_window", 9}});
  EXPECT_EQ(parse_model(with(some, {{"max_window_layers", 0}})).window, 9);
  model_refused(with(some, {{"max_window_layers", 1}}), "'max_window_layers'");
  model_refused(some, "'max_window_layers'");
  const json alike = {{"layer_types", {"sliding_attention", "sliding_attention"}}};
  EXPECT_EQ(parse_model(with(some, alike)).window, 9);
  model_refused(with(qwen3(), alike), "'layer_types' has layers of several kinds");
  model_refused(with(some, {{"layer_types", {"full_attention", "sliding_attention"}}}), "'layer_types' has layers");
  model_refused(with(qwen3(), {{"layer_types", {"full_attention"}}}), "'layer_types' must have one entry");
}

TEST(HfConfig, EndsOfTextOfBothFiles) {
  const json several = with(qwen3(), {{"eos_token_id", {5, 6}}, {"bos_token_id", 1}, {"pad_token_id", 2}});
  const HfModelConfig c = parse_model(several, R"({"eos_token_id": [6, 7], "temperature": 0.6})");
  EXPECT_EQ(c.eos_ids, std::vector<int64_t>({5, 6, 7}));
  EXPECT_EQ(c.bos_id, 1);
  EXPECT_EQ(c.pad_id, 2);
  EXPECT_TRUE(parse_model(qwen3()).eos_ids.empty());
  model_refused(with(qwen3(), {{"eos_token_id", 640}}), "'eos_token_id' 640 is not an id of a vocabulary of 640");
  model_refused(with(qwen3(), {{"eos_token_id", {-1}}}), "'eos_token_id' must be an id");
  model_refused(with(qwen3(), {{"eos_token_id", "</s>"}}), "'eos_token_id' must be an id");
  model_refused(with(qwen3(), {{"eos_token_id", 18446744073709551615U}}), "'eos_token_id' must be an id");
  expect_error([] { parse_model(qwen3(), R"({"eos_token_id": 640})"); }, ExitCode::checkpoint, {"640 is not an id"});
  expect_error([] { parse_model(qwen3(), "{"); }, ExitCode::checkpoint, {"generation_config.json: is not valid JSON"});
}

TEST(HfConfig, RefusesWhatChangesTheArithmetic) {
  model_refused(with(qwen3(), {{"model_type", "gpt2"}}),
                "'gpt2' is not known to this program; it reads qwen3, llama, mistral, qwen2, gemma, phi3, olmo2, "
                "qwen3_moe, mixtral and olmoe");
  model_refused(with(qwen3(), {{"attention_bias", true}}), "'attention_bias' is true");
  model_refused(with(qwen3(), {{"mlp_bias", true}}), "'mlp_bias' is true");
  model_refused(with(qwen3(), {{"hidden_act", "gelu"}}), "'hidden_act' must be silu");
  model_refused(with(qwen3(), {{"num_key_value_heads", 3}}), "num_key_value_heads = 3 does not divide");
  model_refused(with(qwen3(), {{"head_dim", 31}}), "head_dim = 31 is odd");
}

// How each program marks what it has quantised, and the line that undoes it.
TEST(HfConfig, RefusesQuantisedWeights) {
  const auto refused = [](const json& changes, const std::vector<std::string>& parts) {
    expect_error([&] { parse_hf_config(with(qwen3(), changes).dump(), "", "m/config.json"); }, ExitCode::checkpoint,
                 parts);
  };
  const auto method = [](const char* name) { return json{{"quantization_config", {{"quant_method", name}}}}; };
  refused(method("bitsandbytes"), {"m/config.json: the weights are quantised (bitsandbytes)", "hf.quantize=nf4",
                                   "M.from_pretrained('m').dequantize().save_pretrained('m-float')"});
  refused(method("fp8"), {"quantised (fp8)", "import AutoModelForCausalLM as M, FineGrainedFP8Config;",
                          "quantization_config=FineGrainedFP8Config(dequantize=True)"});
  refused(method("compressed-tensors"), {"CompressedTensorsConfig(run_compressed=False)"});
  refused({{"compression_config", {{"format", "pack-quantized"}}}}, {"quantised (compressed-tensors)"});
  for (const char* name : {"gptq", "awq", "mxfp4", "hqq"}) {
    refused(method(name), {cat("quantised (", name, ")"), "the folder of the model that they were made from"});
  }
  refused({{"quantization_config", {{"bits", 4}}}}, {"the weights are quantised, and"});
  EXPECT_EQ(parse_model(with(qwen3(), {{"quantization_config", nullptr}})).layers, 2);
}

json compressed(const char* format, const char* type) {
  const json weights{{"num_bits", 8},         {"type", type},          {"symmetric", true},
                     {"group_size", nullptr}, {"strategy", "channel"}, {"block_structure", nullptr},
                     {"dynamic", false}};
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"global_compression_ratio", nullptr},
          {"kv_cache_scheme", nullptr},
          {"sparsity_config", json::object()},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations", nullptr},
              {"output_activations", nullptr}}}}}};
}

// Weights of compressed-tensors in 8 bits with a scale for each output, and nothing else of it.
TEST(HfConfig, ReadsWeightsIn8Bits) {
  const auto stored = [](const json& quantization) {
    return parse_model(with(qwen3(), {{"quantization_config", quantization}})).stored;
  };
  EXPECT_EQ(parse_model(qwen3()).stored, HfStoredWeights::floats);
  EXPECT_EQ(stored(compressed("float-quantized", "float")), HfStoredWeights::fp8);
  EXPECT_EQ(stored(compressed("int-quantized", "int")), HfStoredWeights::int8);
  EXPECT_EQ(stored(compressed("naive-quantized", "int")), HfStoredWeights::int8);
  const auto refused = [](const std::string& pointer, const json& value, const std::string& part) {
    json quantization = compressed("float-quantized", "float");
    quantization[json::json_pointer(pointer)] = value;
    const std::string text = with(qwen3(), {{"quantization_config", quantization}}).dump();
    expect_error([&] { parse_hf_config(text, "", "m/config.json"); }, ExitCode::checkpoint,
                 {"the weights are quantised (compressed-tensors) with ", part});
  };
  const std::string group = "/config_groups/group_0/";
  refused("/format", "pack-quantized", "'format' = 'pack-quantized'");
  refused("/quantization_status", "frozen", "'quantization_status' = 'frozen'");
  refused("/kv_cache_scheme", {{"num_bits", 8}}, "'kv_cache_scheme' = ");
  refused("/sparsity_config", {{"format", "sparse-24-bitmask"}}, "'sparsity_config' = ");
  refused("/something", 1, "'something' = 1");
  refused("/config_groups", json::object(), "'config_groups' missing");
  refused(group + "input_activations", {{"num_bits", 8}, {"dynamic", true}}, "'input_activations' = ");
  refused(group + "weights", nullptr, "without 'weights'");
  refused(group + "weights/num_bits", 4, "'num_bits' = 4");
  refused(group + "weights/strategy", "tensor", "'strategy' = \"tensor\"");
  refused(group + "weights/symmetric", false, "'symmetric' = false");
  refused(group + "weights/group_size", 128, "'group_size' = 128");
  refused(group + "weights/type", "int", "weights of several types");
}

TEST(HfConfig, IdsOfTheFamilies) {
  const json llama = with(qwen3(), {{"model_type", "llama"}});
  EXPECT_EQ(parse_model(llama).eos_ids, std::vector<int64_t>{2}) << "the library's default";
  EXPECT_EQ(parse_model(llama).bos_id, 1);
  json none = llama;
  none["eos_token_id"] = none["bos_token_id"] = nullptr;
  EXPECT_TRUE(parse_model(none).eos_ids.empty());
  EXPECT_EQ(parse_model(none).bos_id, -1);
}

TEST(HfConfig, NamesOfTheHub) {
  for (const char* name : {"Qwen/Qwen3-0.6B", "a/b_c"}) {
    const std::string hint = hub_name_hint(name);
    EXPECT_NE(hint.find(cat("type 'hf download ", name, " --local-dir ")), std::string::npos) << hint;
  }
  for (const char* address : {"https://huggingface.co/a/b", "hf.co/a/b", "https://huggingface.co/a/b/tree/main"}) {
    EXPECT_NE(hub_name_hint(address).find("'hf download a/b --local-dir b' and give the folder b"), std::string::npos);
  }
  const std::string data = "'hf download a/b --repo-type dataset --local-dir b' and give a file of the folder b";
  for (const char* name : {"a/b", "https://huggingface.co/datasets/a/b"}) {
    EXPECT_NE(hub_name_hint(name, HubKind::data).find(data), std::string::npos) << name;
  }
  EXPECT_EQ(hub_name_hint("a/b.jsonl", HubKind::data), "") << "a file that is not there";
  for (const char* path : {"Qwen3", "runs/a/b", "./a", "../a", "/a", "a/", "a/..", "a b/c", "a/-c"}) {
    EXPECT_EQ(hub_name_hint(path), "") << path;
  }
}

TEST(HfConfig, RefusesWrongTypesAndSizes) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "max_position_embeddings"}) {
    const std::string quoted = cat("'", key, "'");
    model_refused(with(qwen3(), {{key, nullptr}}), quoted + " is missing");
    for (const json& wrong :
         {json(0), json(-3), json("64"), json(1.5), json(true), json(int64_t{1} << 31), json(18446744073709551615U)}) {
      model_refused(with(qwen3(), {{key, wrong}}), quoted + " must be a whole number above 0");
    }
  }
  model_refused(with(qwen3(), {{"tie_word_embeddings", 1}}), "'tie_word_embeddings' must be true or false");
  model_refused(with(qwen3(), {{"rms_norm_eps", 0}}), "'rms_norm_eps' must be a number above 0");
  model_refused(with(qwen3(), {{"model_type", 3}}), "'model_type' must be a text");
  model_refused(json::array(), "must be an object");
  expect_error([] { parse_hf_config("", "", "c.json"); }, ExitCode::checkpoint, {"c.json: ", "is not valid JSON"});
  const std::string good = qwen3().dump();
  expect_truncations_fail(good, ExitCode::checkpoint,
                          [](auto bytes) { parse_hf_config(as_text(bytes), "", "c.json"); });
  EXPECT_GT(expect_flips_are_safe(good, 2000, ExitCode::checkpoint,
                                  [](auto bytes) { parse_hf_config(as_text(bytes), "", "c.json"); }),
            100);
}

TEST(HfConfig, FoldersThatAreNone) {
  const TempFolder dir;
  expect_error([&] { read_hf_config(dir / "nowhere"); }, ExitCode::checkpoint,
               {"nowhere' is not a folder of a model; ", "hf download"});
  expect_error([&] { read_hf_config("Qwen/Qwen3-0.6B"); }, ExitCode::checkpoint,
               {"'Qwen/Qwen3-0.6B' is not a folder", "type 'hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B'"});
  expect_error([&] { read_hf_config(dir.path(), ExitCode::usage); }, ExitCode::usage, {"config.json' is not there"});
}

json bert() {
  return {{"model_type", "bert"},          {"vocab_size", 700},        {"hidden_size", 48},
          {"num_hidden_layers", 3},        {"num_attention_heads", 4}, {"intermediate_size", 96},
          {"type_vocab_size", 2},          {"layer_norm_eps", 1e-12},  {"hidden_act", "gelu"},
          {"max_position_embeddings", 128}};
}

TEST(BertConfig, ReadsAndRefuses) {
  const HfBertConfig c = parse_bert_config(bert().dump(), "b.json");
  EXPECT_EQ(std::vector<int64_t>({c.vocab_size, c.hidden_size, c.layers, c.heads, c.intermediate_size,
                                  c.max_position_embeddings, c.type_vocab_size, c.max_seq_length}),
            std::vector<int64_t>({700, 48, 3, 4, 96, 128, 2, 128}));
  EXPECT_EQ(c.layer_norm_eps, 1e-12);
  const auto model_refused = [](const json& changes, const std::string& part) {
    expect_error([&] { parse_bert_config(with(bert(), changes).dump(), "b.json"); }, ExitCode::checkpoint,
                 {"b.json: ", part});
  };
  model_refused({{"model_type", "roberta"}}, "'roberta' is not an encoder");
  model_refused({{"hidden_act", "relu"}}, "'hidden_act' must be gelu");
  model_refused({{"num_attention_heads", 5}}, "num_attention_heads = 5 does not divide");
  model_refused({{"position_embedding_type", "relative_key"}}, "must be absolute");
  model_refused({{"is_decoder", true}}, "this is not an encoder");
  model_refused({{"layer_norm_eps", "x"}}, "'layer_norm_eps' must be a number above 0");
}

class SentenceFolder : public testing::Test {
 protected:
  void SetUp() override { write_json(dir_ / "config.json", bert()); }
  void model_refused(const std::vector<std::string>& parts) {
    expect_error([&] { read_bert_config(dir_.path()); }, ExitCode::checkpoint, parts);
  }
  TempFolder dir_;
};

TEST_F(SentenceFolder, TokensThatAreRead) {
  const auto read = [&](const json& limit) {
    write_json(dir_ / "sentence_bert_config.json", {{"max_seq_length", limit}, {"do_lower_case", false}});
    return read_bert_config(dir_.path()).max_seq_length;
  };
  EXPECT_EQ(read(100), 100);
  EXPECT_EQ(read(512), 128) << "no more than there are positions";
  EXPECT_EQ(read(nullptr), 128);
  write_json(dir_ / "sentence_bert_config.json", {{"max_seq_length", 2}});
  model_refused({"sentence_bert_config.json", "leaves no room"});
}

TEST_F(SentenceFolder, PoolingIsTheMean) {
  json pooling = {{"word_embedding_dimension", 48}, {"pooling_mode_mean_tokens", true}};
  write_json(dir_ / "1_Pooling/config.json", pooling);
  EXPECT_EQ(read_bert_config(dir_.path()).hidden_size, 48);
  pooling["pooling_mode_cls_token"] = true;
  write_json(dir_ / "1_Pooling/config.json", pooling);
  model_refused({"1_Pooling", "another pooling than the mean"});
  write_json(dir_ / "1_Pooling/config.json", {{"pooling_mode_mean_tokens", false}});
  model_refused({"1_Pooling", "another pooling than the mean"});
  write_json(dir_ / "1_Pooling/config.json", {{"pooling_mode", "cls"}});
  model_refused({"1_Pooling", "'pooling_mode' must be mean"});
}

TEST_F(SentenceFolder, ModulesAfterThePooling) {
  const auto module = [](const char* path, const std::string& kind) {
    return json{{"path", path}, {"type", "sentence_transformers.models." + kind}};
  };
  json modules = {module("", "Transformer"), module("1_Pooling", "Pooling"), module("2_Normalize", "Normalize")};
  write_json(dir_ / "modules.json", modules);
  EXPECT_EQ(read_bert_config(dir_.path()).layers, 3) << "a cosine does not see the length";
  modules.push_back(module("3_Dense", "Dense"));
  write_json(dir_ / "modules.json", modules);
  model_refused({"modules.json", "'sentence_transformers.models.Dense'"});
  write_json(dir_ / "modules.json", {{"path", ""}});
  model_refused({"modules.json", "must be a list"});
}

}  // namespace
}  // namespace hrm
