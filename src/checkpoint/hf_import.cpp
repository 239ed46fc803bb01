#include "hrm/checkpoint/hf_import.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "checkpoint/contradictions.h"
#include "checkpoint/hf_names.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/tensor_names.h"
#include "hrm/nn/linear.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kFrequencies = "rotary_emb.inv_freq";

at::Tensor tensor_at(const SafetensorsSet& files, const std::string& name) {
  const ArrayView& view = files.at(name);
  return tensor_from_bytes(view.dtype, view.shape, view.bytes);
}

// Tensors by what transformers calls them, whatever wrappers have added to the names.
class NamedWeights {
 public:
  // Keeps the files open.
  explicit NamedWeights(const SafetensorsSet& files)
      : files_(files), names_(by_core_name(files.names(), files.origin(), ExitCode::checkpoint)) {}

  bool contains(const std::string& name) const { return names_.count(core_tensor_name(name)) > 0; }
  // Where a weight in 8 bits has its scales.
  static std::string scales_of(const std::string& weight) { return weight + "_scale"; }
  bool has_scales(const std::string& weight) const { return contains(scales_of(weight)); }
  // In floating point: those in 8 bits dequantised.
  at::Tensor floats(const std::string& name) const {
    const ArrayView& stored = view(name);
    if (!has_scales(name)) return tensor(name);
    return ops::dequantize_weight8(weight8_rows(name, stored.shape[1], 0, stored.shape[0]), at::kFloat);
  }
  // `count` rows, from `first` on, of a tensor seen as (rows, columns). No other rows are read.
  at::Tensor rows(const std::string& name, int64_t columns, int64_t first, int64_t count) const {
    const ArrayView& stored = view(name);
    const size_t row_bytes = static_cast<size_t>(columns) * item_size(stored.dtype);
    const auto bytes =
        stored.bytes.subspan(static_cast<size_t>(first) * row_bytes, static_cast<size_t>(count) * row_bytes);
    return tensor_from_bytes(stored.dtype, {count, columns}, bytes);
  }
  // Numbers and scales of rows of a weight (out, in) in 8 bits.
  ops::Weight8 weight8_rows(const std::string& name, int64_t columns, int64_t first, int64_t count) const {
    return {.values = rows(name, columns, first, count),
            .scales = rows(scales_of(name), 1, first, count).to(at::kFloat).view({count})};
  }
  // In floating point.
  at::Tensor float_rows(const std::string& name, int64_t columns, int64_t first, int64_t count) const {
    if (!has_scales(name)) return rows(name, columns, first, count);
    return ops::dequantize_weight8(weight8_rows(name, columns, first, count), at::kFloat);
  }
  const ArrayView& view(const std::string& name) const { return files_.at(names_.at(core_tensor_name(name))); }
  at::Tensor tensor(const std::string& name) const { return tensor_at(files_, names_.at(core_tensor_name(name))); }
  // By core names.
  const std::map<std::string, std::string>& all() const { return names_; }

 private:
  SafetensorsSet files_;
  std::map<std::string, std::string> names_;
};

// Ends of the names that quantised weights have, as several programs save them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kQuantised{{
    {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},
    {".absmax", "bitsandbytes, 4 bits"},
    {".quant_map", "bitsandbytes, 4 bits"},
    {".SCB", "bitsandbytes, 8 bits"},
    {".weight_scale_inv", "FP8"},
    {".weight_scale", "compressed-tensors or FP8"},
    {".weight_packed", "compressed-tensors"},
    {".input_scale", "FP8"},
}};

