// Encodes many sentences: sorts them by length, pads them into batches, and restores their order.

#include <ATen/ATen.h>

#include <numeric>

#include "hrm/base/error.h"
#include "hrm/models/bert_encoder.h"

namespace hrm::models {
namespace {

constexpr int64_t kWidthStep = 16;

int64_t padded_width(int64_t length, int64_t positions) {
  return std::min((std::max<int64_t>(length, 1) + kWidthStep - 1) / kWidthStep * kWidthStep, positions);
}

void check_sentences(const std::vector<std::vector<int32_t>>& sentences, const BertOptions& o) {
  for (size_t i = 0; i < sentences.size(); ++i) {
    const auto length = static_cast<int64_t>(sentences[i].size());
    require(length <= o.positions, ExitCode::usage, "sentence ", i, " has ", length, " tokens, more than the ",
            o.positions, " positions that the encoder was built for; truncate it");
    for (size_t t = 0; t < sentences[i].size(); ++t) {
      const int32_t id = sentences[i][t];
      require(id >= 0 && id < o.vocabulary, ExitCode::usage, "token ", t, " of sentence ", i, " is ", id,
              ", but the encoder's vocabulary is 0 to ", o.vocabulary - 1);
    }
  }
}

// Copies once to the device: the rows' ids, and their token counts in the last column.
at::Tensor upload(const std::vector<std::vector<int32_t>>& sentences, const LengthBatch& batch, at::Device device) {
  const at::Tensor host = at::zeros({static_cast<int64_t>(batch.rows.size()), batch.width + 1},
                                    at::device(at::kCPU).dtype(at::kInt).pinned_memory(device.is_cuda()));
  int32_t* row = host.mutable_data_ptr<int32_t>();
  for (const int64_t index : batch.rows) {
    const std::vector<int32_t>& ids = sentences[static_cast<size_t>(index)];
    std::copy(ids.begin(), ids.end(), row);
    row[batch.width] = static_cast<int32_t>(ids.size());
    row += batch.width + 1;
  }
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace

std::vector<LengthBatch> batches_by_length(const std::vector<int64_t>& lengths, int64_t positions, int64_t max_tokens) {
  require(max_tokens >= 1, ExitCode::usage, "a batch of sentences needs at least 1 token, not ", max_tokens);
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto length = [&](int64_t row) { return lengths[static_cast<size_t>(row)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<LengthBatch> batches;
  for (const int64_t row : order) {
    const int64_t width = padded_width(length(row), positions);
    const bool fits = !batches.empty() && 2 * width >= batches.back().width &&
                      (static_cast<int64_t>(batches.back().rows.size()) + 1) * batches.back().width <= max_tokens;
    if (!fits) batches.push_back({.rows = {}, .width = width});
    batches.back().rows.push_back(row);
  }
  return batches;
}

at::Tensor embed_all(const BertEncoder& encoder, const std::vector<std::vector<int32_t>>& sentences,
                     int64_t max_tokens) {
  const at::NoGradGuard no_grad;
  check_sentences(sentences, encoder.options());
  std::vector<int64_t> lengths;
  for (const std::vector<int32_t>& sentence : sentences) lengths.push_back(static_cast<int64_t>(sentence.size()));
  const auto batches = batches_by_length(lengths, encoder.options().positions, max_tokens);
  const at::Device device = encoder.device();
  if (batches.empty()) return at::zeros({0, encoder.options().width}, at::device(device));

  std::vector<at::Tensor> vectors;
  const at::Tensor place = at::empty({static_cast<int64_t>(sentences.size())}, at::kLong);
  int64_t done = 0;
  for (const LengthBatch& batch : batches) {
    const at::Tensor packed = upload(sentences, batch, device);
    const at::Tensor mask =
        at::arange(batch.width, at::device(device).dtype(at::kInt)).lt(packed.narrow(1, batch.width, 1));
    vectors.push_back(encoder.embed(packed.narrow(1, 0, batch.width), mask));
    for (const int64_t row : batch.rows) place.mutable_data_ptr<int64_t>()[row] = done++;
  }
  return at::cat(vectors).index_select(0, place.to(device));
}

}  // namespace hrm::models
