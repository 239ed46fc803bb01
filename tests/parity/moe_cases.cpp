// moe: routing, capacity, outputs, gradients and auxiliary loss of the plain mixture of experts.

#include "ops/reference/moe_ref.h"
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

void check_moe(const Case& loaded) {
  const json& subcases = loaded.json.at("subcases");
  for (size_t i = 0; i < subcases.size(); ++i) check_subcase(loaded, subcases.at(i), std::to_string(i) + ".");
}

const RegisterKind kMoe("moe", check_moe);

}  // namespace
}  // namespace hrm::parity
