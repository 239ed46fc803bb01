#include "hrm/nn/parameter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/embedding.h"
#include "hrm/nn/linear.h"
#include "hrm/nn/lm_head.h"
#include "hrm/ops/stale_gradient.h"
#include "hrm/ops/weight8.h"

namespace hrm::nn {
namespace {

// The modules that read a compute copy, keyed by their master.
void find_readers(torch::nn::Module& module, std::unordered_multimap<const void*, HasComputeWeight*>& readers) {
  if (auto* reader = dynamic_cast<HasComputeWeight*>(&module)) {
    readers.emplace(reader->master_weight().unsafeGetTensorImpl(), reader);
  }
  for (const auto& child : module.children()) find_readers(*child, readers);
}

// The gradients that are overwritten, keyed by their master.
void find_stale(torch::nn::Module& module, std::unordered_map<const void*, at::Tensor>& stale) {
  if (auto* has = dynamic_cast<HasStaleGradients*>(&module)) {
    for (const StaleGradient& gradient : has->stale_gradients()) {
      stale[gradient.master.unsafeGetTensorImpl()] = gradient.stale;
    }
  }
  for (const auto& child : module.children()) find_stale(*child, stale);
}

struct FoundGroup {
  std::string name;
  HasGradientGroup* module;
  HasBlockUse* use;  // null where it does not report
};
using GradientGroups = std::vector<FoundGroup>;

// Finds the groups in the order in which a backward pass completes them. Sibling modules run one after the other, so
// the last one comes first. Modules that contain groups must already be registered in that order.
void find_groups(torch::nn::Module& module, const std::string& prefix, GradientGroups& groups, bool together = false) {
  together = together || dynamic_cast<ReadsBlocksTogether*>(&module) != nullptr;
  const auto children = module.named_children();
  const auto as_group = [&](size_t i) {
    auto* const group = dynamic_cast<HasGradientGroup*>(children[i].value().get());
    return group != nullptr && group->has_gradients() ? group : nullptr;
  };
  for (size_t i = children.size(); i-- > 0;) {
    if (as_group(i) == nullptr) continue;
    auto* const use = together ? nullptr : dynamic_cast<HasBlockUse*>(children[i].value().get());
    groups.push_back({prefix + children[i].key(), as_group(i), use});
  }
  for (size_t i = 0; i < children.size(); ++i) {
    if (as_group(i) == nullptr) find_groups(*children[i].value(), prefix + children[i].key() + ".", groups, together);
  }
}

struct Reading {
  bool by_readers = true;  // only the HasComputeWeight modules that own the parameter read it
  bool by_copies = true;   // only those, and embeddings that can read a copy
  bool head = false;       // one of them is a head
  bool is_input = false;   // an embedding reads it before all blocks
  std::vector<Embedding*> embeddings = {};
};

// Who reads a parameter, keyed by it.
void find_reading(torch::nn::Module& module, std::unordered_map<const void*, Reading>& all) {
  const auto* const reader = dynamic_cast<const HasComputeWeight*>(&module);
  for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    Reading& reading = all[parameter.unsafeGetTensorImpl()];
    const bool is_reader = reader != nullptr && reader->master_weight().is_same(parameter);
    reading.by_readers = reading.by_readers && is_reader;
    reading.head = reading.head || dynamic_cast<const LmHead*>(&module) != nullptr;
    auto* const embedding = dynamic_cast<Embedding*>(&module);
    reading.is_input = reading.is_input || (embedding != nullptr && embedding->before_blocks());
    reading.by_copies = reading.by_copies && (is_reader || (embedding != nullptr && embedding->can_read_copy()));
    if (embedding != nullptr) reading.embeddings.push_back(embedding);
  }
  for (const auto& child : module.children()) find_reading(*child, all);
}

int group_of(const std::string& parameter, const std::vector<std::string>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    if (parameter.rfind(groups[i] + ".", 0) == 0) return static_cast<int>(i);
  }
  return GradientReady::kNoGroup;
}

}  // namespace

