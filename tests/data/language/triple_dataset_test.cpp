#include "hrm/data/triple_dataset.h"

#include "data/language/language_support.h"

namespace hrm::data {
namespace {

using config::TripleCache;
using test::TempDir;

std::shared_ptr<TripleDataset> open_triples(const std::filesystem::path& folder,
                                            TripleCache cache = TripleCache::automatic, uint64_t max_malformed = 0) {
  TripleOptions options;
  options.cache = cache;
  options.max_malformed = max_malformed;
  return std::make_shared<TripleDataset>(folder, "train", options);
}

TEST(TripleDataset, RowsAreCutAndPadded) {
  const TempDir dir;
  const auto data = open_triples(triple_folder(dir / "t", 6));
  EXPECT_TRUE(data->cached());
  EXPECT_EQ(data->num_samples(2), 6);
  EXPECT_EQ(data->meta().vocab_size, 200);
  EXPECT_EQ(data->cut_records({3, 2}), 4);  // 2 and 5 by their decoder ids, 3 and 4 by the encoder's
  EXPECT_EQ(data->cut_records({0, 2}), 2);
  EXPECT_EQ(data->cut_records({5, 3}), 0);
  LanguageReader reader({"val", data}, {.shape = {3, 2}, .global_batch_size = 6, .buckets = 1});
  const LanguageTestBatch batch = reader.batch(0);
  // Record 0: one encoder id 10, one decoder id 20. Record 3: four encoder ids, cut to three.
  EXPECT_EQ(values<int64_t>(batch.batch.encoder_ids[0]), (std::vector<int64_t>{10, 0, 0}));
  EXPECT_EQ(values<bool>(batch.batch.encoder_mask[0]), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(values<int64_t>(batch.batch.decoder_ids[0]), (std::vector<int64_t>{20, 0}));
  EXPECT_EQ(values<int64_t>(batch.batch.labels[0]), (std::vector<int64_t>{30, -100}));
  EXPECT_EQ(values<int64_t>(batch.batch.encoder_ids[3]), (std::vector<int64_t>{13, 13, 13}));
  EXPECT_EQ(values<bool>(batch.batch.encoder_mask[3]), (std::vector<bool>{true, true, true}));
  // Record 2: three decoder ids, cut to two, of which the first is not learned from.
  EXPECT_EQ(values<int64_t>(batch.batch.decoder_ids[2]), (std::vector<int64_t>{22, 22}));
  EXPECT_EQ(values<int64_t>(batch.batch.labels[2]), (std::vector<int64_t>{-100, 32}));
  EXPECT_FALSE(batch.batch.document_ids.defined());
  EXPECT_EQ(batch.batch.encoder_tokens, 1 + 2 + 3 + 3 + 3 + 1);
  EXPECT_EQ(batch.batch.decoder_tokens, 1 + 2 + 2 + 1 + 2 + 2);
  EXPECT_EQ(batch.batch.label_tokens, 1 + 1 + 1 + 1 + 1 + 1);
}

TEST(TripleDataset, MemoryAndStreamGiveTheSame) {
  const TempDir dir;
  triple_folder(dir / "t", 57);
  const auto memory = open_triples(dir / "t", TripleCache::memory),
             stream = open_triples(dir / "t", TripleCache::stream);
  EXPECT_TRUE(memory->cached());
  EXPECT_FALSE(stream->cached());
  EXPECT_EQ(memory->digest(), stream->digest());
  LanguageStream a({{memory}}, language_options(8, {4, 3}), 0), b({{stream}}, language_options(8, {4, 3}), 0);
  expect_same(take(a, 20).tensors, take(b, 20).tensors);
  // auto: by the size of the ids.
  TripleOptions small;
  small.cache_bytes = 100;
  EXPECT_FALSE(TripleDataset(dir / "t", "train", small).cached());
}

TEST(TripleDataset, RecordsAreWhole) {
  const TempDir dir;
  triple_folder(dir / "t", 5);
  for (const TripleCache cache : {TripleCache::memory, TripleCache::stream}) {
    const TripleDataset::Record record = open_triples(dir / "t", cache)->record(4);
    EXPECT_EQ(record.encoder_ids, (std::vector<int32_t>{14, 14, 14, 14, 14}));
    EXPECT_EQ(record.decoder_ids, (std::vector<int32_t>{24, 24}));
    EXPECT_EQ(record.labels, (std::vector<int32_t>{-100, 34}));
  }
}

TEST(TripleDataset, MalformedLinesAreNamedAndCounted) {
  const TempDir dir;
  triple_folder(dir / "t", 3);
  const std::string good = read_all(dir / "t" / "train.jsonl");
  write_text(dir / "t" / "train.jsonl", good + "{\"encoder_ids\": [200], \"labels\": [1]}\n" +
                                            "{\"encoder_ids\": [1]\n" + "\xFF\n" + triple_line(7));
  expect_error(ExitCode::data, {"train.jsonl:4: id 200 in encoder_ids is outside 0 to 199", "max_malformed: 0"},
               [&] { open_triples(dir / "t"); });
  expect_error(ExitCode::data, {"train.jsonl:4", "train.jsonl:5", "train.jsonl:6: the line is not valid UTF-8"},
               [&] { open_triples(dir / "t", TripleCache::automatic, 2); });
  for (const TripleCache cache : {TripleCache::memory, TripleCache::stream}) {
    const auto data = open_triples(dir / "t", cache, 3);
    EXPECT_EQ(data->num_samples(1), 4);
    EXPECT_EQ(data->malformed(), 3u);
    EXPECT_EQ(data->record(3).encoder_ids, (std::vector<int32_t>{17, 17, 17}));
  }
}

TEST(TripleDataset, AFileThatIsChangedMeanwhileIsNoticed) {
  const TempDir dir;
  triple_folder(dir / "t", 4);
  const auto data = open_triples(dir / "t", TripleCache::stream);
  // Written in place, as nobody should: the map sees it.
  std::fstream file(dir / "t" / "train.jsonl", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(read_all(dir / "t" / "train.jsonl").find('[')));
  file << "x";
  file.close();
  expect_error(ExitCode::data, {"train.jsonl:1: changed since it was indexed", "expected '['"},
               [&] { data->record(0); });
}

TEST(TripleDataset, RefusesWhatIsNotThereOrDoesNotFit) {
  const TempDir dir;
  const auto folder = triple_folder(dir / "t", 2);
  const auto meta = [&](const std::string& text) { write_text(folder / "meta.json", text); };
  const auto refused = [&](const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { open_triples(folder); });
  };
  expect_error(ExitCode::data, {"val.jsonl", "does not exist"}, [&] { TripleDataset(folder, "val"); });
  meta("{\"vocab_size\": 20}");  // fewer than the ids
  refused({"train.jsonl:1: id 20 in decoder_input_ids is outside 0 to 19"});
  meta("{\"vocab_size\": 0}");
  refused({"meta.json", "\"vocab_size\" must be a whole number"});
  meta("{\"vocab_size\": 200.5}");
  refused({"\"vocab_size\""});
  meta("{\"vocab_size\": 200, \"eos_id\": 200}");
  refused({"\"eos_id\" must be an id below the vocabulary's 200"});
  meta("{\"vocab_size\": 200, \"pad_id\": -1}");
  refused({"\"pad_id\" is -1"});
  meta("[]");
  refused({"must be an object"});
  meta("{\"vocab_size\": 200, \"tokenizer_file\": \"../t.json\"}");
  refused({"'../t.json' is not a name of a file beside it"});
  meta("{\"vocab_size\": 200, \"tokenizer_file\": \"t.json\"}");
  refused({"t.json", "does not exist"});
  write_text(folder / "t.json", "{}");
  open_triples(folder);
  meta("{\"vocab_size\": 200, \"tokenizer_file\": \"t.json\", \"tokenizer_digest\": \"00\"}");
  refused({"t.json: is not the tokenizer that the ids of this folder were made with"});
  std::filesystem::remove(folder / "meta.json");
  refused({"meta.json", "does not exist"});
  triple_folder(folder, 0);
  refused({"train.jsonl: has no record"});
}

TEST(TripleDataset, TheDigestIsThatOfTheContent) {
  const TempDir dir;
  const std::string a = open_triples(triple_folder(dir / "a", 5))->digest();
  EXPECT_EQ(open_triples(triple_folder(dir / "b", 5))->digest(), a);
  EXPECT_NE(open_triples(triple_folder(dir / "c", 6))->digest(), a);
  EXPECT_EQ(open_triples(dir / "a", TripleCache::stream)->digest(), a);
}

}  // namespace
}  // namespace hrm::data
