#include "hrm/data/token_dataset.h"

#include "data/language/language_support.h"

namespace hrm::data {
namespace {

using test::TempDir;

TEST(TokenDataset, SamplesGoAcrossShards) {
  const TempDir dir;
  // 100..103 EOS, 200 201 EOS | 300..305 EOS: 15 tokens.
  const TokenDataset data(token_folder(dir / "t", {{4, 2}, {6}}), "train");
  EXPECT_EQ(data.num_tokens(), 15);
  EXPECT_EQ(data.num_documents(), 3);
  EXPECT_EQ(data.document_begin(2), 8);
  EXPECT_EQ(data.document_end(1), 8);
  EXPECT_EQ(data.document_end(2), 15);
  EXPECT_EQ(data.num_samples(5), 2);
  EXPECT_EQ(data.num_samples(14), 1);
  EXPECT_EQ(data.num_samples(15), 0);
  std::vector<int32_t> all(15);
  data.tokens(0, 15, all.data());
  EXPECT_EQ(all, (std::vector<int32_t>{100, 101, 102, 103, 2, 200, 201, 2, 300, 301, 302, 303, 304, 305, 2}));
}

LanguageBatch row_of(const std::filesystem::path& folder, bool document_masks, const LanguageShape& shape,
                     int64_t index) {
  const auto data = std::make_shared<TokenDataset>(folder, "train", TokenOptions{document_masks});
  LanguageReader reader({"t", data}, {.shape = shape, .global_batch_size = 1});
  return reader.batch(index).batch;
}

TEST(TokenDataset, LabelsDocumentsAndPositions) {
  const TempDir dir;
  const auto folder = token_folder(dir / "t", {{4, 2}, {6}});
  const LanguageBatch open = row_of(folder, false, {0, 7}, 0);
  EXPECT_FALSE(open.encoder_ids.defined());
  EXPECT_EQ(values<int64_t>(open.decoder_ids), (std::vector<int64_t>{100, 101, 102, 103, 2, 200, 201}));
  EXPECT_EQ(values<int64_t>(open.labels), (std::vector<int64_t>{101, 102, 103, 2, 200, 201, 2}));
  EXPECT_EQ(values<int32_t>(open.document_ids), (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(values<int32_t>(open.position_ids), (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(open.label_tokens, 7);
  // The next row begins inside a document, whose part counts from 0.
  const LanguageBatch masked = row_of(folder, true, {0, 6}, 1);
  EXPECT_EQ(values<int64_t>(masked.decoder_ids), (std::vector<int64_t>{201, 2, 300, 301, 302, 303}));
  EXPECT_EQ(values<int64_t>(masked.labels), (std::vector<int64_t>{2, -100, 301, 302, 303, 304}));
  EXPECT_EQ(values<int32_t>(masked.document_ids), (std::vector<int32_t>{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(values<int32_t>(masked.position_ids), (std::vector<int32_t>{0, 1, 0, 1, 2, 3}));
  EXPECT_EQ(masked.label_tokens, 5);
}

// Of rows of every length: what the rows themselves count.
TEST(TokenDataset, MostDocumentsOfARow) {
  const TempDir dir;
  const auto folder = token_folder(dir / "t", {{4, 2, 1, 1}, {6, 1, 9}});
  const TokenDataset data(folder, "train");
  for (int64_t length = 1; length < data.num_tokens(); ++length) {
    int32_t most = 0;
    for (int64_t row = 0; row < data.num_samples(length); ++row) {
      most = std::max(most, values<int32_t>(row_of(folder, true, {0, length}, row).document_ids).back() + 1);
    }
    EXPECT_EQ(data.most_documents(length), most) << length;
  }
  EXPECT_EQ(data.most_documents(1000), 1) << "no row at all";
}

TEST(TokenDataset, TheEncoderSeesWhatIsBefore) {
  const TempDir dir;
  const auto folder = token_folder(dir / "t", {{4, 2}, {6}});
  // Nothing is before the first row: BOS.
  LanguageBatch row = row_of(folder, false, {4, 2}, 0);
  EXPECT_EQ(values<int64_t>(row.encoder_ids), (std::vector<int64_t>{1, 0, 0, 0}));
  EXPECT_EQ(values<bool>(row.encoder_mask), (std::vector<bool>{true, false, false, false}));
  row = row_of(folder, false, {4, 2}, 1);
  EXPECT_EQ(values<int64_t>(row.encoder_ids), (std::vector<int64_t>{100, 101, 0, 0}));
  row = row_of(folder, false, {4, 2}, 3);
  EXPECT_EQ(values<int64_t>(row.decoder_ids), (std::vector<int64_t>{201, 2}));
  EXPECT_EQ(values<int64_t>(row.encoder_ids), (std::vector<int64_t>{102, 103, 2, 200}));
  EXPECT_EQ(row.encoder_tokens, 4);
  // With document masks only its own document, and BOS where the row begins one.
  row = row_of(folder, true, {4, 2}, 3);
  EXPECT_EQ(values<int64_t>(row.encoder_ids), (std::vector<int64_t>{200, 0, 0, 0}));
  row = row_of(folder, true, {4, 2}, 4);
  EXPECT_EQ(values<int64_t>(row.decoder_ids), (std::vector<int64_t>{300, 301}));
  EXPECT_EQ(values<int64_t>(row.encoder_ids), (std::vector<int64_t>{1, 0, 0, 0}));
}

TEST(TokenDataset, RefusesWhatDoesNotFit) {
  const TempDir dir;
  const auto folder = token_folder(dir / "t", {{4, 2}, {6}});
  const std::string meta = read_all(folder / "meta.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = meta;
    text.replace(text.find(from), from.size(), to);
    write_text(folder / "meta.json", text);
  };
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { TokenDataset data(folder, "train"); });
  };
  EXPECT_TRUE(is_token_folder(folder));
  EXPECT_TRUE(has_token_split(folder, "train"));
  EXPECT_FALSE(has_token_split(folder, "val"));
  expect_error(ExitCode::data, {"meta.json: has no split 'val'"}, [&] { TokenDataset data(folder, "val"); });
  with("\"tokens\": 8", "\"tokens\": 9");
  refused({"train-00000.npy: holds 8 tokens, but meta.json says 9"});
  with("\"documents\": 2", "\"documents\": 1");
  refused({"train-00000.documents.npy: holds 2 documents, but meta.json says 1"});
  with("\"tokens\": 8", "\"tokens\": -8");
  refused({"the shards of split 'train' are not described"});
  with("train-00000.npy", "../0.npy");
  refused({"'../0.npy' is not a name of a shard"});
  with("train-00001.npy", "train-00002.npy");
  refused({"train-00002.npy", "does not exist"});
  // A token that the vocabulary lacks: named when it is read.
  with("\"vocab_size\": 5000", "\"vocab_size\": 304");
  const TokenDataset small(folder, "train");
  std::vector<int32_t> all(15);
  expect_error(ExitCode::data, {"train-00001.npy: token 304 at place 4 is not below the vocabulary's 304"},
               [&] { small.tokens(0, 15, all.data()); });
  write_text(folder / "meta.json", meta);
  const std::vector<int64_t> bad{0, 9};
  write_npy(folder / "train-00000.documents.npy", DType::i64, {2}, std::as_bytes(std::span(bad)));
  refused({"documents.npy: a document begins at 9, which is not behind 0 and below 8"});
  const std::vector<int32_t> wide{1, 2, 3, 4, 5, 6, 7, 8};
  write_npy(folder / "train-00000.npy", DType::i32, {8}, std::as_bytes(std::span(wide)));
  refused({"must be uint16 or uint32 tokens of one dimension, but is I32 [8]"});
}

}  // namespace
}  // namespace hrm::data
