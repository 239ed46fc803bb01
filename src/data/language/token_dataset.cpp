#include "hrm/data/token_dataset.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/data/puzzle_meta.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNpy = ".npy";

std::string documents_file(const std::string& shard) {
  return shard.substr(0, shard.size() - kNpy.size()) + ".documents.npy";
}

template <class T>
std::span<const T> values_of(const NpyFile& file) {
  // The mapping begins at a page, and the header ends at a multiple of 64 (numpy, npy_header), so T is aligned.
  const auto bytes = file.array().bytes;
  require(reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T) == 0, ExitCode::data, file.path().string(),
          ": its data are not aligned; write it with numpy.save");
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

std::string digest_of(const NpyFile& tokens, const NpyFile& documents) {
  Hasher hasher;
  hasher.update(tokens.array().bytes);
  hasher.update(documents.array().bytes);
  return hasher.hex();
}

}  // namespace

TokenDataset::TokenDataset(const fs::path& folder, const std::string& split, const TokenOptions& options)
    : options_(options) {
  origin_ = (folder / split).string();
  meta_ = read_language_meta(folder);
  for (const TokenShard& facts : read_token_shards(folder, split)) add_shard(folder, facts);
}

void TokenDataset::add_shard(const fs::path& folder, const TokenShard& facts) {
  Shard shard{facts.digest, NpyFile(folder / facts.file)};
  const ArrayView& array = shard.file.array();
  const std::string path = shard.file.path().string();
  require((array.dtype == DType::u16 || array.dtype == DType::u32) && array.shape.size() == 1, ExitCode::data, path,
          ": must be uint16 or uint32 tokens of one dimension, but is ", name(array.dtype), " ",
          shape_text(array.shape));
  require(array.shape[0] == facts.tokens, ExitCode::data, path, ": holds ", array.shape[0], " tokens, but ",
          kLanguageMetaFile, " says ", facts.tokens);
  const NpyFile documents(folder / documents_file(facts.file));
  const std::string documents_path = documents.path().string();
  require(documents.array().dtype == DType::i64 && documents.array().shape.size() == 1, ExitCode::data, documents_path,
          ": must be int64 of one dimension");
  require(documents.array().shape[0] == facts.documents, ExitCode::data, documents_path, ": holds ",
          documents.array().shape[0], " documents, but ", kLanguageMetaFile, " says ", facts.documents);
  const int64_t begin = token_begin_.back();
  int64_t before = -1;
  for (const int64_t start : values_of<int64_t>(documents)) {
    require(start > before && start < facts.tokens, ExitCode::data, documents_path, ": a document begins at ", start,
            ", which is not behind ", before, " and below ", facts.tokens);
    documents_.push_back(begin + start);
    before = start;
  }
  require(begin > 0 || facts.documents == 0 || documents_[0] == 0, ExitCode::data, documents_path,
          ": the first document does not begin at 0");
  token_begin_.push_back(begin + facts.tokens);
  shards_.push_back(std::move(shard));
}

int64_t TokenDataset::num_samples(int64_t decoder_len) const {
  require(decoder_len >= 1, ExitCode::usage, "rows of ", decoder_len, " positions");
  return num_tokens() > 0 ? (num_tokens() - 1) / decoder_len : 0;
}

void TokenDataset::tokens(int64_t begin, int64_t count, int32_t* out) const {
  require(begin >= 0 && count >= 0 && begin <= num_tokens() - count, ExitCode::unexpected, "tokens ", begin, " to ",
          begin + count, " of ", num_tokens());
  size_t shard = std::upper_bound(token_begin_.begin(), token_begin_.end(), begin) - token_begin_.begin() - 1;
  const auto copy = [&]<class T>(std::span<const T> values, int64_t from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const T value = values[from + i];
      if (static_cast<int64_t>(value) >= meta_.vocab_size) {
        fail(ExitCode::data, shards_[shard].file.path().string(), ": token ", value, " at place ", from + i,
             " is not below the vocabulary's ", meta_.vocab_size);
      }
      *out++ = static_cast<int32_t>(value);
    }
  };
  while (count > 0) {
    const int64_t from = begin - token_begin_[shard];
    const int64_t n = std::min(count, token_begin_[shard + 1] - begin);
    if (shards_[shard].file.array().dtype == DType::u16) {
      copy(values_of<uint16_t>(shards_[shard].file), from, n);
    } else {
      copy(values_of<uint32_t>(shards_[shard].file), from, n);
    }
    begin += n;
    count -= n;
    ++shard;
  }
}

