#include "hrm/nn/across_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "hrm/nn/recompute.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_swiglu.h"
#include "hrm/ops/stale_gradient.h"

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows from begin to end.
struct Range {
  int64_t begin = 0, end = 0;
  at::Tensor of(const at::Tensor& rows) const { return rows.narrow(0, begin, end - begin); }
};

// Where the rows of a pass are.
struct Places {
  int64_t tokens, k, part, parts;

  Places(const TensorAcross& across, int64_t of_tokens)
      : tokens(of_tokens), k(across.own_rows(of_tokens)), part(across.cut().part), parts(across.cut().parts) {}

  Range own() const { return {std::min(part * k, tokens), std::min((part + 1) * k, tokens)}; }
  int64_t own_rows() const { return own().end - own().begin; }
  // The other parts' rows: those before and those behind.
  std::vector<Range> others() const {
    std::vector<Range> ranges;
    if (own().begin > 0) ranges.push_back({0, own().begin});
    if (own().end < tokens) ranges.push_back({own().end, tokens});
    return ranges;
  }
};

// Rows of all parts: those of this part are there, the others are on their way.
struct Gathering {
  at::Tensor all;  // (parts * k, D)
  std::unique_ptr<Moving> moving;
};

Gathering start_gather(const TensorAcross& across, const at::Tensor& rows) {
  at::Tensor all = at::empty({across.cut().parts * rows.size(0), rows.size(1)}, rows.options());
  auto moving = across.start_gather(all, rows.contiguous());
  return {std::move(all), std::move(moving)};
}

// Partial sums of the other parts' rows go to them, and theirs of ours come. What this part has of its own rows is
// written into own().
class Sending {
 public:
  Sending(const TensorAcross& across, const Places& places, int64_t width, const at::TensorOptions& options)
      : across_(across),
        places_(places),
        sums_(at::empty({places.parts, places.k, width}, options)),
        pieces_(at::empty_like(sums_)) {
    // Rows without a token.
    flat().narrow(0, places.tokens, places.parts * places.k - places.tokens).zero_();
    pieces_[places.part].narrow(0, places.own_rows(), places.k - places.own_rows()).zero_();
  }

  at::Tensor of(const Range& range) const { return range.of(flat()); }
  void start() { moving_ = across_.start_exchange(pieces_, sums_); }
  at::Tensor own() const { return pieces_[places_.part].narrow(0, 0, places_.own_rows()); }
  at::Tensor wait() {
    moving_->wait();
    return pieces_;
  }

 private:
  at::Tensor flat() const { return sums_.view({places_.parts * places_.k, -1}); }

  const TensorAcross& across_;
  Places places_;
  at::Tensor sums_, pieces_;
  std::unique_ptr<Moving> moving_;
};

// In place of what Sending gives: of a recomputed block's result, which nobody reads, so nothing is sent.
at::Tensor unread_pieces(const Places& places, int64_t width, const at::TensorOptions& options) {
  return at::empty({places.parts, places.k, width}, options);
}

// y = x w^T, and grad_x = grad_y w, into place. Nothing for no rows.
void product_of_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight) {
  if (x.size(0) > 0) ops::linear_out(y, x, weight);
}
void product_back(const at::Tensor& grad_x, const at::Tensor& grad_y, const at::Tensor& weight) {
  if (grad_y.size(0) > 0) ops::linear_out(grad_x, grad_y, weight.t());
}
void add_gradient(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  if (grad_weight.defined() && x.size(0) > 0) ops::linear_accumulate_(grad_weight, grad_y, x);
}

void check_once() {
  TORCH_CHECK(!at::GradMode::is_enabled(), "a layer that is cut has no second derivative");
}

const TensorAcross& across_of(const AutogradContext& ctx) {
  return *reinterpret_cast<const TensorAcross*>(ctx.saved_data.at("across").toInt());
}

at::Tensor buffer_of(const AutogradContext& ctx, const char* name) {
  return ctx.saved_data.at(name).toTensor();
}

