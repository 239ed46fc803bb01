#pragma once
// Checks of the complex field that hold on every device. The oracle is written with loops over complex numbers.

#include <complex>

#include "hrm/ops/complex_field.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

using Complex = std::complex<double>;

// A field (nx, ny, inner) of complex float64 values.
struct PlainField {
  int64_t nx, ny, inner;
  std::vector<Complex> values;

  explicit PlainField(const at::Tensor& field)
      : nx(field.size(0)), ny(field.size(1)), inner(field.numel() / (2 * nx * ny)) {
    const at::Tensor wide = field.detach().to(at::kCPU, at::kDouble).contiguous();
    const auto* from = wide.const_data_ptr<double>();
    for (int64_t i = 0; i < field.numel() / 2; ++i) values.emplace_back(from[2 * i], from[2 * i + 1]);
  }

  // The value of a cell; outside, that of the opposite edge or zero.
  Complex at(int64_t x, int64_t y, int64_t i, bool periodic) const {
    if (periodic) return values[static_cast<size_t>(((x + nx) % nx * ny + (y + ny) % ny) * inner + i)];
    if (x < 0 || x >= nx || y < 0 || y >= ny) return 0;
    return values[static_cast<size_t>((x * ny + y) * inner + i)];
  }

  std::vector<Complex> laplacian(bool periodic) const {
    std::vector<Complex> sums;
    for (int64_t x = 0; x < nx; ++x) {
      for (int64_t y = 0; y < ny; ++y) {
        for (int64_t i = 0; i < inner; ++i) {
          sums.push_back(at(x - 1, y, i, periodic) + at(x + 1, y, i, periodic) + at(x, y - 1, i, periodic) +
                         at(x, y + 1, i, periodic) - 4.0 * at(x, y, i, periodic));
        }
      }
    }
    return sums;
  }

  at::Tensor tensor(at::IntArrayRef sizes) const {
    const at::Tensor out = at::empty(sizes, at::kDouble);
    auto* to = out.mutable_data_ptr<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      to[2 * i] = values[i].real();
      to[2 * i + 1] = values[i].imag();
    }
    return out;
  }
};

struct FieldAndMomentum {
  at::Tensor field, momentum;
};

inline FieldAndMomentum plain_verlet(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                     const std::optional<at::Tensor>& nudge, int64_t steps, const FieldVerlet& s) {
  PlainField t(field), p(momentum);
  const PlainField rest(equilibrium), push(nudge.value_or(at::zeros_like(field)));
  const auto kick = [&] {
    const std::vector<Complex> laplace = t.laplacian(s.periodic);
    for (size_t i = 0; i < t.values.size(); ++i) {
      const Complex d = t.values[i] - rest.values[i];
      const double pull = s.potential == FieldPotential::zero       ? 0
                          : s.potential == FieldPotential::harmonic ? s.stiffness
                                                                    : s.stiffness * std::exp(-std::norm(d) / 2);
      p.values[i] += s.dt / 2 * (s.hbar * s.hbar / (2 * s.mass) * laplace[i] - pull * d + push.values[i]);
    }
  };
  for (int64_t step = 0; step < steps; ++step) {
    kick();
    for (size_t i = 0; i < t.values.size(); ++i) t.values[i] += s.dt / s.mass * p.values[i];
    kick();
  }
  return {t.tensor(field.sizes()), p.tensor(field.sizes())};
}

