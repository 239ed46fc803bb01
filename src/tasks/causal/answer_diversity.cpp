#include "hrm/tasks/answer_diversity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/data/wordpiece.h"
#include "hrm/formats/hf_config.h"
#include "hrm/formats/safetensors_set.h"
#include "hrm/metrics/text_metrics.h"
#include "hrm/models/bert_encoder.h"
#include "hrm/ops/diversity.h"
#include "hrm/runtime/device.h"
#include "tasks/generation/elapsed.h"

namespace hrm::tasks {
namespace {}  // namespace

struct AnswerEncoder {
  std::string name;
  data::WordPiece words;
  models::BertEncoder bert;
  int64_t max_tokens;  // of a text; what is longer is cut
};

namespace {

std::unique_ptr<AnswerEncoder> open_encoder(const std::string& path, at::Device device, at::ScalarType dtype) {
  namespace fs = std::filesystem;
  const fs::path folder(path);
  const HfBertConfig config = read_bert_config(folder);
  data::WordPiece words = data::WordPiece::load(folder);
  require(words.vocab_size() <= config.vocab_size, ExitCode::data, "'", path, "' has a vocabulary of ",
          words.vocab_size(), " tokens for a model of ", config.vocab_size, "; they are of two models");
  const models::BertOptions options{.vocabulary = config.vocab_size,
                                    .width = config.hidden_size,
                                    .layers = config.layers,
                                    .heads = config.heads,
                                    .inner = config.intermediate_size,
                                    .positions = config.max_position_embeddings,
                                    .token_types = config.type_vocab_size,
                                    .eps = config.layer_norm_eps};
  models::BertEncoder bert(options, checkpoint::tensors_of(SafetensorsSet(folder)), device,
                           dtype == at::kHalf ? at::kFloat : dtype, path);
  std::string name = fs::absolute(folder).lexically_normal().filename().string();
  return std::make_unique<AnswerEncoder>(
      AnswerEncoder{std::move(name), std::move(words), std::move(bert),
                    std::min(config.max_seq_length, config.max_position_embeddings)});
}

}  // namespace

AnswerDiversity::AnswerDiversity(const config::PolychromicConfig& config, at::Device device, at::ScalarType dtype)
    : metric_(config.diversity_metric), device_(device) {
  if (metric_ == config::DiversityMetric::semantic)
    encoder_ = open_encoder(config.diversity_encoder_model, device, dtype);
}

AnswerDiversity::~AnswerDiversity() = default;

at::Tensor AnswerDiversity::embed(const std::vector<std::string>& texts) {
  if (!encoder_) return {};
  std::vector<std::vector<int32_t>> ids;
  encoded_tokens_ = 0;
  for (const std::string& text : texts) {
    ids.push_back(encoder_->words.encode(text, encoder_->max_tokens));
    encoded_tokens_ += static_cast<int64_t>(ids.back().size());
  }
  return models::embed_all(encoder_->bert, ids);
}

objectives::GroupDiversity AnswerDiversity::measure(const std::vector<std::string>& texts, int64_t n) {
  const auto groups = static_cast<int64_t>(texts.size()) / n;
  auto start = Clock::now();
  if (encoder_) {
    embeddings_ = embed(texts);
    synchronize(device_);
    encode_ms_ = ms_since(start);
    start = Clock::now();
    const ops::Diversity found = ops::semantic_diversity(embeddings_.view({groups, n, -1}));
    synchronize(device_);
    metric_ms_ = ms_since(start);
    return {.totals = found.totals, .rows = found.rows, .loo = found.loo};
  }
  objectives::GroupDiversity out{.totals = at::empty({groups}, at::kFloat),
                                 .rows = at::empty({groups, n}, at::kFloat),
                                 .loo = at::empty({groups, n}, at::kFloat)};
  for (int64_t group = 0; group < groups; ++group) {
    const std::vector<std::string> answers(texts.begin() + group * n, texts.begin() + (group + 1) * n);
    const metrics::TextDiversity found = metric_ == config::DiversityMetric::bleu
                                             ? metrics::bleu_diversity(answers)
                                             : metrics::distinct_diversity(answers, 2);
    out.totals.data_ptr<float>()[group] = static_cast<float>(found.total);
    for (int64_t i = 0; i < n; ++i) {
      out.rows.data_ptr<float>()[group * n + i] = static_cast<float>(found.rows[static_cast<size_t>(i)]);
      out.loo.data_ptr<float>()[group * n + i] = static_cast<float>(found.loo[static_cast<size_t>(i)]);
    }
  }
  metric_ms_ = ms_since(start);
  return {.totals = out.totals.to(device_), .rows = out.rows.to(device_), .loo = out.loo.to(device_)};
}

std::string AnswerDiversity::describe() const {
  if (!encoder_) return metric_ == config::DiversityMetric::bleu ? "1 - BLEU-2" : "distinct pairs of words";
  const models::BertOptions& o = encoder_->bert.options();
  return cat("semantic, by ", encoder_->name, " (", o.layers, " layers, width ", o.width, ")");
}

}  // namespace hrm::tasks
