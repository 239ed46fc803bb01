// A head with a weight of its own is a gradient group, of which every use tells.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hrm/nn/embedding.h"
#include "hrm/nn/lm_head.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "hrm/objectives/token_log_probs.h"

namespace hrm::objectives {
namespace {

struct Model : torch::nn::Module {
  explicit Model(bool tied, bool trained = true) {
    embedding = register_module("embedding", std::make_shared<nn::Embedding>(11, 8, at::kCPU));
    head = register_module("head", tied ? std::make_shared<nn::LmHead>(embedding->weight())
                                        : std::make_shared<nn::LmHead>(8, 11, at::kCPU));
    const at::NoGradGuard no_grad;
    for (at::Tensor weight : parameters()) weight.uniform_(-0.5, 0.5);
    at::Tensor(head->weight()).set_requires_grad(tied || trained);
    set.build(*this, at::kFloat);
  }
  std::shared_ptr<nn::Embedding> embedding;
  std::shared_ptr<nn::LmHead> head;
  nn::ParameterSet set;
};

TEST(HeadGradient, IsAGroupIfTheHeadTrainsAWeightOfItsOwn) {
  EXPECT_EQ(Model(/*tied=*/false).set.gradient_ready()->groups(), std::vector<std::string>{"head"});
  EXPECT_TRUE(Model(/*tied=*/true).set.gradient_ready()->groups().empty());
  EXPECT_TRUE(Model(/*tied=*/false, /*trained=*/false).set.gradient_ready()->groups().empty());
}

TEST(HeadGradient, EveryUseTellsWhenItIsComplete) {
  const at::Tensor ids = at::arange(6, at::kLong).view({2, 3}), weights = at::ones({6});
  const std::vector<std::pair<const char*, std::function<at::Tensor(const Model&, const at::Tensor&)>>> uses{
      {"logits", [](const Model& m, const at::Tensor& h) { return m.head->forward(h).square().sum(); }},
      {"chunked_cross_entropy",
       [&](const Model& m, const at::Tensor& h) {
         return chunked_cross_entropy(h.view({6, 8}), *m.head, ids.view({6}), weights, /*chunk=*/4).loss;
       }},
      {"token_log_probs",
       [&](const Model& m, const at::Tensor& h) { return token_log_probs(h, *m.head, ids).log_p.sum(); }},
  };
  for (const auto& [name, use] : uses) {
    SCOPED_TRACE(name);
    Model model(/*tied=*/false);
    nn::GradientReady& ready = *model.set.gradient_ready();
    const at::Tensor hidden = at::ones({2, 3, 8}).set_requires_grad(true);
    std::vector<at::Tensor> seen;  // the gradient at that time
    bool again = false;
    ready.listen([&](int) { seen.push_back(model.head->weight().grad().clone()); }, [&](int) { again = true; });
    (use(model, hidden) + use(model, hidden)).backward();
    ready.listen({});
    ASSERT_EQ(seen.size(), 1u) << "after the last of its uses";
    EXPECT_GT(seen[0].abs().sum().item<float>(), 0);
    EXPECT_TRUE(at::equal(seen[0], model.head->weight().grad()));
    EXPECT_FALSE(again) << "it may be used several times";
  }
}

}  // namespace
}  // namespace hrm::objectives
