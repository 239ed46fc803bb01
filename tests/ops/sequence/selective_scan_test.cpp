#include "hrm/ops/selective_scan.h"

#include "ops/sequence/selective_scan_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(SsdScan, ValuesAndGradients) {
  for (const ScanShape& shape : scan_shapes()) {
    expect_good_scan(shape, at::kDouble, 1e-12);
    expect_good_scan(shape, at::kFloat, 2e-5);
    // x, B, C and y are rounded to 8 bits; everything between is float32.
    expect_good_scan(shape, at::kBFloat16, 2e-2);
  }
}

TEST(SsdScan, ReferenceBackendIsTheRecurrence) {
  const ScanShape shape{2, 21, 4, 8, 6, 2, 8};
  const WithReference with_reference;
  expect_good_scan(shape, at::kDouble, 1e-12);
  const ScanInputs v = scan_inputs(shape, at::kFloat);
  const auto [y, state] = ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], shape.chunk, v[6]);
  const auto [want, want_state] = reference::ssd_scan_sequential(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  expect_same_bits(y, want);
  expect_same_bits(state, want_state);
}

TEST(SsdScan, FiniteDifferencesInFloat64) {
  const ScanShape shape{1, 5, 2, 2, 3, 1, 2};
  const ScanInputs values = scan_inputs(shape, at::kDouble);
  const at::Tensor grad_y = normal(values[0].sizes(), 8, at::kDouble);
  const at::Tensor grad_state = normal(values[6].sizes(), 9, at::kDouble);
  const auto scan = [&](const ScanInputs& v) {
    return ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], shape.chunk, v[6]);
  };
  const ScanResult ours = run_scan(scan, values, grad_y, grad_state);
  constexpr double kStep = 1e-6;
  for (size_t input = 0; input < values.size(); ++input) {
    for (int64_t i = 0; i < values[input].numel(); ++i) {
      const auto loss = [&](double move) {
        ScanInputs moved = values;
        moved[input] = values[input].clone();
        moved[input].view(-1)[i] += move;
        const auto [y, state] = scan(moved);
        return ((y * grad_y).sum() + (state * grad_state).sum()).item<double>();
      };
      EXPECT_NEAR(ours.grads[input].reshape(-1)[i].item<double>(), (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-7)
          << "input " << input << ", element " << i;
    }
  }
}

// Decays of exp(-1000) and more inside a chunk: above the diagonal the unmasked exponent would overflow.
TEST(SsdScan, StrongDecay) {
  const ScanShape shape{2, 16, 2, 4, 3, 1, 16};
  ScanInputs values = scan_inputs(shape, at::kFloat);
  values[1] = values[1] * 1000;
  const auto scan = [&](const ScanInputs& v) {
    return ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], shape.chunk, v[6]);
  };
  const ScanResult ours = run_scan(scan, values, at::ones_like(values[0]), at::ones_like(values[6]));
  EXPECT_TRUE(at::isfinite(ours.y).all().item<bool>());
  for (const at::Tensor& grad : ours.grads) EXPECT_TRUE(at::isfinite(grad).all().item<bool>());
}

// A row in two pieces, the state handed on, is the row in one.
TEST(SsdScan, GoesOnFromAState) {
  const ScanShape shape{2, 21, 4, 8, 6, 2, 8};
  const ScanInputs v = scan_inputs(shape, at::kDouble);
  const auto [whole, whole_state] = ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], shape.chunk);
  std::optional<at::Tensor> state;
  std::vector<at::Tensor> pieces;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 13}, {13, 1}, {14, 7}}) {
    const auto part = [&](size_t i) { return v[i].narrow(1, first, count); };
    const auto [y, after] = ssd_scan(part(0), part(1), v[2], part(3), part(4), v[5], shape.chunk, state);
    pieces.push_back(y);
    state = after;
  }
  EXPECT_LE(relative(at::cat(pieces, 1), whole), 1e-13);
  EXPECT_LE(relative(*state, whole_state), 1e-13);
}

// A loss that reads one output alone, without a state to begin with.
TEST(SsdScan, OneOutputAlone) {
  const ScanShape shape{1, 6, 2, 3, 4, 1, 4};
  ScanInputs v = scan_inputs(shape, at::kDouble);
  for (const bool of_state : {false, true}) {
    const at::Tensor ours_x = v[0].clone().requires_grad_(), plain_x = v[0].clone().requires_grad_();
    const auto ours = ssd_scan(ours_x, v[1], v[2], v[3], v[4], v[5], shape.chunk);
    const auto plain = reference::ssd_scan_sequential(plain_x, v[1], v[2], v[3], v[4], v[5], {});
    (of_state ? std::get<1>(ours) : std::get<0>(ours)).square().sum().backward();
    (of_state ? std::get<1>(plain) : std::get<0>(plain)).square().sum().backward();
    EXPECT_LE(relative(ours_x.grad(), plain_x.grad()), 1e-12) << of_state;
  }
}

TEST(SsdScan, NonContiguousInputs) {
  const ScanShape shape{2, 11, 4, 8, 6, 2, 4};
  ScanInputs v = scan_inputs(shape, at::kFloat);
  const auto scan = [&](const ScanInputs& in) {
    return std::get<0>(ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], shape.chunk, in[6]));
  };
  const at::Tensor want = scan(v);
  for (at::Tensor& t : v) t = at::stack({t, t}, -1).select(-1, 1);
  ASSERT_FALSE(v[0].is_contiguous() || v[3].is_contiguous());
  expect_same_bits(scan(v), want);
}

TEST(SsdScan, BadInputIsNamed) {
  const ScanShape shape{2, 5, 4, 8, 6, 2, 4};
  const auto message = [&](const std::function<void(ScanInputs&)>& spoil, int64_t chunk = 4) {
    ScanInputs v = scan_inputs(shape, at::kFloat);
    spoil(v);
    return error_of([&] { ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], chunk, v[6]); });
  };
  expect_message(message([](ScanInputs& v) {
                   v[1] = at::ones({2, 6, 4});
                 }),
                 {"hrm::ssd_scan", "[2, 5, 4, 8]", "[2, 6, 4]"});
  expect_message(message([](ScanInputs& v) {
                   v[3] = v[4] = at::ones({2, 5, 3, 6});
                 }),
                 {"hrm::ssd_scan", "[2, 5, 3, 6]"});
  expect_message(message([](ScanInputs& v) { v[2] = at::ones({3}); }), {"hrm::ssd_scan", "[3]"});
  expect_message(message([](ScanInputs& v) { v[0] = v[0].to(at::kBFloat16); }), {"hrm::ssd_scan", "BFloat16"});
  expect_message(message([](ScanInputs& v) { v[1] = v[1].to(at::kDouble); }), {"hrm::ssd_scan", "Double"});
  expect_message(message([](ScanInputs& v) { v[6] = at::ones({2, 4, 8, 5}); }), {"hrm::ssd_scan", "[2, 4, 8, 6]"});
  expect_message(message([](ScanInputs&) {}, 0), {"hrm::ssd_scan", "chunk"});
}

}  // namespace
}  // namespace hrm::ops
