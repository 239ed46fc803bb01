#include "ops/linear/cuda/blaslt.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/gemm_tuning.h"
#include "ops/linear/gemm_tuning_impl.h"

namespace hrm::ops::cuda {
namespace {

constexpr size_t kMaxWorkspace = size_t{32} << 20;
constexpr int kCandidates = 16;
// Rounds over the candidates; the first one warms up.
constexpr int kRounds = 6;
// A candidate must be faster than the first proposal by more than what two measurements of one kernel differ.
constexpr double kMargin = 0.03;
// The time of a candidate that cannot run.
constexpr double kFailed = 1e12;
// Floating-point operations (2 m n k) below which the launch is what costs, whatever the algorithm.
constexpr double kWorthTuning = 1 << 26;

template <class Handle, cublasStatus_t (*Destroy)(Handle)>
struct Destroyer {
  using pointer = Handle;
  void operator()(Handle handle) const { Destroy(handle); }
};
template <class Handle, cublasStatus_t (*Destroy)(Handle)>
using Owned = std::unique_ptr<Handle, Destroyer<Handle, Destroy>>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) cudaGetLastError();  // handled here; torch's next check must not find it
  require(status == CUBLAS_STATUS_SUCCESS, ExitCode::environment, what, ": ", cublasLtGetStatusString(status));
}

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) cudaGetLastError();
  require(status == cudaSuccess, ExitCode::environment, what, ": ", cudaGetErrorString(status));
}

cudaDataType_t data_type(at::ScalarType type) {
  if (type == at::kFloat8_e4m3fn) return CUDA_R_8F_E4M3;
  if (type == at::kFloat8_e5m2) return CUDA_R_8F_E5M2;
  if (type == at::kBFloat16) return CUDA_R_16BF;
  return type == at::kHalf ? CUDA_R_16F : CUDA_R_32F;
}

const char* type_name(at::ScalarType type) {
  if (type == at::kFloat8_e4m3fn) return "e4m3";
  if (type == at::kFloat8_e5m2) return "e5m2";
  if (type == at::kBFloat16) return "bf16";
  return type == at::kHalf ? "f16" : "f32";
}

bool known_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

bool is_8bit(at::ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

int alignment_of(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return static_cast<int>(std::min<uintptr_t>(address & (~address + 1), 256));
}

// How a matrix lies in memory: rows side by side, or (transposed) columns. False: neither.
bool describe(const at::Tensor& matrix, bool& transposed, int64_t& pitch) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1), down = matrix.stride(0), across = matrix.stride(1);
  // Steps along a dimension of one element are never taken.
  if ((across == 1 || columns == 1) && (rows == 1 || down >= columns)) {
    transposed = false;
    pitch = rows == 1 ? columns : down;
    return true;
  }
  if ((down == 1 || rows == 1) && (columns == 1 || across >= rows)) {
    transposed = true;
    pitch = columns == 1 ? rows : across;
    return true;
  }
  return false;
}

// A product ready to run. cuBLASLt's matrices lie column by column, so a row-major matrix is its own transpose there:
// it computes out^T (n, m) = b^T (n, k) @ a^T (k, m), with b first, and what is transposed here is transposed there.
struct Plan {
  Operation operation;
  Layout b, a, out;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
  bool usable = false;
};

Layout make_layout(at::ScalarType type, int64_t rows, int64_t columns, bool transposed, int64_t pitch) {
  cublasLtMatrixLayout_t layout = nullptr;
  if (transposed) std::swap(rows, columns);
  check(cublasLtMatrixLayoutCreate(&layout, data_type(type), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), pitch),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

struct Pointers {
  const void* a;
  const void* b;
  const void* sum;  // what is added, where something is
  void* out;
  const float* a_scale = nullptr;  // of 8-bit floats
  const float* b_scale = nullptr;
};

cublasStatus_t set_scales(cublasLtMatmulDesc_t operation, const Pointers& p) {
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const float* scale) {
    return cublasLtMatmulDescSetAttribute(operation, which, &scale, sizeof scale);
  };
  // cuBLASLt's first operand is our second.
  const cublasStatus_t status = set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale);
  return status == CUBLAS_STATUS_SUCCESS ? set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale) : status;
}

