#include "hrm/data/language_stream.h"

#include <atomic>
#include <set>

#include "data/language/language_support.h"
#include "hrm/data/language_open.h"

namespace hrm::data {
namespace {

using test::TempDir;

// All kinds at once: triples in memory, streamed ones, packed text.
class LanguageStreamTest : public ::testing::Test {
 protected:
  LanguageStreamTest() {
    triple_folder(dir_ / "a", 23);
    triple_folder(dir_ / "b", 7);
    token_folder(dir_ / "c", {{9, 30, 2}, {50, 1}, {40}});
    TripleOptions streamed;
    streamed.cache = config::TripleCache::stream;
    // One vocabulary for all.
    for (const char* name : {"a", "b"}) {
      LanguageMeta meta = read_language_meta(dir_ / name);
      meta.vocab_size = 5000;
      write_language_meta(dir_ / name, meta);
    }
    sources_ = {{std::make_shared<TripleDataset>(dir_ / "a", "train"), 3},
                {std::make_shared<TripleDataset>(dir_ / "b", "train", streamed), 1},
                {std::make_shared<TokenDataset>(dir_ / "c", "train", TokenOptions{true}), 2}};
  }
  LanguageRows rows(const LanguageStreamOptions& options, int64_t position, int batches) const {
    LanguageStream stream(sources_, options, position);
    return take(stream, batches);
  }
  TempDir dir_;
  std::vector<WeightedSource> sources_;
};

TEST_F(LanguageStreamTest, PrefetchDepthAndBatchSizeDoNotChangeTheRows) {
  LanguageStreamOptions options = language_options(6, {4, 5});
  const LanguageRows want = rows(options, 0, 10);
  EXPECT_EQ(want.tensors.size(), 6u);
  EXPECT_EQ(want.tensors[0].sizes(), (at::IntArrayRef{60, 4}));
  options.prefetch_batches = 1;
  expect_same(rows(options, 0, 10).tensors, want.tensors);
  options.prefetch_batches = 9;
  expect_same(rows(options, 0, 10).tensors, want.tensors);
  options.global_batch_size = 15;
  const LanguageRows other = rows(options, 0, 4);
  expect_same(other.tensors, want.tensors);
  EXPECT_EQ(other.label_tokens, want.label_tokens);
  options.seed = 7;
  EXPECT_FALSE(at::equal(rows(options, 0, 4).tensors[2], want.tensors[2]));
}

TEST_F(LanguageStreamTest, RanksSliceTheGlobalBatch) {
  LanguageStreamOptions options = language_options(8, {4, 5});
  for (const int64_t ranks : {2, 4}) {
    LanguageStream whole(sources_, language_options(8, {4, 5}), 16);
    options.ranks = ranks;
    std::vector<std::unique_ptr<LanguageStream>> parts;
    for (options.rank = 0; options.rank < ranks; ++options.rank) {
      parts.push_back(std::make_unique<LanguageStream>(sources_, options, 16));
    }
    for (int step = 0; step < 4; ++step) {
      const LanguageStreamBatch want = whole.next();
      std::vector<std::vector<at::Tensor>> got;
      int64_t labels = 0;
      for (const auto& part : parts) {
        const LanguageStreamBatch one = part->next();
        got.push_back(tensors_of(one.batch));
        labels += one.batch.label_tokens;
        EXPECT_EQ(one.position_after, want.position_after);
      }
      EXPECT_EQ(labels, want.batch.label_tokens);
      const auto all = tensors_of(want.batch);
      for (size_t k = 0; k < all.size(); ++k) {
        std::vector<at::Tensor> same;
        for (const auto& one : got) same.push_back(one[k]);
        EXPECT_TRUE(at::equal(at::cat(same), all[k])) << ranks << " ranks, tensor " << k;
      }
    }
  }
}

TEST_F(LanguageStreamTest, RestartsAnywhere) {
  const LanguageStreamOptions options = language_options(7, {4, 5});
  const LanguageRows all = rows(options, 0, 9);
  for (const int done : {1, 4, 8}) {
    EXPECT_EQ(all.positions[done - 1], position_after(options, 0, done));
    const LanguageRows rest = rows(options, all.positions[done - 1], 9 - done);
    for (size_t k = 0; k < all.tensors.size(); ++k) {
      EXPECT_TRUE(at::equal(rest.tensors[k], all.tensors[k].narrow(0, done * 7, (9 - done) * 7)));
    }
  }
}

TEST_F(LanguageStreamTest, DigestsTellBatchesApart) {
  LanguageStreamOptions options = language_options(6, {4, 5});
  const std::string first = language_batch_digest(sources_, options, 0);
  options.ranks = 2;
  options.rank = 1;
  options.prefetch_batches = 3;
  EXPECT_EQ(language_batch_digest(sources_, options, 0), first);  // of the global batch
  std::set<std::string> seen{first};
  EXPECT_TRUE(seen.insert(language_batch_digest(sources_, options, 6)).second);
  options.seed = 9;
  EXPECT_TRUE(seen.insert(language_batch_digest(sources_, options, 0)).second);
  options.seed = 6;
  std::vector<WeightedSource> other = sources_;
  other[0].weight = 4;
  EXPECT_NE(sources_digest(other), sources_digest(sources_));
  other[0].weight = 3;
  EXPECT_EQ(sources_digest(other), sources_digest(sources_));
  EXPECT_EQ(language_batch_digest(other, options, 0), first);
}

TEST_F(LanguageStreamTest, ASingleSourceGoesThroughEpochs) {
  MixtureOrder order({sources_[0]}, 5, 3);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> seen;
    for (int i = 0; i < 23; ++i) {
      const LanguagePick pick = order(epoch * 23 + i);
      EXPECT_EQ(pick.source, 0);
      seen.insert(pick.sample);
    }
    EXPECT_EQ(seen.size(), 23u);
  }
  EXPECT_EQ(epoch_samples(sources_, 5), 23 + 7 + sources_[2].source->num_samples(5));
}

TEST_F(LanguageStreamTest, MixturesKeepTheirSharesAndEpochs) {
  MixtureOrder order(sources_, 5, 3);
  constexpr int64_t kBlock = 65536;
  std::vector<int64_t> counts(3);
  std::vector<std::vector<int64_t>> visits(3);
  for (int64_t i = 0; i < kBlock + 5000; ++i) {
    const LanguagePick pick = order(i);
    if (i < kBlock) ++counts[pick.source];
    visits[pick.source].push_back(pick.sample);
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{kBlock / 2, (kBlock + 4) / 6, kBlock / 3 + 0}));
  // Drawn sample by sample, not in runs: the first 600 have the shares, too, about.
  MixtureOrder again(sources_, 5, 3);
  std::vector<int> early(3);
  for (int64_t i = 0; i < 600; ++i) ++early[again(i).source];
  EXPECT_NEAR(early[0], 300, 60);
  EXPECT_NEAR(early[1], 100, 45);
  // Within a source each sample once an epoch, in a new order each time, also across blocks.
  for (size_t s = 0; s < 3; ++s) {
    const size_t n = static_cast<size_t>(sources_[s].source->num_samples(5));
    std::set<std::vector<int64_t>> orders;
    for (size_t begin = 0; begin + n <= visits[s].size(); begin += n) {
      const std::vector<int64_t> epoch(visits[s].begin() + begin, visits[s].begin() + begin + n);
      ASSERT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), n) << "source " << s << ", visit " << begin;
      if (orders.size() < 20) orders.insert(epoch);
    }
    EXPECT_EQ(orders.size(), 20u) << "source " << s;
  }
  // Any number can be asked for at once.
  MixtureOrder fresh(sources_, 5, 3);
  const LanguagePick late = fresh(kBlock + 4321), same = order(kBlock + 4321);
  EXPECT_EQ(late.source, same.source);
  EXPECT_EQ(late.sample, same.sample);
}

