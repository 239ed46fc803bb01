#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "commands/doctor/ranks.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/build_config.h"
#include "hrm/commands/commands.h"
#include "hrm/ops/backend.h"
#include "hrm/parallel/launch.h"
#include "hrm/runtime/device.h"

#if HRM_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

// First line of a file whose words before the colon are `name`, e.g. of /proc/cpuinfo; empty when there is none.
std::string proc_value(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, name.size(), name) != 0) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// A bf16 matrix product against the same in float32, and the speed of both.
Json test_matmul(at::Device device, int64_t n) {
  Json out;
  try {
    const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
    const at::Tensor a = at::arange(n * n, options).reshape({n, n}).remainder(7) - 3;
    const at::Tensor b = at::arange(n * n, options).reshape({n, n}).remainder(5) - 2;
    const auto tflops = [&](const at::Tensor& x, const at::Tensor& y) {
      double best = 0;
      for (int i = 0; i < 4; ++i) {
        synchronize(device);
        const auto start = std::chrono::steady_clock::now();
        at::mm(x, y);
        synchronize(device);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (i > 0) best = std::max(best, 2e-12 * static_cast<double>(n * n * n) / took.count());
      }
      return best;
    };
    const at::Tensor a16 = a.to(at::kBFloat16), b16 = b.to(at::kBFloat16);
    // The inputs are exact in bf16 and the products in float32, so what is left is the rounding of (partial) sums.
    const at::Tensor expected = at::mm(a, b);
    const double error = (at::mm(a16, b16).to(at::kFloat) - expected).abs().max().item<double>();
    out["bf16_right"] = error <= 0.02 * expected.abs().max().item<double>();
    out["bf16_tflops"] = tflops(a16, b16);
    out["fp32_tflops"] = tflops(a, b);
  } catch (const c10::Error& e) {
    out["bf16_right"] = false;
    out["why_not"] = e.what_without_backtrace();
  }
  return out;
}

Json examine_cpu() {
  Json cpu;
  cpu["model"] = proc_value("/proc/cpuinfo", "model name");
  cpu["cores"] = std::thread::hardware_concurrency();
  cpu["threads"] = at::get_num_threads();
  cpu["vector_code"] = at::get_cpu_capability();
  std::istringstream memory(proc_value("/proc/meminfo", "MemAvailable"));
  int64_t kib = 0;
  memory >> kib;
  cpu["memory_available_bytes"] = kib * 1024;
  cpu["matmul"] = test_matmul(at::kCPU, 512);
  return cpu;
}

#if HRM_WITH_CUDA
std::string cuda_version_text(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}
#endif

Json examine_gpu() {
  Json gpu;
  const std::string reason = why_no_cuda();
  gpu["usable"] = reason.empty();
  if (!reason.empty()) gpu["why_not"] = reason;
  gpu["devices"] = Json::array();
#if HRM_WITH_CUDA
  int runtime = 0, driver = 0;
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) gpu["cuda_runtime"] = cuda_version_text(runtime);
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    gpu["driver_supports_cuda"] = cuda_version_text(driver);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // the reason is in why_no_cuda
    count = 0;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    Json device;
    device["index"] = i;
    device["name"] = properties.name;
    device["compute_capability"] = cat(properties.major, ".", properties.minor);
    device["memory_bytes"] = properties.totalGlobalMem;
    device["multiprocessors"] = properties.multiProcessorCount;
    const int capability = properties.major * 10 + properties.minor;
    const std::string archs = build_info("cuda_archs"), lacking = lacking_kernels(capability, archs);
    device["has_kernels"] = !kernels_for(capability, archs).empty();
    device["kernels"] = lacking.empty() ? kernels_for(capability, archs) : lacking;
    if (reason.empty()) device["matmul"] = test_matmul(at::Device(at::kCUDA, static_cast<int8_t>(i)), 4096);
    gpu["devices"].push_back(device);
  }
#else
  if (std::filesystem::exists("/proc/driver/nvidia/version")) {
    gpu["why_not"] = reason + "; an NVIDIA driver is installed here";
  }
#endif
  return gpu;
}

Json examine_ops() {
  Json ops = Json::array();
  for (const ops::OpInfo& info : ops::op_table()) {
    Json op;
    op["name"] = info.name;
    op["cpu"] = info.cpu;
    op["cuda"] = info.cuda;
    op["autograd"] = info.autograd;
    ops.push_back(op);
  }
  return ops;
}

// The file system that would hold ./runs.
Json examine_storage() {
  namespace fs = std::filesystem;
  Json storage;
  const config::RunConfig standard;
  std::error_code ignored;
  fs::path existing = fs::absolute(standard.dir, ignored);
  storage["path"] = existing.string();
  while (!fs::exists(existing, ignored) && existing.has_relative_path()) existing = existing.parent_path();
  storage["writable"] = access(existing.c_str(), W_OK) == 0;
  try {
    storage["free_bytes"] = free_bytes(existing);
  } catch (const Error& e) {
    storage["why_not"] = e.what();
  }
  return storage;
}

Json examine_launch() {
  Json launch;
  try {
    launch["description"] = parallel::describe(parallel::detect_launch());
  } catch (const Error& e) {
    launch["why_not"] = e.what();
  }
  return launch;
}

