#include <algorithm>
#include <array>
#include <ostream>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/language_data.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShownIds = 64;
constexpr size_t kShownText = 400;

void print_meta(const fs::path& path, const char* kind, const LanguageMeta& meta, std::ostream& out) {
  out << path.string() << ": " << kind << ", vocabulary " << meta.vocab_size << ", pad " << meta.pad_id << ", bos "
      << meta.bos_id << ", eos " << meta.eos_id << ", tokenizer "
      << (meta.tokenizer_file.empty() ? "not known" : printable_start(meta.tokenizer_file)) << "\n";
}

void print_ids(const char* name, const std::vector<int32_t>& ids, const LanguageMeta& meta, std::ostream& out) {
  out << "    " << name << " (" << ids.size() << "):";
  for (size_t i = 0; i < std::min(ids.size(), kShownIds); ++i) out << " " << ids[i];
  out << (ids.size() > kShownIds ? " ...\n" : "\n");
  if (meta.tokenizer_file != kByteTokenizer) return;
  out << "      \"" << printable_start(byte_encoder().decode(ids), kShownText) << "\"\n";
}

void check_example(int64_t example, int64_t count, const std::string& origin) {
  require(example >= 0 && example < count, ExitCode::usage, "--example ", example, " is not one of the ", count,
          " examples of ", origin);
}

void print_triples(const fs::path& path, const std::string& split, int64_t example, std::ostream& out) {
  TripleOptions options;
  options.cache = config::TripleCache::stream;
  options.max_malformed = UINT64_MAX;  // they are counted here, and named in the log
  options.progress = true;
  const TripleDataset data(path, split, options);
  const int64_t count = data.num_samples(1);
  LanguageShape longest, total;
  for (int64_t i = 0; i < count; ++i) {
    const LanguageShape one = data.record_lengths(i);
    longest.encoder_len = std::max(longest.encoder_len, one.encoder_len);
    longest.decoder_len = std::max(longest.decoder_len, one.decoder_len);
    total.encoder_len += one.encoder_len;
    total.decoder_len += one.decoder_len;
  }
  out << split << ": " << count << " records, " << data.malformed() << " malformed lines; encoder ids "
      << total.encoder_len / count << " on average, " << longest.encoder_len << " at most; decoder ids "
      << total.decoder_len / count << " on average, " << longest.decoder_len << " at most\n";
  check_example(example, count, data.origin());
  const TripleDataset::Record record = data.record(example);
  out << "  example " << example << "\n";
  print_ids("encoder_ids", record.encoder_ids, data.meta(), out);
  print_ids("decoder_input_ids", record.decoder_ids, data.meta(), out);
  print_ids("labels", record.labels, data.meta(), out);
}

void print_tokens(const fs::path& path, const std::string& split, int64_t example, std::ostream& out) {
  const TokenDataset data(path, split);
  data.verify();
  const int64_t documents = data.num_documents();
  int64_t longest = 0;
  for (int64_t i = 0; i < documents; ++i) longest = std::max(longest, data.document_end(i) - data.document_begin(i));
  out << split << ": " << data.num_tokens() << " tokens in " << data.num_shards() << " shards, digests right; "
      << documents << " documents of " << data.num_tokens() / std::max<int64_t>(1, documents) << " tokens on average, "
      << longest << " at most\n";
  check_example(example, documents, data.origin());
  const int64_t begin = data.document_begin(example), size = data.document_end(example) - begin;
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(size, kShownText)));
  data.tokens(begin, static_cast<int64_t>(ids.size()), ids.data());
  out << "  document " << example << ", " << size << " tokens\n";
  print_ids("begins with", ids, data.meta(), out);
}

}  // namespace

bool inspect_language(const fs::path& path, int64_t example, std::ostream& out) {
  if (is_token_folder(path)) {
    print_meta(path, "packed text", read_language_meta(path), out);
    for (const char* split : {"train", "val", "test"}) {
      if (has_token_split(path, split)) print_tokens(path, split, example, out);
    }
    return true;
  }
  if (!is_triple_folder(path)) return false;
  print_meta(path, "triples", read_language_meta(path), out);
  for (const char* split : {"train", "val", "test"}) {
    if (fs::exists(path / (std::string(split) + ".jsonl"))) print_triples(path, split, example, out);
  }
  return true;
}

}  // namespace hrm::data