// Says what weights of another kind are, instead of a list of all that they lack.
void refuse_other_kinds(const NamedWeights& weights, const std::string& origin,
                        const std::map<std::string, HfWeight>& wanted, HfStoredWeights stored) {
  for (const auto& [core, name] : weights.all()) {
    for (const auto& [end, method] : kQuantised) {
      if (end == ".weight_scale" && stored != HfStoredWeights::floats) continue;
      require(!name.ends_with(end), ExitCode::checkpoint, "the weights of '", origin, "' are quantised (", method,
              ": it holds '", printable_start(name),
              "'), and this program reads floating-point ones; give the folder of the model that they were made from, "
              "which hf.quantize=nf4 then holds in 4 bits");
    }
  }
  for (const auto& [ours, weight] : wanted) {
    for (const auto& [theirs, rows] : weight.parts) {
      if (weights.contains(theirs)) return;
    }
  }
  std::string names;
  size_t shown = 0;
  for (const auto& [core, name] : weights.all()) {
    if (++shown <= 3) names += cat(shown > 1 ? ", '" : "'", printable_start(name), "'");
  }
  fail(ExitCode::checkpoint, "the weights of '", origin, "' are not those of its config.json: it holds ",
       weights.all().size(), " tensors, ", names, shown > 3 ? " and so on" : "",
       ", and none is called as transformers calls them, such as '", kEmbedding, "'");
}

DType type_of(HfStoredWeights stored) {
  return stored == HfStoredWeights::int8 ? DType::i8 : DType::f8_e4m3;
}

// Layers that are quantised in another way than the folder.
void check_format(const models::DecoderLm& model, const std::string& origin, HfStoredWeights stored) {
  const std::vector<nn::QuantizedLayer> layers = nn::quantized_layers(model);
  if (layers.empty() || stored == HfStoredWeights::floats) return;
  const bool fp8 = stored == HfStoredWeights::fp8;
  const nn::WeightFormat format = layers.front().linear->format();
  require(format == (fp8 ? nn::WeightFormat::fp8 : nn::WeightFormat::int8), ExitCode::usage, "the weights of '", origin,
          "' are stored as ", fp8 ? "e4m3" : "int8", ", which is not quantised once more as ", nn::name(format),
          "; set hf.quantize=", fp8 ? "fp8" : "int8", ", or none to dequantise them");
}

void check_scales(const NamedWeights& weights, const std::string& name, HfStoredWeights stored, Contradictions& wrong) {
  const ArrayView &values = weights.view(name), &scales = weights.view(NamedWeights::scales_of(name));
  if (values.dtype != type_of(stored)) {
    wrong.add("'", name, "' is ", hrm::name(values.dtype), ", but config.json says ", hrm::name(type_of(stored)));
  }
  const int64_t rows = values.shape.empty() ? 0 : values.shape[0];
  if (scales.shape != std::vector<int64_t>{rows, 1} && scales.shape != std::vector<int64_t>{rows}) {
    wrong.add("'", NamedWeights::scales_of(name), "' is ", shape_text(scales.shape), ", not [", rows, ", 1]");
  }
  if (!floats(scales.dtype)) wrong.add("'", NamedWeights::scales_of(name), "' is ", hrm::name(scales.dtype));
}

using WeightParts = std::vector<std::pair<std::string, int64_t>>;  // names and rows, in their order

// The rows of the whole weight that these parts make up, (rows, columns) of this dtype; of a vector (rows, 1). Rows
// that are not asked for are not read.
nn::RowSource file_rows(std::shared_ptr<const NamedWeights> weights, const WeightParts& parts, int64_t columns,
                        at::ScalarType dtype) {
  return [=](int64_t first, int64_t count) {
    std::vector<at::Tensor> found;
    int64_t row = 0;
    for (const auto& [theirs, rows] : parts) {
      const int64_t begin = std::max(first, row), end = std::min(first + count, row + rows);
      if (begin < end) found.push_back(weights->float_rows(theirs, columns, begin - row, end - begin).to(dtype));
      row += rows;
    }
    return found.size() == 1 ? found.front() : at::cat(found);
  };
}