inline at::Tensor plain_dissipative(const at::Tensor& field, int64_t history, const std::optional<at::Tensor>& source,
                                    const std::optional<at::Tensor>& previous,
                                    const std::optional<at::Tensor>& evidence, int64_t steps,
                                    const FieldDissipative& s) {
  PlainField t(field);
  const at::Tensor none = at::zeros_like(field);
  const PlainField push(source.value_or(none)), before(previous.value_or(none)), seen(evidence.value_or(none));
  double total = 0;
  const auto belief = [&](size_t i) {
    return std::exp(-std::norm(before.values[i] - seen.values[i]) / s.evidence_width);
  };
  for (size_t i = 0; i < t.values.size(); ++i) total += belief(i) * std::norm(before.values[i]);
  for (int64_t step = 0; step < steps; ++step) {
    const double past = static_cast<double>(std::min(history + step, std::max(history, s.history_capacity)));
    const double w = std::min(1.0, std::max(0.0, s.memory_gain * std::log(1 + past)));
    const std::vector<Complex> laplace = t.laplacian(s.periodic);
    for (size_t i = 0; i < t.values.size(); ++i) {
      const Complex energy = -s.hbar * s.hbar / (2 * s.mass) * laplace[i];
      const Complex lambda =
          previous ? s.collapse_rate * (belief(i) * before.values[i] / total - before.values[i]) : Complex(0);
      t.values[i] += s.dt / (Complex(0, 1) * s.hbar) * (-(1 - w) * energy / s.hbar + lambda + push.values[i]);
    }
  }
  return t.tensor(field.sizes());
}

inline at::Tensor plain_energies(const at::Tensor& field, const at::Tensor& momentum, const at::Tensor& equilibrium,
                                 const FieldVerlet& s) {
  const PlainField t(field), p(momentum), rest(equilibrium);
  double kinetic = 0, potential = 0, gradient = 0;
  for (size_t i = 0; i < t.values.size(); ++i) {
    kinetic += std::norm(p.values[i]) / (2 * s.mass);
    const double d = std::norm(t.values[i] - rest.values[i]);
    if (s.potential == FieldPotential::harmonic) potential += s.stiffness * d / 2;
    if (s.potential == FieldPotential::gaussian_well) potential += s.stiffness * (1 - std::exp(-d / 2));
  }
  // Pairs of neighbours; with zeros outside, one more in front of the first cell of each axis.
  const int64_t begin = s.periodic ? 0 : -1;
  for (int64_t i = 0; i < t.inner; ++i) {
    for (int64_t y = 0; y < t.ny; ++y) {
      for (int64_t x = begin; x < t.nx; ++x) {
        gradient += std::norm(t.at(x + 1, y, i, s.periodic) - t.at(x, y, i, s.periodic));
      }
    }
    for (int64_t x = 0; x < t.nx; ++x) {
      for (int64_t y = begin; y < t.ny; ++y) {
        gradient += std::norm(t.at(x, y + 1, i, s.periodic) - t.at(x, y, i, s.periodic));
      }
    }
  }
  return at::tensor({kinetic, potential, gradient * s.hbar * s.hbar / (4 * s.mass)}, at::kDouble);
}

constexpr FieldPotential kPotentials[] = {FieldPotential::zero, FieldPotential::harmonic,
                                          FieldPotential::gaussian_well};

inline std::string describe(at::IntArrayRef sizes, bool periodic, FieldPotential potential) {
  return cat(sizes, periodic ? " periodic" : " zeros outside", ", potential ", static_cast<int>(potential));
}

inline at::Tensor count(int64_t value, at::Device device) {
  return at::full({}, value, at::device(device).dtype(at::kLong));
}

// float64 has the oracle's values; float32 is as good as plain ATen in float32. Four roundings are always allowed.
inline void expect_field(const at::Tensor& ours, const at::Tensor& plain, const at::Tensor& exact,
                         const std::string& what) {
  const double largest = exact.numel() == 0 ? 0 : exact.abs().max().item<double>();
  if (ours.scalar_type() == at::kDouble) {
    EXPECT_LE(largest_difference(ours, exact), 1e-13 * largest) << what;
    return;
  }
  expect_as_good(ours, plain, exact, what, 4 * largest);
}