TEST_F(LanguageStreamTest, RefusesWhatDoesNotFit) {
  const auto open = [&](const std::vector<WeightedSource>& sources, const LanguageStreamOptions& options) {
    LanguageStream stream(sources, options, 0);
  };
  LanguageStreamOptions options = language_options(7, {4, 5});
  options.ranks = 2;
  expect_error(ExitCode::usage, {"a batch of 7", "2 ranks"}, [&] { open(sources_, options); });
  options = language_options(6, {4, 0});
  expect_error(ExitCode::usage, {"4 encoder and 0 decoder positions"}, [&] { open(sources_, options); });
  options = language_options(6, {4, 5});
  expect_error(ExitCode::usage, {"no training data"}, [&] { open({}, options); });
  auto bad = sources_;
  bad[1].weight = 0;
  expect_error(ExitCode::usage, {"the weight of", "b/train.jsonl", "above 0"}, [&] { open(bad, options); });
  bad[1].weight = 1e-9;
  expect_error(ExitCode::usage, {"b/train.jsonl", "is a share of", "the smallest is"}, [&] { open(bad, options); });
  options.shape.decoder_len = 500;
  expect_error(ExitCode::data, {"c/train: has no sample of 500 positions"}, [&] { open(sources_, options); });
  options.shape.decoder_len = 5;
  LanguageMeta meta = read_language_meta(dir_ / "b");
  meta.eos_id = 3;
  write_language_meta(dir_ / "b", meta);
  bad[1] = {std::make_shared<TripleDataset>(dir_ / "b", "train"), 1};
  expect_error(ExitCode::data, {"a/train.jsonl and", "b/train.jsonl cannot be read as one: eos_id '2' and '3'"},
               [&] { open(bad, options); });
}

