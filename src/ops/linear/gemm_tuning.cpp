#include "hrm/ops/gemm_tuning.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "ops/linear/gemm_tuning_impl.h"

namespace hrm::ops {
namespace {

std::atomic<GemmTuning> g_tuning{GemmTuning::off};
std::atomic<int64_t> g_generation{0};

// All below: one thread at a time. The backward pass runs in another thread than the forward pass.
std::mutex g_mutex;
struct State {
  std::optional<std::filesystem::path> folder;  // nullopt: the default one
  bool writes = true;
  // One for each model of GPU in the machine.
  std::map<std::pair<std::string, std::string>, std::unique_ptr<TuningCache>> caches;
  std::optional<TuningCache::Portable> adopted;
  TuningCache::Portable used;
  GemmTuningReport report;
};

State& state() {
  static State instance;
  return instance;
}

TuningCache& cache_of(const std::string& device, const std::string& library) {
  State& s = state();
  auto& cache = s.caches[{device, library}];
  if (cache) return *cache;
  cache = std::make_unique<TuningCache>(s.folder ? *s.folder : default_tuning_folder(), device, library, s.writes);
  s.report.file = s.writes ? cache->file().string() : "";
  if (s.adopted && s.adopted->device == device && s.adopted->library == library) {
    cache->adopt(s.adopted->choices);
  } else if (s.adopted) {
    log::info("the checkpoint's matrix products were tuned for ", s.adopted->device, " and ", s.adopted->library,
              "; on ", device, " with ", library, " they may round differently");
  }
  return *cache;
}

void forget(State& s) {
  s.caches.clear();
  s.used = {};
  s.report = {};
  ++g_generation;
}

}  // namespace

void set_gemm_tuning(GemmTuning tuning) {
  g_tuning = tuning;
}

GemmTuning gemm_tuning() {
  return g_tuning;
}

void set_gemm_cache(const std::filesystem::path& folder, bool writes) {
  const std::lock_guard lock(g_mutex);
  const auto wanted = folder.empty() ? std::nullopt : std::optional(folder);
  if (state().folder == wanted && state().writes == writes) return;
  state().folder = wanted;
  state().writes = writes;
  state().adopted.reset();
  forget(state());
}

GemmTuningReport gemm_tuning_report() {
  const std::lock_guard lock(g_mutex);
  return state().report;
}

std::string gemm_tuning_text() {
  const GemmTuningReport report = gemm_tuning_report();
  std::ostringstream out;
  out.precision(2);
  out << report.reused + report.timed + report.untimed << " shapes by cuBLASLt, " << report.reused << " known, "
      << report.timed << " timed";
  if (report.timed > 0) out << " in " << report.seconds << " s";
  if (report.untimed > 0) out << ", " << report.untimed << " as cuBLASLt proposes";
  if (!report.file.empty()) out << ", kept in '" << report.file << "'";
  return out.str();
}

std::string gemm_choices() {
  const std::lock_guard lock(g_mutex);
  return state().used.choices.empty() ? "" : TuningCache::to_text(state().used);
}

void adopt_gemm_choices(const std::string& text) {
  if (text.empty()) return;
  auto adopted = TuningCache::from_text(text);
  if (!adopted) {
    log::warn("the checkpoint's tuned matrix products cannot be read; its next steps may round differently");
    return;
  }
  const std::lock_guard lock(g_mutex);
  state().adopted = std::move(adopted);
  forget(state());
}

std::optional<TunedChoice> find_gemm(const std::string& device, const std::string& library, const std::string& key) {
  const std::lock_guard lock(g_mutex);
  return cache_of(device, library).find(key);
}

TunedChoice keep_gemm(const std::string& device, const std::string& library, const std::string& key,
                      const TunedChoice& choice, GemmOrigin origin, double seconds, const std::string& refused) {
  const std::lock_guard lock(g_mutex);
  State& s = state();
  TuningCache& cache = cache_of(device, library);
  const TunedChoice kept = origin == GemmOrigin::timed ? cache.add(key, choice, refused) : choice;
  if (origin == GemmOrigin::untimed) cache.adopt({{key, choice}});
  s.used.device = device;
  s.used.library = library;
  s.used.choices[key] = kept;
  if (origin == GemmOrigin::reused) ++s.report.reused;
  if (origin == GemmOrigin::timed) ++s.report.timed;
  if (origin == GemmOrigin::untimed) ++s.report.untimed;
  s.report.seconds += seconds;
  return kept;
}

int64_t gemm_generation() {
  return g_generation;
}

}  // namespace hrm::ops
