#include "tasks/hf_tokens.h"

#include "hrm/data/tokenizer.h"

namespace hrm::tasks {

checkpoint::HfTokens hf_tokens(const data::LanguageMeta& meta, const std::filesystem::path& tokenizer_file) {
  checkpoint::HfTokens tokens{.bos = meta.bos_id, .eos = meta.eos_id, .pad = meta.pad_id, .tokenizer = tokenizer_file};
  if (tokenizer_file.empty()) return tokens;
  const auto tokenizer = data::Tokenizer::load(tokenizer_file, ExitCode::checkpoint);
  const auto special = [&](int64_t id) {
    return id >= 0 && id < tokenizer.vocab_size() && tokenizer.is_special(static_cast<int32_t>(id));
  };
  // Our rows may be padded with any token, EOS among them; transformers takes the token of padding out of training.
  if (!special(tokens.pad) || tokens.pad == tokens.eos) tokens.pad = -1;
  const auto text = [&](int64_t id) {
    return special(id) ? tokenizer.token_of(static_cast<int32_t>(id)) : std::string();
  };
  tokens.bos_text = text(tokens.bos);
  tokens.eos_text = text(tokens.eos);
  tokens.pad_text = text(tokens.pad);
  return tokens;
}

checkpoint::HfFormat hf_format(const ExportRequest& request) {
  // Beside weights in 8 bits, the others are in bfloat16.
  return {.dtype = request.dtype == "float32" ? at::kFloat : at::kBFloat16,
          .weights = request.dtype == "fp8"    ? nn::WeightFormat::fp8
                     : request.dtype == "int8" ? nn::WeightFormat::int8
                                               : nn::WeightFormat::f32};
}

}  // namespace hrm::tasks
