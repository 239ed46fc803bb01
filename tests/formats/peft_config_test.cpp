// adapter_config.json; what of it is refused: tests/checkpoint/peft_test.cpp, too.
#include "hrm/formats/peft_config.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

PeftConfig parse_peft(std::string_view text) {
  return parse_peft_config(text, "c.json", ExitCode::checkpoint);
}

const std::string kSmall = R"({"peft_type": "LORA", "r": 4, "lora_alpha": 1.5, "lora_dropout": 0.25,
    "use_rslora": true, "base_model_name_or_path": "b", "target_modules": ["v_proj", "q_proj"]})";

TEST(PeftConfig, ReadsWhatPeftWrites) {
  const PeftConfig theirs = parse_peft(read_text(fixture("lora/adapter_config.json"), ExitCode::data));
  EXPECT_EQ(theirs.r, 8);
  EXPECT_EQ(theirs.alpha, 16);
  EXPECT_FALSE(theirs.rslora);
  EXPECT_EQ(theirs.base_model, "qwen3_tied");
  EXPECT_EQ(theirs.targets.size(), 7U);
  const PeftConfig small = parse_peft(kSmall);
  EXPECT_EQ(small.r, 4);
  EXPECT_EQ(small.alpha, 1.5);
  EXPECT_EQ(small.dropout, 0.25);
  EXPECT_TRUE(small.rslora);
  EXPECT_EQ(small.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
}

TEST(PeftConfig, FormsOfTargets) {
  const auto with = [](const std::string& targets, const std::string& more = "") {
    return parse_peft(cat(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": )", targets, more, "}"));
  };
  EXPECT_EQ(with(R"("all-linear")").target_list(), "all-linear");
  EXPECT_EQ(with(R"("ALL-linear")").target_list(), "all-linear");
  const PeftConfig pattern = with(R"(".*\\.(q|v)_proj")");
  EXPECT_EQ(pattern.pattern, R"(.*\.(q|v)_proj)");
  EXPECT_TRUE(pattern.targets.empty());
  EXPECT_EQ(pattern.target_list(), R"(pattern:.*\.(q|v)_proj)");
  EXPECT_EQ(with(R"(["model.layers.1.mlp.up_proj", "k_proj"])").target_list(), "k_proj,model.layers.1.mlp.up_proj");
  const PeftConfig more =
      with(R"(["q_proj"])", R"(, "use_dora": true, "modules_to_save": ["lm_head", "embed_tokens"])");
  EXPECT_TRUE(more.dora);
  EXPECT_EQ(more.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head"}));
  for (const char* wrong : {R"("")", R"(["a,b"])", R"([""])", "[]", "1", "null", R"({"q": 1})"}) {
    expect_error([&] { with(wrong); }, ExitCode::checkpoint, {"c.json: 'target_modules' must be"});
  }
  expect_error([&] { with(R"(["q"])", R"(, "modules_to_save": "lm_head")"); }, ExitCode::checkpoint,
               {"'modules_to_save' must be a list"});
}

TEST(PeftConfig, RefusesWhatChangesTheArithmetic) {
  for (const char* key :
       {"rank_pattern", "layer_replication", "trainable_token_indices", "kasa_config", "arrow_config"}) {
    const std::string text =
        cat(R"({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q"], ")", key, R"(": {"x": 1}})");
    expect_error([&] { parse_peft(text); }, ExitCode::checkpoint, {cat("c.json: '", key, "' asks for")});
  }
}

TEST(PeftConfig, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text, const std::string& part) {
    expect_error([&] { parse_peft(text); }, ExitCode::checkpoint, {"c.json: ", part});
  };
  refused("", "is not valid JSON");
  refused("[]", "must be an object");
  refused("{}", "'peft_type' is ''");
  refused(R"({"peft_type": "LORA", "r": 1e300, "lora_alpha": 1, "target_modules": ["q"]})", "'r' must be");
  refused(R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": {"q": 1}})", "'target_modules'");
}

TEST(PeftConfig, DamagedFiles) {
  const auto read = [](std::span<const std::byte> bytes) { parse_peft(as_text(bytes)); };
  expect_truncations_fail(kSmall, ExitCode::checkpoint, read);
  EXPECT_GT(expect_flips_are_safe(kSmall, 2000, ExitCode::checkpoint, read), 1000);
}

}  // namespace
}  // namespace hrm
