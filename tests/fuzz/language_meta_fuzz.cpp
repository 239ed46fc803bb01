// meta.json of language data: what its ids mean, and the shards of its split `train`.
#include "fuzz/fuzz.h"
#include "hrm/base/text.h"
#include "hrm/data/language_meta.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const data::LanguageMeta meta = data::parse_language_meta(text, "meta.json");
    fuzz::check(meta.vocab_size >= 1 && meta.vocab_size < (int64_t{1} << 31), "a vocabulary");
    fuzz::check(meta.pad_id >= 0 && meta.pad_id < meta.vocab_size, "an id for padding");
    for (const int64_t id : {meta.bos_id, meta.eos_id}) {
      fuzz::check(id >= -1 && id < meta.vocab_size, "an id, or none");
    }
    fuzz::touch(meta.tokenizer_file);
    fuzz::touch(meta.tokenizer_digest);
  });
  fuzz::parses(ExitCode::data, [&] {
    const std::vector<data::TokenShard> shards = data::parse_token_shards(text, "meta.json", "train");
    fuzz::check(!shards.empty(), "a shard");
    for (const data::TokenShard& shard : shards) {
      fuzz::check(is_plain_file_name(shard.file) && shard.file.ends_with(".npy"), "the name of a file");
      fuzz::check(shard.tokens >= 0 && shard.documents >= 0, "counts");
      // Sums of them are made of a whole list.
      fuzz::check(shard.tokens < (int64_t{1} << 48) && shard.documents < (int64_t{1} << 48),
                  "counts that can be added");
      fuzz::touch(shard.digest);
    }
  });
  return 0;
}