TEST_F(LanguageStreamTest, FoldersAreOpenedByWhatIsInThem) {
  EXPECT_FALSE(open_language_source(dir_ / "a", "train")->packed());
  EXPECT_TRUE(open_language_source(dir_ / "c", "train")->packed());
  std::filesystem::create_directories(dir_ / "d");
  expect_error(ExitCode::data, {"d: is not a folder of language data", "'hrm_train data text' makes one"},
               [&] { open_language_source(dir_ / "d", "train"); });
  expect_error(ExitCode::data, {"org/texts: is not a folder", "hf download org/texts --repo-type dataset"},
               [&] { open_language_source("org/texts", "train"); });
}

// Fails at its n-th row.
class OddSource : public LanguageSource {
 public:
  explicit OddSource(int64_t fails_at) : fails_at_(fails_at) {
    meta_.vocab_size = 4;
    origin_ = "odd";
  }
  int64_t num_samples(int64_t) const override { return 8; }
  LanguageCounts row(int64_t, const LanguageRow& row) const override {
    if (reads_++ == fails_at_) fail(ExitCode::data, "odd.npy: token 9 at place 3");
    blank_row(row, 0);
    return {};
  }
  LanguageShape lengths(int64_t, const LanguageShape& most) const override { return most; }
  std::string digest() const override { return "odd"; }

 private:
  int64_t fails_at_;
  mutable std::atomic<int64_t> reads_{0};
};

TEST(LanguageStream, ErrorsOfTheThreadReachNext) {
  LanguageStream stream({{std::make_shared<OddSource>(5)}}, language_options(2, {1, 1}), 0);
  stream.next();
  stream.next();
  for (int again = 0; again < 2; ++again) {
    expect_error(ExitCode::data, {"odd.npy: token 9 at place 3"}, [&] { stream.next(); });
  }
}