inline void expect_verlet(at::Device device, at::ScalarType dtype, at::IntArrayRef sizes, int64_t steps) {
  for (const FieldPotential potential : kPotentials) {
    for (const bool periodic : {true, false}) {
      for (const bool nudged : {true, false}) {
        const std::string what = cat(describe(sizes, periodic, potential), nudged ? " with nudge" : "", " ", dtype);
        const FieldVerlet s{
            .dt = 0.1, .mass = 1.5, .hbar = 0.7, .stiffness = 0.3, .potential = potential, .periodic = periodic};
        const at::Tensor start = normal(sizes, 1, dtype, device), push = normal(sizes, 2, dtype, device);
        const at::Tensor rest = normal(sizes, 3, dtype, device), nudge = normal(sizes, 4, dtype, device);
        const auto run = [&] {
          FieldAndMomentum got{start.clone(), push.clone()};
          complex_field_verlet_(got.field, got.momentum, rest, nudged ? std::optional<at::Tensor>(nudge) : std::nullopt,
                                {}, steps, s);
          return got;
        };
        const FieldAndMomentum exact =
            plain_verlet(start, push, rest, nudged ? std::optional<at::Tensor>(nudge) : std::nullopt, steps, s);
        const FieldAndMomentum ours = run();
        const WithReference with_reference;
        const FieldAndMomentum plain = run();
        expect_field(ours.field, plain.field, exact.field, what + ", field");
        expect_field(ours.momentum, plain.momentum, exact.momentum, what + ", momentum");
      }
    }
  }
}

inline void expect_dissipative(at::Device device, at::ScalarType dtype, at::IntArrayRef sizes, int64_t steps) {
  for (const bool periodic : {true, false}) {
    for (const bool driven : {true, false}) {
      const std::string what = cat(describe(sizes, periodic, {}), driven ? " with source" : "", " ", dtype);
      const FieldDissipative s{
          .dt = 0.1, .mass = 1.5, .hbar = 0.7, .memory_gain = 0.3, .history_capacity = 9, .periodic = periodic};
      const at::Tensor start = normal(sizes, 1, dtype, device), source = normal(sizes, 2, dtype, device);
      const std::optional<at::Tensor> given = driven ? std::optional<at::Tensor>(source) : std::nullopt;
      const auto run = [&] {
        const at::Tensor field = start.clone(), history = count(2, device);
        complex_field_dissipative_(field, history, given, {}, {}, {}, steps, s);
        EXPECT_EQ(history.item<int64_t>(), std::min<int64_t>(9, 2 + steps)) << what;
        return field;
      };
      const at::Tensor exact = plain_dissipative(start, 2, given, {}, {}, steps, s), ours = run();
      const at::Tensor magnitudes = at::empty({steps}, start.options()), traced = start.clone();
      complex_field_dissipative_(traced, count(2, device), given, {}, {}, {}, steps, s, magnitudes);
      expect_same_bits(traced, ours, what + ", with magnitudes");
      for (const int64_t step : {int64_t{0}, steps / 2, steps - 1}) {
        const at::Tensor before = plain_dissipative(start, 2, given, {}, {}, step, s);
        const double want = before.norm(2, -1).mean().item<double>();
        EXPECT_NEAR(magnitudes[step].item<double>(), want, (dtype == at::kDouble ? 1e-12 : 1e-6) * want)
            << what << ", step " << step;
      }
      const WithReference with_reference;
      expect_field(ours, run(), exact, what);
      const at::Tensor again = at::empty_like(magnitudes);
      complex_field_dissipative_(start.clone(), count(2, device), given, {}, {}, {}, steps, s, again);
      EXPECT_LT(((again - magnitudes) / magnitudes).abs().max().item<double>(), 1e-6) << what;
    }
  }
}

inline void expect_collapse(at::Device device, at::ScalarType dtype) {
  const std::vector<int64_t> sizes{3, 4, 5, 2};
  const at::Tensor field = normal(sizes, 1, dtype, device), previous = normal(sizes, 2, dtype, device);
  const at::Tensor evidence = normal(sizes, 3, dtype, device), history = count(20, device);
  const FieldDissipative s{.dt = 0.1, .collapse_rate = 0.4, .evidence_width = 0.8};
  const at::Tensor exact = plain_dissipative(field, 20, {}, previous, evidence, 1, s);
  complex_field_dissipative_(field, history, {}, previous, evidence, {}, 1, s);
  EXPECT_LE(largest_difference(field, exact), (dtype == at::kDouble ? 1e-14 : 1e-6) * exact.abs().max().item<double>());
  EXPECT_EQ(history.item<int64_t>(), 20);
}

