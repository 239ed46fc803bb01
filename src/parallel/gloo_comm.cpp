#include "parallel/gloo_comm.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "hrm/base/error.h"
#include "parallel/store.h"

namespace hrm::parallel {
namespace {

// The address of the interface that leads to `host`: what the kernel would send from. Empty when it knows no way.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;  // connect() of a datagram socket sends nothing
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  std::string address;
  for (const addrinfo* at = found; at != nullptr && address.empty(); at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    char text[NI_MAXHOST];
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      address = text;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return address;
}

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

// Runs a step of Gloo; its exceptions (a peer that has closed its connection, a time limit) become ours.
template <class F>
void run(int rank, const char* what, const F& f) {
  try {
    f();
  } catch (const std::exception& error) {
    fail(ExitCode::rank_failed, "rank ", rank, " lost another rank in ", what, " (", first_line(error), ")");
  }
}

c10d::ReduceOp op_of(Reduction reduction) {
  return reduction == Reduction::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

class GlooPending : public Pending {
 public:
  GlooPending(int rank, c10::intrusive_ptr<c10d::Work> work) : rank_(rank), work_(std::move(work)) {}
  void wait() override {
    run(rank_, "an all-reduce", [&] { work_->wait(); });
  }

 private:
  int rank_;
  c10::intrusive_ptr<c10d::Work> work_;
};

class GlooComm : public Comm {
 public:
  GlooComm(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::string where)
      : group_(std::move(group)), where_(std::move(where)) {}

  int rank() const override { return group_->getRank(); }
  int ranks() const override { return group_->getSize(); }
  std::string describe() const override { return cat(ranks(), " ranks over gloo, ", where_); }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    std::vector<at::Tensor> tensors{tensor};
    c10::intrusive_ptr<c10d::Work> work;
    run(rank(), "an all-reduce", [&] { work = group_->allreduce(tensors, {op_of(reduction)}); });
    return std::make_unique<GlooPending>(rank(), std::move(work));
  }

  void all_gather(const at::Tensor& out, const at::Tensor& in) override {
    at::Tensor to = out, from = in;
    run(rank(), "an all-gather", [&] { group_->_allgather_base(to, from)->wait(); });
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run(rank(), "a broadcast", [&] { group_->broadcast(tensors, options)->wait(); });
  }

  void barrier() override {
    run(rank(), "a barrier", [&] { group_->barrier()->wait(); });
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::string where_;
};

}  // namespace

std::unique_ptr<Comm> make_gloo_comm(const c10::intrusive_ptr<c10d::Store>& store, const Launch& launch,
                                     const RendezvousOptions& options) {
  const auto gloo = c10d::ProcessGroupGloo::Options::create(milliseconds(options.timeout_s));
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string interface = !options.interface.empty() ? options.interface : variable != nullptr ? variable : "";
  std::string where = interface;
  try {
    if (!interface.empty()) {
      gloo->devices = {c10d::ProcessGroupGloo::createDeviceForInterface(interface)};
    } else {
      where = launch.nodes > 1 ? address_towards(launch.host, launch.port) : "127.0.0.1";
      require(!where.empty() && !(launch.nodes > 1 && is_loopback(where)), ExitCode::environment, "rank ", launch.rank,
              " would meet the others at ", where.empty() ? "no address" : where, ", the way to ", launch.host,
              "; name the network interface: parallel.interface=eth0");
      gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(where)};
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ExitCode::environment, "no connections can be made by '", where, "' (", first_line(error),
         "); name another network interface: parallel.interface=eth0");
  }
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  run(launch.rank, "the first connection",
      [&] { group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, launch.rank, launch.ranks, gloo); });
  return std::make_unique<GlooComm>(std::move(group), where);
}

}  // namespace hrm::parallel
