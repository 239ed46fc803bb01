#pragma once
// Helpers for the tests of parsers.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/philox.h"
#include "support/paths.h"

namespace hrm {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(test::source_dir()) / "tests/fixtures" / name;
}

// A folder of this test that is removed at its end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hrm_formats_test.XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// `action` must throw an Error of this code whose sentence holds all of `parts`.
template <class Action>
void expect_error(Action action, ExitCode code, const std::vector<std::string>& parts) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with '" << (parts.empty() ? "" : parts[0]) << "'";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

template <class T>
std::vector<T> values_of(std::span<const std::byte> bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// Every truncation (at most about 500 lengths) must give an Error of this code.
template <class Parse>
void expect_truncations_fail(const std::string& good, ExitCode code, Parse parse) {
  const size_t step = std::max<size_t>(1, good.size() / 500);
  for (size_t length = 0; length < good.size(); length += step) {
    // A buffer of its own, so that AddressSanitizer sees a read past the end.
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(length));
    try {
      parse(as_bytes(std::string_view(cut.data(), cut.size())));
      ADD_FAILURE() << "a file cut to " << length << " of " << good.size() << " bytes was read";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
    }
  }
}

// Random changes of one to four bytes must be read or give an Error of this code; anything else fails the test.
// Returns how many gave an Error.
template <class Parse>
int expect_flips_are_safe(const std::string& good, int rounds, ExitCode code, Parse parse) {
  CounterRng rng(7, Stream::generate, good.size());
  int errors = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<char> bad(good.begin(), good.end());
    for (uint32_t flips = 1 + rng.below(4); flips > 0; --flips) {
      bad[rng.below(static_cast<uint32_t>(bad.size()))] = static_cast<char>(rng.next());
    }
    try {
      parse(as_bytes(std::string_view(bad.data(), bad.size())));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      ++errors;
    }
  }
  return errors;
}

}  // namespace hrm