inline void expect_energies(at::Device device, at::ScalarType dtype, at::IntArrayRef sizes) {
  for (const FieldPotential potential : kPotentials) {
    for (const bool periodic : {true, false}) {
      const FieldVerlet s{.mass = 1.5, .hbar = 0.7, .stiffness = 0.3, .potential = potential, .periodic = periodic};
      const at::Tensor field = normal(sizes, 1, dtype, device), momentum = normal(sizes, 2, dtype, device);
      const at::Tensor rest = normal(sizes, 3, dtype, device);
      const at::Tensor energies = complex_field_energies(field, momentum, rest, s);
      const at::Tensor exact = plain_energies(field, momentum, rest, s);
      ASSERT_EQ(energies.scalar_type(), at::kDouble);
      // float32 is read as it is and added in float64. Differences of the reference's well are made in float64, too.
      EXPECT_LE(difference(energies, exact).sub_(exact.to(device).abs() * 1e-12).max().item<double>(), 0)
          << describe(sizes, periodic, potential) << ": " << energies << " instead of " << exact;
    }
  }
}

// A long call has the bits of many short ones.
inline void expect_steps_add_up(at::Device device, at::ScalarType dtype, at::IntArrayRef sizes) {
  constexpr int64_t kSteps = 64;
  for (const FieldPotential potential : kPotentials) {
    for (const bool periodic : {true, false}) {
      const std::string what = describe(sizes, periodic, potential);
      const at::Tensor rest = normal(sizes, 3, dtype, device), push = normal(sizes, 4, dtype, device);
      const auto verlet = [&](int64_t calls) {
        FieldAndMomentum got{normal(sizes, 1, dtype, device), normal(sizes, 2, dtype, device)};
        for (int64_t i = 0; i < calls; ++i) {
          complex_field_verlet_(got.field, got.momentum, rest, push, {}, kSteps / calls,
                                {.potential = potential, .periodic = periodic});
        }
        return got;
      };
      const FieldAndMomentum once = verlet(1), many = verlet(kSteps), four = verlet(4);
      expect_same_bits(once.field, many.field, what + ", field");
      expect_same_bits(once.momentum, many.momentum, what + ", momentum");
      expect_same_bits(once.field, four.field, what + ", field, four calls");
      EXPECT_GT(largest_difference(once.field, normal(sizes, 1, dtype, device)), 0) << what;
    }
  }
  for (const bool periodic : {true, false}) {
    const at::Tensor source = normal(sizes, 2, dtype, device);
    const auto dissipative = [&](int64_t calls) {
      const at::Tensor field = normal(sizes, 1, dtype, device), history = count(0, device);
      for (int64_t i = 0; i < calls; ++i) {
        complex_field_dissipative_(field, history, source, {}, {}, {}, kSteps / calls, {.periodic = periodic});
      }
      EXPECT_EQ(history.item<int64_t>(), 20);
      return field;
    };
    expect_same_bits(dissipative(1), dissipative(kSteps), describe(sizes, periodic, {}) + ", dissipative");
  }
}

