#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "hrm/base/error.h"
#include "hrm/ops/adam.h"

namespace hrm::optim {
namespace {

int64_t columns_of(const at::Tensor& matrix) {
  return matrix.numel() / matrix.size(0);
}

// The first elements of `store` in this shape.
at::Tensor shaped(const at::Tensor& store, at::IntArrayRef sizes) {
  return store.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
}

// Buffer elements sufficient for every stack.
struct BufferSizes {
  int64_t matrices = 0, squares = 0;
  void add(const std::vector<int64_t>& shape) {  // (n, rows, columns)
    const int64_t k = std::min(shape[1], shape[2]);
    matrices = std::max(matrices, shape[0] * shape[1] * shape[2]);
    squares = std::max(squares, shape[0] * k * k);
  }
};

std::vector<at::Tensor> views_like(const at::Tensor& stack, const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> views;
  for (size_t i = 0; i < params.size(); ++i) {
    views.push_back(stack.select(0, static_cast<int64_t>(i)).view(params[i].sizes()));
  }
  return views;
}

}  // namespace

int64_t muon_buffer_bytes(const std::vector<std::pair<int64_t, int64_t>>& matrices, config::MuonPrecision precision) {
  std::map<std::pair<int64_t, int64_t>, int64_t> counts;
  for (const auto& shape : matrices) ++counts[shape];
  BufferSizes sizes;
  for (const auto& [shape, count] : counts) {
    const int64_t most = std::max<int64_t>(1, kMuonStackElements / (shape.first * shape.second));
    sizes.add({std::min(count, most), shape.first, shape.second});
  }
  return precision == config::MuonPrecision::fp32 ? 8 * (sizes.matrices + sizes.squares)
                                                  : 8 * sizes.matrices + 4 * sizes.squares;
}

Muon::Muon(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups) : options_(options) {
  std::vector<ParameterGroup> matrices, others;
  std::vector<int64_t> counts;
  for (const ParameterGroup& group : groups) {
    (group.matrices > 0 ? matrices : others).push_back(group);
    if (group.matrices > 0) counts.insert(counts.end(), group.params.size(), group.matrices);
    if (group.matrices == 0) others.back().lr_factor *= options.adamw_lr_ratio;
    require(group.moments.empty(), ExitCode::unexpected,
            "Muon needs whole matrices and allocates their momentum itself; leave `moments` empty");
  }
  require(!matrices.empty(), ExitCode::usage, "optim.name = muon finds no matrix to update: use adamw");
  const FlatGroups all = flatten(matrices, 1);
  if (!others.empty()) others_ = std::make_unique<Elementwise>(ops::AdamRule::adamw, options, others);
  names_ = all.names;
  make_stacks(all, counts);
  const at::TensorOptions on_device = all.params.front().options().requires_grad(false);
  make_buffers(on_device.device());
  step_ = at::zeros({}, on_device);
  uncounted_ = at::zeros({}, on_device);
  squares_ = at::zeros({static_cast<int64_t>(stacks_.size()) + (others_ ? 1 : 0), 2}, on_device.dtype(at::kDouble));
}

void Muon::make_stacks(const FlatGroups& all, const std::vector<int64_t>& matrices) {
  for (size_t i = 0; i < all.params.size(); ++i) {
    const at::Tensor& param = all.params[i];
    require(param.dim() >= 2 && param.numel() > 0 && param.size(0) % matrices[i] == 0, ExitCode::unexpected,
            "parameter '", all.names[i], "' cannot be updated by Muon as ", matrices[i], " stacked matrices");
    momenta_.push_back(at::zeros_like(param.detach()));
    const int64_t rows = param.size(0) / matrices[i];
    for (int64_t first = 0; first < param.size(0); first += rows) add_matrix(all, i, first, rows);
  }
}

void Muon::add_matrix(const FlatGroups& all, size_t i, int64_t first, int64_t rows) {
  const auto part = [&](const at::Tensor& t) { return t.size(0) == rows ? t : t.narrow(0, first, rows); };
  const at::Tensor param = part(all.params[i]);
  const std::pair shape{rows, columns_of(param)};
  const auto found = open_.find(shape);
  const bool room =
      found != open_.end() &&
      (static_cast<int64_t>(stacks_[found->second].params.size()) + 1) * param.numel() <= options_.muon_stack;
  if (!room) {
    open_[shape] = stacks_.size();
    stacks_.emplace_back();
    stacks_.back().scale = muon_scale(options_.muon_scale, shape.first, shape.second);
  }
  Stack& stack = stacks_[open_[shape]];
  stack.params.push_back(param);
  stack.grads.push_back(part(all.grads[i]));
  stack.momenta.push_back(part(momenta_[i]));
  if (!all.averages.empty()) stack.averages.push_back(part(all.averages[i]));
  // Without a compute copy the entry is the parameter itself, and must be the very same tensor.
  if (!all.copies.empty()) {
    stack.copies.push_back(all.copies[i].is_same(all.params[i]) ? param : part(all.copies[i]));
  }
  stack.weight_decay.push_back(all.weight_decay[i]);
  stack.lr_factor.push_back(all.lr_factor[i]);
}

void Muon::make_buffers(at::Device device) {
  const bool exact = options_.muon_precision == config::MuonPrecision::fp32;
  BufferSizes sizes;
  std::vector<std::vector<int64_t>> shapes;
  for (const Stack& stack : stacks_) {
    const at::Tensor& first = stack.params.front();
    shapes.push_back({static_cast<int64_t>(stack.params.size()), first.size(0), columns_of(first)});
    sizes.add(shapes.back());
  }
  const at::TensorOptions full = at::device(device).dtype(at::kFloat);
  const at::TensorOptions low = full.dtype(exact ? at::kFloat : at::kBFloat16);
  const at::Tensor direction = at::zeros({sizes.matrices}, full);
  const at::Tensor x = exact ? direction : at::zeros({sizes.matrices}, low), next = at::zeros({sizes.matrices}, low);
  const at::Tensor gram = at::zeros({sizes.squares}, low), poly = at::zeros({sizes.squares}, low);
  for (size_t i = 0; i < stacks_.size(); ++i) {
    const int64_t n = shapes[i][0], k = std::min(shapes[i][1], shapes[i][2]);
    NewtonSchulzBuffers& buffers = stacks_[i].buffers;
    buffers.direction = shaped(direction, shapes[i]);
    buffers.x = exact ? buffers.direction : shaped(x, shapes[i]);
    buffers.next = shaped(next, shapes[i]);
    buffers.gram = shaped(gram, {n, k, k});
    buffers.poly = shaped(poly, {n, k, k});
    stacks_[i].directions = views_like(buffers.direction, stacks_[i].params);
  }
}

void Muon::step_stack(const Stack& stack, const at::Tensor& counter, const at::Tensor& lr, const at::Tensor& grad_scale,
                      const at::Tensor& skip, const at::Tensor& squares) {
  ops::adam_({.rule = ops::AdamRule::muon_direction,
              .params = stack.directions,
              .grads = stack.grads,
              .exp_avgs = stack.momenta,
              .weight_decay = stack.weight_decay,
              .step = counter,
              .lr = lr,
              .grad_scale = grad_scale,
              .skip = skip,
              .beta1 = options_.momentum});
  // A skipped step leaves stale values in the buffer; the result is then unused.
  const std::vector<at::Tensor> orthogonal = views_like(newton_schulz_(stack.buffers, stack.scale), stack.params);
  ops::adam_({.rule = ops::AdamRule::muon_apply,
              .params = stack.params,
              .grads = orthogonal,
              .averages = stack.averages,
              .copies = stack.copies,
              .weight_decay = stack.weight_decay,
              .lr_factor = stack.lr_factor,
              .step = uncounted_,
              .lr = lr,
              .grad_scale = grad_scale,
              .skip = skip,
              .update_ratio = squares,
              .average_decay = options_.average_decay});
}

void Muon::step(const at::Tensor& lr, const at::Tensor& grad_scale, const at::Tensor& skip,
                const at::Tensor& update_ratio) {
  const at::NoGradGuard no_grad;
  const auto squares = [&](size_t row) {
    return update_ratio.defined() ? squares_.select(0, static_cast<int64_t>(row)) : at::Tensor();
  };
  for (size_t i = 0; i < stacks_.size(); ++i) {
    step_stack(stacks_[i], i == 0 ? step_ : uncounted_, lr, grad_scale, skip, squares(i));
  }
  if (others_) others_->step(lr, grad_scale, skip, squares(stacks_.size()));
  if (!update_ratio.defined()) return;
  const at::Tensor sums = squares_.sum(0);
  if (update_ratio.dim() == 1) {
    at::Tensor(update_ratio).copy_(sums);
    return;
  }
  // Both are 0 for a skip.
  const at::Tensor ratio = at::sqrt(sums.select(0, 0) / sums.select(0, 1));
  at::Tensor(update_ratio).copy_(at::where(skip.ne(0), at::zeros_like(ratio), ratio));
}

void Muon::visit_state(StateVisitor& visitor) {
  if (others_) {
    others_->visit_state(visitor);
  } else {
    visitor.tensor("optim.step", step_, StateRole::optimizer);
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    visitor.tensor("optim." + names_[i] + ".momentum", momenta_[i], StateRole::optimizer);
  }
}

}  // namespace hrm::optim
