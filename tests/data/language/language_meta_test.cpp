#include "hrm/data/language_meta.h"

#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "support/expect_error.h"

namespace hrm::data {
namespace {

using test::expect_error;

void refused(const std::string& text, const std::vector<std::string>& parts) {
  std::vector<std::string> all{"m.json: "};
  all.insert(all.end(), parts.begin(), parts.end());
  expect_error(ExitCode::data, all, [&] { parse_language_meta(text, "m.json"); });
}

std::string shard(const std::string& tokens, const std::string& documents = "1") {
  return R"({"vocab_size": 10, "splits": {"train": [{"file": "train-00000.npy", "digest": "00", "tokens": )" + tokens +
         ", \"documents\": " + documents + "}]}}";
}

TEST(LanguageMeta, ReadsItsMembers) {
  const LanguageMeta all = parse_language_meta(
      R"({"vocab_size": 10, "pad_id": 3, "bos_id": 9, "eos_id": -1, "tokenizer_file": "t.json", "tokenizer_digest": "0f",
          "splits": {}})",
      "m.json");
  const LanguageMeta same{10, 3, 9, -1, "t.json", "0f"};
  EXPECT_EQ(all, same);
  const LanguageMeta least = parse_language_meta(R"({"vocab_size": 1, "bos_id": null})", "m.json");
  EXPECT_EQ(least, (LanguageMeta{1, 0, -1, -1, "", ""}));
}

TEST(LanguageMeta, RefusesNumbersThatAreNoIds) {
  for (const char* size : {"0", "-1", "1.5", "1e3", "\"9\"", "2147483648", "18446744073709551615"}) {
    refused(std::string(R"({"vocab_size": )") + size + "}", {"\"vocab_size\" must be a whole number"});
  }
  // 2^64 - 1 is not -1.
  for (const char* id : {"10", "-2", "1.5", "true", "18446744073709551615"}) {
    refused(std::string(R"({"vocab_size": 10, "eos_id": )") + id + "}", {"\"eos_id\" must be an id"});
  }
  refused(R"({"vocab_size": 10, "pad_id": -1})", {"\"pad_id\" is -1"});
  refused("{}", {"\"vocab_size\""});
  refused("[]", {"must be an object"});
  refused(R"({"vocab_size": 10, "tokenizer_file": 1})", {"\"tokenizer_file\" must be a text"});
}

TEST(LanguageMeta, ShardsHaveCounts) {
  const std::vector<TokenShard> shards = parse_token_shards(shard("12", "3"), "m.json", "train");
  ASSERT_EQ(shards.size(), 1U);
  EXPECT_EQ(shards[0].tokens, 12);
  EXPECT_EQ(shards[0].documents, 3);
  for (const char* count : {"-1", "1.5", "281474976710656", "18446744073709551615", "null"}) {
    for (const std::string& text : {shard(count), shard("1", count)}) {
      expect_error(ExitCode::data, {"m.json: ", "split 'train' are not described"},
                   [&] { parse_token_shards(text, "m.json", "train"); });
    }
  }
  expect_error(ExitCode::data, {"has no split 'val'"}, [] { parse_token_shards(shard("1"), "m.json", "val"); });
}

}  // namespace
}  // namespace hrm::data
