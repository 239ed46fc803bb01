// Each Hopper kernel at sizes that compute-sanitizer's racecheck gets through, and no product of a library, which it
// does not get through. The results are compared with themselves; other tests say what they must be.
#include "hrm/ops/attention.h"
#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_block.h"
#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/fp8_rows_block.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/mlp_mix.h"
#include "hrm/ops/nf4.h"
#include "ops/adapters/lora_cases.h"
#include "ops/attention/attention_cases.h"
#include "ops/attention/attention_impl.h"
#include "ops/attention/qkv_heads_cases.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/decode/decode_attention_cases.h"
#include "ops/decode/decode_linear_cases.h"
#include "ops/gpu_testing.h"
#include "ops/linear/linear_epilogues_cases.h"
#include "ops/memory/memory_blocks_cases.h"
#include "ops/mixing/mlp_mix_ways.h"
#include "ops/moe/moe_cases.h"
#include "ops/quantized/fp8_cases.h"
#include "ops/quantized/fp8_linear_cases.h"
#include "ops/sequence/selective_scan_cases.h"
#include "ops/sequence/sum_rows_cases.h"
#include "ops/with_tiles.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

constexpr int kTimes = 2;
using Tensors = std::vector<at::Tensor>;

TEST(KernelsAloneGpu, Linear) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithTiles with_tiles;
  for (const ProductShape& shape : std::vector<ProductShape>{{3000, 512, 1536}, {2816, 128, 1536}, {130, 96, 264}}) {
    const auto [x, weight, residual] = product_input(shape, shape.width, at::kBFloat16, at::kCUDA);
    expect_same_each_time([&, &x = x, &weight = weight] { return Tensors{linear(x, weight, weight)}; }, kTimes,
                          name_of(at::kBFloat16, shape));
  }
}

// The third shape has tiles enough for the kernel that larger batches take.
TEST(KernelsAloneGpu, LinearSwiglu) {
  HRM_NEEDS_GPU();
  for (const ProductShape& shape : std::vector<ProductShape>{{3000, 512, 1536}, {1000, 128, 256}, {22700, 64, 1536}}) {
    const auto [x, weight, residual] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
    expect_same_each_time([&, &x = x, &weight = weight] { return Tensors{linear_swiglu(x, weight)}; }, kTimes,
                          name_of(at::kBFloat16, shape));
  }
}

TEST(KernelsAloneGpu, LinearSwigluForwardAndBackward) {
  HRM_NEEDS_GPU();
  for (const ProductShape& shape : std::vector<ProductShape>{{300, 512, 1536}, {3000, 128, 512}}) {
    const auto [x, weight, residual] = product_input(shape, 2 * shape.width, at::kBFloat16, at::kCUDA);
    const at::Tensor down = normal({shape.inner, shape.width}, 5, at::kBFloat16, at::kCUDA);
    const auto run = [&, &x = x, &weight = weight] {
      const auto [act, gate_up] = linear_swiglu_forward(x, weight);
      return Tensors{act, gate_up, linear_swiglu_backward(x, down, gate_up)};
    };
    expect_same_each_time(run, kTimes, name_of(at::kBFloat16, shape));
  }
}

// Few rows, many rows, and a row in one block.
TEST(KernelsAloneGpu, LinearRmsNorm) {
  HRM_NEEDS_GPU();
  for (const ProductShape& shape :
       std::vector<ProductShape>{{300, 512, 512}, {300, 1536, 512}, {9000, 512, 512}, {300, 512, 256}}) {
    const auto [x, weight, residual] = product_input(shape, shape.width, at::kBFloat16, at::kCUDA);
    const auto run = [&, &x = x, &weight = weight, &residual = residual] {
      const auto [y, rstd] = linear_rms_norm_forward(x, weight, residual, kNormEps);
      return Tensors{y, rstd, linear_rms_norm_add(x, weight, residual, kNormEps, residual)};
    };
    expect_same_each_time(run, kTimes, name_of(at::kBFloat16, shape));
  }
}

