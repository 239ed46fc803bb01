#include "hrm/formats/hf_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMostSize = int64_t{1} << 31;  // of any size
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kMostMixedLayers = 4096;  // of a model in which only some layers have experts
constexpr const char* kGeneration = "generation_config.json";

// Members of an object with their checks.
class Reader {
 public:
  Reader(std::string_view text, const std::string& origin, ExitCode code)
      : origin_(origin), code_(code), json_(parse_json(text, origin, code)) {
    require(json_.is_object(), code, origin, ": must be an object");
  }

  template <class... Args>
  void check(bool holds, const Args&... why) const {
    hrm::require(holds, code_, origin_, ": ", why...);
  }
  // Whether the member is there, be it null.
  bool says(const char* key) const { return json_.contains(key); }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const json& at(const char* key) const {
    check(has(key), "'", key, "' is missing");
    return json_[key];
  }
  int64_t size(const char* key) const { return size_of(at(key), key); }
  int64_t size(const char* key, int64_t otherwise) const { return has(key) ? size(key) : otherwise; }
  double positive(const json& value, const char* key) const {
    check(value.is_number() && value.get<double>() > 0 && std::isfinite(value.get<double>()), "'", key,
          "' must be a number above 0");
    return value.get<double>();
  }
  std::string text(const char* key) const {
    check(at(key).is_string(), "'", key, "' must be a text");
    return at(key).get<std::string>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    check(at(key).is_boolean(), "'", key, "' must be true or false");
    return at(key).get<bool>();
  }
  // An id, or -1 for none; of a list the first.
  int64_t id(const char* key) const {
    const std::vector<int64_t> all = ids(key);
    return all.empty() ? -1 : all.front();
  }
  std::vector<int64_t> ids(const char* key) const {
    if (!has(key)) return {};
    std::vector<int64_t> all;
    const json& value = at(key);
    const auto add = [&](const json& one) {
      check(one.is_number_integer() && one >= 0 && one < kMostSize, "'", key, "' must be an id, or a list of ids");
      all.push_back(one.get<int64_t>());
    };
    if (value.is_array()) {
      check(value.size() <= 64, "'", key, "' has ", value.size(), " ids; at most 64 are read");
      for (const json& one : value) add(one);
    } else {
      add(value);
    }
    return all;
  }

 private:
  int64_t size_of(const json& value, const char* key) const {
    check(value.is_number_integer() && value > 0 && value < kMostSize, "'", key, "' must be a whole number above 0");
    return value.get<int64_t>();
  }

  std::string origin_;
  ExitCode code_;
  json json_;
};

// A member of an object of rotation parameters; null is as if it were not there.
const json* member_of(const json& rope, const char* key) {
  const auto found = rope.find(key);
  return found == rope.end() || found->is_null() ? nullptr : &*found;
}

double number_of(const Reader& in, const json& rope, const char* key, double otherwise) {
  const json* value = member_of(rope, key);
  return value == nullptr ? otherwise : in.positive(*value, key);
}

double needed_number(const Reader& in, const json& rope, const char* key, RopeKind kind) {
  in.check(member_of(rope, key) != nullptr, "the rotation of kind '", name(kind), "' lacks '", key, "'");
  return number_of(in, rope, key, 0);
}

// By how much yarn multiplies cos and sin: attention_factor, or what the other members say of it.
double yarn_attention(const Reader& in, const json& rope, double factor) {
  if (const json* given = member_of(rope, "attention_factor")) return in.positive(*given, "attention_factor");
  const auto scale = [&](double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1; };
  const auto said = [&](const char* key) {
    const json* value = member_of(rope, key);
    if (value == nullptr) return 0.0;
    in.check(value->is_number() && std::isfinite(value->get<double>()) && value->get<double>() >= 0, "'", key,
             "' must be a number of at least 0");
    return value->get<double>();
  };
  const double mscale = said("mscale"), all = said("mscale_all_dim");
  return mscale > 0 && all > 0 ? scale(mscale) / scale(all) : scale(1);
}

