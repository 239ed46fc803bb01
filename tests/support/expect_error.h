#pragma once
// Expects an hrm::Error with this code and with all these parts in its sentence.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::test {

inline void expect_error(ExitCode code, const std::vector<std::string>& parts, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    const std::string sentence = error.what();
    for (const std::string& part : parts)
      EXPECT_NE(sentence.find(part), std::string::npos) << "'" << part << "' is not in: " << sentence;
    EXPECT_EQ(sentence.find('\n'), std::string::npos) << "more than one line: " << sentence;
    return;
  }
  FAIL() << "no error was thrown";
}

}  // namespace hrm::test
