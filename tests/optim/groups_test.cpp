#include "hrm/optim/groups.h"

#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "support/expect_error.h"
#include "torch/nn/module.h"

namespace hrm::optim {
namespace {

// A language model's names with one element in each dimension.
struct Names : torch::nn::Module {
  Names() {
    const auto add = [](torch::nn::Module& to, const char* name, at::IntArrayRef sizes) {
      to.register_parameter(name, at::ones(sizes));
    };
    const auto child = [this](const char* name) {
      return register_module(name, std::make_shared<torch::nn::Module>());
    };
    add(*child("embed_tokens"), "weight", {3, 2});
    const auto block = child("block");
    add(*block, "qkv_weight", {2, 2});
    add(*block, "norm_weight", {2});
    add(*block, "conv_weight", {2, 1, 4});
    add(*block, "bias", {2});
    add(*child("lm_head"), "weight", {3, 2});
  }
};

struct Groups : ::testing::Test {
  Groups() { parameters.build(module, at::kFloat); }
  std::vector<ParameterGroup> make(const std::string& rules, GroupOptions options = {.weight_decay = 0.1}) {
    options.rules = parse_group_rules(rules);
    return make_groups(parameters, group_of(parameters, 0.1), options);
  }
  static std::string text(const std::vector<ParameterGroup>& groups) {
    std::string out;
    for (const ParameterGroup& group : groups) {
      out += cat(group.weight_decay, " x", group.lr_factor, group.matrices ? " muon:" : ":");
      for (const std::string& name : group.names) out += " " + name;
      out += "\n";
    }
    return out;
  }
  Names module;
  nn::ParameterSet parameters;
};

TEST_F(Groups, WithoutRulesAreOneAsItWas) {
  const ParameterGroup all = group_of(parameters, 0.1);
  const auto groups = make("");
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].names, all.names);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[0].lr_factor, 1);
  EXPECT_TRUE(groups[0].averages.empty() && groups[0].moments.empty());
  ASSERT_EQ(groups[0].copies.size(), all.copies.size());
  for (size_t i = 0; i < all.params.size(); ++i) {
    EXPECT_TRUE(groups[0].params[i].is_same(all.params[i]) && groups[0].copies[i].is_same(all.copies[i]));
    EXPECT_TRUE(groups[0].grads[i].is_alias_of(all.grads[i]));
  }
}

TEST_F(Groups, TheFirstPatternThatMatchesCounts) {
  EXPECT_EQ(text(make("block.norm*=0, *embed*=0:0.5,block.*=0.2")),
            "0 x0.5: embed_tokens.weight\n"
            "0.2 x1: block.qkv_weight block.conv_weight block.bias\n"
            "0 x1: block.norm_weight\n"
            "0.1 x1: lm_head.weight\n");
  EXPECT_EQ(text(make("*=0.1")),
            "0.1 x1: embed_tokens.weight block.qkv_weight block.norm_weight block.conv_weight "
            "block.bias lm_head.weight\n")
      << "what a rule says as the rest has it is no group of its own";
}

TEST_F(Groups, DefaultsOfATask) {
  GroupOptions options{.weight_decay = 0.1};
  options.defaults.decay_vectors = false;
  options.defaults.undecayed = {"*embed*", "*not_there*"};
  EXPECT_EQ(text(make("", options)),
            "0 x1: embed_tokens.weight block.norm_weight block.bias\n"
            "0.1 x1: block.qkv_weight block.conv_weight lm_head.weight\n");
  EXPECT_EQ(text(make("*embed*=0.3", options)),
            "0.3 x1: embed_tokens.weight\n"
            "0.1 x1: block.qkv_weight block.conv_weight lm_head.weight\n"
            "0 x1: block.norm_weight block.bias\n");
}

TEST_F(Groups, MatricesOfMuon) {
  const GroupOptions options{.weight_decay = 0.1, .muon = true};
  EXPECT_EQ(text(make("", options)),
            "0.1 x1: embed_tokens.weight block.norm_weight block.bias lm_head.weight\n"
            "0.1 x1 muon: block.qkv_weight block.conv_weight\n");
  EXPECT_EQ(text(make("*conv*=0:2:adamw", options)),
            "0.1 x1: embed_tokens.weight block.norm_weight block.bias lm_head.weight\n"
            "0.1 x1 muon: block.qkv_weight\n"
            "0 x2: block.conv_weight\n");
}