// `positions`: max_position_embeddings; `original`: the member of the file itself, or 0.
RopeScaling read_scaling(const Reader& in, const json& rope, const char* place, const HfFamily& family,
                         double positions, double original) {
  std::string kind = "default";
  for (const char* key : {"type", "rope_type"}) {  // the second one counts
    const json* value = member_of(rope, key);
    if (value == nullptr) continue;
    in.check(value->is_string(), "'", key, "' in '", place, "' must be a text");
    kind = value->get<std::string>();
  }
  RopeScaling out;
  bool known = false;
  std::string kinds;
  for (const RopeKind one :
       {RopeKind::standard, RopeKind::linear, RopeKind::dynamic, RopeKind::yarn, RopeKind::llama3}) {
    if (one != RopeKind::standard && !family.stretched_rope) break;
    kinds += cat(kinds.empty() ? "" : ", ", name(one));
    if (kind != name(one)) continue;
    out.kind = one;
    known = true;
  }
  in.check(known, "'", place, "' asks for a rotation of kind '", printable_start(kind), "'; for ", family.model_type,
           " this program has ", kinds);
  if (out.kind == RopeKind::standard) return out;
  out.factor = needed_number(in, rope, "factor", out.kind);
  if (out.kind == RopeKind::yarn || out.kind == RopeKind::llama3) {
    out.original_positions =
        original > 0 ? original : number_of(in, rope, "original_max_position_embeddings", positions);
  }
  if (out.kind == RopeKind::yarn) {
    out.beta_fast = number_of(in, rope, "beta_fast", out.beta_fast);
    out.beta_slow = number_of(in, rope, "beta_slow", out.beta_slow);
    out.attention_factor = yarn_attention(in, rope, out.factor);
    in.check(std::isfinite(out.attention_factor) && out.attention_factor > 0,
             "'mscale' and 'mscale_all_dim' make no finite factor of attention");
    if (const json* truncate = member_of(rope, "truncate")) {
      in.check(truncate->is_boolean(), "'truncate' must be true or false");
      out.truncate = truncate->get<bool>();
    }
  } else if (out.kind == RopeKind::llama3) {
    out.low_freq_factor = needed_number(in, rope, "low_freq_factor", out.kind);
    out.high_freq_factor = needed_number(in, rope, "high_freq_factor", out.kind);
    in.check(out.high_freq_factor > out.low_freq_factor, "'high_freq_factor' must be above 'low_freq_factor'");
  }
  return out;
}

// theta and kind of the rotation, at the top level or in rope_parameters or rope_scaling.
void read_rotation(const Reader& in, const HfFamily& family, HfModelConfig& c) {
  const auto positions = static_cast<double>(c.max_position_embeddings);
  const auto original = static_cast<double>(in.size("original_max_position_embeddings", 0));
  const char* scaled = nullptr;
  double theta = family.rope_theta;
  const char* place = nullptr;
  const auto set = [&](const json& value, const char* where) {
    const double one = in.positive(value, "rope_theta");
    in.check(place == nullptr || one == theta, "'rope_theta' is ", theta, " in ", place == nullptr ? "" : place,
             " and ", one, " in ", where, "; take one of them away");
    theta = one;
    place = where;
  };
  if (in.has("rope_theta")) set(in.at("rope_theta"), "the file");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!in.has(key)) continue;
    const json& rope = in.at(key);
    in.check(rope.is_object(), "'", key, "' must be an object");
    for (const auto& [member, value] : rope.items()) {
      in.check(!value.is_object(), "'", key, "' has a rotation of its own for '", printable_start(member),
               "'; this program's layers share one");
    }
    const RopeScaling scaling = read_scaling(in, rope, key, family, positions, original);
    in.check(scaled == nullptr || scaling == c.rope, "'", key, "' asks for another rotation than '",
             scaled == nullptr ? "" : scaled, "'; take one of them away");
    c.rope = scaling;
    scaled = key;
    if (const json* own = member_of(rope, "rope_theta")) set(*own, key);
    if (const json* part = member_of(rope, "partial_rotary_factor")) {
      in.check(*part == 1.0, "'partial_rotary_factor' must be 1: all of a head is turned");
    }
  }
  in.check(c.rope.kind != RopeKind::yarn || theta > 1, "'rope_theta' must be above 1 for a rotation of kind 'yarn'");
  c.rope_theta = theta;
}