// Where the rows `first` to first + count of a part of a weight are in the whole: first row and number.
std::vector<std::pair<int64_t, int64_t>> whole_rows(const nn::ParameterCut& cut, int64_t first, int64_t count) {
  if (cut.whole() || cut.dimension() == 1) return {{first, count}};
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const nn::ParameterCut::Box& box : cut.boxes()) {
    const int64_t begin = std::max(first, box.here), end = std::min(first + count, box.here + box.size);
    if (begin < end) ranges.emplace_back(box.there + begin - box.here, end - begin);
  }
  return ranges;
}

// Rows of a quantised layer's weight, which may be a part that is cut as `cut` says: read, sent to the device in the
// file's dtype and quantised. Never more than one of them is unquantised, neither on the host, where files are mapped,
// nor on the device.
void hold_layer(nn::Linear& layer, int64_t first, int64_t count, const std::string& name, const nn::ParameterCut& cut,
                const NamedWeights& weights, const WeightParts& from, HfStoredWeights stored) {
  std::vector<at::Tensor> parts, scales;
  const int64_t columns = cut.whole_sizes(layer.weight().sizes())[1];
  const auto add = [&](const std::string& theirs, int64_t begin, int64_t size) {
    if (stored == HfStoredWeights::floats) return parts.push_back(weights.rows(theirs, columns, begin, size));
    // Rows are quantised by themselves, so parts that are not in 8 bits yet stand beside others.
    const ops::Weight8 part =
        weights.has_scales(theirs)
            ? weights.weight8_rows(theirs, columns, begin, size)
            : ops::quantize_weight8(weights.rows(theirs, columns, begin, size), scalar_type_of(type_of(stored)));
    parts.push_back(part.values.view(at::kByte));
    scales.push_back(part.scales);
  };
  for (const auto& [there, size] : whole_rows(cut, first, count)) {
    int64_t row = 0;
    for (const auto& [theirs, rows] : from) {
      const int64_t begin = std::max(there, row), end = std::min(there + size, row + rows);
      if (begin < end) add(theirs, begin - row, end - begin);
      row += rows;
    }
  }
  if (stored == HfStoredWeights::floats) {
    return layer.hold_quantized(parts.size() == 1 ? parts.front() : at::cat(parts), name);
  }
  at::Tensor values = at::cat(parts);
  if (cut.by == nn::CutBy::columns) values = cut.part_of(values);
  layer.hold_weight8({.values = values.view(scalar_type_of(type_of(stored))), .scales = at::cat(scales)}, name);
}

}  // namespace

models::DecoderOptions decoder_options_of(const HfModelConfig& c, int64_t positions) {
  return models::resolve({.vocabulary = c.vocab_size,
                          .width = c.hidden_size,
                          .layers = c.layers,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .inner = c.intermediate_size,
                          .positions = positions,
                          .window = c.window,
                          .rope_theta = c.rope_theta,
                          .eps = c.rms_norm_eps,
                          .rope = c.rope,
                          .form = c.form,
                          .experts = c.experts,
                          .qk_norm = c.qk_norm,
                          .tied = c.tied});
}

