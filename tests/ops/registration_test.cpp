// Every op that the sources declare is registered with its kernels. One that is missing was dropped by the linker: the
// ops' object files must be linked by name, because a static archive leaves out objects that only register themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "hrm/build_config.h"
#include "hrm/ops/backend.h"
#include "support/paths.h"

namespace hrm::ops {
namespace {

// The names in m.def("NAME(...)") below src/ops, sorted.
std::vector<std::string> declared_ops() {
  static const std::regex declaration(R"re(\bm\.def\(\s*"(\w+)\()re");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(test::source_dir() + "/src/ops")) {
    if (entry.path().extension() != ".cpp") continue;
    std::ifstream in(entry.path());
    const std::string text(std::istreambuf_iterator<char>(in), {});
    for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) {
      names.push_back("hrm::" + (*it)[1].str());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Registration, EveryOpHasItsKernels) {
  const std::vector<std::string> declared = declared_ops();
  // The search finds declarations of one line and of several.
  for (const char* known : {"hrm::rms_norm_residual", "hrm::sum_rows"}) {
    EXPECT_TRUE(std::binary_search(declared.begin(), declared.end(), known)) << known;
  }
  std::vector<std::string> registered;
  for (const OpInfo& op : op_table()) {
    registered.push_back(op.name);
    EXPECT_TRUE(op.cpu) << op.name << " has no CPU kernel";
    EXPECT_EQ(op.cuda, bool{HRM_WITH_CUDA}) << op.name;
    EXPECT_TRUE(op.autograd) << op.name << " has no Autograd kernel";
  }
  EXPECT_EQ(registered, declared);
}

TEST(Backend, IsFusedUnlessSet) {
  EXPECT_EQ(backend(), Backend::fused);
  set_backend(Backend::reference);
  EXPECT_EQ(backend(), Backend::reference);
  set_backend(Backend::fused);
}

}  // namespace
}  // namespace hrm::ops