// What of the arithmetic the file may change, key by key.
void check_arithmetic(const Reader& in, const HfFamily& family) {
  in.check(!in.has("partial_rotary_factor") || in.at("partial_rotary_factor") == 1.0,
           "'partial_rotary_factor' must be 1: all of a head is turned");
  if (family.form.gelu_gate) {
    // The library takes "gelu" in files of this family for the tanh approximation, which the models were trained with.
    const std::string act = in.has("hidden_act") ? in.text("hidden_act") : "gelu_pytorch_tanh";
    in.check(act == "gelu_pytorch_tanh" || act == "gelu", "'hidden_act' must be gelu_pytorch_tanh");
    in.check(!in.has("hidden_activation") || in.text("hidden_activation") == "gelu_pytorch_tanh",
             "'hidden_activation' must be gelu_pytorch_tanh");
  } else {
    in.check(!in.has("hidden_act") || in.text("hidden_act") == "silu", "'hidden_act' must be silu");
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    in.check(!in.flag(key, false), "'", key, "' is true; this program's layers have no such biases");
  }
  in.check(!in.flag("use_bidirectional_attention", false),
           "'use_bidirectional_attention' is true; this program's attention is causal");
  in.check(!in.flag("use_mrope", false), "'use_mrope' is true; this program's positions are single numbers");
  in.check(!in.has("clip_qkv"), "'clip_qkv' must be null; this program's queries, keys and values are not clipped");
}

// The layers of a family with experts that have none.
std::vector<int64_t> dense_layers(const Reader& in, int64_t layers) {
  const int64_t step = in.size("decoder_sparse_step", 1);
  std::set<int64_t> listed;
  std::vector<int64_t> dense;
  if (in.has("mlp_only_layers")) {
    const json& list = in.at("mlp_only_layers");
    in.check(list.is_array(), "'mlp_only_layers' must be a list of layers");
    for (const json& layer : list) {
      in.check(layer.is_number_integer() && layer >= 0 && layer < layers,
               "'mlp_only_layers' must list layers from 0 to ", layers - 1);
      listed.insert(layer.get<int64_t>());
    }
  }
  if (listed.empty() && step == 1) return {};
  in.check(layers <= kMostMixedLayers, "'num_hidden_layers' = ", layers, " is more than ", kMostMixedLayers,
           ", with 'decoder_sparse_step' or 'mlp_only_layers'");
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (listed.contains(layer) || (layer + 1) % step != 0) dense.push_back(layer);
  }
  in.check(static_cast<int64_t>(dense.size()) < layers,
           "'decoder_sparse_step' and 'mlp_only_layers' leave no layer with experts");
  return dense;
}

DecoderExperts read_experts(const Reader& in, const HfFamily& family, const HfModelConfig& c) {
  const ExpertKeys& keys = family.experts;
  if (keys.count == 0) return {};
  DecoderExperts out{.count = keys.count, .load_weight = keys.load_weight};
  // Releases of the library differ in which of these names they write.
  const char* place = nullptr;
  for (const char* key : {"num_experts", "num_local_experts"}) {
    if (!in.has(key)) continue;
    in.check(place == nullptr || in.size(key) == out.count, "'num_experts' and 'num_local_experts' differ");
    out.count = in.size(key);
    place = key;
  }
  in.check(out.count <= kMostExperts, "'", place == nullptr ? "num_experts" : place, "' = ", out.count,
           " is more than this program has kernels for (", kMostExperts, ")");
  out.top_k = in.size("num_experts_per_tok", keys.top_k);
  in.check(out.top_k <= std::min(out.count, kMostPicks), "'num_experts_per_tok' = ", out.top_k, " must be at most ",
           std::min(out.count, kMostPicks), " with ", out.count, " experts");
  out.inner = keys.inner > 0 ? in.size("moe_intermediate_size", keys.inner) : c.intermediate_size;
  out.normalize = keys.normalizes || in.flag("norm_topk_prob", false);
  if (keys.some_dense) out.dense_layers = dense_layers(in, c.layers);
  if (in.has("router_aux_loss_coef")) {
    const json& weight = in.at("router_aux_loss_coef");
    in.check(weight.is_number() && weight >= 0, "'router_aux_loss_coef' must be a number of at least 0");
    out.load_weight = weight.get<double>();
  }
  out.load_loss = in.flag("output_router_logits", false);
  in.check(!in.has("router_jitter_noise") || in.at("router_jitter_noise") == 0,
           "'router_jitter_noise' must be 0; this program's routers read what the layer reads");
  return out;
}