TEST(KernelsAloneGpu, Fp8) {
  HRM_NEEDS_GPU();
  for (const int64_t rows : {300, 9000}) {
    const at::Tensor h = normal({rows, 512}, 1, at::kBFloat16, at::kCUDA);
    const auto weight = [](int64_t out, int64_t in, uint64_t seed, const at::Tensor& slot) {
      return quantize_fp8(normal({out, in}, seed, at::kBFloat16, at::kCUDA), slot);
    };
    const at::Tensor slot = slot_of(30, at::kCUDA), weight_slot = slot_of(60, at::kCUDA);
    const at::Tensor gates = weight(512, 512, 2, weight_slot), down = weight(512, 256, 3, weight_slot),
                     qkv_weight = weight(768, 512, 4, weight_slot);
    const auto run = [&] {
      const at::Tensor h8 = quantize_fp8(h, slot);
      const at::Tensor qkv = linear_fp8(h8, qkv_weight, slot, weight_slot, at::kBFloat16);
      const at::Tensor act = linear_swiglu_fp8(h8, gates, slot, weight_slot, slot, at::kBFloat16);
      const auto [y, y8] = linear_rms_norm_fp8(act, down, slot, weight_slot, h, kFp8Eps, slot);
      return Tensors{qkv, act.view(at::kByte), y, y8.view(at::kByte)};
    };
    expect_same_each_time(run, kTimes, cat("rows ", rows));
  }
}

TEST(KernelsAloneGpu, Fp8Block) {
  HRM_NEEDS_GPU();
  for (const int64_t rows : {48, 1040}) {
    const at::Tensor x = normal({rows, 272}, 1, at::kBFloat16, at::kCUDA);
    const at::Tensor gate_up = normal({rows, 544}, 2, at::kBFloat16, at::kCUDA);
    const at::Tensor q = normal({2, rows / 2, 4, 48}, 3, at::kBFloat16, at::kCUDA);
    const at::Tensor angle = normal({rows / 2, 24}, 4, at::kFloat, at::kCUDA);
    const at::Tensor slot = wide_slot(32, false, at::kCUDA), grad_slot = wide_slot(256, true, at::kCUDA);
    const at::Tensor weight = at::ones({272}, at::device(at::kCUDA));
    const at::Tensor weight8 = normal({256, 272}, 5, at::kFloat, at::kCUDA).to(at::kFloat8_e4m3fn);
    const auto bytes = [](const Fp8Pair& pair, Tensors& into) {
      into.push_back(pair.values.view(at::kByte));
      if (pair.transposed.defined()) into.push_back(pair.transposed.view(at::kByte));
    };
    const auto run = [&] {
      Tensors out;
      for (const at::Tensor& each : {slot, grad_slot}) each.narrow(0, 5, 3).zero_();  // what they have counted
      const Fp8Normed normed = weighted_rms_norm_fp8(x, weight, 1e-5, slot, true);
      bytes(normed.y, out);
      out.push_back(normed.rstd);
      out.push_back(weighted_rms_norm_transposed_fp8(x, weight, normed.rstd, slot).view(at::kByte));
      bytes(swiglu_fp8(gate_up, slot), out);
      const Fp8SwigluGradient gates = swiglu_backward_fp8(x, gate_up, grad_slot, true, slot, true, true);
      bytes(gates.gate_up, out);
      out.push_back(gates.act_transposed.view(at::kByte));
      bytes(qkv_heads_backward_fp8(q, q, q, angle.cos(), angle.sin(), grad_slot, true, true), out);
      bytes(fp8_pair(x, grad_slot, true, true, 0), out);
      bytes(swiglu_backward_fp8(x, gate_up, grad_slot, true, slot, true, false, 0).gate_up, out);
      const Fp8Swiglu whole =
          fp8_linear_swiglu({normed.y.values, {}, slot}, {weight8, slot}, slot, at::kBFloat16);  // 2 x 128 wide
      bytes(whole.act, out);
      out.push_back(whole.gate_up);
      for (const at::Tensor& each : {slot, grad_slot}) out.push_back(each.clone().view(at::kByte));
      return out;
    };
    expect_same_each_time(run, kTimes, cat("rows ", rows));
  }
}

