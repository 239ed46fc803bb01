#pragma once
// Where the ranks of one training meet: a small key-value store, served by rank 0 or by torchrun's agent.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/parallel/comm.h"
#include "hrm/parallel/launch.h"

namespace hrm::parallel {

// A connection of its own to the store. Safe to use from several threads, but a wait keeps the others waiting. Throws
// Error (ExitCode::rank_failed) when the connection breaks; a server that is stopped or cut off makes all calls hang.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Nothing when no one has set it.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // As get(), of several keys; in few round trips once all are set.
  virtual std::vector<std::optional<std::string>> get_all(const std::vector<std::string>& keys) = 0;
  // Sets it if it is unset or ""; returns the current value. If several ranks do so at the same time, one succeeds.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  // Waits for it; nullopt if it has not come within this many seconds.
  virtual std::optional<std::string> wait(const std::string& key, double seconds) = 0;
};

// For one rank alone, in this process's memory. From any thread.
std::unique_ptr<Store> make_local_store();

// Notices at once when the process of the next rank (for the last rank: rank 0) is gone, by the connection to it, even
// if the training hangs: NCCL does not notice. It is a thread that waits for a message which comes only at the end.
class NeighbourWatch {
 public:
  // Without part(): as if the training had not ended well.
  virtual ~NeighbourWatch() = default;
  // All ranks have come to the end: from now on nobody is missed. Waits for the next rank to say the same.
  virtual void part() = 0;
};

// What all ranks of a job have in common, besides what their launcher says. Two jobs that are given one port differ
// here.
struct JobName {
  std::string run = {};     // "train runs/first"
  std::string folder = {};  // the run's, without relative parts; compared between processes of one machine
};

struct RendezvousOptions {
  double meet_timeout_s = 300;  // for all ranks to come
  double timeout_s = 120;       // for one operation between them
  std::string interface = {};   // network interface for gloo, e.g. "eth0"; empty: the one that leads to the rendezvous
  JobName job = {};
};

class Rendezvous {
 public:
  // Rank 0 opens the store unless the launcher's agent does, and writes there whose it is. All ranks wait until
  // everyone is there. A rank that meets another job's store changes nothing in it. Throws Error
  // (ExitCode::rank_failed) within meet_timeout_s. The sentence names the ranks that have not come, the other job, or
  // the address that cannot be reached, is in use or does not answer like a store.
  Rendezvous(const Launch& launch, const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // A new connection. Keys of another attempt of the same job are not seen.
  std::unique_ptr<Store> connect() const;

  // All ranks of the launch, for CPU tensors (Gloo of LibTorch). Once.
  std::unique_ptr<Comm> make_gloo_comm();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// `gloo`: the Comm of Rendezvous::make_gloo_comm, which must live longer. `on_broken` is called at most once, from
// another thread.
std::unique_ptr<NeighbourWatch> watch_neighbour(Comm& gloo, std::function<void()> on_broken);

}  // namespace hrm::parallel