std::string families_text() {
  std::string text;
  const std::span<const HfFamily> all = hf_families();
  for (size_t i = 0; i < all.size(); ++i)
    text += cat(i == 0 ? "" : i + 1 == all.size() ? " and " : ", ", all[i].model_type);
  return text;
}

// The line that makes a folder of floating-point weights of `folder`, where transformers has one.
std::string dequantise_line(const std::string& method, const std::string& folder) {
  const std::string start = "python3 -c \"from transformers import AutoModelForCausalLM as M";
  const std::string save = cat(".save_pretrained('", folder, "-float')\"");
  if (method == "bitsandbytes") {
    return cat(start, "; M.from_pretrained('", folder, "').dequantize()", save);
  }
  std::string config;
  if (method == "fp8") config = "FineGrainedFP8Config(dequantize=True)";
  if (method == "compressed-tensors") config = "CompressedTensorsConfig(run_compressed=False)";
  if (config.empty()) return "";
  return cat(start, ", ", config.substr(0, config.find('(')), "; M.from_pretrained('", folder,
             "', quantization_config=", config, ")", save);
}

using Unread = std::optional<std::string>;  // what of a file this program does not read

// Members of `object` other than these, or with a value that is neither empty nor the one here.
Unread unread_member(const json& object, const std::string& where, const std::map<std::string, json>& read,
                     const std::set<std::string>& free) {
  for (const auto& [key, value] : object.items()) {
    const auto found = read.find(key);
    const bool fits = value.empty() || free.contains(key) || (found != read.end() && value == found->second);
    if (!fits) return cat(where, "'", printable_start(key), "' = ", printable_start(value.dump()));
  }
  for (const auto& [key, value] : read) {
    if (!object.contains(key) || object[key].is_null()) return cat(where, "'", key, "' missing");
  }
  return std::nullopt;
}

