#include "checkpoint/hf_export.h"

#include <unistd.h>

#include <map>

#include "checkpoint/hf_names.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kOtherFormats = "; use --to safetensors or --to torchscript";

void check_kind(const NamedTensors& weights) {
  for (const auto& [name, tensor] : weights) {
    require(name.starts_with("model."), ExitCode::usage,
            "transformers has no architecture for an HRM language model (it holds '", name, "')", kOtherFormats);
    require(name.find(".mlp.router.") == std::string::npos, ExitCode::usage,
            "transformers has no architecture for our mixture of experts (the model holds '", name, "')",
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

Json token_ids(const HfTokens& tokens) {
  Json ids = Json::object();
  const auto add = [&](const char* key, int64_t id) {
    if (id >= 0) ids[key] = id;
  };
  add("bos_token_id", tokens.bos);
  add("eos_token_id", tokens.eos);
  add("pad_token_id", tokens.pad);
  return ids;
}

std::string text_of(const Json& json) {
  return json.dump(2) + "\n";
}

void write_weights(const NamedTensors& weights, const fs::path& file) {
  std::vector<at::Tensor> hosts;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : weights) {
    const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
    entries.push_back({name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
  }
  write_safetensors(file, entries, {{"format", "pt"}});
}

}  // namespace

HfModel hf_model(const models::DecoderOptions& options, const NamedTensors& weights, const HfTokens& tokens) {
  check_kind(weights);
  const models::DecoderOptions o = models::resolve(options);
  const bool windowed = o.window > 0;
  const char* architecture = o.qk_norm ? "Qwen3ForCausalLM" : windowed ? "MistralForCausalLM" : "LlamaForCausalLM";
  Json config = {{"architectures", {architecture}},
                 {"model_type", o.qk_norm  ? "qwen3"
                                : windowed ? "mistral"
                                           : "llama"},
                 {"vocab_size", o.vocabulary},
                 {"hidden_size", o.width},
                 {"intermediate_size", o.inner},
                 {"num_hidden_layers", o.layers},
                 {"num_attention_heads", o.heads},
                 {"num_key_value_heads", o.kv_heads},
                 {"head_dim", o.head_dim},
                 {"hidden_act", "silu"},
                 {"max_position_embeddings", o.positions},
                 {"rms_norm_eps", o.eps},
                 // Version 5 of transformers reads the second of these, versions before it the first.
                 {"rope_theta", o.rope_theta},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", o.rope_theta}}},
                 {"tie_word_embeddings", o.tied},
                 {"attention_bias", false},
                 {"attention_dropout", 0.0},
                 {"use_cache", true},
                 {"torch_dtype", "float32"}};
  if (windowed) config["sliding_window"] = o.window;
  if (windowed && o.qk_norm) {
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 0;
  } else if (!windowed && !o.qk_norm) {
    config["mlp_bias"] = false;
  }
  const Json ids = token_ids(tokens);
  // Where the text has none, the libraries' own defaults must not stand in.
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
               const fs::path& folder) {
  const HfModel model = hf_model(options, weights, tokens);
  std::error_code error;
  require(!fs::exists(fs::symlink_status(folder)) || (fs::is_directory(folder) && fs::is_empty(folder, error)),
          ExitCode::environment, folder, " exists already; give the name of a new folder");
  const fs::path place = folder.has_filename() ? folder : folder.parent_path();
  const fs::path parent = place.has_parent_path() ? place.parent_path() : fs::path(".");
  const fs::path temporary = parent / cat(".tmp-", place.filename().string(), "-", ::getpid());
  make_directories(temporary);
  try {
    const auto write = [&](const char* name, const std::string& text) { write_file(temporary / name, as_bytes(text)); };
    write_weights(model.weights, temporary / "model.safetensors");
    write("config.json", text_of(model.config));
    write("generation_config.json", text_of(model.generation));
    if (!tokens.tokenizer.empty()) {
      const MappedFile tokenizer(tokens.tokenizer);
      write_file(temporary / "tokenizer.json", tokenizer.bytes());
      write("tokenizer_config.json", text_of(hf_tokenizer_config(options, tokens)));
    }
    rename_path(temporary, place);
    fsync_directory(parent);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

}  // namespace hrm::checkpoint
