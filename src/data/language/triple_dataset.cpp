#include "hrm/data/triple_dataset.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/data/puzzle_meta.h"
#include "hrm/formats/triples.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShownLines = 10;  // malformed lines in the log

JsonlCheck check_of(const LanguageMeta& meta) {
  return [limits = TripleLimits{.vocab_size = meta.vocab_size}](std::string_view line) {
    const Triple triple = parse_triple(line, limits, ExitCode::data);
    return JsonlFacts{triple.encoder_tokens, triple.decoder_tokens};
  };
}

}  // namespace

TripleDataset::TripleDataset(const fs::path& folder, const std::string& split, const TripleOptions& options)
    : file_((folder / (split + ".jsonl")), ExitCode::data), line_bytes_(options.line_bytes) {
  origin_ = file_.path().string();
  meta_ = read_language_meta(folder);
  const JsonlCheck check = check_of(meta_);
  index_ = index_jsonl(file_, check,
                       {.rules = cat("triples 1, vocab_size ", meta_.vocab_size),
                        .max_malformed = options.max_malformed,
                        .line_bytes = line_bytes_,
                        .progress = options.progress});
  for (const std::string& line : malformed_jsonl_lines(file_, index_, check, line_bytes_, kShownLines)) {
    log::warn("skipped: ", line);
  }
  if (!index_.malformed.empty()) {
    log::warn(origin_, ": ", index_.malformed.size(), " malformed lines are skipped, ", index_.records(),
              " records remain");
  }
  uint64_t ids = 0;
  for (const JsonlFacts& facts : index_.facts) ids += facts.first + uint64_t{2} * facts.second;
  const bool too_many = ids * sizeof(int32_t) > options.cache_bytes;
  if (options.cache == config::TripleCache::stream) return;
  if (options.cache == config::TripleCache::automatic && too_many) return;
  std::vector<int32_t> cache(ids);
  cache_begin_.reserve(index_.records());
  uint64_t at = 0;
  for (uint64_t i = 0; i < index_.records(); ++i) {
    const auto [encoder, decoder] = index_.facts[i];
    cache_begin_.push_back(at);
    int32_t* to = cache.data() + at;
    read(static_cast<int64_t>(i), encoder, decoder, to, to + encoder, to + encoder + decoder);
    at += encoder + uint64_t{2} * decoder;
  }
  cache_ = std::move(cache);
}

void TripleDataset::read(int64_t index, int64_t encoder_count, int64_t decoder_count, int32_t* encoder,
                         int32_t* decoder, int32_t* labels) const {
  const JsonlFacts& facts = index_.facts[index];
  if (!cache_.empty()) {
    const int32_t* from = cache_.data() + cache_begin_[index];
    std::copy_n(from, encoder_count, encoder);
    std::copy_n(from + facts.first, decoder_count, decoder);
    std::copy_n(from + facts.first + facts.second, decoder_count, labels);
    return;
  }
  const uint64_t offset = index_.offsets[index];
  const JsonlLine line = jsonl_line_at(file_.bytes(), offset);
  Triple triple;
  try {
    triple = parse_triple(line.text, {.vocab_size = meta_.vocab_size}, ExitCode::data);
  } catch (const Error& error) {
    fail(ExitCode::data, origin_, ":", jsonl_line_number(file_.bytes(), offset),
         ": changed since it was indexed: ", error.what());
  }
  require(triple.encoder_tokens == facts.first && triple.decoder_tokens == facts.second, ExitCode::data, origin_, ":",
          jsonl_line_number(file_.bytes(), offset), ": changed since it was indexed; start again");
  read_ids(triple.encoder_ids, encoder, encoder_count);
  read_ids(triple.decoder_ids, decoder, decoder_count);
  read_ids(triple.labels, labels, decoder_count);
}

LanguageShape TripleDataset::record_lengths(int64_t index) const {
  return {index_.facts[index].first, index_.facts[index].second};
}

int64_t TripleDataset::cut_records(const LanguageShape& shape) const {
  return std::count_if(index_.facts.begin(), index_.facts.end(), [&](const JsonlFacts& facts) {
    // Without an encoder side, its ids are not read.
    return (shape.encoder_len > 0 && facts.first > shape.encoder_len) || facts.second > shape.decoder_len;
  });
}

LanguageShape TripleDataset::lengths(int64_t index, const LanguageShape& most) const {
  const LanguageShape all = record_lengths(index);
  return {std::min(all.encoder_len, most.encoder_len), std::min(all.decoder_len, most.decoder_len)};
}

TripleDataset::Record TripleDataset::record(int64_t index) const {
  const LanguageShape all = record_lengths(index);
  Record record;
  record.encoder_ids.resize(all.encoder_len);
  record.decoder_ids.resize(all.decoder_len);
  record.labels.resize(all.decoder_len);
  read(index, all.encoder_len, all.decoder_len, record.encoder_ids.data(), record.decoder_ids.data(),
       record.labels.data());
  return record;
}

LanguageCounts TripleDataset::row(int64_t index, const LanguageRow& row) const {
  blank_row(row, meta_.pad_id);
  const LanguageShape here = lengths(index, row.shape);
  // Scratch for one row: the ids in the file are int32.
  thread_local std::vector<int32_t> ids;
  ids.resize(static_cast<size_t>(here.encoder_len + 2 * here.decoder_len));
  int32_t* decoder = ids.data() + here.encoder_len;
  int32_t* labels = decoder + here.decoder_len;
  read(index, here.encoder_len, here.decoder_len, ids.data(), decoder, labels);
  if (here.encoder_len > 0) {
    std::copy_n(ids.data(), here.encoder_len, row.encoder_ids);
    std::fill_n(row.encoder_mask, here.encoder_len, true);
  }
  std::copy_n(decoder, here.decoder_len, row.decoder_ids);
  std::copy_n(labels, here.decoder_len, row.labels);
  const auto learned = here.decoder_len - std::count(labels, labels + here.decoder_len, kIgnoreLabel);
  return {here.encoder_len, here.decoder_len, learned};
}

std::string TripleDataset::digest() const {
  Hasher hasher;
  hasher.update(cat("triples ", meta_.vocab_size, " ", meta_.pad_id, " ", index_.content, " ", index_.records()));
  return hasher.hex();
}

bool is_triple_folder(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kLanguageMetaFile, ignored) &&
         (fs::exists(folder / "train.jsonl", ignored) || fs::exists(folder / "val.jsonl", ignored) ||
          fs::exists(folder / "test.jsonl", ignored));
}

}  // namespace hrm::data
