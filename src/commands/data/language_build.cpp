#include "commands/data/language_build.h"

#include <fnmatch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data::internal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kStateFile = "building.json";
constexpr uint64_t kStateBytes = uint64_t{64} << 20;

bool wanted(const std::string& name, const std::vector<std::string>& patterns) {
  if (name.starts_with('.')) return false;
  return patterns.empty() || std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

// Sorted by name at each level, so that the order does not depend on the file system.
void walk(const fs::path& folder, const std::vector<std::string>& patterns, std::vector<fs::path>& files) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) entries.push_back(*at);
  require(!error, ExitCode::data, "'", folder.string(), "' cannot be read: ", error.message());
  std::sort(entries.begin(), entries.end());
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory(error)) {
      if (!name.starts_with('.') && !entry.is_symlink(error)) walk(entry.path(), patterns, files);
    } else if (entry.is_regular_file(error) && wanted(name, patterns)) {
      files.push_back(entry.path());
    }
  }
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<InputFile> input_files(const LanguageBuild& build, const char* command) {
  require(!build.inputs.empty(), ExitCode::usage, "data ", command, ": give files or folders to read");
  require(!build.out.empty(), ExitCode::usage, "data ", command, ": give the folder to write with --out");
  require(build.validation >= 0 && build.validation <= 0.5, ExitCode::usage, "--validation ", build.validation,
          " is not within 0 to 0.5");
  std::vector<fs::path> paths;
  for (const std::string& input : build.inputs) {
    std::error_code error;
    require(fs::exists(input, error), ExitCode::data, "'", printable(input), "' does not exist");
    if (fs::is_directory(input, error)) {
      walk(input, build.patterns, paths);
    } else {
      paths.emplace_back(input);
    }
  }
  require(!paths.empty(), ExitCode::data, "'", printable(build.inputs[0]),
          "' holds no file to read; see --pattern (hidden files are left out)");
  std::vector<InputFile> files;
  for (const fs::path& path : paths) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    require(!error, ExitCode::data, "'", path.string(), "' cannot be read: ", error.message());
    files.push_back({path, bytes});
  }
  return files;
}

TextEncoder encoder_of(const LanguageBuild& build, const char* command) {
  TextEncoder encoder;
  if (build.tokenizer == kByteTokenizer) {
    require(build.bos.empty() && build.eos.empty(), ExitCode::usage, "data ", command,
            ": --bos and --eos name special tokens of a tokenizer's file; bytes have their own");
    encoder = byte_encoder();
  } else {
    encoder = build.open_tokenizer(build.tokenizer, build.bos, build.eos);
  }
  require(encoder.meta.eos_id >= 0, ExitCode::usage, "data ", command,
          ": every document ends with an end-of-text token; name the tokenizer's with --eos");
  return encoder;
}

ValidationDraw::ValidationDraw(double share, uint64_t seed, int64_t documents) : seed_(seed) {
  if (share <= 0) return;
  every_ = std::max<int64_t>(2, std::llround(1 / share));
  if (documents > 0) every_ = std::min(every_, documents);
}

bool ValidationDraw::operator()(int64_t number) const {
  if (every_ == 0) return false;
  CounterRng rng(seed_, Stream::subset, static_cast<uint64_t>(number / every_));
  return number % every_ == rng.below(static_cast<uint32_t>(every_));
}

BuildState::BuildState(const LanguageBuild& build, const std::vector<InputFile>& files, const std::string& options)
    : path_(fs::path(build.out) / kStateFile), saved_(std::make_unique<json>()) {
  Hasher hasher;
  hasher.update(cat(options, "\n", build.tokenizer, "\n", build.bos, "\n", build.eos, "\n", build.validation, "\n",
                    build.seed, "\n"));
  for (const InputFile& file : files) {
    std::error_code error;
    const auto changed = fs::last_write_time(file.path, error).time_since_epoch().count();
    hasher.update(cat(file.path.string(), " ", file.bytes, " ", changed, "\n"));
  }
  digest_ = hasher.hex();
  make_directories(build.out);
  const fs::path meta = fs::path(build.out) / kLanguageMetaFile;
  const auto digest_in = [&](const json& value) {
    return value.is_object() && value.contains("build") && value["build"].is_string()
               ? value["build"].get<std::string>()
               : "";
  };
  std::error_code ignored;
  if (fs::exists(meta, ignored)) {
    const json value = parse_json(read_text(meta, ExitCode::data, kStateBytes), meta.string(), ExitCode::data,
                                  {.bytes = kStateBytes, .depth = 8});
    finished_ = digest_in(value) == digest_;
    require(
        finished_, ExitCode::usage, "'", printable(build.out),
        "' holds a data set that was made from other files or with other options; delete it or choose another --out");
    return;
  }
  if (!fs::exists(path_, ignored)) return;
  *saved_ = parse_json(read_text(path_, ExitCode::data, kStateBytes), path_.string(), ExitCode::data,
                       {.bytes = kStateBytes, .depth = 8});
  require(digest_in(*saved_) == digest_, ExitCode::usage, "'", printable(build.out),
          "' holds the beginning of a data set from other files or with other options; delete it or choose another "
          "--out");
}

BuildState::~BuildState() = default;

const json& BuildState::saved() const {
  return *saved_;
}

void BuildState::save(const json& state) {
  json with = state;
  with["build"] = digest_;
  write_text_atomic(path_, with.dump(1) + "\n");
}

std::string BuildState::meta_member() const {
  return "  \"build\": \"" + digest_ + "\"";
}

void BuildState::remove() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void place_tokenizer(TextEncoder& encoder, const fs::path& folder) {
  if (encoder.file.empty()) return;
  const std::string text = read_tokenizer(encoder.file).text;
  std::error_code ignored;
  const bool folder_given = fs::is_directory(encoder.file, ignored);
  const std::string name = folder_given ? "tokenizer.json" : encoder.file.filename().string();
  encoder.meta.tokenizer_file = is_plain_file_name(name) ? name : "tokenizer.json";
  encoder.meta.tokenizer_digest = digest_hex(as_bytes(text));
  write_text_atomic(folder / encoder.meta.tokenizer_file, text);
}

void check_ids(const std::vector<int32_t>& ids, const LanguageMeta& meta) {
  for (const int32_t id : ids) {
    require(id >= 0 && id < meta.vocab_size, ExitCode::data, "the tokenizer gave id ", id,
            ", which is not below its vocabulary's ", meta.vocab_size);
  }
}

BuildProgress::BuildProgress(size_t files, uint64_t bytes, uint64_t done)
    : files_(files), bytes_(bytes), start_(done), begin_s_(now_s()), shown_s_(begin_s_) {}

void BuildProgress::show(size_t file, uint64_t done, uint64_t tokens) {
  const double now = now_s();
  if (now - shown_s_ < 0.5) return;
  shown_s_ = now;
  const double rate = static_cast<double>(done - start_) / (now - begin_s_);
  char text[96];
  std::snprintf(text, sizeof text, "%.1f MB/s | %.2f M tokens", rate / 1e6, static_cast<double>(tokens) / 1e6);
  const double rest = rate > 0 ? static_cast<double>(bytes_ - std::min(done, bytes_)) / rate : -1;
  log::progress(cat("file ", file + 1, "/", files_, " | ", text, " | eta ", human_seconds(rest)));
}

double BuildProgress::finish(uint64_t done) {
  if (shown_s_ > begin_s_) log::progress_done();
  return static_cast<double>(done - start_) / 1e6 / std::max(1e-9, now_s() - begin_s_);
}

}  // namespace hrm::data::internal
