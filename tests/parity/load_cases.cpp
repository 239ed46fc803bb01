#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"
#include "parity/cases.h"
#include "support/paths.h"

namespace hrm::parity {
namespace {

std::map<std::string, CaseFn>& table() {
  static std::map<std::string, CaseFn> kinds;
  return kinds;
}

const std::set<std::string> kNotDue{};

}  // namespace

std::filesystem::path cases_folder() {
  const char* chosen = std::getenv("HRM_FIXTURES");
  return chosen != nullptr ? chosen : test::source_dir() + "/tests/fixtures";
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(cases_folder(), error)) {
    if (std::filesystem::exists(entry.path() / "case.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const std::string& name) {
  std::string out = name;
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return out;
}

bool not_due(const std::string& kind) {
  return kNotDue.count(kind) != 0;
}

void check_case(const std::string& name) {
  const Case loaded = load_case(cases_folder() / name);
  const auto check = registered_kinds().find(loaded.kind);
  if (check == registered_kinds().end()) {
    if (not_due(loaded.kind)) GTEST_SKIP() << "kind " << loaded.kind << " is not due yet";
    FAIL() << "case " << name << " has the unknown kind '" << loaded.kind << "'";
  }
  check->second(loaded);
}

const at::Tensor& Case::at(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  require(found != tensors.end(), ExitCode::data, "case ", name, " has no tensor '", tensor, "'");
  return found->second;
}

std::map<std::string, at::Tensor> Case::group(const std::string& prefix) const {
  std::map<std::string, at::Tensor> found;
  for (const auto& [key, value] : tensors) {
    if (key.starts_with(prefix)) found.emplace(key.substr(prefix.size()), value);
  }
  return found;
}

Case load_case(const std::filesystem::path& folder) {
  Case loaded{.name = folder.filename().string(), .kind = {}, .folder = folder, .json = {}, .tensors = {}};
  loaded.json = nlohmann::json::parse(read_text(folder / "case.json", ExitCode::data));
  loaded.kind = loaded.json.at("kind").get<std::string>();
  if (!std::filesystem::exists(folder / "tensors.safetensors")) return loaded;
  const SafetensorsFile file(folder / "tensors.safetensors");
  for (const std::string& name : file.names()) {
    const ArrayView& view = file.at(name);
    loaded.tensors.emplace(name, tensor_from_bytes(view.dtype, view.shape, view.bytes));
  }
  return loaded;
}

RegisterKind::RegisterKind(const std::string& kind, CaseFn check) {
  table().emplace(kind, check);
}

const std::map<std::string, CaseFn>& registered_kinds() {
  return table();
}

void expect_close(const std::string& what, const at::Tensor& got_any, const at::Tensor& want_any, Tolerance tolerance) {
  const at::Tensor got = got_any.detach().to(at::kCPU, at::kDouble), want = want_any.detach().to(at::kCPU, at::kDouble);
  if (got.sizes() != want.sizes()) {
    ADD_FAILURE() << what << ": shape " << got.sizes() << ", expected " << want.sizes();
    return;
  }
  if (got.numel() == 0) return;
  const at::Tensor same = got.eq(want).logical_or_(got.isnan().logical_and(want.isnan()));
  const at::Tensor error = (got - want).abs().masked_fill(same, 0);
  const at::Tensor excess = (error - want.abs() * tolerance.rtol).nan_to_num(INFINITY).masked_fill(same, 0);
  const double worst = excess.max().item<double>();
  if (worst <= tolerance.atol) return;
  const int64_t where = excess.argmax().item<int64_t>();
  ADD_FAILURE() << what << ": element " << where << " is " << got.flatten()[where].item<double>() << ", expected "
                << want.flatten()[where].item<double>() << " (error " << error.max().item<double>() << ", "
                << excess.gt(tolerance.atol).sum().item<int64_t>() << " of " << got.numel() << " elements beyond atol "
                << tolerance.atol << " + rtol " << tolerance.rtol << ")";
}

void expect_close(const std::string& what, double got, double want, Tolerance tolerance) {
  expect_close(what, at::scalar_tensor(got, at::kDouble), at::scalar_tensor(want, at::kDouble), tolerance);
}

void expect_equal(const std::string& what, const at::Tensor& got, const at::Tensor& want) {
  expect_close(what, got, want, {});
}

void expect_relative_l2(const std::string& what, const at::Tensor& got, const at::Tensor& want, double limit) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const at::Tensor wanted = want.to(at::kCPU, at::kDouble);
  const double error = (got.detach().to(at::kCPU, at::kDouble) - wanted).norm().item<double>();
  EXPECT_LE(error, limit * wanted.norm().item<double>()) << what << ": relative L2 error beyond " << limit;
}

void expect_within_twice(const std::string& what, const at::Tensor& got, const at::Tensor& reference,
                         const nlohmann::json& error) {
  ASSERT_EQ(got.sizes(), reference.sizes()) << what;
  const at::Tensor difference = (got.detach().to(at::kCPU, at::kDouble) - reference.to(at::kCPU, at::kDouble)).abs();
  EXPECT_LE(difference.max().item<double>(), 2 * error.at("max_abs").get<double>()) << what << ": largest error";
  EXPECT_LE(difference.mean().item<double>(), 2 * error.at("mean_abs").get<double>()) << what << ": mean error";
}

at::Device& device() {
  static at::Device current(at::kCPU);
  return current;
}

}  // namespace hrm::parity