Plan make_plan(const GemmShape& s, const Pointers& pointers) {
  Plan plan;
  cublasLtMatmulDesc_t operation = nullptr;
  const cublasComputeType_t compute = s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  check(cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  plan.operation = Operation(operation);
  const auto set_transpose = [&](cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(operation, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSA, s.b_t);
  set_transpose(CUBLASLT_MATMUL_DESC_TRANSB, s.a_t);
  if (is_8bit(s.in)) {
    const int8_t fast = s.exact ? 0 : 1;
    check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast),
          "cublasLtMatmulDescSetAttribute");
  }
  if (s.row_scales) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for (const auto which : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
      check(cublasLtMatmulDescSetAttribute(operation, which, &mode, sizeof mode), "cublasLtMatmulDescSetAttribute");
    }
    // In front of the search for an algorithm, which may ask whether there are vectors. It reads none of them.
    check(set_scales(operation, pointers), "cublasLtMatmulDescSetAttribute");
  }
  plan.b = make_layout(s.in_b, s.k, s.n, s.b_t, s.b_pitch);
  plan.a = make_layout(s.in, s.m, s.k, s.a_t, s.a_pitch);
  plan.out = make_layout(s.out, s.m, s.n, /*transposed=*/false, s.out_pitch);
  return plan;
}

// The candidates, best first by cuBLASLt's own guess.
std::vector<cublasLtMatmulHeuristicResult_t> candidates(cublasLtHandle_t handle, const GemmShape& s, const Plan& plan) {
  cublasLtMatmulPreference_t raw = nullptr;
  check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(raw, which, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kMaxWorkspace});
  // Parts of a split sum stay float32, and a separate step adds them in one order.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(s.b_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(s.a_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(s.out_align));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(s.out_align));
  std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, plan.operation.get(), plan.b.get(), plan.a.get(), plan.out.get(),
                                     plan.out.get(), raw, kCandidates, results.data(), &count);
  results.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  std::erase_if(results, [](const auto& result) {
    return result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kMaxWorkspace;
  });
  return results;
}

// An algorithm is 64 bytes that cuBLASLt allows to be stored and used again by the same version.
std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  unsigned char bytes[sizeof algorithm];
  std::memcpy(bytes, &algorithm, sizeof algorithm);
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<cublasLtMatmulAlgo_t> from_hex(const std::string& text) {
  cublasLtMatmulAlgo_t algorithm{};
  unsigned char bytes[sizeof algorithm];
  if (text.size() != 2 * sizeof bytes) return std::nullopt;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
  for (size_t i = 0; i < sizeof bytes; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<unsigned char>(high << 4 | low);
  }
  std::memcpy(&algorithm, bytes, sizeof algorithm);
  return algorithm;
}

cublasStatus_t launch(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                      bool accumulates, const Pointers& p, void* workspace, size_t bytes, cudaStream_t stream) {
  const float alpha = 1, beta = accumulates ? 1 : 0;
  // A copy: other threads may use the plan with other scales.
  cublasLtMatmulDescOpaque_t operation = *plan.operation.get();
  if (p.a_scale != nullptr) {
    if (const cublasStatus_t status = set_scales(&operation, p); status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return cublasLtMatmul(handle, &operation, &alpha, p.b, plan.b.get(), p.a, plan.a.get(), &beta, p.sum, plan.out.get(),
                        p.out, plan.out.get(), &algorithm, workspace, bytes, stream);
}

// Device memory for the timing, beside torch's allocator: what is needed for milliseconds shall neither are in the
// peak of the run nor in its pool.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, bytes), "memory to time matrix products");
  }
  ~Scratch() { cudaFree(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() { check(cudaEventSynchronize(event_), "timing matrix products"); }
  double us_since(const Event& start) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start.event_, event_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(ms);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

struct Timed {
  size_t best = 0;
  double us = 0, first_us = 0;
};

// The candidates in turn, several rounds, so that what else happens meets all of them. The operands are what they are
// in the step: those of large products do not fit into the cache, those of small ones were just written.
Timed time_candidates(cublasLtHandle_t handle, const GemmShape& shape, const Plan& plan, Pointers pointers,
                      const std::vector<cublasLtMatmulHeuristicResult_t>& results, cudaStream_t stream) {
  size_t most = 0;
  for (const auto& result : results) most = std::max(most, result.workspaceSize);
  const Scratch workspace(most);
  // What is accumulated must not be added twice; without accumulation the output may be written again and again.
  const size_t out_bytes = static_cast<size_t>(((shape.m - 1) * shape.out_pitch + shape.n) *
                                               static_cast<int64_t>(c10::elementSize(shape.out)));
  const Scratch other(shape.accumulates ? out_bytes : 0);
  if (shape.accumulates) pointers.out = other.data();

  std::vector<std::vector<double>> us(results.size());
  std::vector<Event> starts(results.size()), stops(results.size());
  int repeats = 1;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < results.size(); ++i) {
      starts[i].record(stream);
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const cublasStatus_t status = launch(handle, plan, results[i].algo, shape.accumulates, pointers,
                                             workspace.data(), results[i].workspaceSize, stream);
        if (status == CUBLAS_STATUS_SUCCESS) continue;
        cudaGetLastError();
        us[i].push_back(kFailed);
      }
      stops[i].record(stream);
    }
    stops.back().wait();
    for (size_t i = 0; i < results.size() && round > 0; ++i) us[i].push_back(stops[i].us_since(starts[i]) / repeats);
    // Short kernels in a row, so that the launch of the next one is hidden behind the one before.
    if (round == 0) repeats = stops.front().us_since(starts.front()) < 200 ? 4 : 1;
  }
  Timed timed;
  for (size_t i = 0; i < results.size(); ++i) {
    const bool failed = *std::max_element(us[i].begin(), us[i].end()) >= kFailed;
    std::nth_element(us[i].begin(), us[i].begin() + us[i].size() / 2, us[i].end());
    const double median = failed ? kFailed : us[i][us[i].size() / 2];
    if (i == 0) timed = {0, median, median};
    if (median < timed.us) timed = {i, median, timed.first_us};
  }
  require(timed.us < kFailed, ExitCode::environment, "none of the candidates can run it");
  if (timed.us > (1 - kMargin) * timed.first_us) timed = {0, timed.first_us, timed.first_us};
  return timed;
}

