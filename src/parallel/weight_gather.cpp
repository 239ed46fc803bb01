#include "hrm/parallel/weight_gather.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/nn/linear.h"
#include "hrm/ops/nf4.h"
#include "hrm/parallel/gradient_reducer.h"

namespace hrm::parallel {
namespace {

constexpr int64_t kAlignedBytes = 256;

int64_t rounded_up(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace

WeightGather::WeightGather(nn::ParameterSet& parameters, Comm& comm, std::vector<Unit> units,
                           const GatherOptions& options)
    : parameters_(parameters), comm_(comm), units_(std::move(units)) {
  require(options.buffers >= 1 && !units_.empty(), ExitCode::unexpected,
          "weights that take turns need a buffer and at least one block");
  const at::NoGradGuard no_grad;
  int64_t longest = 0;
  unit_of_.assign(parameters.gradient_ready()->groups().size(), -1);
  for (size_t i = 0; i < units_.size(); ++i) {
    longest = std::max(longest, bytes_of(units_[i]));
    for (const int group : units_[i].groups) unit_of_.at(static_cast<size_t>(group)) = static_cast<int64_t>(i);
  }
  longest = rounded_up(longest, kAlignedBytes);
  const int64_t count = std::min(options.buffers, static_cast<int64_t>(units_.size()));
  memory_ = at::zeros({count * longest}, units_.front().source.options().dtype(at::kByte));
  for (int64_t i = 0; i < count; ++i) {
    // Its own version counter: the weights that passes save share that of their own tensors.
    buffers_.push_back({.bytes = memory_.narrow(0, i * longest, longest).variable_data(), .pending = nullptr});
  }
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    const at::Tensor all =
        buffer_of(static_cast<int64_t>(i)).bytes.narrow(0, 0, bytes_of(unit)).variable_data().view(unit.dtype);
    for (const Unit::Member& member : unit.members) {
      if (unit.dtype == at::kByte) {
        const at::Tensor& weight = parameters.frozen().at(member.index).tensor;
        const at::Tensor place = all.narrow(0, member.offset, static_cast<int64_t>(weight.nbytes()));
        parameters_.place_frozen(member.index, place.view(weight.scalar_type()).view(weight.sizes()));
      } else {
        const at::Tensor& weight = parameters.all().at(member.index).compute;
        parameters_.place_compute(member.index, all.narrow(0, member.offset, weight.numel()).view(weight.sizes()));
      }
    }
  }
  parameters_.block_use()->listen(this);
}

WeightGather::~WeightGather() {
  parameters_.block_use()->listen(nullptr);
}

int64_t WeightGather::bytes_of(const Unit& unit) const {
  return comm_.ranks() * unit.source.numel() * static_cast<int64_t>(c10::elementSize(unit.dtype));
}

int64_t WeightGather::source_bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units_) bytes += static_cast<int64_t>(unit.source.nbytes());
  return bytes;
}

void WeightGather::forget() {
  for (Buffer& buffer : buffers_) {
    buffer.unit = -1;
    buffer.pending.reset();
  }
}

void WeightGather::before_step(int) {
  fail(ExitCode::unexpected,
       "decoding needs the weights of all blocks on every rank, but with parallel.zero=3 they take turns");
}

// In place: this rank's slice goes to its own part of the buffer, as passes read it.
void WeightGather::start(int64_t unit) {
  const at::NoGradGuard no_grad;
  Buffer& buffer = buffer_of(unit);
  if (buffer.pending) std::exchange(buffer.pending, nullptr)->wait();  // nobody used it
  const Unit& wanted = units_[static_cast<size_t>(unit)];
  const int64_t bytes = bytes_of(wanted), own = bytes / comm_.ranks();
  const at::Tensor whole = buffer.bytes.narrow(0, 0, bytes), part = whole.narrow(0, comm_.rank() * own, own);
  part.view(wanted.dtype).copy_(wanted.source);
  buffer.pending = comm_.start_all_gather(whole, part);
  buffer.unit = unit;
  ++gathered_;
  const auto held = std::count_if(buffers_.begin(), buffers_.end(), [](const Buffer& b) { return b.unit >= 0; });
  most_held_ = std::max<int64_t>(most_held_, held);
}

void WeightGather::use(int block, int direction) {
  const int64_t unit = unit_of_.at(static_cast<size_t>(block));
  if (unit < 0) return;
  Buffer& buffer = buffer_of(unit);
  if (buffer.unit != unit) {
    start(unit);
    ++late_;
  }
  if (buffer.pending) {
    const StepClock::Wait waiting(comm_.clock());
    std::exchange(buffer.pending, nullptr)->wait();
  }
  for (int64_t ahead = 1; ahead < static_cast<int64_t>(buffers_.size()); ++ahead) {
    const int64_t next = unit + direction * ahead;
    if (next < 0 || next >= static_cast<int64_t>(units_.size())) break;
    if (buffer_of(next).unit != next) start(next);
  }
}

