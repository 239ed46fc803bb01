#include "hrm/nn/embedding.h"

#include <torch/csrc/autograd/custom_function.h>

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sum of the gradient rows of each entry: (entries, width) float32.
at::Tensor table_gradient(const at::Tensor& grad, const at::Tensor& ids, int64_t entries) {
  const at::Tensor rows = grad.to(at::kFloat).reshape({-1, grad.size(-1)});
  if (entries > Embedding::kOneHotEntries) {
    return at::embedding_dense_backward(rows, ids.reshape({-1}), entries, /*padding_idx=*/-1,
                                        /*scale_grad_by_freq=*/false);
  }
  const at::Tensor entry = at::arange(entries, ids.options()).unsqueeze(1);
  const at::Tensor one_hot = ids.reshape({1, -1}).eq(entry).to(at::kFloat);  // (entries, tokens)
  return at::mm(one_hot, rows);
}

struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& table, const at::Tensor& ids,
                            at::ScalarType dtype) {
    ctx->save_for_backward({ids});
    ctx->saved_data["entries"] = table.size(0);
    return at::embedding(table.to(dtype), ids);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    return {table_gradient(grads[0], ids, ctx->saved_data["entries"].toInt()), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Embedding::Embedding(int64_t entries, int64_t width, at::Device device) {
  embedding_weight_ = register_parameter("embedding_weight", at::empty({entries, width}, at::device(device)));
}

at::Tensor Embedding::forward(const at::Tensor& ids, at::ScalarType dtype) const {
  return Gather::apply(embedding_weight_, ids, dtype);
}

}  // namespace hrm::nn
