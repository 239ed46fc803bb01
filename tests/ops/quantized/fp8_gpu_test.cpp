// The fp8 ops on a GPU against their plain reference, by our Hopper kernels and by the library's product.
#include "hrm/ops/attention.h"
#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_cases.h"
#include "ops/quantized/fp8_impl.h"

#define HRM_NEEDS_FP8()                                                                            \
  HRM_NEEDS_GPU();                                                                                 \
  if (at::cuda::getDeviceProperties(0)->major * 10 + at::cuda::getDeviceProperties(0)->minor < 89) \
  GTEST_SKIP() << "no tensor cores for e4m3"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

const std::vector<at::ScalarType> kFp8GpuTypes = {at::kBFloat16, at::kHalf};

// Only what every device with 8-bit products has, while it lives.
class Portable {
 public:
  explicit Portable(bool portable) {
    set_portable_fp8(portable);
    set_portable_attention(portable);
  }
  ~Portable() {
    set_portable_fp8(false);
    set_portable_attention(false);
  }
};

// Tensor cores keep about 14 bits of a sum; the result is rounded to the dtype, perhaps to the other side.
double part_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0.01 : 0.006;
}

// Rows on both sides of a tile's 64 and 128, of a few tiles, of two for each cluster of the norm's kernel, and of three
// for each block, whose product is short; the sizes of the recipes and smaller ones.
std::vector<Fp8Shape> shapes() {
  return {{1, 128, 256},    {63, 512, 512},   {129, 1536, 512}, {777, 512, 1536}, {1, 1536, 512},
          {129, 128, 3072}, {63, 512, 3072},  {777, 1536, 256}, {128, 512, 256},  {64, 128, 512},
          {100, 48, 80},    {2000, 512, 512}, {8600, 128, 512}, {20000, 128, 256}};
}

std::string with(bool portable) {
  return portable ? ", by the library" : ", by our kernels";
}

void expect_close_amax(const at::Tensor& slot, const at::Tensor& want, const std::string& what) {
  EXPECT_NEAR(amax_of(slot), amax_of(want), 0.02 * amax_of(want)) << what << ": amax";
}

TEST(Fp8Gpu, RoundsToNearestEvenAndSaturates) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) check_rounding(dtype, at::kCUDA);
  check_nearest(at::kCUDA);
}

TEST(Fp8Gpu, ManyTensorsAsOneByOne) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) check_many(dtype, at::kCUDA);
}

TEST(Fp8Gpu, SumAndItsRounding) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{3, 82, 512}, {1}, {0, 4}, {5, 7}, {100001}, {8192}}) {
      check_add(sizes, dtype, at::kCUDA);
    }
  }
}

TEST(Fp8Gpu, ScalesFollowTheDelayedMaximum) {
  HRM_NEEDS_GPU();
  check_update(at::kCUDA);
}

// Bit for bit what the reference on the CPU gives, also where the data are strided or not aligned.
TEST(Fp8Gpu, QuantisesAsTheReference) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t size : {1, 7, 8, 63, 4097, 300000}) {
      const at::Tensor x = (normal({size + 1}, 3, at::kFloat) * at::linspace(0.01, 40, size + 1)).to(dtype);
      const at::Tensor slot = slot_of(7, at::kCUDA), want_slot = slot_of(7);
      const at::Tensor on_gpu = x.to(at::kCUDA);
      for (const int64_t first : {0, 1}) {
        const at::Tensor got = quantize_fp8(on_gpu.slice(0, first), slot);
        const at::Tensor want = quantize_fp8(x.slice(0, first), want_slot);
        expect_same_bits(got.view(at::kByte).to(at::kCPU), want.view(at::kByte), cat(dtype, " ", size, " ", first));
        EXPECT_EQ(amax_of(slot), amax_of(want_slot)) << dtype << " " << size;
      }
    }
    const at::Tensor x = normal({40, 48}, 4, dtype);
    const at::Tensor slot = slot_of(7, at::kCUDA), want_slot = slot_of(7);
    expect_same_bits(quantize_fp8(x.to(at::kCUDA).t(), slot).view(at::kByte).to(at::kCPU),
                     quantize_fp8(x.t(), want_slot).view(at::kByte), cat(dtype, " strided"));
  }
}

TEST(Fp8Gpu, Linear) {
  HRM_NEEDS_FP8();
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    SCOPED_TRACE(with(portable));
    for (const at::ScalarType dtype : kFp8GpuTypes) {
      for (const Fp8Shape& shape : shapes()) check_linear(shape, dtype, at::kCUDA, part_of(dtype));
    }
  }
}