bool builds_outline(const config::ParallelConfig& config, const Comm& comm) {
  return config.zero == 3 && !comm.alone();
}

namespace {

// The parts of an NF4 layer's stored form; of its codes only the bytes `first` to `last`, which this rank keeps. What
// ranks keep is all of them. A magnitude is found by the rank in whose codes its block begins, and their mean, on which
// the rest depends, is that of all.
ops::Nf4Tensor quantize_by_ranks(const nn::FrozenTensor& codes, int64_t first, int64_t last, Comm& comm) {
  const nn::Linear& layer = *codes.layer;
  const int64_t columns = layer.weight().size(1), blocks = layer.weight().numel() / ops::kNf4Block;
  const at::TensorOptions floats = at::device(layer.device()).dtype(at::kFloat);
  ops::Nf4Tensor out{.codes = at::empty({0}, floats.dtype(at::kByte)),
                     .absmax = at::zeros({blocks}, floats),
                     .scales = {},
                     .offset = {}};
  if (first < last) {
    const int64_t row = 2 * first / columns, rows = (2 * last + columns - 1) / columns - row;
    const ops::Nf4Tensor own = layer.read_nf4_rows(row, rows);
    out.codes = own.codes.narrow(0, first - row * columns / 2, last - first);
    const auto first_block = [](int64_t byte) { return (2 * byte + ops::kNf4Block - 1) / ops::kNf4Block; };
    const int64_t begin = first_block(first), count = first_block(last) - begin;
    out.absmax.narrow(0, begin, count).copy_(own.absmax.narrow(0, begin - row * (columns / ops::kNf4Block), count));
  }
  comm.all_reduce(out.absmax);  // to each its value and zeros: exact
  ops::nf4_quantize_magnitudes(out);
  nn::require_finite(out, codes.name);
  return out;
}

}  // namespace

std::vector<WeightGather::Unit> frozen_units(const nn::ParameterSet& parameters, Comm& comm) {
  const at::NoGradGuard no_grad;
  std::vector<WeightGather::Unit> units;
  const std::vector<nn::FrozenTensor>& frozen = parameters.frozen();
  nn::FrozenReader reader;
  int last = -1;
  for (const nn::FrozenTensor& each : frozen) last = std::max(last, each.group);
  for (int group = last; group >= 0; --group) {  // backward passes complete the first group first
    if (!parameters.reports_use(group) || !is_mostly_frozen(parameters, group)) continue;
    WeightGather::Unit unit{.groups = {group}, .source = {}, .members = {}};
    int64_t bytes = 0;
    for (size_t i = 0; i < frozen.size(); ++i) {
      if (frozen[i].group != group) continue;
      unit.members.push_back({i, bytes});
      bytes += rounded_up(static_cast<int64_t>(frozen[i].tensor.nbytes()), kAlignedBytes);
    }
    bytes = rounded_up(bytes, comm.ranks() * kAlignedBytes);
    const at::TensorOptions options = frozen[unit.members.front().index].tensor.options();
    const int64_t begin = comm.rank() * (bytes / comm.ranks()), end = begin + bytes / comm.ranks();
    unit.source = at::zeros({end - begin}, options.dtype(at::kByte).requires_grad(false));
    std::map<const nn::Linear*, ops::Nf4Tensor> quantized;
    for (const auto& member : unit.members) {
      const nn::FrozenTensor& tensor = frozen[member.index];
      const auto size = static_cast<int64_t>(tensor.tensor.nbytes());
      const int64_t first = std::max(begin, member.offset) - member.offset;
      const int64_t last_byte = std::min(end, member.offset + size) - member.offset;
      const bool by_ranks = tensor.outlined && tensor.layer != nullptr && tensor.layer->has_whole_blocks();
      if (by_ranks && tensor.part == 0) {
        quantized[tensor.layer] = quantize_by_ranks(tensor, first, last_byte, comm);
      }
      if (first >= last_byte) continue;
      const at::Tensor place = unit.source.narrow(0, member.offset + first - begin, last_byte - first);
      if (!by_ranks) {
        reader.read(tensor, first, place);
        continue;
      }
      const ops::Nf4Tensor& q = quantized.at(tensor.layer);
      const at::Tensor parts[] = {q.codes, q.absmax, q.scales, q.offset};
      place.copy_(tensor.part == 0 ? q.codes : parts[tensor.part].view(at::kByte).narrow(0, first, last_byte - first));
    }
    units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace hrm::parallel
