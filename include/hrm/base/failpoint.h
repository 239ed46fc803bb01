#pragma once
// Failpoints: named places at which HRM_FAIL lets the program fail on purpose, so that tests can prove what is left
// afterwards. Always compiled in; without HRM_FAIL a place costs one load and a branch that is never taken.
//
//   HRM_FAIL=<name>:<count>:<action>[,...]   e.g. HRM_FAIL=file.fsync:3:kill,file.write:1+:enospc
//
// count: the n-th time that the place is reached ("3"), or from then on each time ("3+"). `hrm_train doctor
// --failpoints` lists names and actions.

#include <string>
#include <vector>

namespace hrm {

enum class Failpoint : int {
  file_open,
  file_reserve,
  file_write,
  file_fsync,
  file_close,
  file_rename,
  directory_create,
  directory_fsync,
  checkpoint_snapshot,
  checkpoint_write,
  checkpoint_commit,
  checkpoint_prune,
  checkpoint_find,
  checkpoint_quarantine,
  checkpoint_load,
  step_begin,
  step_gradient,
  step_end,
  collective_start,
  collective_tensor,
  collective_shard,
  collective_replica,
  collective_data,
  evaluation_begin,
  evaluation_batch,
  metrics_write,
  tensorboard_write,
  number,
};

namespace failpoint {

// What the place itself has to do; all other actions are done inside hit().
enum class Action { none, eio, enospc, eintr, short_write, nan, spike, flip };

struct Info {
  const char* name;
  const char* where;    // for people
  const char* actions;  // beyond kill, throw and sleep, which every place knows: "", "eio enospc", "nan"
};

// In the order of Failpoint.
const std::vector<Info>& list();

// Arms by a text in the form of HRM_FAIL; empty: disarms all. Throws Error(usage) for names, counts or actions that do
// not exist.
void arm(const std::string& specification);

// What arm() was given; empty: nothing is armed.
std::string armed_text();

namespace detail {
extern bool armed;
Action reached(Failpoint point);
}  // namespace detail

// Whether anything is armed: for what has to be set up beforehand.
inline bool armed() {
  return detail::armed;
}

// The place `point` is reached. May kill the process (SIGKILL), throw Error(unexpected) or sleep;
// otherwise returns what the place has to do. Thread-safe, but for arm() at the same time.
inline Action hit(Failpoint point) {
  return detail::armed ? detail::reached(point) : Action::none;
}

// The errno value that an action stands for; 0: none.
int errno_of(Action action);

}  // namespace failpoint
}  // namespace hrm
