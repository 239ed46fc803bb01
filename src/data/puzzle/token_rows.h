#pragma once
// Converts token rows from files to the int32 rows that models read.

#include <cstdint>
#include <cstring>
#include <filesystem>

#include "hrm/base/error.h"
#include "hrm/data/batch.h"

namespace hrm::data {

struct TokenRow {
  const PuzzleMeta& meta;
  int64_t index;  // index of the example, for messages
};

// Origin: a path or a text that names the source.
template <class Origin>
[[noreturn]] void fail_token(const TokenRow& row, int64_t column, int64_t token, const Origin& origin) {
  fail(ExitCode::data, std::filesystem::path(origin).string(), ": token ", token, " in row ", row.index, ", column ",
       column, " is outside the vocabulary 0..", row.meta.vocab_size - 1);
}

// `tokens` may be unaligned, as in files.
template <class T>
T token_at(const T* tokens, int64_t column) {
  T token;
  std::memcpy(&token, reinterpret_cast<const char*>(tokens) + column * sizeof(T), sizeof(T));
  return token;
}

template <class T, class Origin>
void read_inputs(const TokenRow& row, const T* tokens, const Origin& origin, int32_t* out) {
  for (int64_t column = 0; column < row.meta.seq_len; ++column) {
    const int64_t token = token_at(tokens, column);
    if (token < 0 || token >= row.meta.vocab_size) fail_token(row, column, token, origin);
    out[column] = static_cast<int32_t>(token);
  }
}

// Labels equal to ignore_label_id become kIgnoreLabel.
template <class T, class Origin>
void read_labels(const TokenRow& row, const T* tokens, const Origin& origin, int32_t* out) {
  for (int64_t column = 0; column < row.meta.seq_len; ++column) {
    const int64_t token = token_at(tokens, column);
    const bool ignored = token == row.meta.ignore_label_id && row.meta.ignore_label_id != -1;
    if (!ignored && (token < 0 || token >= row.meta.vocab_size)) fail_token(row, column, token, origin);
    out[column] = static_cast<int32_t>(ignored ? kIgnoreLabel : token);
  }
}

}  // namespace hrm::data
