#include "parallel/gloo_comm.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
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

// Which rank of which group speaks, for messages; and the operation in which it is.
struct Speaker {
  int rank = 0;            // of the training
  std::string axis = {};   // empty: all ranks
  std::string place = {};  // Comm::place() on an axis
  std::shared_ptr<std::atomic<const char*>> inside = std::make_shared<std::atomic<const char*>>(nullptr);
};

// Runs a step of Gloo; its exceptions (a peer that has closed its connection, a time limit) become ours.
template <class F>
void run(const Speaker& speaker, const char* what, const F& f) {
  reach_failpoints(speaker.axis);
  speaker.inside->store(what);
  try {
    f();
  } catch (const std::exception& error) {
    fail(ExitCode::rank_failed, speaker.axis.empty() ? cat("rank ", speaker.rank) : speaker.place + ":",
         " lost another rank in ", what, " (", first_line(error), ")");
  }
  speaker.inside->store(nullptr);
}

c10d::ReduceOp op_of(Reduction reduction) {
  return reduction == Reduction::sum ? c10d::ReduceOp::SUM : c10d::ReduceOp::MAX;
}

class GlooPending : public Pending {
 public:
  GlooPending(const Speaker& speaker, const char* what, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : speaker_(speaker), what_(what), works_(std::move(works)) {}
  void wait() override {
    run(speaker_, what_, [&] {
      for (const auto& work : works_) work->wait();
    });
  }

 private:
  Speaker speaker_;
  const char* what_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// One part of an all-reduce.
class PartOfSum : public Pending {
 public:
  PartOfSum(std::unique_ptr<Pending> sum, at::Tensor out, at::Tensor part)
      : sum_(std::move(sum)), out_(std::move(out)), part_(std::move(part)) {}
  void wait() override {
    sum_->wait();
    if (out_.const_data_ptr() != part_.const_data_ptr()) out_.copy_(part_);
  }

 private:
  std::unique_ptr<Pending> sum_;
  at::Tensor out_, part_;
};

class GlooComm : public Comm {
 public:
  GlooComm(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::string where,
           Speaker speaker)
      : store_(std::move(store)),
        group_(std::move(group)),
        where_(std::move(where)),
        speaker_(std::move(speaker)),
        sent_(static_cast<size_t>(group_->getSize())),
        received_(sent_) {}

  int rank() const override { return group_->getRank(); }
  int ranks() const override { return group_->getSize(); }
  std::string describe() const override { return cat(ranks(), " ranks over gloo, ", where_); }
  std::string place() const override { return speaker_.axis.empty() ? Comm::place() : speaker_.place; }
  std::string waiting() const override {
    const char* inside = speaker_.inside->load();
    return inside != nullptr ? inside : "";
  }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    std::vector<at::Tensor> tensors{tensor};
    return start("an all-reduce", [&] { return group_->allreduce(tensors, {op_of(reduction)}); });
  }

  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("a reduce-scatter", in, out);
    // As a sum of all: twice the bytes, which connections between CPUs can bear, but no other code and rounding.
    const int64_t rows = in.size(0) / ranks();
    return std::make_unique<PartOfSum>(start_all_reduce(in, Reduction::sum), out, in.narrow(0, rank() * rows, rows));
  }

  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    check_parts("an all-gather", out, in);
    // A copy where `in` lies in what is written meanwhile.
    at::Tensor to = out, from = in.is_alias_of(out) ? in.clone() : in;
    return start("an all-gather", [&] { return group_->_allgather_base(to, from); });
  }

  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    check_all_to_all(out, in);
    at::Tensor to = out.view({ranks(), -1}), from = in.view({ranks(), -1});
    std::vector<int64_t> equal_out, equal_in;
    return start("an all-to-all", [&] { return group_->alltoall_base(to, from, equal_out, equal_in); });
  }

  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    check_transfers(sends, receives);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    // Both sides number the messages from one to the other alike.
    const auto tag_of = [](uint32_t& count) { return kFirstTag + static_cast<int>(count++ % kTags); };
    run(speaker_, "an exchange", [&] {
      for (const Transfer& transfer : receives) {
        std::vector<at::Tensor> tensors{transfer.tensor};
        works.push_back(group_->recv(tensors, transfer.peer, tag_of(received_[static_cast<size_t>(transfer.peer)])));
      }
      for (const Transfer& transfer : sends) {
        std::vector<at::Tensor> tensors{transfer.tensor};
        works.push_back(group_->send(tensors, transfer.peer, tag_of(sent_[static_cast<size_t>(transfer.peer)])));
      }
    });
    return std::make_unique<GlooPending>(speaker_, "an exchange", std::move(works));
  }

  void broadcast(const at::Tensor& tensor, int root) override {
    std::vector<at::Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run(speaker_, "a broadcast", [&] { group_->broadcast(tensors, options)->wait(); });
  }

  void barrier() override {
    run(speaker_, "a barrier", [&] { group_->barrier()->wait(); });
  }

  std::unique_ptr<Comm> split(const Subgroup& group) override {
    const int place = place_in(group), size = static_cast<int>(group.members.size());
    // Groups of one split differ in their first member, splits in their number.
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>(cat(group.name, "/", ++splits_, "/", group.members.front()), store_);
    const Speaker speaker{speaker_.rank, group.name, place_text(group.name, place, size, speaker_.rank)};
    c10::intrusive_ptr<c10d::ProcessGroupGloo> members;
    run(speaker, "the first connection",
        [&] { members = c10::make_intrusive<c10d::ProcessGroupGloo>(store, place, size, group_->getOptions()); });
    return std::make_unique<GlooComm>(store, std::move(members), where_, speaker);
  }

  const c10::intrusive_ptr<c10d::ProcessGroupGloo>& group() const { return group_; }

 private:
  // Behind the tags of the neighbours' watch, far from those that LibTorch's collectives use.
  static constexpr int kFirstTag = 1 << 16, kTags = 1 << 16;

  template <class F>
  std::unique_ptr<Pending> start(const char* what, const F& operation) {
    c10::intrusive_ptr<c10d::Work> work;
    run(speaker_, what, [&] { work = operation(); });
    return std::make_unique<GlooPending>(speaker_, what, std::vector{std::move(work)});
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::string where_;
  Speaker speaker_;
  std::vector<uint32_t> sent_, received_;  // messages to and from each rank
  int splits_ = 0;
};