void HasComputeWeight::set_source(RowSource rows) {
  source_ = std::move(rows);
  const at::ScalarType dtype = master_weight().scalar_type();
  if (!source_ || dtype == at::kFloat) return;
  source_ = [rows = std::move(source_), dtype](int64_t first, int64_t count) { return rows(first, count).to(dtype); };
}

OutlineOwners::OutlineOwners(torch::nn::Module& module) {
  find(module);
}

void OutlineOwners::find(torch::nn::Module& module) {
  auto* const reader = dynamic_cast<HasComputeWeight*>(&module);
  if (reader != nullptr && is_outline(reader->master_weight())) {
    owners_.emplace(reader->master_weight().unsafeGetTensorImpl(), reader);
  }
  for (const auto& child : module.children()) find(*child);
}

HasComputeWeight* OutlineOwners::of(const at::Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  return found == owners_.end() ? nullptr : found->second;
}

void FrozenReader::read(const FrozenTensor& frozen, int64_t first, const at::Tensor& out) {
  const at::NoGradGuard no_grad;
  if (frozen.outlined && frozen.layer == nullptr) {
    const at::ScalarType dtype = frozen.tensor.scalar_type();
    const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
    if (frozen.source) read_elements(frozen.source, frozen.tensor.size(-1), first / bytes, out.view(dtype));
    return;
  }
  if (frozen.outlined && frozen.layer->rows_are_apart()) {
    const auto row_bytes = static_cast<int64_t>(frozen.tensor.nbytes()) / frozen.tensor.size(0);
    const int64_t row = first / row_bytes, end = (first + out.numel() + row_bytes - 1) / row_bytes;
    const at::Tensor rows = frozen.layer->read_quantized(row, end - row).at(frozen.part);
    out.copy_(rows.view(-1).view(at::kByte).narrow(0, first - row * row_bytes, out.numel()));
    return;
  }
  if (frozen.outlined && layer_ != frozen.layer) {
    parts_.clear();  // before the next one is there
    parts_ = frozen.layer->read_quantized();
    layer_ = frozen.layer;
  }
  const at::Tensor& whole = frozen.outlined ? parts_.at(frozen.part) : frozen.tensor;
  out.copy_(whole.detach().contiguous().view(-1).view(at::kByte).narrow(0, first, out.numel()));
}

void keep_frozen_as(torch::nn::Module& module, at::ScalarType compute_dtype) {
  const at::NoGradGuard no_grad;
  const auto keep = [&](at::Tensor weight) {
    if (weight.requires_grad() || weight.scalar_type() == compute_dtype) return;
    weight.set_data(is_outline(weight) ? outline(weight.sizes(), weight.options().dtype(compute_dtype))
                                       : weight.to(compute_dtype));
  };
  for (const auto& part : module.modules()) {
    // A quantised layer has no storage for this weight.
    if (const auto* linear = dynamic_cast<Linear*>(part.get()); linear != nullptr && is_quantized(linear->format())) {
      continue;
    }
    if (auto* reader = dynamic_cast<HasComputeWeight*>(part.get())) keep(reader->master_weight());
    if (auto* embedding = dynamic_cast<Embedding*>(part.get())) keep(embedding->weight());
  }
}