int64_t TokenDataset::documents_until(int64_t token) const {
  return std::upper_bound(documents_.begin(), documents_.end(), token) - documents_.begin();
}

int64_t TokenDataset::most_documents(int64_t decoder_len) const {
  int64_t most = 1;
  for (int64_t row = 0; row < num_samples(decoder_len); ++row) {
    const int64_t begin = row * decoder_len;
    most = std::max(most, documents_until(begin + decoder_len - 1) - documents_until(begin) + 1);
  }
  return most;
}

LanguageShape TokenDataset::lengths(int64_t, const LanguageShape& most) const {
  return most;
}

LanguageCounts TokenDataset::row(int64_t index, const LanguageRow& row) const {
  blank_row(row, meta_.pad_id);
  const int64_t length = row.shape.decoder_len, begin = index * length;
  thread_local std::vector<int32_t> ids;
  ids.resize(static_cast<size_t>(std::max(length + 1, row.shape.encoder_len)));
  LanguageCounts counts;
  int64_t document = documents_until(begin);
  if (row.shape.encoder_len > 0) {
    int64_t from = std::max<int64_t>(0, begin - row.shape.encoder_len);
    if (options_.document_masks && document > 0) from = std::max(from, std::min(documents_[document - 1], begin));
    counts.encoder_tokens = begin - from;
    tokens(from, counts.encoder_tokens, ids.data());
    std::copy_n(ids.data(), counts.encoder_tokens, row.encoder_ids);
    if (counts.encoder_tokens == 0) {
      row.encoder_ids[0] = meta_.bos_id >= 0 ? meta_.bos_id : meta_.eos_id >= 0 ? meta_.eos_id : meta_.pad_id;
      counts.encoder_tokens = 1;
    }
    std::fill_n(row.encoder_mask, counts.encoder_tokens, true);
  }
  tokens(begin, length + 1, ids.data());
  std::copy_n(ids.data(), length, row.decoder_ids);
  std::copy_n(ids.data() + 1, length, row.labels);
  counts.decoder_tokens = counts.label_tokens = length;
  int32_t in_row = 0, position = 0;
  for (int64_t i = 0; i < length; ++i, ++position) {
    const int64_t next = document < num_documents() ? documents_[document] : num_tokens() + 1;
    if (row.document_ids != nullptr) {
      row.document_ids[i] = in_row;
      row.position_ids[i] = position;
    }
    if (begin + i + 1 != next) continue;
    // The next token begins another document.
    if (options_.document_masks) {
      row.labels[i] = kIgnoreLabel;
      --counts.label_tokens;
    }
    ++document;
    ++in_row;
    position = -1;
  }
  return counts;
}

std::string TokenDataset::digest() const {
  Hasher hasher;
  hasher.update(cat("tokens ", meta_.vocab_size, " ", options_.document_masks));
  for (const Shard& shard : shards_) hasher.update(" " + shard.digest);
  return hasher.hex();
}

void TokenDataset::verify() const {
  for (const Shard& shard : shards_) {
    const fs::path path = shard.file.path();
    const NpyFile documents(path.parent_path() / documents_file(path.filename().string()));
    require(digest_of(shard.file, documents) == shard.digest, ExitCode::data, path.string(),
            ": is damaged or was changed (its digest is not the one in ", kLanguageMetaFile, ")");
  }
}

}  // namespace hrm::data
