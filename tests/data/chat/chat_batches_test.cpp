#include "hrm/data/chat_batches.h"

#include <map>
#include <set>

#include "data/chat/chat_support.h"
#include "data/language/language_support.h"

namespace hrm::data {
namespace {

using test::TempDir;

class ChatBatchesTest : public ::testing::Test {
 protected:
  ChatBatchesTest() : data_(byte_dataset(dir_ / "a.jsonl", text())) {
    source_ = std::make_shared<ChatSource>(data_, all_of(*data_));
  }
  // 60 examples of 3 to 62 positions.
  static std::string text() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += chat_line("p" + std::to_string(i % 10), std::string((i * 7) % 60 + 1, 'x'));
    return text;
  }
  static ChatBatchOptions options(int64_t batch, int64_t pool = 1) {
    return {.seed = 5, .global_batch_size = batch, .max_len = 64, .buckets = 4, .multiple = 8, .pool_batches = pool};
  }
  TempDir dir_;
  std::shared_ptr<const ChatDataset> data_;
  std::shared_ptr<const ChatSource> source_;
};

void expect_equal(const ChatBatch& a, const ChatBatch& b) {
  expect_same(tensors_of(a.rows), tensors_of(b.rows));
  expect_same({a.prompt_lengths, a.lengths}, {b.prompt_lengths, b.lengths});
  EXPECT_EQ(a.examples, b.examples);
}

TEST_F(ChatBatchesTest, RowsAreThoseOfTheirExamples) {
  ChatBatches batches(source_, options(6));
  std::set<int64_t> shapes;
  int64_t position = 0;
  for (int step = 0; step < 20; ++step) {
    const ChatBatch batch = batches.batch(position);
    EXPECT_EQ(batch.position_before, position);
    position = batch.position_after;
    const int64_t length = batch.rows.decoder_ids.size(1);
    shapes.insert(length);
    int64_t longest = 0, tokens = 0, labels = 0;
    for (int64_t row = 0; row < 6; ++row) {
      const ChatExample& example = (*data_)[batch.examples[row]];
      const int64_t n = example.ids() - 1, prompt = batch.prompt_lengths[row].item<int64_t>();
      longest = std::max(longest, n);
      tokens += n;
      EXPECT_EQ(batch.lengths[row].item<int64_t>(), n);
      EXPECT_EQ(prompt, static_cast<int64_t>(example.prompt_ids.size()));
      const auto ids = values<int64_t>(batch.rows.decoder_ids[row]), learned = values<int64_t>(batch.rows.labels[row]);
      for (int64_t t = 0; t < length; ++t) {
        EXPECT_EQ(learned[t] != -100, t >= prompt - 1 && t < n) << "row " << row << ", position " << t;
        EXPECT_EQ(ids[t] == 258, t >= n);
        labels += learned[t] != -100;
      }
      EXPECT_TRUE(std::equal(example.response_ids.begin(), example.response_ids.end(), learned.begin() + prompt - 1));
    }
    EXPECT_EQ(batch.rows.decoder_tokens, tokens);
    EXPECT_EQ(batch.rows.label_tokens, labels);
    EXPECT_GE(length, longest);
    EXPECT_LE(length - longest, 16);
  }
  EXPECT_LE(shapes.size(), 4u);
  for (const int64_t length : shapes) EXPECT_EQ(length % 16, 0);
}

TEST_F(ChatBatchesTest, TheOrderIsThatOfTheStream) {
  ChatBatches batches(source_, options(6));
  LanguageStreamOptions stream_options = language_options(6, {0, 64});
  stream_options.seed = 5;
  LanguageStream stream({{source_}}, stream_options, 0);
  for (int step = 0; step < 25; ++step) {
    const ChatBatch batch = batches.batch(step * 6);
    const LanguageStreamBatch other = stream.next();
    const int64_t length = batch.rows.decoder_ids.size(1);
    EXPECT_TRUE(at::equal(batch.rows.decoder_ids, other.batch.decoder_ids.narrow(1, 0, length)));
    EXPECT_TRUE(at::equal(batch.rows.labels, other.batch.labels.narrow(1, 0, length)));
  }
}

TEST_F(ChatBatchesTest, PoolsHaveTheirExamplesOnceAndLittlePadding) {
  const auto waste = [&](int64_t pool) {
    ChatBatches batches(source_, options(6, pool));
    std::map<int64_t, int> counts;
    int64_t padding = 0;
    for (int64_t position = 0; position < 120; position += 6) {
      const ChatBatch batch = batches.batch(position);
      for (const int64_t example : batch.examples) ++counts[example];
      padding += batch.rows.decoder_ids.numel() - batch.rows.decoder_tokens;
      if (position == 54) {
        EXPECT_EQ(counts.size(), 60u);
      }
    }
    for (const auto& [example, count] : counts) EXPECT_EQ(count, 2) << example;
    return padding;
  };
  EXPECT_LT(waste(10) * 2, waste(1));
}

TEST_F(ChatBatchesTest, PoolsDealOutTheirBatchesByChance) {
  ChatBatches batches(source_, options(6, 10));
  std::vector<std::vector<int64_t>> lengths(2);
  for (int64_t position = 0; position < 120; position += 6) {
    lengths[position / 60].push_back(batches.batch(position).lengths.max().item<int64_t>());
  }
  for (const auto& one : lengths) EXPECT_FALSE(std::is_sorted(one.begin(), one.end()));
  EXPECT_NE(lengths[0], lengths[1]);
}

TEST_F(ChatBatchesTest, AnyBatchCanBeAskedForAtOnce) {
  for (const int64_t pool : {1, 7}) {
    ChatBatches straight(source_, options(4, pool));
    for (int64_t position = 0; position < 200; position += 4) {
      const ChatBatch want = straight.batch(position);
      if (position % 36 == 0) expect_equal(ChatBatches(source_, options(4, pool)).batch(position), want);
    }
    ChatBatchOptions other = options(4, pool);
    other.seed = 6;
    EXPECT_NE(ChatBatches(source_, other).batch(0).examples, straight.batch(0).examples);
  }
}

TEST_F(ChatBatchesTest, RanksSliceTheGlobalBatch) {
  ChatBatches whole(source_, options(8, 3));
  for (int64_t position = 0; position < 80; position += 8) {
    const ChatBatch want = whole.batch(position);
    std::vector<at::Tensor> ids, labels, prompts;
    std::vector<int64_t> examples;
    for (int64_t rank = 0; rank < 4; ++rank) {
      ChatBatchOptions part = options(8, 3);
      part.rank = rank;
      part.ranks = 4;
      const ChatBatch one = ChatBatches(source_, part).batch(position);
      ids.push_back(one.rows.decoder_ids);
      labels.push_back(one.rows.labels);
      prompts.push_back(one.prompt_lengths);
      examples.insert(examples.end(), one.examples.begin(), one.examples.end());
    }
    expect_same({at::cat(ids), at::cat(labels), at::cat(prompts)},
                {want.rows.decoder_ids, want.rows.labels, want.prompt_lengths});
    EXPECT_EQ(examples, want.examples);
  }
}

TEST_F(ChatBatchesTest, RefusesWhatDoesNotFit) {
  const auto refused = [&](const ChatBatchOptions& bad, const std::vector<std::string>& parts) {
    expect_error(ExitCode::usage, parts, [&] { ChatBatches(source_, bad); });
  };
  ChatBatchOptions bad = options(6);
  bad.ranks = 4;
  refused(bad, {"a batch of 6 samples cannot be split over 4 ranks"});
  bad = options(6);
  bad.multiple = 0;
  refused(bad, {"multiples of 0"});
  refused(options(6, 0), {"a pool of 0 batches of 6 examples"});
  refused(options(0), {"a batch of 0 samples"});
  ChatBatches pooled(source_, options(6, 2));
  expect_error(ExitCode::usage, {"no batch of 6 examples begins at position 8"}, [&] { pooled.batch(8); });
}

// Packed rows come with their documents, and with the first example of each.
TEST_F(ChatBatchesTest, PackedRows) {
  const auto packed = std::make_shared<ChatSource>(data_, all_of(*data_), "all", 64);
  ChatBatchOptions wide = options(2);
  wide.max_len = 64;
  ChatBatches batches(packed, wide);
  MixtureOrder order({{packed, 1}}, 64, wide.seed);
  int64_t several = 0;
  for (int64_t position = 0; position + 2 <= packed->num_samples(64); position += 2) {
    const ChatBatch batch = batches.batch(position);
    ASSERT_EQ(batch.rows.document_ids.sizes(), batch.rows.decoder_ids.sizes());
    for (int64_t row = 0; row < 2; ++row) {
      const std::vector<int64_t> examples = packed->examples_of(order(position + row).sample);
      EXPECT_EQ(batch.examples[row], examples[0]);
      int64_t at = 0;
      for (size_t i = 0; i < examples.size(); ++i) {
        const int64_t length = (*data_)[examples[i]].ids() - 1;
        EXPECT_TRUE(batch.rows.document_ids[row].narrow(0, at, length).eq(static_cast<int64_t>(i)).all().item<bool>());
        at += length;
      }
      EXPECT_EQ(batch.lengths[row].item<int64_t>(), at);
      several += examples.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(several, 0);
}

}  // namespace
}  // namespace hrm::data
