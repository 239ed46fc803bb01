#pragma once
// Small geometric memories for tests, and their energy written out.

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/models/geometric_memory.h"
#include "hrm/ops/geometry.h"

namespace hrm::test {

using models::GeometricMemory;
using models::GeometricMemoryOptions;

inline at::Tensor random_normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::Generator generator = at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::TensorOptions(at::kDouble)).to(dtype);
}

inline GeometricMemoryOptions small_memory() {
  GeometricMemoryOptions options;
  options.features = 11;
  options.classes = 5;
  options.coords = 6;
  options.slots = 19;
  options.width = 7;
  options.angles = 8;
  options.field_rows = 2;
  options.field_cols = 3;
  options.field_dim = 4;
  return options;
}

inline std::shared_ptr<GeometricMemory> make_memory(const GeometricMemoryOptions& options, at::ScalarType dtype,
                                                    uint64_t seed = 3) {
  auto memory = std::make_shared<GeometricMemory>(options, seed, at::kCPU);
  for (at::Tensor& parameter : memory->parameters()) parameter.set_data(parameter.to(dtype));
  for (at::Tensor& buffer : memory->buffers()) {
    if (buffer.is_floating_point()) buffer.set_data(buffer.to(dtype));
  }
  return memory;
}

inline std::map<std::string, at::Tensor> parameters_by_name(const GeometricMemory& memory) {
  std::map<std::string, at::Tensor> result;
  for (const auto& parameter : memory.named_parameters()) result[parameter.key()] = parameter.value();
  result["angles"] = memory.angles();
  return result;
}

// |v|^2 in a metric of blocks, rows a, b, c of which are factors [[softplus(a), 0], [b, softplus(c)]]; v (..., n).
inline at::Tensor block_square(const at::Tensor& v, const at::Tensor& blocks) {
  at::Tensor sum;
  for (int64_t i = 0; i < blocks.size(0); ++i) {
    const at::Tensor a = at::softplus(blocks[i][0]), b = blocks[i][1], c = at::softplus(blocks[i][2]);
    const at::Tensor first = v.select(-1, 2 * i), second = v.select(-1, 2 * i + 1);
    const at::Tensor part = a * a * first.square() + 2 * a * b * first * second + (b * b + c * c) * second.square();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

// Lap T with opposite edges as neighbours, cell by cell.
inline at::Tensor plain_laplacian(const at::Tensor& field) {
  const int64_t rows = field.size(0), cols = field.size(1);
  std::vector<at::Tensor> cells;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      cells.push_back(field[(i + 1) % rows][j] + field[(i + rows - 1) % rows][j] + field[i][(j + 1) % cols] +
                      field[i][(j + cols - 1) % cols] - 4 * field[i][j]);
    }
  }
  return at::stack(cells).view(field.sizes());
}

// The resilience of one cell or of all, differentiable in the field.
inline at::Tensor plain_resilience(const at::Tensor& field, models::Resilience kind) {
  if (kind == models::Resilience::curvature) {
    // R_0101 of a weak field of which |Lap h| is the root mean square.
    const at::Tensor size = plain_laplacian(field).square().sum(-1).mean().sqrt();
    at::Tensor curvature = at::zeros({1, 2, 2, 2, 2}, field.options());
    const at::Tensor entry = (-0.5 * size).view({1});
    for (const bool swapped_first : {false, true}) {
      for (const bool swapped_second : {false, true}) {
        const int64_t m = swapped_first, r = swapped_second;
        const at::Tensor mask = at::zeros_like(curvature);
        mask[0][m][1 - m][r][1 - r] = swapped_first == swapped_second ? 1 : -1;
        curvature = curvature + mask * entry;
      }
    }
    return ops::resilience_from_curvature(curvature, at::eye(2, field.options()), 1e-8);
  }
  const at::Tensor squares = field.square().sum(-1);
  return ((kind == models::Resilience::slots ? squares.mean(-1).flatten() : squares.mean().view(1)) + 1e-8).sqrt();
}

// sum_b scales_b E_b at chart coordinates x (B, n), output o (B, d) and hidden units h, term by term as in the
// definition: displacements are rotated one by one, nothing is expanded. Differentiable in the parameters.
inline at::Tensor plain_energy(const GeometricMemory& memory, const at::Tensor& inputs, const at::Tensor& x,
                               const at::Tensor& o, const at::Tensor& h, const at::Tensor& scales) {
  const GeometricMemoryOptions& options = memory.options();
  auto p = parameters_by_name(memory);
  const int64_t n = options.coords, pairs = n / 2;
  at::Tensor z = p["keys"].unsqueeze(0) - x.unsqueeze(1);  // (B, M, n)
  at::Tensor rotated = z;
  for (int64_t angle = 0; angle < options.angles; ++angle) {
    const int64_t layer = angle / pairs, a = (2 * (angle % pairs) + layer) % n, b = (a + 1) % n;
    const at::Tensor cos = p["angles"][angle].cos(), sin = p["angles"][angle].sin();
    auto columns = rotated.unbind(-1);
    const at::Tensor va = columns[a], vb = columns[b];
    columns[a] = cos * va - sin * vb;
    columns[b] = sin * va + cos * vb;
    rotated = at::stack(columns, -1);
  }
  at::Tensor square = options.metric == models::MetricForm::blocks ? block_square(rotated, p["metric_blocks"])
                                                                   : (p["log_metric"].exp() * rotated.square()).sum(-1);
  if (options.low_rank > 0) {
    square = square + (p["low_rank_log_weights"].exp() * z.matmul(p["low_rank_vectors"]).square()).sum(-1);
  }
  const at::Tensor costs = (square + options.constants.cost_eps).sqrt();
  const at::Tensor resilience = plain_resilience(p["field"], options.resilience);
  const at::Tensor cells = at::arange(options.slots).remainder(resilience.size(0));
  const auto& c = options.constants;
  const at::Tensor logits =
      c.retrieval_beta * (c.gamma * o.matmul(p["values"].t()) - resilience.index_select(0, cells) * costs);
  at::Tensor energy = c.gamma / 2 * o.square().sum(-1) - logits.logsumexp(-1) / c.retrieval_beta;
  const at::Tensor chart = (options.hidden > 0 ? h : inputs).matmul(p["encoder.weight"].t());
  if (options.hidden > 0) {
    const at::Tensor driven = inputs.matmul(p["hidden.weight"].t()) + p["hidden.bias"];
    energy = energy + 0.5 * (h - driven).square().sum(-1);
  }
  energy = energy + c.kappa / 2 * (x - chart - p["encoder.bias"]).square().sum(-1);
  return (scales * energy).sum();
}

inline double cosine(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.flatten().to(at::kDouble), y = b.flatten().to(at::kDouble);
  return (x.dot(y) / (x.norm() * y.norm() + 1e-300)).item<double>();
}

}  // namespace hrm::test