// The taps of URM are three-dimensional, and AdamW updates them in the published runs.
TEST(MuonMatrices, OfPuzzles) {
  const GroupOptions options{.muon = true};
  EXPECT_FALSE(is_muon_matrix("layers.0.mlp.dwconv.weight", 3, options));
  EXPECT_TRUE(is_muon_matrix("layers.0.mlp.down_proj.weight", 2, options));
}

TEST_F(Groups, PartsOfParametersKeepTheirNamesAndMoments) {
  ParameterGroup share;
  share.names = {"block.bias", "block.qkv_weight"};
  share.params = {at::ones({1}), at::ones({3})};
  share.grads = {at::ones({1}), at::ones({3})};
  share.moments = {{at::zeros({1}), at::zeros({3})}};
  GroupOptions options{.weight_decay = 0.1};
  options.defaults.decay_vectors = false;
  const auto groups = make_groups(parameters, share, options);
  EXPECT_EQ(text(groups), "0 x1: block.bias\n0.1 x1: block.qkv_weight\n")
      << "a part of a matrix is one-dimensional, and decays all the same";
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(groups[i].moments.size(), 1u);
    EXPECT_TRUE(groups[i].moments[0][0].is_same(share.moments[0][i]));
  }
}

TEST_F(Groups, APatternWithoutParametersIsRefused) {
  using test::expect_error;
  expect_error(ExitCode::usage, {"'*.biases'", "no parameter", "'block.bias'"}, [&] { make("*.biases=0"); });
  expect_error(ExitCode::usage, {"'*embd_tokens*'", "'embed_tokens.weight'"}, [&] { make("*embd_tokens*=0"); });
  expect_error(ExitCode::usage, {"'block.qkv_wieght'", "'block.qkv_weight'"}, [&] { make("block.qkv_wieght=0"); });
  expect_error(ExitCode::usage, {"'zzz'", "no parameter", "nearest"}, [&] { make("zzz=0"); });
  expect_error(ExitCode::usage, {"'block.bias'", "earlier"}, [&] { make("block.*=0,block.bias=0.1"); });
  expect_error(ExitCode::usage, {"'*conv*'", "optim.name = muon"}, [&] { make("*conv*=0:1:adamw"); });
}

TEST(GroupRules, AreRead) {
  EXPECT_TRUE(parse_group_rules("").empty());
  EXPECT_TRUE(parse_group_rules("  ").empty());
  const auto rules = parse_group_rules(" a.* = 0 , [bc]=0.5:2e-1,d=1:3:adamw,e=f=4");
  ASSERT_EQ(rules.size(), 4u);
  EXPECT_EQ(rules[0].pattern, "a.*");
  EXPECT_EQ(rules[0].weight_decay, 0);
  EXPECT_EQ(rules[0].lr_factor, 1);
  EXPECT_EQ(rules[1].pattern, "[bc]");
  EXPECT_EQ(rules[1].weight_decay, 0.5);
  EXPECT_EQ(rules[1].lr_factor, 0.2);
  EXPECT_FALSE(rules[1].adamw);
  EXPECT_TRUE(rules[2].adamw);
  EXPECT_EQ(rules[2].lr_factor, 3);
  EXPECT_EQ(rules[3].pattern, "e=f");
}

TEST(GroupRules, WhatCannotBeReadIsRefused) {
  for (const char* bad : {"a", "=1", "a=", "a=x", "a=-1", "a=1:", "a=1:x", "a=1:2:", "a=1:2:sgd", "a=1:2:adamw:3",
                          "a=1:adamw", "a=1,", ",", "a=nan", "a=inf", "a=1 2", "a=1e999"}) {
    test::expect_error(ExitCode::usage, {"optim.groups", "pattern=decay"}, [&] { parse_group_rules(bad); });
  }
}

}  // namespace
}  // namespace hrm::optim
