// hrm_train bench comm: how fast tensors of all sizes travel between the ranks. `plan --bandwidths` reads the result.
#include <ATen/ceil_div.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/commands/commands.h"
#include "hrm/metrics/metric_text.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/parallel/launch.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/runtime/device.h"
#include "train/ranks.h"
#if HRM_WITH_CUDA
#include "ops/cuda/sm90/tensor_map.h"
#endif

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 5;

double largest_of_all(parallel::Comm& comm, double value) {
  const at::Tensor values = at::full({1}, value, at::kDouble);
  comm.all_reduce(values, parallel::Reduction::max);
  return values.item<double>();
}

// Operations on `whole` and `other`, float32 of the same size, of which a part belongs to each rank.
struct Collective {
  const char* key;   // in the JSON result
  const char* name;  // for --ops and the table
  // What each rank sends and receives, as a multiple of the tensor: of R ranks, `numerator` * (R - 1) / R.
  double numerator;
  void (*run)(parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other);
  // What `other` holds afterwards if each rank's `whole` is the number of the rank, from 1 on; of the sum, `whole`.
  at::Tensor (*expected)(const parallel::Comm& comm, const at::Tensor& whole);
};

at::Tensor part_of(const parallel::Comm& comm, const at::Tensor& whole) {
  const int64_t size = whole.numel() / comm.ranks();
  return whole.narrow(0, comm.rank() * size, size);
}

// 1, 2, ... for each rank's part.
at::Tensor numbers_of_ranks(const parallel::Comm& comm, const at::Tensor& whole) {
  return at::arange(1, comm.ranks() + 1, whole.options()).repeat_interleave(whole.numel() / comm.ranks());
}

void send_round(parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other) {
  const int n = comm.ranks(), rank = comm.rank();
  comm.exchange({{whole, (rank + 1) % n}}, {{other, (rank + n - 1) % n}});
}

constexpr Collective kCollectives[] = {
    {"all_reduce", "all-reduce", 2,
     [](parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other) {
       (void)other;
       comm.all_reduce(whole);
     },
     [](const parallel::Comm& comm, const at::Tensor& whole) {
       return at::full_like(whole, comm.ranks() * (comm.ranks() + 1) / 2);
     }},
    {"reduce_scatter", "reduce-scatter", 1,
     [](parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other) {
       comm.reduce_scatter(part_of(comm, other), whole);
     },
     [](const parallel::Comm& comm, const at::Tensor& whole) {
       return at::full_like(part_of(comm, whole), comm.ranks() * (comm.ranks() + 1) / 2);
     }},
    {"all_gather", "all-gather", 1,
     [](parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other) {
       comm.all_gather(other, part_of(comm, whole));
     },
     numbers_of_ranks},
    {"all_to_all", "all-to-all", 1,
     [](parallel::Comm& comm, const at::Tensor& whole, const at::Tensor& other) { comm.all_to_all(other, whole); },
     numbers_of_ranks},
    {"send_receive", "send-receive", 0, send_round,
     [](const parallel::Comm& comm, const at::Tensor& whole) {
       return at::full_like(whole, (comm.rank() + comm.ranks() - 1) % comm.ranks() + 1);
     }},
};

// Every number of one operation is what it must be.
bool result_right(const Collective& collective, parallel::Comm& comm, at::Device device, int64_t count) {
  const at::Tensor whole = at::full({count}, comm.rank() + 1, at::device(device).dtype(at::kFloat));
  const at::Tensor other = at::zeros_like(whole), expected = collective.expected(comm, whole);
  collective.run(comm, whole, other);
  const std::string_view key = collective.key;
  const at::Tensor result = key == "all_reduce" ? whole : key == "reduce_scatter" ? part_of(comm, other) : other;
  return at::equal(result, expected);
}

// Seconds of what `work` does `calls` times, on the slowest rank: the median of some rounds. On a GPU replayed from a
// CUDA graph if possible; otherwise `why_not` says why.
double measure_round(parallel::Comm& comm, at::Device device, const CapturedStep::Key& key, int64_t calls,
                     const std::function<void()>& work, std::string& why_not) {
  CapturedStep round({.name = "bench comm", .device = device, .warmup = 1});
  const auto run = [&] {
    round.run(key, {}, [&] {
      for (int64_t i = 0; i < calls; ++i) work();
    });
    synchronize(device);
  };
  for (int i = 0; i < (device.is_cuda() ? 3 : 1); ++i) run();  // the eager one, the capture, a replay
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    seconds.push_back(largest_of_all(comm, took.count()) / static_cast<double>(calls));
  }
  if (why_not.empty()) why_not = round.reason();
  std::nth_element(seconds.begin(), seconds.begin() + kRounds / 2, seconds.end());
  return seconds[kRounds / 2];
}

