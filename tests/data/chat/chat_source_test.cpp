#include "hrm/data/chat_source.h"

#include <set>

#include "data/chat/chat_support.h"
#include "data/language/language_support.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Values = std::vector<int64_t>;

std::shared_ptr<ChatSource> source_of(const std::shared_ptr<const ChatDataset>& data, int64_t packed_len = 0) {
  return std::make_shared<ChatSource>(data, all_of(*data), "train", packed_len);
}

// The batch of all samples, one after the other, in rows of T positions.
LanguageBatch rows_of(const std::shared_ptr<const ChatSource>& source, int64_t length) {
  const int64_t samples = source->num_samples(length);
  const LanguageReader reader({"val", source}, {.shape = {0, length}, .global_batch_size = samples, .buckets = 1});
  return reader.batch(0).batch;
}

TEST(ChatSource, LearnsFromResponsesAlone) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", chat_line("ab", "xyz") + chat_line("c", "w"));
  const LanguageBatch batch = rows_of(source_of(data), 6);
  EXPECT_FALSE(batch.encoder_ids.defined() || batch.document_ids.defined());
  EXPECT_EQ(values<int64_t>(batch.decoder_ids[0]), (Values{'a', 'b', 'x', 'y', 'z', 258}));
  EXPECT_EQ(values<int64_t>(batch.labels[0]), (Values{-100, 'x', 'y', 'z', 257, -100}));
  EXPECT_EQ(values<int64_t>(batch.decoder_ids[1]), (Values{'c', 'w', 258, 258, 258, 258}));
  EXPECT_EQ(values<int64_t>(batch.labels[1]), (Values{'w', 257, -100, -100, -100, -100}));
  EXPECT_EQ(batch.decoder_tokens, 5 + 2);
  EXPECT_EQ(batch.label_tokens, 4 + 2);
}

TEST(ChatSource, LongerExamplesAreCut) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", chat_line("ab", "xyz") + chat_line("cdefg", "w"));
  const auto source = source_of(data);
  const LanguageBatch batch = rows_of(source, 3);
  EXPECT_EQ(values<int64_t>(batch.decoder_ids), (Values{'a', 'b', 'x', 'c', 'd', 'e'}));
  EXPECT_EQ(values<int64_t>(batch.labels), (Values{-100, 'x', 'y', -100, -100, -100}));
  EXPECT_EQ(batch.label_tokens, 2);
  EXPECT_EQ(source->cut_examples(3), 2);
  EXPECT_EQ(source->cut_examples(5), 1);
  EXPECT_EQ(source->cut_examples(6), 0);
  EXPECT_EQ(source->lengths(1, {0, 100}), (LanguageShape{0, 6}));
  EXPECT_EQ(source->lengths(1, {4, 3}), (LanguageShape{0, 3}));
}

TEST(ChatSource, PromptsWithoutAResponseHaveNoLabels) {
  const TempDir dir;
  ChatDataOptions options;
  options.need_response = false;
  const auto data = byte_dataset(dir / "a.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"c\"}\n", options);
  const LanguageBatch batch = rows_of(source_of(data), 2);
  EXPECT_EQ(values<int64_t>(batch.decoder_ids), (Values{'a', 258, 258, 258}));
  EXPECT_EQ(values<int64_t>(batch.labels), (Values{-100, -100, -100, -100}));
  EXPECT_EQ(batch.label_tokens, 0);
}

