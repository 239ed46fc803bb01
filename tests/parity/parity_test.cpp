// Runs every reference case of a folder: HRM_FIXTURES, by default tests/fixtures. The folder decides: a case of a known
// kind runs whatever its name and sizes are, and a case of a kind that nobody knows fails.

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "parity/cases.h"

namespace hrm::parity {
namespace {

// Cases in tests/fixtures. A case that disappears must not go unnoticed.
constexpr size_t kShippedCases = 53;

class Parity : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Parity);

TEST_P(Parity, Case) {
  check_case(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Parity, testing::ValuesIn(case_names()),
                         [](const auto& info) { return test_name(info.param); });

TEST(ParityFolder, HoldsTheCases) {
  const std::vector<std::string> names = case_names();
  size_t due = 0;
  for (const std::string& name : names) {
    const std::string kind = load_case(cases_folder() / name).kind;
    due += registered_kinds().count(kind);
    EXPECT_FALSE(registered_kinds().count(kind) != 0 && not_due(kind)) << kind << " is listed twice";
  }
  std::cout << "[ parity   ] " << cases_folder().string() << ": " << due << " of " << names.size()
            << " cases are of a kind that is checked\n";
  if (std::getenv("HRM_FIXTURES") == nullptr) {
    EXPECT_EQ(due, kShippedCases);
    EXPECT_EQ(names.size(), kShippedCases);
  } else {
    EXPECT_GT(due, 0U) << "no case to check in " << cases_folder();
  }
}

}  // namespace
}  // namespace hrm::parity