class GlooNeighbourWatch : public NeighbourWatch {
 public:
  GlooNeighbourWatch(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::function<void()> on_broken)
      : group_(std::move(group)) {
    const int next = (group_->getRank() + 1) % group_->getSize();
    std::vector<at::Tensor> tensors{message_};
    run({group_->getRank()}, "the first message", [&] { work_ = group_->recv(tensors, next, kTag); });
    thread_ = std::thread([this, on_broken = std::move(on_broken)] {
      try {
        work_->wait(kNever);
      } catch (const std::exception&) {
        if (!over_.load()) on_broken();
      }
    });
  }
  ~GlooNeighbourWatch() override {
    if (!thread_.joinable()) return;
    over_.store(true);
    work_->abort();
    thread_.join();
  }

  void part() override {
    over_.store(true);
    const int size = group_->getSize();
    std::vector<at::Tensor> tensors{farewell_};
    run({group_->getRank()}, "the farewell",
        [&] { group_->send(tensors, (group_->getRank() + size - 1) % size, kTag)->wait(); });
    thread_.join();
  }

 private:
  static constexpr int kTag = 7117;  // none that LibTorch's collectives use by themselves
  static constexpr std::chrono::hours kNever{24 * 365};

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  at::Tensor message_ = at::zeros({1}, at::kByte), farewell_ = at::ones({1}, at::kByte);
  c10::intrusive_ptr<c10d::Work> work_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<NeighbourWatch> watch_neighbour(Comm& gloo, std::function<void()> on_broken) {
  const auto* comm = dynamic_cast<const GlooComm*>(&gloo);
  require(comm != nullptr && !gloo.alone(), ExitCode::unexpected, "only several ranks over gloo can be watched");
  return std::make_unique<GlooNeighbourWatch>(comm->group(), std::move(on_broken));
}

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
  const Speaker speaker{launch.rank};
  run(speaker, "the first connection",
      [&] { group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, launch.rank, launch.ranks, gloo); });
  return std::make_unique<GlooComm>(store, std::move(group), where, speaker);
}

}  // namespace hrm::parallel
