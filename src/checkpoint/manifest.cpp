#include "checkpoint/manifest.h"

#include <cstdio>

#include "hrm/base/hash.h"

namespace hrm::checkpoint {
namespace {

template <class... Args>
[[noreturn]] void damaged(const Args&... args) {
  fail(ExitCode::checkpoint, args...);
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
    fail(ExitCode::checkpoint, "the checkpoint ", dir_, " is not usable: ", error.what());
  }
}

// `only`: the file to look at; empty: all.
void VerifiedCheckpoint::verify(const std::string& only) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir_, ignored)) damaged("it is no directory");
  const std::filesystem::path manifest = dir_ / kManifestFile;
  if (!std::filesystem::exists(manifest, ignored)) damaged(kManifestFile, " is missing");
  manifest_ = parse_manifest(as_text(MappedFile(manifest, ExitCode::checkpoint, Links::refuse).bytes()));

  for (const auto& [name, fact] : manifest_.files) {
    if (!only.empty() && name != only) continue;
    if (!std::filesystem::exists(dir_ / name, ignored)) damaged(name, " is missing");
    const MappedFile& file =
        files_.emplace(name, MappedFile(dir_ / name, ExitCode::checkpoint, Links::refuse)).first->second;
    if (file.bytes().size() != fact.bytes) {
      damaged(name, " has ", file.bytes().size(), " bytes instead of ", fact.bytes);
    }
    if (digest_hex(file.bytes()) != fact.digest) damaged(name, " is damaged: its digest does not fit");
  }
  for (const char* name : {kModelFile, kStateFile, kConfigFile}) {
    const bool wanted = manifest_.kind == CheckpointKind::full || name != std::string_view(kStateFile);
    if (wanted && manifest_.files.count(name) == 0) damaged(kManifestFile, " does not list ", name);
  }
  const int64_t step = step_of_name(dir_.filename().string());
  if (step >= 0 && step != manifest_.step) damaged("its files belong to step ", manifest_.step);
}

CheckpointMeta VerifiedCheckpoint::meta() const {
  return {manifest_.step, std::string(as_text(file(kConfigFile))), manifest_.info, manifest_.kind};
}

}  // namespace hrm::checkpoint
