#include "hrm/parallel/watchdog.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <mutex>
#include <sstream>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "parallel/thread_stack.h"

namespace hrm::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Missing heartbeats that are no accident, where something else is wrong, too.
constexpr double kSilentBeats = 2.5;

Clock::time_point in(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

// Seconds that this process saw pass. Of a pause (a stopped process, a sleeping machine) only `longest` counts, so that
// ranks that continued meanwhile do not count as gone. Only right when asked more often than that.
class AwakeClock {
 public:
  explicit AwakeClock(double longest) : longest_(longest), last_(Clock::now()) {}
  double now() {
    const Clock::time_point time = Clock::now();
    seconds_ += std::min(Seconds(time - last_).count(), longest_);
    last_ = time;
    return seconds_;
  }

 private:
  double longest_;
  Clock::time_point last_;
  double seconds_ = 0;
};

enum class Status : char {
  running = 'r',
  parted = 'p',    // knows of a failure, or that rank 0 has finished: needs the store no more
  finished = 'f',  // has ended well
};

constexpr const char* kWaits = " | ";  // in a heartbeat, before what the rank waits in

// What a rank writes with every heartbeat: "17 1203 1203 r step", and behind kWaits in which operation it waits.
struct Heartbeat {
  int64_t count = 0;  // of heartbeats
  int64_t marks = 0;  // calls of at()
  int64_t step = 0;
  Status status = Status::running;
  std::string doing;
  std::string waits = {};  // empty: in none that is known

  std::string text() const {
    return cat(count, ' ', marks, ' ', step, ' ', static_cast<char>(status), ' ', doing,
               waits.empty() ? "" : kWaits + waits);
  }
  static std::optional<Heartbeat> parse(const std::string& text) {
    Heartbeat beat;
    char status = 0;
    std::istringstream in(text);
    if (!(in >> beat.count >> beat.marks >> beat.step >> status)) return std::nullopt;
    beat.status = static_cast<Status>(status);
    std::getline(in >> std::ws, beat.doing);
    beat.doing = printable(beat.doing);
    if (const size_t at = beat.doing.find(kWaits); at != std::string::npos) {
      beat.waits = beat.doing.substr(at + std::string(kWaits).size());
      beat.doing.resize(at);
    }
    return beat;
  }
  std::string place() const { return cat("at step ", step, " (", doing, ")"); }
  std::string place_and_wait() const { return waits.empty() ? place() : cat(place(), " in ", waits); }
};

const std::string failure_key = "watchdog/failure";

std::string heartbeat_key(int rank) {
  return cat("watchdog/", rank);
}

// "2 7 0 he said why"; the third is 1 when all are stuck.
std::string text_of_failure(const Failure& failure) {
  return cat(failure.rank, ' ', static_cast<int>(failure.code), ' ', failure.stuck ? 1 : 0, ' ', failure.sentence);
}

Failure failure_of(const std::string& text) {
  std::istringstream in(text);
  Failure failure{-1, ""};
  int code = 0, stuck = 0;
  std::string sentence;
  in >> failure.rank >> code >> stuck;
  failure.stuck = stuck == 1;
  std::getline(in >> std::ws, sentence);
  failure.sentence = printable(sentence);
  failure.code = code > 0 ? static_cast<ExitCode>(code) : ExitCode::rank_failed;
  return failure;
}

// The last way out, when even leaving hangs.
void leave_at_once(int) {
  _exit(static_cast<int>(ExitCode::rank_failed));
}

}  // namespace

struct Watchdog::State {
  State(std::unique_ptr<Store> own_store, int own_rank, int all_ranks, const WatchdogOptions& own_options)
      : store(std::move(own_store)), rank(own_rank), ranks(all_ranks), options(own_options), clock(longest_tick()) {
    const bool all = rank == 0 || ranks <= options.watch_all_up_to;
    for (int peer = 0; peer < (all ? ranks : 1); ++peer) {
      peers.push_back({.rank = peer});
      keys.push_back(heartbeat_key(peer));
    }
    keys.push_back(failure_key);
  }

