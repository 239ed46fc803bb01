// hrm_train doctor --ranks: the ranks meet, say where they are, and add up numbers, before a run depends on it.

#include "commands/doctor/ranks.h"

#include <ATen/ops/full.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/parallel/mesh.h"
#include "hrm/runtime/device.h"
#include "train/ranks.h"
#include "train/run_folder.h"
#if HRM_WITH_CUDA
#include "hrm/parallel/nccl_comm.h"
#endif

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
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

// An all-reduce of this many bytes of float32; the best of a few. `right`: every number is as expected.
struct LinkTimes {
  double seconds = 1e30;
  bool right = true;
};

LinkTimes measure_link(parallel::Comm& comm, at::Device device, int64_t bytes) {
  const int64_t n = bytes / 4;
  const int ranks = comm.ranks();
  LinkTimes best;
  for (int turn = 0; turn < 4; ++turn) {
    const at::Tensor values = at::full({n}, comm.rank() + 1, at::TensorOptions().device(device).dtype(at::kFloat));
    synchronize(device);
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    comm.all_reduce(values);
    synchronize(device);
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

void print_ranks_report(const Json& report, std::ostream& out) {
  out << "ranks\n  " << printable(report["transport"].get<std::string>()) << ": have met "
      << printable(report["meeting_place"].get<std::string>()) << " within "
      << time_text(report["meeting_s"].get<double>()) << "\n\n";
  out << "  rank  node  process  host, GPU, network interfaces\n";
  for (const Json& rank : report["ranks"]) {
    out << std::right << std::setw(6) << rank["rank"].dump() << std::setw(6) << rank["node"].dump() << std::setw(9)
        << rank["pid"].dump() << "  " << printable(rank["host"].get<std::string>());
    if (rank["gpu"] != "") out << ", " << printable(rank["gpu"].get<std::string>());
    out << ": ";
    std::string separator;
    for (const Json& interface : rank["interfaces"]) {
      out << std::exchange(separator, ", ") << printable(interface.get<std::string>());
    }
    out << "\n";
  }
  std::string by;
  for (const Json& row : report["all_reduce"]) {
    if (by != row["by"].get<std::string>()) {
      by = row["by"].get<std::string>();
      out << "\nall-reduce (sums of all ranks) by " << printable(by) << "\n";
    }
    std::ostringstream rate;
    rate << std::fixed << std::setprecision(2) << row["gb_per_s"].get<double>() << " GB/s";
    out << "  " << std::left << std::setw(10) << human_bytes(row["bytes"].get<uint64_t>()) << std::setw(10)
        << time_text(row["seconds"].get<double>()) << std::setw(12) << rate.str()
        << (row["right"].get<bool>() ? "right" : "WRONG: a network card, a link or memory is at fault") << "\n";
  }
  out << "\nmesh\n";
  for (const Json& axis : report["mesh"]) {
    std::string groups, separator;
    for (const Json& group : axis["groups"]) {
      groups += std::exchange(separator, " | ");
      std::string space;
      for (const Json& rank : group) groups += std::exchange(space, " ") + rank.dump();
    }
    out << "  " << std::left << std::setw(10) << axis["axis"].get<std::string>() << groups
        << (axis["right"].get<bool>() ? "  right" : "  WRONG: these ranks got wrong sums") << "\n";
  }
  for (const Json& warning : report["warnings"]) out << "\nwarning: " << printable(warning.get<std::string>()) << "\n";
}

// In seconds: a rank has some heartbeats to show that it lives.
constexpr int64_t kShortestTimeout = 10;

// Whether one all-reduce along each axis adds up the numbers of its members, by this rank.
Json test_axes(parallel::Comm& comm, const parallel::MeshShape& shape, at::Device device) {
  const parallel::Mesh mesh(std::shared_ptr<parallel::Comm>(&comm, [](parallel::Comm*) {}), shape);
  Json right = Json::object();
  for (const parallel::Axis axis : {parallel::Axis::tensor, parallel::Axis::shard, parallel::Axis::replica}) {
    const std::vector<int> members = mesh.place().members(axis);
    if (members.size() == 1) continue;
    const at::Tensor sum = at::full({1}, comm.rank() + 1, at::device(device).dtype(at::kLong));
    mesh.axis(axis).all_reduce(sum);
    right[parallel::axis_name(axis)] =
        sum.item<int64_t>() == std::accumulate(members.begin(), members.end(), static_cast<int64_t>(members.size()));
  }
  comm.barrier();
  return right;
}

// Each axis with the ranks of its groups, and whether all of them were right.
Json mesh_json(parallel::Comm& comm, const parallel::MeshShape& shape, at::Device device) {
  const Json own = test_axes(comm, shape, device);
  std::vector<Json> all;
  for (const std::string& text : comm.all_gather_text(own.dump())) all.push_back(Json::parse(text));
  Json axes = Json::array();
  for (const parallel::Axis axis : {parallel::Axis::tensor, parallel::Axis::shard, parallel::Axis::replica}) {
    const std::string name = parallel::axis_name(axis);
    if (!own.contains(name)) continue;
    Json row = {{"axis", name}, {"groups", Json::array()}, {"right", true}};
    for (int rank = 0; rank < comm.ranks(); ++rank) {
      const parallel::MeshPlace place(rank, comm.ranks(), shape);
      if (place.coordinate(axis) == 0) row["groups"].push_back(place.members(axis));
      if (!all[static_cast<size_t>(rank)][name].get<bool>()) row["right"] = false;
    }
    axes.push_back(row);
  }
  return axes;
}

int test_ranks(train::Ranks& ranks, const DoctorOptions& options, std::chrono::steady_clock::time_point start) {
  const bool json = options.json;
  const parallel::Launch& launch = ranks.launch;
  const std::shared_ptr<parallel::Comm> comm = ranks.comm;
  const std::string no_gpu = why_no_cuda();
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
                    {"host", train::host_name()},
                    {"interfaces", interfaces()},
                    {"gpu", no_gpu.empty() ? gpu_name() : ""},
                    {"commit", build_info("commit")},
                    {"torch", build_info("torch")}};
  report["ranks"] = Json::array();
  std::set<std::string> builds;
  int gpus = 0;
  for (const std::string& text : comm->all_gather_text(own.dump(-1, ' ', false, Json::error_handler_t::replace))) {
    const Json rank = Json::parse(text);
    gpus += rank["gpu"] != "" ? 1 : 0;
    builds.insert(cat(rank["commit"].get<std::string>(), rank["torch"].get<std::string>()));
    report["ranks"].push_back(rank);
  }
  report["warnings"] = Json::array();
  if (builds.size() > 1)
    report["warnings"].push_back("the ranks run different builds of this program: install one everywhere");

  if (gpus > 0 && gpus < launch.ranks) {
    report["warnings"].push_back(cat("only ", gpus, " of ", launch.ranks,
                                     " ranks have a GPU; start as many ranks on a node as it has GPUs (rank ",
                                     launch.rank, ": ", no_gpu.empty() ? "has one" : no_gpu, ")"));
  }

  const parallel::MeshShape shape{static_cast<int>(options.tensor), static_cast<int>(options.replicas)};
  bool right = true;
  int64_t measured_sizes = 0;
  report["all_reduce"] = Json::array();
  const auto measure_all = [&](parallel::Comm& by, const char* name, at::Device device) {
    for (const int64_t bytes : {int64_t{4} << 10, int64_t{1} << 20, int64_t{64} << 20}) {
      ranks.watchdog->at(++measured_sizes, "step");
      const LinkTimes measured = measure_link(by, device, bytes);
      right = right && measured.right;
      report["all_reduce"].push_back({{"by", name},
                                      {"bytes", bytes},
                                      {"seconds", measured.seconds},
                                      {"gb_per_s", static_cast<double>(bytes) / measured.seconds / 1e9},
                                      {"right", measured.right}});
    }
  };
  measure_all(*comm, "the CPUs", at::kCPU);
#if HRM_WITH_CUDA
  if (gpus == launch.ranks) {
    const at::Device device(at::kCUDA, 0);
    ranks.watchdog->at(measured_sizes, "step");
    const auto nccl = parallel::make_nccl_comm(comm, device);
    report["gpu_transport"] = nccl->describe();
    measure_all(*nccl, "the GPUs", device);
    report["mesh"] = mesh_json(*nccl, shape, device);
  }
#endif
  if (!report.contains("mesh")) report["mesh"] = mesh_json(*comm, shape, at::kCPU);
  for (const Json& axis : report["mesh"]) right = right && axis["right"].get<bool>();
  if (comm->main() && json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else if (comm->main()) {
    print_ranks_report(report, std::cout);
  }
  comm->barrier();
  require(right, ExitCode::environment, "rank ", launch.rank, " got wrong sums");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_doctor_ranks(const DoctorOptions& options) {
  const parallel::Launch launch = parallel::detect_launch();
  require(
      launch.ranks > 1, ExitCode::usage,
      "doctor --ranks tests several ranks, but this process is alone; start it as a training would be, e.g. torchrun "
      "--no-python --nproc-per-node=2 hrm_train doctor --ranks");
  // Refused before the ranks wait for each other.
  parallel::MeshPlace(launch.rank, launch.ranks,
                      {static_cast<int>(options.tensor), static_cast<int>(options.replicas)});
  // What hangs, and NCCL may forever, ends after as long as the ranks wait for each other at first.
  config::Config config;
  config.parallel.meet_timeout_s = static_cast<int64_t>(std::ceil(options.meet_timeout_s));
  config.parallel.timeout_s = std::max(config.parallel.meet_timeout_s, kShortestTimeout);
  const auto start = std::chrono::steady_clock::now();
  return train::run_as_ranks(launch, config, {.run = "doctor"}, [&](train::Ranks& ranks) {
    ranks.watchdog->limit_steps(static_cast<double>(config.parallel.timeout_s));
    return test_ranks(ranks, options, start);
  });
}

}  // namespace hrm::commands