// One for each GPU of the machine.
struct Device {
  cublasLtHandle_t handle = nullptr;  // lives as long as the process
  std::string name;
  int64_t generation = -1;
  std::map<GemmShape, std::shared_ptr<Plan>> plans;
  std::map<at::ScalarType, bool> row_scales;  // whether 8-bit products have them, with a result of this dtype
};

std::string library_name() {
  return cat("cuBLASLt ", cublasLtGetVersion());
}

std::string device_text(int index) {
  const cudaDeviceProp* properties = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  return cat(properties->name, ", ", properties->major, ".", properties->minor, ", ", properties->multiProcessorCount,
             " SMs");
}

std::mutex g_mutex;

void take(Plan& plan, const cublasLtMatmulHeuristicResult_t& result) {
  plan.algorithm = result.algo;
  plan.workspace = result.workspaceSize;
  plan.usable = true;
}

// Sets the algorithm that the text names, if it can run this product.
bool take_known(cublasLtHandle_t handle, Plan& plan, const std::string& text) {
  const auto algorithm = from_hex(text);
  if (!algorithm) return false;
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, plan.operation.get(), plan.b.get(), plan.a.get(),
                                                        plan.out.get(), plan.out.get(), &*algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kMaxWorkspace) return false;
  result.algo = *algorithm;
  take(plan, result);
  return true;
}

// Finds the algorithm: known, timed, or (`untimed`, as while capturing) proposed. The plan stays unusable where there
// is none.
void choose(Device& device, const GemmShape& shape, Plan& plan, const Pointers& pointers, bool untimed,
            cudaStream_t stream) {
  const std::string key = gemm_key(shape), library = library_name();
  std::string refused;
  if (const auto known = find_gemm(device.name, library, key)) {
    if (take_known(device.handle, plan, known->algorithm)) {
      keep_gemm(device.name, library, key, *known, GemmOrigin::reused);
      return;
    }
    refused = known->algorithm;
    log::warn("matrix product ", key, ": the stored algorithm cannot run it; another one is chosen");
  }
  const auto results = candidates(device.handle, shape, plan);
  if (results.empty()) return;
  take(plan, results.front());
  TunedChoice choice{to_hex(results.front().algo), 0, 0};
  GemmOrigin origin = GemmOrigin::untimed;
  double seconds = 0;
  if (!untimed) {
    const auto start = std::chrono::steady_clock::now();
    try {
      const Timed timed = time_candidates(device.handle, shape, plan, pointers, results, stream);
      take(plan, results[timed.best]);
      choice = {to_hex(results[timed.best].algo), timed.us, timed.first_us};
      origin = GemmOrigin::timed;
    } catch (const Error& e) {
      log::warn("matrix product ", key, " runs as cuBLASLt proposes: ", e.what());
    }
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const TunedChoice kept = keep_gemm(device.name, library, key, choice, origin, seconds, refused);
  if (kept.algorithm != choice.algorithm && !take_known(device.handle, plan, kept.algorithm)) {
    keep_gemm(device.name, library, key, choice, origin, seconds, kept.algorithm);  // the other's cannot run here
  }
}

struct Ready {
  cublasLtHandle_t handle = nullptr;
  std::shared_ptr<Plan> plan;  // null: cuBLASLt does not do it
};

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// With a handle; null while a graph is captured before the first use, because a handle allocates. Holds g_mutex.
Device* device_at(int index) {
  // Never destroyed: at the end of the process CUDA may be gone before it.
  static auto& devices = *new std::map<int, Device>;
  Device& device = devices[index];
  if (device.handle == nullptr) {
    if (capturing()) return nullptr;
    device.name = device_text(index);
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "cublasLtCreate");
    device.handle = handle;
  }
  return &device;
}