TEST(LanguageStream, HeldBuffersAreNotOverwritten) {
  const TempDir dir;
  const auto data = std::make_shared<TripleDataset>(triple_folder(dir / "t", 40), "train");
  LanguageStreamOptions options = language_options(5, {4, 3});
  options.prefetch_batches = 1;
  LanguageStream stream({{data}}, options, 0);
  LanguageStreamBatch first = stream.next();
  const at::Tensor copy = first.batch.labels.clone();
  for (int step = 0; step < 20; ++step) stream.next();
  EXPECT_TRUE(at::equal(first.batch.labels, copy));
  first.release();
  EXPECT_FALSE(first.batch.labels.defined());
  std::vector<LanguageStreamBatch> held;
  expect_error(ExitCode::unexpected, {"batch buffers are held by the caller"}, [&] {
    for (int i = 0; i < 10; ++i) held.push_back(stream.next());
  });
  EXPECT_EQ(held.size(), 3u);
}

TEST(LanguageReader, BatchesAreCutToFewShapes) {
  const TempDir dir;
  const auto data = std::make_shared<TripleDataset>(triple_folder(dir / "t", 13), "train");
  LanguageReader reader({"val", data}, {.shape = {64, 32}, .global_batch_size = 4});
  EXPECT_EQ(reader.num_samples(), 13);
  EXPECT_EQ(reader.num_batches(), 4);
  int64_t valid = 0, labels = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const LanguageTestBatch batch = reader.batch(i);
    EXPECT_EQ(batch.batch.encoder_ids.sizes(), (at::IntArrayRef{4, 16}));
    EXPECT_EQ(batch.batch.labels.sizes(), (at::IntArrayRef{4, 8}));
    valid += batch.batch.valid_rows;
    labels += batch.batch.label_tokens;
    EXPECT_EQ(batch.global_valid_rows, i < 3 ? 4 : 1);
  }
  EXPECT_EQ(valid, 13);
  EXPECT_EQ(labels, 4 * (1 + 1 + 2) + 1);
  // Padding rows learn nothing, and their attention stays finite.
  const LanguageBatch last = reader.batch(3).batch;
  EXPECT_EQ(last.labels.narrow(0, 1, 3).ne(-100).sum().item<int64_t>(), 0);
  EXPECT_EQ(values<bool>(last.encoder_mask.sum(1).eq(1)), (std::vector<bool>{false, true, true, true}));
}

TEST(LanguageReader, RanksAndSubsets) {
  const TempDir dir;
  const auto data = std::make_shared<TripleDataset>(triple_folder(dir / "t", 13), "train");
  const LanguageReader whole({"val", data}, {.shape = {5, 3}, .global_batch_size = 8});
  for (int64_t i = 0; i < 2; ++i) {
    std::vector<std::vector<at::Tensor>> parts;
    int64_t valid = 0;
    for (int64_t rank = 0; rank < 4; ++rank) {
      const LanguageReader part({"val", data}, {.shape = {5, 3}, .global_batch_size = 8, .rank = rank, .ranks = 4});
      const LanguageTestBatch batch = part.batch(i);
      EXPECT_EQ(batch.global_valid_rows, whole.batch(i).global_valid_rows);
      parts.push_back(tensors_of(batch.batch));
      valid += batch.batch.valid_rows;
    }
    EXPECT_EQ(valid, whole.batch(i).batch.valid_rows);
    const auto want = tensors_of(whole.batch(i).batch);
    for (size_t k = 0; k < want.size(); ++k) {
      EXPECT_TRUE(at::equal(at::cat({parts[0][k], parts[1][k], parts[2][k], parts[3][k]}), want[k]));
    }
  }
  const LanguageReader some({"few", data, 4}, {.shape = {5, 3}, .global_batch_size = 8});
  EXPECT_EQ(some.name(), "few");
  EXPECT_EQ(some.batch(0).samples, (std::vector<int64_t>{0, 3, 6, 9}));
  expect_error(ExitCode::usage, {"an evaluation batch of 8", "3 ranks"}, [&] {
    LanguageReader reader({"val", data}, {.shape = {5, 3}, .global_batch_size = 8, .ranks = 3});
  });
}

}  // namespace
}  // namespace hrm::data