// A configuration of compressed-tensors: 8-bit weights with a scale for each output, and nothing else quantised.
Unread unread_compressed(const json& config, HfStoredWeights& stored) {
  const auto text = [](const json& from, const char* key) {
    return from.contains(key) && from[key].is_string() ? from[key].get<std::string>() : std::string();
  };
  const std::string format = text(config, "format");
  if (format != "float-quantized" && format != "int-quantized" && format != "naive-quantized") {
    return cat("'format' = '", printable_start(format), "'");
  }
  const Unread top =
      unread_member(config, "", {{"quant_method", "compressed-tensors"}, {"format", format}},
                    {"config_groups", "quantization_status", "global_compression_ratio", "ignore", "version"});
  if (top) return top;
  const std::string status = text(config, "quantization_status");
  if (!status.empty() && status != "compressed") return cat("'quantization_status' = '", printable_start(status), "'");
  if (!config.contains("config_groups") || !config["config_groups"].is_object() || config["config_groups"].empty()) {
    return "'config_groups' missing";
  }
  stored = HfStoredWeights::floats;
  for (const auto& [name, group] : config["config_groups"].items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) {
      return cat("a group '", printable_start(name), "' without 'weights'");
    }
    const Unread member = unread_member(group, "", {}, {"targets", "weights", "format"});
    if (member) return member;
    const json& weights = group["weights"];
    const std::string type = text(weights, "type");
    const HfStoredWeights kind = type == "int" ? HfStoredWeights::int8 : HfStoredWeights::fp8;
    if (type != "int" && type != "float") return cat("weights of 'type' = '", printable_start(type), "'");
    const bool other = (format == "float-quantized" && type == "int") || (format == "int-quantized" && type == "float");
    if (other || (stored != HfStoredWeights::floats && stored != kind)) return "weights of several types";
    const Unread argument = unread_member(
        weights, "weights with ",
        {{"num_bits", 8}, {"type", type}, {"strategy", "channel"}, {"symmetric", true}, {"dynamic", false}},
        {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
    if (argument) return argument;
    stored = kind;
  }
  return std::nullopt;
}

HfStoredWeights read_stored_weights(const Reader& in, const std::string& folder) {
  HfStoredWeights stored = HfStoredWeights::floats;
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!in.has(key)) continue;
    const json& config = in.at(key);
    std::string method;
    if (config.is_object() && config.contains("quant_method") && config["quant_method"].is_string()) {
      method = config["quant_method"].get<std::string>();
    } else if (std::string_view(key) == "compression_config") {
      method = "compressed-tensors";
    }
    Unread unread = "";
    if (method == "compressed-tensors" && config.is_object()) unread = unread_compressed(config, stored);
    if (!unread) continue;
    const std::string line = dequantise_line(method, printable(folder));
    in.check(false, "the weights are quantised", method.empty() ? "" : cat(" (", printable_start(method), ")"),
             unread->empty() ? "" : cat(" with ", *unread),
             ", and this program reads floating-point ones, or 8-bit ones of compressed-tensors with a scale for each "
             "output and 16-bit activations; give the folder of the model that they were made from, "
             "which hf.quantize=nf4 then holds in 4 bits",
             line.empty() ? "" : cat(", or make a folder of floating-point weights: ", line));
  }
  return stored;
}

// The steps from a text to its vector. Whether the last one divides by the length does not matter to a cosine.
void check_modules(const fs::path& file, ExitCode code) {
  const json modules = parse_json(read_text(file, code), file.string(), code);
  require(modules.is_array(), code, file.string(), ": must be a list of modules");
  for (const json& module : modules) {
    const auto type = module.is_object() ? module.find("type") : module.end();
    require(module.is_object() && type != module.end() && type->is_string(), code, file.string(),
            ": must be a list of modules, each with its 'type'");
    const std::string text = type->get<std::string>();
    const std::string name = text.substr(text.rfind('.') + 1);
    require(name == "Transformer" || name == "Pooling" || name == "Normalize", code, file.string(), ": the module '",
            printable_start(text), "' is not known to this program; it has Transformer, Pooling and Normalize");
  }
}

std::string text_of(const fs::path& file, ExitCode code) {
  std::error_code ignored;
  const std::string folder = file.parent_path().string(), hint = hub_name_hint(folder);
  require(fs::is_directory(file.parent_path(), ignored), code, "'", folder, "' is not a folder of a model",
          hint.empty() ? "; models are read from folders, such as 'hf download NAME --local-dir FOLDER' makes" : hint);
  require(fs::exists(file, ignored), code, "'", file.string(), "' is not there; it is part of every saved model");
  return read_text(file, code);
}

}  // namespace

std::string hub_name_hint(const std::string& path, HubKind kind) {
  // An address of the hub may be given instead of a name. That of a data set has "datasets/" in front of it.
  std::string name = path;
  const auto drop = [&](std::string_view start) {
    const bool found = name.starts_with(start);
    if (found) name.erase(0, start.size());
    return found;
  };
  if (!drop("https://")) drop("http://");
  const bool address = drop("huggingface.co/") || drop("hf.co/");
  if (address) drop("datasets/");
  while (name.ends_with('/')) name.pop_back();
  const size_t slash = name.find('/');
  if (slash == std::string::npos) return "";
  const size_t end = address ? std::min(name.find('/', slash + 1), name.size()) : name.size();
  const std::string repository = name.substr(slash + 1, end - slash - 1);
  name.resize(end);
  if (!is_plain_file_name(name.substr(0, slash)) || !is_plain_file_name(repository)) return "";
  const bool data = kind == HubKind::data;
  // A file of data that is not where it was looked for.
  if (data && fs::path(repository).has_extension() && !address) return "";
  return cat("; if that is the name of a ", data ? "data set" : "model", " on the Hugging Face hub, type 'hf download ",
             name, data ? " --repo-type dataset" : "", " --local-dir ", repository, "' and give ",
             data ? "a file of " : "", "the folder ", repository);
}

