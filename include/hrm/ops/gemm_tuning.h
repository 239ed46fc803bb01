#pragma once
// How matrix products without a kernel of ours find their algorithm on a GPU. With auto_ they go to cuBLASLt, whose
// candidates are timed at the first use of a shape. The fastest is kept in a file (runtime/tuning_cache.h) for the next
// start. Another algorithm may sum in another order, so a resumed run must use the same ones: the file keeps them on
// one machine, and a checkpoint carries those of its run (gemm_choices()).

#include <cstdint>
#include <filesystem>
#include <string>

namespace hrm::ops {

// off: cuBLAS chooses, by a rule of its own that depends on the shape alone.
enum class GemmTuning { off, auto_ };

// Process-wide (config key ops.gemm_tuning); off until set. Set it before the first step: a captured graph keeps what
// it captured.
void set_gemm_tuning(GemmTuning tuning);
GemmTuning gemm_tuning();

// The folder of the file; empty: default_tuning_folder(). Without `writes` the process takes what the file knows and
// stores nothing (a benchmark). Another answer than before forgets what the process knew.
void set_gemm_cache(const std::filesystem::path& folder, bool writes = true);

// What this process did so far, shapes by the origin of their algorithm.
struct GemmTuningReport {
  int64_t reused = 0;   // from the file or a checkpoint
  int64_t timed = 0;    // timed by this process
  int64_t untimed = 0;  // cuBLASLt's first proposal: first met while a graph was captured, or without memory to time
  double seconds = 0;   // spent in timing
  std::string file;     // that keeps what is timed; empty: none, or no product so far
};
GemmTuningReport gemm_tuning_report();

// The report as one line: "12 shapes by cuBLASLt, 10 known, 2 timed in 0.1 s, kept in
// '/home/a/.cache/hrm_train/NVIDIA....json'".
std::string gemm_tuning_text();

// The algorithms that this process uses, as one line of text for a checkpoint; empty where it uses none.
std::string gemm_choices();
// The name of that text among the facts of a checkpoint (CheckpointMeta::info).
constexpr const char* kGemmChoices = "gemm_choices";

// Takes those of a checkpoint instead of the file's. Call it before the first product. Where they are of another GPU
// or library version than the first product finds, that is said in one line and they are not used.
void adopt_gemm_choices(const std::string& text);

}  // namespace hrm::ops
