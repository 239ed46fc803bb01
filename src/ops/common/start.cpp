#include "hrm/ops/start.h"

#include "hrm/base/log.h"
#include "hrm/ops/attention.h"
#include "hrm/ops/backend.h"
#include "hrm/ops/gemm_tuning.h"
#include "hrm/runtime/memory_history.h"
#include "hrm/runtime/nvtx.h"

namespace hrm::ops {

Runtime start_runtime_and_ops(const config::Config& config, int processes_here) {
  const Runtime runtime = start_runtime(config, processes_here);
  const bool wants_reference = config.ops.backend == config::OpsBackend::reference;
  const bool reference = wants_reference || !runtime.own_kernels;
  if (!runtime.lacking_kernels.empty() && !wants_reference) {
    log::warn(runtime.device_name, ": ", runtime.lacking_kernels);
  }
  set_backend(reference ? Backend::reference : Backend::fused);
  const bool sdpa = config.ops.attention == config::AttentionChoice::sdpa;
  set_attention_backend(sdpa ? AttentionBackend::sdpa : AttentionBackend::auto_);
  const bool tunes = runtime.device.is_cuda() && config.ops.gemm_tuning == config::GemmTuningChoice::automatic &&
                     !config.runtime.deterministic;
  set_gemm_tuning(tunes ? GemmTuning::auto_ : GemmTuning::off);
  set_gemm_cache(config.ops.gemm_cache);
  enable_nvtx(config.profiling);
  watch_out_of_memory(runtime.device, /*file=*/"");
  return runtime;
}

}  // namespace hrm::ops
