// Defaults and rules of task=language. Free of torch.
#include <algorithm>

#include "hrm/base/text.h"
#include "tasks/task_settings.h"

namespace hrm::config {
namespace {

// The puzzles that ship with the project are no text.
std::optional<TaskDefault::Chosen> no_text(const LoadedConfig&) {
  return TaskDefault::Chosen{std::string(), ""};
}

void check_lm(const Checker& check, const Config& c) {
  const LmConfig& lm = c.lm;
  const MoeConfig& moe = c.moe;
  const auto at = [&](const char* key) { return check.at(key); };
  check.require(lm.head_dim > 0 || lm.hidden_size % lm.num_heads == 0, at("lm.num_heads"), " does not divide ",
                at("lm.hidden_size"), "; ", nearest_divisors(lm.hidden_size, lm.num_heads),
                " heads, or set lm.head_dim");
  check.require(lm.kv_heads == 0 || lm.num_heads % lm.kv_heads == 0, at("lm.kv_heads"), " does not divide ",
                at("lm.num_heads"), "; ", nearest_divisors(lm.num_heads, std::max<int64_t>(1, lm.kv_heads)), " heads");
  const int64_t head = lm.head_dim > 0 ? lm.head_dim : lm.hidden_size / lm.num_heads;
  check.require(lm.is_prototype() || head % 2 == 0, "rotary positions turn pairs of values, but a head has ", head,
                " of them; change ", at("lm.num_heads"), " or ", at("lm.head_dim"));
  if (!lm.has_core()) {
    check.require(!lm.is_prototype(), at("lm.style"),
                  " has no plain decoder; set lm.style to modern, or lm.arch to hrm");
    for (const char* key : {"objective.deep_supervision", "objective.halting"}) {
      check.require(check.is_default_value(key), at(key), " belongs to the reasoning core, but ", at("lm.arch"),
                    "; leave it out");
    }
    check.require(!c.data.document_masks || c.data.encoder_len == 0, at("data.document_masks"), " and ",
                  at("data.encoder_len"), ": a row with a prompt is one document; set one of them to false or 0");
    check.require(moe.place == MoePlace::automatic || moe.place == MoePlace::decoder, at("moe.place"), ", but ",
                  at("lm.arch"), " has no encoder; set moe.place to decoder");
  } else {
    check.require(c.data.encoder_len > 0, at("data.encoder_len"), ", but ", at("lm.arch"),
                  " reads a prompt; set data.encoder_len to the longest one, e.g. 256");
    check.require(lm.gradient_cycles <= lm.h_cycles, at("lm.gradient_cycles"), " is more than ", at("lm.h_cycles"),
                  "; set it to 0 (all)");
    check.require(c.objective.deep_supervision == 0 || lm.h_cycles > 1, at("objective.deep_supervision"),
                  " is for earlier cycles, of which ", at("lm.h_cycles"), " has none; leave it out");
    check.require(lm.gate_scale > 0 || lm.gate_bias > 0, at("lm.gate_scale"), " and ", at("lm.gate_bias"),
                  ": the gate stays shut; set lm.gate_scale to 1");
  }
  if (lm.encoder == LmEncoder::mamba2 && lm.has_core()) {
    check.require(!lm.is_prototype(), at("lm.encoder"), " is not of ", at("lm.style"),
                  "; set lm.style to modern, or lm.encoder to transformer");
    const int64_t inner = lm.mamba_expand * lm.hidden_size;
    check.require(inner % lm.mamba_head_dim == 0, at("lm.mamba_head_dim"), " does not divide mamba_expand * ",
                  at("lm.hidden_size"), "; ", nearest_divisors(inner, lm.mamba_head_dim), " channels");
    const int64_t heads = inner / lm.mamba_head_dim;
    check.require(heads % lm.mamba_groups == 0, at("lm.mamba_groups"), " does not divide the ", heads,
                  " heads of mamba2; ", nearest_divisors(heads, lm.mamba_groups));
    check.require(moe.experts == 0 || moe.place == MoePlace::automatic || moe.place == MoePlace::decoder,
                  at("moe.place"), ", but ", at("lm.encoder"), " has no feed-forward part; set moe.place to decoder");
  }
  if (lm.is_prototype()) {
    for (const char* key : {"lm.kv_heads", "lm.head_dim", "lm.inner", "lm.window", "lm.rope_theta", "lm.rms_norm_eps",
                            "lm.qk_norm", "lm.tied", "lm.recompute"}) {
      check.require(check.is_default_value(key), at(key), " is not of ", at("lm.style"),
                    "; leave it out, or set lm.style to modern");
    }
    check.require(c.parallel.zero < 3, at("parallel.zero"), " is not for the blocks of ", at("lm.style"),
                  "; set parallel.zero to 2 or less, or lm.style to modern");
    check.require(moe.place == MoePlace::automatic || moe.place == MoePlace::encoder, at("moe.place"),
                  ", but experts of ", at("lm.style"), " stand in the encoder; set moe.place to encoder");
  }
  if (moe.experts == 0) {
    for (const std::string& key : differing_keys(c, Config())) {
      check.require(!key.starts_with("moe."), at(key.c_str()), " belongs to experts, but ", at("moe.experts"),
                    "; set moe.experts to e.g. 8");
    }
  } else {
    check.require(moe.top_k <= moe.experts, at("moe.top_k"), " is more than ", at("moe.experts"), "; set it to ",
                  moe.experts, " or less");
    const int64_t blocks = lm.is_prototype() || moe.place == MoePlace::encoder ? lm.enc_layers : lm.layers;
    check.require(moe.every <= blocks, at("moe.every"), " leaves no block with experts, of ", blocks, "; set it to ",
                  blocks, " or less");
  }
}

void check_fp8(const Checker& check, const Config& c) {
  check_fp8_blocks(check);
  check.require(c.precision.blocks != BlockPrecision::fp8 || !c.lm.is_prototype(), check.at("precision.blocks"),
                " is not for the blocks of ", check.at("lm.style"),
                "; set precision.blocks to same, or lm.style to modern");
}

void check_language_fake_quantize(const Checker& check, const Config& c) {
  if (c.precision.fake_quantize == FakeQuantization::none) return;
  check.require(!c.lm.is_prototype(), check.at("precision.fake_quantize"), " is not for the blocks of ",
                check.at("lm.style"), "; set precision.fake_quantize to none, or lm.style to modern");
  check.require(c.moe.experts == 0, check.at("precision.fake_quantize"), " is for dense models, but ",
                check.at("moe.experts"), "; set precision.fake_quantize to none, or moe.experts to 0");
}

void check_tensor_parts(const Checker& check, const Config& c) {
  const int64_t parts = c.parallel.tensor;
  const LmConfig& lm = c.lm;
  if (parts == 1) return;
  check.require(!lm.is_prototype(), check.at("parallel.tensor"), " does not cut the blocks of ", check.at("lm.style"),
                "; set parallel.tensor to 1, or lm.style to modern");
  check.require(c.moe.experts == 0, check.at("parallel.tensor"), " cuts dense layers, but ", check.at("moe.experts"),
                " replaces them; set parallel.tensor to 1, or moe.experts to 0");
  const auto divides = [&](const char* key, int64_t size) {
    check.require(size % parts == 0, check.at("parallel.tensor"), " does not divide ", check.at(key), "; ",
                  nearest_divisors(size, parts), " ranks");
  };
  divides("lm.num_heads", lm.num_heads);
  if (lm.kv_heads > 0) divides("lm.kv_heads", lm.kv_heads);
  if (lm.inner > 0) divides("lm.inner", lm.inner);
}

void check_language(const Checker& check) {
  check_tensor_parts(check, check.loaded().config);
  check_lm(check, check.loaded().config);
  check_language_fake_quantize(check, check.loaded().config);
  check_fp8(check, check.loaded().config);
}

// Without a mask there is nothing to choose.
void check_attention(const Checker& check, const Config& c) {
  check.require(c.ops.attention == AttentionChoice::automatic || c.lm.window > 0 || c.data.document_masks,
                check.at("ops.attention"), " has no effect: it chooses how masks are applied, but ",
                check.at("lm.window"), " and ", check.at("data.document_masks"),
                " set none; leave it out, or set one of them");
}

// What several keys decide together; conditions on one key stand with the fields.
void check_language_run(const Checker& check) {
  const Config& c = check.loaded().config;
  const LmConfig& lm = c.lm;
  check_attention(check, c);
  if (!lm.has_core()) {
    if (c.moe.experts > 0 && c.moe.every == 1) {
      check.refuse_unread({"lm.inner"}, "moe.experts", "stand in every block in place of its SwiGLU",
                          "set moe.every to 2");
    }
    return;
  }
  check.require(!c.data.document_masks, check.at("data.document_masks"), " does not reach the decoder of ",
                check.at("lm.arch"), ", for which a row is one document; leave it out, or set lm.arch to decoder and ",
                "data.encoder_len to 0");
  if (c.objective.halting != 0 && lm.gradient_cycles != 0 && lm.gradient_cycles != lm.h_cycles) {
    check.refuse_unread({"lm.gradient_cycles"}, "objective.halting", "needs the gradient of all cycles",
                        "set lm.gradient_cycles to 0 (all)");
  }
}

}  // namespace

const TaskSettings& language_settings() {
  static const TaskSettings row{
      .name = "language",
      .help = "language models (sections lm and moe) on text",
      .defaults = {{"data.train", no_text}, {"data.test", no_text}},
      .data = TrainingData::texts,
      .lists_paths = true,
      .train_data = "a folder of language data ('hrm_train data --help' says how to make one)",
      .test_data = "folders of language data",
      .may_evaluate = [](const Config& config) { return config.data.test != "none"; },
      .check = check_language,
      .check_run = check_language_run};
  return row;
}

}  // namespace hrm::config