HfModelConfig parse_hf_config(std::string_view text, std::string_view generation, const std::string& origin,
                              ExitCode code) {
  const Reader in(text, origin, code);
  HfModelConfig c;
  c.model_type = in.text("model_type");
  const HfFamily* const family = find_hf_family(c.model_type);
  const std::string_view why = why_not_read(c.model_type);
  in.check(family != nullptr, "the architecture '", printable_start(c.model_type), "' is not known to this program",
           why.empty() ? "" : ", because ", why, "; it reads ", families_text());
  c.stored = read_stored_weights(in, fs::path(origin).parent_path().string());
  c.vocab_size = in.size("vocab_size");
  c.hidden_size = in.size("hidden_size");
  c.layers = in.size("num_hidden_layers");
  c.heads = in.size("num_attention_heads");
  // The library's classes have defaults for keys that are missing; null means something else to them.
  c.kv_heads = !in.says("num_key_value_heads") && family->kv_heads > 0 ? family->kv_heads
                                                                       : in.size("num_key_value_heads", c.heads);
  c.intermediate_size = in.size("intermediate_size");
  c.max_position_embeddings = in.size("max_position_embeddings");
  c.head_dim =
      in.size("head_dim", family->head_dim > 0 ? family->head_dim : std::max<int64_t>(1, c.hidden_size / c.heads));
  in.check(c.heads % c.kv_heads == 0, "num_key_value_heads = ", c.kv_heads,
           " does not divide num_attention_heads = ", c.heads);
  in.check(c.head_dim % 2 == 0, "head_dim = ", c.head_dim, " is odd; rotation turns pairs");
  c.rms_norm_eps = in.has("rms_norm_eps") ? in.positive(in.at("rms_norm_eps"), "rms_norm_eps") : family->rms_norm_eps;
  read_rotation(in, *family, c);
  check_arithmetic(in, *family);
  c.form = family->form;
  c.experts = read_experts(in, *family, c);
  in.check(c.experts.count == 0 || c.stored == HfStoredWeights::floats,
           "the weights are quantised, which this program reads only of models without experts; give the folder of the "
           "model that they were made from");
  c.qk_norm = family->qk_norm;
  c.tied = in.flag("tie_word_embeddings", family->tied);
  const bool switched_on = in.flag("use_sliding_window", false);
  const bool switched = family->window == WindowRule::switched || family->window == WindowRule::all_switched;
  if (family->window == WindowRule::always || (switched && switched_on)) {
    c.window = in.says("sliding_window") ? in.size("sliding_window", 0) : kDefaultWindow;
  } else if (family->window == WindowRule::if_given) {
    c.window = in.size("sliding_window", 0);
  }
  if (c.window > 0 && family->window == WindowRule::switched) {
    // Layers from this one on have the window.
    in.check(in.has("layer_types") || (in.has("max_window_layers") && in.at("max_window_layers") == 0),
             "'max_window_layers' lets some layers see all positions and others a window; this program's layers are "
             "alike");
  }
  if (in.has("layer_types")) {
    const json& types = in.at("layer_types");
    in.check(types.is_array() && static_cast<int64_t>(types.size()) == c.layers,
             "'layer_types' must have one entry for "
             "each layer");
    const char* wanted = c.window > 0 ? "sliding_attention" : "full_attention";
    for (const json& type : types) {
      in.check(type == wanted, "'layer_types' has layers of several kinds; this program's layers are alike (", wanted,
               ")");
    }
  }
  c.bos_id = in.id("bos_token_id");
  c.pad_id = in.id("pad_token_id");
  c.eos_ids = in.ids("eos_token_id");
  if (!in.says("bos_token_id")) c.bos_id = family->bos_id;
  if (!in.says("eos_token_id") && family->eos_id >= 0) c.eos_ids = {family->eos_id};
  if (!generation.empty()) {
    const Reader more(generation, (fs::path(origin).parent_path() / kGeneration).string(), code);
    for (const int64_t id : more.ids("eos_token_id")) {
      if (std::find(c.eos_ids.begin(), c.eos_ids.end(), id) == c.eos_ids.end()) c.eos_ids.push_back(id);
    }
  }
  for (const int64_t id : c.eos_ids) {
    in.check(id < c.vocab_size, "'eos_token_id' ", id, " is not an id of a vocabulary of ", c.vocab_size);
  }
  return c;
}

