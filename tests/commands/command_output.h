#pragma once
// Commands as functions: what they write to stdout.

#include <gtest/gtest.h>

#include <iostream>
#include <sstream>
#include <string>

namespace hrm::testing {

// `command` returns an exit code, which must be 0.
template <class Command>
std::string printed(const Command& command) {
  struct Redirected {
    std::ostringstream text;
    std::streambuf* before = std::cout.rdbuf(text.rdbuf());
    ~Redirected() { std::cout.rdbuf(before); }
  } redirected;
  EXPECT_EQ(command(), 0);
  return redirected.text.str();
}

}  // namespace hrm::testing
