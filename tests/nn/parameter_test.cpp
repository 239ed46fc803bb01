#include "hrm/nn/parameter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/nn/init.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/weight8.h"

namespace hrm::nn {
namespace {

struct Layer : torch::nn::Module, HasComputeWeight {
  Layer(int64_t out, int64_t in) {
    weight = register_parameter("weight", at::randn({out, in}));
    bias = register_parameter("bias", at::randn({out}));
  }
  at::Tensor master_weight() const override { return weight; }
  void set_compute_weight(const at::Tensor& tensor) override { compute = tensor; }
  at::Tensor weight, bias, compute;
};

struct OwnedNet : torch::nn::Module {
  OwnedNet() {
    table = register_parameter("table", at::randn({5, 3}));
    first = register_module("first", std::make_shared<Layer>(7, 3));
    second = register_module("second", std::make_shared<Layer>(70, 7));
  }
  at::Tensor table;
  std::shared_ptr<Layer> first, second;
};

TEST(ParameterSet, CollectsAndAligns) {
  OwnedNet net;
  ParameterSet set;
  set.build(net, at::kBFloat16);
  std::vector<std::string> names;
  int64_t count = 0;
  for (const Parameter& p : set.all()) {
    names.push_back(p.name);
    count += p.master.numel();
    ASSERT_TRUE(p.master.grad().defined());
    EXPECT_EQ(p.master.grad().storage().data(), set.flat_grad().storage().data()) << p.name;
    EXPECT_EQ(p.master.grad().storage_offset() % ParameterSet::kGradAlignment, 0) << p.name;
    EXPECT_TRUE(p.master.grad().is_contiguous()) << p.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"table", "first.weight", "first.bias", "second.weight", "second.bias"}));
  EXPECT_EQ(set.count(), count);
  EXPECT_GE(set.flat_grad().numel(), count);
  EXPECT_TRUE(set.all()[1].master.is_same(net.first->weight));
}

TEST(ParameterSet, ComputeCopiesFollowTheMasters) {
  OwnedNet net;
  ParameterSet set;
  set.build(net, at::kBFloat16);
  EXPECT_TRUE(at::equal(net.first->compute, net.first->weight.detach().to(at::kBFloat16)));
  EXPECT_FALSE(net.first->compute.requires_grad());
  EXPECT_TRUE(set.all()[0].compute.is_same(net.table)) << "nobody asked for a copy of the table";
  const void* address = net.second->compute.const_data_ptr();
  {
    const at::NoGradGuard no_grad;
    net.second->weight.mul_(3);
  }
  EXPECT_FALSE(at::equal(net.second->compute, net.second->weight.detach().to(at::kBFloat16)));
  set.refresh_compute();
  EXPECT_TRUE(at::equal(net.second->compute, net.second->weight.detach().to(at::kBFloat16)));
  EXPECT_EQ(net.second->compute.const_data_ptr(), address) << "in place, for captured graphs";

  ParameterSet wide;
  wide.build(net, at::kFloat);
  EXPECT_TRUE(net.first->compute.is_same(net.first->weight)) << "in float32 the master itself is read";
}

