#include "hrm/checkpoint/reshard.h"

#include <ATen/ATen.h>

#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/model_archive.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/part_file.h"
#include "checkpoint/state_file.h"
#include "checkpoint/write_files.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;

// Equal runs of a tensor's elements. One with fewer elements than there are parts is in the first part.
std::vector<FileEntry> entries_of(const std::map<std::string, StoredTensor>& tensors,
                                  const VerifiedCheckpoint& checkpoint, PartNumber number) {
  std::vector<FileEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    FileEntry entry{name, tensor.type(), tensor.sizes(), {}, {}};
    if (const int64_t all = count_of(tensor.sizes()); number.parts > 1 && all >= number.parts) {
      const int64_t first = all * number.part / number.parts, end = all * (number.part + 1) / number.parts;
      entry.part = run_part(tensor.sizes(), first, end - first);
      entry.sizes = {end - first};
    } else if (number.part > 0) {
      continue;
    }
    entry.read = [&checkpoint, &stored = tensor, part = entry.part, sizes = entry.sizes] {
      at::Tensor read;
      checkpoint.guard([&] { read = stored.read(part, sizes); });
      return read;
    };
    entries.push_back(std::move(entry));
  }
  return entries;
}

// model.pt. Torch's writer wants all tensors at once: they stand in a file of the new folder that is mapped, has no
// name any more, and leaves the memory piece by piece.
void write_mapped_archive(const std::vector<FileEntry>& entries, const fs::path& folder, const Sink& sink) {
  constexpr uint64_t kAlignment = 64;
  const fs::path path = folder / "weights.tmp";
  std::vector<uint64_t> begins;
  {
    FileWriter file(path);
    for (const FileEntry& entry : entries) {
      const std::vector<std::byte> gap((kAlignment - file.size() % kAlignment) % kAlignment);
      file.write(gap);
      begins.push_back(file.size());
      const at::Tensor tensor = entry.read();
      file.write(bytes_of(tensor));
    }
  }
  const MappedFile mapped(path, ExitCode::environment);
  fs::remove(path);
  const std::span<const std::byte> all = mapped.bytes();
  std::vector<ArchiveEntry> archive;
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto options = at::dtype(entries[i].type);
    const bool any = count_of(entries[i].sizes) > 0;
    void* const data = any ? const_cast<std::byte*>(all.data()) + begins[i] : nullptr;  // which is only read
    archive.push_back({entries[i].name,
                       any ? at::from_blob(data, entries[i].sizes, options) : at::empty(entries[i].sizes, options),
                       /*parameter=*/false});
  }
  write_model_archive(archive, [&](std::span<const std::byte> bytes) {
    sink(bytes);
    if (bytes.data() >= all.data() && bytes.data() < all.data() + all.size()) mapped.release(bytes);
  });
}

Member file_member(const std::string& name, std::vector<FileEntry> entries,
                   const std::map<std::string, std::string>& metadata, const std::optional<PartNumber>& number) {
  return {name, 0,
          [=, entries = std::move(entries)](const Sink& sink) { write_part_file(entries, metadata, number, sink); }};
}

}  // namespace

void reshard(const fs::path& dir, int64_t ranks, const fs::path& out) {
  require(ranks >= 1 && ranks <= kMostParts, ExitCode::usage, "a checkpoint is written for 1 to ", kMostParts,
          " ranks, not for ", ranks);
  const VerifiedCheckpoint checkpoint(dir);
  require(checkpoint.manifest().kind == CheckpointKind::full, ExitCode::checkpoint, "the checkpoint ", dir,
          " holds weights alone: they are in one file for any number of ranks");
  StateContent state;
  std::map<std::string, StoredTensor> model;
  checkpoint.guard([&] {
    state = stored_state(checkpoint, /*prefix=*/"");
    model = stored_model(checkpoint);
  });
  const auto scalars =
      scalar_texts({state.integers.begin(), state.integers.end()}, {state.reals.begin(), state.reals.end()});
  const Member configuration{kConfigFile, 0, [&](const Sink& sink) { sink(checkpoint.configuration()); }};
  Manifest manifest = checkpoint.manifest();
  manifest.files.clear();
  manifest.parts = ranks;
  write_folder(out, [&](const fs::path& folder) {
    for (int64_t part = 0; part < ranks; ++part) {
      const PartNumber number{part, ranks};
      std::vector<FileEntry> weights = entries_of(model, checkpoint, number);
      std::vector<FileEntry> entries = entries_of(state.tensors, checkpoint, number);
      std::vector<Member> members;
      if (ranks == 1) {
        members.push_back({kModelFile, 0, [&](const Sink& sink) { write_mapped_archive(weights, folder, sink); }});
        members.push_back(file_member(kStateFile, std::move(entries), scalars, std::nullopt));
      } else {
        members.push_back(file_member(part_file_name(kModelParts, part, ranks), std::move(weights), {}, number));
        const std::map<std::string, std::string> none;
        members.push_back(file_member(part_file_name(kStateParts, part, ranks), std::move(entries),
                                      part == 0 ? scalars : none, number));
      }
      if (part == 0) members.push_back(configuration);
      manifest.files.merge(write_members(folder, members));
    }
    write_manifest(folder, manifest, InfoValues::read);
  });
}

}  // namespace hrm::checkpoint
