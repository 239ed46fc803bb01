#include <utility>

#include "ops/gpu_testing.h"
#include "ops/sequence/selective_scan_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// What the kernels serve: heads of 64 channels, states of 64 and 128, 16 bits. One position, parts of a chunk, whole
// chunks, rows of several segments, rows of one; blocks for one head, for some heads of a group and for all of them.
std::vector<ScanShape> kernel_shapes() {
  return {{1, 1, 2, 64, 128, 1, 64},   {2, 5, 4, 64, 128, 2, 64},    {1, 64, 3, 64, 128, 3, 64},
          {2, 81, 4, 64, 128, 1, 32},  {1, 193, 6, 64, 64, 2, 64},   {3, 128, 2, 64, 64, 1, 64},
          {33, 130, 3, 64, 64, 1, 64}, {70, 130, 6, 64, 128, 2, 64}, {1, 1100, 3, 64, 128, 1, 256}};
}

TEST(SsdScanGpu, ValuesAndGradients) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const ScanShape& shape : kernel_shapes()) {
    expect_good_scan(shape, at::kBFloat16, 1e-2, at::kCUDA);
    expect_good_scan(shape, at::kHalf, 1.5e-3, at::kCUDA);
  }
}

TEST(SsdScanGpu, OtherShapesAndFloat32ByAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact;
  for (const ScanShape& shape : scan_shapes()) {
    expect_good_scan(shape, at::kDouble, 1e-12, at::kCUDA);
    expect_good_scan(shape, at::kFloat, 2e-5, at::kCUDA);
    expect_good_scan(shape, at::kBFloat16, 2e-2, at::kCUDA);
  }
  expect_good_scan({2, 81, 4, 64, 128, 1, 32}, at::kFloat, 2e-5, at::kCUDA);
}

TEST(SsdScanGpu, ReferenceBackendIsTheRecurrence) {
  HRM_NEEDS_GPU();
  const ScanInputs v = scan_inputs({2, 21, 4, 64, 128, 2, 8}, at::kBFloat16, at::kCUDA);
  const WithReference with_reference;
  const auto [y, state] = ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], 8, v[6]);
  const auto [want, want_state] = reference::ssd_scan_sequential(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  expect_same_bits(y, want);
  expect_same_bits(state, want_state);
}

std::vector<at::Tensor> all_of(const ScanInputs& v, const at::Tensor& grad_y, const at::Tensor& grad_state) {
  const auto scan = [](const ScanInputs& in) { return ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], 64, in[6]); };
  ScanResult r = run_scan(scan, v, grad_y, grad_state);
  r.grads.push_back(r.y);
  r.grads.push_back(r.state);
  return r.grads;
}

