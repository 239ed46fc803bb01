#pragma once
// A compat window for tests, and the original's window step by step: an oracle in float64 that hoists nothing.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hrm/objectives/contrastive_compat.h"

namespace hrm::objectives::compat_test {

struct CompatProblem {
  CompatSettings settings;
  CompatState state;
  at::Tensor embedding, ids, mask, modality;
};

inline CompatProblem compat_problem(const CompatSettings& settings, const CompatSizes& sizes, at::Device device,
                                    int64_t rows = 3, int64_t tokens = 6) {
  at::Generator generator = at::detail::createCPUGenerator(7);
  const auto draw = [&](at::IntArrayRef shape) {
    return at::randn(shape, generator, at::dtype(at::kFloat)).to(device);
  };
  CompatProblem p{.settings = settings,
                  .state = make_compat_state(sizes, device, generator),
                  .embedding = {},
                  .ids = {},
                  .mask = {},
                  .modality = {}};
  p.state.g.copy_(at::linspace(0.5, 1.9, sizes.axes));
  p.state.theta.copy_(draw({sizes.angles}));
  p.embedding = draw({20, sizes.width});
  p.modality = draw({sizes.width});
  p.ids = at::randint(0, 20, {rows, tokens}, generator, at::dtype(at::kInt)).to(device);
  p.mask = at::ones({rows, tokens}, at::device(device).dtype(at::kInt));
  p.mask.select(0, 0).narrow(0, tokens - 2, 2).fill_(0);
  return p;
}

inline CompatState copy_state(const CompatState& s, at::ScalarType dtype) {
  const auto copy = [&](const at::Tensor& t) {
    return t.to(at::kCPU).to(at::isFloatingType(t.scalar_type()) ? dtype : t.scalar_type()).clone();
  };
  return {copy(s.field),     copy(s.g),           copy(s.theta),   copy(s.bank_coord), copy(s.bank_state),
          copy(s.bank_next), copy(s.bank_filled), copy(s.history), copy(s.window)};
}

// Everything in one place, with host numbers, complex fields, one plane at a time and the bank as it stands.
class OriginalWindow {
 public:
  OriginalWindow(const CompatProblem& p) : settings(p.settings), s(copy_state(p.state, at::kDouble)) {
    embedding = (p.embedding + p.modality).to(at::kCPU, at::kDouble);
    field = at::complex(s.field.select(-1, 0), s.field.select(-1, 1));
    history = s.history.item<int64_t>();
  }

  struct Phase {
    double lior = 0, resilience = 0, speed = 0;
    at::Tensor velocity, y, query;
  };

  // In place, as the original's rotor.
  void rotate_(at::Tensor v) const {
    const int64_t n = v.size(1);
    for (int64_t i = 0; i < s.theta.numel(); ++i) {
      const int64_t a = (2 * (i % (n / 2)) + i / (n / 2)) % n, b = (a + 1) % n;
      const double cos = std::cos(s.theta[i].item<double>()), sin = std::sin(s.theta[i].item<double>());
      const at::Tensor va = v.select(1, a).clone(), vb = v.select(1, b).clone();
      v.select(1, a).copy_(cos * va - sin * vb);
      v.select(1, b).copy_(sin * va + cos * vb);
    }
  }

  at::Tensor mean_of(const at::Tensor& x, const at::Tensor& mask) const {
    const at::Tensor w = mask.to(at::kDouble).unsqueeze(2);
    return (x * w).sum(1) / w.sum(1).clamp_min(1);
  }