// The plan for this shape, made at its first use. Where that fails, the shape is cuBLAS's from then on: a later try
// might succeed with another algorithm, which may round differently.
Ready plan_for(const GemmShape& shape, int index, const Pointers& pointers, cudaStream_t stream) {
  const std::lock_guard lock(g_mutex);
  Device* const known = device_at(index);
  if (known == nullptr) return {};
  Device& device = *known;
  if (device.generation != gemm_generation()) {
    device.plans.clear();
    device.generation = gemm_generation();
  }
  std::shared_ptr<Plan>& plan = device.plans[shape];
  if (plan == nullptr) {
    plan = std::make_shared<Plan>();  // unusable, until all went well
    Plan made = make_plan(shape, pointers);
    // 8-bit products are asked for with gemm_tuning=off, too.
    const bool untimed = capturing() || (is_8bit(shape.in) && gemm_tuning() == GemmTuning::off);
    choose(device, shape, made, pointers, untimed, stream);
    *plan = std::move(made);
  }
  return {device.handle, plan->usable ? plan : nullptr};
}

}  // namespace

bool GemmShape::operator<(const GemmShape& other) const {
  const auto all = [](const GemmShape& s) {
    return std::tie(s.m, s.n, s.k, s.a_t, s.b_t, s.a_pitch, s.b_pitch, s.out_pitch, s.a_align, s.b_align, s.out_align,
                    s.in, s.out, s.in_b, s.accumulates, s.tf32, s.exact, s.row_scales);
  };
  return all(*this) < all(other);
}

std::string gemm_key(const GemmShape& s) {
  return cat(s.m, "x", s.n, "x", s.k, " ", s.a_t ? "t" : "n", s.b_t ? "t" : "n", " ", type_name(s.in),
             s.tf32 ? "(tf32)" : "", s.in_b == s.in ? "" : "*", s.in_b == s.in ? "" : type_name(s.in_b),
             s.exact ? "(exact)" : "", s.row_scales ? "(rows)" : "", ">", type_name(s.out),
             s.accumulates ? " +=" : " =", ", pitch ", s.a_pitch, " ", s.b_pitch, " ", s.out_pitch, ", aligned ",
             s.a_align, " ", s.b_align, " ", s.out_align);
}

bool describe_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                   GemmShape& shape) {
  if (out.dim() != 2 || a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0) || out.size(0) != a.size(0) ||
      out.size(1) != b.size(1)) {
    return false;
  }
  shape.m = a.size(0);
  shape.n = b.size(1);
  shape.k = a.size(1);
  shape.in = a.scalar_type();
  shape.out = out.scalar_type();
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return false;
  shape.in_b = b.scalar_type();
  if (is_8bit(shape.in) || is_8bit(shape.in_b)) {
    if (!is_8bit(shape.in) || !is_8bit(shape.in_b) || !known_type(shape.out)) return false;
  } else if (!known_type(shape.in) || shape.in_b != shape.in || (shape.out != shape.in && shape.out != at::kFloat)) {
    return false;
  }
  bool out_t = false;
  if (!describe(out, out_t, shape.out_pitch) || out_t || !describe(a, shape.a_t, shape.a_pitch) ||
      !describe(b, shape.b_t, shape.b_pitch)) {
    return false;
  }
  shape.a_align = alignment_of(a);
  shape.b_align = alignment_of(b);
  shape.out_align = alignment_of(out);
  shape.accumulates = accumulates;
  shape.tf32 =
      shape.in == at::kFloat && at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
                                    at::Float32Precision::TF32;
  return true;
}