void ParameterSet::build(torch::nn::Module& module, at::ScalarType compute_dtype, bool blocks_run_once) {
  parameters_.clear();
  copies_.clear();
  copied_masters_.clear();
  fake_quantized_.clear();
  frozen_.clear();
  count_ = 0;
  compute_dtype_ = compute_dtype;
  blocks_run_once_ = blocks_run_once;

  GradientGroups groups;
  find_groups(module, "", groups);
  std::vector<std::string> group_names;
  for (const FoundGroup& group : groups) group_names.push_back(group.name);

  overwritten_.clear();
  cleared_.clear();
  stale_.clear();
  find_stale(module, stale_);

  const ParameterCuts cuts(module);
  const OutlineOwners owners(module);
  flat_size_ = 0;
  gradients_are_placed_ = false;
  std::unordered_map<const void*, Reading> reading;
  find_reading(module, reading);
  std::unordered_map<const void*, size_t> seen;
  std::unordered_set<const void*> seen_frozen;
  at::Device device = at::kCPU;
  const std::vector<QuantizedLayer> quantized = quantized_layers(module);
  std::unordered_set<const void*> read_by_layer;
  for (const QuantizedLayer& layer : quantized) read_by_layer.insert(layer.linear->weight().unsafeGetTensorImpl());
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& master = item.value();
    if (read_by_layer.count(master.unsafeGetTensorImpl()) > 0) continue;
    if (parameters_.empty() && frozen_.empty()) device = master.device();
    const bool frozen_copy = !master.requires_grad() && master.scalar_type() == compute_dtype;
    HasComputeWeight* const owner = owners.of(master);
    require((master.scalar_type() == at::kFloat || frozen_copy) && (owner != nullptr || master.is_contiguous()),
            ExitCode::unexpected, "parameter '", item.key(), "' must be contiguous float32");
    require(master.device() == device, ExitCode::unexpected, "parameter '", item.key(), "' is on ",
            master.device().str(), ", the others on ", device.str());
    const int group = group_of(item.key(), group_names);
    if (!master.requires_grad()) {
      if (!seen_frozen.insert(master.unsafeGetTensorImpl()).second) continue;
      frozen_.push_back({.name = item.key(), .tensor = master, .group = group, .outlined = owner != nullptr});
      if (owner != nullptr) frozen_.back().source = owner->take_source();
      continue;
    }
    if (const auto [first, is_new] = seen.emplace(master.unsafeGetTensorImpl(), parameters_.size()); !is_new) {
      Parameter& tied = parameters_[first->second];
      if (tied.group != group) tied.group = GradientReady::kNoGroup;
      continue;
    }
    const Reading& by = reading.at(master.unsafeGetTensorImpl());
    parameters_.push_back({.name = item.key(),
                           .master = master,
                           .compute = master,
                           .group = group,
                           .cut = cuts.of(master),
                           .sum_over_parts = cuts.sums_over_parts(master),
                           .only_compute_is_read = by.by_readers && (group != GradientReady::kNoGroup || by.head),
                           .embeddings = by.by_copies ? by.embeddings : std::vector<Embedding*>(),
                           .gradient_is_last = by.is_input,
                           .place = flat_size_,
                           .outlined = owner != nullptr});
    if (owner != nullptr) parameters_.back().source = owner->take_source();
    count_ += master.numel();
    flat_size_ += (master.numel() + kGradAlignment - 1) / kGradAlignment * kGradAlignment;
  }
  require(!parameters_.empty(), ExitCode::unexpected,
          "a model without parameters that require a gradient cannot be trained");

  const at::NoGradGuard no_grad;
  std::unordered_multimap<const void*, HasComputeWeight*> readers;
  find_readers(module, readers);
  // Gives the readers of this master its copy, or the master itself if they need no other dtype.
  const auto hand_out_copy = [&](const at::Tensor& master) {
    const auto [first, last] = readers.equal_range(master.unsafeGetTensorImpl());
    if (first == last) return master;
    at::Tensor compute = master;
    if (compute_dtype != master.scalar_type()) {
      compute = is_outline(master) ? outline(master.sizes(), master.options().dtype(compute_dtype).requires_grad(false))
                                   : master.detach().to(compute_dtype);
      copies_.push_back(compute);
      copied_masters_.push_back(master);
    }
    for (auto reader = first; reader != last; ++reader) reader->second->set_compute_weight(compute);
    return compute;
  };
  for (Parameter& parameter : parameters_) parameter.compute = hand_out_copy(parameter.master);
  if (std::none_of(parameters_.begin(), parameters_.end(), [](const Parameter& p) { return p.outlined; })) {
    make_gradients();
  }
  for (FrozenTensor& each : frozen_) {
    if (each.outlined && compute_dtype != each.tensor.scalar_type()) {
      // The master is in the model's state, which must not have an outline.
      const at::Tensor values = at::empty(each.tensor.sizes(), each.tensor.options().requires_grad(false));
      FrozenReader().read(each, 0, values.view(-1).view(at::kByte));
      each.tensor.set_data(values);
      each.outlined = false;
    }
    each.tensor = hand_out_copy(each.tensor);
  }
  for (const QuantizedLayer& layer : quantized) {
    const int group = group_of(layer.weight, group_names);
    size_t part = 0;
    for (const at::Tensor& tensor : layer.linear->quantized_parts()) {
      frozen_.push_back({.name = layer.weight,
                         .tensor = tensor,
                         .group = group,
                         .outlined = layer.linear->is_outlined(),
                         .source = {},
                         .layer = layer.linear.get(),
                         .part = part++});
    }
  }

  gradient_ready_ = std::make_shared<GradientReady>(std::move(group_names));
  block_use_ = std::make_shared<BlockUse>();
  reports_use_.assign(groups.size(), 0);
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].module->set_gradient_group(gradient_ready_, static_cast<int>(i));
    if (groups[i].use == nullptr) continue;
    groups[i].use->set_block_use(block_use_, static_cast<int>(i));
    reports_use_[i] = 1;
  }
}

