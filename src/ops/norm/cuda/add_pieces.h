#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// What is prepared for an RMSNorm of the sums (hrm/ops/decode_linear.h): the sums times the norm's weight, and sums of
// their squares over 64 columns each.
struct SumsAhead {
  const float* norm;  // (width), or null: nothing is prepared
  void* scaled;       // (n, width)
  float* squares;     // (n, width / 64)
  int64_t width;      // a multiple of 64
};

// out[i] = residual[i] + pieces[i] + pieces[distance + i] + ..., in float32 in this order, rounded once.
struct AddPieces {
  const void* residual;  // or null: 0
  const void* pieces;
  void* out;
  int64_t count;     // of out, at least 1
  int64_t distance;  // elements from one piece to the next
  int parts;         // at least 1
  Element element;
  SumsAhead ahead;
};

// Starts the kernel on the stream and returns the error of the launch. One pass; 16 bytes at a time where count,
// distance and pointers are multiples of 16 bytes, otherwise single elements. With `ahead` they must be, of a 16-bit
// type.
cudaError_t launch(const AddPieces& params, cudaStream_t stream);

constexpr int kPeersMost = 8;
constexpr int kPeerThreads = 256;
constexpr int kPeerChannelBytes = 16 * kPeerThreads;
constexpr int kPeerChannelsMost = 256;

// Where the parts write for each other. A channel is what one block sends and gets: it has two rooms that take turns
// for each part's sums. So a part that has sent its sums of one exchange may send those of the next before the others
// have read: they have answered in between.
struct alignas(16) PeerRoom {
  uint32_t sent[kPeerChannelsMost][kPeersMost];  // by each part into a channel: the number of its last exchange
  uint32_t count[kPeerChannelsMost];             // exchanges of a channel; of the owner alone
  uint32_t check[kPeersMost];                    // written by each part at the start
  uint8_t data[2][kPeersMost][kPeerChannelsMost][kPeerChannelBytes];
};

// out = residual + the sums of all parts, in the order of parts, as above, where `sums` are those of this part alone.
// All parts launch it, with as many elements, in the same order.
struct AddPeerSums {
  const void* residual;  // or null: 0
  const void* sums;
  void* out;
  int64_t count;  // of out
  int part, parts;
  PeerRoom* rooms[kPeersMost];  // of each part, as mapped here
  Element element;
  SumsAhead ahead;
};

// Whether the kernel takes them: a 16-bit type or float32, pointers of 16 bytes, count a multiple of 16 bytes and at
// most what all channels hold.
bool fits(const AddPeerSums& params);
cudaError_t launch(const AddPeerSums& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
