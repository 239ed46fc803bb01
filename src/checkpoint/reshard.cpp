#include "hrm/checkpoint/reshard.h"

#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/model_archive.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/part_file.h"
#include "checkpoint/state_file.h"
#include "checkpoint/write_files.h"
#include "hrm/base/error.h"

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
  const Member configuration{kConfigFile, 0, [&](const Sink& sink) { sink(checkpoint.file(kConfigFile)); }};
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
        members.push_back({kModelFile, 0, [&](const Sink& sink) {
                             std::vector<ArchiveEntry> archive;
                             for (const FileEntry& entry : weights) {
                               archive.push_back({entry.name, entry.read(), /*parameter=*/false});
                             }
                             write_model_archive(archive, sink);
                           }});
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
