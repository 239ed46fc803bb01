// All steps of a part of the components at once, while they are in the cache. Components are independent, so neither
// the parts nor the number of threads change the result.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/common/vector_loops.h"
#include "ops/field/complex_field_impl.h"

namespace hrm::ops::cpu {
namespace {

constexpr int64_t kWidth = 64;       // floats of a cell in a part
constexpr int64_t kGrain = 1 << 16;  // updates of a float that are worth a thread

// lap = Lap v of each cell. Four entries of `neighbours` for a cell; one that is outside is the row of zeros behind v.
HRM_FOR_EACH_CPU void laplacian_at(const float* __restrict v, const int64_t* __restrict neighbours,
                                   float* __restrict lap, int64_t cells, int64_t width) {
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t* near = neighbours + 4 * cell;
    const float *own = v + cell * width, *west = v + near[0] * width, *east = v + near[1] * width,
                *south = v + near[2] * width, *north = v + near[3] * width;
    float* to = lap + cell * width;
    for (int64_t i = 0; i < width; ++i) to[i] = (west[i] + east[i]) + (south[i] + north[i]) - 4.0f * own[i];
  }
}

HRM_FOR_EACH_CPU void kick(float* __restrict p, const float* __restrict force, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] += factor * force[i];
}

// In: Lap v. Out: the force of a spring.
HRM_FOR_EACH_CPU void harmonic_force(float* __restrict force, const float* __restrict v, const float* __restrict rest,
                                     const float* __restrict nudge, float laplace, float stiffness, int64_t count) {
  for (int64_t i = 0; i < count; ++i) force[i] = laplace * force[i] + nudge[i] - stiffness * (v[i] - rest[i]);
}

// In: Lap v. Out: the force of the well; its strength depends on the distance of a complex value.
HRM_FOR_EACH_CPU void well_force(float* __restrict force, const float* __restrict v, const float* __restrict rest,
                                 const float* __restrict nudge, float laplace, float stiffness, int64_t count) {
  for (int64_t i = 0; i < count; i += 2) {
    const float re = v[i] - rest[i], im = v[i + 1] - rest[i + 1];
    const float pull = stiffness * exp_of(-0.5f * (re * re + im * im));
    force[i] = laplace * force[i] + nudge[i] - pull * re;
    force[i + 1] = laplace * force[i + 1] + nudge[i + 1] - pull * im;
  }
}

// v += turn / i * (factor lap + source).
HRM_FOR_EACH_CPU void dissipate(float* __restrict v, const float* __restrict lap, const float* __restrict source,
                                float factor, float turn, int64_t count) {
  for (int64_t i = 0; i < count; i += 2) {
    const float re = factor * lap[i] + source[i], im = factor * lap[i + 1] + source[i + 1];
    v[i] += turn * im;
    v[i + 1] -= turn * re;
  }
}

// Cells with a row of floats each.
struct Cells {
  int64_t count, row;  // row: floats of a cell
  std::vector<int64_t> neighbours;

  Cells(const at::Tensor& field, bool periodic)
      : count(field.size(0) * field.size(1)), row(field.numel() / count), neighbours(static_cast<size_t>(4 * count)) {
    const int64_t nx = field.size(0), ny = field.size(1);
    // The cell at (x, y), outside that of the opposite edge or the zeros.
    const auto cell = [&](int64_t x, int64_t y) {
      const bool inside = x >= 0 && x < nx && y >= 0 && y < ny;
      return inside || periodic ? (x + nx) % nx * ny + (y + ny) % ny : count;
    };
    auto to = neighbours.begin();
    for (int64_t x = 0; x < nx; ++x) {
      for (int64_t y = 0; y < ny; ++y) {
        for (const int64_t near : {cell(x - 1, y), cell(x + 1, y), cell(x, y - 1), cell(x, y + 1)}) *to++ = near;
      }
    }
  }

  // Calls work(first float of the row, width) for every part of the rows.
  template <class Work>
  void for_parts(int64_t steps, const Work& work) const {
    const int64_t parts = (row + kWidth - 1) / kWidth;
    const int64_t grain = std::max<int64_t>(1, kGrain / (count * std::min(row, kWidth) * std::max<int64_t>(steps, 1)));
    at::parallel_for(0, parts, grain, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) work(part * kWidth, std::min(kWidth, row - part * kWidth));
    });
  }
};