TEST(KernelsAloneGpu, Fp8WeightRows) {
  HRM_NEEDS_GPU();
  std::vector<at::Tensor> weights, values, transposed, scales, transposed_scales;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{272, 144}, {48, 80}, {1040, 768}}) {
    weights.push_back(normal({rows, columns}, 1, at::kFloat, at::kCUDA));
    values.push_back(at::empty({rows, columns}, weights.back().options().dtype(at::kFloat8_e4m3fn)));
    transposed.push_back(at::empty({columns, rows}, values.back().options()));
    scales.push_back(at::empty({rows}, weights.back().options()));
    transposed_scales.push_back(at::empty({columns}, weights.back().options()));
  }
  const at::Tensor slots = make_fp8_wide_slots(3, false, at::kCUDA);
  const auto run = [&] {
    quantize_fp8_weight_rows_({weights, values, transposed, scales, transposed_scales}, slots, at::kBFloat16);
    Tensors out{slots.clone()};
    for (size_t i = 0; i < weights.size(); ++i) {
      for (const at::Tensor& bytes : {values[i], transposed[i]}) out.push_back(bytes.clone().view(at::kByte));
      for (const at::Tensor& floats : {scales[i], transposed_scales[i]}) out.push_back(floats.clone());
    }
    return out;
  };
  expect_same_each_time(run, kTimes, "weights");
}

// Rows in registers and rows that are read twice; tiles whose edges are beyond the matrix.
TEST(KernelsAloneGpu, Fp8Rows) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {48, 1040, 12288, 1033}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = normal({300, width}, 1, dtype, at::kCUDA),
                       factors = normal({width}, 2, at::kFloat, at::kCUDA);
      const auto run = [&] {
        const auto [values, scales] = quantize_fp8_rows(x, factors);
        const at::Tensor transposed = at::empty({width, 288}, values.options()), ones = at::empty_like(factors);
        transpose_fp8_(transposed, ones, values.narrow(0, 0, 288));
        return Tensors{values.view(at::kByte), scales, transposed.view(at::kByte), ones};
      };
      expect_same_each_time(run, kTimes, cat(dtype, " of ", width));
    }
  }
}

TEST(KernelsAloneGpu, PartsOfABlockWithRowsIn8Bits) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = normal({300, 1024}, 1, dtype, at::kCUDA), gate_up = normal({300, 2048}, 2, dtype, at::kCUDA);
    const at::Tensor qkv = normal({2, 150, 2048}, 3, dtype, at::kCUDA), q = x.view({2, 150, 16, 64});
    const at::Tensor kv = normal({2, 150, 8, 64}, 4, dtype, at::kCUDA);
    const at::Tensor angle = normal({150, 32}, 5, at::kFloat, at::kCUDA), cos = angle.cos(), sin = angle.sin();
    const at::Tensor weight = at::ones({1024}, at::device(at::kCUDA)), head = at::ones({64}, at::device(at::kCUDA));
    const at::Tensor factors = normal({2048}, 6, at::kFloat, at::kCUDA);
    const auto run = [&] {
      Tensors out;
      const auto keep = [&](const Fp8RowsBeside& rows) {
        out.insert(out.end(), {rows.wide, rows.values.view(at::kByte), rows.scales});
      };
      keep(weighted_rms_norm_rows(x, weight, 1e-5, true).y);
      keep(swiglu_rows(gate_up, true));
      keep(swiglu_backward_rows(x, gate_up, factors, true));
      keep(qkv_heads_backward_rows(q, kv, kv, qkv, {.cos = cos, .sin = sin, .q_weight = head, .k_weight = head},
                                   factors, true));
      return out;
    };
    expect_same_each_time(run, kTimes, cat(dtype));
  }
}