// One operation after the other, as a training step starts them.
double measure_collective(const Collective& collective, parallel::Comm& comm, at::Device device, int64_t count,
                          std::string& why_not) {
  const at::Tensor whole = at::zeros({count}, at::device(device).dtype(at::kFloat)), other = at::zeros_like(whole);
  // As many per round as memory allows, so that the different starts of the ranks do not matter.
  const bool gpu = device.is_cuda();
  const int64_t least = gpu ? 4 : 1, most = gpu ? 200 : 10, volume = int64_t{1} << (gpu ? 30 : 24);
  const int64_t calls = std::clamp(volume / (4 * count), least, most);
  return measure_round(
      comm, device, {count}, calls, [&] { collective.run(comm, whole, other); }, why_not);
}

void print_collective_row(const Json& row, std::ostream& out) {
  out << std::right << std::setw(12) << human_bytes(row["bytes"].get<uint64_t>()) << std::setw(13)
      << metrics::fixed(row["time_us"], 1) << std::setw(12) << metrics::fixed(row["algorithm_gbs"], 3) << std::setw(12)
      << metrics::fixed(row["bus_gbs"], 3) << "\n"
      << std::flush;
}

Json measure_sizes(const Collective& collective, const BenchCommOptions& options, at::Device device,
                   parallel::Comm& comm, const std::string& what, std::string& why_not) {
  if (comm.main()) {
    std::cout << "\n"
              << collective.name << what << "\n"
              << std::setw(12) << "size" << std::setw(13) << "time us" << std::setw(12) << "GB/s" << std::setw(12)
              << "bus GB/s"
              << "\n";
  }
  Json rows = Json::array();
  const int64_t ranks = comm.ranks();
  const double bus =
      collective.numerator > 0 ? collective.numerator * static_cast<double>(ranks - 1) / static_cast<double>(ranks) : 1;
  for (int64_t asked = 8; asked <= options.max_mb << 20; asked *= 2) {
    // Of sums any number; of parts as many for each rank.
    const bool parts = std::string_view(collective.key) != "all_reduce" && collective.numerator > 0;
    const int64_t count = parts ? at::ceil_div(asked / 4, ranks) * ranks : asked / 4, bytes = 4 * count;
    require(result_right(collective, comm, device, count), ExitCode::environment, "rank ", comm.rank(),
            " got wrong numbers from ", collective.name, " of ", bytes,
            " bytes: a network card, a link or memory is at fault");
    const double seconds = measure_collective(collective, comm, device, count, why_not);
    const double gbs = static_cast<double>(bytes) / seconds * 1e-9;
    rows.push_back({{"bytes", bytes}, {"time_us", 1e6 * seconds}, {"algorithm_gbs", gbs}, {"bus_gbs", bus * gbs}});
    if (comm.main()) print_collective_row(rows.back(), std::cout);
  }
  return rows;
}

// A matrix product by itself, an all-gather by itself, and both at the same time: what an exchange beside products
// costs.
struct Beside {
  const char* name;
  std::function<void()> work;
};

