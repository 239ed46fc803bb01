#include "hrm/nn/init.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/nn/swiglu.h"

namespace hrm::nn {
namespace {

at::Tensor drawn(int64_t count, uint64_t seed, const char* name) {
  const at::Tensor values = at::empty({count});
  trunc_normal_(values, 1.0, seed, name);
  return values;
}

// The draws are the sequence of CounterRng, whatever the number of threads that make them.
TEST(TruncNormal, FollowsTheCounter) {
  const int64_t count = 40001;
  const at::Tensor u = at::empty({count});
  CounterRng rng(7, Stream::init, hash_name("layer.weight"));
  const double bound = std::erf(std::sqrt(2.0));
  for (int64_t i = 0; i < count; ++i) {
    u.mutable_data_ptr<float>()[i] = static_cast<float>(-bound + 2 * bound * static_cast<double>(rng.uniform()));
  }
  EXPECT_TRUE(at::equal(drawn(count, 7, "layer.weight"), trunc_normal_from_uniform(u, 1.0)));
}

TEST(TruncNormal, DependsOnSeedAndName) {
  EXPECT_TRUE(at::equal(drawn(64, 1, "a"), drawn(64, 1, "a")));
  EXPECT_FALSE(at::equal(drawn(64, 1, "a"), drawn(64, 2, "a")));
  EXPECT_FALSE(at::equal(drawn(64, 1, "a"), drawn(64, 1, "b")));
  // A shorter tensor is the beginning of a longer one.
  EXPECT_TRUE(at::equal(drawn(7, 1, "a"), drawn(64, 1, "a").narrow(0, 0, 7)));
}

TEST(TruncNormal, RefusesOtherTypes) {
  try {
    trunc_normal_(at::empty({3}, at::kDouble), 1.0, 0, "weights");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unexpected);
    EXPECT_NE(std::string(error.what()).find("'weights'"), std::string::npos);
  }
}

TEST(InitParameters, ScalesByTheInputWidth) {
  Linear linear(256, 512, at::kCPU, /*bias=*/true);
  init_parameters(linear, 3);
  EXPECT_NEAR(linear.weight().std().item<double>(), 1.0 / 16, 1e-3);
  EXPECT_EQ(linear.bias().abs().max().item<double>(), 0);
  EXPECT_TRUE(linear.weight().requires_grad());
}

// A module inside another draws by its full name, so equal layers differ.
TEST(InitParameters, LayersDiffer) {
  SwiGLU mlp(16, 4, at::kCPU);
  init_parameters(mlp, 0);
  const auto named = mlp.named_parameters();
  ASSERT_EQ(named.size(), 2U);
  EXPECT_EQ(named[0].key(), "gate_up_proj.weight");
  EXPECT_EQ(named[1].key(), "down_proj.weight");
  const int64_t count = named[1].value().numel();
  EXPECT_FALSE(at::allclose(named[0].value().flatten().narrow(0, 0, count) * 4, named[1].value().flatten() * 16));
}

}  // namespace
}  // namespace hrm::nn
