#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/peer_sums.h"
#include "ops/cuda/launcher.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/norm/add_rms_norm_impl.h"
#include "ops/norm/cuda/add_pieces.h"

namespace hrm::ops {
namespace {

static_assert(kMostPeers == cuda::kPeersMost);

// Whether decode_linear reads what is prepared for a norm of these sums, (..., n, D).
bool prepares_norm(const at::Tensor& sums) {
  constexpr int64_t kColumns = 64, kRows = 128;
  return cuda::use_kernel(sums) && sums.scalar_type() == at::kBFloat16 && sums.size(-1) % kColumns == 0 &&
         sums.size(-2) <= kRows && sums.numel() > 0 && cuda::sm90::is_hopper();
}

// Room for what is prepared, (n, D) and (n, D / 64), named in `ahead`.
AheadOfNorm make_ahead(cuda::SumsAhead& ahead, const at::Tensor& out, const at::Tensor& next_norm) {
  AheadOfNorm made{at::empty_like(out), at::empty({out.size(0), out.size(1) / 64}, next_norm.options())};
  ahead = {.norm = next_norm.const_data_ptr<float>(),
           .scaled = made.scaled.mutable_data_ptr(),
           .squares = made.squares.mutable_data_ptr<float>(),
           .width = out.size(1)};
  return made;
}

// next_norm: undefined where nothing is prepared.
DecodedAhead add_pieces_kernel(const OptionalTensor& residual, const at::Tensor& pieces, const at::Tensor& next_norm) {
  const at::Tensor from = pieces[0].is_contiguous() && pieces.stride(0) >= 0 ? pieces : pieces.contiguous();
  const at::Tensor first = residual ? residual->contiguous() : at::Tensor();
  DecodedAhead out{at::empty(pieces.sizes().slice(1), pieces.options()), {}};
  if (out.y.numel() == 0) return out;
  cuda::AddPieces params{.residual = residual ? first.const_data_ptr() : nullptr,
                         .pieces = from.const_data_ptr(),
                         .out = out.y.mutable_data_ptr(),
                         .count = out.y.numel(),
                         .distance = from.stride(0),
                         .parts = static_cast<int>(from.size(0)),
                         .element = cuda::element_of(pieces),
                         .ahead = {}};
  if (next_norm.defined()) out.ahead = make_ahead(params.ahead, out.y, next_norm);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor add_pieces_cuda(const OptionalTensor& residual, const at::Tensor& pieces) {
  check_add_pieces(residual, pieces);
  const c10::cuda::CUDAGuard guard(pieces.device());
  if (!cuda::use_kernel(pieces)) return reference::add_pieces(residual, pieces);
  return add_pieces_kernel(residual, pieces, {}).y;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_pieces_ahead_cuda(const OptionalTensor& residual,
                                                                     const at::Tensor& pieces,
                                                                     const at::Tensor& next_norm) {
  check_add_pieces(residual, pieces);
  if (pieces.scalar_type() != at::kDouble) check_next_norm(pieces, next_norm);
  const c10::cuda::CUDAGuard guard(pieces.device());
  const at::Tensor from = pieces.contiguous();
  if (prepares_norm(from) && cuda::is_aligned(from) && (!residual || cuda::is_aligned(*residual))) {
    const DecodedAhead made = add_pieces_kernel(residual, from, next_norm.contiguous());
    return {made.y, made.ahead.scaled, made.ahead.squares};
  }
  const at::Tensor y =
      cuda::use_kernel(pieces) ? add_pieces_kernel(residual, from, {}).y : reference::add_pieces(residual, pieces);
  const at::Tensor none = at::empty({0}, y.options());
  return {y, none, none};
}

// With the rooms of all parts, and without tensors.
cuda::AddPeerSums peer_params(const at::Tensor& sums, const PeerRooms& rooms) {
  cuda::AddPeerSums params{};
  params.count = sums.numel();
  params.part = rooms.part;
  params.parts = rooms.parts();
  for (int part = 0; part < std::min(rooms.parts(), kMostPeers); ++part) {
    params.rooms[part] = static_cast<cuda::PeerRoom*>(rooms.rooms[static_cast<size_t>(part)]);
  }
  params.element = cuda::element_of(sums);
  return params;
}

}  // namespace

size_t peer_room_bytes() {
  return sizeof(cuda::PeerRoom);
}

size_t peer_check_place(int part) {
  return offsetof(cuda::PeerRoom, check) + sizeof(uint32_t) * static_cast<size_t>(part);
}

bool takes_peer_sums(const at::Tensor& sums, const PeerRooms& rooms) {
  if (!cuda::use_kernel(sums) || sums.dim() != 2 || !sums.is_cuda()) return false;
  // A tensor that is not aligned is copied.
  return cuda::fits(peer_params(sums, rooms));
}

DecodedAhead add_peer_sums(const at::Tensor& residual, const at::Tensor& sums, const at::Tensor& next_norm,
                           const PeerRooms& rooms) {
  TORCH_CHECK(takes_peer_sums(sums, rooms), "add_peer_sums: ", rooms.parts(), " parts with sums of ", sums.sizes(), " ",
              sums.scalar_type(), " are not what the kernel takes");
  check_add_pieces(residual.defined() ? OptionalTensor(residual) : OptionalTensor(), sums.unsqueeze(0));
  const c10::cuda::CUDAGuard guard(sums.device());
  const at::Tensor own = cuda::aligned_rows(sums);
  const at::Tensor first = residual.defined() ? cuda::aligned_rows(residual) : at::Tensor();
  cuda::AddPeerSums params = peer_params(own, rooms);
  DecodedAhead out{at::empty(sums.sizes(), sums.options()), {}};
  params.residual = first.defined() ? first.const_data_ptr() : nullptr;
  params.sums = own.const_data_ptr();
  params.out = out.y.mutable_data_ptr();
  at::Tensor norm;
  if (next_norm.defined() && prepares_norm(own)) {
    check_next_norm(own, next_norm);
    norm = next_norm.contiguous();
    out.ahead = make_ahead(params.ahead, out.y, norm);
  }
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("add_pieces", &add_pieces_cuda);
  m.impl("add_pieces_ahead", &add_pieces_ahead_cuda);
}

}  // namespace hrm::ops
