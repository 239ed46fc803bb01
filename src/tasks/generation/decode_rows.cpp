#include "tasks/generation/decode_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace hrm::tasks {
namespace {

using models::DecodeCache;
using models::LanguageInputs;
using models::LanguageModel;

// (n, T, D) at lengths - 1 -> (n, D)
at::Tensor last_of(const at::Tensor& hidden, const at::Tensor& lengths) {
  const at::Tensor at = (lengths - 1).clamp_min_(0).view({-1, 1, 1}).expand({-1, 1, hidden.size(2)});
  return hidden.gather(1, at).squeeze(1);
}

class CachedRows : public DecodeRows {
 public:
  CachedRows(LanguageModel& model, int64_t rows, int64_t tokens)
      : model_(model), rows_(rows), cache_(model.make_cache(rows, tokens)) {
    prefix_ = capacity() - tokens;
  }

  at::Tensor begin(const PromptBatch& prompts, const at::Tensor& places, const at::Tensor& of) override {
    DecodeCache fresh = model_.make_cache(prompts.inputs.ids.size(0), prompts.inputs.ids.size(1));
    const at::Tensor hidden = model_.prefill(prompts.inputs, prompts.lengths, fresh);
    // With a window, both caches have its places, or the fresh one has no more positions than places.
    const auto copy = [&](at::Tensor to, const at::Tensor& from) {
      to.narrow(2, 0, from.size(2)).index_copy_(0, places, from.index_select(0, of));
    };
    for (size_t i = 0; i < fresh.layers.size(); ++i) {
      copy(cache_.layers[i].keys, fresh.layers[i].keys);
      copy(cache_.layers[i].values, fresh.layers[i].values);
    }
    for (size_t i = 0; i < fresh.memory.size(); ++i) {
      const nn::LayerCache& from = fresh.memory[i];
      if (i == cache_.memory.size()) cache_.memory.push_back({room_for(from.keys), room_for(from.values)});
      copy(cache_.memory[i].keys, from.keys);
      copy(cache_.memory[i].values, from.values);
    }
    cache_.lengths.index_copy_(0, places, fresh.lengths.index_select(0, of));
    return last_of(hidden, prompts.lengths).index_select(0, of);
  }

  // On a GPU attention reads no more than there is, and each span would be captured anew.
  int64_t span(int64_t tokens) const override {
    if (cache_.lengths.is_cuda()) return capacity();
    constexpr int64_t kPart = 64;
    return std::min((prefix_ + tokens + kPart - 1) / kPart * kPart, capacity());
  }

  at::Tensor step(const at::Tensor& ids, int64_t span) override {
    DecodeCache view = first(ids.size(0), span);
    return model_.step(ids, view);
  }

  void settle(const at::Tensor& active) override { cache_.lengths.narrow(0, 0, active.size(0)).mul_(active); }

  void keep(const at::Tensor& places) override {
    const auto move = [&](const at::Tensor& t) { t.narrow(0, 0, places.size(0)).copy_(t.index_select(0, places)); };
    for (const auto* layers : {&cache_.layers, &cache_.memory}) {
      for (const nn::LayerCache& layer : *layers) {
        move(layer.keys);
        move(layer.values);
      }
    }
    move(cache_.lengths);
  }

  bool capturable() const override { return true; }

 private:
  int64_t capacity() const { return cache_.capacity; }
  at::Tensor room_for(const at::Tensor& part) const {
    std::vector<int64_t> sizes = part.sizes().vec();
    sizes[0] = rows_;
    return at::zeros(sizes, part.options());
  }
  DecodeCache first(int64_t rows, int64_t span) const {
    DecodeCache view;
    for (const nn::LayerCache& layer : cache_.layers) {
      const int64_t places = std::min(span, layer.keys.size(2));
      view.layers.push_back(
          {layer.keys.narrow(0, 0, rows).narrow(2, 0, places), layer.values.narrow(0, 0, rows).narrow(2, 0, places)});
    }
    for (const nn::LayerCache& layer : cache_.memory) {
      view.memory.push_back({layer.keys.narrow(0, 0, rows), layer.values.narrow(0, 0, rows)});
    }
    view.lengths = cache_.lengths.narrow(0, 0, rows);
    view.capacity = cache_.capacity;
    return view;
  }

