#include "checkpoint/hf_export.h"

#include <ATen/ATen.h>

#include <map>

#include "checkpoint/hf_names.h"
#include "checkpoint/output_folder.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/data/chat_template.h"
#include "hrm/formats/safetensors.h"
#include "hrm/ops/weight8.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kOtherFormats = "; use --to safetensors or --to torchscript";

// known_experts: those of a family.
void check_kind(const NamedTensors& weights, bool known_experts) {
  for (const auto& [name, tensor] : weights) {
    require(name.starts_with("model."), ExitCode::usage,
            "transformers has no architecture for an HRM language model (it holds '", name, "')", kOtherFormats);
    require(known_experts || name.find(".mlp.router.") == std::string::npos, ExitCode::usage,
            "transformers has no architecture for this mixture of experts (the model holds '", name,
            "'); it has one for SwiGLU experts with softmax scores, without a capacity, a selection bias or shared "
            "experts",
            kOtherFormats);
  }
}

NamedTensors their_weights(const models::DecoderOptions& options, const NamedTensors& weights) {
  std::map<std::string, HfWeight> expected = hf_weights(options);
  NamedTensors theirs;
  for (const auto& [name, tensor] : weights) {
    const auto found = expected.find(name);
    require(found != expected.end(), ExitCode::checkpoint, "the checkpoint holds '", name,
            "', which the model of its configuration has not");
    require(tensor.sizes() == found->second.shape, ExitCode::checkpoint, "the checkpoint's '", name, "' has shape ",
            tensor.sizes(), ", that of its configuration ", at::IntArrayRef(found->second.shape));
    int64_t row = 0;
    for (const auto& [their_name, rows] : found->second.parts) {
      theirs.emplace_back(their_name, tensor.narrow(0, row, rows));
      row += rows;
    }
    expected.erase(found);
  }
  require(expected.empty(), ExitCode::checkpoint, "the checkpoint lacks '",
          expected.empty() ? std::string() : expected.begin()->first, "'");
  return theirs;
}

bool has_experts_of(const ExpertKeys& keys, const DecoderExperts& experts) {
  return (keys.count > 0) == (experts.count > 0) && (!keys.normalizes || experts.normalize) &&
         (keys.some_dense || experts.dense_layers.empty());
}

bool computes(const HfFamily& family, const models::DecoderOptions& o) {
  return family.form == o.form && family.qk_norm == o.qk_norm && has_experts_of(family.experts, o.experts) &&
         (o.window == 0 || family.window != WindowRule::never) &&
         (o.rope.kind == RopeKind::standard || family.stretched_rope);
}

const HfFamily& family_of(const models::DecoderOptions& o, const std::string& model_type) {
  for (const HfFamily& family : hf_families()) {
    if ((model_type.empty() || model_type == family.model_type) && computes(family, o)) return family;
  }
  fail(ExitCode::usage, model_type.empty() ? "no architecture" : cat("the architecture '", model_type, "'"),
       " of transformers computes ", model_type.empty() ? "" : "not ", "what this model does", kOtherFormats);
}

Json rope_json(const models::DecoderOptions& o) {
  const RopeScaling& s = o.rope;
  Json rope = {{"rope_type", name(s.kind)}, {"rope_theta", o.rope_theta}};
  if (s.kind != RopeKind::standard) rope["factor"] = s.factor;
  if (s.original_positions > 0) rope["original_max_position_embeddings"] = static_cast<int64_t>(s.original_positions);
  if (s.kind == RopeKind::llama3) {
    rope["low_freq_factor"] = s.low_freq_factor;
    rope["high_freq_factor"] = s.high_freq_factor;
  } else if (s.kind == RopeKind::yarn) {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    rope["attention_factor"] = s.attention_factor;
    rope["truncate"] = s.truncate;
  }
  return rope;
}

void add_expert_keys(Json& config, const ExpertKeys& keys, const DecoderExperts& experts) {
  if (experts.count == 0) return;
  // By its first name, which all releases of the library read.
  config[keys.normalizes ? "num_local_experts" : "num_experts"] = experts.count;
  config["num_experts_per_tok"] = experts.top_k;
  config["router_aux_loss_coef"] = experts.load_weight;
  config["output_router_logits"] = experts.load_loss;
  if (!keys.normalizes) config["norm_topk_prob"] = experts.normalize;
  if (keys.inner > 0) {
    config["moe_intermediate_size"] = experts.inner;
  } else {
    config["intermediate_size"] = experts.inner;
  }
  if (keys.some_dense) {
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = experts.dense_layers;
  }
}