// The masters are arguments of the functions below so that their nodes exist whenever masters are trained.
struct EnterLinear : torch::autograd::Function<EnterLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& /*master*/,
                            const TensorAcross* across, int64_t tokens, const Linear* linear) {
    const at::Tensor weight = linear->compute_weight();
    const Places places(*across, tokens);
    const Range own = places.own();
    const at::Tensor y = at::empty({tokens, weight.size(0)}, rows.options());
    const Gathering gathering = start_gather(*across, rows);
    product_of_rows(own.of(y), rows.narrow(0, 0, places.own_rows()), weight);
    gathering.moving->wait();
    for (const Range& range : places.others()) product_of_rows(range.of(y), range.of(gathering.all), weight);
    ctx->save_for_backward({gathering.all.narrow(0, 0, tokens), weight});
    ctx->saved_data["across"] = reinterpret_cast<int64_t>(across);
    ctx->saved_data["needs_rows"] = rows.requires_grad();
    ctx->saved_data["grad_weight"] = ops::stale_gradient_buffer(linear->weight());
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    check_once();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], grad = grads[0].contiguous();
    const TensorAcross& across = across_of(*ctx);
    const at::Tensor grad_weight = buffer_of(*ctx, "grad_weight");
    variable_list out(5);
    if (!ctx->saved_data["needs_rows"].toBool()) {
      add_gradient(grad_weight, grad, x);
      return out;
    }
    const Places places(across, x.size(0));
    Sending sending(across, places, weight.size(1), grad.options());
    for (const Range& range : places.others()) product_back(sending.of(range), range.of(grad), weight);
    sending.start();
    product_back(sending.own(), places.own().of(grad), weight);
    add_gradient(grad_weight, grad, x);
    out[0] = ops::add_pieces({}, {sending.wait()});
    return out;
  }
};

