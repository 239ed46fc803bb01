#pragma once
// How matrix products without a kernel of ours choose their algorithm on a GPU. With auto_, they use cuBLASLt, and its
// candidates are timed when a shape is first used. The fastest is stored in a file (runtime/tuning_cache.h) for the
// next start. Another algorithm may sum in another order, so a resumed run must use the same ones. The file ensures
// this on one machine; a checkpoint also carries the choices of its run (gemm_choices()).

#include <cstdint>
#include <filesystem>
#include <string>

namespace hrm::ops {

// off: cuBLAS chooses by its own heuristic, which depends only on the shape.
enum class GemmTuning { off, auto_ };

// Process-wide (config key ops.gemm_tuning); off by default. Set it before the first step: a captured graph keeps the
// setting of its capture.
void set_gemm_tuning(GemmTuning tuning);
GemmTuning gemm_tuning();

// The folder of the file; empty: default_tuning_folder(). With `writes` false, the process reads the file and stores
// nothing (for benchmarks). A call that changes a setting discards all choices of this process.
void set_gemm_cache(const std::filesystem::path& folder, bool writes = true);

// What this process did so far: shapes by the origin of their algorithm.
struct GemmTuningReport {
  int64_t reused = 0;   // from the file or a checkpoint
  int64_t timed = 0;    // timed by this process
  int64_t untimed = 0;  // cuBLASLt's first proposal: first used during a graph capture, or no memory for timing
  double seconds = 0;   // spent on timing
  std::string file;     // where timed choices are stored; empty: none, or no product so far
};
GemmTuningReport gemm_tuning_report();

// The report as one line: "12 shapes by cuBLASLt, 10 known, 2 timed in 0.1 s, kept in
// '/home/a/.cache/hrm_train/NVIDIA....json'".
std::string gemm_tuning_text();

// The algorithms that this process uses, as one line of text for a checkpoint; empty if it uses none.
std::string gemm_choices();
// The key of that text in a checkpoint's CheckpointMeta::info.
constexpr const char* kGemmChoices = "gemm_choices";

// Uses the choices of a checkpoint instead of those in the file. Call it before the first product. If the first product
// finds another GPU or library version, they are not used, and one log line says so.
void adopt_gemm_choices(const std::string& text);

}  // namespace hrm::ops
