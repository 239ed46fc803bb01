#include "hrm/parallel/rendezvous.h"

#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "parallel/gloo_comm.h"
#include "parallel/store.h"

namespace hrm::parallel {
namespace {

using Clock = std::chrono::steady_clock;

// The store has answered before: who does not reach it now will not by waiting. TCPStore takes twice as long at worst.
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
  Launch launch;
  RendezvousOptions options;
  std::string prefix;
  c10::intrusive_ptr<c10d::TCPStore> store;  // of rank 0: holds the server

  c10::intrusive_ptr<c10d::TCPStore> open(bool server, double patience_s) const {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<uint16_t>(launch.port);
    tcp.isServer = server;
    tcp.waitWorkers = false;  // we wait ourselves, to know who is missing
    tcp.timeout = milliseconds(patience_s);
    try {
      return c10::make_intrusive<c10d::TCPStore>(launch.host, tcp);
    } catch (const std::exception& error) {
      const std::string where = cat(launch.host, ":", launch.port);
      if (server) {
        fail(ExitCode::rank_failed, "rank 0 cannot listen on ", where, " (", first_line(error),
             "); set MASTER_PORT to a free port");
      }
      fail(ExitCode::rank_failed, "rank ", launch.rank, " found nobody at ", where, " (", first_line(error),
           "); is rank 0 running, and is MASTER_ADDR its node?");
    }
  }

  void meet() {
    PrefixedStore own(c10::make_intrusive<c10d::PrefixStore>(prefix, store));
    own.set(key_of(launch.rank), "1");
    const auto end = Clock::now() + milliseconds(options.meet_timeout_s);
    for (int rank = 0; rank < launch.ranks; ++rank) {
      const double left = std::chrono::duration<double>(end - Clock::now()).count();
      if (own.wait(key_of(rank), std::max(left, 0.01))) continue;
      std::string missing;
      for (int other = rank; other < launch.ranks; ++other) {
        if (!own.get(key_of(other))) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
      }
      fail(ExitCode::rank_failed, "after ", options.meet_timeout_s, " s these of ", launch.ranks,
           " ranks have not come to ", launch.host, ":", launch.port, ": ", missing);
    }
  }
};

Rendezvous::Rendezvous(const Launch& launch, const RendezvousOptions& options)
    : state_(std::make_unique<State>(State{launch, options, "hrm/" + launch.attempt, nullptr})) {
  quiet_warnings();
  state_->store = state_->open(launch.rank == 0 && !launch.agent_store, options.meet_timeout_s);
  state_->meet();
}

Rendezvous::~Rendezvous() = default;

std::unique_ptr<Store> Rendezvous::connect() const {
  return std::make_unique<PrefixedStore>(c10::make_intrusive<c10d::PrefixStore>(
      state_->prefix + "/user", state_->open(/*server=*/false, std::min(state_->options.timeout_s, kReconnectS))));
}

std::unique_ptr<Comm> Rendezvous::make_gloo_comm() {
  return parallel::make_gloo_comm(c10::make_intrusive<c10d::PrefixStore>(state_->prefix + "/gloo", state_->store),
                                  state_->launch, state_->options);
}

}  // namespace hrm::parallel
