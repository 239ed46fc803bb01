// Writing checkpoints: temporary directory, fsync, one rename.

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "checkpoint/entry_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_archive.h"
#include "checkpoint/output_folder.h"
#include "checkpoint/part_file.h"
#include "checkpoint/state_file.h"
#include "checkpoint/write_files.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"

namespace hrm::checkpoint {
namespace fs = std::filesystem;
namespace {

// Names that start so are no checkpoints: unfinished ones, and old ones on their way out.
constexpr const char* kTemporary = ".tmp-";

// Makes `temporary` the checkpoint `final`. What stood there before is under the temporary name afterwards.
void commit(const fs::path& temporary, const fs::path& final) {
  std::error_code ignored;
  if (!fs::exists(final, ignored)) {
    rename_path(temporary, final);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) != 0) {
    // File systems without the exchange (NFS): for one moment this step has no checkpoint under its name.
    const fs::path aside = temporary.string() + "-replaced";
    rename_path(final, aside);
    rename_path(temporary, final);
    rename_path(aside, temporary);
  }
  fsync_directory(final.parent_path());
}

// What earlier processes left when they were killed. Only this process writes here.
void remove_leftovers(const fs::path& checkpoints) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, ignored)) {
    if (entry.path().filename().string().rfind(kTemporary, 0) == 0) fs::remove_all(entry.path(), ignored);
  }
}

// The score of a committed checkpoint; minus infinity where it has none.
double score_of(const fs::path& dir) {
  double score = -std::numeric_limits<double>::infinity();
  try {
    const Manifest manifest = parse_manifest(read_text(dir / kManifestFile, ExitCode::checkpoint));
    const auto found = manifest.info.find(kScore);
    if (found != manifest.info.end()) score = std::strtod(found->second.c_str(), nullptr);
  } catch (const Error&) {
    // A damaged one is nobody's best; who reads it says so.
  }
  return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
}

// The newest of those with the highest score; empty where none has any. `dirs`: newest first.
fs::path best_of(const std::vector<fs::path>& dirs) {
  fs::path best;
  double highest = -std::numeric_limits<double>::infinity();
  for (const fs::path& dir : dirs) {
    if (const double score = score_of(dir); score > highest) {
      highest = score;
      best = dir;
    }
  }
  return best;
}

// The directory loses its name first, so that a half deleted one is never visible.
std::error_code delete_checkpoint(const fs::path& dir) {
  std::error_code error;
  const fs::path away = dir.parent_path() / cat(kTemporary, "delete-", dir.filename().string());
  fs::rename(dir, away, error);
  failpoint::hit(Failpoint::checkpoint_prune);
  if (!error) fs::remove_all(away, error);
  return error;
}

// Deletes those that `keep` does not name.
void prune(const fs::path& run_dir, const fs::path& newest, const Keep& keep) {
  const std::vector<fs::path> dirs = list_checkpoints(run_dir);
  const fs::path best = keep.best ? best_of(dirs) : fs::path();
  int64_t kept = 1;
  for (const fs::path& dir : dirs) {
    if (dir == newest || kept++ < keep.newest || dir == best) continue;
    if (keep.every > 0 && step_of_name(dir.filename().string()) % keep.every == 0) continue;
    const std::error_code error = delete_checkpoint(dir);
    if (error) log::warn("the old checkpoint ", dir, " could not be deleted: ", error.message());
  }
}

// A file of the checkpoint that is being written.
class Output {
 public:
  Output(const fs::path& path, uint64_t reserve) : file_(path, reserve) {}
  void write(std::span<const std::byte> bytes) {
    hasher_.update(bytes);
    if (waiting_.size() + bytes.size() > kAtOnce) flush();
    if (bytes.size() > kAtOnce) {
      file_.write(bytes);
    } else {
      waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
    }
  }
  FileFact finish() {
    flush();
    file_.finish();
    return {file_.size(), hasher_.hex()};
  }

 private:
  static constexpr size_t kAtOnce = 1 << 20;  // archives come in hundreds of small pieces

  void flush() {
    if (!waiting_.empty()) file_.write(waiting_);
    waiting_.clear();
  }

  FileWriter file_;
  std::vector<std::byte> waiting_;
  Hasher hasher_;
};