// Also inner sizes that end inside of a block of 128, of fewer and of more blocks than the kernel has stages, and more
// tiles than multiprocessors.
TEST(Fp8Gpu, LinearSwiglu) {
  HRM_NEEDS_FP8();
  std::vector<Fp8Shape> of_swiglu = shapes();
  of_swiglu.insert(of_swiglu.end(),
                   {{3000, 16, 128}, {3000, 272, 1536}, {1000, 384, 640}, {3001, 528, 1536}, {300, 1936, 256}});
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    for (const at::ScalarType dtype : kFp8GpuTypes) {
      for (const Fp8Shape& shape : of_swiglu) {
        const std::string what = "linear_swiglu_fp8 " + name_of(dtype, shape) + with(portable);
        const Fp8Operands o = fp8_operands(shape, 2 * shape.width, at::kCUDA);
        const at::Tensor slot = slot_of(30, at::kCUDA), want_slot = slot_of(30, at::kCUDA);
        const at::Tensor got = linear_swiglu_fp8(o.x, o.weight, o.x_slot, o.weight_slot, slot, dtype);
        const WithReference with_reference;
        const at::Tensor want = linear_swiglu_fp8(o.x, o.weight, o.x_slot, o.weight_slot, want_slot, dtype);
        expect_close_fp8(got, want, what, part_of(dtype));
        expect_close_amax(slot, want_slot, what);
      }
    }
  }
}

// A NaN stays in its row and in amax; rows and slots around are not written.
TEST(Fp8Gpu, LinearSwigluKeepsToItsRows) {
  HRM_NEEDS_FP8();
  const Fp8Operands o = fp8_operands({200, 512, 256}, 512, at::kCUDA);
  o.x.view(at::kByte)[190][511].fill_(0x7f);
  const at::Tensor slot = slot_of(30, at::kCUDA), operand_slots = at::stack({o.x_slot, o.weight_slot});
  const auto run = [&](int64_t rows) {
    slot.select(0, 2).zero_();
    return linear_swiglu_fp8(o.x.narrow(0, 0, rows), o.weight, o.x_slot, o.weight_slot, slot, at::kBFloat16);
  };
  const at::Tensor all = run(200);
  EXPECT_TRUE(std::isnan(amax_of(slot)));
  const at::Tensor bad = at::isnan(all.to(at::kFloat));
  EXPECT_TRUE(bad[190].all().item<bool>());
  EXPECT_EQ(bad.sum().item<int64_t>(), 256);
  // The NaN is in the next row of the same tile, which is not the kernel's.
  const at::Tensor some = run(190);
  EXPECT_TRUE(std::isfinite(amax_of(slot)));
  expect_same_bits(some.view(at::kByte), all.narrow(0, 0, 190).view(at::kByte));
  EXPECT_EQ(slot[0].item<float>(), 30);
  EXPECT_EQ(slot[3].item<float>(), 0);
  expect_same_bits(at::stack({o.x_slot, o.weight_slot}), operand_slots, "operands' slots are only read");
}

// After a kernel that writes its operand and before one that reads its result, at full size, eager and replayed.
TEST(Fp8Gpu, LinearSwigluBetweenOtherKernels) {
  HRM_NEEDS_FP8();
  const Fp8Operands gates = fp8_operands({31488, 512, 1536}, 3072, at::kCUDA);
  const at::Tensor h = normal({31488, 512}, 3, at::kBFloat16, at::kCUDA);
  const at::Tensor down = fp8_operands({1, 1536, 512}, 512, at::kCUDA).weight;
  const at::Tensor x_slot = slot_of(96, at::kCUDA), act_slot = slot_of(30, at::kCUDA);
  at::Tensor act, y;
  const auto work = [&] {
    const at::Tensor x = quantize_fp8(h, x_slot);
    act = linear_swiglu_fp8(x, gates.weight, x_slot, gates.weight_slot, act_slot, at::kBFloat16);
    y = std::get<0>(linear_rms_norm_fp8(act, down, act_slot, gates.weight_slot, h, kFp8Eps, std::nullopt));
  };
  Captured captured(work);
  const at::Tensor replayed_act = act, replayed_y = y;
  for (uint64_t round = 0; round < 4; ++round) {
    h.copy_(normal(h.sizes(), 10 + round, at::kBFloat16));
    captured.replay();
    const at::Tensor got_act = replayed_act.view(at::kByte).clone(), got_y = replayed_y.clone();
    const float amax = amax_of(act_slot);
    work();
    expect_same_bits(got_act, act.view(at::kByte), cat("act, round ", round));
    expect_same_bits(got_y, y, cat("y, round ", round));
    EXPECT_EQ(amax_of(act_slot), amax) << "round " << round;
  }
}

