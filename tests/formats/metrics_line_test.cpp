#include "hrm/formats/metrics_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

namespace hrm {
namespace {

std::map<std::string, double> numbers(const MetricsLineReader& reader) {
  std::map<std::string, double> out;
  for (const MetricsValue& value : reader.values()) out[reader.keys()[value.key]] = value.number;
  return out;
}

using NamedNumbers = std::map<std::string, double>;

TEST(MetricsLine, NumbersOfALine) {
  MetricsLineReader reader;
  ASSERT_TRUE(reader.read(R"({"step":10,"train/loss":0.1,"a":-2e-3, "b" : 7 })"));
  EXPECT_EQ(reader.step(), 10);
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"train/loss", 0.1}, {"a", -2e-3}, {"b", 7}}));
  // Other keys, another order, and back again.
  ASSERT_TRUE(reader.read(R"({"b":1,"step":20,"c":true,"d":false})"));
  EXPECT_EQ(reader.step(), 20);
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"b", 1}, {"c", 1}, {"d", 0}}));
  ASSERT_TRUE(reader.read(R"({"step":30,"train/loss":0.25,"a":1,"b":2})"));
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"train/loss", 0.25}, {"a", 1}, {"b", 2}}));
  EXPECT_EQ(reader.keys().size(), 5u);
}

TEST(MetricsLine, NumbersKeepAllTheirDigits) {
  MetricsLineReader reader;
  ASSERT_TRUE(
      reader.read(R"({"step":1,"a":0.6723129609675705,"b":5794430976.0,"c":1e-320,"d":1.7976931348623157e308})"));
  EXPECT_EQ(
      numbers(reader),
      (NamedNumbers{{"a", 0.6723129609675705}, {"b", 5794430976.0}, {"c", 1e-320}, {"d", 1.7976931348623157e308}}));
}

TEST(MetricsLine, ValuesThatAreNotFinite) {
  MetricsLineReader reader;
  ASSERT_TRUE(reader.read(R"({"step":1,"a":null,"b":NaN,"c":Infinity,"d":-Infinity,"e":1e999,"f":1e-999})"));
  auto values = numbers(reader);
  for (const char* key : {"a", "b", "c", "d", "e"}) EXPECT_TRUE(std::isnan(values.at(key))) << key;
  EXPECT_EQ(values.at("f"), 0);
}

TEST(MetricsLine, NestedValuesAndTexts) {
  MetricsLineReader reader;
  const char* line =
      R"({"step":5,"loads":[0.25,0.75,[1]],"moe":{"a":{"b":2}},"empty":[],"text":"<b>\u00e9\ud83d\ude00\n"})";
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(reader.read(line));
    EXPECT_EQ(numbers(reader), (NamedNumbers{{"loads/0", 0.25}, {"loads/1", 0.75}, {"loads/2/0", 1}, {"moe/a/b", 2}}));
    ASSERT_EQ(reader.texts().size(), 1u);
    EXPECT_EQ(reader.texts()[0].text, "<b>\u00e9\U0001F600\n");
  }
  // A key that named a number, then a list, then an object.
  ASSERT_TRUE(reader.read(R"({"step":5,"loads":3})"));
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"loads", 3}}));
  ASSERT_TRUE(reader.read(R"({"step":5,"loads":{"0":4}})"));
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"loads/0", 4}}));
}

TEST(MetricsLine, DamagedLines) {
  MetricsLineReader reader;
  for (const char* line : {"",
                           "{",
                           "{}",
                           "[]",
                           "null",
                           "x",
                           R"({"step":1)",
                           R"({"step":1,"a":})",
                           R"({"step":1,"a":2}})",
                           R"({"step":1.5})",
                           R"({"step":"1"})",
                           R"({"step":null})",
                           R"({"step":[1]})",
                           R"({"a":1})",
                           R"({"step":1,"a":inf})",
                           R"({"step":1,"a":0x10})",
                           R"({"step":1 "a":2})",
                           R"({"step":1,"a":"\ud8"})",
                           R"({"step":1,"a":"\q"})",
                           R"({"step":1,"a":"x)",
                           R"({"step":1,,})",
                           R"({"step":1,"a":[1})",
                           R"({"step":1e300})",
                           "{\"step\":1,\"a\":\"\x01\"}",
                           R"({"step":1,"a":[[[[[[[[[[1]]]]]]]]]]})"}) {
    EXPECT_FALSE(reader.read(line)) << line;
    EXPECT_TRUE(reader.values().empty()) << line;
  }
  EXPECT_TRUE(reader.read(R"({"step":1,"a":2})"));
}

TEST(MetricsLine, LimitsOfKeysListsAndTexts) {
  MetricsLineReader reader;
  std::string list = R"({"step":1,"l":[)";
  for (int i = 0; i < 1000; ++i) list += (i > 0 ? "," : "") + std::to_string(i);
  ASSERT_TRUE(reader.read(list + "]}"));
  EXPECT_EQ(reader.values().size(), kMaxMetricsList);
  EXPECT_EQ(reader.left_out(), 1000 - kMaxMetricsList);
  ASSERT_TRUE(reader.read(R"({"step":1,")" + std::string(kMaxMetricsKeyBytes + 1, 'k') + R"(":1,"t":")" +
                          std::string(kMaxMetricsText + 9, 't') + "\"}"));
  EXPECT_TRUE(reader.values().empty());
  EXPECT_EQ(reader.texts().at(0).text.size(), kMaxMetricsText);
  ASSERT_TRUE(reader.read("{\"step\":1,\"\xff\":1}"));  // no UTF-8
  EXPECT_TRUE(reader.values().empty());
  for (size_t i = 0; i < 2 * kMaxMetricsKeys; ++i) {
    ASSERT_TRUE(reader.read(R"({"step":1,"k)" + std::to_string(i) + "\":1}"));
  }
  EXPECT_LE(reader.keys().size(), kMaxMetricsKeys);
  ASSERT_TRUE(reader.read(R"({"step":1,"k0":5})"));
  EXPECT_EQ(numbers(reader), (NamedNumbers{{"k0", 5}}));
}

}  // namespace
}  // namespace hrm