Member text_member(const char* name, const std::string& text) {
  return {name, text.size(), [&text](const Sink& sink) { sink(as_bytes(text)); }};
}

// All files of a checkpoint, the manifest last, into a folder that nobody reads yet.
void write_whole(const fs::path& folder, const std::vector<Member>& members, const CheckpointMeta& meta,
                 CheckpointKind kind) {
  write_manifest(folder, {meta.step, kind, meta.info, write_members(folder, members)});
}

fs::path write_checkpoint(const fs::path& run_dir, const std::vector<Member>& members, const CheckpointMeta& meta,
                          CheckpointKind kind, const Keep& keep, const std::function<void()>& before_commit = nullptr) {
  require(keep.newest >= 1, ExitCode::unexpected, "at least one checkpoint must be kept");
  failpoint::hit(Failpoint::checkpoint_write);
  const fs::path checkpoints = run_dir / "checkpoints";
  const fs::path final = checkpoints / step_name(meta.step);
  const fs::path temporary = checkpoints / cat(kTemporary, final.filename().string(), "-", ::getpid());
  std::error_code ignored;
  try {
    make_directories(checkpoints);
    remove_leftovers(checkpoints);
    make_directory(temporary);
    write_whole(temporary, members, meta, kind);
    fsync_directory(temporary);
    if (before_commit) before_commit();
    failpoint::hit(Failpoint::checkpoint_commit);
    commit(temporary, final);
  } catch (const Error& error) {
    fs::remove_all(temporary, ignored);
    fail(ExitCode::environment, "the checkpoint of step ", meta.step, " was not saved: ", error.what(),
         "; earlier checkpoints are untouched");
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  fs::remove_all(temporary, ignored);  // the replaced checkpoint, if there was one
  prune(run_dir, final, keep);
  return final;
}

// Room for what torch writes around each tensor: names, a record's header, padding to 64 bytes.
constexpr uint64_t kArchiveBytes = 4096, kBytesPerEntry = 512;

uint64_t archive_bytes(const std::vector<ArchiveEntry>& entries) {
  uint64_t bytes = kArchiveBytes;
  for (const ArchiveEntry& entry : entries) bytes += entry.tensor.nbytes() + kBytesPerEntry;
  return bytes;
}

uint64_t state_bytes(const StateListing& listing) {
  constexpr uint64_t kBytesPerScalar = 128;
  uint64_t bytes = kArchiveBytes + kBytesPerScalar * (listing.integers.size() + listing.reals.size());
  for (const TensorEntry& entry : listing.tensors) {
    bytes += kBytesPerEntry + (in_model_file(entry.role) ? 0 : entry.tensor.nbytes());
  }
  return bytes;
}

std::vector<ArchiveEntry> model_entries(const StateListing& listing) {
  std::vector<ArchiveEntry> entries;
  for (const TensorEntry& entry : listing.tensors) {
    if (!in_model_file(entry.role)) continue;
    const bool parameter = entry.role == StateRole::weight && entry.tensor.requires_grad();
    entries.push_back({archive_name(entry), entry.tensor, parameter});
  }
  return entries;
}

Member model_member(const std::vector<ArchiveEntry>& entries) {
  return {kModelFile, archive_bytes(entries), [&entries](const Sink& sink) { write_model_archive(entries, sink); }};
}

}  // namespace

std::map<std::string, FileFact> write_members(const fs::path& folder, const std::vector<Member>& members) {
  std::map<std::string, FileFact> facts;
  for (const Member& member : members) {
    Output file(folder / member.name, member.bytes);
    member.produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
    facts[member.name] = file.finish();
  }
  return facts;
}

void write_manifest(const fs::path& folder, const Manifest& manifest, InfoValues values) {
  Output file(folder / kManifestFile, 0);
  file.write(as_bytes(manifest_text(manifest, values)));
  file.finish();
}

void delete_after(const fs::path& run_dir, int64_t step) {
  for (const fs::path& dir : list_checkpoints(run_dir)) {
    if (step_of_name(dir.filename().string()) <= step) break;  // newest first
    const std::error_code error = delete_checkpoint(dir);
    require(!error, ExitCode::environment, "the checkpoint ", dir, " could not be deleted: ", error.message());
  }
}