TEST(KernelsAloneGpu, Attention) {
  HRM_NEEDS_GPU();
  for (const int64_t length : {33, 64, 82, 97, 128}) {
    const int64_t batch = 160;  // heads enough for every stage to be used again
    const AttentionCase c = attention_case(batch, length, 8, 64, true, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_out = normal({batch, length, 512}, 2, at::kBFloat16, at::kCUDA);
    const at::Tensor slot = slot_of(30, at::kCUDA);
    const auto run = [&] {
      const auto [out, lse] = attention_forward(c.qkv, c.heads, c.cos, c.sin);
      const at::Tensor grad = attention_backward(grad_out, c.qkv, out, lse, c.heads, c.cos, c.sin);
      const at::Tensor out8 = attention_fp8(c.qkv, c.heads, c.cos, c.sin, slot);
      return Tensors{out, lse, grad, out8.view(at::kByte)};
    };
    expect_same_each_time(run, kTimes, cat("L ", length));
  }
}

// Whole samples, two for each block; shares of them.
TEST(KernelsAloneGpu, AttentionProjected) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "needs a Hopper GPU and a build for it";
  const int64_t processors = cuda::sm90::multiprocessors();
  for (const auto& [batch, length] : {std::pair{2 * processors, int64_t{82}}, std::pair{2 * processors, int64_t{97}},
                                      std::pair{processors * 3 / 4 - 3, int64_t{82}}}) {
    const AttentionCase c = attention_case(1, length, 8, 64, true, at::kBFloat16, at::kCUDA);
    const at::Tensor h = normal({batch, length, 512}, 2, at::kBFloat16, at::kCUDA);
    const at::Tensor weight = normal({1536, 512}, 3, at::kBFloat16, at::kCUDA) * 0.05;
    const auto run = [&] {
      const at::Tensor out =
          attention_projected_by_kernel(h, weight, 8, optional_tensor(c.cos), optional_tensor(c.sin));
      return out.defined() ? Tensors{out} : Tensors{};
    };
    if (processors == 132 || batch % processors == 0) {
      ASSERT_EQ(run().size(), 1u) << cat("batch ", batch, " L ", length);
    }
    expect_same_each_time(run, kTimes, cat("batch ", batch, " L ", length));
  }
}

// Both ways of the backward pass; in the last shape with units enough that each block's ring of stages goes round.
TEST(KernelsAloneGpu, MlpMix) {
  HRM_NEEDS_GPU();
  const auto normals = [](at::IntArrayRef sizes, uint64_t seed) {
    return normal(sizes, seed, at::kBFloat16, at::kCUDA);
  };
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{3, 82, 64}, {3, 97, 64}, {16, 97, 512}}) {
    const int64_t length = sizes[1];
    const at::Tensor h = normals(sizes, 1), gate_up = normals({512, length}, 2) * 0.1,
                     down = normals({length, 256}, 3) * 0.1;
    const auto run = [&] {
      const auto [y, rstd] = mlp_mix_forward(h, gate_up, down, kNormEps);
      const at::Tensor grad_gate_up = at::zeros(gate_up.sizes(), rstd.options());
      const at::Tensor grad_down = at::zeros(down.sizes(), rstd.options());
      const at::Tensor grad = mlp_mix_backward(y, h, y, rstd, gate_up, down, grad_gate_up, grad_down);
      return Tensors{y, rstd, grad, grad_gate_up, grad_down};
    };
    for (const bool takes_turns : {false, true}) {
      const MixTurns turns(takes_turns);
      expect_same_each_time(run, kTimes, cat("B ", sizes[0], " L ", length, " D ", sizes[2], way_name(takes_turns)));
    }
  }
}

// Clusters that are full and that are not, with the gradients' inputs saved and without.
TEST(KernelsAloneGpu, MemoryBlocks) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const MemoryBlocksCase& c :
       {MemoryBlocksCase{2, 64, 512, 1536, 8, 2, 2}, MemoryBlocksCase{3, 20, 512, 1536, 8, 1, 2, true},
        MemoryBlocksCase{5, 33, 256, 768, 4, 3, 1, true}}) {
    const MemoryInput in = memory_input(c, at::kBFloat16, at::kCUDA);
    const auto run = [&] {
      const auto [out, saved] = memory_blocks_forward(in.state, in.extra, in.pos, in.blocks, in.norm, in.options);
      Tensors all{out, saved.last, memory_blocks(in.state, in.extra, in.pos, in.blocks, in.norm, in.options)};
      for (const MemoryBlockSaved& s : saved.blocks)
        all.insert(all.end(), {s.x, s.qkv, s.mixed, s.lse, s.h, s.gate_up});
      return all;
    };
    expect_same_each_time(run, kTimes, name_of(at::kBFloat16, c));
  }
}

