#include "hrm/formats/manifest.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view kFormatName = "hrm-checkpoint";
constexpr std::string_view kDigestLine = "  \"digest\": \"";
// The tuned algorithms of a run are the longest fact, some ten kilobytes.
constexpr JsonLimits kLimits{.bytes = size_t{4} << 20, .depth = 3};
constexpr size_t kMostEntries = 4096;
constexpr size_t kDigestDigits = 32;

template <class... Args>
[[noreturn]] void damaged(const Args&... args) {
  fail(ExitCode::checkpoint, args...);
}

const char* kind_name(CheckpointKind kind) {
  return kind == CheckpointKind::full ? "full" : "weights";
}

CheckpointKind kind_of_name(const std::string& name) {
  for (const CheckpointKind kind : {CheckpointKind::full, CheckpointKind::weights}) {
    if (name == kind_name(kind)) return kind;
  }
  damaged("it is of the unknown kind '", printable_start(name), "'");
}

// The end of the file that belongs to a body with this digest.
std::string digest_tail(const std::string& digest) {
  return cat(kDigestLine, digest, "\"\n}\n");
}

bool is_digest(const std::string& text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kDigestDigits && std::all_of(text.begin(), text.end(), is_hex);
}

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) damaged(kManifestFile, " is malformed: it has no '", key, "'");
  return *found;
}

// A number of bytes or steps. The library itself would turn -1, 1.5 and true into one.
int64_t whole_member(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    damaged(kManifestFile, " is malformed: '", key, "' is not a whole number of zero or more");
  }
  return value.get<int64_t>();
}

const std::string& text_member(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_string()) damaged(kManifestFile, " is malformed: '", key, "' is not a text");
  return value.get_ref<const std::string&>();
}

const json& object_member(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_object()) damaged(kManifestFile, " is malformed: '", key, "' is not an object");
  if (value.size() > kMostEntries) damaged(kManifestFile, " has more than ", kMostEntries, " entries in '", key, "'");
  return value;
}

FileFact read_fact(const std::string& name, const json& fact) {
  if (name.find('/') != std::string::npos || name.starts_with('.')) {
    damaged(kManifestFile, " lists a file outside the directory: '", printable_start(name), "'");
  }
  if (!is_plain_file_name(name)) {
    damaged(kManifestFile, " lists a file of a name that no checkpoint has: '", printable_start(name), "'");
  }
  if (!fact.is_object()) damaged(kManifestFile, " is malformed: the entry of ", name, " is not an object");
  FileFact result{static_cast<uint64_t>(whole_member(fact, "bytes")), text_member(fact, "xxh3_128")};
  if (!is_digest(result.digest)) damaged(kManifestFile, " is malformed: the digest of ", name, " is not 32 hex digits");
  return result;
}

}  // namespace

std::string part_file_name(std::string_view what, int64_t part, int64_t parts) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "-%05lld-of-%05lld.safetensors", static_cast<long long>(part + 1),
                static_cast<long long>(parts));
  return cat(what, numbers);
}

std::string manifest_text(const Manifest& manifest, InfoValues values) {
  const auto check = [](bool good, const auto&... what) {
    require(good, ExitCode::unexpected, "a checkpoint's manifest cannot hold ", what...);
  };
  check(manifest.step >= 0, "the step ", manifest.step);
  check(manifest.parts >= 1 && manifest.parts <= kMostParts, manifest.parts, " parts");
  check(manifest.info.size() <= kMostEntries && manifest.files.size() <= kMostEntries, "so many entries");
  nlohmann::ordered_json json;
  json["format"] = kFormatName;
  json["version"] = manifest.parts > 1 ? kPartsVersion : kFormatVersion;
  json["kind"] = kind_name(manifest.kind);
  json["step"] = manifest.step;
  if (manifest.parts > 1) json["parts"] = manifest.parts;
  json["info"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : manifest.info) {
    check(printable(key) == key, "a fact called '", printable_start(key), "'");
    json["info"][key] = values == InfoValues::read ? value : printable(value);
  }
  json["files"] = nlohmann::ordered_json::object();
  for (const auto& [name, fact] : manifest.files) {
    check(is_plain_file_name(name), "a file called '", printable_start(name), "'");
    check(is_digest(fact.digest), "the digest '", printable_start(fact.digest), "' of ", name);
    check(fact.bytes <= static_cast<uint64_t>(INT64_MAX), "a file of ", fact.bytes, " bytes");
    json["files"][name] = {{"bytes", fact.bytes}, {"xxh3_128", fact.digest}};
  }
  std::string body = json.dump(2);
  body.resize(body.size() - 2);  // "\n}"
  body += ",\n";
  body += digest_tail(digest_hex(as_bytes(body)));
  check(body.size() <= kLimits.bytes, human_bytes(body.size()), " of text");
  return body;
}

Manifest parse_manifest(std::string_view text) {
  // Before the search for the digest and the digest itself, which read all of it.
  if (text.size() > kLimits.bytes) {
    damaged(kManifestFile, " is damaged: it has ", human_bytes(text.size()), ", at most ", human_bytes(kLimits.bytes),
            " are read");
  }
  const size_t at = text.rfind(kDigestLine);
  if (at == std::string_view::npos) damaged(kManifestFile, " is damaged: it has no digest");
  const std::string_view body = text.substr(0, at);
  if (text.substr(at) != digest_tail(digest_hex(as_bytes(body)))) {
    damaged(kManifestFile, " is damaged: its digest does not fit");
  }
  const json root = parse_json(text, kManifestFile, ExitCode::checkpoint, kLimits);
  if (!root.is_object()) damaged(kManifestFile, " is malformed: it is not a JSON object");
  if (text_member(root, "format") != kFormatName) damaged(kManifestFile, " is not a checkpoint manifest");
  const int64_t version = whole_member(root, "version");
  if (version != kFormatVersion && version != kPartsVersion) {
    damaged("it has format version ", version, ", this program reads versions ", kFormatVersion, " and ",
            kPartsVersion);
  }
  Manifest manifest;
  if (version == kPartsVersion) manifest.parts = whole_member(root, "parts");
  if (version == kPartsVersion && (manifest.parts < 2 || manifest.parts > kMostParts)) {
    damaged(kManifestFile, " is malformed: 'parts' is ", manifest.parts, ", not 2 to ", kMostParts);
  }
  manifest.kind = kind_of_name(text_member(root, "kind"));
  manifest.step = whole_member(root, "step");
  for (const auto& [key, value] : object_member(root, "info").items()) {
    if (!value.is_string()) damaged(kManifestFile, " is malformed: '", printable_start(key), "' is not a text");
    manifest.info[key] = value.get<std::string>();
  }
  for (const auto& [name, fact] : object_member(root, "files").items()) manifest.files[name] = read_fact(name, fact);
  return manifest;
}

}  // namespace hrm::checkpoint