void ParameterSet::make_gradients() {
  flat_grad_ = at::zeros({flat_size_}, parameters_.front().master.options().requires_grad(false));
  int64_t cleared_from = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > cleared_from) cleared_.push_back(flat_grad_.narrow(0, cleared_from, end - cleared_from));
  };
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& master = parameter.master;
    master.mutable_grad() = flat_grad_.narrow(0, parameter.place, master.numel()).view(master.sizes());
    const auto found = stale_.find(master.unsafeGetTensorImpl());
    if (found != stale_.end() || is_overwritten(parameter)) {
      if (found == stale_.end()) ops::allow_stale(master.grad());
      overwritten_.push_back({master.grad(), found != stale_.end() ? found->second : at::Tensor()});
      clear_to(parameter.place);
      cleared_from = parameter.place + master.numel();
    }
  }
  clear_to(flat_size_);
}

void ParameterSet::read_master(size_t i, int64_t first, const at::Tensor& out) const {
  const at::NoGradGuard no_grad;
  const Parameter& parameter = parameters_.at(i);
  if (!parameter.outlined) {
    out.copy_(parameter.master.detach().view(-1).narrow(0, first, out.numel()));
  } else if (parameter.source) {
    read_elements(parameter.source, parameter.master.size(-1), first, out);
  }
}

void ParameterSet::materialise() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& master = parameters_[i].master;
    if (parameters_[i].outlined) place_master(i, at::empty(master.sizes(), master.options().requires_grad(false)));
  }
  FrozenReader reader;
  for (size_t i = 0; i < frozen_.size(); ++i) {
    if (!frozen_[i].outlined) continue;
    const at::Tensor& tensor = frozen_[i].tensor;
    const at::Tensor values = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
    reader.read(frozen_[i], 0, values.view(-1).view(at::kByte));
    place_frozen(i, values);
  }
  if (!parameters_.empty() && !flat_grad_.defined() && !gradients_are_placed_) make_gradients();
}

void ParameterSet::build_frozen(torch::nn::Module& module, at::ScalarType compute_dtype) {
  for (at::Tensor& parameter : module.parameters()) parameter.set_requires_grad(false);
  keep_frozen_as(module, compute_dtype);
  *this = ParameterSet();
  compute_dtype_ = compute_dtype;
}

