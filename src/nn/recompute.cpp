#include "hrm/nn/recompute.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Holds the callable in the context, which only stores tensors and c10 objects.
struct PartHolder : torch::CustomClassHolder {
  explicit PartHolder(RecomputedPart callable) : part(std::move(callable)) {}
  RecomputedPart part;
};

thread_local bool again = false, unread = false;

// While alive, computes_again() is true.
class SecondCall {
 public:
  SecondCall() : before_(std::exchange(again, true)) {}
  ~SecondCall() { again = before_; }
  SecondCall(const SecondCall&) = delete;
  SecondCall& operator=(const SecondCall&) = delete;

 private:
  bool before_;
};

variable_list run(const RecomputedPart& part, const variable_list& inputs, variable_list& leaves) {
  const at::AutoGradMode recorded(true);
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().requires_grad_(input.requires_grad()));
  }
  return part(leaves);
}

struct Recompute : torch::autograd::Function<Recompute> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& /*leaf*/, at::TensorList inputs,
                               const RecomputedPart& part) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["part"] = c10::IValue::make_capsule(c10::make_intrusive<PartHolder>(part));
    // Recorded, because some parts do more work in gradient mode; the graph dies with `leaves` and `out`.
    variable_list leaves, out = run(part, inputs.vec(), leaves);
    for (at::Tensor& output : out) output = output.detach();
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a recomputed part has no second derivative");
    const auto holder = ctx->saved_data["part"].toCapsule();
    variable_list leaves, out;
    {
      const SecondCall second;
      out = run(static_cast<PartHolder*>(holder.get())->part, ctx->get_saved_variables(), leaves);
    }
    variable_list roots, root_grads;
    for (size_t i = 0; i < out.size(); ++i) {
      if (!out[i].requires_grad() || !grads[i].defined()) continue;
      roots.push_back(out[i]);
      root_grads.push_back(grads[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list result(1);
    for (const at::Tensor& leaf : leaves) result.push_back(leaf.grad());
    result.emplace_back();
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> recompute(const RecomputedPart& part, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& leaf) {
  return Recompute::apply(leaf, at::TensorList(inputs), part);
}

bool computes_again() {
  return again;
}

PartResult::PartResult() : before_(std::exchange(unread, again)) {}

PartResult::~PartResult() {
  unread = before_;
}

bool result_is_unread() {
  return unread;
}

}  // namespace hrm::nn
