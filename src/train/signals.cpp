#include "hrm/train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace hrm::train {
namespace {

std::atomic<int> stop_signal{0};
std::atomic<bool> memory_signal{false};

void on_signal(int number) {
  // The second request does not wait for the step. _exit: nothing else is safe in a handler.
  if (stop_signal.exchange(number) != 0 && (number == SIGINT || number == SIGTERM)) _exit(128 + number);
}

void on_memory_signal(int) {
  memory_signal = true;
}

// SIGHUP, of a terminal or a connection that ends, unless it is ignored already: by nohup, to continue without one.
std::vector<int> stop_signals() {
  std::vector<int> stops = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  struct sigaction hangup {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) stops.push_back(SIGHUP);
  return stops;
}

}  // namespace

void keep_signals_from_computing() {
  sigset_t stops;
  sigemptyset(&stops);
  for (const int number : stop_signals()) sigaddset(&stops, number);
  sigaddset(&stops, SIGRTMIN);
  std::thread([stops] {
    pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
    for (;;) pause();
  }).detach();
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
}

void install_signal_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : stop_signals()) sigaction(number, &action, nullptr);
  action.sa_handler = on_memory_signal;
  sigaction(SIGRTMIN, &action, nullptr);
  // A reader of our output that goes away must not kill a training.
  signal(SIGPIPE, SIG_IGN);
}

bool memory_table_requested() {
  return memory_signal.load(std::memory_order_relaxed) && memory_signal.exchange(false);
}

bool stop_requested() {
  return stop_signal.load() != 0;
}

std::string stop_signal_name() {
  switch (stop_signal.load()) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return "";
  }
}

}  // namespace hrm::train
