#include <ATen/ATen.h>

#include "ops/quantized/nf4_impl.h"
#include "ops/quantized/nf4_levels.h"

namespace hrm::ops::reference {
namespace {

constexpr Nf4Levels<kNf4Levels> kLevels = nf4_levels();
constexpr Nf4Levels<kNf4AbsmaxLevels> kAbsmaxLevels = nf4_absmax_levels();

at::Tensor table(const float* values, int64_t count, at::Device device) {
  return at::from_blob(const_cast<float*>(values), {count}, at::kFloat)
      .to(device, /*non_blocking=*/false,
          /*copy=*/true);
}

// x in blocks of `block` elements, the last one filled up with zeros: (blocks, block) float32.
at::Tensor in_blocks(const at::Tensor& x, int64_t block) {
  const at::Tensor flat = x.reshape({-1}).to(at::kFloat);
  return at::constant_pad_nd(flat, {0, (block - flat.size(0) % block) % block}).view({-1, block});
}

struct Quantized {
  at::Tensor levels;   // (blocks, block), which level each element is of
  at::Tensor largest;  // (blocks) float32
};

// Of blocks of zeros, 0 / 1 is the level of zero.
template <int kCount>
Quantized quantize(const at::Tensor& blocks, const Nf4Levels<kCount>& levels) {
  const at::Tensor largest = blocks.abs().amax(1);
  const at::Tensor divisor = largest.masked_fill(largest.eq(0), 1);
  const at::Tensor between = table(levels.between, kCount - 1, blocks.device());
  // right=false counts the points that are below, not at, a number: halfway it is the lower level.
  return {at::bucketize(blocks / divisor.unsqueeze(1), between, /*out_int32=*/true, /*right=*/false), largest};
}

}  // namespace

void nf4_quantize_absmax(Nf4Tensor& quantized) {
  const at::Tensor absmax = quantized.absmax;
  quantized.offset = absmax.to(at::kDouble).mean().to(at::kFloat).view({1});
  const Quantized second = quantize(in_blocks(absmax - quantized.offset, kNf4AbsmaxBlock), kAbsmaxLevels);
  quantized.absmax = second.levels.view({-1}).narrow(0, 0, absmax.size(0)).to(at::kByte);
  quantized.scales = second.largest;
}

Nf4Tensor nf4_quantize(const at::Tensor& weight, bool double_quantized) {
  const int64_t n = weight.numel();
  const Quantized first = quantize(in_blocks(weight, kNf4Block), kLevels);
  const at::Tensor pairs = first.levels.view({-1, 2});
  const at::Tensor bytes = pairs.select(1, 0) * 16 + pairs.select(1, 1);
  const at::Tensor empty = at::empty({0}, first.largest.options());
  Nf4Tensor out{.codes = bytes.narrow(0, 0, (n + 1) / 2).to(at::kByte),
                .absmax = first.largest,
                .scales = empty,
                .offset = empty};
  if (double_quantized) nf4_quantize_absmax(out);
  return out;
}

void nf4_dequantize_(const at::Tensor& out, const Nf4Tensor& from) {
  const int64_t n = out.numel(), blocks = nf4_blocks(n);
  at::Tensor absmax = from.absmax;
  if (absmax.scalar_type() == at::kByte) {
    const at::Tensor levels = table(kAbsmaxLevels.level, kNf4AbsmaxLevels, out.device());
    const at::Tensor of_block = from.scales.repeat_interleave(kNf4AbsmaxBlock).narrow(0, 0, blocks);
    absmax = levels.index_select(0, absmax.to(at::kInt)) * of_block + from.offset;
  }
  // Both numbers of a byte at once.
  const at::Tensor levels = table(kLevels.level, kNf4Levels, out.device());
  const at::Tensor pairs = at::stack({levels.repeat_interleave(kNf4Levels), levels.repeat(kNf4Levels)}, 1);
  const at::Tensor values = at::constant_pad_nd(pairs.index_select(0, from.codes.to(at::kInt)).view({-1}),
                                                {0, blocks * kNf4Block - 2 * from.codes.size(0)});
  out.view({-1}).copy_((values.view({blocks, kNf4Block}) * absmax.unsqueeze(1)).view({-1}).narrow(0, 0, n));
}

}  // namespace hrm::ops::reference
