#include "hrm/base/failpoint.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::failpoint {
namespace {

constexpr size_t kPoints = static_cast<size_t>(Failpoint::number);

constexpr const char* kFile = "eio enospc eintr";

enum class Does { kill, throws, sleep, told };

struct Order {
  Does does = Does::kill;
  Action action = Action::none;  // where told
  double seconds = 0;            // of sleep
  int64_t from = 1;
  bool always = false;  // from then on each time
};

struct Place {
  std::atomic<int64_t> times{0};
  std::optional<Order> order;
};

std::string armed_as;

std::array<Place, kPoints>& places() {
  static std::array<Place, kPoints> all;
  return all;
}

constexpr std::pair<const char*, Action> kActions[] = {
    {"eio", Action::eio}, {"enospc", Action::enospc}, {"eintr", Action::eintr}, {"short", Action::short_write},
    {"nan", Action::nan}, {"spike", Action::spike},   {"flip", Action::flip},
};

// Whether the words of `text`, parted by spaces, hold `word`.
bool holds(std::string_view text, const std::string& word) {
  std::istringstream words{std::string(text)};
  for (std::string one; words >> one;) {
    if (one == word) return true;
  }
  return false;
}

template <class... Args>
[[noreturn]] void refuse(const std::string& part, const Args&... args) {
  fail(ExitCode::usage, "HRM_FAIL: '", printable(part), "' ", args...,
       "; the form is <name>:<count>:<action>, see 'hrm_train doctor --failpoints'");
}

size_t index_of(const std::string& name, const std::string& part) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kPoints; ++i) {
    if (list()[i].name == name) return i;
    names.emplace_back(list()[i].name);
  }
  const std::string near = nearest_name(name, names);
  refuse(part, "names no failpoint", near.empty() ? "" : cat(" (did you mean ", near, "?)"));
}

Order parse_action(const std::string& text, const Info& info, const std::string& part) {
  Order order;
  if (text == "kill") return order;
  if (text == "throw") {
    order.does = Does::throws;
    return order;
  }
  if (text.starts_with("sleep=")) {
    const std::string_view number = std::string_view(text).substr(6);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), order.seconds);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (!whole || !(order.seconds >= 0 && order.seconds <= 86400))
      refuse(part, "has no number of seconds behind sleep=");
    order.does = Does::sleep;
    return order;
  }
  if (!holds(info.actions, text)) {
    refuse(part, "has an action that ", info.name, " does not know: it knows kill, throw, sleep=SECONDS",
           *info.actions ? " and " : "", info.actions);
  }
  order.does = Does::told;
  for (const auto& [name, action] : kActions) {
    if (text == name) order.action = action;
  }
  return order;
}

// "name:count:action"
void arm_one(const std::string& part) {
  const size_t first = part.find(':'), second = part.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) refuse(part, "is malformed");
  const size_t index = index_of(part.substr(0, first), part);
  Order order = parse_action(part.substr(second + 1), list()[index], part);
  std::string count = part.substr(first + 1, second - first - 1);
  if (!count.empty() && count.back() == '+') {
    order.always = true;
    count.pop_back();
  }
  const auto [end, error] = std::from_chars(count.data(), count.data() + count.size(), order.from);
  if (error != std::errc() || end != count.data() + count.size() || order.from < 1)
    refuse(part, "has no count above 0");
  if (order.always && order.action == Action::eintr) refuse(part, "would interrupt the same call for ever");
  Place& place = places()[index];
  if (place.order) refuse(part, "is the second order for this failpoint");
  place.order = std::move(order);
}

}  // namespace

namespace detail {

bool armed = false;

Action reached(Failpoint point) {
  const auto index = static_cast<size_t>(point);
  Place& place = places()[index];
  const int64_t time = ++place.times;
  if (!place.order) return Action::none;
  const Order& order = *place.order;
  if (time < order.from || (time > order.from && !order.always)) return Action::none;
  switch (order.does) {
    case Does::kill:
      ::raise(SIGKILL);
      break;
    case Does::throws:
      fail(ExitCode::unexpected, "HRM_FAIL has ", list()[index].name, " fail (time ", time, " that it was reached)");
    case Does::sleep:
      std::this_thread::sleep_for(std::chrono::duration<double>(order.seconds));
      break;
    case Does::told:
      return order.action;
  }
  return Action::none;
}

}  // namespace detail

const std::vector<Info>& list() {
  static const std::vector<Info> all = {
      {"file.open", "before a file is created", kFile},
      {"file.reserve", "before room for a file is reserved on the disk", kFile},
      {"file.write", "before each write to a file", "eio enospc eintr short"},
      {"file.fsync", "before a file is synced to the disk", kFile},
      {"file.close", "before a written file is closed", kFile},
      {"file.rename", "before a file or a directory gets its final name", kFile},
      {"directory.create", "before a directory is created", kFile},
      {"directory.fsync", "before names in a directory are synced to the disk", kFile},
      {"checkpoint.snapshot", "a checkpoint is due and nothing was copied", ""},
      {"checkpoint.write", "the copy is there, nothing was written", ""},
      {"checkpoint.commit", "all files are written, the directory has its temporary name", ""},
      {"checkpoint.prune", "an old checkpoint lost its name and is not yet deleted", ""},
      {"checkpoint.find", "before the checkpoints of a run are looked at", ""},
      {"checkpoint.quarantine", "before a bad checkpoint is renamed", ""},
      {"checkpoint.load", "a checkpoint is verified, nothing was copied out of it", ""},
      {"step.begin", "before a training step", ""},
      {"step.gradient", "before a step; its loss and gradient become NaN (nan) or a thousand times as large (spike)",
       "nan spike"},
      {"step.end", "after a training step; flip: one bit of a weight is flipped", "flip"},
      {"collective.start", "before an operation with the other ranks", ""},
      {"collective.tensor", "before one with the ranks of the tensor axis", ""},
      {"collective.shard", "before one with the ranks of the shard axis, of groups of shards (parallel.replicas)", ""},
      {"collective.replica", "before one with the ranks of the replica axis", ""},
      {"collective.data", "before one with the ranks of the data axis, where these are not all ranks", ""},
      {"evaluation.begin", "before an evaluation", ""},
      {"evaluation.batch", "after each part of an evaluation", ""},
      {"metrics.write", "before a line of metrics.jsonl", kFile},
      {"tensorboard.write", "before TensorBoard records are written", kFile},
  };
  return all;
}

void arm(const std::string& specification) {
  for (Place& place : places()) {
    place.times = 0;
    place.order.reset();
  }
  detail::armed = false;
  armed_as.clear();
  if (specification.empty()) return;
  std::istringstream parts(specification);
  for (std::string part; std::getline(parts, part, ',');) arm_one(part);
  armed_as = specification;
  detail::armed = true;
}

std::string armed_text() {
  return armed_as;
}

int errno_of(Action action) {
  switch (action) {
    case Action::eio:
      return EIO;
    case Action::enospc:
      return ENOSPC;
    case Action::eintr:
      return EINTR;
    default:
      return 0;
  }
}

}  // namespace hrm::failpoint