  Phase phase(const at::Tensor& ids, const at::Tensor& mask, const at::Tensor& nudge) {
    Phase out;
    const int64_t n = s.g.size(0), filled = s.bank_filled.item<int64_t>(), rows = ids.size(0);
    at::Tensor velocities;
    for (int64_t step = 0; step < settings.steps; ++step) {
      const double r = field.abs().mean().item<double>();
      const at::Tensor x = embedding.index_select(0, ids.flatten()).view({rows, ids.size(1), -1});
      at::Tensor coords = x.size(2) < n ? at::constant_pad_nd(x, {0, n - x.size(2)}) : x.narrow(2, 0, n);
      at::Tensor v = mean_of(coords, mask), query = v;
      if (nudge.defined()) query = query + nudge;
      rotate_(query);
      const at::Tensor all = at::cat({coords, s.bank_coord.narrow(0, 0, filled).expand({rows, filled, n})}, 1);
      const at::Tensor states = at::cat({x, s.bank_state.narrow(0, 0, filled).expand({rows, filled, x.size(2)})}, 1);
      const at::Tensor delta = all - query.unsqueeze(1);
      const at::Tensor cost = r * ((delta * delta * s.g).sum(2) + settings.eps).sqrt();
      out.y = (at::softmax(-settings.retrieval_beta * cost, 1).unsqueeze(2) * states).sum(1);
      const at::Tensor speed = ((v * v * s.g).sum(1) + settings.eps).sqrt();
      out.lior += (r * speed).mean().item<double>() / static_cast<double>(settings.steps);
      out.resilience += r / static_cast<double>(settings.steps);
      out.speed += speed.mean().item<double>() / static_cast<double>(settings.steps);
      velocities = velocities.defined() ? velocities + v : v.clone();
      out.query = v;
      const bool source = nudge.defined() && settings.commit == CompatCommit::main && n == field.size(3);
      step_field(source);
    }
    out.velocity = velocities / settings.steps;
    return out;
  }

  void step_field(bool source) {
    const int64_t nx = field.size(0), ny = field.size(1);
    at::Tensor lap = at::zeros_like(field);
    for (int64_t x = 0; x < nx; ++x) {
      for (int64_t y = 0; y < ny; ++y) {
        at::Tensor sum = -4 * field[x][y];
        const int64_t around[4][2] = {{x + 1, y}, {x - 1, y}, {x, y + 1}, {x, y - 1}};
        for (const auto& at_cell : around) {
          const bool inside = at_cell[0] >= 0 && at_cell[0] < nx && at_cell[1] >= 0 && at_cell[1] < ny;
          if (settings.commit == CompatCommit::guide && !inside) continue;
          sum = sum + field[(at_cell[0] + nx) % nx][(at_cell[1] + ny) % ny];
        }
        lap[x][y].copy_(sum);
      }
    }
    const CompatField& f = settings.field;
    const at::Tensor energy = lap * (-f.hbar * f.hbar / (2 * f.mass));
    const double w = std::clamp(0.05 * 0.5 * std::log(1 + static_cast<double>(history)), 0.0, 1.0);
    const c10::complex<double> scale = f.dt / (c10::complex<double>(0, 1) * f.hbar);
    field = field + (energy * (-(1 - w) / f.hbar) + (source ? 1.0 : 0.0)) * c10::Scalar(scale);
    history = std::min<int64_t>(history + 1, 20);
  }

  void window(const at::Tensor& ids_any, const at::Tensor& mask_any, double lr) {
    const at::Tensor ids = ids_any.to(at::kCPU), mask = mask_any.to(at::kCPU);
    const at::Tensor before = field;
    free = phase(ids, mask, {});
    if (settings.nudge) {
      at::Tensor targets = ids.clone();
      if (settings.shifted_target) targets.narrow(1, 0, ids.size(1) - 1).copy_(ids.narrow(1, 1, ids.size(1) - 1));
      const int64_t n = s.g.size(0);
      at::Tensor x = embedding.index_select(0, targets.flatten()).view({ids.size(0), ids.size(1), -1});
      x = x.size(2) < n ? at::constant_pad_nd(x, {0, n - x.size(2)}) : x.narrow(2, 0, n);
      nudge = settings.nudge_scale * (mean_of(x, mask) - free.query);
    }
    field = before;
    nudged = phase(ids, mask, nudge);
    dL = nudged.lior - free.lior;
    const double eta = lr / settings.beta_nudge;
    at::Tensor u = free.velocity.mean(0, true);
    rotate_(u);
    const int64_t n = s.g.size(0);
    const at::Tensor w = u[0].square();
    s.g.add_(w / (w.sum() + 1e-8) * (eta * dL)).clamp_(0.01, 100);
    for (int64_t i = 0; i < s.theta.numel(); ++i) {
      const int64_t a = (2 * (i % (n / 2)) + i / (n / 2)) % n, b = (a + 1) % n;
      const double ua = u[0][a].item<double>(), ub = u[0][b].item<double>(), length = std::hypot(ua, ub);
      if (length >= 1e-6) s.theta[i] += 0.01 * eta * -dL * std::atan2(ub, ua) * length;
    }
    s.theta.copy_(at::remainder(s.theta + M_PI, 2 * M_PI) - M_PI);
    const at::Tensor x = embedding.index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), -1});
    const at::Tensor state = mean_of(x, mask);
    for (int twice = 0; twice < 2; ++twice) {
      const int64_t slots = s.bank_coord.size(0), rows = state.size(0);
      for (int64_t row = std::max<int64_t>(0, rows - slots); row < rows; ++row) {
        const int64_t at_slot = s.bank_next.item<int64_t>();
        s.bank_coord[at_slot].copy_(free.query[row]);
        s.bank_state[at_slot].copy_(state[row]);
        s.bank_next.fill_((at_slot + 1) % slots);
        s.bank_filled.add_(1).clamp_max_(slots);
      }
    }
  }

  CompatSettings settings;
  CompatState s;
  at::Tensor embedding, field, nudge;
  int64_t history = 0;
  Phase free, nudged;
  double dL = 0;
};