Json token_ids(const HfTokens& tokens) {
  Json ids = Json::object();
  const auto add = [&](const char* key, int64_t id) {
    if (id >= 0) ids[key] = id;
  };
  add("bos_token_id", tokens.bos);
  add("eos_token_id", tokens.eos);
  if (tokens.ends.size() > 1) ids["eos_token_id"] = tokens.ends;
  add("pad_token_id", tokens.pad);
  return ids;
}

std::string text_of(const Json& json) {
  return json.dump(2) + "\n";
}

// "model-00002-of-00003.safetensors"
std::string shard_name(size_t number, size_t count) {
  const auto digits = [](size_t value) {
    const std::string text = std::to_string(value);
    return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
  };
  return cat("model-", digits(number), "-of-", digits(count), ".safetensors");
}

at::ScalarType weight8_type(nn::WeightFormat format) {
  return format == nn::WeightFormat::int8 ? at::kChar : at::kFloat8_e4m3fn;
}

// Whether a weight of this name, as transformers calls it, is written in 8 bits: the matrices of blocks.
bool written_in_8_bits(const HfFormat& format, const std::string& name, const at::Tensor& tensor) {
  return nn::is_quantized(format.weights) && tensor.dim() == 2 && name.find(".layers.") != std::string::npos;
}

uint64_t written_bytes(const HfFormat& format, const std::string& name, const at::Tensor& tensor) {
  if (written_in_8_bits(format, name, tensor)) {
    return static_cast<uint64_t>(ops::weight8_bytes(tensor.size(0), tensor.size(1)));
  }
  return static_cast<uint64_t>(tensor.numel()) * c10::elementSize(format.dtype);
}

// The tensors that a weight is written as, on the host.
NamedTensors written_tensors(const HfFormat& format, const std::string& name, const at::Tensor& tensor) {
  if (!written_in_8_bits(format, name, tensor)) return {{name, host_tensor(tensor.detach().to(format.dtype))}};
  const ops::Weight8 weight = ops::quantize_weight8(tensor.detach(), weight8_type(format.weights));
  require(at::isfinite(weight.scales).all().item<bool>(), ExitCode::checkpoint, "'", name,
          "' contains values that are not finite, which 8 bits with a scale for each output cannot store; use --dtype "
          "bfloat16");
  return {{name, host_tensor(weight.values)}, {name + "_scale", host_tensor(weight.scales.unsqueeze(1))}};
}

// What config.json says of weights in 8 bits, as compressed-tensors writes it.
Json quantization_json(nn::WeightFormat format) {
  const bool fp8 = format == nn::WeightFormat::fp8;
  const Json weights = {{"num_bits", 8},         {"type", fp8 ? "float" : "int"}, {"symmetric", true},
                        {"group_size", nullptr}, {"strategy", "channel"},         {"dynamic", false}};
  const char* const name = fp8 ? "float-quantized" : "int-quantized";
  // Without a format of its own, a group of integers is read as packed ones.
  const Json group = {{"targets", {"Linear"}},
                      {"format", name},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"}, {"format", name},
          {"quantization_status", "compressed"},  {"config_groups", {{"group_0", group}}},
          {"kv_cache_scheme", nullptr},           {"ignore", {"lm_head"}}};
}

void write_weights(const NamedTensors& weights, const HfFormat& format, const fs::path& folder) {
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const auto& [name, tensor] : weights) {
    sizes.push_back(written_bytes(format, name, tensor));
    total += sizes.back();
  }
  const std::vector<size_t> counts = shard_counts(sizes, format.shard_bytes);
  Json weight_map = Json::object();
  auto next = weights.begin();
  for (size_t shard = 0; shard < counts.size(); ++shard) {
    const std::string file = counts.size() == 1 ? "model.safetensors" : shard_name(shard + 1, counts.size());
    NamedTensors hosts;
    std::vector<SafetensorsEntry> entries;
    for (size_t i = 0; i < counts[shard]; ++i, ++next) {
      for (const auto& [name, host] : written_tensors(format, next->first, next->second)) {
        hosts.emplace_back(name, host);
        entries.push_back({name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
        weight_map[name] = file;
      }
    }
    write_safetensors(folder / file, entries, {{"format", "pt"}});
  }
  if (counts.size() == 1) return;
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  write_file(folder / "model.safetensors.index.json", as_bytes(text_of(index)));
}

}  // namespace

std::vector<size_t> shard_counts(const std::vector<uint64_t>& sizes, uint64_t most) {
  std::vector<size_t> counts{0};
  uint64_t filled = 0;
  for (const uint64_t size : sizes) {
    if (counts.back() > 0 && (filled > most || size > most - filled)) {
      counts.push_back(0);
      filled = 0;
    }
    ++counts.back();
    filled += size;
  }
  return counts;
}

