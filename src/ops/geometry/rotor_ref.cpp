// The readable version, and the oracle of the kernels. Rolled by the layer's number, the axes of a plane are
// neighbours, so no index tensor has to be copied from the host.
#include <ATen/ATen.h>

#include "ops/geometry/rotor_impl.h"

namespace hrm::ops::reference {
namespace {

struct RotorLayers {
  at::Tensor cos, sin;  // (layers, pairs)
};

RotorLayers rotor_layer_angles(const at::Tensor& theta, int64_t n) {
  const int64_t layers = rotor_layers(theta.numel(), n), pairs = n / 2;
  const at::Tensor angles = at::constant_pad_nd(theta, {0, layers * pairs - theta.numel()}).view({layers, pairs});
  return {angles.cos(), angles.sin()};
}

// Rotates rows 2p and 2p + 1 of x (n, n).
at::Tensor rotate_neighbours(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t pairs = cos.size(0), n = x.size(0);
  const at::Tensor both = x.narrow(0, 0, 2 * pairs).reshape({pairs, 2, n});
  const at::Tensor first = both.select(1, 0), second = both.select(1, 1);
  const at::Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const at::Tensor rotated = at::stack({c * first - s * second, s * first + c * second}, 1).view({2 * pairs, n});
  return 2 * pairs == n ? rotated : at::cat({rotated, x.narrow(0, n - 1, 1)});
}

}  // namespace

at::Tensor rotor_matrix(const at::Tensor& theta, int64_t n) {
  at::Tensor q = at::eye(n, theta.options());
  if (theta.numel() == 0) return q;
  const RotorLayers layers = rotor_layer_angles(theta, n);
  for (int64_t layer = 0; layer < layers.cos.size(0); ++layer) {
    const int64_t shift = layer % n;
    q = rotate_neighbours(q.roll({-shift}, {0}), layers.cos[layer], layers.sin[layer]).roll({shift}, {0});
  }
  return q;
}

at::Tensor rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer) {
  if (theta.numel() == 0) return at::empty_like(theta);
  const int64_t n = outer.size(0);
  const RotorLayers layers = rotor_layer_angles(theta, n);
  std::vector<at::Tensor> gradients(static_cast<size_t>(layers.cos.size(0)));
  at::Tensor rest = outer;
  for (int64_t layer = layers.cos.size(0) - 1; layer >= 0; --layer) {
    const int64_t shift = layer % n;
    rest = rest.roll({-shift, -shift}, {0, 1});
    // Elements (b, a) and (a, b) of the planes: every second one beside the diagonal.
    gradients[static_cast<size_t>(layer)] = rest.diagonal(-1).slice(0, 0, n, 2) - rest.diagonal(1).slice(0, 0, n, 2);
    const at::Tensor cos = layers.cos[layer], back = -layers.sin[layer];
    rest = rotate_neighbours(rotate_neighbours(rest, cos, back).t(), cos, back).t().roll({shift, shift}, {0, 1});
  }
  return at::cat(gradients).narrow(0, 0, theta.numel()).contiguous();
}

}  // namespace hrm::ops::reference
