#include "hrm/parallel/rendezvous.h"

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "parallel/gloo_comm.h"
#include "parallel/store.h"
#include "parallel/store_client.h"

namespace hrm::parallel {
namespace {

// The store has answered before: who does not reach it now will not by waiting.
constexpr double kReconnectS = 10;

std::vector<uint8_t> bytes_of_text(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of_bytes(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

class PrefixedStore : public Store {
 public:
  PrefixedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(key, bytes_of_text(value)); });
  }

  std::optional<std::string> get(const std::string& key) override {
    return guarded([&]() -> std::optional<std::string> {
      if (!store_->check({key})) return std::nullopt;
      return text_of_bytes(store_->get(key));
    });
  }

  std::vector<std::optional<std::string>> get_all(const std::vector<std::string>& keys) override {
    std::vector<std::optional<std::string>> values;
    // check() is whether all are there, and multiGet() waits for those that are not.
    if (guarded([&] { return store_->check(keys); })) {
      for (const auto& value : guarded([&] { return store_->multiGet(keys); }))
        values.emplace_back(text_of_bytes(value));
    } else {
      for (const std::string& key : keys) values.push_back(get(key));
    }
    return values;
  }

  std::string set_once(const std::string& key, const std::string& value) override {
    return guarded([&] { return text_of_bytes(store_->compareSet(key, {}, bytes_of_text(value))); });
  }

  std::optional<std::string> wait(const std::string& key, double seconds) override {
    return guarded([&]() -> std::optional<std::string> {
      try {
        store_->wait({key}, milliseconds(seconds));
      } catch (const c10::DistStoreError&) {
        if (!store_->check({key})) return std::nullopt;
      }
      return text_of_bytes(store_->get(key));
    });
  }