HfModelConfig read_hf_config(const fs::path& folder, ExitCode code) {
  const fs::path file = folder / "config.json", generation = folder / kGeneration;
  const std::string text = text_of(file, code);
  std::error_code ignored;
  return parse_hf_config(text, fs::exists(generation, ignored) ? read_text(generation, code) : "", file.string(), code);
}

HfBertConfig parse_bert_config(std::string_view text, const std::string& origin, ExitCode code) {
  const Reader in(text, origin, code);
  const std::string type = in.text("model_type");
  in.check(type == "bert", "the architecture '", printable_start(type),
           "' is not an encoder that this program knows; it reads bert");
  in.check(read_stored_weights(in, fs::path(origin).parent_path().string()) == HfStoredWeights::floats,
           "the weights are quantised, which this program reads only of causal models");
  HfBertConfig c;
  c.vocab_size = in.size("vocab_size");
  c.hidden_size = in.size("hidden_size");
  c.layers = in.size("num_hidden_layers");
  c.heads = in.size("num_attention_heads");
  c.intermediate_size = in.size("intermediate_size");
  c.max_position_embeddings = in.size("max_position_embeddings");
  c.type_vocab_size = in.size("type_vocab_size", 2);
  c.layer_norm_eps = in.has("layer_norm_eps") ? in.positive(in.at("layer_norm_eps"), "layer_norm_eps") : 1e-12;
  c.max_seq_length = c.max_position_embeddings;
  in.check(c.hidden_size % c.heads == 0, "num_attention_heads = ", c.heads,
           " does not divide hidden_size = ", c.hidden_size);
  in.check(!in.has("hidden_act") || in.text("hidden_act") == "gelu", "'hidden_act' must be gelu");
  in.check(!in.has("position_embedding_type") || in.text("position_embedding_type") == "absolute",
           "'position_embedding_type' must be absolute");
  in.check(!in.flag("is_decoder", false), "'is_decoder' is true: this is not an encoder");
  return c;
}

HfBertConfig read_bert_config(const fs::path& folder, ExitCode code) {
  HfBertConfig c = parse_bert_config(text_of(folder / "config.json", code), (folder / "config.json").string(), code);
  std::error_code ignored;
  if (const fs::path file = folder / "sentence_bert_config.json"; fs::exists(file, ignored)) {
    const Reader in(read_text(file, code), file.string(), code);
    c.max_seq_length = std::min(in.size("max_seq_length", c.max_seq_length), c.max_position_embeddings);
    in.check(c.max_seq_length >= 3, "'max_seq_length' leaves no room for a word");
  }
  if (const fs::path file = folder / "modules.json"; fs::exists(file, ignored)) check_modules(file, code);
  if (const fs::path file = folder / "1_Pooling" / "config.json"; fs::exists(file, ignored)) {
    const Reader in(read_text(file, code), file.string(), code);
    bool others = false;
    for (const char* key : {"pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens",
                            "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"}) {
      others = others || in.flag(key, false);
    }
    in.check(!in.has("pooling_mode") || in.text("pooling_mode") == "mean", "'pooling_mode' must be mean");
    in.check(in.flag("pooling_mode_mean_tokens", true) && !others,
             "asks for another pooling than the mean over tokens, which this program has alone");
  }
  return c;
}

}  // namespace hrm