Json measure_beside(at::Device device, parallel::Comm& comm, std::string& why_not) {
  const bool gpu = device.is_cuda();
  const int64_t rows = gpu ? 8192 : 256, width = gpu ? 4096 : 256, gathered = int64_t{1} << (gpu ? 26 : 18);
  const auto options = at::device(device).dtype(gpu ? at::kBFloat16 : at::kFloat);
  const at::Tensor x = at::randn({rows, width}, options), weight = at::randn({width, width}, options) * 0.01;
  at::Tensor out = at::empty({rows, width}, options);
  const at::Tensor gate_up = at::randn({2 * width, width}, options) * 0.01;
  const at::Tensor whole = at::zeros({gathered / comm.ranks() * comm.ranks()}, options);
  const at::Tensor part = part_of(comm, whole);
  const std::vector<Beside> works{
      {"mm", [&] { at::mm_out(out, x, weight.t()); }},
      {"linear_swiglu", [&] { ops::linear_swiglu(x, gate_up); }},
  };
  constexpr int kProducts = 4;
  const auto products = [&](const Beside& beside) {
    for (int i = 0; i < kProducts; ++i) beside.work();
  };
  Json json = Json::array();
  const auto bytes = static_cast<uint64_t>(whole.nbytes());
  const double alone_s = measure_round(
      comm, device, {0}, 4, [&] { comm.all_gather(whole, part); }, why_not);
  if (comm.main()) {
    std::cout << "\nall-gather of " << human_bytes(bytes) << " beside " << kProducts << " products of " << rows << " x "
              << width << " (us)\n"
              << std::setw(16) << "product" << std::setw(12) << "products" << std::setw(12) << "gather" << std::setw(12)
              << "both" << std::setw(12) << "hidden"
              << "\n";
  }
  for (const Beside& beside : works) {
    const double products_s = measure_round(
        comm, device, {1}, 4, [&] { products(beside); }, why_not);
    const double both_s = measure_round(
        comm, device, {2}, 4,
        [&] {
          const auto pending = comm.start_all_gather(whole, part);
          products(beside);
          pending->wait();
        },
        why_not);
    // 1: as if nothing travelled; 0: as one after the other.
    const double hidden = (products_s + alone_s - both_s) / std::min(products_s, alone_s);
    json.push_back({{"product", beside.name},
                    {"gathered_bytes", bytes},
                    {"products_us", 1e6 * products_s},
                    {"gather_us", 1e6 * alone_s},
                    {"both_us", 1e6 * both_s},
                    {"hidden", hidden}});
    if (comm.main()) {
      std::cout << std::setw(16) << beside.name << std::setw(12) << metrics::fixed(1e6 * products_s, 1) << std::setw(12)
                << metrics::fixed(1e6 * alone_s, 1) << std::setw(12) << metrics::fixed(1e6 * both_s, 1) << std::setw(12)
                << metrics::percent(hidden) << "\n"
                << std::flush;
    }
  }
  return json;
}

int measure_all(const BenchCommOptions& options, const parallel::Launch& launch, const Runtime& runtime,
                parallel::Comm& world) {
  const at::Device device = runtime.device;
  std::unique_ptr<parallel::Comm> urgent;
  if (options.urgent) {
    std::vector<int> everyone(static_cast<size_t>(world.ranks()));
    std::iota(everyone.begin(), everyone.end(), 0);
    urgent = world.split({.name = "urgent", .members = everyone, .priority = parallel::Priority::urgent});
  }
  parallel::Comm& comm = urgent ? *urgent : world;
  Json json;
  json["device"] = runtime.device_name;
  json["transport"] = device.is_cuda() ? "nccl" : "gloo";
  json["ranks"] = launch.ranks;
  json["nodes"] = launch.nodes;
  json["urgent"] = options.urgent;
  json["allocator"] = options.allocator;
  json["description"] = world.describe();
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  if (comm.main()) {
    std::cout << printable(world.describe()) << "; " << launch.nodes << (launch.nodes == 1 ? " node" : " nodes") << ", "
              << runtime.device_name << "\n";
  }
  std::string why_not_captured;
  const std::string what = cat(" of float32", options.urgent ? ", urgent" : "");
  for (const Collective& collective : kCollectives) {
    if (options.ops != "all" && options.ops != collective.name) continue;
    json[collective.key] = measure_sizes(collective, options, device, comm, what, why_not_captured);
  }
#if HRM_WITH_CUDA
  if (device.is_cuda()) ops::cuda::sm90::leave_multiprocessors(static_cast<int>(options.leave));
#endif
  if (options.beside) {
    json["left_multiprocessors"] = options.leave;
    json["beside"] = measure_beside(device, comm, why_not_captured);
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
  require(options.leave == 0 || options.beside, ExitCode::usage,
          "--leave has an effect on the products of --beside alone; add --beside");
  require(launch.ranks > 1, ExitCode::usage,
          "bench comm measures between several ranks, but this process is alone; start it as a training would be, e.g. "
          "torchrun --no-python --nproc-per-node=2 hrm_train bench comm");
  config::Config config;
  config.runtime.device = config::value_of_name<config::DeviceChoice>(options.device);
  config.runtime.allocator = config::value_of_name<config::GpuAllocator>(options.allocator);
  config.parallel.meet_timeout_s = static_cast<int64_t>(std::ceil(options.meet_timeout_s));
  return train::run_as_ranks(launch, config, {.run = "bench comm"}, [&](train::Ranks& ranks) {
    const Runtime runtime = train::start_device(ranks, config);
    return measure_all(options, launch, runtime, *ranks.comm);
  });
}

}  // namespace hrm::commands