TEST(KernelsAloneGpu, DecodeLinear) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const int64_t inner : {768, 3080}) {
    for (const int64_t rows : {1, 7, 12, 32}) {
      for (const Around around : kAround) {
        const DecodeLinearInput in = decode_linear_input(rows, inner, 264, around, at::kBFloat16, at::kCUDA);
        expect_same_each_time([&] { return Tensors{in.run()}; }, kTimes, cat("rows ", rows, " of ", inner));
      }
    }
  }
}

TEST(KernelsAloneGpu, DecodeLinearAhead) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const int64_t rows : {3, 100}) {
    for (const bool gated : {false, true}) {
      const DecodeChain chain = decode_chain(rows, 2104, 1000, 2104, gated, at::kBFloat16, at::kCUDA);
      const auto run = [&] {
        const DecodedAhead first = chain.run_first();
        return Tensors{first.y, first.ahead.scaled, first.ahead.squares, chain.run_second(first)};
      };
      expect_same_each_time(run, kTimes, cat("rows ", rows));
    }
  }
}

// Clusters of all sizes that tiles have.
TEST(KernelsAloneGpu, DecodeLinearTiles) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{8200, 264}, {2056, 1032}, {264, 8152}}) {
    for (const int64_t rows : {3, 40, 100}) {
      for (const Around around : {Around::residual, Around::gate}) {
        const DecodeLinearInput in = decode_linear_input(rows, inner, width, around, at::kBFloat16, at::kCUDA);
        expect_same_each_time([&] { return Tensors{in.run()}; }, kTimes, cat("rows ", rows, " of ", inner));
      }
    }
  }
}

// The same with weights in 8 bits, more stages than the ring has, and adapters.
TEST(KernelsAloneGpu, DecodeLinearTiles8) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{8208, 264}, {2064, 1032}, {8192, 8200}}) {
    for (const int64_t rows : {3, 40, 100}) {
      for (const Around around : {Around::residual, Around::gate}) {
        DecodeLinearInput in = in_8_bits(decode_linear_input(rows, inner, width, around, at::kBFloat16, at::kCUDA),
                                         rows == 40 ? at::kChar : at::kFloat8_e4m3fn);
        if (rows != 40) in = with_adapter(in, 16, 2, 0.5);
        expect_same_each_time([&] { return Tensors{in.run()}; }, kTimes, cat("rows ", rows, " of ", inner));
      }
    }
  }
}

TEST(KernelsAloneGpu, LinearNf4) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{1088, 1600}, {3072, 40}}) {
    const at::Tensor workspace = normal({width, inner}, 1, at::kBFloat16, at::kCUDA);
    const Nf4Tensor weight = nf4_quantize(workspace);
    for (const int64_t rows : {1, 12, 32}) {
      const at::Tensor x = normal({rows, inner}, 2, at::kBFloat16, at::kCUDA);
      expect_same_each_time([&] { return Tensors{linear_nf4(x, weight, workspace)}; }, kTimes, cat("rows ", rows));
    }
  }
}

TEST(KernelsAloneGpu, DecodeAttention) {
  HRM_NEEDS_GPU();
  for (const DecodeCase& c : decode_cases()) {
    const DecodeInputs in = decode_inputs(c, at::kBFloat16, at::kCUDA);
    expect_same_each_time([&] { return Tensors{in.run()}; }, kTimes, cat("head ", c.head_dim));
  }
}

TEST(KernelsAloneGpu, SumRows) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {1, 264}) {
    const RowMap map = on(random_row_map(50, 70, 3, 1), at::kCUDA);
    const at::Tensor x = normal({50, width}, 1, at::kBFloat16, at::kCUDA);
    const RowMap lists = on(as_lists(random_row_map(50, 70, 3, 1)), at::kCUDA);
    expect_same_each_time(
        [&] {
          return Tensors{sum_rows(x, map), sum_rows(x, lists, x)};
        },
        kTimes, cat("width ", width));
  }
}

// On tensor cores and without, each number of steps.
TEST(KernelsAloneGpu, LoraMerge) {
  HRM_NEEDS_GPU();
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    for (const int64_t rank : {6, 16, 32, 48, 64}) {
      const std::vector<LoraLayer> layers =
          lora_layers_of({{264, {130, 17}, 3}, {37, {9}}, {40, {200}}}, rank, dtype, at::kCUDA);
      const auto run = [&] {
        Tensors results;
        for (const at::Tensor& merged : merged_of(layers)) results.push_back(merged.clone());
        return results;
      };
      expect_same_each_time(run, kTimes, cat(dtype, ", rank ", rank));
    }
  }
}