TEST(SsdScanGpu, SameEachTime) {
  HRM_NEEDS_GPU();
  for (const ScanShape& shape : {ScanShape{2, 700, 8, 64, 128, 2, 64}, ScanShape{40, 200, 6, 64, 64, 2, 64}}) {
    const ScanInputs v = scan_inputs(shape, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_y = normal(v[0].sizes(), 8, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_state = normal(v[6].sizes(), 9, at::kFloat, at::kCUDA);
    expect_same_each_time([&] { return all_of(v, grad_y, grad_state); }, 10, cat("T ", shape.positions));
  }
}

TEST(SsdScanGpu, InAGraph) {
  HRM_NEEDS_GPU();
  const ScanShape shape{2, 300, 6, 64, 128, 2, 64};
  const at::Tensor grad_y = normal({2, 300, 6, 64}, 8, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_state = normal({2, 6, 64, 128}, 9, at::kFloat, at::kCUDA);
  const ScanInputs first = scan_inputs(shape, at::kBFloat16, at::kCUDA);
  ScanInputs input;
  for (const at::Tensor& t : first) input.push_back(t.clone());
  std::vector<at::Tensor> result;
  Captured captured([&] { result = all_of(input, grad_y, grad_state); });
  for (int i = 0; i < 3; ++i) {
    ScanInputs now;
    for (size_t k = 0; k < first.size(); ++k) now.push_back(first[k] * (1 + 0.25 * i));
    for (size_t k = 0; k < first.size(); ++k) input[k].copy_(now[k]);
    captured.replay();
    const std::vector<at::Tensor> eager = all_of(now, grad_y, grad_state);
    for (size_t k = 0; k < eager.size(); ++k) expect_same_bits(result[k], eager[k], cat("result ", k, ", replay ", i));
  }
}

// The slices of a convolution's output, rows that no kernel can read by 16 bytes, a transposed dt, a reversed grad_y.
TEST(SsdScanGpu, AnyStrides) {
  HRM_NEEDS_GPU();
  const ScanShape shape{2, 81, 4, 64, 64, 2, 64};
  const ScanInputs v = scan_inputs(shape, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_y = normal(v[0].sizes(), 8, at::kBFloat16, at::kCUDA);
  const auto both = [&](const ScanInputs& in, const at::Tensor& grad) {
    const auto [y, state] = ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], 64, in[6]);
    const auto [x, dt, A, B, C, D, initial] =
        ssd_scan_backward(grad, {}, in[0], in[1], in[2], in[3], in[4], in[5], 64, in[6]);
    return std::vector<at::Tensor>{y, state, x, dt, A, B, C, D, initial};
  };
  const std::vector<at::Tensor> want = both(v, grad_y);
  for (const int64_t shift : {8, 1}) {
    ScanInputs in = v;
    const at::Tensor wide = at::zeros({2, 81, shift + 4 * 64 + 2 * 2 * 64}, v[0].options());
    int64_t begin = shift;
    for (const size_t k : {0, 3, 4}) {
      const int64_t width = v[k].size(2) * v[k].size(3);
      wide.narrow(2, begin, width).copy_(v[k].flatten(2));
      in[k] = wide.narrow(2, begin, width).unflatten(2, {v[k].size(2), v[k].size(3)});
      begin += width;
    }
    in[1] = v[1].transpose(1, 2).contiguous().transpose(1, 2);
    in[6] = v[6].transpose(2, 3).contiguous().transpose(2, 3);
    for (const size_t k : {2, 5}) in[k] = at::stack({v[k], v[k]}, -1).select(-1, 1);
    const at::Tensor grad = at::stack({grad_y, grad_y}, -1).select(-1, shift % 2);
    ASSERT_FALSE(in[0].is_contiguous() || in[1].is_contiguous() || in[2].is_contiguous() || grad.is_contiguous());
    const std::vector<at::Tensor> ours = both(in, grad);
    for (size_t k = 0; k < want.size(); ++k) expect_same_bits(ours[k], want[k], cat("result ", k, ", shift ", shift));
  }
}

// Without a state to begin with, and with a loss that reads one output alone.
TEST(SsdScanGpu, OneOutputAlone) {
  HRM_NEEDS_GPU();
  const ScanInputs v = scan_inputs({2, 100, 4, 64, 64, 2, 64}, at::kHalf, at::kCUDA), wide = widened(v);
  for (const bool of_state : {false, true}) {
    const auto grads = [&](const ScanInputs& in, const auto& scan) {
      std::vector<at::Tensor> leaves;
      for (size_t k = 0; k < 6; ++k) leaves.push_back(in[k].detach().clone().requires_grad_());
      const auto [y, state] = scan(leaves);
      const at::Tensor& out = of_state ? state : y;
      const at::Tensor grad = normal(out.sizes(), 8, at::kHalf, at::kCUDA).to(out.scalar_type());
      return torch::autograd::grad({out}, leaves, {grad}, {}, /*create_graph=*/false, /*allow_unused=*/true);
    };
    const auto ours =
        grads(v, [](const ScanInputs& in) { return ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], 64); });
    const auto exact = grads(wide, [](const ScanInputs& in) {
      return reference::ssd_scan_sequential(in[0], in[1], in[2], in[3], in[4], in[5], {});
    });
    for (size_t k = 0; k < ours.size(); ++k) {
      const at::Tensor want = exact[k].defined() ? exact[k] : at::zeros_like(wide[k]);
      EXPECT_LE(relative(ours[k], want), 4e-3) << "input " << k << ", of the state: " << of_state;
    }
  }
}

// Decays of exp(-1000) and more inside a chunk.
TEST(SsdScanGpu, StrongDecay) {
  HRM_NEEDS_GPU();
  ScanInputs v = scan_inputs({2, 150, 2, 64, 128, 1, 64}, at::kBFloat16, at::kCUDA);
  v[1] = v[1] * 1000;
  const std::vector<at::Tensor> all = all_of(v, at::ones_like(v[0]), at::ones_like(v[6]));
  for (size_t k = 0; k < all.size(); ++k) EXPECT_TRUE(at::isfinite(all[k]).all().item<bool>()) << "result " << k;
}

}  // namespace
}  // namespace hrm::ops
