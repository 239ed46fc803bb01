// The main() of every test program. Beyond gtest's own it tells ctest when nothing could be tested: a program whose
// tests were all skipped (no GPU, no Python with torch) returns 77, which ctest reports as skipped. A failure is a
// failure, however many others were skipped.

#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  // MKL chooses the code of a product by the CPU, and each kind rounds in its own way. Bounds of a few roundings shall
  // hold on any CPU, so tests take one kind. MKL reads this at its first product.
  setenv("MKL_CBWR", "AVX2", /*overwrite=*/0);
  testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  const bool all_skipped = tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
  return status == 0 && all_skipped ? kSkipped : status;
}
