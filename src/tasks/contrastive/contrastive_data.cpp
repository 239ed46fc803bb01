#include "hrm/tasks/contrastive_data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/data/language_open.h"

namespace hrm::tasks {
namespace {

class VectorSource : public ContrastiveSource {
 public:
  VectorSource(std::shared_ptr<const data::VectorDataset> dataset, const data::VectorScaling& scaling, int64_t classes,
               at::Device device)
      : dataset_(std::move(dataset)), table_(*dataset_, scaling, device), classes_(classes) {}

  int64_t rows() const override { return dataset_->rows(); }
  int64_t features() const override { return dataset_->features(); }
  int64_t classes() const override { return classes_; }
  bool is_text() const override { return false; }
  const std::string& origin() const override { return dataset_->origin(); }
  std::string digest() const override { return dataset_->digest(); }
  std::string batch_digest(const data::VectorStreamOptions& options, int64_t position) const override {
    return data::batch_digest(*dataset_, options, position);
  }
  void load(const at::Tensor& picks, const data::VectorBatch& batch) const override { table_.load(picks, batch); }

 private:
  std::shared_ptr<const data::VectorDataset> dataset_;
  data::VectorTable table_;
  int64_t classes_;
};

// Row i predicts token i + 1 of the split from the `context` tokens up to i, the nearest first. Tokens before the first
// one are missing: their inputs are zero.
class TextSource : public ContrastiveSource {
 public:
  TextSource(std::shared_ptr<const data::TokenDataset> dataset, int64_t context, at::Device device)
      : dataset_(std::move(dataset)), context_(context) {
    require(dataset_->num_tokens() >= 2, ExitCode::data, dataset_->origin(), " holds ", dataset_->num_tokens(),
            " tokens, too few to predict one from another");
    at::Tensor tokens = at::empty({dataset_->num_tokens()}, at::kInt);
    dataset_->tokens(0, tokens.numel(), tokens.mutable_data_ptr<int32_t>());
    tokens_ = tokens.to(device);
    offsets_ = at::arange(context, at::device(device).dtype(at::kLong));
  }