void load_hf_weights(const SafetensorsSet& files, const models::DecoderOptions& options, models::DecoderLm& model,
                     bool untie, HfStoredWeights stored) {
  const at::NoGradGuard no_grad;
  check_format(model, files.origin(), stored);
  std::map<std::string, HfWeight> wanted = hf_weights(options);
  if (untie) wanted.at(kOurHead).parts = {{kEmbedding, options.vocabulary}};
  const auto names = std::make_shared<const NamedWeights>(files);
  const NamedWeights& weights = *names;
  refuse_other_kinds(weights, files.origin(), wanted, stored);
  std::set<std::string> unused;
  for (const auto& [core, name] : weights.all()) unused.insert(core);
  Contradictions wrong;
  for (auto& [ours, weight] : wanted) {
    const bool in_memory = !weight.in_memory.empty() && weights.contains(weight.in_memory);
    if (in_memory) weight.parts = {{weight.in_memory, weight.shape[0]}};
    for (const auto& [theirs, rows] : weight.parts) {
      unused.erase(core_tensor_name(theirs));
      if (!weights.contains(theirs)) {
        wrong.add("'", theirs, "' is missing");
        continue;
      }
      std::vector<int64_t> shape = in_memory ? weight.shape_in_memory : weight.shape;
      if (!in_memory) shape[0] = rows;
      const ArrayView& view = weights.view(theirs);
      if (view.shape != shape) wrong.add("'", theirs, "' is ", shape_text(view.shape), ", not ", shape_text(shape));
      if (stored != HfStoredWeights::floats && weights.has_scales(theirs)) {
        check_scales(weights, theirs, stored, wrong);
        unused.erase(core_tensor_name(NamedWeights::scales_of(theirs)));
        continue;
      }
      if (!floats(view.dtype)) wrong.add("'", theirs, "' is ", name(view.dtype), ", no floating-point type");
    }
  }
  // Some files also hold the head of a tied model, or the frequencies of the rotation.
  const bool spare_head = (options.tied || untie) && unused.erase(kTheirHead) > 0;
  for (const std::string& core : unused) {
    if (core == kFrequencies || core.ends_with(cat(".", kFrequencies))) continue;
    wrong.add("'", printable_start(weights.all().at(core)), "' is unknown");
  }
  require(wrong.none(), ExitCode::checkpoint, "the weights of '", files.origin(),
          "' are not those of its config.json: ", wrong.text());
  if (spare_head) {
    const at::Tensor head = weights.tensor(kTheirHead), embedding = weights.tensor(kEmbedding);
    require(head.sizes() == embedding.sizes() && at::equal(head.to(embedding.scalar_type()), embedding),
            ExitCode::checkpoint, "'", files.origin(),
            "' holds a head that is not its embedding, though its config.json ties the two");
  }
  const nn::ParameterCuts cuts(model);
  const nn::OutlineOwners owners(model);
  for (auto& item : model.named_parameters()) {
    const auto found = wanted.find(item.key());
    const nn::ParameterCut cut = cuts.of(item.value());
    require(found != wanted.end() && cut.whole_sizes(item.value().sizes()) == found->second.shape, ExitCode::unexpected,
            "the model's '", item.key(), "' is not of these options");
    if (item.value().is_meta()) continue;
    nn::HasComputeWeight* const owner = owners.of(item.value());
    if (owner != nullptr || !cut.whole()) {
      const int64_t part_columns = item.value().dim() > 1 ? item.value().size(1) : 1;
      const int64_t columns = item.value().dim() > 1 ? found->second.shape[1] : 1;
      const nn::RowSource rows =
          nn::part_rows(file_rows(names, found->second.parts, columns, item.value().scalar_type()), cut);
      if (owner != nullptr) {
        owner->set_source(rows);
      } else {
        nn::read_elements(rows, part_columns, 0, item.value().view(-1));
      }
      continue;
    }
    int64_t row = 0;
    for (const auto& [theirs, rows] : found->second.parts) {
      const at::Tensor to = item.value().narrow(0, row, rows);
      to.copy_(weights.floats(theirs).view(to.sizes()));
      row += rows;
    }
  }
  for (const nn::QuantizedLayer& layer : nn::quantized_layers(model)) {
    layer.linear->hold_by([=, name = layer.weight, cut = layer.linear->cut(), from = wanted.at(layer.weight).parts](
                              nn::Linear& to, int64_t first, int64_t count) {
      hold_layer(to, first, count, name, cut, *names, from, stored);
    });
  }
}

std::map<std::string, at::Tensor> tensors_of(const SafetensorsSet& files) {
  std::map<std::string, at::Tensor> all;
  for (const std::string& name : files.names()) all.emplace(name, tensor_at(files, name));
  return all;
}

}  // namespace hrm::checkpoint
