// The first byte chooses what is read: the config.json of a causal model, or of a sentence encoder. A zero byte parts
// it from a generation_config.json. What is accepted has sizes that a model can be made of.
#include "fuzz/fuzz.h"
#include "hrm/formats/hf_config.h"

using namespace hrm;

namespace {

void causal(std::string_view text, std::string_view generation) {
  const HfModelConfig c = parse_hf_config(text, generation, "config.json", ExitCode::checkpoint);
  for (const int64_t size :
       {c.vocab_size, c.hidden_size, c.layers, c.heads, c.kv_heads, c.head_dim, c.intermediate_size}) {
    fuzz::check(size > 0 && size < (int64_t{1} << 31), "a size");
  }
  fuzz::check(c.heads % c.kv_heads == 0 && c.head_dim % 2 == 0, "heads that can be made");
  fuzz::check(c.rope_theta > 0 && c.rms_norm_eps > 0 && c.window >= 0, "numbers that can be computed with");
  fuzz::check(c.rope.factor > 0 && c.rope.attention_factor > 0, "a rotation that can be computed");
  if (c.rope.kind == RopeKind::yarn || c.rope.kind == RopeKind::llama3) {
    fuzz::check(c.rope.original_positions > 0, "a length to stretch");
  }
  const HfFamily* const family = find_hf_family(c.model_type);
  fuzz::check(family != nullptr, "a family of the table");
  fuzz::check((c.experts.count > 0) == (family->experts.count > 0), "experts where the family has them");
  if (c.experts.count > 0) {
    fuzz::check(c.experts.count <= kMostExperts && c.experts.top_k > 0 && c.experts.top_k <= c.experts.count &&
                    c.experts.top_k <= kMostPicks && c.experts.inner > 0,
                "experts that can be made");
    for (const int64_t layer : c.experts.dense_layers) fuzz::check(layer >= 0 && layer < c.layers, "a layer");
  }
  for (const int64_t id : c.eos_ids) fuzz::check(id >= 0 && id < c.vocab_size, "an id");
}

void encoder(std::string_view text) {
  const HfBertConfig c = parse_bert_config(text, "config.json", ExitCode::checkpoint);
  for (const int64_t size : {c.vocab_size, c.hidden_size, c.layers, c.heads, c.intermediate_size,
                             c.max_position_embeddings, c.type_vocab_size, c.max_seq_length}) {
    fuzz::check(size > 0 && size < (int64_t{1} << 31), "a size");
  }
  fuzz::check(c.hidden_size % c.heads == 0 && c.layer_norm_eps > 0, "heads that can be made");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view all = fuzz::text_of(data + 1, size - 1);
  const size_t end = all.find('\0');
  fuzz::parses(ExitCode::checkpoint, [&] {
    if ((data[0] & 1) != 0) {
      encoder(all);
    } else {
      causal(all.substr(0, end), end == all.npos ? std::string_view() : all.substr(end + 1));
    }
  });
  return 0;
}