inline void expect_skip(at::Device device) {
  const std::vector<int64_t> sizes{4, 5, 3, 2};
  const at::Tensor start = normal(sizes, 1, at::kFloat, device), rest = normal(sizes, 2, at::kFloat, device);
  const auto verlet = [&](const std::optional<at::Tensor>& skip) {
    FieldAndMomentum got{start.clone(), at::zeros_like(start)};
    complex_field_verlet_(got.field, got.momentum, rest, {}, skip, 3, {});
    return got;
  };
  const auto dissipative = [&](const std::optional<at::Tensor>& skip, int64_t past) {
    const at::Tensor field = start.clone(), history = count(3, device);
    complex_field_dissipative_(field, history, rest, {}, {}, skip, 5, {});
    EXPECT_EQ(history.item<int64_t>(), past);
    return field;
  };
  for (const double flag : {1.0, -0.5, static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const FieldAndMomentum kept = verlet(scalar(flag, device));
    expect_same_bits(kept.field, start, cat("skip ", flag));
    expect_same_bits(kept.momentum, at::zeros_like(start), cat("skip ", flag));
    expect_same_bits(dissipative(scalar(flag, device), 3), start, cat("dissipative, skip ", flag));
  }
  const FieldAndMomentum moved = verlet(scalar(0, device)), free = verlet({});
  expect_same_bits(moved.field, free.field, "skip 0");
  expect_same_bits(moved.momentum, free.momentum, "skip 0");
  EXPECT_GT(largest_difference(free.field, start), 0);
  expect_same_bits(dissipative(scalar(0, device), 8), dissipative({}, 8), "dissipative, skip 0");
  EXPECT_GT(largest_difference(dissipative({}, 8), start), 0);
}

// KE + PE + GE stays within 1e-4 over 10,000 steps, while each of the three moves.
inline void expect_energy_is_kept(at::Device device, at::ScalarType dtype, double dt) {
  const std::vector<int64_t> sizes{4, 5, 3, 2};
  for (const FieldPotential potential : {FieldPotential::harmonic, FieldPotential::gaussian_well}) {
    for (const bool periodic : {true, false}) {
      const std::string what = cat(describe(sizes, periodic, potential), " ", dtype, " dt ", dt);
      const FieldVerlet s{.dt = dt, .potential = potential, .periodic = periodic};
      const at::Tensor field = normal(sizes, 1, dtype, device), rest = normal(sizes, 2, dtype, device);
      const at::Tensor momentum = normal(sizes, 3, dtype, device) * 0.1;
      const auto energies = [&] { return complex_field_energies(field, momentum, rest, s).to(at::kCPU); };
      const at::Tensor before = energies();
      const double total = before.sum().item<double>();
      at::Tensor farthest = at::zeros({3}, at::kDouble);
      for (int part = 0; part < 10; ++part) {
        complex_field_verlet_(field, momentum, rest, {}, {}, 1000, s);
        const at::Tensor now = energies();
        EXPECT_LT(std::abs(now.sum().item<double>() - total), 1e-4 * total) << what << " after part " << part;
        farthest = at::maximum(farthest, (now - before).abs());
      }
      EXPECT_GT(farthest.min().item<double>(), 1e-2 * total) << what << ": an energy never changed: " << farthest;
    }
  }
}

// Negative steps lead back.
inline void expect_reversible(at::Device device, at::ScalarType dtype, double tolerance) {
  const std::vector<int64_t> sizes{4, 5, 3, 2};
  const at::Tensor start = normal(sizes, 1, dtype, device), rest = normal(sizes, 2, dtype, device);
  const at::Tensor field = start.clone(), momentum = at::zeros_like(field);
  complex_field_verlet_(field, momentum, rest, {}, {}, 500, {.dt = 0.05});
  EXPECT_GT(largest_difference(field, start), 0.1);
  complex_field_verlet_(field, momentum, rest, {}, {}, 500, {.dt = -0.05});
  EXPECT_LE(largest_difference(field, start), tolerance);
  EXPECT_LE(largest_difference(momentum, at::zeros_like(field)), tolerance);
}

inline void expect_nothing_in_no_values(at::Device device) {
  const at::Tensor none = at::zeros({3, 4, 0, 2}, at::device(device)), momentum = none.clone();
  complex_field_verlet_(none, momentum, none.clone(), {}, {}, 5, {});
  const at::Tensor history = count(18, device);
  complex_field_dissipative_(none, history, {}, {}, {}, {}, 5, {});
  EXPECT_EQ(history.item<int64_t>(), 20);
  EXPECT_EQ(complex_field_energies(none, momentum, none, {}).abs().sum().item<double>(), 0);
  // No steps.
  const at::Tensor start = normal({3, 4, 2}, 1, at::kFloat, device), field = start.clone();
  complex_field_verlet_(field, at::ones_like(field), start.clone(), {}, {}, 0, {});
  complex_field_dissipative_(field, history, {}, {}, {}, {}, 0, {});
  expect_same_bits(field, start);
}

}  // namespace hrm::ops::testing