void ParameterSet::fake_quantize(const std::vector<HasComputeWeight*>& modules, at::ScalarType format) {
  require(fake_quantized_.empty(), ExitCode::unexpected, "the weights of a model are fake-quantised only once");
  const at::NoGradGuard no_grad;
  fake_format_ = format;
  std::unordered_map<const void*, at::Tensor> rounded;
  for (HasComputeWeight* module : modules) {
    const at::Tensor master = module->master_weight();
    at::Tensor& compute = rounded[master.unsafeGetTensorImpl()];
    if (!compute.defined()) {
      compute = at::empty(master.sizes(), master.options().dtype(compute_dtype_).requires_grad(false));
      fake_quantized_.push_back({master, compute});
    }
    module->set_compute_weight(compute);
  }
  const auto find = [&](const at::Tensor& master) { return rounded.find(master.unsafeGetTensorImpl()); };
  for (Parameter& parameter : parameters_) {
    const auto found = find(parameter.master);
    if (found == rounded.end()) continue;
    parameter.compute = found->second;
    parameter.fake_quantized = true;
    parameter.only_compute_is_read = false;
  }
  forget_copies([&](const at::Tensor&, const at::Tensor& master) { return find(master) != rounded.end(); });
  refresh_fake_quantized();
}

void ParameterSet::cast_when_read(const std::vector<Linear*>& layers) {
  std::unordered_set<const void*> cast;
  for (Linear* layer : layers) {
    if (layer->compute_weight().is_same(layer->weight())) continue;
    cast.insert(layer->weight().unsafeGetTensorImpl());
    layer->cast_when_read(compute_dtype_);
  }
  const auto is_cast = [&](const at::Tensor& master) { return cast.count(master.unsafeGetTensorImpl()) > 0; };
  for (Parameter& parameter : parameters_) {
    if (!is_cast(parameter.master)) continue;
    parameter.compute = parameter.master;
    parameter.only_compute_is_read = false;
  }
  forget_copies([&](const at::Tensor&, const at::Tensor& master) { return is_cast(master); });
}

void ParameterSet::copy_embeddings() {
  if (compute_dtype_ == at::kFloat) return;
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    if (parameter.embeddings.empty() || parameter.fake_quantized) continue;
    if (parameter.compute.is_same(parameter.master)) {
      parameter.compute = parameter.master.detach().to(compute_dtype_);
      copies_.push_back(parameter.compute);
      copied_masters_.push_back(parameter.master);
    }
    for (Embedding* embedding : parameter.embeddings) embedding->read_copy(parameter.compute);
    parameter.only_compute_is_read = true;
  }
}

template <class IsOne>
void ParameterSet::forget_copies(const IsOne& is_one) {
  size_t kept = 0;
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (is_one(copies_[i], copied_masters_[i])) continue;
    std::tie(copies_[kept], copied_masters_[kept]) = std::tuple(copies_[i], copied_masters_[i]);
    ++kept;
  }
  copies_.resize(kept);
  copied_masters_.resize(kept);
}

bool ParameterSet::is_overwritten(const Parameter& parameter) {
  const at::Tensor& master = parameter.master;
  return parameter.only_compute_is_read && parameter.embeddings.empty() && master.dim() == 2 &&
         master.numel() >= ops::overwritten_elements();
}

void ParameterSet::zero_grad() {
  require(flat_grad_.defined(), ExitCode::unexpected,
          "zero_grad() does not work after place_gradients(); the caller must clear the buffers it placed");
  const at::NoGradGuard no_grad;
  if (!cleared_.empty()) at::_foreach_zero_(cleared_);
  for (const Overwritten& gradient : overwritten_) {
    if (gradient.stale.defined()) {
      gradient.stale.fill_(true);
    } else {
      ops::forget_passes(gradient.gradient);
      ops::discard_gradient_(gradient.gradient);
    }
  }
}

void ParameterSet::settle_gradients() {
  const at::NoGradGuard no_grad;
  for (const Overwritten& gradient : overwritten_) {
    if (!gradient.stale.defined()) ops::settle_gradient_(gradient.gradient);
    if (!gradient.stale.defined() || !*gradient.stale.const_data_ptr<bool>()) continue;
    gradient.gradient.zero_();
    gradient.stale.fill_(false);
  }
}