HfModel hf_model(const models::DecoderOptions& options, const NamedTensors& weights, const HfTokens& tokens,
                 at::ScalarType dtype, const std::string& model_type) {
  require(dtype == at::kFloat || dtype == at::kBFloat16, ExitCode::usage,
          "a folder for transformers holds float32 or bfloat16, not ", at::toString(dtype));
  check_kind(weights, options.experts.count > 0);
  const models::DecoderOptions o = models::resolve(options);
  const HfFamily& family = family_of(o, model_type);
  Json config = {{"architectures", {family.architecture}},
                 {"model_type", family.model_type},
                 {"vocab_size", o.vocabulary},
                 {"hidden_size", o.width},
                 {"intermediate_size", o.inner},
                 {"num_hidden_layers", o.layers},
                 {"num_attention_heads", o.heads},
                 {"num_key_value_heads", o.kv_heads},
                 {"head_dim", o.head_dim},
                 {"hidden_act", o.form.gelu_gate ? "gelu_pytorch_tanh" : "silu"},
                 {"max_position_embeddings", o.positions},
                 {"rms_norm_eps", o.eps},
                 // Version 5 of transformers reads the second of these, versions before it the first.
                 {"rope_theta", o.rope_theta},
                 {"rope_parameters", rope_json(o)},
                 {"tie_word_embeddings", o.tied},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"use_cache", true},
                 {"torch_dtype", dtype == at::kFloat ? "float32" : "bfloat16"}};
  if (o.rope.kind != RopeKind::standard) config["rope_scaling"] = rope_json(o);  // versions before 5
  if (o.form.gelu_gate) config["hidden_activation"] = "gelu_pytorch_tanh";       // these, too
  add_expert_keys(config, family.experts, o.experts);
  const bool switched = family.window == WindowRule::switched || family.window == WindowRule::all_switched;
  if (family.window != WindowRule::never && (o.window > 0 || !switched)) {
    config["sliding_window"] = o.window > 0 ? Json(o.window) : Json();
  }
  if (switched && o.window > 0) {
    config["use_sliding_window"] = true;
    if (family.window == WindowRule::switched) config["max_window_layers"] = 0;
  } else if (family.window == WindowRule::never && o.form == DecoderForm{}) {
    config["mlp_bias"] = false;
  }
  const Json ids = token_ids(tokens);
  // Where the text has none, the libraries' own defaults must not are in.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    config[key] = ids.contains(key) ? ids[key] : Json();
  }
  return {.config = config, .generation = ids, .weights = their_weights(o, weights)};
}

Json hf_tokenizer_config(const models::DecoderOptions& options, const HfTokens& tokens) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"model_max_length", options.positions},
                 {"clean_up_tokenization_spaces", false}};
  const auto add = [&](const char* key, const std::string& text) {
    if (!text.empty()) config[key] = text;
  };
  add("bos_token", tokens.bos_text);
  add("eos_token", tokens.eos_text);
  add("pad_token", tokens.pad_text);
  return config;
}

void export_hf(const models::DecoderOptions& options, const NamedTensors& weights, const HfTokens& tokens,
               const fs::path& folder, const HfFormat& format) {
  HfModel model = hf_model(options, weights, tokens, format.dtype, format.model_type);
  if (nn::is_quantized(format.weights)) {
    require(format.weights != nn::WeightFormat::nf4, ExitCode::unexpected, "folders hold 8 bits, not NF4");
    require(options.experts.count == 0, ExitCode::usage,
            "weights of experts are not written in 8 bits; use --dtype bfloat16");
    model.config["quantization_config"] = quantization_json(format.weights);
  }
  write_folder(folder, [&](const fs::path& place) {
    const auto write = [&](const char* name, const std::string& text) {
      if (!fs::exists(place / name)) write_file(place / name, as_bytes(text));
    };
    for (const fs::path& file : tokens.files) {
      const fs::path to = place / data::place_beside_tokenizer(file);
      fs::create_directories(to.parent_path());
      write_file(to, MappedFile(file).bytes());
    }
    write_weights(model.weights, format, place);
    write("config.json", text_of(model.config));
    write("generation_config.json", text_of(model.generation));
    if (tokens.tokenizer.empty()) return;
    write_file(place / "tokenizer.json", MappedFile(tokens.tokenizer).bytes());
    write("tokenizer_config.json", text_of(hf_tokenizer_config(options, tokens)));
  });
}

}  // namespace hrm::checkpoint