TEST(KernelsAloneGpu, QkvHeadsProduct) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const WithTiles with_tiles;
  const QkvSizes sizes{6, 3, 64};
  const QkvInputs in({.batch = 20, .length = 130, .sizes = sizes}, at::kBFloat16, at::kCUDA);
  const at::Tensor x = normal({20, 130, 320}, 8, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({768, 320}, 9, at::kBFloat16, at::kCUDA);
  expect_same_each_time([&] { return Tensors{qkv_heads_product(x, weight, sizes, in.cos, in.sin)}; }, kTimes, "heads");
}

TEST(KernelsAloneGpu, MoeExperts) {
  HRM_NEEDS_GPU();
  for (const ExpertActivation activation : kActivations) {
    const MoeCase c = make_moe(300, 256, 512, 4, 2, at::kBFloat16, at::kCUDA, activation);
    const auto run = [&] {
      const MoeResult r = run_moe(c);
      return Tensors{r.out, r.grad_x, r.grad_logits, r.grad_up, r.grad_down};
    };
    expect_same_each_time(run, kTimes, cat("experts ", testing::name_of(activation)));
  }
}

TEST(KernelsAloneGpu, MoePortableProduct) {
  HRM_NEEDS_GPU();
  for (const int64_t dim : {136, 13}) {
    const MoeCase c = make_moe(300, dim, dim, 4, 2, at::kBFloat16, at::kCUDA);
    const MoePlan plan = moe_plan(moe_gate(c.logits, 2, MoeScore::softmax, false).ids, 4);
    const at::Tensor rows = moe_gather(c.x, plan.picks, plan.starts, 2);
    const int64_t used = plan.starts[4].item<int64_t>();
    for (const bool transposed : {false, true}) {
      const auto run = [&] {
        return Tensors{moe_linear_portable(rows, c.up, plan.tile_experts, plan.starts, transposed).narrow(0, 0, used)};
      };
      expect_same_each_time(run, kTimes, cat("D ", dim, " transposed ", transposed));
    }
  }
}

TEST(KernelsAloneGpu, MoePortableGradient) {
  HRM_NEEDS_GPU();
  for (const int64_t dim : {136, 13}) {
    const MoeCase c = make_moe(300, dim, dim, 4, 2, at::kBFloat16, at::kCUDA);
    const MoePlan plan = moe_plan(moe_gate(c.logits, 2, MoeScore::softmax, false).ids, 4);
    const at::Tensor rows = moe_gather(c.x, plan.picks, plan.starts, 2);
    const auto run = [&] {
      const at::Tensor grad = at::ones({4, dim, dim}, at::device(at::kCUDA));
      moe_accumulate_portable_(grad, rows, rows, plan.tile_experts, plan.starts);
      return Tensors{grad};
    };
    expect_same_each_time(run, kTimes, cat("D ", dim));
  }
}

TEST(KernelsAloneGpu, SsdScan) {
  HRM_NEEDS_GPU();
  for (const ScanShape& s : {ScanShape{2, 130, 4, 64, 128, 2, 64}, ScanShape{3, 81, 6, 64, 64, 2, 64}}) {
    const ScanInputs v = scan_inputs(s, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_y = normal(v[0].sizes(), 8, at::kBFloat16, at::kCUDA);
    const at::Tensor grad_state = normal(v[6].sizes(), 9, at::kFloat, at::kCUDA);
    const auto run = [&] {
      const auto scan = [](const ScanInputs& in) {
        return ssd_scan(in[0], in[1], in[2], in[3], in[4], in[5], 64, in[6]);
      };
      ScanResult r = run_scan(scan, v, grad_y, grad_state);
      r.grads.insert(r.grads.end(), {r.y, r.state});
      return r.grads;
    };
    expect_same_each_time(run, kTimes, cat("state ", s.state));
  }
}

}  // namespace
}  // namespace hrm::ops
