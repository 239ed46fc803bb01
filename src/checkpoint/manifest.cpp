#include "checkpoint/manifest.h"

#include <algorithm>
#include <cstdio>

#include "hrm/base/hash.h"

namespace hrm::checkpoint {
namespace {

constexpr const char* kPartSuffix = ".safetensors";

template <class... Args>
[[noreturn]] void damaged(const Args&... args) {
  fail(ExitCode::checkpoint, args...);
}

// Throws unless it is a regular file of the directory.
void check_plain(const std::filesystem::path& file) {
  std::error_code error;
  const std::string name = file.filename().string();
  const std::filesystem::file_status status = std::filesystem::symlink_status(file, error);
  if (!std::filesystem::exists(status)) damaged(name, " is missing");
  if (std::filesystem::is_symlink(status)) damaged(name, " is a symbolic link");
  if (!std::filesystem::is_regular_file(status)) damaged(name, " is not a regular file");
}

// At most `most` bytes of a file of the directory; the operating system's refusal is an Error(environment).
std::string read_plain(const std::filesystem::path& file, uint64_t most) {
  check_plain(file);
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  if (!error && size > most) damaged(file.filename().string(), " has ", size, " bytes instead of ", most);
  return read_text(file, ExitCode::environment);
}

// The file's bytes, once its size and its digest are right.
std::string read_whole(const std::filesystem::path& path, const FileFact& fact) {
  const std::string name = path.filename().string();
  std::string file = read_plain(path, fact.bytes);
  if (file.size() != fact.bytes) damaged(name, " has ", file.size(), " bytes instead of ", fact.bytes);
  if (digest_hex(as_bytes(file)) != fact.digest) damaged(name, " is damaged: its digest does not fit");
  return file;
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

VerifiedCheckpoint::VerifiedCheckpoint(const std::filesystem::path& dir, Check check) : dir_(dir) {
  guard([&] { verify(check); });
}

void VerifiedCheckpoint::guard(const std::function<void()>& work) const {
  try {
    work();
  } catch (const UnreadableCheckpoint&) {
    throw;
  } catch (const Error& error) {
    const std::string sentence = cat("the checkpoint ", dir_, " is not usable: ", error.what());
    if (error.code() == ExitCode::environment) throw UnreadableCheckpoint(ExitCode::checkpoint, sentence);
    throw Error(ExitCode::checkpoint, sentence);
  }
}

void VerifiedCheckpoint::verify(Check check) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir_, ignored)) damaged("it is not a directory");
  constexpr uint64_t kManifestBytes = 4 << 20;
  manifest_ = parse_manifest(read_plain(dir_ / kManifestFile, kManifestBytes));
  const bool parts = manifest_.parts > 1, full = manifest_.kind == CheckpointKind::full;
  if (parts && !full) damaged("it holds weights alone, and those are never in parts");
  const bool state_only = check == Check::state;
  for (const auto& [name, fact] : manifest_.files) {
    const bool is_config = name == kConfigFile, is_model = name.starts_with(kModelParts);
    if (check == Check::meta ? is_config : !state_only || !(is_config || is_model)) check_plain(dir_ / name);
  }
  const auto expect = [&](const std::string& name) {
    if (manifest_.files.count(name) == 0) damaged(kManifestFile, " does not list ", name);
  };
  const bool split_weights = parts && manifest_.files.count(part_file_name(kModelParts, 0, manifest_.parts)) > 0;
  expect(kConfigFile);
  if (!split_weights) expect(kModelFile);
  if (full && !parts) expect(kStateFile);
  if (full && check != Check::meta) open_parts(state_parts_, kStateParts);
  if (check != Check::meta && !state_only) {
    if (split_weights) {
      open_parts(model_parts_, kModelParts);
    } else {
      model_parts_.push_back(PartFile::of_archive(dir_ / kModelFile, manifest_.files.at(kModelFile)));
    }
  }
  for (const auto& [name, fact] : manifest_.files) {
    const bool read_by_parts = name == kModelFile || (name.ends_with(kPartSuffix) && (parts || name == kStateFile));
    if (read_by_parts || state_only || (check == Check::meta && name != kConfigFile)) continue;
    std::string text = read_whole(dir_ / name, fact);
    if (name == kConfigFile) configuration_ = std::move(text);
  }
  if (check == Check::all || !parts) {
    for (const auto& file : model_parts_) file->verify();
    for (const auto& file : state_parts_) file->verify();
  }
  const int64_t step = step_of_name(dir_.filename().string());
  if (step >= 0 && step != manifest_.step) damaged("its files belong to step ", manifest_.step);
}

void VerifiedCheckpoint::open_parts(std::vector<std::shared_ptr<PartFile>>& files, const char* what) {
  for (int64_t part = 0; part < manifest_.parts; ++part) {
    const bool alone = manifest_.parts == 1;
    const std::string name = alone ? kStateFile : part_file_name(what, part, manifest_.parts);
    const auto fact = manifest_.files.find(name);
    if (fact == manifest_.files.end()) damaged(kManifestFile, " does not list ", name);
    const auto number = alone ? std::nullopt : std::optional(PartNumber{part, manifest_.parts});
    files.push_back(std::make_shared<PartFile>(dir_ / name, fact->second, number));
  }
}

CheckpointMeta VerifiedCheckpoint::meta() const {
  return {manifest_.step, configuration_, manifest_.info, manifest_.kind};
}

}  // namespace hrm::checkpoint
