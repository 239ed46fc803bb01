#include "hrm/parallel/gathered_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::parallel {
namespace {

bool is_part(const at::Tensor& tensor, StateSlice slice) {
  if (slice.flat != nullptr) return true;
  return slice.global_rows >= 0 && slice.global_rows != tensor.size(0);
}

std::vector<int64_t> whole_shape(const at::Tensor& part, StateSlice slice) {
  std::vector<int64_t> shape = part.sizes().vec();
  shape[0] = slice.global_rows;
  return shape;
}

// The flat vector of which every rank has a share, on rank 0's CPU; elsewhere undefined.
at::Tensor collect_shares(const at::Tensor& share, const FlatLayout& layout, Comm& comm) {
  constexpr int64_t kBytesAtATime = int64_t{32} << 20;  // of all ranks
  const int64_t most =
      std::max<int64_t>(kBytesAtATime / (static_cast<int64_t>(share.element_size()) * layout.ranks), 1);
  at::Tensor whole;
  if (comm.main()) whole = at::empty({layout.size}, share.options().device(at::kCPU));
  for (const FlatLayout::Piece& piece : layout.pieces) {
    const int64_t slice = layout.slice_size(piece);
    for (int64_t start = 0; start < slice; start += most) {
      const int64_t size = std::min(most, slice - start);
      const at::Tensor all = at::empty({layout.ranks * size}, share.options());
      comm.all_gather(all, share.narrow(0, layout.share_offset(piece) + start, size));
      if (!comm.main()) continue;
      const at::Tensor host = all.to(at::kCPU);
      for (int64_t rank = 0; rank < layout.ranks; ++rank) {
        whole.narrow(0, piece.offset + rank * slice + start, size).copy_(host.narrow(0, rank * size, size));
      }
    }
  }
  return whole;
}

void hand_out_share(const at::Tensor& share, const at::Tensor& whole, const FlatLayout& layout) {
  for (const FlatLayout::Piece& piece : layout.pieces) {
    const int64_t size = layout.slice_size(piece);
    share.narrow(0, layout.share_offset(piece), size).copy_(whole.narrow(0, layout.slice_offset(piece), size));
  }
}

// "optim.*.exp_avg" with a member's name in the place of the star.
std::string member_name(const std::string& pattern, const std::string& member) {
  const size_t star = pattern.find('*');
  require(star != std::string::npos, ExitCode::unexpected, "the share '", pattern, "' has no place for names");
  return pattern.substr(0, star) + member + pattern.substr(star + 1);
}

// The bytes of a tensor, for collectives that know few types.
at::Tensor as_bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view(-1).view(at::kByte);
}

// A digest of each entry, as lines "name digest".
std::string digests(Stateful& state) {
  const StateListing listing = list_state(state);
  std::ostringstream out;
  for (const TensorEntry& entry : listing.tensors) {
    if (is_part(entry.tensor, entry.slice)) continue;
    const at::Tensor host = host_tensor(entry.tensor);
    out << entry.name << ' ' << digest_hex(bytes_of(host)) << '\n';
  }
  for (const auto& [name, value] : listing.integers) out << name << ' ' << value << '\n';
  for (const auto& [name, value] : listing.reals) out << name << ' ' << std::hexfloat << value << '\n';
  return out.str();
}

// The first word of the first line that differs.
std::string first_difference(const std::string& a, const std::string& b) {
  std::istringstream lines(a), others(b);
  std::string line, other;
  while (std::getline(lines, line)) {
    if (!std::getline(others, other) || line != other) return line.substr(0, line.find(' '));
  }
  return "an entry that only one of them has";
}

}  // namespace

GatheredState GatheredState::collect(Stateful& state, Comm& comm) {
  GatheredState gathered(state);
  if (comm.alone()) return gathered;
  for (const TensorEntry& entry : list_state(state).tensors) {
    if (!is_part(entry.tensor, entry.slice)) continue;
    if (entry.slice.flat != nullptr) {
      const at::Tensor whole = collect_shares(entry.tensor, *entry.slice.flat, comm);
      gathered.parts_.push_back({entry.name, entry.tensor, whole, entry.slice});
      continue;
    }
    require(entry.slice.offset == comm.rank() * entry.tensor.size(0) &&
                entry.slice.global_rows == comm.ranks() * entry.tensor.size(0),
            ExitCode::unexpected, "rank ", comm.rank(), " of ", comm.ranks(), " holds ", entry.tensor.size(0),
            " rows from ", entry.slice.offset, " of the ", entry.slice.global_rows, " of '", entry.name, "'");
    const at::Tensor whole = at::empty(whole_shape(entry.tensor, entry.slice), entry.tensor.options());
    comm.all_gather(whole.view(-1).view(at::kByte), as_bytes_of(entry.tensor));
    gathered.parts_.push_back({entry.name, entry.tensor, whole, entry.slice});
  }
  return gathered;
}

GatheredState GatheredState::room_for(Stateful& state) {
  GatheredState gathered(state);
  for (const TensorEntry& entry : list_state(state).tensors) {
    if (!is_part(entry.tensor, entry.slice)) continue;
    const auto host = entry.tensor.options().device(at::kCPU);
    const at::Tensor whole = entry.slice.flat != nullptr ? at::zeros({entry.slice.flat->size}, host)
                                                         : at::empty(whole_shape(entry.tensor, entry.slice), host);
    gathered.parts_.push_back({entry.name, entry.tensor, whole, entry.slice});
  }
  return gathered;
}

void GatheredState::hand_out() {
  for (const Part& part : parts_) {
    if (part.slice.flat != nullptr) {
      hand_out_share(part.part, part.whole, *part.slice.flat);
    } else {
      part.part.copy_(part.whole.narrow(0, part.slice.offset, part.part.size(0)));
    }
  }
}

void GatheredState::visit_state(StateVisitor& visitor) {
  // Passes all entries on, those in parts as a whole.
  class Whole : public StateVisitor {
   public:
    Whole(StateVisitor& inner, std::vector<Part>& parts) : inner_(inner), parts_(parts) {}
    void tensor(const std::string& name, at::Tensor& tensor, StateRole role, StateSlice slice) override {
      const auto found =
          std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) { return part.name == name; });
      if (found == parts_.end()) {
        inner_.tensor(name, tensor, role, slice);
      } else if (slice.flat != nullptr) {
        require(found->whole.defined(), ExitCode::unexpected, "rank 0 alone has all of '", name, "'");
        for (const FlatLayout::Member& member : slice.flat->members) {
          const int64_t size = c10::multiply_integers(member.sizes.begin(), member.sizes.end());
          at::Tensor part = found->whole.narrow(0, member.offset, size).view(member.sizes);
          inner_.tensor(member_name(name, member.name), part, role, {});
        }
      } else {
        inner_.tensor(name, found->whole, role, {0, found->slice.global_rows});
      }
    }
    void integer(const std::string& name, int64_t& value) override { inner_.integer(name, value); }
    void real(const std::string& name, double& value) override { inner_.real(name, value); }

   private:
    StateVisitor& inner_;
    std::vector<Part>& parts_;
  };
  Whole whole(visitor, parts_);
  state_.visit_state(whole);
}

void check_replicas(Stateful& state, Comm& comm) {
  if (comm.alone()) return;
  const std::vector<std::string> all = comm.all_gather_text(digests(state));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    fail(ExitCode::rank_failed, "rank ", rank, " has another state than rank 0, first in '",
         first_difference(all[0], all[rank]),
         "': its memory, its GPU or its build may be at fault; start again without that machine");
  }
}

}  // namespace hrm::parallel
