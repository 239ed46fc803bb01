#pragma once
// Which algorithm a library should use for a piece of work. It is found by timing and kept in a file, so the next start
// neither times again nor computes other bits. The cache knows nothing of the library: an algorithm is a text.

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace hrm {

struct TunedChoice {
  std::string algorithm;  // as the library's layer writes it
  double us = 0;          // its time, microseconds; 0: not timed
  double untuned_us = 0;  // that of the algorithm which the library would have taken
  bool operator==(const TunedChoice&) const = default;
};

// The choices for one device model and library version: one JSON file. Not for several threads at a time; several
// processes may share the file.
class TuningCache {
 public:
  using Choices = std::map<std::string, TunedChoice>;

  // Reads the file below `folder` that belongs to the device and the library, e.g. "NVIDIA H200, 9.0, 132 SMs" and
  // "cuBLASLt 130100". A file that cannot be read, or that is of another device or library, is reported in one sentence
  // and replaced at the next add(). An empty folder: nothing is read or written. Without `writes` the file is only
  // read: what add() gets lives in this process alone.
  TuningCache(const std::filesystem::path& folder, std::string device, std::string library, bool writes = true);

  std::optional<TunedChoice> find(const std::string& key) const;

  // Adds a choice and replaces the file at once: a run that is killed and resumed finds the choices it computed with.
  // Where another process has stored one for this key meanwhile, that one holds and is returned, unless it names the
  // algorithm `refused`, which proved unusable. A file that cannot be written is reported once; the choices then live
  // in this process alone.
  TunedChoice add(const std::string& key, const TunedChoice& choice, const std::string& refused = "");

  // Replaces or adds choices in this process alone (those of a checkpoint).
  void adopt(const Choices& choices);

  const Choices& choices() const { return choices_; }
  const std::filesystem::path& file() const { return file_; }  // empty: none

  // Choices as text (JSON) for a checkpoint, and back. from_text: none where the text is no such thing.
  struct Portable {
    std::string device, library;
    Choices choices;
  };
  static std::string to_text(const Portable& portable, bool one_line = true);
  static std::optional<Portable> from_text(const std::string& text);

 private:
  // The file's choices; empty where it is missing or bad. Warns of a bad one.
  Choices read(bool warn) const;

  std::string device_, library_;
  std::filesystem::path file_;
  Choices choices_;
  bool writes_;  // false also once the file could not be written
};

// $XDG_CACHE_HOME/hrm_train, or ~/.cache/hrm_train; empty where neither variable is set to an absolute path.
std::filesystem::path default_tuning_folder();

}  // namespace hrm
