// The table that comes from the field lists, and what is printed from it.
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <set>

#include "hrm/config/print.h"

namespace hrm::config {
namespace {

TEST(Schema, KeysAreUniqueAndFindable) {
  std::set<std::string> seen;
  for (const Field& field : fields()) {
    EXPECT_TRUE(seen.insert(field.key).second) << field.key;
    EXPECT_EQ(find_field(field.key), &field);
    EXPECT_FALSE(field.help.empty()) << field.key;
  }
  EXPECT_EQ(seen.size(), keys().size());
  EXPECT_EQ(find_field("model"), nullptr);
  EXPECT_EQ(find_field("hidden_size"), nullptr);
  EXPECT_EQ(sections().front().name, "run");
  EXPECT_GE(sections().size(), 9u);
}

TEST(Schema, DefaultsObeyTheirRules) {
  const Config standard;
  for (const Field& field : fields()) EXPECT_EQ(broken_rule(field.rule, field.get(standard)), "") << field.key;
}

TEST(Schema, GetAndSetReachTheSameMember) {
  Config config;
  find_field("model.hidden_size")->set(config, Value(int64_t{96}));
  EXPECT_EQ(config.model.hidden_size, 96);
  EXPECT_EQ(find_field("model.hidden_size")->get(config), Value(int64_t{96}));
  find_field("task")->set(config, Value(std::string("x")));
  EXPECT_EQ(config.task, "x");
  EXPECT_EQ(differing_keys(config, Config{}), (std::vector<std::string>{"task", "model.hidden_size"}));
}

TEST(Schema, ConditionsNameKeysAndValuesThatExist) {
  int64_t conditions = 0;
  for (const Field& field : fields()) {
    for (const ReadWhen& condition : field.read_when) {
      SCOPED_TRACE(field.key + " is read when " + condition.key);
      ++conditions;
      const Field* other = find_field(condition.key);
      ASSERT_NE(other, nullptr);
      ASSERT_FALSE(condition.values.empty());
      // A condition that always or never holds would say nothing.
      const auto* choice = std::get_if<OneOf>(&other->rule);
      for (const std::string& value : condition.values) {
        const bool flag = std::holds_alternative<Flag>(other->rule);
        EXPECT_TRUE(!flag || value == "true" || value == "false") << value;
        EXPECT_TRUE(!choice || std::count(choice->values.begin(), choice->values.end(), value) == 1) << value;
      }
      EXPECT_TRUE(!choice || condition.values.size() < choice->values.size());
    }
  }
  EXPECT_GT(conditions, 50);
}

TEST(Schema, AConditionHoldsByTheValueOfItsKey) {
  Config config;
  const ReadWhen wants{"optim.name", {"sgd", "muon"}, "", ""};
  const ReadWhen none{.key = "train.spike_score", .values = {"0"}, .why = "", .way_out = "", .unless = true};
  EXPECT_FALSE(holds(wants, config));
  EXPECT_FALSE(holds(none, config));
  config.optim.name = OptimizerKind::muon;
  config.train.spike_score = 6;
  EXPECT_TRUE(holds(wants, config));
  EXPECT_TRUE(holds(none, config));
}

TEST(Schema, TasksOfFieldsExistAndEveryTaskHasARow) {
  for (const Field& field : fields()) {
    for (const std::string& task : field.tasks) EXPECT_NE(find_task_settings(task), nullptr) << field.key;
  }
  for (const TaskSettings* row : all_task_settings()) {
    for (const TaskDefault& other : row->defaults) {
      ASSERT_NE(find_field(other.key), nullptr) << row->name << ": " << other.key;
      EXPECT_TRUE(is_read_by(*find_field(other.key), row->name)) << row->name << ": " << other.key;
    }
  }
}

TEST(Schema, RulesInWords) {
  EXPECT_EQ(describe_rule(IntRange{}), "a whole number");
  EXPECT_EQ(describe_rule(IntRange{.min = 1}), "a whole number, at least 1");
  EXPECT_EQ(describe_rule(IntRange{.max = 9}), "a whole number, at most 9");
  EXPECT_EQ(describe_rule(IntRange{1, 9}), "a whole number, 1..9");
  EXPECT_EQ(describe_rule(RealRange{}), "a number");
  EXPECT_EQ(describe_rule(RealRange{0, 1, true, true}), "a number, above 0, below 1");
  EXPECT_EQ(describe_rule(OneOf{{"a", "b"}}), "one of a, b");
}

TEST(Schema, OpenAndClosedEnds) {
  const Rule rule = RealRange{0, 1, true, false};
  EXPECT_NE(broken_rule(rule, 0.0), "");
  EXPECT_EQ(broken_rule(rule, 1.0), "");
  EXPECT_NE(broken_rule(rule, 1.5), "");
  EXPECT_NE(broken_rule(rule, std::numeric_limits<double>::quiet_NaN()), "");
  EXPECT_NE(broken_rule(RealRange{}, std::numeric_limits<double>::infinity()), "");
}

TEST(Schema, NearestKey) {
  EXPECT_EQ(nearest_key("lr"), "optim.lr");
  EXPECT_EQ(nearest_key("modle.arch"), "model.arch");
  EXPECT_EQ(nearest_key("arch.halt_max_steps"), "model.halt_max_steps");
  EXPECT_EQ(nearest_key("ema_rate"), "optim.ema");
  EXPECT_EQ(nearest_key("global_batch_size"), "train.global_batch_size");
  EXPECT_EQ(nearest_key("qqqqqqqq"), "");
}

TEST(Print, DescriptionHoldsEveryKeyWithRangeUnitDefaultAndHelp) {
  const std::string text = describe_fields();
  for (const std::string& key : keys()) EXPECT_NE(text.find("  " + key + " "), std::string::npos) << key;
  EXPECT_NE(text.find("a whole number, 1..64 (batches); default 4"), std::string::npos);
  EXPECT_NE(text.find("model: the network"), std::string::npos);
  EXPECT_NE(text.find("Default of task=polychromic: adamw"), std::string::npos);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    EXPECT_LE(end - at, 140u) << text.substr(at, end - at);
  }
}

TEST(Print, ValuesStandWithTheirOrigins) {
  const std::string text =
      values_with_origins(config_from_json_text("{\"model\": {\n\"arch\": \"trm\"}}", "b.json", {"optim.lr=0.5"}));
  const auto line = [&](const std::string& key) {
    const size_t at = text.find(key + " ");
    return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_NE(line("model.arch").find("= \"trm\""), std::string::npos);
  EXPECT_TRUE(line("model.arch").ends_with("b.json:2"));
  EXPECT_TRUE(line("model.H_layers").ends_with("default for model.arch trm"));
  EXPECT_TRUE(line("optim.lr").ends_with("command line"));
  EXPECT_TRUE(line("run.seed").ends_with("default"));
}

}  // namespace
}  // namespace hrm::config
