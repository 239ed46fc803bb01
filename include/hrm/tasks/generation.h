#pragma once
// Rows of tokens that a language model samples. A prompt is computed once for all of its samples. Then each step adds a
// token to every row of a batch, captured in a CUDA graph on a GPU. Nothing waits for the host: rows end on the device,
// which tells the host one step late. The next prompts enter the slots of ended rows. When none are left, running rows
// move into smaller batches.
//
// A row depends only on its prompt, its key and the options, not on other rows. In float32 the exception is the
// rounding of products of other sizes, which is far below what changes a token.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "hrm/models/language_model.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/tasks/sampling.h"

namespace hrm::tasks {

struct GenerateOptions {
  int64_t max_new_tokens = 128;  // of a row; fewer where the model takes no longer ones
  SamplingOptions sampling = {};
  uint64_t seed = 0;
  int64_t samples = 1;     // of each prompt, below 2^20
  uint64_t first_key = 0;  // of the first prompt, below 2^43; those that follow count on: what randomness is keyed by
  std::vector<uint64_t> keys = {};     // of each prompt, instead of first_key; empty: first_key and on
  std::vector<int64_t> stop_ids = {};  // each ends a row and is no part of it; at most 16. EOS is one of them
  int64_t begin_id = -1;   // what an answer begins with; models that read prompts apart need one, others take it for an
                           // empty prompt
  int64_t vocabulary = 0;  // ids from here on are never chosen; 0: as many as the model has

  uint64_t key(int64_t prompt) const {
    return keys.empty() ? first_key + static_cast<uint64_t>(prompt) : keys[static_cast<size_t>(prompt)];
  }
};

struct GeneratorOptions {
  int64_t batch_size = 0;  // rows at a time; 0: 64 on a GPU, 16 on a CPU
  bool cache = true;       // false: the whole row again for each token, as models without a cache always do
  bool cuda_graphs = true;
  // Tokens that a row has room for from the start, if later calls are known to need more. A call that needs more makes
  // all buffers, and the graphs captured with them, new.
  int64_t tokens = 0;
};

enum class Finish {
  stop_id,   // it chose one of stop_ids
  listener,  // GenerateListener::on_token said so
  length,    // max_new_tokens, or the longest row that the model takes
};

struct Generated {
  int64_t prompt = 0, sample = 0;
  std::vector<int32_t> ids = {};  // what was written, without prompt and stop id
  Finish finish = Finish::length;
  int32_t stop_id = -1;  // which one ended it; -1: none did
};

// Called on the calling thread while later tokens are being computed. Row r is sample r % samples of prompt r /
// samples.
struct GenerateListener {
  std::function<bool(int64_t row, int32_t id)> on_token = {};  // in order for each row; false: the row ends with it
  std::function<void(int64_t row, const Generated&)> on_end = {};
};

// What one call did.
struct GenerateCounts {
  int64_t steps = 0;              // of decoding
  int64_t prefills = 0;           // batches of prompts that were read
  int64_t captured_prefills = 0;  // of these, by a graph
  int64_t prompts = 0;    // prompts that they held; more than there are only where samples do not fit into a batch
  int64_t moves = 0;      // times that rows moved into a smaller batch
  double prefill_ms = 0;  // until the first batch of prompts was read; later ones overlap with decoding
};

class DecodeRows;
struct PromptBatch;

class Generator {
 public:
  // `model` must live as long, and may continue training between two calls: graphs read the weights where they stand.
  Generator(models::LanguageModel& model, const GeneratorOptions& options);
  ~Generator();

  // prompts: the ids of each. Returns prompts x samples rows, those of a prompt together, in order. Error(usage) for
  // options out of range and for a prompt that is empty or too long, with its number, counted from 1. Error(diverged)
  // if logits are not finite. Waits for the device.
  std::vector<Generated> run(const std::vector<std::vector<int32_t>>& prompts, const GenerateOptions& options,
                             const GenerateListener& listener = {});
  const GenerateCounts& counts() const { return counts_; }  // of the last call

 private:
  struct Call;
  // What a buffer must hold at least.
  struct Room {
    int64_t rows = 0, tokens = 0, prompt = 0, draws = 0;
  };

  void make_room(const Room& room);
  void admit(Call& call);
  void begin_rows(Call& call, const std::vector<int64_t>& rows, const std::vector<int64_t>& places);
  void read_prompts(const PromptBatch& prompts, int64_t n, const GenerateOptions& options);
  void move_together(Call& call);
  void step(Call& call);
  void read_one(Call& call);
  void end_row(Call& call, int64_t row, Finish finish);
  void choose(const at::Tensor& hidden, const at::Tensor& ids, const at::Tensor& count, const at::Tensor& limits,
              const at::Tensor& active, const at::Tensor& draws, const at::Tensor& chosen,
              const GenerateOptions& options);

  models::LanguageModel& model_;
  GeneratorOptions options_;
  at::Device device_;
  GenerateCounts counts_;

  // Static: B places for rows. Smaller batches use the first of them.
  Room room_;
  std::unique_ptr<DecodeRows> rows_;
  std::unique_ptr<CapturedStep> captured_, captured_begin_;
  at::Tensor ids_;       // (B) int64, the last token of each row
  at::Tensor count_;     // (B) int64, tokens that it has written
  at::Tensor limits_;    // (B) int64, most that it may write
  at::Tensor active_;    // (B) bool: the place has a row that has not ended
  at::Tensor draws_;     // (B, N) float64
  at::Tensor chosen_;    // (B) int64, of the last step; kNothing where the place had no row
  at::Tensor stop_ids_;  // (16) int64
  // Static, too: of the prompts that are read together, at most as many as there are places, and their rows.
  struct Beginning {
    at::Tensor ids;     // (B, T) int64
    at::Tensor facts;   // (4, B) int64: tokens of a prompt; place, prompt and most new tokens of a row
    at::Tensor draws;   // (B, N) float64
    at::Tensor chosen;  // (B) int64
  };
  Beginning begin_;
};

// The batch size that this many rows, or a few more, run in: powers of two and three quarters of them.
int64_t generation_bucket(int64_t rows);

}  // namespace hrm::tasks
