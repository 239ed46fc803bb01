#pragma once
// Reference cases: a folder with case.json and tensors.safetensors. A kind of case is checked by one function, found in
// a table that each *_cases.cpp file fills; adding a kind is adding a file.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hrm::parity {

struct Case {
  std::string name;
  std::string kind;
  std::filesystem::path folder;
  nlohmann::json json;
  std::map<std::string, at::Tensor> tensors;  // on the CPU, types as stored

  bool has(const std::string& tensor) const { return tensors.count(tensor) != 0; }
  // Throws when there is none.
  const at::Tensor& at(const std::string& tensor) const;
  // Tensors whose name starts with `prefix`, by the rest of the name.
  std::map<std::string, at::Tensor> group(const std::string& prefix) const;
};

// Where the cases are: HRM_FIXTURES, by default tests/fixtures.
std::filesystem::path cases_folder();
// The folders there that hold a case, in order.
std::vector<std::string> case_names();
// A case's name as gtest takes it.
std::string test_name(const std::string& name);

// Kinds whose subject this program does not have yet.
bool not_due(const std::string& kind);

// Runs the check of its kind on device(). Skips the test where the kind is not due, and fails where nobody knows it.
void check_case(const std::string& name);

// Reads a case; throws Error(data) when the folder is not one.
Case load_case(const std::filesystem::path& folder);

// Reports what differs by gtest's EXPECT macros.
using CaseFn = void (*)(const Case&);

// One static object per kind: `static const RegisterKind kLosses("losses", check_losses);`
struct RegisterKind {
  RegisterKind(const std::string& kind, CaseFn check);
};
const std::map<std::string, CaseFn>& registered_kinds();

// A tolerance: |got - want| <= atol + rtol * |want|.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

// All elements within the tolerance, shapes equal; compared in float64. NaN equals NaN, infinities their like.
void expect_close(const std::string& what, const at::Tensor& got, const at::Tensor& want, Tolerance tolerance);
void expect_close(const std::string& what, double got, double want, Tolerance tolerance);

// Equal values (any integer or boolean types).
void expect_equal(const std::string& what, const at::Tensor& got, const at::Tensor& want);

// Relative L2 error |got - want| / |want| at most `limit`.
void expect_relative_l2(const std::string& what, const at::Tensor& got, const at::Tensor& want, double limit);

// Error against a float32 reference at most twice the error that the reference implementation makes in low precision,
// {"max_abs": ..., "mean_abs": ...}.
void expect_within_twice(const std::string& what, const at::Tensor& got, const at::Tensor& reference,
                         const nlohmann::json& error);

// The device that model cases run on; the CPU unless a test says otherwise.
at::Device& device();

}  // namespace hrm::parity