std::optional<double> best_score(const fs::path& run_dir) {
  const fs::path best = best_of(list_checkpoints(run_dir));
  if (best.empty()) return std::nullopt;
  return score_of(best);
}

fs::path save_checkpoint(const fs::path& run_dir, Stateful& root, const CheckpointMeta& meta, const Keep& keep,
                         const std::function<void()>& before_commit) {
  return save_listing(run_dir, list_state(root), meta, keep, before_commit);
}

fs::path save_listing(const fs::path& run_dir, const StateListing& listing, const CheckpointMeta& meta,
                      const Keep& keep, const std::function<void()>& before_commit) {
  const std::vector<ArchiveEntry> entries = model_entries(listing);
  for (const TensorEntry& entry : listing.tensors) {
    require(holds_all(entry.part, entry.tensor.sizes()), ExitCode::unexpected, "only a part of '", entry.name,
            "' is here, and a checkpoint of one part holds whole tensors");
  }
  const Member state{kStateFile, state_bytes(listing), [&](const Sink& sink) {
                       write_part_file(state_entries(listing, {}), scalar_texts(listing.integers, listing.reals),
                                       std::nullopt, sink);
                     }};
  return write_checkpoint(run_dir, {model_member(entries), state, text_member(kConfigFile, meta.config_json)}, meta,
                          CheckpointKind::full, keep, before_commit);
}

fs::path begin_parts(const fs::path& run_dir, int64_t step) {
  const fs::path checkpoints = run_dir / "checkpoints";
  remove_leftovers(checkpoints);
  return checkpoints / cat(kTemporary, step_name(step), "-", ::getpid());
}

std::map<std::string, FileFact> write_part(const fs::path& folder, const StateListing& listing,
                                           const PartLayout& layout, const CheckpointMeta& meta) {
  failpoint::hit(Failpoint::checkpoint_write);
  const PartNumber number{layout.part, layout.parts};
  const std::vector<ArchiveEntry> entries = model_entries(listing);
  std::vector<Member> members;
  if (layout.split_weights) {
    members.push_back({part_file_name(kModelParts, layout.part, layout.parts), archive_bytes(entries),
                       [&](const Sink& sink) { write_part_file(weight_entries(listing, number), {}, number, sink); }});
  } else if (layout.part == 0) {
    members.push_back(model_member(entries));
  }
  members.push_back(
      {part_file_name(kStateParts, layout.part, layout.parts), state_bytes(listing), [&](const Sink& sink) {
         write_part_file(state_entries(listing, number), scalar_texts(listing.integers, listing.reals), number, sink);
       }});
  if (layout.part == 0) members.push_back(text_member(kConfigFile, meta.config_json));
  const auto remove = [&] {
    std::error_code ignored;
    for (const Member& member : members) fs::remove(folder / member.name, ignored);
  };
  remove();  // of an earlier try
  try {
    make_directories(folder);
    std::map<std::string, FileFact> facts = write_members(folder, members);
    fsync_directory(folder);
    return facts;
  } catch (const Error& error) {
    remove();
    fail(ExitCode::environment, "part ", layout.part + 1, " of ", layout.parts, " of the checkpoint of step ",
         meta.step, " was not saved: ", error.what(), "; earlier checkpoints are untouched");
  } catch (...) {
    remove();
    throw;
  }
}

fs::path commit_parts(const fs::path& run_dir, const fs::path& folder, const std::map<std::string, FileFact>& files,
                      int64_t parts, const CheckpointMeta& meta, const Keep& keep,
                      const std::function<void()>& before_commit) {
  require(keep.newest >= 1, ExitCode::unexpected, "at least one checkpoint must be kept");
  const fs::path final = run_dir / "checkpoints" / step_name(meta.step);
  std::error_code ignored;
  try {
    for (const auto& [name, fact] : files) {
      std::error_code error;
      const uint64_t size = fs::file_size(folder / name, error);
      require(!error && size == fact.bytes, ExitCode::environment, "rank 0 does not see ", name, " in ", folder,
              " as another rank wrote it; all ranks must write to one file system");
    }
    fs::remove(folder / kManifestFile, ignored);  // of an earlier try
    write_manifest(folder, {meta.step, CheckpointKind::full, meta.info, files, parts});
    fsync_directory(folder);
    if (before_commit) before_commit();
    failpoint::hit(Failpoint::checkpoint_commit);
    commit(folder, final);
  } catch (const Error& error) {
    fail(ExitCode::environment, "the checkpoint of step ", meta.step, " was not saved: ", error.what(),
         "; earlier checkpoints are untouched");
  }
  fs::remove_all(folder, ignored);  // the replaced checkpoint, if there was one
  prune(run_dir, final, keep);
  return final;
}

