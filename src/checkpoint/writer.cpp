// Writing checkpoints: temporary directory, fsync, one rename.

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/entry_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/model_archive.h"
#include "checkpoint/state_file.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/checkpoint/checkpoint.h"

namespace hrm::checkpoint {
namespace fs = std::filesystem;
namespace {

// Names that start so are no checkpoints: unfinished ones, and old ones on their way out.
constexpr const char* kTemporary = ".tmp-";

void rename_directory(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    fail(ExitCode::environment, "could not rename ", from, " to ", to, ": ", std::strerror(errno));
  }
}

// Makes `temporary` the checkpoint `final`. What stood there before is under the temporary name afterwards.
void commit(const fs::path& temporary, const fs::path& final) {
  std::error_code ignored;
  if (!fs::exists(final, ignored)) {
    rename_directory(temporary, final);
  } else if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) != 0) {
    // File systems without the exchange (NFS): for one moment this step has no checkpoint under its name.
    const fs::path aside = temporary.string() + "-replaced";
    rename_directory(final, aside);
    rename_directory(temporary, final);
    rename_directory(aside, temporary);
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

// Deletes all but the newest `keep`. A directory loses its name first, so that a half deleted one is never visible.
void prune(const fs::path& run_dir, const fs::path& newest, int64_t keep) {
  int64_t kept = 1;
  for (const fs::path& dir : list_checkpoints(run_dir)) {
    if (dir == newest || kept++ < keep) continue;
    std::error_code error;
    const fs::path away = dir.parent_path() / cat(kTemporary, "delete-", dir.filename().string());
    fs::rename(dir, away, error);
    if (!error) fs::remove_all(away, error);
    if (error) log::warn("the old checkpoint ", dir, " could not be deleted: ", error.message());
  }
}

using Files = std::map<std::string, std::span<const std::byte>>;

fs::path write_checkpoint(const fs::path& run_dir, const Files& files, const CheckpointMeta& meta, CheckpointKind kind,
                          int64_t keep) {
  require(keep >= 1, ExitCode::unexpected, "at least one checkpoint must be kept");
  const fs::path checkpoints = run_dir / "checkpoints";
  const fs::path final = checkpoints / step_name(meta.step);
  const fs::path temporary = checkpoints / cat(kTemporary, final.filename().string(), "-", ::getpid());
  std::error_code ignored;
  try {
    make_directories(checkpoints);
    remove_leftovers(checkpoints);
    std::error_code error;
    if (!fs::create_directory(temporary, error)) {
      fail(ExitCode::environment, "could not create ", temporary, ": ", error ? error.message() : "it exists");
    }
    Manifest manifest{meta.step, kind, meta.info, {}};
    for (const auto& [name, bytes] : files) {
      write_file(temporary / name, bytes);
      manifest.files[name] = {bytes.size(), digest_hex(bytes)};
    }
    write_file(temporary / kManifestFile, as_bytes(manifest_text(manifest)));
    fsync_directory(temporary);
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

}  // namespace

fs::path save_checkpoint(const fs::path& run_dir, Stateful& root, const CheckpointMeta& meta, int64_t keep) {
  const StateListing listing = list_state(root);
  std::vector<ArchiveEntry> entries;
  for (const TensorEntry& entry : listing.tensors) {
    if (!in_model_file(entry.role)) continue;
    const bool parameter = entry.role == StateRole::weight && entry.tensor.requires_grad();
    entries.push_back({archive_name(entry), entry.tensor, parameter});
  }
  const std::string model = build_model_archive(entries);
  const std::vector<std::byte> state = build_state_file(listing);
  return write_checkpoint(
      run_dir, {{kModelFile, as_bytes(model)}, {kStateFile, state}, {kConfigFile, as_bytes(meta.config_json)}}, meta,
      CheckpointKind::full, keep);
}

fs::path save_weights(const fs::path& run_dir, const ModelWeights& weights, const CheckpointMeta& meta, int64_t keep) {
  std::vector<ArchiveEntry> entries;
  for (const auto& [name, tensor] : weights.raw) entries.push_back({name, tensor, tensor.requires_grad()});
  for (const auto& [name, tensor] : weights.ema) entries.push_back({kEmaPrefix + name, tensor, false});
  const std::string model = build_model_archive(entries);
  return write_checkpoint(run_dir, {{kModelFile, as_bytes(model)}, {kConfigFile, as_bytes(meta.config_json)}}, meta,
                          CheckpointKind::weights, keep);
}

}  // namespace hrm::checkpoint
