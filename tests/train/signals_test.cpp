#include "hrm/train/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>

namespace hrm::train {
namespace {

// In a process of its own: the name of the request that such a signal makes, or "goes on".
void install_and_raise(int number, bool ignored_before) {
  signal(SIGHUP, ignored_before ? SIG_IGN : SIG_DFL);
  install_signal_handlers();
  raise(number);
  std::cerr << (stop_requested() ? stop_signal_name() : "goes on");
  _exit(0);
}

TEST(Signals, AskForAStop) {
  const auto done = ::testing::ExitedWithCode(0);
  EXPECT_EXIT(install_and_raise(SIGHUP, false), done, "^SIGHUP$");
  EXPECT_EXIT(install_and_raise(SIGHUP, /*ignored_before=*/true), done, "^goes on$");
  EXPECT_EXIT(install_and_raise(SIGTERM, /*ignored_before=*/true), done, "^SIGTERM$");
  EXPECT_EXIT(install_and_raise(SIGUSR2, false), done, "^SIGUSR2$");
}

// A terminal that closes may send several.
TEST(Signals, OnlyASecondTermOrIntEndsAtOnce) {
  const auto twice = [](int first, int second) {
    signal(SIGHUP, SIG_DFL);
    install_signal_handlers();
    raise(first);
    raise(second);
    _exit(0);
  };
  EXPECT_EXIT(twice(SIGHUP, SIGHUP), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(twice(SIGTERM, SIGHUP), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(twice(SIGHUP, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
}

}  // namespace
}  // namespace hrm::train
