// Each test of a program with tensors begins with the same seed, whatever runs before it: LibTorch's own generators
// start with a random one.

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace {

class Seed : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(0); }
};

[[maybe_unused]] const bool kSeeds = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Seed);
  return true;
}();

}  // namespace
