#pragma once
// What the builders of language data share: their input files, the split, the state of a build that was stopped.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hrm/commands/language_data.h"

namespace hrm::data::internal {

struct InputFile {
  std::filesystem::path path;
  uint64_t bytes = 0;
};

// The files that the inputs name: files as they are given, those of folders in sorted order, hidden ones left out.
// Throws Error(data) for what is not there or leaves nothing.
std::vector<InputFile> input_files(const LanguageBuild& build, const char* command);

// The encoder of --tokenizer, --bos and --eos. Throws Error(usage) without an EOS, which ends every document.
TextEncoder encoder_of(const LanguageBuild& build, const char* command);

// Which documents are for validation: one of every `every`, drawn by (seed, number). every = 0: none.
class ValidationDraw {
 public:
  // `documents`: how many there are at most where that is known, so that at least one of them is drawn; 0 = not known.
  ValidationDraw(double share, uint64_t seed, int64_t documents);
  bool operator()(int64_t number) const;

 private:
  int64_t every_ = 0;
  uint64_t seed_;
};

// The state file of a build. It belongs to these inputs (names, sizes, times of change) and options alone.
class BuildState {
 public:
  // `options`: all that changes the result. Makes the folder. Throws Error(usage) where it holds another data set, or
  // the beginning of one.
  BuildState(const LanguageBuild& build, const std::vector<InputFile>& files, const std::string& options);

  // A finished data set of the same inputs and options is there.
  bool finished() const { return finished_; }
  // What save() was given last, or null.
  const nlohmann::json& saved() const;
  // Atomically.
  void save(const nlohmann::json& state);
  // To be put into meta.json: "build": "...".
  std::string meta_member() const;
  // After meta.json was written.
  void remove();
  ~BuildState();
  BuildState(const BuildState&) = delete;
  BuildState& operator=(const BuildState&) = delete;

 private:
  std::filesystem::path path_;
  std::string digest_;
  bool finished_ = false;
  std::unique_ptr<nlohmann::json> saved_;
};

// Copies the tokenizer's file beside the data and fills meta.tokenizer_file and tokenizer_digest.
void place_tokenizer(TextEncoder& encoder, const std::filesystem::path& folder);

// ids in 0..vocab_size-1, which a wrong tokenizer file may leave. Throws Error(data).
void check_ids(const std::vector<int32_t>& ids, const LanguageMeta& meta);

// "files 3/17 | 12.3 MB/s | 4.5 M tokens | eta 1 min 02 s" on stderr, at most twice a second.
class BuildProgress {
 public:
  BuildProgress(size_t files, uint64_t bytes, uint64_t done);
  void show(size_t file, uint64_t done, uint64_t tokens);
  // Ends the line; the rate in 1e6 bytes a second.
  double finish(uint64_t done);

 private:
  size_t files_;
  uint64_t bytes_, start_;
  double begin_s_, shown_s_;
};

}  // namespace hrm::data::internal
