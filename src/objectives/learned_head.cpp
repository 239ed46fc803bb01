#include <ATen/ATen.h>

#include "hrm/base/error.h"
#include "hrm/formats/safetensors.h"
#include "hrm/objectives/rewards.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::objectives {
namespace {

constexpr int kLayers = 3;

}  // namespace

LearnedHead::LearnedHead(const std::string& file) : file_(file) {
  const SafetensorsFile stored{std::filesystem::path(file)};
  const auto read = [&](int layer, const char* part) {
    const std::string name = cat("layers.", layer, ".", part);
    const ArrayView& view = stored.at(name);
    const at::Tensor tensor = tensor_from_bytes(view.dtype, view.shape, view.bytes);
    require(at::isFloatingType(tensor.scalar_type()), ExitCode::data, file, ": '", name,
            "' must hold floating-point numbers, not ", hrm::name(view.dtype));
    return tensor.to(at::kFloat);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    const at::Tensor weight = read(layer, "weight"), bias = read(layer, "bias");
    const auto place = cat(file, ": 'layers.", layer, ".weight' is ", shape_text(weight.sizes().vec()));
    require(weight.dim() == 2 && weight.numel() > 0, ExitCode::data, place, ", but must be a non-empty matrix");
    require(bias.dim() == 1 && bias.size(0) == weight.size(0), ExitCode::data, place,
            ", which does not match its bias ", shape_text(bias.sizes().vec()));
    require(layer == 0 || weight.size(1) == weights_.back().size(0), ExitCode::data, place,
            ", which does not match the ", layer == 0 ? 0 : weights_.back().size(0), " outputs of the layer before");
    weights_.push_back(weight);
    biases_.push_back(bias);
  }
  require(weights_.front().size(1) % 2 == 0 && weights_.back().size(0) == 1, ExitCode::data, file,
          ": a learned reward must map two embeddings of the same width to one number, not ", weights_.front().size(1),
          " -> ", weights_.back().size(0));
}

at::Tensor LearnedHead::forward(const at::Tensor& prompt, const at::Tensor& answers) const {
  const int64_t width = weights_.front().size(1) / 2;
  require(prompt.dim() == 1 && answers.dim() == 2 && prompt.size(0) == width && answers.size(1) == width,
          ExitCode::usage, file_, ": this learned reward needs embeddings of width ", width,
          ", but the encoder's width is ", answers.dim() == 2 ? answers.size(1) : answers.numel());
  const at::NoGradGuard no_grad;
  const at::Tensor replies = answers.to(at::kFloat);
  at::Tensor x = at::cat({prompt.to(replies.options()).expand_as(replies), replies}, 1);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    x = at::linear(x, weights_[i].to(x.device()), biases_[i].to(x.device()));
    if (layer + 1 < kLayers) x = x.relu();
  }
  return x.squeeze(1).sigmoid();
}

}  // namespace hrm::objectives