  const std::unique_ptr<Store> store;
  const int rank, ranks;
  const WatchdogOptions options;
  const pid_t training_thread = gettid();

  // What the training thread does.
  std::atomic<int64_t> marks{0}, step{0};
  std::atomic<const char*> doing{"start"};
  std::atomic<bool> suspicious{false};
  std::atomic<double> stuck_step_s{0};

  // Between the training thread, the exchange thread, which talks to the store, and the guard, which sees when that one
  // hangs, and calls on_failure.
  std::mutex mutex;
  std::condition_variable changed;
  bool stopping = false;       // asked for by stop()
  std::optional<Failure> own;  // asked for by failed()
  bool silent = false;         // on_failure is not wanted any more
  bool ended = false;          // the exchange thread is about to end,
  bool hanging = false;        // or hangs in the store and is left to itself
  std::optional<Failure> failure;
  std::function<std::string()> report, waiting;
  std::function<std::string(int)> place_of;
  std::function<void(const Failure&)> before_leaving;
  std::atomic<int64_t> progress{0};  // of the exchange thread

  bool asked() const { return stopping || own.has_value(); }
  bool over() const { return ended || hanging; }
  double longest_tick() const { return std::max(2 * options.heartbeat_s, options.timeout_s / 4); }
  bool keeps_store() const { return rank == 0 && !options.agent_store; }

