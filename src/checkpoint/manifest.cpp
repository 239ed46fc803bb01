#include "checkpoint/manifest.h"

#include <cstdio>

#include "hrm/base/hash.h"

namespace hrm::checkpoint {
namespace {

template <class... Args>
[[noreturn]] void damaged(const Args&... args) {
  fail(ExitCode::checkpoint, args...);
}

// At most `most` bytes of a file of the directory; the operating system's refusal is an Error(environment).
std::string read_plain(const std::filesystem::path& file, uint64_t most) {
  std::error_code error;
  const std::string name = file.filename().string();
  const std::filesystem::file_status status = std::filesystem::symlink_status(file, error);
  if (!std::filesystem::exists(status)) damaged(name, " is missing");
  if (std::filesystem::is_symlink(status)) damaged(name, " is a symbolic link");
  if (!std::filesystem::is_regular_file(status)) damaged(name, " is not a regular file");
  const auto size = std::filesystem::file_size(file, error);
  if (!error && size > most) damaged(name, " has ", size, " bytes instead of ", most);
  return read_text(file, ExitCode::environment);
}

}  // namespace

std::string step_name(int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step-%09lld", static_cast<long long>(step));
  return text;
}

int64_t step_of_name(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (name.size() < prefix.size() + 9 || name.size() > prefix.size() + 18 || name.rfind(prefix, 0) != 0) return -1;
  int64_t step = 0;
  for (const char c : name.substr(prefix.size())) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  return step;
}

VerifiedCheckpoint::VerifiedCheckpoint(const std::filesystem::path& dir) : VerifiedCheckpoint(dir, "") {}

VerifiedCheckpoint::VerifiedCheckpoint(const std::filesystem::path& dir, const std::string& only) : dir_(dir) {
  try {
    verify(only);
  } catch (const Error& error) {
    const std::string sentence = cat("the checkpoint ", dir_, " is not usable: ", error.what());
    if (error.code() == ExitCode::environment) throw UnreadableCheckpoint(ExitCode::checkpoint, sentence);
    throw Error(ExitCode::checkpoint, sentence);
  }
}

// `only`: the file to look at; empty: all.
void VerifiedCheckpoint::verify(const std::string& only) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir_, ignored)) damaged("it is not a directory");
  constexpr uint64_t kManifestBytes = 4 << 20;
  manifest_ = parse_manifest(read_plain(dir_ / kManifestFile, kManifestBytes));
  for (const auto& [name, fact] : manifest_.files) {
    if (!only.empty() && name != only) continue;
    const std::string& file = files_.emplace(name, read_plain(dir_ / name, fact.bytes)).first->second;
    if (file.size() != fact.bytes) damaged(name, " has ", file.size(), " bytes instead of ", fact.bytes);
    if (digest_hex(as_bytes(file)) != fact.digest) damaged(name, " is damaged: its digest does not fit");
  }
  for (const char* name : {kModelFile, kStateFile, kConfigFile}) {
    const bool wanted = manifest_.kind == CheckpointKind::full || name != std::string_view(kStateFile);
    if (wanted && manifest_.files.count(name) == 0) damaged(kManifestFile, " does not list ", name);
  }
  const int64_t step = step_of_name(dir_.filename().string());
  if (step >= 0 && step != manifest_.step) damaged("its files belong to step ", manifest_.step);
}

CheckpointMeta VerifiedCheckpoint::meta() const {
  return {manifest_.step, files_.at(kConfigFile), manifest_.info, manifest_.kind};
}

}  // namespace hrm::checkpoint