// Products with fake-quantised weights: both passes read the rounded weight, and the master's gradient is that of the
// rounded weight (straight-through), in plain ATen.
TEST(ParameterSet, FakeQuantisedWeightsAreStraightThrough) {
  for (const auto& [format, compute] : {std::pair{at::kChar, at::kFloat}, std::pair{at::kFloat8_e4m3fn, at::kFloat},
                                        std::pair{at::kChar, at::kBFloat16}}) {
    at::manual_seed(7);
    struct Net : torch::nn::Module {
      Net() {
        first = register_module("first", std::make_shared<Linear>(5, 9, at::kCPU));
        second = register_module("second", std::make_shared<Linear>(9, 3, at::kCPU));
        init_parameters(*this, 3);
      }
      std::shared_ptr<Linear> first, second;
    } net;
    const auto rounded = [&, f = format, c = compute](const at::Tensor& master) {
      return ops::dequantize_weight8(ops::quantize_weight8(master.detach(), f), c);
    };
    ParameterSet set;
    set.build(net, compute);
    set.fake_quantize({net.first.get()}, format);
    const at::Tensor weight = net.first->base_weight();
    const void* address = weight.const_data_ptr();
    EXPECT_FALSE(weight.is_same(net.first->weight()));
    EXPECT_TRUE(at::equal(weight, rounded(net.first->weight())));
    EXPECT_FALSE(at::equal(weight, net.first->weight().detach().to(compute)));
    EXPECT_TRUE(at::equal(net.second->base_weight(), net.second->weight().detach().to(compute))) << "not listed";
    EXPECT_TRUE(set.all()[0].fake_quantized);
    EXPECT_FALSE(set.all()[1].fake_quantized);

    const at::Tensor x = at::randn({4, 5}).to(compute).requires_grad_(true), dy = at::randn({4, 9}).to(compute);
    const at::Tensor y = net.first->forward(x);
    y.backward(dy);
    const auto close = [](const at::Tensor& got, const at::Tensor& want) {
      return at::allclose(got.to(at::kFloat), want.to(at::kFloat), 2e-2, 1e-5);
    };
    EXPECT_TRUE(close(y.detach(), at::matmul(x.detach(), weight.t())));
    EXPECT_TRUE(close(x.grad(), at::matmul(dy, weight)));
    const at::Tensor straight = at::matmul(dy.to(at::kFloat).t(), x.detach().to(at::kFloat));
    EXPECT_TRUE(at::allclose(net.first->weight().grad(), straight, 1e-5, 1e-6)) << "not rounded, not masked";

    {
      const at::NoGradGuard no_grad;
      net.first->weight().mul_(-1.7);
      net.second->weight().mul_(3);
    }
    set.refresh_fake_quantized();
    EXPECT_TRUE(at::equal(net.first->base_weight(), rounded(net.first->weight())));
    if (compute != at::kFloat) {
      EXPECT_FALSE(at::equal(net.second->base_weight(), net.second->weight().detach().to(compute))) << "not rounded";
    }
    set.refresh_compute();
    EXPECT_TRUE(at::equal(net.first->base_weight(), rounded(net.first->weight())));
    EXPECT_TRUE(at::equal(net.second->base_weight(), net.second->weight().detach().to(compute)));
    EXPECT_EQ(net.first->base_weight().const_data_ptr(), address) << "in place, for captured graphs";
  }
}

// Gradients of autograd and of hrm::linear both end in the flat buffer, over several backward passes.
TEST(ParameterSet, GradientsAccumulateInPlace) {
  OwnedNet net;
  ParameterSet set;
  set.build(net, at::kBFloat16);
  const void* address = net.table.grad().const_data_ptr();
  const auto pass = [&] {
    const at::Tensor x = net.table.to(at::kBFloat16);
    const at::Tensor h = ops::linear(x, net.first->compute, net.first->weight, net.first->bias);
    ops::linear(h, net.second->compute, net.second->weight, net.second->bias).sum().backward();
  };
  pass();
  const at::Tensor once = set.flat_grad().clone();
  EXPECT_GT(once.abs().sum().item<float>(), 0);
  pass();
  EXPECT_EQ(net.table.grad().const_data_ptr(), address);
  EXPECT_TRUE(at::allclose(set.flat_grad(), 2 * once, 1e-6, 1e-6));
  set.zero_grad();
  for (const Parameter& p : set.all()) EXPECT_EQ(p.master.grad().abs().sum().item<float>(), 0) << p.name;
}

