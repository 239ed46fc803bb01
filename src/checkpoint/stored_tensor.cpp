#include "checkpoint/stored_tensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "hrm/base/text.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

std::vector<int64_t> whole_sizes(const PartTensor& tensor) {
  return tensor.part.split ? tensor.part.sizes : tensor.place.shape;
}

}  // namespace

StoredTensor::StoredTensor(const std::string& name, std::shared_ptr<PartFile> file, const PartTensor& tensor)
    : type_(scalar_type_of(tensor.place.dtype)), sizes_(whole_sizes(tensor)) {
  add(name, std::move(file), tensor);
}

void StoredTensor::add(const std::string& name, std::shared_ptr<PartFile> file, const PartTensor& tensor) {
  require(scalar_type_of(tensor.place.dtype) == type_ && whole_sizes(tensor) == sizes_, ExitCode::checkpoint, "'",
          printable(name), "' in ", file->name(), " is a part of another tensor than in ",
          pieces_.empty() ? file->name() : pieces_.front().file->name());
  pieces_.push_back({std::move(file), tensor.place.begin, tensor.place.shape, tensor.part});
}

std::vector<StateRun> StoredTensor::Piece::runs() const {
  return runs_of(part, shape);
}

void StoredTensor::complete(const std::string& name) const {
  struct Held {
    StateRun run;
    const Piece* piece;
  };
  std::vector<Held> all;
  for (const Piece& piece : pieces_) {
    try {
      for (const StateRun& run : piece.runs()) all.push_back({run, &piece});
    } catch (const Error& error) {
      fail(ExitCode::checkpoint, piece.file->name(), ": '", printable(name), "' is malformed: ", error.what());
    }
  }
  std::sort(all.begin(), all.end(), [](const Held& a, const Held& b) { return a.run.there < b.run.there; });
  int64_t end = 0;
  const Piece* last = nullptr;
  for (const Held& held : all) {
    require(held.run.there >= end, ExitCode::checkpoint, "'", printable(name),
            "' is there twice: ", held.piece->file->name(), " and ", last == nullptr ? "" : last->file->name(),
            " hold the same elements");
    require(held.run.there == end, ExitCode::checkpoint, "no part holds the elements ", end, " to ", held.run.there - 1,
            " of '", printable(name), "', which lie before those in ", held.piece->file->name());
    end += held.run.size;
    last = held.piece;
  }
  require(end == count_of(sizes_), ExitCode::checkpoint, "no part holds the elements from ", end, " on of '",
          printable(name), "'", last == nullptr ? "" : cat(", which lie behind those in ", last->file->name()));
}

template <class Visit>
void StoredTensor::intersect(const Piece& piece, const std::vector<StateRun>& wanted, const Visit& visit) const {
  const auto element = static_cast<int64_t>(at::elementSize(type_));
  auto want = wanted.begin();
  for (const StateRun& run : piece.runs()) {
    while (want != wanted.end() && want->there + want->size <= run.there) ++want;
    for (auto at = want; at != wanted.end() && at->there < run.there + run.size; ++at) {
      const int64_t first = std::max(at->there, run.there), last = std::min(at->there + at->size, run.there + run.size);
      if (first >= last) continue;
      visit(piece.begin + static_cast<uint64_t>((run.here + first - run.there) * element),
            (at->here + first - at->there) * element, (last - first) * element);
    }
  }
}

void StoredTensor::verify(const StatePart& part, at::IntArrayRef here) const {
  const std::vector<StateRun> wanted = runs_of(part, here);
  for (const Piece& piece : pieces_) {
    bool needed = false;
    intersect(piece, wanted, [&](uint64_t, int64_t, int64_t) { needed = true; });
    if (needed) piece.file->verify();
  }
}

at::Tensor StoredTensor::read(const StatePart& part, at::IntArrayRef here) const {
  at::Tensor out = at::empty(here, at::TensorOptions().dtype(type_));
  auto* bytes = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::vector<StateRun> wanted = runs_of(part, here);
  for (const Piece& piece : pieces_) {
    intersect(piece, wanted, [&](uint64_t from, int64_t to, int64_t count) {
      piece.file->read(from, {bytes + to, static_cast<size_t>(count)});
    });
  }
  return out;
}

std::map<std::string, StoredTensor> stored_tensors(const std::vector<std::shared_ptr<PartFile>>& files,
                                                   const std::string& prefix) {
  std::map<std::string, StoredTensor> tensors;
  for (const std::shared_ptr<PartFile>& file : files) {
    for (const PartTensor& tensor : file->tensors()) {
      const std::string& name = tensor.place.name;
      if (!name.starts_with(prefix)) continue;
      const auto found = tensors.find(name);
      if (found == tensors.end()) {
        tensors.emplace(name, StoredTensor(name, file, tensor));
      } else {
        found->second.add(name, file, tensor);
      }
    }
  }
  for (const auto& [name, tensor] : tensors) tensor.complete(name);
  return tensors;
}

}  // namespace hrm::checkpoint
