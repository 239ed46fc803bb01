// hrm_train doctor --ranks: the ranks meet, say where they are, and add up numbers, before a run depends on it.

#include "train/doctor_ranks.h"

#include <ATen/ops/full.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <set>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/parallel/rendezvous.h"

namespace hrm::train {
namespace {

using Json = nlohmann::ordered_json;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// "eth0 10.0.0.5", those that are up.
std::vector<std::string> interfaces() {
  std::vector<std::string> out;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return out;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_UP) == 0) continue;
    char text[NI_MAXHOST];
    if (getnameinfo(at->ifa_addr, sizeof(sockaddr_in), text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    out.push_back(cat(at->ifa_name, " ", text));
  }
  freeifaddrs(first);
  return out;
}

// An all-reduce of so many bytes of float32; the best of a few. `right`: every number is what it must be.
struct Measured {
  double seconds = 1e30;
  bool right = true;
};

Measured measure(parallel::Comm& comm, int64_t bytes) {
  const int64_t n = bytes / 4;
  const int ranks = comm.ranks();
  Measured best;
  for (int turn = 0; turn < 4; ++turn) {
    const at::Tensor values = at::full({n}, comm.rank() + 1, at::kFloat);
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    comm.all_reduce(values);
    best.seconds = std::min(best.seconds, seconds_since(start));
    best.right = best.right && values.eq(ranks * (ranks + 1) / 2).all().item<bool>();
  }
  return best;
}

std::string time_text(double seconds) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(seconds < 1e-3 ? 0 : 1) << (seconds < 1e-3 ? seconds * 1e6 : seconds * 1e3)
      << (seconds < 1e-3 ? " us" : " ms");
  return out.str();
}

void print_text(const Json& report, std::ostream& out) {
  out << "ranks\n  " << printable(report["transport"].get<std::string>()) << ": have met "
      << printable(report["meeting_place"].get<std::string>()) << " within "
      << time_text(report["meeting_s"].get<double>()) << "\n\n";
  out << "  rank  node  process  host, its interfaces\n";
  for (const Json& rank : report["ranks"]) {
    out << std::right << std::setw(6) << rank["rank"].dump() << std::setw(6) << rank["node"].dump() << std::setw(9)
        << rank["pid"].dump() << "  " << printable(rank["host"].get<std::string>()) << ": ";
    std::string separator;
    for (const Json& interface : rank["interfaces"]) {
      out << std::exchange(separator, ", ") << printable(interface.get<std::string>());
    }
    out << "\n";
  }
  out << "\nall-reduce (sums of all ranks, by the CPUs)\n";
  for (const Json& row : report["all_reduce"]) {
    std::ostringstream rate;
    rate << std::fixed << std::setprecision(2) << row["gb_per_s"].get<double>() << " GB/s";
    out << "  " << std::left << std::setw(10) << human_bytes(row["bytes"].get<uint64_t>()) << std::setw(10)
        << time_text(row["seconds"].get<double>()) << std::setw(12) << rate.str()
        << (row["right"].get<bool>() ? "right" : "WRONG: a network card or memory is at fault") << "\n";
  }
  for (const Json& warning : report["warnings"]) out << "\nwarning: " << printable(warning.get<std::string>()) << "\n";
}

}  // namespace

int run_doctor_ranks(bool json, double meet_timeout_s) {
  const parallel::Launch launch = parallel::detect_launch();
  require(
      launch.ranks > 1, ExitCode::usage,
      "doctor --ranks tests several ranks, but this process is alone; start it as a training would be, e.g. torchrun "
      "--no-python --nproc-per-node=2 hrm_train doctor --ranks");
  const auto start = std::chrono::steady_clock::now();
  parallel::Rendezvous rendezvous(launch, {.meet_timeout_s = meet_timeout_s, .timeout_s = meet_timeout_s});
  const auto comm = rendezvous.make_gloo_comm();
  comm->barrier();
  Json report;
  report["meeting_place"] = cat("at ", launch.host, ":", launch.port);
  report["meeting_s"] = seconds_since(start);
  report["launch"] = parallel::describe(launch);
  report["transport"] = comm->describe();

  const Json own = {{"rank", launch.rank},
                    {"node", launch.node},
                    {"local_rank", launch.local_rank},
                    {"pid", getpid()},
                    {"host", host_name()},
                    {"interfaces", interfaces()},
                    {"commit", build_info("commit")},
                    {"torch", build_info("torch")}};
  report["ranks"] = Json::array();
  std::set<std::string> builds;
  for (const std::string& text : comm->all_gather_text(own.dump(-1, ' ', false, Json::error_handler_t::replace))) {
    const Json rank = Json::parse(text);
    builds.insert(cat(rank["commit"].get<std::string>(), rank["torch"].get<std::string>()));
    report["ranks"].push_back(rank);
  }
  report["warnings"] = Json::array();
  if (builds.size() > 1)
    report["warnings"].push_back("the ranks run different builds of this program: install one everywhere");

  bool right = true;
  report["all_reduce"] = Json::array();
  for (const int64_t bytes : {int64_t{4} << 10, int64_t{1} << 20, int64_t{64} << 20}) {
    const Measured measured = measure(*comm, bytes);
    right = right && measured.right;
    report["all_reduce"].push_back({{"bytes", bytes},
                                    {"seconds", measured.seconds},
                                    {"gb_per_s", static_cast<double>(bytes) / measured.seconds / 1e9},
                                    {"right", measured.right}});
  }
  if (comm->main() && json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else if (comm->main()) {
    print_text(report, std::cout);
  }
  comm->barrier();
  require(right, ExitCode::environment, "rank ", launch.rank, " got wrong sums");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::train
