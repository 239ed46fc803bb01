#pragma once
// Small language data for the tests of this folder.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "data/data_support.h"
#include "hrm/base/file.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"
#include "hrm/formats/npy.h"
#include "support/temp_dir.h"

namespace hrm::data {

inline std::string read_all(const std::filesystem::path& path) {
  return read_text(path, ExitCode::data);
}

inline void write_meta(const std::filesystem::path& folder, int64_t vocab_size) {
  std::filesystem::create_directories(folder);
  LanguageMeta meta;
  meta.vocab_size = vocab_size;
  meta.bos_id = 1;
  meta.eos_id = 2;
  write_language_meta(folder, meta);
}

inline std::string ids_text(const std::vector<int>& ids) {
  std::string text;
  for (const int id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return "[" + text + "]";
}

// Record i: i % 5 + 1 encoder ids 10 + i, and i % 3 + 1 decoder ids 20 + i with labels 30 + i, the first one ignored
// where there are several.
inline std::string triple_line(int i) {
  std::vector<int> encoder(i % 5 + 1, 10 + i), decoder(i % 3 + 1, 20 + i), labels(i % 3 + 1, 30 + i);
  if (labels.size() > 1) labels[0] = -100;
  return "{\"encoder_ids\": " + ids_text(encoder) + ", \"decoder_input_ids\": " + ids_text(decoder) +
         ", \"labels\": " + ids_text(labels) + "}\n";
}

inline std::filesystem::path triple_folder(const std::filesystem::path& folder, int records) {
  write_meta(folder, 200);
  std::string text;
  for (int i = 0; i < records; ++i) text += triple_line(i);
  write_text(folder / "train.jsonl", text);
  return folder;
}

// Shards of the given documents; ids of a document d count up from 100 d, EOS (2) at its end.
inline std::filesystem::path token_folder(const std::filesystem::path& folder,
                                          const std::vector<std::vector<int>>& shards) {
  std::filesystem::create_directories(folder);
  std::string list;
  int document = 1, number = 0;
  for (const std::vector<int>& sizes : shards) {
    std::vector<uint16_t> tokens;
    std::vector<int64_t> documents;
    for (const int size : sizes) {
      documents.push_back(static_cast<int64_t>(tokens.size()));
      for (int i = 0; i < size; ++i) tokens.push_back(static_cast<uint16_t>(100 * document + i));
      tokens.push_back(2);
      ++document;
    }
    const std::string stem = cat("train-0000", number++);
    const int64_t count = static_cast<int64_t>(tokens.size()), starts = static_cast<int64_t>(documents.size());
    write_npy(folder / (stem + ".npy"), DType::u16, {count}, std::as_bytes(std::span(tokens)));
    write_npy(folder / (stem + ".documents.npy"), DType::i64, {starts}, std::as_bytes(std::span(documents)));
    list += (list.empty() ? "" : ", ") + cat("{\"file\": \"", stem, ".npy\", \"tokens\": ", count,
                                             ", \"documents\": ", starts, ", \"digest\": \"\"}");
  }
  LanguageMeta meta;
  meta.vocab_size = 5000;
  meta.bos_id = 1;
  meta.eos_id = 2;
  write_language_meta(folder, meta, "  \"splits\": {\"train\": [" + list + "]}");
  return folder;
}

inline LanguageStreamOptions language_options(int64_t batch, const LanguageShape& shape) {
  LanguageStreamOptions options;
  options.seed = 6;
  options.shape = shape;
  options.global_batch_size = batch;
  options.prefetch_batches = 2;
  return options;
}

// All tensors of some batches, one after the other.
struct LanguageRows {
  std::vector<at::Tensor> tensors;  // encoder ids, mask, decoder ids, labels, documents, positions; those there are
  std::vector<int64_t> positions;
  int64_t label_tokens = 0;
};

inline std::vector<at::Tensor> tensors_of(const LanguageBatch& batch) {
  std::vector<at::Tensor> result;
  for (const at::Tensor* tensor : {&batch.encoder_ids, &batch.encoder_mask, &batch.decoder_ids, &batch.labels,
                                   &batch.document_ids, &batch.position_ids}) {
    if (tensor->defined()) result.push_back(tensor->clone());
  }
  return result;
}

inline LanguageRows take(LanguageStream& stream, int batches) {
  LanguageRows rows;
  std::vector<std::vector<at::Tensor>> parts;
  for (int i = 0; i < batches; ++i) {
    const LanguageStreamBatch batch = stream.next();
    parts.push_back(tensors_of(batch.batch));
    rows.positions.push_back(batch.position_after);
    rows.label_tokens += batch.batch.label_tokens;
  }
  for (size_t k = 0; k < parts[0].size(); ++k) {
    std::vector<at::Tensor> same;
    for (const auto& part : parts) same.push_back(part[k]);
    rows.tensors.push_back(at::cat(same));
  }
  return rows;
}

inline void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < got.size(); ++k) EXPECT_TRUE(at::equal(got[k], want[k])) << "tensor " << k;
}

template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const T* begin = flat.data_ptr<T>();
  return std::vector<T>(begin, begin + flat.numel());
}

}  // namespace hrm::data