  LanguageModel& model_;
  int64_t rows_, prefix_ = 0;
  DecodeCache cache_;  // of all places
};

class WholeRows : public DecodeRows {
 public:
  WholeRows(LanguageModel& model, int64_t rows, int64_t tokens, int64_t prompt, at::Device device)
      : model_(model), tokens_(tokens) {
    const auto longs = at::device(device).dtype(at::kLong);
    ids_ = at::zeros({rows, tokens}, longs);
    lengths_ = at::zeros({rows}, longs);
    if (prompt == 0) return;
    prompt_ids_ = at::zeros({rows, prompt}, longs);
    prompt_mask_ = at::zeros({rows, prompt}, longs.dtype(at::kBool));
  }

  at::Tensor begin(const PromptBatch& prompts, const at::Tensor& places, const at::Tensor& of) override {
    const auto copy = [&](const at::Tensor& to, const at::Tensor& from) {
      to.narrow(1, 0, from.size(1)).index_copy_(0, places, from.index_select(0, of));
    };
    copy(ids_, prompts.inputs.ids);
    lengths_.index_copy_(0, places, prompts.lengths.index_select(0, of));
    if (prompt_ids_.defined()) {
      prompt_mask_.index_fill_(0, places, 0);
      copy(prompt_ids_, prompts.inputs.prompt_ids);
      copy(prompt_mask_, prompts.inputs.prompt_mask);
    }
    const auto part = [&](const at::Tensor& t) { return t.defined() ? t.index_select(0, places) : at::Tensor(); };
    return pass(part(ids_).narrow(1, 0, prompts.inputs.ids.size(1)), part(prompt_ids_), part(prompt_mask_),
                part(lengths_));
  }

  int64_t span(int64_t tokens) const override { return std::min(tokens, tokens_); }

  at::Tensor step(const at::Tensor& ids, int64_t span) override {
    const int64_t rows = ids.size(0);
    const auto part = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, 0, rows) : at::Tensor(); };
    const at::Tensor lengths = part(lengths_);
    part(ids_).scatter_(1, lengths.unsqueeze(1), ids.unsqueeze(1));
    lengths.add_(1);
    return pass(part(ids_).narrow(1, 0, span), part(prompt_ids_), part(prompt_mask_), lengths);
  }

  void settle(const at::Tensor& active) override { lengths_.narrow(0, 0, active.size(0)).mul_(active); }

  void keep(const at::Tensor& places) override {
    for (const at::Tensor& t : {ids_, lengths_, prompt_ids_, prompt_mask_}) {
      if (t.defined()) t.narrow(0, 0, places.size(0)).copy_(t.index_select(0, places));
    }
  }

  bool capturable() const override { return false; }  // it grows with each token

 private:
  at::Tensor pass(const at::Tensor& ids, const at::Tensor& prompt_ids, const at::Tensor& prompt_mask,
                  const at::Tensor& lengths) {
    LanguageInputs inputs;
    inputs.ids = ids;
    inputs.prompt_ids = prompt_ids;
    inputs.prompt_mask = prompt_mask;
    return last_of(model_.forward(inputs).hidden, lengths);
  }

  LanguageModel& model_;
  int64_t tokens_;
  at::Tensor ids_;                       // (B, T) int64
  at::Tensor lengths_;                   // (B) int64
  at::Tensor prompt_ids_, prompt_mask_;  // (B, S), of models that read prompts apart
};

}  // namespace

std::unique_ptr<DecodeRows> make_cached_rows(LanguageModel& model, int64_t rows, int64_t tokens) {
  return std::make_unique<CachedRows>(model, rows, tokens);
}

std::unique_ptr<DecodeRows> make_whole_rows(LanguageModel& model, int64_t rows, int64_t tokens, int64_t prompt,
                                            at::Device device) {
  return std::make_unique<WholeRows>(model, rows, tokens, prompt, device);
}

}  // namespace hrm::tasks