TEST(Fp8Gpu, LinearRmsNorm) {
  HRM_NEEDS_FP8();
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    for (const at::ScalarType dtype : kFp8GpuTypes) {
      for (const Fp8Shape& shape : shapes()) {
        const std::string what = "linear_rms_norm_fp8 " + name_of(dtype, shape) + with(portable);
        const Fp8Operands o = fp8_operands(shape, shape.width, at::kCUDA);
        const at::Tensor residual = normal({shape.rows, shape.width}, 3, dtype, at::kCUDA);
        const at::Tensor slot = slot_of(80, at::kCUDA), want_slot = slot_of(80, at::kCUDA);
        const auto [y, y8] = linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, slot);
        const auto [alone, none] =
            linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, std::nullopt);
        expect_same_bits(alone, y, what + ", without y8");
        EXPECT_EQ(none.numel(), 0) << what;
        // y8 is made of the rounded y, so that it can be said exactly.
        expect_same_bits(y8.view(at::kByte), quantize_fp8(y, want_slot).view(at::kByte), what + ", y8");
        EXPECT_EQ(amax_of(slot), amax_of(want_slot)) << what;
        const WithReference with_reference;
        const auto [want, want8] =
            linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, std::nullopt);
        // Three roundings to the dtype, each of which may go to the other side.
        expect_close_rows(y, want, 2 * part_of(dtype), what);
      }
    }
  }
}

TEST(Fp8Gpu, Attention) {
  HRM_NEEDS_GPU();
  struct Case {
    int64_t batch, length, heads, head_dim;
    bool turned;
  };
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    for (const at::ScalarType dtype : kFp8GpuTypes) {
      for (const Case& c :
           {Case{3, 82, 8, 64, true}, Case{34, 82, 8, 64, true}, Case{2, 97, 8, 64, false}, Case{1, 128, 2, 64, true},
            Case{2, 16, 3, 32, true}, Case{1, 1, 1, 64, true}, Case{2, 201, 4, 64, true}, Case{180, 82, 8, 64, true}}) {
        const std::string what = cat("attention_fp8 ", dtype, " length ", c.length, " heads ", c.heads, " head_dim ",
                                     c.head_dim, with(portable));
        const at::Tensor qkv = normal({c.batch, c.length, 3 * c.heads * c.head_dim}, 1, dtype, at::kCUDA);
        at::Tensor cos, sin;
        if (c.turned) {
          const int64_t half = c.head_dim / 2;
          const at::Tensor angle =
              at::outer(at::arange(c.length, at::kFloat),
                        at::pow(10000.0, -at::arange(half, at::kFloat) / static_cast<double>(half)));
          cos = angle.cos().to(at::kCUDA), sin = angle.sin().to(at::kCUDA);
        }
        const at::Tensor slot = slot_of(150, at::kCUDA), want_slot = slot_of(150, at::kCUDA);
        const at::Tensor got = attention_fp8(qkv.clone(), c.heads, cos, sin, slot);
        EXPECT_EQ(got.sizes(), (std::vector<int64_t>{c.batch, c.length, c.heads * c.head_dim}));
        const WithReference with_reference;
        const at::Tensor want = attention_fp8(qkv.clone(), c.heads, cos, sin, want_slot);
        expect_close_fp8(got, want, what, part_of(dtype));
        expect_close_amax(slot, want_slot, what);
      }
    }
  }
}