 private:
  template <class F>
  static auto guarded(const F& f) -> decltype(f()) {
    try {
      return f();
    } catch (const std::exception& error) {
      fail(ExitCode::rank_failed, "the ranks' store does not answer (", first_line(error),
           "); rank 0, or the launcher's agent, is gone");
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

// LibTorch writes, with a stack of calls, of every connection that breaks or is refused; we throw a sentence instead.
// Its own variable brings its messages back.
void quiet_warnings() {
  constexpr int fatal_only = 3;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = fatal_only;
  }
}

std::string key_of(int rank) {
  return cat("here/", rank);
}

// Whose store it is: written by rank 0, read by all others before they write anything.
constexpr const char* kJobKey = "hrm/job";
constexpr std::chrono::milliseconds kBetweenLooks{50}, kBeforeReturn{200};

std::string random_text() {
  std::random_device source;
  std::ostringstream out;
  out << std::hex << std::setfill('0');
  for (int i = 0; i < 4; ++i) out << std::setw(8) << source();
  return out.str();
}

// "process 17 on node3".
std::string this_process() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return cat("process ", getpid(), " on ", host);
}

// The same for all processes of a machine until it is started again; empty when unknown.
std::string this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

struct Job {
  std::string random = {};  // of rank 0
  std::string run = {}, folder = {}, launcher_job = {}, attempt = {}, process = {}, machine = {};
  int ranks = 0;
  int64_t user = 0;
};

// What this process would write as rank 0.
Job own_job(const Launch& launch, const JobName& name) {
  return {.random = random_text(),
          .run = name.run,
          .folder = name.folder,
          .launcher_job = launch.job,
          .attempt = launch.attempt,
          .process = this_process(),
          .machine = this_machine(),
          .ranks = launch.ranks,
          .user = static_cast<int64_t>(getuid())};
}

std::string text_of(const Job& job) {
  const nlohmann::json json = {{"random", job.random},   {"run", job.run},          {"folder", job.folder},
                               {"ranks", job.ranks},     {"job", job.launcher_job}, {"attempt", job.attempt},
                               {"process", job.process}, {"machine", job.machine},  {"user", job.user}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Nothing where it is not what text_of() writes: another version of this program did.
std::optional<Job> job_of(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    const auto text_at = [&](const char* name) { return json.at(name).get<std::string>(); };
    return Job{.random = text_at("random"),
               .run = text_at("run"),
               .folder = text_at("folder"),
               .launcher_job = text_at("job"),
               .attempt = text_at("attempt"),
               .process = text_at("process"),
               .machine = text_at("machine"),
               .ranks = json.at("ranks").get<int>(),
               .user = json.at("user").get<int64_t>()};
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

bool same_job(const Job& a, const Job& b) {
  // A plain environment gives a name on some nodes alone.
  const bool other_launch = !a.launcher_job.empty() && !b.launcher_job.empty() && a.launcher_job != b.launcher_job;
  // Other machines may have other users and folders.
  const bool one_machine = !a.machine.empty() && a.machine == b.machine;
  const bool other_place = one_machine && (a.folder != b.folder || a.user != b.user);
  return a.run == b.run && a.ranks == b.ranks && !other_launch && !other_place;
}

std::string describe_job(const Job& job) {
  return cat(job.run.empty() ? "a job" : "'" + printable(job.run) + "'", " of ", job.ranks, " ranks",
             job.folder.empty() ? "" : " in " + printable(job.folder));
}

}  // namespace

std::unique_ptr<Store> make_local_store() {
  return std::make_unique<PrefixedStore>(c10::make_intrusive<c10d::HashStore>());
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::string first_line(const std::exception& error) {
  std::string text = error.what();
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error)) text = c10_error->what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  // "[/some/file.cpp:123] the message"
  if (const size_t end = text.find("] "); !text.empty() && text[0] == '[' && end != std::string::npos) {
    text = text.substr(end + 2);
  }
  return printable(text);
}

struct Rendezvous::State {
  using Clock = StoreClient::Clock;

  Launch launch;
  RendezvousOptions options;
  std::string prefix;
  Job own;
  c10::intrusive_ptr<c10d::TCPStore> server;  // of rank 0, where no agent has one
  c10::intrusive_ptr<StoreClient> store;
  std::string random;  // of the job that we take part in

  std::string where() const { return cat(launch.host, ":", launch.port); }
  std::string job_key() const { return prefix + "/job"; }

  void listen() {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(launch.port);
    tcp.isServer = true;
    tcp.waitWorkers = false;  // we wait ourselves, to know who is missing
    tcp.timeout = milliseconds(options.meet_timeout_s);
    try {
      // It also connects to itself: by this machine's own address, where nobody else can answer.
      server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", tcp);
      announce(*server);
    } catch (const std::exception& error) {
      fail(ExitCode::rank_failed, "rank 0 cannot listen on ", where(), " (", first_line(error),
           "); set MASTER_PORT to a free port");
    }
  }

  void announce(c10d::Store& to) const {
    to.set(job_key(), bytes_of_text(own.random));
    to.set(kJobKey, bytes_of_text(text_of(own)));
  }

  c10::intrusive_ptr<StoreClient> open(Clock::time_point end, double patience_s) const {
    try {
      return c10::make_intrusive<StoreClient>(launch.host, launch.port, end);
    } catch (const StoreError& error) {
      fail_to_open(error, patience_s);
    }
  }

  [[noreturn]] void fail_to_open(const StoreError& error, double patience_s) const {
    const std::string rank = cat("rank ", launch.rank), why = printable(error.what());
    switch (error.trouble()) {
      case StoreTrouble::unreachable:
        if (server) {
          fail(ExitCode::rank_failed, "rank 0 listens on port ", launch.port, ", but finds nobody at ", where(), " (",
               why, "); is MASTER_ADDR this node?");
        }
        fail(ExitCode::rank_failed, rank, " found nobody at ", where(), " (", why,
             "); is rank 0 running, and is MASTER_ADDR its node?");
      case StoreTrouble::closed:
        fail(ExitCode::rank_failed, rank, " found no store at ", where(), ": each connection is closed there (", why,
             "); another program may have this port: set MASTER_PORT to a free one");
      case StoreTrouble::silent:
        fail(ExitCode::rank_failed, rank, " found no store at ", where(), ": nothing is answered there for ",
             patience_s, " s; another program may have this port: set MASTER_PORT to a free one");
      case StoreTrouble::foreign:
        break;
    }
    fail(ExitCode::rank_failed, rank, " found no store at ", where(), ": ", why,
         "; another program has this port: set MASTER_PORT to a free one");
  }

  [[noreturn]] void fail_as_stranger(const std::string& whose) const {
    fail(ExitCode::rank_failed, "rank ", launch.rank, " met the store of another job at ", where(), ": of ", whose,
         ", while this is ", describe_job(own), "; set MASTER_PORT to a free port for one of the two");
  }

  // What is in the store at present, if it is for us. Throws where it belongs to others.
  std::optional<Job> look(StoreClient& client) const {
    if (!client.check({kJobKey})) return {};
    const std::optional<Job> job = job_of(text_of_bytes(client.get(kJobKey)));
    if (!job) fail_as_stranger("another version of this program");
    if (!same_job(*job, own)) fail_as_stranger(cat(describe_job(*job), " (", printable(job->process), ")"));
    if (job->attempt != launch.attempt) return {};  // an earlier one; its successor will come
    return job;
  }

  // Finds the store, and sees that it is our job's before anything is written there.
  void enter(Clock::time_point end) {
    while (true) {
      store = open(end, options.meet_timeout_s);
      try {
        if (launch.rank == 0 && !server) {
          if (const auto job = look(*store); job && job->random != own.random) fail_as_second(*job);
          announce(*store);
        }
        std::optional<Job> job = look(*store);
        for (; !job && Clock::now() < end; job = look(*store)) std::this_thread::sleep_for(kBetweenLooks);
        if (job && launch.rank == 0 && job->random != own.random) fail_as_second(*job);
        if (!job) fail_without_job();
        random = job->random;
        return;
      } catch (const StoreError& error) {
        // The store of an earlier attempt ends while we look at it.
        const bool may_change = error.trouble() == StoreTrouble::closed;
        if (!may_change || Clock::now() + kBeforeReturn >= end) fail_to_open(error, options.meet_timeout_s);
      }
      std::this_thread::sleep_for(kBeforeReturn);
    }
  }

  [[noreturn]] void fail_without_job() const {
    if (server) {
      fail(ExitCode::rank_failed, "rank 0 listens on port ", launch.port, ", but ", where(),
           " leads to another store; is MASTER_ADDR this node?");
    }
    fail(ExitCode::rank_failed, "after ", options.meet_timeout_s, " s rank 0 has not come to the store at ", where(),
         "; is it running, or is this another program's store? set MASTER_PORT to a free port then");
  }

  [[noreturn]] void fail_as_second(const Job& job) const {
    fail(ExitCode::rank_failed, "rank ", launch.rank, " of this job has come to ", where(),
         " already: ", printable(job.process), "; is it started twice? give each start a MASTER_PORT of its own");
  }

  void meet(Clock::time_point end) {
    PrefixedStore own_store(c10::make_intrusive<c10d::PrefixStore>(prefix, store));
    // Of two starts of one job the later one leaves.
    const std::string mine = text_of(own), there = own_store.set_once(key_of(launch.rank), mine);
    if (there != mine) fail_as_second(job_of(there).value_or(Job{.process = "another process"}));
    for (int rank = 0; rank < launch.ranks; ++rank) {
      const double left = std::chrono::duration<double>(end - Clock::now()).count();
      if (own_store.wait(key_of(rank), std::max(left, 0.01))) continue;
      std::string missing;
      for (int other = rank; other < launch.ranks; ++other) {
        if (!own_store.get(key_of(other))) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
      }
      fail(ExitCode::rank_failed, "after ", options.meet_timeout_s, " s these of ", launch.ranks,
           " ranks have not come to ", launch.host, ":", launch.port, ": ", missing);
    }
  }

  // Of a rank that has met the others.
  c10::intrusive_ptr<StoreClient> open_again() const {
    const double patience_s = std::min(options.timeout_s, kReconnectS);
    auto client = open(Clock::now() + milliseconds(patience_s), patience_s);
    try {
      if (!client->check({job_key()}) || text_of_bytes(client->get(job_key())) != random) {
        fail(ExitCode::rank_failed, "the ranks' store at ", where(), " is another job's now; rank 0 is gone");
      }
    } catch (const StoreError& error) {
      fail_to_open(error, patience_s);
    }
    return client;
  }
};

Rendezvous::Rendezvous(const Launch& launch, const RendezvousOptions& options)
    : state_(std::make_unique<State>(
          State{launch, options, "hrm/" + launch.attempt, own_job(launch, options.job), nullptr, nullptr, ""})) {
  quiet_warnings();
  const auto end = StoreClient::Clock::now() + milliseconds(options.meet_timeout_s);
  if (launch.rank == 0 && !launch.agent_store) state_->listen();
  state_->enter(end);
  state_->meet(end);
  state_->store->set_limit(milliseconds(options.timeout_s));
}

Rendezvous::~Rendezvous() = default;

std::unique_ptr<Store> Rendezvous::connect() const {
  auto client = state_->open_again();
  // The watchdog sees sooner that nothing is answered, and says so.
  client->set_limit(milliseconds(2 * state_->options.timeout_s));
  return std::make_unique<PrefixedStore>(c10::make_intrusive<c10d::PrefixStore>(state_->prefix + "/user", client));
}

std::unique_ptr<Comm> Rendezvous::make_gloo_comm() {
  return parallel::make_gloo_comm(c10::make_intrusive<c10d::PrefixStore>(state_->prefix + "/gloo", state_->store),
                                  state_->launch, state_->options);
}

}  // namespace hrm::parallel