  // "rank 3", "ranks 3, 5"; of a mesh with several axes "rank 3 (data 1 of 2, tensor 1 of 2)".
  std::string names_of(const std::vector<int>& names, bool locked = false) {
    std::unique_lock lock(mutex, std::defer_lock);
    if (!locked) lock.lock();
    std::string text = names.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < names.size(); ++i) {
      const std::string place = place_of ? place_of(names[i]) : "";
      text += cat(i == 0 ? "" : ", ", names[i], place.empty() ? "" : cat(" (", place, ")"));
    }
    return text;
  }
  std::string waits_in() {
    const std::lock_guard lock(mutex);
    return waiting ? waiting() : "";
  }

  Failure keeper_gone(const std::string& how, bool locked = false) {
    return {options.agent_store ? -1 : 0, cat(options.agent_store ? "the launcher's agent" : names_of({0}, locked),
                                              ", which keeps the store, is gone: ", how)};
  }

  // ---- the rest is the exchange thread's ----

  struct Peer {
    int rank;
    std::optional<Heartbeat> beat = std::nullopt;
    double heard_at = 0;  // by the clock below: when a new heartbeat was read,
    double moved_at = 0;  // and when one after another call of at()
  };
  std::vector<Peer> peers;  // whom this rank watches; itself among them where it watches all
  std::vector<std::string> keys;
  AwakeClock clock;
  int64_t beats = 0;
  bool store_may_go = false;  // we leave, or rank 0 has finished

  void exchange() {
    std::optional<Failure> found;
    try {
      watch(found);
      if (keeps_store()) wait_for_others(found);
    } catch (const std::exception&) {
      if (!found && !store_may_go) found = keeper_gone("it has closed the connection");
    }
    std::lock_guard lock(mutex);
    failure = found;
    ended = true;
    changed.notify_all();
  }

  void watch(std::optional<Failure>& found) {
    store->set_once(failure_key, "");  // so that all keys can be read at once
    for (;;) {
      const Clock::time_point next = in(options.heartbeat_s);
      write(Status::running);
      found = read();
      if (found) {
        write(Status::parted);
        return;
      }
      if (!options.agent_store && rank != 0 && peers[0].beat && peers[0].beat->status == Status::finished) {
        store_may_go = true;
        write(Status::parted);
        return;
      }
      found = judge();
      std::unique_lock lock(mutex);
      if (!found) {
        changed.wait_until(lock, next, [&] { return asked(); });
        if (own) found = own;
      }
      const bool finished = stopping;
      lock.unlock();
      if (found) {
        found = as_told(store->set_once(failure_key, text_of_failure(*found)), found->rank == rank);
        write(Status::parted);
        return;
      }
      if (finished) {
        store_may_go = true;
        write(Status::finished);
        return;
      }
    }
  }

  void write(Status status) {
    progress.fetch_add(1);
    const Heartbeat beat{++beats, marks.load(), step.load(), status, doing.load(), waits_in()};
    store->set(heartbeat_key(rank), beat.text());
  }

  // Reads the others' heartbeats; the failure if one of them has found one.
  std::optional<Failure> read() {
    const auto texts = store->get_all(keys);
    progress.fetch_add(1);
    const double now = clock.now();
    for (size_t i = 0; i < peers.size(); ++i) {
      const auto beat = texts[i] ? Heartbeat::parse(*texts[i]) : std::nullopt;
      Peer& peer = peers[i];
      if (!beat || (peer.beat && peer.beat->count == beat->count)) continue;
      peer.heard_at = now;
      if (!peer.beat || peer.beat->marks != beat->marks) peer.moved_at = now;
      peer.beat = beat;
    }
    if (texts.back().value_or("").empty()) return std::nullopt;
    return as_told(*texts.back(), false);
  }

  // What all report; this rank speaks of itself where it is at fault and did not say so itself.
  Failure as_told(const std::string& text, bool own_words) const {
    Failure told = failure_of(text);
    if (told.rank == rank && !own_words) told.sentence = "the others have given this rank up: " + told.sentence;
    return told;
  }

  static bool takes_part(const Peer& peer) { return !peer.beat || peer.beat->status == Status::running; }
  double silence(const Peer& peer) { return clock.now() - peer.heard_at; }
  // With a rank that is gone count those that fell silent with it: its node, perhaps.
  bool silent_long(const Peer& peer) {
    const double limit = gone_after();
    return silence(peer) >= std::max(limit - 2 * options.heartbeat_s, limit / 2);
  }
  double gone_after() const {
    return suspicious.load() ? std::min(options.timeout_s, kSilentBeats * options.heartbeat_s) : options.timeout_s;
  }

  std::optional<Failure> judge() {
    if (auto gone = judge_gone()) return gone;
    auto stuck = options.stuck_s > 0 && static_cast<int>(peers.size()) == ranks ? judge_stuck() : std::nullopt;
    if (stuck) stuck->stuck = true;
    return stuck;
  }

  std::optional<Failure> judge_gone() {
    bool any = false;
    std::vector<int> gone;
    for (const Peer& peer : peers) {
      if (peer.rank == rank || !takes_part(peer) || !silent_long(peer)) continue;
      any = any || silence(peer) >= gone_after();
      gone.push_back(peer.rank);
    }
    if (!any) return std::nullopt;
    const auto& last = peers[static_cast<size_t>(gone[0])].beat;
    return Failure{gone[0], cat(names_of(gone), gone.size() == 1 ? " is" : " are", " gone: no heartbeat for ",
                                human_seconds(gone_after()), ", ", last ? "last " + last->place() : "nor before")};
  }

  // All stand still. Behind is who has the lowest step; with equal steps who alone does something else than the rest.
  std::optional<Failure> judge_stuck() {
    const double now = clock.now();
    double longest = 0;
    std::vector<const Peer*> still;
    for (const Peer& peer : peers) {
      if (!takes_part(peer)) continue;
      // One that is silent, too, may be gone instead.
      if (!peer.beat || silence(peer) > kSilentBeats * options.heartbeat_s) return std::nullopt;
      const double limit = peer.beat->doing == "step" && stuck_step_s > 0 ? stuck_step_s.load() : options.stuck_s;
      if (now - peer.moved_at < limit) return std::nullopt;
      longest = std::max(longest, limit);
      still.push_back(&peer);
    }
    if (still.empty()) return std::nullopt;

    const auto select = [&](const auto& condition) {
      std::vector<const Peer*> chosen;
      std::copy_if(still.begin(), still.end(), std::back_inserter(chosen), condition);
      return chosen;
    };
    int64_t lowest = still[0]->beat->step;
    for (const Peer* peer : still) lowest = std::min(lowest, peer->beat->step);
    auto behind = select([&](const Peer* peer) { return peer->beat->step == lowest; });
    if (behind.size() == still.size() && still.size() > 1) {
      behind = select([&](const Peer* peer) {
        return select([&](const Peer* other) { return other->beat->doing == peer->beat->doing; }).size() == 1;
      });
      if (behind.size() > 1 || still.size() == 2) behind.clear();
      // Those that the others wait for wait for nobody themselves.
      if (behind.empty()) behind = select([](const Peer* peer) { return peer->beat->waits.empty(); });
      if (behind.size() == still.size()) behind.clear();
    }

    if (ranks == 1) {
      return Failure{rank, cat("the training is stuck ", still[0]->beat->place(), ": it has not moved for ",
                               human_seconds(longest),
                               " (train.stuck_after_s); start it again to resume from its last "
                               "checkpoint")};
    }
    const std::string stand = cat("no rank has moved for ", human_seconds(longest));
    if (behind.empty()) {
      std::string places;
      for (const Peer* peer : still) {
        const std::string place = peer->beat->place_and_wait();
        if (places.find(place) == std::string::npos) places += (places.empty() ? "" : ", ") + place;
      }
      return Failure{-1, cat("the training is stuck: ", stand, ", and none is behind: ", places)};
    }
    std::vector<int> names;
    for (const Peer* peer : behind) names.push_back(peer->rank);
    const auto ahead = select([&](const Peer* peer) { return !std::count(names.begin(), names.end(), peer->rank); });
    return Failure{
        names[0],
        cat(names_of(names), names.size() == 1 ? " is" : " are", " stuck ", behind[0]->beat->place(), ": ", stand,
            ahead.empty() ? "" : cat(", rank ", ahead[0]->rank, " waits ", ahead[0]->beat->place_and_wait()))};
  }

  // The store ends with this rank. The others have read why when they need it no more.
  void wait_for_others(const std::optional<Failure>& found) {
    const Clock::time_point end = in(options.farewell_s);
    while (Clock::now() < end) {
      write(found ? Status::parted : Status::finished);
      read();
      const bool waits = std::any_of(peers.begin(), peers.end(), [&](const Peer& peer) {
        const bool lost = (found && peer.rank == found->rank) || silent_long(peer);
        return peer.rank != rank && takes_part(peer) && !lost;
      });
      if (!waits) return;
      std::this_thread::sleep_for(Seconds(options.heartbeat_s / 8));
    }
  }

  // ---- the guard ----

  // Returns when the exchange thread has ended or hangs; the failure, if on_failure is wanted.
  std::optional<Failure> guard() {
    AwakeClock awake(longest_tick());
    double since = 0;
    int64_t seen = -1;
    std::unique_lock lock(mutex);
    while (!over()) {
      changed.wait_for(lock, Seconds(options.heartbeat_s));
      const double now = awake.now();
      if (const int64_t now_at = progress.load(); now_at != seen) {
        seen = now_at;
        since = now;
      } else if (now - since >= options.timeout_s && !over()) {
        failure = keeper_gone("no answer for " + human_seconds(options.timeout_s), /*locked=*/true);
        hanging = true;
        changed.notify_all();
      }
    }
    return silent ? std::nullopt : failure;
  }
};