TEST(Fp8Gpu, StridedAndMisalignedInputs) {
  HRM_NEEDS_FP8();
  const auto misaligned = [](const at::Tensor& tensor) {
    const at::Tensor shifted = at::empty({tensor.numel() + 1}, tensor.options()).slice(0, 1).view(tensor.sizes());
    return shifted.copy_(tensor);
  };
  const auto strided = [](const at::Tensor& tensor) { return tensor.t().contiguous().t(); };
  const auto bits = [](const at::Tensor& tensor) { return tensor.view(at::kByte); };
  const Fp8Operands o = fp8_operands({70, 256, 256}, 256, at::kCUDA);
  const at::Tensor residual = normal({70, 256}, 3, at::kBFloat16, at::kCUDA), slot = slot_of(30, at::kCUDA);
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    const auto linear = [&](const at::Tensor& x, const at::Tensor& weight) {
      return linear_fp8(x, weight, o.x_slot, o.weight_slot, at::kBFloat16);
    };
    const auto gates = [&](const at::Tensor& x, const at::Tensor& weight) {
      return bits(linear_swiglu_fp8(x, weight, o.x_slot, o.weight_slot, slot, at::kBFloat16));
    };
    const auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& add) {
      return std::get<0>(linear_rms_norm_fp8(x, weight, o.x_slot, o.weight_slot, add, kFp8Eps, slot));
    };
    const at::Tensor out = linear(o.x, o.weight), act = gates(o.x, o.weight), y = norm(o.x, o.weight, residual);
    expect_same_bits(linear(misaligned(o.x), misaligned(o.weight)), out, "linear" + with(portable));
    expect_same_bits(linear(strided(o.x), strided(o.weight)), out, "linear" + with(portable));
    expect_same_bits(gates(misaligned(o.x), misaligned(o.weight)), act, "swiglu" + with(portable));
    expect_same_bits(gates(strided(o.x), strided(o.weight)), act, "swiglu" + with(portable));
    expect_same_bits(norm(misaligned(o.x), misaligned(o.weight), misaligned(residual)), y, "norm" + with(portable));
    expect_same_bits(norm(strided(o.x), strided(o.weight), strided(residual)), y, "norm" + with(portable));
  }
  const at::Tensor a = normal({70, 64}, 5, at::kBFloat16, at::kCUDA), b = normal({70, 64}, 6, at::kHalf, at::kCUDA);
  const auto [sum, sum8] = add_fp8(misaligned(a), strided(a), slot);
  expect_same_bits(sum, a + a);
  expect_same_bits(bits(sum8), bits(quantize_fp8(a + a, slot)));
  expect_same_bits(bits(quantize_fp8(misaligned(b), slot)), bits(quantize_fp8(b, slot)));
}

TEST(Fp8Gpu, EmptyInputs) {
  HRM_NEEDS_FP8();
  const Fp8Operands o = fp8_operands({4, 64, 32}, 32, at::kCUDA);
  const at::Tensor none = o.x.narrow(0, 0, 0), slot = slot_of(1, at::kCUDA);
  EXPECT_EQ(linear_fp8(none, o.weight, slot, slot, at::kHalf).sizes(), (std::vector<int64_t>{0, 32}));
  EXPECT_EQ(linear_swiglu_fp8(none, o.weight, slot, slot, slot, at::kHalf).sizes(), (std::vector<int64_t>{0, 16}));
  const at::Tensor residual = at::empty({0, 32}, at::device(at::kCUDA).dtype(at::kHalf));
  EXPECT_EQ(std::get<1>(linear_rms_norm_fp8(none, o.weight, slot, slot, residual, kFp8Eps, slot)).sizes(),
            (std::vector<int64_t>{0, 32}));
  EXPECT_EQ(amax_of(slot), 0);
}

