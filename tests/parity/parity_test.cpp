// Runs every reference case of a folder: HRM_FIXTURES, by default tests/fixtures. The folder decides: a case of a known
// kind runs whatever its name and sizes are, and a case of a kind that nobody knows fails.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <set>

#include "parity/cases.h"
#include "support/paths.h"

namespace hrm::parity {
namespace {

// Kinds whose subject this program does not have yet.
const std::set<std::string> kNotDue{"arc_tokens", "arc_voting", "contrastive", "dataset_arc",
                                    "field_step", "geometry",   "metric_sync", "tokenizer"};

// Cases in tests/fixtures. A case that disappears must not go unnoticed.
constexpr size_t kShippedCases = 42;

std::filesystem::path fixtures() {
  const char* chosen = std::getenv("HRM_FIXTURES");
  return chosen != nullptr ? chosen : test::source_dir() + "/tests/fixtures";
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures(), error)) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Parity : public testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Parity);

TEST_P(Parity, Case) {
  const Case loaded = load_case(fixtures() / GetParam());
  const auto check = registered_kinds().find(loaded.kind);
  if (check == registered_kinds().end()) {
    if (kNotDue.count(loaded.kind) != 0) GTEST_SKIP() << "kind " << loaded.kind << " is not due yet";
    FAIL() << "case " << GetParam() << " has the unknown kind '" << loaded.kind << "'";
  }
  check->second(loaded);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Parity, testing::ValuesIn(case_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST(ParityFolder, HoldsTheCases) {
  const std::vector<std::string> names = case_names();
  size_t due = 0;
  for (const std::string& name : names) {
    const std::string kind = load_case(fixtures() / name).kind;
    due += registered_kinds().count(kind);
    EXPECT_FALSE(registered_kinds().count(kind) != 0 && kNotDue.count(kind) != 0) << kind << " is listed twice";
  }
  std::cout << "[ parity   ] " << fixtures().string() << ": " << due << " of " << names.size()
            << " cases are of a kind that is checked\n";
  if (std::getenv("HRM_FIXTURES") == nullptr) {
    EXPECT_EQ(due, kShippedCases);
    EXPECT_EQ(names.size(), kShippedCases);
  } else {
    EXPECT_GT(due, 0U) << "no case to check in " << fixtures();
  }
}

}  // namespace
}  // namespace hrm::parity
