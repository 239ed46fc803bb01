#include "checkpoint/manifest.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "hrm/base/hash.h"
#include "hrm/base/text.h"

namespace hrm::checkpoint {
namespace {

constexpr std::string_view kFormatName = "hrm-checkpoint";
constexpr std::string_view kDigestLine = "  \"digest\": \"";

template <class... Args>
[[noreturn]] void damaged(const Args&... args) {
  fail(ExitCode::checkpoint, args...);
}

const char* kind_name(CheckpointKind kind) {
  return kind == CheckpointKind::full ? "full" : "weights";
}

// The end of the file that belongs to a body with this digest.
std::string digest_tail(const std::string& digest) {
  return cat(kDigestLine, digest, "\"\n}\n");
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormatName;
  json["version"] = kFormatVersion;
  json["kind"] = kind_name(manifest.kind);
  json["step"] = manifest.step;
  json["info"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : manifest.info) json["info"][key] = printable(value);
  for (const auto& [name, fact] : manifest.files) {
    json["files"][name] = {{"bytes", fact.bytes}, {"xxh3_128", fact.digest}};
  }
  std::string body = json.dump(2);
  body.resize(body.size() - 2);  // "\n}"
  body += ",\n";
  return body + digest_tail(digest_hex(as_bytes(body)));
}

Manifest parse_manifest(std::string_view text) {
  const size_t at = text.rfind(kDigestLine);
  if (at == std::string_view::npos) damaged(kManifestFile, " is damaged: it has no digest");
  const std::string_view body = text.substr(0, at);
  if (text.substr(at) != digest_tail(digest_hex(as_bytes(body)))) {
    damaged(kManifestFile, " is damaged: its digest does not fit");
  }
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("format") != kFormatName) damaged(kManifestFile, " is no checkpoint manifest");
    const int64_t version = json.at("version").get<int64_t>();
    if (version != kFormatVersion) {
      damaged("it has format version ", version, ", this program reads version ", kFormatVersion);
    }
    Manifest manifest;
    const std::string kind = json.at("kind").get<std::string>();
    if (kind != "full" && kind != "weights") damaged("it is of the unknown kind '", printable(kind), "'");
    manifest.kind = kind == "full" ? CheckpointKind::full : CheckpointKind::weights;
    manifest.step = json.at("step").get<int64_t>();
    manifest.info = json.at("info").get<std::map<std::string, std::string>>();
    for (const auto& [name, fact] : json.at("files").items()) {
      if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) {
        damaged(kManifestFile, " lists a file outside the directory: '", printable(name), "'");
      }
      manifest.files[name] = {fact.at("bytes").get<uint64_t>(), fact.at("xxh3_128").get<std::string>()};
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    damaged(kManifestFile, " is malformed: ", error.what());
  }
}

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
  manifest_ = parse_manifest(as_text(MappedFile(manifest, ExitCode::checkpoint).bytes()));

  for (const auto& [name, fact] : manifest_.files) {
    if (!only.empty() && name != only) continue;
    if (!std::filesystem::exists(dir_ / name, ignored)) damaged(name, " is missing");
    const MappedFile& file = files_.emplace(name, MappedFile(dir_ / name, ExitCode::checkpoint)).first->second;
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