std::string matmul_text(const Json& matmul) {
  if (matmul.contains("why_not"))
    return "bf16 matrix product failed: " + printable(matmul["why_not"].get<std::string>());
  const double bf16 = matmul["bf16_tflops"].get<double>(), fp32 = matmul["fp32_tflops"].get<double>();
  const bool large = std::max(bf16, fp32) >= 1;
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << "matrix products: bf16 " << (large ? bf16 : 1e3 * bf16) << ", fp32 "
      << (large ? fp32 : 1e3 * fp32) << (large ? " TFLOP/s" : " GFLOP/s") << "; bf16 results are "
      << (matmul["bf16_right"].get<bool>() ? "right" : "WRONG");
  return out.str();
}

void print_report(const Json& report, std::ostream& out) {
  const auto row = [&out](const std::string& name, const auto&... text) {
    out << "  " << std::left << std::setw(14) << name << cat(text...) << "\n";
  };
  const auto text = [](const Json& value) { return printable(value.get<std::string>()); };
  const auto bytes = [](const Json& value) { return human_bytes(value.get<uint64_t>()); };

  const Json& program = report["program"];
  out << "program\n";
  row("hrm_train", text(program["version"]), ", commit ", text(program["commit"]), ", ", text(program["build_type"]),
      ", ", text(program["compiler"]));
  row("torch", text(program["torch"]));
  row("CUDA", program["cuda"] == "none"
                  ? "not built in: this program runs on the CPU (HRM_CUDA=ON builds it in)"
                  : text(program["cuda"]) + ", kernels for architectures " + text(program["cuda_archs"]));

  const Json& cpu = report["cpu"];
  out << "\nCPU\n";
  row("model", text(cpu["model"]));
  row("cores", cpu["cores"].dump(), ", ", cpu["threads"].dump(), " threads by default, code for ",
      text(cpu["vector_code"]));
  row("memory", bytes(cpu["memory_available_bytes"]), " available");
  row("arithmetic", matmul_text(cpu["matmul"]));

  const Json& gpu = report["gpu"];
  out << "\nGPU\n";
  row("usable", gpu["usable"].get<bool>() ? "yes" : "no: " + text(gpu["why_not"]));
  if (gpu.contains("cuda_runtime")) {
    row("versions", "program's CUDA runtime ", text(gpu["cuda_runtime"]), ", driver ",
        gpu.contains("driver_supports_cuda") ? "supports CUDA up to " + text(gpu["driver_supports_cuda"])
                                             : "not found");
  }
  for (const Json& device : gpu["devices"]) {
    row(cat("device ", device["index"].dump()), text(device["name"]), ", compute capability ",
        text(device["compute_capability"]), ", ", bytes(device["memory_bytes"]));
    row("  kernels", text(device["kernels"]));
    if (device.contains("matmul")) row("  arithmetic", matmul_text(device["matmul"]));
  }

  out << "\nops: what this program holds (with ops.backend=fused)\n";
  const auto op_row = [&out](const std::string& name, const std::string& on_cpu, const std::string& on_gpu,
                             const std::string& autograd) {
    out << "  " << std::left << std::setw(34) << name << std::setw(12) << on_cpu << std::setw(12) << on_gpu << autograd
        << "\n";
  };
  op_row("", "CPU", "GPU", "autograd");
  for (const Json& op : report["ops"]) {
    const auto kernel = [](const Json& has) { return has.get<bool>() ? std::string("kernel") : std::string("none"); };
    op_row(text(op["name"]), kernel(op["cpu"]), kernel(op["cuda"]), op["autograd"].get<bool>() ? "yes" : "no");
  }
  if (report["ops"].empty()) out << "  none registered: this program was linked without its ops\n";

  const Json& storage = report["storage"];
  out << "\nstorage\n";
  row("runs", text(storage["path"]),
      storage["writable"].get<bool>() ? "" : ": no permission to write there; set run.dir to another folder");
  row("free", storage.contains("free_bytes") ? bytes(storage["free_bytes"]) : text(storage["why_not"]));

  const Json& launch = report["launch"];
  out << "\nlaunch\n";
  row("started as", launch.contains("why_not") ? "unknown: " + text(launch["why_not"]) : text(launch["description"]));
}

int list_failpoints(bool as_json) {
  constexpr const char* kAll = "kill throw sleep=SECONDS";
  if (as_json) {
    Json json = Json::array();
    for (const failpoint::Info& info : failpoint::list()) {
      json.push_back({{"name", info.name}, {"where", info.where}, {"actions", info.actions}});
    }
    std::cout << json.dump(2) << "\n";
    return static_cast<int>(ExitCode::done);
  }
  std::cout
      << "HRM_FAIL=<name>:<count>:<action>[,...] lets the program fail on purpose. count: 3 = the third time that\n"
         "the place is reached, 3+ = from then on. action: "
      << kAll << ", and what stands behind a name.\n\n";
  for (const failpoint::Info& info : failpoint::list()) {
    std::cout << std::left << std::setw(24) << info.name << std::setw(24) << info.actions << info.where << "\n";
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
  if (options.failpoints) return list_failpoints(options.json);
  if (options.ranks) return run_doctor_ranks(options);
  Json report;
  for (const auto& [key, value] : build_info()) report["program"][key] = value;
  report["cpu"] = examine_cpu();
  report["gpu"] = examine_gpu();
  report["ops"] = examine_ops();
  report["storage"] = examine_storage();
  report["launch"] = examine_launch();
  if (options.json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  } else {
    print_report(report, std::cout);
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