namespace {

void check_place(const Parameter& parameter, const at::Tensor& place, at::ScalarType dtype) {
  require(place.sizes() == parameter.master.sizes() && place.is_contiguous() && place.scalar_type() == dtype,
          ExitCode::unexpected, "the place of '", parameter.name, "' must be contiguous ", c10::toString(dtype),
          " and have the parameter's shape");
}

}  // namespace

void ParameterSet::place_master(size_t i, const at::Tensor& place, bool has_values) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = parameters_.at(i);
  check_place(parameter, place, at::kFloat);
  if (!has_values) read_master(i, 0, place.view(-1));
  parameter.master.set_data(place);  // the same leaf for all its holders
  if (std::exchange(parameter.outlined, false) && !parameter.compute.is_same(parameter.master)) {
    parameter.compute.set_data(place.to(parameter.compute.scalar_type()));
  }
  parameter.source = {};
}

void ParameterSet::place_compute(size_t i, const at::Tensor& place) {
  const at::NoGradGuard no_grad;
  Parameter& parameter = parameters_.at(i);
  require(parameter.only_compute_is_read, ExitCode::unexpected, "the master of '", parameter.name,
          "' is read in passes, so every rank needs the whole of it");
  check_place(parameter, place, parameter.compute.scalar_type());
  parameter.compute.set_data(place);  // the same tensor for all its readers
  parameter.outlined = false;
  parameter.source = {};
  if (parameter.compute.is_same(parameter.master)) return;
  forget_copies([&](const at::Tensor&, const at::Tensor& master) { return master.is_same(parameter.master); });
  // NaN rather than stale values: whoever reads it is found out.
  const at::Tensor nothing = at::full({}, std::numeric_limits<float>::quiet_NaN(), parameter.master.options());
  parameter.master.set_data(nothing.expand(parameter.master.sizes()));
}

void ParameterSet::place_frozen(size_t i, const at::Tensor& place) {
  const at::NoGradGuard no_grad;
  FrozenTensor& frozen = frozen_.at(i);
  require(place.sizes() == frozen.tensor.sizes() && place.is_contiguous() &&
              place.scalar_type() == frozen.tensor.scalar_type(),
          ExitCode::unexpected, "the place of '", frozen.name, "' must be contiguous ",
          c10::toString(frozen.tensor.scalar_type()), " and have its shape");
  frozen.tensor.set_data(place);
  frozen.source = {};
  if (std::exchange(frozen.outlined, false) && frozen.layer != nullptr) {
    const bool last = std::none_of(frozen_.begin(), frozen_.end(), [&](const FrozenTensor& other) {
      return other.layer == frozen.layer && other.outlined;
    });
    if (last) frozen.layer->has_values();
  }
  forget_copies([&](const at::Tensor& copy, const at::Tensor&) { return copy.is_same(frozen.tensor); });
}

void ParameterSet::place_gradients(const std::vector<at::Tensor>& gradients) {
  require(gradients.size() == parameters_.size(), ExitCode::unexpected, gradients.size(),
          " gradient buffers do not match ", parameters_.size(), " parameters; give one for each");
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    require(gradients[i].sizes() == parameter.master.sizes() && gradients[i].is_contiguous() &&
                gradients[i].scalar_type() == at::kFloat,
            ExitCode::unexpected, "the gradient buffer of '", parameter.name,
            "' must be contiguous float32 and have the parameter's shape");
    parameter.master.mutable_grad() = gradients[i];
  }
  for (const auto& [master, stale] : stale_) stale.fill_(false);
  overwritten_.clear();
  cleared_.clear();
  flat_grad_ = at::Tensor();
  gradients_are_placed_ = true;
}

void ParameterSet::refresh_compute() {
  const at::NoGradGuard no_grad;
  if (!copies_.empty()) at::_foreach_copy_(copies_, copied_masters_);
  refresh_fake_quantized();
}

void ParameterSet::refresh_fake_quantized() {
  const at::NoGradGuard no_grad;
  for (const FakeQuantized& weight : fake_quantized_) {
    ops::dequantize_weight8_(weight.compute, ops::quantize_weight8(weight.master, fake_format_));
  }
}

}  // namespace hrm::nn
