// hrm_train bench comm: how fast the ranks add up tensors of all sizes. `plan --bandwidths` reads the result.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/parallel/launch.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/runtime/device.h"
#include "train/ranks.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 5;

double largest_of_all(parallel::Comm& comm, double value) {
  const at::Tensor values = at::full({1}, value, at::kDouble);
  comm.all_reduce(values, parallel::Reduction::max);
  return values.item<double>();
}

// Every number of one sum is what it must be.
bool sums_right(parallel::Comm& comm, at::Device device, int64_t bytes) {
  const at::Tensor values = at::full({bytes / 4}, comm.rank() + 1, at::device(device).dtype(at::kFloat));
  comm.all_reduce(values);
  return values.eq(comm.ranks() * (comm.ranks() + 1) / 2).all().item<bool>();
}

// Seconds of one float32 all-reduce on the slowest rank, one after the other as a training step starts them. On a GPU
// replayed from a CUDA graph if possible; otherwise `why_not` says why.
double measure_collective(parallel::Comm& comm, at::Device device, int64_t bytes, std::string& why_not) {
  const at::Tensor values = at::zeros({bytes / 4}, at::device(device).dtype(at::kFloat));
  // As many per round as memory allows, so that the different starts of the ranks do not matter.
  const bool gpu = device.is_cuda();
  const int64_t least = gpu ? 4 : 1, most = gpu ? 200 : 50, volume = int64_t{1} << (gpu ? 30 : 24);
  const int64_t calls = std::clamp(volume / bytes, least, most);
  CapturedStep round({.name = "all-reduce", .device = device, .warmup = 1});
  const auto run = [&] {
    round.run({bytes}, {}, [&] {
      for (int64_t i = 0; i < calls; ++i) comm.all_reduce(values);
    });
    synchronize(device);
  };
  for (int i = 0; i < (gpu ? 3 : 1); ++i) run();  // the eager one, the capture, a replay
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(largest_of_all(comm, took.count()) / static_cast<double>(calls));
  }
  why_not = round.reason();
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

void print_collective_row(const Json& row, std::ostream& out) {
  out << std::right << std::setw(12) << human_bytes(row["bytes"].get<uint64_t>()) << std::setw(13)
      << metrics::fixed(row["time_us"], 1) << std::setw(12) << metrics::fixed(row["algorithm_gbs"], 3) << std::setw(12)
      << metrics::fixed(row["bus_gbs"], 3) << "\n"
      << std::flush;
}

int measure_sizes(const BenchCommOptions& options, const parallel::Launch& launch, const Runtime& runtime,
                  parallel::Comm& comm) {
  const at::Device device = runtime.device;
  Json json;
  json["device"] = runtime.device_name;
  json["transport"] = device.is_cuda() ? "nccl" : "gloo";
  json["ranks"] = launch.ranks;
  json["nodes"] = launch.nodes;
  json["description"] = comm.describe();
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["all_reduce"] = Json::array();
  if (comm.main()) {
    std::cout << printable(comm.describe()) << "; " << launch.nodes << (launch.nodes == 1 ? " node" : " nodes") << ", "
              << runtime.device_name << "; all-reduce of float32\n"
              << std::setw(12) << "size" << std::setw(13) << "time us" << std::setw(12) << "GB/s" << std::setw(12)
              << "bus GB/s"
              << "\n";
  }
  const double bus = 2.0 * (launch.ranks - 1) / launch.ranks;
  std::string why_not_captured;
  for (int64_t bytes = 8; bytes <= options.max_mb << 20; bytes *= 2) {
    require(sums_right(comm, device, bytes), ExitCode::environment, "rank ", launch.rank, " got wrong sums of ", bytes,
            " bytes: a network card, a link or memory is at fault");
    const double seconds = measure_collective(comm, device, bytes, why_not_captured);
    const double gbs = static_cast<double>(bytes) / seconds * 1e-9;
    json["all_reduce"].push_back(
        {{"bytes", bytes}, {"time_us", 1e6 * seconds}, {"algorithm_gbs", gbs}, {"bus_gbs", bus * gbs}});
    if (comm.main()) print_collective_row(json["all_reduce"].back(), std::cout);
  }
  json["captured"] = device.is_cuda() && why_not_captured.empty();
  if (comm.main() && !options.json_out.empty()) {
    write_text_atomic(options.json_out, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_bench_comm(const BenchCommOptions& options) {
  const parallel::Launch launch = parallel::detect_launch();
  require(launch.ranks > 1, ExitCode::usage,
          "bench comm measures between several ranks, but this process is alone; start it as a training would be, e.g. "
          "torchrun --no-python --nproc-per-node=2 hrm_train bench comm");
  config::Config config;
  config.runtime.device = config::value_of_name<config::DeviceChoice>(options.device);
  config.parallel.meet_timeout_s = static_cast<int64_t>(std::ceil(options.meet_timeout_s));
  return train::run_as_ranks(launch, config, {.run = "bench comm"}, [&](train::Ranks& ranks) {
    const Runtime runtime = train::start_device(ranks, config);
    return measure_sizes(options, launch, runtime, *ranks.comm);
  });
}

}  // namespace hrm::commands