TEST(ChatSource, PackedRowsHoldWholeExamples) {
  const TempDir dir;
  // Positions: 4, 3, 2, 5; best fit into rows of 7: 5 + 2, 4 + 3.
  const auto data = byte_dataset(
      dir / "a.jsonl", chat_line("aa", "xx") + chat_line("b", "yy") + chat_line("c", "z") + chat_line("dddd", "w"));
  const auto source = source_of(data, 7);
  ASSERT_EQ(source->num_samples(7), 2);
  EXPECT_TRUE(source->packed());
  EXPECT_EQ(source->examples_of(0), (Values{3, 2}));
  EXPECT_EQ(source->examples_of(1), (Values{0, 1}));
  const LanguageBatch batch = rows_of(source, 7);
  EXPECT_EQ(values<int64_t>(batch.decoder_ids[0]), (Values{'d', 'd', 'd', 'd', 'w', 'c', 'z'}));
  EXPECT_EQ(values<int64_t>(batch.labels[0]), (Values{-100, -100, -100, 'w', 257, 'z', 257}));
  EXPECT_EQ(values<int32_t>(batch.document_ids[0]), (std::vector<int32_t>{0, 0, 0, 0, 0, 1, 1}));
  EXPECT_EQ(values<int32_t>(batch.position_ids[0]), (std::vector<int32_t>{0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(batch.label_tokens, 3 + 3 + 2 + 2);
  EXPECT_EQ(batch.decoder_tokens, 14);
  // Rows of 8: 5 + 3, 4 + 2, where padding is a document of its own.
  const auto wide = source_of(data, 8);
  const LanguageBatch padded = rows_of(wide, 8);
  EXPECT_EQ(values<int32_t>(padded.document_ids[1]), (std::vector<int32_t>{0, 0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(values<int32_t>(padded.position_ids[1]), (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 0, 1}));
  EXPECT_EQ(values<int64_t>(padded.labels[1]), (Values{-100, 'x', 'x', 257, 'z', 257, -100, -100}));
  EXPECT_EQ(wide->most_documents(8), 3);
}

TEST(ChatSource, PackingKeepsEveryExampleAndFillsRows) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", numbered_lines(500));
  const auto source = source_of(data, 32);
  std::multiset<int64_t> seen;
  int64_t positions = 0;
  for (int64_t i = 0; i < source->num_samples(32); ++i) {
    for (const int64_t example : source->examples_of(i)) seen.insert(example);
    positions += source->lengths(i, {0, 1000}).decoder_len;
    EXPECT_LE(source->lengths(i, {0, 1000}).decoder_len, 32);
  }
  const auto all = all_of(*data);
  EXPECT_EQ(seen, std::multiset<int64_t>(all.begin(), all.end()));
  EXPECT_GT(static_cast<double>(positions), 0.96 * 32 * static_cast<double>(source->num_samples(32)));
}

TEST(ChatSource, StreamsAndMixturesReadIt) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", numbered_lines(23));
  const auto plain = source_of(data), packed = source_of(data, 16);
  LanguageStream stream({{plain}}, language_options(4, {0, 16}), 0);
  const LanguageRows rows = take(stream, 6);
  LanguageStream again({{plain}}, language_options(4, {0, 16}), rows.positions[2]);
  expect_same(take(again, 3).tensors, {rows.tensors[0].narrow(0, 12, 12), rows.tensors[1].narrow(0, 12, 12)});
  // A packed and an unpacked source of the same batch: the latter's rows are one document each.
  LanguageStream mixed({{plain, 1}, {packed, 1}}, language_options(8, {0, 16}), 0);
  const LanguageRows both = take(mixed, 4);
  ASSERT_EQ(both.tensors.size(), 4u);
  int64_t single = 0;
  for (int64_t i = 0; i < 32; ++i) single += both.tensors[2][i].max().item<int32_t>() == 0;
  EXPECT_GT(single, 8);
  EXPECT_LT(single, 24);
  EXPECT_EQ(plain->most_documents(16), 1);
  EXPECT_GT(most_documents({{plain, 1}, {packed, 1}}, 16), both.tensors[2].max().item<int32_t>());
}

TEST(ChatSource, TheDigestIsThatOfTheRows) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", numbered_lines(9));
  const auto same = byte_dataset(dir / "b.jsonl", numbered_lines(9));
  const std::string digest = source_of(data)->digest();
  EXPECT_EQ(source_of(same)->digest(), digest);
  EXPECT_NE(source_of(data, 32)->digest(), digest);
  EXPECT_NE(ChatSource(data, {0, 1}).digest(), digest);
  EXPECT_NE(source_of(byte_dataset(dir / "c.jsonl", numbered_lines(8) + chat_line("p8 ", "x")))->digest(), digest);
  // Where a prompt ends is part of it.
  EXPECT_NE(source_of(byte_dataset(dir / "d.jsonl", chat_line("ab", "c")))->digest(),
            source_of(byte_dataset(dir / "e.jsonl", chat_line("a", "bc")))->digest());
}

TEST(ChatSource, RefusesWhatDoesNotFit) {
  const TempDir dir;
  const auto data = byte_dataset(dir / "a.jsonl", numbered_lines(9));
  expect_error(ExitCode::data, {"a.jsonl (val): has no example"}, [&] { ChatSource(data, {}, "val"); });
  expect_error(ExitCode::usage, {"packed rows of -1"}, [&] { ChatSource(data, {0}, "val", -1); });
  expect_error(ExitCode::usage, {"is packed into rows of 16 positions, not 8"},
               [&] { source_of(data, 16)->num_samples(8); });
  LanguageStream stream({{source_of(data)}}, language_options(4, {2, 16}), 0);
  expect_error(ExitCode::usage, {"prompts stand in front of their responses", "data.encoder_len"},
               [&] { stream.next(); });
}

}  // namespace
}  // namespace hrm::data