Watchdog::Watchdog(std::unique_ptr<Store> store, int rank, int ranks, const WatchdogOptions& options,
                   std::function<void(const Failure&)> on_failure)
    : exceptions_(std::uncaught_exceptions()) {
  require(options.heartbeat_s > 0 && options.timeout_s >= 2 * options.heartbeat_s, ExitCode::usage,
          "the watchdog's timeout (", options.timeout_s, " s) must be at least twice its heartbeat (",
          options.heartbeat_s, " s)");
  require(options.stuck_s >= 0 && options.stuck_step_s >= 0 && options.farewell_s >= 0, ExitCode::usage,
          "the watchdog's times must not be negative");
  state_ = std::make_shared<State>(std::move(store), rank, ranks, options);
  state_->stuck_step_s.store(options.stuck_step_s);
  prepare_thread_stack();
  if (!on_failure) on_failure = [this](const Failure& failure) { leave(failure); };
  exchange_ = std::thread([state = state_] { state->exchange(); });
  guard_ = std::thread([state = state_, on_failure = std::move(on_failure)] {
    if (const auto failure = state->guard()) on_failure(*failure);
  });
}

Watchdog::~Watchdog() {
  if (std::uncaught_exceptions() > exceptions_) failed("it ended by an error");
  stop();
}

