#include "ops/embedding/cuda/augment.h"

#include "hrm/ops/symmetry.h"
#include "ops/cuda/common.cuh"

namespace hrm::ops::cuda {
namespace {

constexpr int kWarps = 4;  // rows of a block
// A symmetry takes at most 73 words (25 rows) but for rejections, which are as good as never.
constexpr uint32_t kPrepared = 128;

// CounterRng with its first words computed beforehand, by all lanes of a warp.
class PreparedRng {
 public:
  __device__ PreparedRng(const CounterRng& rng, const uint32_t* words) : rng_(rng), words_(words) {}
  __device__ uint32_t next() {
    const uint32_t number = used_++;
    if (number < kPrepared) return words_[number];
    uint32_t block[4];
    rng_.block(number / 4, block);
    return number % 4 == 0 ? block[0] : number % 4 == 1 ? block[1] : number % 4 == 2 ? block[2] : block[3];
  }

 private:
  const CounterRng& rng_;
  const uint32_t* words_;
  uint32_t used_ = 0;
};

// The length of the run of colours that begins at the first of these cells: all lanes of a warp look at one each.
__device__ int arc_run(const int32_t* tokens, int stride, int side, int lane) {
  const unsigned colours = __ballot_sync(0xffffffffu, lane < side && tokens[lane * stride] >= 2);
  return __ffsll(static_cast<long long>(~static_cast<unsigned long long>(colours))) - 1;
}

template <AugmentRule kRule>
__global__ void __launch_bounds__(kWarps * 32) augment_kernel(const AugmentParams args) {
  __shared__ uint32_t prepared[kWarps][kPrepared];
  __shared__ SudokuSymmetry symmetries[kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp;
  if (row >= args.rows) return;  // a whole warp
  const int64_t* pick = args.picks + row * 3;
  const int64_t entry = pick[0];
  if (lane == 0) args.identifiers[row] = static_cast<int32_t>(pick[2]);
  CounterRng rng(args.seed, Stream::augment, static_cast<uint64_t>(pick[1]));
  SudokuSymmetry& symmetry = symmetries[warp];
  int transform = 0;
  if (kRule == AugmentRule::sudoku) {
    static_assert(kPrepared == 32 * 4);
    rng.block(lane, &prepared[warp][lane * 4]);
    __syncwarp();
    if (lane == 0) {
      PreparedRng words(rng, prepared[warp]);
      draw_sudoku_symmetry(words, args.box_rows, args.box_cols, symmetry);
    }
    __syncwarp();
  } else if (kRule == AugmentRule::dihedral) {
    transform = static_cast<int>(rng.below(8));
  }
  const int32_t* __restrict__ from_inputs = args.table_inputs + entry * args.cells;
  const int32_t* __restrict__ from_labels = args.table_labels + entry * args.cells;
  int32_t* __restrict__ inputs = args.inputs + row * args.cells;
  int32_t* __restrict__ labels = args.labels + row * args.cells;
  ArcCopy copy;
  int input_rows = 0, input_cols = 0, label_rows = 0, label_cols = 0;
  if (kRule == AugmentRule::arc) {
    copy = arc_copy_of(pick[1]);
    input_rows = arc_run(from_inputs, args.side, args.side, lane);
    input_cols = arc_run(from_inputs, 1, args.side, lane);
    label_rows = arc_run(from_labels, args.side, args.side, lane);
    label_cols = arc_run(from_labels, 1, args.side, lane);
  }
#pragma unroll 4
  for (int64_t cell = lane; cell < args.cells; cell += 32) {
    if (kRule == AugmentRule::none) {
      inputs[cell] = from_inputs[cell];
      labels[cell] = from_labels[cell];
      continue;
    }
    const int i = static_cast<int>(cell) / args.side, j = static_cast<int>(cell) % args.side;
    if (kRule == AugmentRule::sudoku) {
      const int source = sudoku_source(symmetry, args.side, i, j);
      inputs[cell] = sudoku_token(symmetry, from_inputs[source]);
      labels[cell] = sudoku_token(symmetry, from_labels[source]);
    } else if (kRule == AugmentRule::arc) {
      inputs[cell] = arc_copy_token(copy, from_inputs, args.side, input_rows, input_cols, i, j, 0);
      labels[cell] = arc_copy_token(copy, from_labels, args.side, label_rows, label_cols, i, j, kArcIgnored);
    } else {
      const int source = dihedral_source_cell(transform, args.side, args.side, i, j);
      inputs[cell] = from_inputs[source];
      labels[cell] = from_labels[source];
    }
  }
}

}  // namespace

cudaError_t launch(const AugmentParams& params, cudaStream_t stream) {
  const auto kernel = params.rule == AugmentRule::none     ? augment_kernel<AugmentRule::none>
                      : params.rule == AugmentRule::sudoku ? augment_kernel<AugmentRule::sudoku>
                      : params.rule == AugmentRule::arc    ? augment_kernel<AugmentRule::arc>
                                                           : augment_kernel<AugmentRule::dihedral>;
  kernel<<<static_cast<unsigned>((params.rows + kWarps - 1) / kWarps), kWarps * 32, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace hrm::ops::cuda