// One block as the recursions run it. Replays, with new values and scales, are what eager calls give, slots included.
TEST(Fp8Gpu, InsideACapturedGraph) {
  HRM_NEEDS_FP8();
  constexpr int64_t kBatch = 5, kLength = 82, kWidth = 512, kInner = 1536;
  const auto fp16 = [&](at::IntArrayRef sizes, uint64_t seed, double scale) {
    return (normal(sizes, seed, at::kFloat) * scale).to(at::kCUDA, at::kBFloat16);
  };
  const std::vector<at::Tensor> weights = {fp16({3 * kWidth, kWidth}, 1, 0.04), fp16({kWidth, kWidth}, 2, 0.04),
                                           fp16({2 * kInner, kWidth}, 3, 0.04), fp16({kWidth, kInner}, 4, 0.03)};
  std::vector<at::Tensor> weights8;
  for (const at::Tensor& weight : weights) weights8.push_back(quantize_fp8(weight, slot_of(1, at::kCUDA)));
  const at::Tensor h = fp16({kBatch, kLength, kWidth}, 5, 1), injection = fp16(h.sizes(), 6, 1);
  for (const bool portable : {false, true}) {
    const Portable kernels(portable);
    // Four weights, input, mixed, half, act, output.
    const at::Tensor slots = make_fp8_slots(9, at::kCUDA), history = at::zeros({9, 3}, slots.options());
    const auto slot = [&](int64_t i) { return slots.select(0, i); };
    at::Tensor y, y8;
    const auto work = [&] {
      quantize_fp8_(weights, weights8, slots.narrow(0, 0, 4));
      const auto [sum, sum8] = add_fp8(h, injection, slot(4));
      const at::Tensor qkv = linear_fp8(sum8, weights8[0], slot(4), slot(0), at::kBFloat16);
      const at::Tensor mixed = attention_fp8(qkv, 8, {}, {}, slot(5));
      const auto [half, half8] = linear_rms_norm_fp8(mixed, weights8[1], slot(5), slot(1), sum, kFp8Eps, slot(6));
      const at::Tensor act = linear_swiglu_fp8(half8, weights8[2], slot(6), slot(2), slot(7), at::kBFloat16);
      std::tie(y, y8) = linear_rms_norm_fp8(act, weights8[3], slot(7), slot(3), half, kFp8Eps, slot(8));
      fp8_update_scales_(slots, history, 0);
    };
    Captured captured(work);
    const at::Tensor replayed_y = y, replayed_y8 = y8;
    for (uint64_t round = 0; round < 3; ++round) {
      h.copy_(fp16(h.sizes(), 10 + round, 1 + static_cast<double>(round)));
      const at::Tensor slots_before = slots.clone(), history_before = history.clone();
      captured.replay();
      const at::Tensor got = replayed_y.clone(), got8 = replayed_y8.clone(), got_slots = slots.clone();
      slots.copy_(slots_before);
      history.copy_(history_before);
      work();
      expect_same_bits(got, y, cat("y, round ", round, with(portable)));
      expect_same_bits(got8.view(at::kByte), y8.view(at::kByte), cat("y8, round ", round, with(portable)));
      expect_same_bits(got_slots, slots, cat("slots, round ", round, with(portable)));
      EXPECT_TRUE((slots.select(1, 0) > 1).all().item<bool>()) << slots;
    }
  }
}

TEST(Fp8Gpu, SameBitsEachTimeLarge) {
  HRM_NEEDS_FP8();
  const Fp8Operands gates = fp8_operands({31488, 512, 1536}, 3072, at::kCUDA);
  const Fp8Operands qkv = fp8_operands({31488, 512, 1536}, 1536, at::kCUDA);
  const at::Tensor residual = normal({31488, 512}, 3, at::kBFloat16, at::kCUDA);
  const at::Tensor down = fp8_operands({1, 1536, 512}, 512, at::kCUDA).weight;
  const auto run = [&] {
    const at::Tensor act_slot = slot_of(30, at::kCUDA), y_slot = slot_of(80, at::kCUDA);
    const at::Tensor act =
        linear_swiglu_fp8(gates.x, gates.weight, gates.x_slot, gates.weight_slot, act_slot, at::kBFloat16);
    const auto [y, y8] = linear_rms_norm_fp8(act, down, act_slot, gates.weight_slot, residual, kFp8Eps, y_slot);
    return std::vector<at::Tensor>{act.view(at::kByte),
                                   y,
                                   y8.view(at::kByte),
                                   act_slot,
                                   y_slot,
                                   linear_fp8(qkv.x, qkv.weight, qkv.x_slot, qkv.weight_slot, at::kBFloat16)};
  };
  expect_same_each_time(run, 10, "HRM's size at batch 384");
}

// As in linear_epilogues_gpu_test.cpp.
TEST(Fp8Gpu, ShortProductsSameBitsEachTimeLarge) {
  HRM_NEEDS_FP8();
  for (const at::ScalarType dtype : kFp8GpuTypes) {
    for (const int64_t inner : {128, 256, 384, 512}) {
      const Fp8Operands o = fp8_operands({40000, inner, 512}, 512, at::kCUDA);
      const at::Tensor residual = normal({40000, 512}, 3, dtype, at::kCUDA);
      const auto run = [&] {
        const at::Tensor act_slot = slot_of(30, at::kCUDA), y_slot = slot_of(80, at::kCUDA);
        const auto [y, y8] = linear_rms_norm_fp8(o.x, o.weight, o.x_slot, o.weight_slot, residual, kFp8Eps, y_slot);
        const at::Tensor act = linear_swiglu_fp8(o.x, o.weight, o.x_slot, o.weight_slot, act_slot, dtype);
        return std::vector<at::Tensor>{linear_fp8(o.x, o.weight, o.x_slot, o.weight_slot, dtype),
                                       act.view(at::kByte),
                                       y,
                                       y8.view(at::kByte),
                                       act_slot,
                                       y_slot};
      };
      expect_same_each_time(run, 10, cat(dtype, " inner ", inner));
    }
  }
}

}  // namespace
}  // namespace hrm::ops