fs::path save_weights(const fs::path& run_dir, const ModelWeights& weights, const CheckpointMeta& meta,
                      const Keep& keep) {
  std::vector<ArchiveEntry> entries;
  for (const auto& [name, tensor] : weights.raw) entries.push_back({name, tensor, tensor.requires_grad()});
  for (const auto& [name, tensor] : weights.ema) entries.push_back({kEmaPrefix + name, tensor, false});
  return write_checkpoint(run_dir, {model_member(entries), text_member(kConfigFile, meta.config_json)}, meta,
                          CheckpointKind::weights, keep);
}

void write_weights_folder(const fs::path& folder, const std::vector<std::pair<std::string, at::Tensor>>& weights,
                          at::ScalarType dtype, const CheckpointMeta& meta, const std::vector<fs::path>& files) {
  std::vector<ArchiveEntry> entries;
  for (const auto& [name, tensor] : weights) {
    const bool converted = tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16;
    entries.push_back({name, converted ? tensor.to(dtype) : tensor, /*parameter=*/false});
  }
  std::vector<Member> members{model_member(entries), text_member(kConfigFile, meta.config_json)};
  for (const fs::path& file : files) {
    const auto mapped = std::make_shared<const MappedFile>(file, ExitCode::checkpoint);
    const std::span<const std::byte> bytes = mapped->bytes();
    members.push_back({file.filename().string(), bytes.size(), [mapped](const Sink& sink) { sink(mapped->bytes()); }});
  }
  write_folder(folder, [&](const fs::path& place) { write_whole(place, members, meta, CheckpointKind::weights); });
}

uint64_t checkpoint_bytes(const StateListing& listing) {
  constexpr uint64_t kTexts = 64 << 10;  // config.json and manifest.json
  return archive_bytes(model_entries(listing)) + state_bytes(listing) + kTexts;
}

uint64_t check_volume(const fs::path& run_dir, uint64_t bytes, const Keep& keep) {
  const fs::path checkpoints = run_dir / "checkpoints";
  make_directories(checkpoints);
  remove_leftovers(checkpoints);
  const fs::path trial = checkpoints / cat(kTemporary, "trial-", ::getpid());
  std::error_code ignored;
  try {
    make_directory(trial);
    Output file(trial / "file", kArchiveBytes);
    file.write(as_bytes("can this folder hold checkpoints?\n"));
    file.finish();
    rename_path(trial / "file", trial / "renamed");
    fsync_directory(trial);
    fs::remove_all(trial, ignored);
    fsync_directory(checkpoints);
  } catch (const Error& error) {
    fs::remove_all(trial, ignored);
    fail(ExitCode::environment, "checkpoints cannot be written in '", checkpoints.string(), "': ", error.what(),
         "; choose another run.dir");
  }
  // While one is written the others are still there.
  const auto wanted = static_cast<uint64_t>(std::min<int64_t>(keep.newest + 1, 3));
  const uint64_t there = std::min<uint64_t>(list_checkpoints(run_dir).size(), wanted - 1);
  const uint64_t needed = bytes * (wanted - there), free = free_bytes(checkpoints);
  const uint64_t more = wanted - there;
  require(free >= needed, ExitCode::environment, "'", checkpoints.string(), "' has ", human_bytes(free), " free; ",
          more == 1 ? "another checkpoint" : cat(more, " checkpoints"), " of ", human_bytes(bytes),
          " must fit; make room, choose another run.dir, or keep fewer (train.keep_checkpoints)");
  return free;
}

}  // namespace hrm::checkpoint