namespace {

// Accounts for what is added instead of what out held; false where it does not lie as out does.
bool take_sum(GemmShape& shape, const at::Tensor& out, const at::Tensor& sum) {
  if (!sum.defined()) return true;
  if (!shape.accumulates || sum.sizes() != out.sizes() || sum.strides() != out.strides() ||
      sum.scalar_type() != out.scalar_type() || sum.device() != out.device()) {
    return false;
  }
  shape.out_align = std::min(shape.out_align, alignment_of(sum));
  return true;
}

// Runs the product, or says that cuBLASLt does not.
bool run(const GemmShape& shape, const at::Tensor& out, const Pointers& pointers) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  Ready ready;
  try {
    ready = plan_for(shape, out.get_device(), pointers, stream);
    if (ready.plan == nullptr) return false;
    const Plan& plan = *ready.plan;
    at::Tensor workspace;
    if (plan.workspace > 0) {
      workspace = at::empty({static_cast<int64_t>(plan.workspace)}, out.options().dtype(at::kByte));
    }
    check(launch(ready.handle, plan, plan.algorithm, shape.accumulates, pointers,
                 workspace.defined() ? workspace.mutable_data_ptr() : nullptr, plan.workspace, stream),
          "cublasLtMatmul");
    return true;
  } catch (const Error& e) {
    log::warn("cuBLASLt refuses ", gemm_key(shape), " (", e.what(), "); ",
              is_8bit(shape.in) ? "plain ATen does it, slower" : "cuBLAS does it");
    const std::lock_guard lock(g_mutex);
    if (ready.plan != nullptr) ready.plan->usable = false;
    return false;
  }
}

}  // namespace

bool blaslt_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                 const at::Tensor& sum) {
  GemmShape shape;
  if (!out.is_cuda() || a.device() != out.device() || b.device() != out.device() ||
      !describe_gemm(out, a, b, accumulates, shape) || is_8bit(shape.in) || !take_sum(shape, out, sum)) {
    return false;
  }
  RECORD_FUNCTION("hrm::linear_blaslt", std::vector<c10::IValue>({out, a, b}));
  const c10::cuda::CUDAGuard device_guard(out.device());
  void* const data = out.mutable_data_ptr();
  return run(shape, out, {a.const_data_ptr(), b.const_data_ptr(), sum.defined() ? sum.const_data_ptr() : data, data});
}

bool scaled_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                 const GemmScales& scales, const at::Tensor& sum) {
  GemmShape shape;
  if (!out.is_cuda() || a.device() != out.device() || b.device() != out.device() ||
      !describe_gemm(out, a, b.t(), accumulates, shape) || !is_8bit(shape.in) || !take_sum(shape, out, sum)) {
    return false;
  }
  shape.exact = scales.exact;
  shape.row_scales = scales.rows;
  RECORD_FUNCTION("hrm::fp8_blaslt", std::vector<c10::IValue>({out, a, b}));
  const c10::cuda::CUDAGuard device_guard(out.device());
  void* const data = out.mutable_data_ptr();
  const void* const added = sum.defined() ? sum.const_data_ptr() : data;
  return run(shape, out, {a.const_data_ptr(), b.const_data_ptr(), added, data, scales.a, scales.b});
}

bool multiplies_scaled_rows(at::Device device, at::ScalarType out) {
  const c10::cuda::CUDAGuard device_guard(device);
  const std::lock_guard lock(g_mutex);
  GemmShape shape;
  shape.m = shape.n = shape.k = shape.a_pitch = shape.b_pitch = shape.out_pitch = 256;
  shape.b_t = shape.row_scales = true;
  shape.a_align = shape.b_align = shape.out_align = 256;
  shape.in = shape.in_b = at::kFloat8_e4m3fn;
  shape.out = out;
  alignas(256) static const float unread = 1;
  const Pointers pointers{nullptr, nullptr, nullptr, nullptr, &unread, &unread};
  try {
    Device* const known = device_at(device.index());
    if (known == nullptr) return false;
    const auto [place, is_new] = known->row_scales.try_emplace(out, false);
    if (is_new) place->second = !candidates(known->handle, shape, make_plan(shape, pointers)).empty();
    return place->second;
  } catch (const Error& e) {
    log::warn("cuBLASLt has no 8-bit products with scales for rows: ", e.what());
    return false;
  }
}

bool tuned_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool accumulates,
                const at::Tensor& sum) {
  if (gemm_tuning() == GemmTuning::off || backend() == Backend::reference || a.dim() != 2 || b.dim() != 2) return false;
  const double flops =
      2.0 * static_cast<double>(a.size(0)) * static_cast<double>(a.size(1)) * static_cast<double>(b.size(1));
  return flops >= kWorthTuning && blaslt_gemm(out, a, b, accumulates, sum);
}

}  // namespace hrm::ops::cuda