// Masters and gradients at places of the caller's choice, the same tensors for everyone who has them.
TEST(ParameterSet, MovesToOtherPlaces) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    OwnedNet net, same;
    ParameterSet set, plain;
    set.build(net, dtype);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < 5; ++i) same.parameters()[i].copy_(net.parameters()[i]);
    }
    plain.build(same, dtype);
    const at::Tensor held = net.first->weight;
    const at::Tensor flat = at::zeros({1152});
    const std::vector<int64_t> offsets{704, 0, 128, 192, 1024};
    for (size_t i = 0; i < offsets.size(); ++i) {
      const at::Tensor& master = set.all()[i].master;
      set.place_master(i, flat.narrow(0, offsets[i], master.numel()).view(master.sizes()));
    }
    EXPECT_TRUE(held.is_same(net.first->weight) && held.is_leaf() && held.requires_grad());
    EXPECT_EQ(held.const_data_ptr(), flat.const_data_ptr());
    EXPECT_TRUE(at::equal(held, same.first->weight));
    EXPECT_EQ(flat.ne(0).sum().item<int64_t>(), set.count());

    const at::Tensor buffer = at::zeros({2600});
    std::vector<at::Tensor> places;
    for (const Parameter& p : set.all()) {
      places.push_back(
          buffer.narrow(0, 512 * static_cast<int64_t>(places.size()), p.master.numel()).view(p.master.sizes()));
    }
    set.place_gradients(places);
    EXPECT_FALSE(set.flat_grad().defined());
    EXPECT_THROW(set.zero_grad(), Error);
    for (OwnedNet* each : {&net, &same}) {
      const at::Tensor x = each->table.to(dtype);
      const at::Tensor h = ops::linear(x, each->first->compute, each->first->weight, each->first->bias);
      ops::linear(h, each->second->compute, each->second->weight, each->second->bias).sum().backward();
    }
    for (size_t i = 0; i < places.size(); ++i) {
      EXPECT_GT(places[i].abs().sum().item<float>(), 0);
      EXPECT_TRUE(at::equal(places[i], plain.all()[i].master.grad())) << set.all()[i].name;
    }
    // A step in the flat vector is seen by whoever computes.
    flat.mul_(2);
    set.refresh_compute();
    EXPECT_TRUE(
        at::equal(net.first->compute.to(at::kFloat), (2 * same.first->weight).detach().to(dtype).to(at::kFloat)));
    places[1] = at::zeros({2});
    EXPECT_THROW(set.place_gradients(places), Error);
    EXPECT_THROW(set.place_master(0, at::zeros({64})), Error);
  }
}

TEST(ParameterSet, SharedWeightCountsOnce) {
  torch::nn::Module tied;
  const at::Tensor weight = at::randn({4, 4});
  tied.register_parameter("a", weight);
  const auto child = tied.register_module("child", std::make_shared<torch::nn::Module>());
  child->register_parameter("b", weight);
  ParameterSet set;
  set.build(tied, at::kFloat);
  EXPECT_EQ(set.all().size(), 1u);
  EXPECT_EQ(set.count(), 16);
}

TEST(ParameterSet, RefusesWhatItCannotTrain) {
  const auto message = [](torch::nn::Module& module) -> std::string {
    try {
      ParameterSet().build(module, at::kFloat);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::unexpected);
      return error.what();
    }
    return "";
  };
  torch::nn::Module empty;
  EXPECT_NE(message(empty).find("without parameters"), std::string::npos);
  torch::nn::Module all_frozen;
  all_frozen.register_parameter("w", at::zeros({2}), /*requires_grad=*/false);
  EXPECT_NE(message(all_frozen).find("require a gradient"), std::string::npos);
  torch::nn::Module narrow;
  narrow.register_parameter("w", at::zeros({2}, at::kBFloat16));
  EXPECT_NE(message(narrow).find("'w'"), std::string::npos);
  torch::nn::Module strided;
  strided.register_parameter("w", at::zeros({2, 3}).t());
  EXPECT_NE(message(strided).find("contiguous"), std::string::npos);
}

// A frozen weight is read in the compute dtype like any other, and no optimizer sees it.
TEST(ParameterSet, FrozenWeights) {
  torch::nn::Module module;
  const auto frozen = module.register_module("frozen", std::make_shared<Linear>(4, 4, at::kCPU));
  const auto trained = module.register_module("trained", std::make_shared<Linear>(4, 3, at::kCPU));
  init_parameters(module, 0);
  frozen->weight().requires_grad_(false);
  ParameterSet set;
  set.build(module, at::kBFloat16);
  ASSERT_EQ(set.all().size(), 1U);
  EXPECT_EQ(set.all()[0].name, "trained.weight");
  EXPECT_EQ(set.count(), 12);
  {
    const at::NoGradGuard no_grad;
    frozen->weight().add_(1);
  }
  set.refresh_compute();
  EXPECT_TRUE(at::equal(frozen->compute_weight(), frozen->weight().to(at::kBFloat16)));
  const at::Tensor x = at::ones({2, 4}, at::kBFloat16);
  trained->forward(frozen->forward(x)).sum().backward();
  EXPECT_FALSE(frozen->weight().grad().defined());
  EXPECT_GT(trained->weight().grad().abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace hrm::nn
