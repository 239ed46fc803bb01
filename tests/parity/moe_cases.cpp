// moe: routing, capacity, outputs, gradients and auxiliary loss of the plain mixture of experts and of the layer.

#include "hrm/nn/moe.h"
#include "hrm/nn/parameter.h"
#include "ops/moe/moe_ref.h"
#include "parity/cases.h"

namespace hrm::parity {
namespace {

using nlohmann::json;
namespace reference = ops::reference;

void check_subcase(const Case& loaded, const json& c, const std::string& prefix) {
  const bool low = loaded.json.at("dtype") == "bfloat16";
  const json& stated = loaded.json.at("tolerance");
  // The file holds bfloat16 values as float32.
  const auto leaf = [&](const char* name) {
    return loaded.at(prefix + "in." + name)
        .to(device(), low ? at::kBFloat16 : at::kFloat, false, /*copy=*/true)
        .requires_grad_();
  };
  const at::Tensor x = leaf("x"), gate = leaf("gate"), up = leaf("up"), down = leaf("down");
  const auto want = [&](const std::string& name) { return loaded.at(prefix + "out." + name); };

  const reference::MoeOptions options{.top_k = c.at("k"), .capacity_factor = c.at("cf")};
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  EXPECT_EQ(reference::moe_capacity(rows.size(0), c.at("E"), options), c.at("capacity").get<int64_t>());
  const reference::MoeRouting routing =
      reference::moe_route(at::linear(rows.to(at::kFloat), gate.to(at::kFloat)), options);
  const at::Tensor y = reference::moe_experts(rows, routing, up, down).view(x.sizes());
  const at::Tensor aux = reference::moe_load_loss(routing);

  expect_equal(prefix + "index", routing.index, want("index"));
  expect_equal(prefix + "kept", routing.kept, want("kept"));
  expect_equal(prefix + "load", routing.load, want("load"));
  EXPECT_EQ(routing.kept.logical_not().sum().item<int64_t>(), c.at("dropped").get<int64_t>());
  const Tolerance tolerance{.rtol = 1e-5, .atol = low ? 1e-6 : stated.at("atol").get<double>()};
  expect_close(prefix + "probs", routing.probs, want("probs"), tolerance);
  expect_close(prefix + "gate", routing.gate, want("gate"), tolerance);
  expect_close(prefix + "aux", aux, want("aux"), tolerance);
  if (low) {
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_within_twice(prefix + "y", y, loaded.at(prefix + "ref32.y"), c.at("bf16_error_vs_f32"));
  } else {
    expect_close(prefix + "y", y, want("y"), tolerance);
  }

  const at::Tensor dy = loaded.at(prefix + "in.dy").to(device());
  ((y * dy).to(at::kFloat).sum() + aux * c.at("aux_weight").get<double>()).backward();
  const auto compare = [&](const char* name, const at::Tensor& got) {
    const std::string what = std::string("grad.") + name;
    if (low) {
      // The stored gradients have the rounding of another order of products.
      expect_relative_l2(prefix + what, got.to(at::kFloat), want(what).to(at::kFloat), 1e-2);
    } else {
      expect_close(prefix + what, got, want(what), {.rtol = 1e-5, .atol = 1e-5});
    }
  };
  compare("x", x.grad());
  compare("gate", gate.grad());
  compare("up", up.grad());
  compare("down", down.grad());
}

// The layer that trains (nn/moe.h), with the case's weights.
void check_layer(const Case& loaded, const json& c, const std::string& prefix) {
  const bool low = loaded.json.at("dtype") == "bfloat16";
  const auto in = [&](const char* name) { return loaded.at(prefix + "in." + name).to(device(), at::kFloat); };
  const auto want = [&](const std::string& name) { return loaded.at(prefix + "out." + name); };
  const at::Tensor up = in("up"), down = in("down");
  nn::MoeOptions options;
  options.experts = c.at("E");
  options.top_k = c.at("k");
  options.inner = up.size(1);
  options.capacity_factor = c.at("cf");
  options.load_weight = c.at("aux_weight");
  const auto layer = std::make_shared<nn::MoeFeedForward>(up.size(2), options, device());
  const auto fill = [&](const char* name, const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    layer->named_parameters()[name].copy_(values.reshape(layer->named_parameters()[name].sizes()));
  };
  fill("router.weight", in("gate"));
  fill("up.weight", up);
  fill("down.weight", down);
  nn::ParameterSet parameters;
  parameters.build(*layer, low ? at::kBFloat16 : at::kFloat);
  parameters.refresh_compute();

  const at::Tensor x = in("x").to(low ? at::kBFloat16 : at::kFloat).requires_grad_();
  const at::Tensor y = layer->forward(x.reshape({-1, x.size(-1)})).view(x.sizes());
  const std::vector<nn::AuxiliaryLoss> losses = layer->take_auxiliary_losses();
  ASSERT_EQ(losses.size(), 1u);
  EXPECT_TRUE(layer->take_auxiliary_losses().empty());
  const Tolerance tolerance{.rtol = 1e-5, .atol = low ? 1e-6 : loaded.json.at("tolerance").at("atol").get<double>()};
  expect_close(prefix + "layer aux", losses[0].value, want("aux"), tolerance);
  if (low) {
    expect_within_twice(prefix + "layer y", y, loaded.at(prefix + "ref32.y"), c.at("bf16_error_vs_f32"));
  } else {
    expect_close(prefix + "layer y", y, want("y"), tolerance);
  }
  EXPECT_EQ(layer->counts()[options.experts].item<double>(), c.at("dropped").get<double>());
  expect_close(prefix + "layer load", layer->counts().narrow(0, 0, options.experts), want("load"),
               {.rtol = 0, .atol = 0});

  const at::Tensor dy = loaded.at(prefix + "in.dy").to(device());
  ((y * dy).to(at::kFloat).sum() + losses[0].value * losses[0].weight).backward();
  const auto compare = [&](const std::string& name, const at::Tensor& got) {
    const at::Tensor stated = want("grad." + name).to(at::kFloat).reshape(got.sizes());
    if (low) {
      expect_relative_l2(prefix + "layer grad." + name, got.to(at::kFloat), stated, 1e-2);
    } else {
      expect_close(prefix + "layer grad." + name, got, stated, {.rtol = 1e-5, .atol = 1e-5});
    }
  };
  compare("x", x.grad());
  compare("gate", layer->named_parameters()["router.weight"].grad());
  compare("up", layer->named_parameters()["up.weight"].grad());
  compare("down", layer->named_parameters()["down.weight"].grad());
}

void check_moe(const Case& loaded) {
  const json& subcases = loaded.json.at("subcases");
  for (size_t i = 0; i < subcases.size(); ++i) {
    check_subcase(loaded, subcases.at(i), std::to_string(i) + ".");
    check_layer(loaded, subcases.at(i), std::to_string(i) + ".");
  }
}

const RegisterKind kMoe("moe", check_moe);

}  // namespace
}  // namespace hrm::parity