struct LinearLeave : torch::autograd::Function<LinearLeave> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*master*/,
                            const TensorAcross* across, const Linear* linear) {
    const at::Tensor weight = linear->compute_weight();
    const Places places(*across, x.size(0));
    ctx->save_for_backward({x, weight});
    ctx->saved_data["across"] = reinterpret_cast<int64_t>(across);
    ctx->saved_data["needs_x"] = x.requires_grad();
    ctx->saved_data["grad_weight"] = ops::stale_gradient_buffer(linear->weight());
    if (result_is_unread()) return unread_pieces(places, weight.size(0), x.options());
    Sending sending(*across, places, weight.size(0), x.options());
    for (const Range& range : places.others()) product_of_rows(sending.of(range), range.of(x), weight);
    sending.start();
    product_of_rows(sending.own(), places.own().of(x), weight);
    return sending.wait();
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    check_once();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const TensorAcross& across = across_of(*ctx);
    const at::Tensor grad_weight = buffer_of(*ctx, "grad_weight");
    const Places places(across, x.size(0));
    // The pieces are only added, so their gradients are one and the same.
    const at::Tensor grad = grads[0][0].contiguous();
    const bool needs_x = ctx->saved_data["needs_x"].toBool();
    const at::Tensor grad_x = needs_x ? at::empty(x.sizes(), x.options()) : at::Tensor();
    const Gathering gathering = start_gather(across, grad);
    const auto pass = [&](const Range& range, const at::Tensor& grad_rows) {
      if (needs_x) product_back(range.of(grad_x), grad_rows, weight);
      add_gradient(grad_weight, grad_rows, range.of(x));
    };
    pass(places.own(), grad.narrow(0, 0, places.own_rows()));
    gathering.moving->wait();
    for (const Range& range : places.others()) pass(range, range.of(gathering.all));
    return {grad_x, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// The rows of one range on their way through a SwiGLU.
struct Gated {
  at::Tensor act, gate_up;  // gate_up only if the backward pass needs it
};

struct SwigluAcross : torch::autograd::Function<SwigluAcross> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows, const at::Tensor& /*gate_up_master*/,
                            const at::Tensor& /*down_master*/, const TensorAcross* across, int64_t tokens,
                            const Linear* gate_up_proj, const Linear* down_proj, bool recorded) {
    const at::Tensor gates = gate_up_proj->compute_weight(), down = down_proj->compute_weight();
    const Places places(*across, tokens);
    const auto gated = [&](const at::Tensor& x) -> Gated {
      if (x.size(0) == 0) return {x.new_empty({0, gates.size(0) / 2}), x.new_empty({0, gates.size(0)})};
      if (!recorded) return {ops::linear_swiglu(x, gates), {}};
      auto [act, gate_up] = ops::linear_swiglu_forward(x, gates);
      return {std::move(act), std::move(gate_up)};
    };
    const Gathering gathering = start_gather(*across, rows);
    std::vector<Gated> parts;  // ours, then the others
    parts.push_back(gated(rows.narrow(0, 0, places.own_rows())));
    gathering.moving->wait();
    std::optional<Sending> sending;
    if (!result_is_unread()) sending.emplace(*across, places, down.size(0), rows.options());
    for (const Range& range : places.others()) {
      parts.push_back(gated(range.of(gathering.all)));
      if (sending) product_of_rows(sending->of(range), parts.back().act, down);
    }
    if (sending) {
      sending->start();
      product_of_rows(sending->own(), parts.front().act, down);
    }
    if (recorded) {
      variable_list saved{gathering.all.narrow(0, 0, tokens), gates, down};
      for (const Gated& part : parts) saved.insert(saved.end(), {part.act, part.gate_up});
      ctx->save_for_backward(saved);
      ctx->saved_data["across"] = reinterpret_cast<int64_t>(across);
      ctx->saved_data["needs_rows"] = rows.requires_grad();
      ctx->saved_data["grad_gate_up"] = ops::stale_gradient_buffer(gate_up_proj->weight());
      ctx->saved_data["grad_down"] = ops::stale_gradient_buffer(down_proj->weight());
    }
    return sending ? sending->wait() : unread_pieces(places, down.size(0), rows.options());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    check_once();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &gates = saved[1], &down = saved[2];
    const TensorAcross& across = across_of(*ctx);
    const at::Tensor grad_gates = buffer_of(*ctx, "grad_gate_up"), grad_down = buffer_of(*ctx, "grad_down");
    const Places places(across, x.size(0));
    const auto part = [&](size_t i) { return Gated{saved[3 + 2 * i], saved[4 + 2 * i]}; };
    const auto through_gate = [&](const at::Tensor& grad_rows, const Gated& of) {
      if (grad_rows.size(0) == 0) return of.gate_up;
      return ops::linear_swiglu_backward(grad_rows, down, of.gate_up);
    };
    const at::Tensor grad = grads[0][0].contiguous(), grad_own = grad.narrow(0, 0, places.own_rows());
    const Gathering gathering = start_gather(across, grad);
    const at::Tensor own_gates = through_gate(grad_own, part(0));
    add_gradient(grad_down, grad_own, part(0).act);
    add_gradient(grad_gates, own_gates, places.own().of(x));
    gathering.moving->wait();
    variable_list out(8);
    const bool needs_rows = ctx->saved_data["needs_rows"].toBool();
    std::optional<Sending> sending;
    if (needs_rows) sending.emplace(across, places, gates.size(1), grad.options());
    const std::vector<Range> others = places.others();
    std::vector<at::Tensor> other_gates;
    for (size_t i = 0; i < others.size(); ++i) {
      other_gates.push_back(through_gate(others[i].of(gathering.all), part(i + 1)));
      if (sending) product_back(sending->of(others[i]), other_gates[i], gates);
    }
    if (sending) sending->start();
    for (size_t i = 0; i < others.size(); ++i) {
      add_gradient(grad_down, others[i].of(gathering.all), part(i + 1).act);
      add_gradient(grad_gates, other_gates[i], others[i].of(x));
    }
    if (sending) {
      product_back(sending->own(), own_gates, gates);
      out[0] = ops::add_pieces({}, {sending->wait()});
    }
    return out;
  }
};

}  // namespace

at::Tensor enter_linear(const TensorAcross& across, const at::Tensor& rows, int64_t tokens, const Linear& linear) {
  if (linear.needs_forward()) return linear.forward(across.enter(rows, tokens));
  return EnterLinear::apply(rows, linear.weight(), &across, tokens, &linear);
}

ops::Pieces linear_leave(const TensorAcross& across, const at::Tensor& x, const Linear& linear) {
  if (linear.needs_forward()) {
    // A layer with a residual leaves out a product that nobody reads. leave() sends nothing then.
    const bool unread = result_is_unread();
    return across.leave(unread ? linear.forward_add(x, at::empty({x.size(0), linear.weight().size(0)}, x.options()))
                               : linear.forward(x));
  }
  return {LinearLeave::apply(x, linear.weight(), &across, &linear)};
}

ops::Pieces swiglu_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens, const Linear& gate_up,
                          const Linear& down) {
  return {SwigluAcross::apply(rows, gate_up.weight(), down.weight(), &across, tokens, &gate_up, &down,
                              at::GradMode::is_enabled())};
}

}  // namespace hrm::nn
