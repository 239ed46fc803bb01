#pragma once
// How the ranks of a training notice that another one is gone or stuck: a thread writes heartbeats into the ranks'
// store and reads those of the others, even if the training thread hangs.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "hrm/base/error.h"
#include "hrm/parallel/rendezvous.h"

namespace hrm::parallel {

struct WatchdogOptions {
  double heartbeat_s = 1;
  double timeout_s = 60;     // a rank without a heartbeat, or a store without an answer, for so long is gone
  double stuck_s = 1800;     // no rank has called at() for so long; longer than any evaluation. 0: never
  double stuck_step_s = 0;   // as limit_steps()
  double farewell_s = 5;     // the longest that a rank that leaves waits until the others know
  bool agent_store = false;  // as in Launch
  int watch_all_up_to = 64;  // with more ranks, rank 0 watches all and the others watch rank 0: one store for all
};

struct Failure {
  int rank;  // the (lowest) one at fault; -1: none can be told
  std::string sentence;
  // The code that all ranks end with: that of the rank at fault if it gave one. So a launcher does not restart what
  // will fail again.
  ExitCode code = ExitCode::rank_failed;
  bool stuck = false;  // all ranks are alive, and none moves
};

// Every rank makes one, within timeout_s of each other and after they have met. A rank is gone when its heartbeats have
// stopped. The training is stuck when heartbeats continue but no rank calls at() any more; ranks wait for each other,
// so one that stops soon stops all. Time in which this process was stopped (SIGSTOP) does not count. When it continues,
// it first asks whether the others have given it up.
//
// Whoever notices first writes it into the store, and all ranks report that same failure. If the owner of the store
// (rank 0, or torchrun's agent) is gone, each rank notices that by itself.
class Watchdog {
 public:
  // Called by the training thread, which outlives the object. `store`: a connection only for the watchdog. `on_failure`
  // is called at most once, from a thread of the watchdog, and must not destroy it; empty: leave(). A single rank
  // (make_local_store) is watched for being stuck. Throws Error (usage) for intervals that make no sense.
  Watchdog(std::unique_ptr<Store> store, int rank, int ranks, const WatchdogOptions& options,
           std::function<void(const Failure&)> on_failure = {});
  // As stop(); as failed() during an exception.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // What the training thread does now: "step", "evaluation"; a string that lives forever. Cheap enough for every step,
  // from any thread. Every call is a sign of life, a repeated one, too.
  void at(int64_t step, const char* doing);

  // What leave() logs beside the stack, such as the collective that a GPU is in. Called from any thread, must not wait.
  void set_report(std::function<std::string()> report);

  // How messages name ranks and waits in a mesh of several axes. place_of: where a rank is, such as "data 1 of 2,
  // tensor 0 of 2", or empty. waiting: in which operation this rank waits, such as "an all-reduce: tensor axis, rank 0
  // of 2 (global rank 2)", or empty; goes along with every heartbeat. Called from any thread, must not wait.
  void set_mesh(std::function<std::string(int rank)> place_of, std::function<std::string()> waiting);

  // Called by leave() first of all, before its own time counts; must end in bounded time, and not throw.
  void set_before_leaving(std::function<void(const Failure&)> call);

  // A connection to another rank has broken, without telling which rank. From now on a rank without a heartbeat for two
  // and a half intervals is gone, before timeout_s. on_failure follows within a few heartbeats if there is one.
  void suspect();

  // This rank leaves because of an error: tells the others, and returns what all ranks report. That is another rank's
  // failure if one came first, of which ours may be but the consequence. on_failure will not be called any more. Rank
  // 0, as it takes the store along, waits until the others have read it, at most farewell_s.
  Failure failed(const std::string& sentence, ExitCode code = ExitCode::rank_failed);

  // From now on ranks whose last call of at() said "step" are stuck after so long, instead of stuck_s; 0: as stuck_s.
  void limit_steps(double seconds);

  // The training has ended well; the others continue without this rank. on_failure will not be called any more. Takes
  // no time, except one heartbeat for rank 0, which owns the store (the others then stop watching); at most farewell_s.
  void stop();

  // For a failure while the training thread hangs in a collective. Logs the failure and the training thread's stack,
  // and ends the process with the failure's code, without destructors (those of NCCL and Gloo may hang). Takes at most
  // a few seconds, and those of set_before_leaving. From any thread.
  [[noreturn]] void leave(const Failure& failure);

 private:
  struct State;
  // The exchange thread may hang in a store that does not answer, and outlive this object then.
  std::shared_ptr<State> state_;
  int exceptions_;  // under way when this was made
  std::thread exchange_;
  std::thread guard_;
};

}  // namespace hrm::parallel