void Watchdog::at(int64_t step, const char* doing) {
  state_->step.store(step, std::memory_order_relaxed);
  state_->doing.store(doing, std::memory_order_relaxed);
  state_->marks.fetch_add(1, std::memory_order_relaxed);
}

void Watchdog::set_report(std::function<std::string()> report) {
  std::lock_guard lock(state_->mutex);
  state_->report.swap(report);
}

void Watchdog::set_mesh(std::function<std::string(int rank)> place_of, std::function<std::string()> waiting) {
  // What was there before may take long to go, and goes without the lock.
  std::lock_guard lock(state_->mutex);
  state_->place_of.swap(place_of);
  state_->waiting.swap(waiting);
}

void Watchdog::set_before_leaving(std::function<void(const Failure&)> call) {
  std::lock_guard lock(state_->mutex);
  state_->before_leaving = std::move(call);
}

void Watchdog::suspect() {
  state_->suspicious.store(true);
}

void Watchdog::limit_steps(double seconds) {
  state_->stuck_step_s.store(seconds);
}

Failure Watchdog::failed(const std::string& sentence, ExitCode code) {
  State& state = *state_;
  const Failure own{state.rank, cat("rank ", state.rank, " failed: ", sentence), code};
  if (!guard_.joinable()) return own;
  std::unique_lock lock(state.mutex);
  state.silent = true;
  if (!state.over()) state.own = own;
  state.changed.notify_all();
  state.changed.wait_until(lock, in(state.options.farewell_s + 1), [&] { return state.over(); });
  return state.ended && state.failure ? *state.failure : own;
}

void Watchdog::stop() {
  if (!guard_.joinable()) return;
  {
    std::unique_lock lock(state_->mutex);
    state_->silent = true;
    state_->stopping = true;
    state_->changed.notify_all();
    if (guard_.get_id() == std::this_thread::get_id()) return;  // by on_failure: the destructor does the rest
    state_->changed.wait_until(lock, in(state_->options.farewell_s + 1), [&] { return state_->over(); });
    if (!state_->ended) {
      state_->hanging = true;
      state_->changed.notify_all();
      exchange_.detach();
    }
  }
  if (exchange_.joinable()) exchange_.join();
  guard_.join();
}

void Watchdog::leave(const Failure& failure) {
  std::function<void(const Failure&)> before;
  {
    // Nobody holds it for long.
    std::lock_guard lock(state_->mutex);
    before = state_->before_leaving;
  }
  if (before) before(failure);
  // What follows may hang, in a lock of the training thread or in a pipe that nobody reads. Or it may crash, in a
  // corrupt stack.
  constexpr unsigned limit_s = 5;
  struct sigaction action {};
  action.sa_handler = leave_at_once;
  sigset_t alarm_signal;
  sigemptyset(&alarm_signal);
  sigaddset(&alarm_signal, SIGALRM);
  for (const int number : {SIGALRM, SIGSEGV, SIGBUS}) sigaction(number, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &alarm_signal, nullptr);
  alarm(limit_s);

  const bool alone = state_->ranks == 1;
  const std::string who = alone ? "this process" : cat("rank ", state_->rank);
  log::error(alone ? "" : who + " leaves: ", failure.sentence);
  if (gettid() != state_->training_thread) {
    const std::vector<std::string> calls = thread_stack(state_->training_thread, 2);
    log::info("the training thread of ", who, calls.empty() ? " does not answer" : " is in:");
    for (const std::string& call : calls) log::info("  ", call);
  }
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  if (const std::string waits = lock && state_->waiting ? state_->waiting() : ""; !waits.empty()) {
    log::info("rank ", state_->rank, " waits in ", waits);
  }
  if (lock && state_->report) log::info("rank ", state_->rank, ": ", state_->report());
  std::cout.flush();
  std::fflush(nullptr);
  _exit(static_cast<int>(failure.code));
}

}  // namespace hrm::parallel
