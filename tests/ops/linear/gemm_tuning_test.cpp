// What a process remembers of its tuned matrix products, without a GPU.
#include "hrm/ops/gemm_tuning.h"

#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "ops/linear/gemm_tuning_impl.h"
#include "support/temp_dir.h"

namespace hrm::ops {
namespace {

constexpr const char* kDevice = "a GPU";
constexpr const char* kLibrary = "a library 1";
const TunedChoice kTimed{"01", 10, 12}, kOther{"02", 9, 12};

class GemmTuningTest : public ::testing::Test {
 protected:
  void SetUp() override { fresh_start(dir_.path()); }
  void TearDown() override { set_gemm_cache(""); }

  // As if the process had just started.
  static void fresh_start(const std::filesystem::path& folder) {
    set_gemm_cache(folder / "of another process");
    set_gemm_cache(folder);
  }

  test::TempDir dir_;
};

TEST_F(GemmTuningTest, IsOffUnlessSet) {
  EXPECT_EQ(gemm_tuning(), GemmTuning::off);
  set_gemm_tuning(GemmTuning::auto_);
  EXPECT_EQ(gemm_tuning(), GemmTuning::auto_);
  set_gemm_tuning(GemmTuning::off);
}

TEST_F(GemmTuningTest, TheNextStartKnowsWhatThisOneTimed) {
  EXPECT_EQ(gemm_choices(), "");
  EXPECT_FALSE(find_gemm(kDevice, kLibrary, "a"));
  keep_gemm(kDevice, kLibrary, "a", kTimed, GemmOrigin::timed, 0.25);
  keep_gemm(kDevice, kLibrary, "b", kOther, GemmOrigin::untimed);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "a"), kTimed);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "b"), kOther) << "what a graph captured holds for this process";
  const GemmTuningReport report = gemm_tuning_report();
  EXPECT_EQ(report.timed, 1);
  EXPECT_EQ(report.untimed, 1);
  EXPECT_EQ(report.reused, 0);
  EXPECT_EQ(report.seconds, 0.25);
  EXPECT_EQ(gemm_tuning_text(), "2 shapes by cuBLASLt, 0 known, 1 timed in 0.25 s, 1 as cuBLASLt proposes, kept in '" +
                                    (dir_ / "a_GPU_a_library_1.json").string() + "'");
  const int64_t generation = gemm_generation();

  fresh_start(dir_.path());
  EXPECT_GT(gemm_generation(), generation) << "plans that were made must be forgotten";
  EXPECT_EQ(gemm_tuning_report().timed, 0);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "a"), kTimed);
  EXPECT_FALSE(find_gemm(kDevice, kLibrary, "b")) << "what was not timed is nothing for the next start";
  EXPECT_FALSE(find_gemm(kDevice, "a library 2", "a"));
  EXPECT_FALSE(find_gemm("another GPU", kLibrary, "a"));
}

TEST_F(GemmTuningTest, ABenchmarkReadsTheFileAndLeavesItAsItIs) {
  keep_gemm(kDevice, kLibrary, "a", kTimed, GemmOrigin::timed);
  const std::string file = gemm_tuning_report().file, written = read_text(file, ExitCode::environment);
  set_gemm_cache(dir_.path(), /*writes=*/false);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "a"), kTimed);
  EXPECT_EQ(keep_gemm(kDevice, kLibrary, "b", kOther, GemmOrigin::timed), kOther);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "b"), kOther) << "for this process it holds";
  EXPECT_EQ(gemm_tuning_text(), "1 shapes by cuBLASLt, 0 known, 1 timed in 0 s");
  EXPECT_EQ(read_text(file, ExitCode::environment), written);

  set_gemm_cache(dir_.path());
  EXPECT_FALSE(find_gemm(kDevice, kLibrary, "b"));
  keep_gemm(kDevice, kLibrary, "b", kOther, GemmOrigin::timed);
  EXPECT_NE(read_text(file, ExitCode::environment), written);
}

TEST_F(GemmTuningTest, ACheckpointCarriesTheChoicesOfItsRun) {
  keep_gemm(kDevice, kLibrary, "a", kTimed, GemmOrigin::timed);
  keep_gemm(kDevice, kLibrary, "b", kOther, GemmOrigin::untimed);
  const std::string carried = gemm_choices();

  // Another machine of the same kind, whose file says otherwise.
  const test::TempDir elsewhere;
  fresh_start(elsewhere.path());
  keep_gemm(kDevice, kLibrary, "a", kOther, GemmOrigin::timed);
  const int64_t generation = gemm_generation();
  adopt_gemm_choices(carried);
  EXPECT_GT(gemm_generation(), generation);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "a"), kTimed);
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "b"), kOther);
  keep_gemm(kDevice, kLibrary, "a", kTimed, GemmOrigin::reused);
  EXPECT_EQ(gemm_tuning_report().reused, 1);

  // The run that the checkpoint came from is not this machine's rule.
  fresh_start(elsewhere.path());
  EXPECT_EQ(find_gemm(kDevice, kLibrary, "a"), kOther);
}

TEST_F(GemmTuningTest, AForeignOrUnreadableCheckpointIsNotUsed) {
  keep_gemm(kDevice, kLibrary, "a", kTimed, GemmOrigin::timed);
  const std::string carried = gemm_choices();
  const test::TempDir elsewhere;
  fresh_start(elsewhere.path());
  adopt_gemm_choices(carried);
  EXPECT_FALSE(find_gemm(kDevice, "a library 2", "a"));
  fresh_start(elsewhere.path());
  for (const std::string& bad : {std::string(), std::string("{"), carried.substr(0, carried.size() / 2)}) {
    adopt_gemm_choices(bad);
    EXPECT_FALSE(find_gemm(kDevice, kLibrary, "a"));
  }
}

}  // namespace
}  // namespace hrm::ops
