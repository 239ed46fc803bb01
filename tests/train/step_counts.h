#pragma once
// The counts of a step of fixed small work, against those of tests/train/step_counts.json.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "hrm/base/file.h"
#include "hrm/runtime/work_counts.h"
#include "support/paths.h"

namespace hrm::testing {

using Counts = nlohmann::ordered_json;  // {"calls": 812, ...}

inline Counts counts_json(const WorkCounts& counts) {
  return {{"calls", counts.calls},
          {"allocations", counts.allocations},
          {"bytes", counts.bytes},
          {"peak_bytes", counts.peak_bytes}};
}

// "calls 812 -> 815, bytes 10 -> 12"; bytes may be off by `tolerance` of them.
inline std::string changed_counts(const Counts& before, const Counts& now, double tolerance) {
  std::string text;
  for (const auto& [name, value] : now.items()) {
    const Counts was = before.is_object() && before.contains(name) ? before[name] : Counts();
    const bool bytes = name.find("bytes") != std::string::npos;
    const bool same = was.is_number() && (bytes ? std::abs(value.get<double>() - was.get<double>()) <=
                                                      tolerance * std::abs(was.get<double>())
                                                : was == value);
    if (!same) text += (text.empty() ? "" : ", ") + name + " " + was.dump() + " -> " + value.dump();
  }
  return text;
}

inline std::string counts_file() {
  return test::source_dir() + "/tests/train/step_counts.json";
}

inline bool is_recorded(const std::string& work) {
  std::ifstream in(counts_file());
  return in && Counts::parse(in)["works"].contains(work);
}

// Fails where `now` differs from what is recorded for `work`. With HRM_RENEW_COUNTS it is recorded instead, with the
// variable's text as the reason. `program`: the test's, for the sentence.
inline void expect_recorded(const std::string& work, const Counts& now, const std::string& program,
                            double tolerance = 0) {
  std::ifstream in(counts_file());
  Counts all =
      in ? Counts::parse(in) : Counts{{"torch", ""}, {"changes", Counts::array()}, {"works", Counts::object()}};
  const Counts before = all["works"].contains(work) ? all["works"][work] : Counts();
  const std::string change = changed_counts(before, now, tolerance);
  if (change.empty()) return;
  const char* reason = std::getenv("HRM_RENEW_COUNTS");
  if (reason == nullptr) {
    ADD_FAILURE() << "a step of " << work << " does other work than recorded: " << change
                  << " (tests/train/step_counts.json"
                  << ", of LibTorch " << all["torch"].get<std::string>() << "; this is " << TORCH_VERSION
                  << "). If that is meant, record it with its reason: HRM_RENEW_COUNTS='REASON' " << program
                  << " --gtest_filter='StepCounts*'";
    return;
  }
  ASSERT_GE(std::string(reason).size(), 10U) << "HRM_RENEW_COUNTS must say why the counts change";
  all["torch"] = TORCH_VERSION;
  all["works"][work] = now;
  Counts& changes = all["changes"];
  if (changes.empty() || changes.back()["reason"] != reason) changes.push_back({{"reason", reason}});
  changes.back()[work] = change;
  write_text_atomic(counts_file(), all.dump(1) + "\n");
}

}  // namespace hrm::testing