// Columns `first` to `first + width` of a field, with a row of zeros behind the cells. Zeros where there is no field.
std::vector<float> field_columns(const float* field, const Cells& cells, int64_t first, int64_t width) {
  std::vector<float> part(static_cast<size_t>((cells.count + 1) * width));
  for (int64_t cell = 0; field != nullptr && cell < cells.count; ++cell) {
    std::copy_n(field + cell * cells.row + first, width, part.begin() + cell * width);
  }
  return part;
}

void store_columns(const std::vector<float>& part, float* field, const Cells& cells, int64_t first, int64_t width) {
  for (int64_t cell = 0; cell < cells.count; ++cell) {
    std::copy_n(part.begin() + cell * width, width, field + cell * cells.row + first);
  }
}

const float* floats(const OptionalTensor& tensor) {
  return tensor ? tensor->const_data_ptr<float>() : nullptr;
}

bool skips(const OptionalTensor& skip) {
  return skip && *skip->const_data_ptr<float>() != 0;
}

}  // namespace

void complex_field_verlet_(const FieldVerletCall& call) {
  if (skips(call.skip) || call.field.numel() == 0) return;
  const FieldVerlet& s = call.settings;
  const Cells cells(call.field, s.periodic);
  const bool bound = s.potential != FieldPotential::zero;
  const auto force_of = s.potential == FieldPotential::gaussian_well ? well_force : harmonic_force;
  const auto half = static_cast<float>(s.dt / 2), drift = static_cast<float>(s.dt / s.mass);
  const auto laplace = static_cast<float>(s.hbar * s.hbar / (2 * s.mass));
  const float stiffness = bound ? static_cast<float>(s.stiffness) : 0;
  auto* field = call.field.mutable_data_ptr<float>();
  auto* momentum = call.momentum.mutable_data_ptr<float>();
  const float* equilibrium = bound ? call.equilibrium.const_data_ptr<float>() : nullptr;
  const float* push = floats(call.nudge);
  cells.for_parts(call.steps, [&](int64_t first, int64_t width) {
    std::vector<float> v = field_columns(field, cells, first, width), p = field_columns(momentum, cells, first, width);
    const std::vector<float> rest = field_columns(equilibrium, cells, first, width);
    const std::vector<float> nudge = field_columns(push, cells, first, width);
    std::vector<float> force(v.size());
    const int64_t count = cells.count * width;
    const auto find_force = [&] {
      laplacian_at(v.data(), cells.neighbours.data(), force.data(), cells.count, width);
      force_of(force.data(), v.data(), rest.data(), nudge.data(), laplace, stiffness, count);
    };
    find_force();
    for (int64_t step = 0; step < call.steps; ++step) {
      kick(p.data(), force.data(), half, count);
      kick(v.data(), p.data(), drift, count);
      find_force();
      kick(p.data(), force.data(), half, count);
    }
    store_columns(v, field, cells, first, width);
    store_columns(p, momentum, cells, first, width);
  });
}

void complex_field_dissipative_(const FieldDissipativeCall& call) {
  if (skips(call.skip)) return;
  const FieldDissipative& s = call.settings;
  auto* history = call.history.mutable_data_ptr<int64_t>();
  const int64_t past = *history;
  const auto length_at = [&](int64_t step) { return std::max(past, std::min(past + step, s.history_capacity)); };
  if (call.field.numel() > 0) {
    const Cells cells(call.field, s.periodic);
    const auto turn = static_cast<float>(s.dt / s.hbar);
    auto* field = call.field.mutable_data_ptr<float>();
    const float* given = floats(call.source);
    cells.for_parts(call.steps, [&](int64_t first, int64_t width) {
      std::vector<float> v = field_columns(field, cells, first, width);
      const std::vector<float> source = field_columns(given, cells, first, width);
      std::vector<float> lap(v.size());
      for (int64_t step = 0; step < call.steps; ++step) {
        const double weight = std::clamp(s.memory_gain * std::log1p(static_cast<double>(length_at(step))), 0.0, 1.0);
        laplacian_at(v.data(), cells.neighbours.data(), lap.data(), cells.count, width);
        dissipate(v.data(), lap.data(), source.data(), static_cast<float>((1 - weight) * (s.hbar / (2 * s.mass))), turn,
                  cells.count * width);
      }
      store_columns(v, field, cells, first, width);
    });
  }
  *history = length_at(call.steps);
}

}  // namespace hrm::ops::cpu