// `got` within `limit` of `want`, relative to the largest value.
inline void expect_near(const at::Tensor& got, const at::Tensor& want, double limit, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  if (want.numel() == 0) return;
  const at::Tensor wide = want.to(at::kCPU, at::kDouble);
  const double error = (got.to(at::kCPU, at::kDouble) - wide).abs().max().item<double>();
  EXPECT_LE(error, limit * std::max(1.0, wide.abs().max().item<double>())) << what;
}

// `windows` windows against the original's, all numbers of each.
inline void expect_original(const CompatSettings& settings, const CompatSizes& sizes, at::Device device, int64_t rows,
                            int windows, const std::string& what) {
  const CompatProblem p = compat_problem(settings, sizes, device, rows);
  OriginalWindow original(p);
  CompatWindow window(p.settings, p.state);
  const at::Tensor lr = at::full({}, 0.01, at::device(device).dtype(at::kFloat));
  for (int i = 0; i < windows; ++i) {
    const at::Tensor ids = at::remainder(p.ids + i, 20);
    original.window(ids, p.mask, 0.01);
    const CompatResult got = window.run(window.encode(p.embedding, ids, p.mask, p.modality), lr);
    const std::string at_window = what + ", window " + std::to_string(i);
    const auto compare = [&](const char* name, const CompatPhase& ours, const OriginalWindow::Phase& want) {
      const auto number = [](double value) { return at::scalar_tensor(value, at::kDouble); };
      expect_near(ours.lior, number(want.lior), 1e-5, at_window + name + "lior");
      expect_near(ours.resilience, number(want.resilience), 1e-5, at_window + name + "R");
      expect_near(ours.speed, number(want.speed), 1e-5, at_window + name + "speed");
      expect_near(ours.velocity, want.velocity, 1e-5, at_window + name + "velocity");
      expect_near(ours.retrieved, want.y, 2e-5, at_window + name + "y");
    };
    compare(", free ", got.free, original.free);
    compare(", nudged ", got.nudged, original.nudged);
    if (settings.nudge) expect_near(got.nudge, original.nudge, 1e-5, at_window + ", nudge");
    EXPECT_NEAR(got.update.dL.item<double>(), original.dL, 2e-6) << at_window;
    const CompatState& s = window.state();
    expect_near(s.g, original.s.g, 1e-3, at_window + ", g");
    expect_near(s.theta, original.s.theta, 1e-3, at_window + ", theta");
    expect_near(s.bank_coord, original.s.bank_coord, 1e-4, at_window + ", bank coordinates");
    expect_near(s.bank_state, original.s.bank_state, 1e-5, at_window + ", bank states");
    expect_near(s.field, at::stack({at::real(original.field), at::imag(original.field)}, -1), 1e-5,
                at_window + ", field");
    EXPECT_EQ(s.bank_next.item<int64_t>(), original.s.bank_next.item<int64_t>()) << at_window;
    EXPECT_EQ(s.bank_filled.item<int64_t>(), original.s.bank_filled.item<int64_t>()) << at_window;
    EXPECT_EQ(s.history.item<int64_t>(), original.history) << at_window;
    EXPECT_EQ(s.window.item<int64_t>(), i + 1);
  }
}

}  // namespace hrm::objectives::compat_test
