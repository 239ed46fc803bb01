#pragma once
// Device work that is the same every time (a training step, an evaluation segment), recorded once in a CUDA graph and
// then replayed: the host launches one thing instead of thousands.
//
// The rules of CUDA graphs say what may be captured:
//   - `work` reads and writes tensors with fixed addresses. What changes from run to run (a batch, a learning rate,
//     random draws) is written into such tensors before run().
//   - It waits for nothing and reads nothing back on the host. It has no host effect that must happen each time.
//   - Results that outlive it are in tensors that existed before it. All graphs share one memory pool, which holds only
//     temporaries. The pool is as large as the largest graph needs, not as their sum.
// Work that breaks a rule is refused, by CUDA or beforehand (CapturedStepOptions::refusal). The reason is logged once.
// Then this work and every later shape run eagerly. Shapes captured before are still replayed.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/runtime/captured_work.h"

namespace hrm {

struct CapturedStepOptions {
  std::string name = "step";  // for the log
  at::Device device = at::kCPU;
  bool enabled = true;       // false: always eagerly (runtime.cuda_graphs)
  int64_t warmup = 3;        // eager runs of a shape before its capture (runtime.graph_warmup_steps), at least 1
  size_t most = 0;           // graphs; what comes later runs eagerly; 0: no limit
  std::string refusal = "";  // why this work cannot be captured; empty when it can
};

class CapturedStep {
 public:
  // Which of several shapes a run has; each has its own graph.
  using Key = std::vector<int64_t>;

  explicit CapturedStep(CapturedStepOptions options);
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  // Does the work once, ordered with the current stream: eagerly on a side stream during warm-up, then by replay. On
  // the CPU, and when refused, it calls `work`. `work` is called for every eager run and once for the capture (which
  // does not execute it), never for a replay. A failed capture is followed by an eager run. `inputs`: static tensors
  // that the caller refills. Their addresses, shapes and dtypes are compared before a replay; Error(unexpected) names
  // one that changed, instead of replaying on invalid memory.
  void run(const Key& key, const std::vector<at::Tensor>& inputs, const std::function<void()>& work);

  // Whether runs of this shape are replays; once they are, they stay so, unless forget_others() drops them.
  bool captured(const Key& key) const;
  // Drops the graphs of all other shapes, and so their memory. Waits for the device if there are any.
  void forget_others(const Key& key);
  int64_t replays() const { return replays_; }
  // Why work of shapes that are not captured yet runs eagerly; empty while it may still be, or was not asked to be.
  const std::string& reason() const { return reason_; }

 private:
  friend std::vector<CapturedWork> captured_works();
  struct Entry;

  void run_aside(const std::function<void()>& work);
  bool capture(const Key& key, Entry& entry, const std::function<void()>& work);
  void refuse(std::string reason);

  CapturedStepOptions options_;
  std::map<Key, std::unique_ptr<Entry>> entries_;
  std::string reason_;
  size_t graphs_ = 0;
  int64_t replays_ = 0, eager_runs_ = 0;
};

// How many graphs this process has launched.
uint64_t graph_launches();

// Live bytes in the memory pool of this process's graphs: 0 as long as every captured work keeps its results in its own
// tensors. Slow; for tests.
int64_t graph_pool_bytes_in_use();

}  // namespace hrm