  int64_t rows() const override { return tokens_.numel() - 1; }
  int64_t features() const override { return context_ * dataset_->meta().vocab_size; }
  int64_t classes() const override { return dataset_->meta().vocab_size; }
  bool is_text() const override { return true; }
  const std::string& origin() const override { return dataset_->origin(); }
  std::string digest() const override { return dataset_->digest(); }
  std::string batch_digest(const data::VectorStreamOptions& options, int64_t position) const override {
    data::VectorStream stream(rows(), {.seed = options.seed, .global_batch_size = options.global_batch_size}, position);
    const at::Tensor picks = stream.next().rows.clone();
    const at::Tensor labels = tokens_.cpu().index_select(0, picks + 1);
    Hasher hasher;
    for (const at::Tensor& tensor : {picks, labels}) {
      hasher.update(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
    }
    return hasher.hex();
  }
  void load(const at::Tensor& picks, const data::VectorBatch& batch) const override {
    const at::Tensor rows = picks.to(tokens_.device(), /*non_blocking=*/true);
    const at::Tensor places = rows.unsqueeze(1) - offsets_;  // (B, context)
    const at::Tensor ids = tokens_.index_select(0, places.clamp_min(0).flatten()).view(places.sizes()).to(at::kLong);
    const at::Tensor columns = ids + offsets_ * dataset_->meta().vocab_size;
    batch.inputs.zero_();
    batch.inputs.scatter_(1, columns, places.ge(0).to(at::kFloat));
    batch.labels.copy_(tokens_.index_select(0, rows + 1));
  }

 private:
  std::shared_ptr<const data::TokenDataset> dataset_;
  int64_t context_;
  at::Tensor tokens_;   // (N) int32
  at::Tensor offsets_;  // (context) int64
};

std::shared_ptr<const data::TokenDataset> packed(std::shared_ptr<const data::LanguageSource> source) {
  auto text = std::dynamic_pointer_cast<const data::TokenDataset>(source);
  require(text != nullptr, ExitCode::data, source->origin(),
          " is not packed text; make it with 'hrm_train data text', or give a folder of vectors");
  return text;
}

// Of a folder without vectors.
void require_text(const std::string& path) {
  require(
      std::filesystem::exists(std::filesystem::path(path) / "meta.json"), ExitCode::data, "'", path,
      "' is neither a folder of vectors (train/inputs.npy) nor of packed text (meta.json); 'hrm_train data vectors' ",
      "and 'hrm_train data text' make them");
}

std::shared_ptr<const ContrastiveSource> text_test(const config::Config& config, const std::string& path,
                                                   at::Device device) {
  data::ValidationSlice slice = data::open_validation_slice(path, config.data, config.eval.max_samples);
  return std::make_shared<TextSource>(packed(slice.source), config.contrastive.context, device);
}

}  // namespace

std::shared_ptr<const data::TokenDataset> open_contrastive_text(const std::string& path) {
  require(
      !data::is_vector_folder(path), ExitCode::data, "'", path,
      "' is a folder of vectors, but contrastive.mode=compat reads packed text; make it with 'hrm_train data text'");
  require_text(path);
  return packed(data::open_language_source(path, "train"));
}

std::shared_ptr<const ContrastiveSource> open_contrastive_test(const config::Config& config, const std::string& path,
                                                               const data::VectorScaling& scaling, at::Device device) {
  if (!data::is_vector_folder(path)) {
    require_text(path);
    return text_test(config, path, device);
  }
  const auto test = data::open_vectors(path, "test");
  return std::make_shared<VectorSource>(test, scaling, test->classes(), device);
}

ContrastiveData open_contrastive_data(const config::Config& config, at::Device device) {
  const std::string &train = config.data.train, &test = config.data.test;
  ContrastiveData opened;
  if (data::is_vector_folder(train)) {
    const auto rows = data::open_vectors(train, "train");
    opened.scaling = data::vector_scaling(*rows);
    for (at::Tensor* tensor : {&opened.scaling.mean, &opened.scaling.deviation}) *tensor = tensor->to(device);
    opened.train = std::make_shared<VectorSource>(rows, opened.scaling, rows->classes(), device);
    const std::string folder = test.empty() ? train : test;
    if (test == "none" || (test.empty() && !std::filesystem::exists(std::filesystem::path(train) / "test")))
      return opened;
    const auto held_out = data::open_vectors(folder, "test");
    data::check_same_vectors(*rows, *held_out);
    opened.test = std::make_shared<VectorSource>(held_out, opened.scaling, rows->classes(), device);
    return opened;
  }
  require_text(train);
  opened.train = std::make_shared<TextSource>(packed(data::open_language_source(train, "train")),
                                              config.contrastive.context, device);
  if (test == "none") return opened;
  const std::filesystem::path folder = train;
  const bool has_val = std::filesystem::exists(folder / "val-00000.npy");
  if (test.empty() && !has_val) return opened;
  opened.test = text_test(config, test.empty() ? train : test, device);
  require(opened.test->classes() == opened.train->classes(), ExitCode::data, opened.test->origin(), " has ",
          opened.test->classes(), " token ids, ", opened.train->origin(), " has ", opened.train->classes());
  return opened;
}

ContrastiveSizes contrastive_sizes(const config::Config& config, int64_t vocabulary) {
  if (vocabulary > 0) {
    return {.features = config.contrastive.context * vocabulary, .classes = vocabulary, .is_text = true};
  }
  require(!config.data.train.empty(), ExitCode::usage, "data.train is empty; give data, or --vocab-size");
  // The splits of a training, on the CPU.
  const ContrastiveData opened = open_contrastive_data(config, at::kCPU);
  ContrastiveSizes sizes{
      .features = opened.train->features(), .classes = opened.train->classes(), .is_text = opened.train->is_text()};
  for (const auto& source : {opened.train, opened.test}) {
    if (source == nullptr) continue;
    // Tokens of 32 bits; or float32 features and a label of 64 bits.
    sizes.data_bytes += source->rows() * (sizes.is_text ? 4 : 4 * sizes.features + 8);
  }
  return sizes;
}

}  // namespace hrm::tasks
