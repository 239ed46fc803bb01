#pragma once
// The symbols of a dataset that `hrm_train data grid` or `data pairs` wrote: the text of each token, and the shape of
// its puzzles. It is the file vocabulary.json of the dataset's folder. A checkpoint keeps it, so `solve` needs no data.
// No tensors here.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/base/error.h"

namespace hrm::data {

// grid: question and answer of a puzzle have one shape. pairs: they are sequences of different lengths.
enum class PuzzleForm { grid, pairs };

// Tokens are bytes.
inline constexpr size_t kMostPuzzleTokens = 256;
inline constexpr size_t kLongestCellText = 32;  // bytes
inline constexpr int64_t kMostCells = 65535;

struct PuzzleVocabulary {
  PuzzleForm form = PuzzleForm::grid;
  // The text of each token, all different. Special tokens have an empty text: 0 pads a puzzle, and with pairs 1 ends an
  // answer.
  std::vector<std::string> tokens;
  int64_t rows = 0;  // of the padded grid; 1 with pairs
  int64_t cols = 0;  // of the padded grid; with pairs the length of a sequence, with the end of an answer
  // Names of the symmetries that map a puzzle onto a puzzle, of kDihedralNames; empty: none is known.
  std::vector<std::string> symmetries;

  int64_t cells() const { return rows * cols; }
  size_t special_tokens() const { return form == PuzzleForm::grid ? 1 : 2; }
  // The token of a text; nothing for an unknown one.
  std::optional<int32_t> token(std::string_view text) const;
  bool operator==(const PuzzleVocabulary&) const = default;
};

inline constexpr int32_t kEndToken = 1;  // of pairs

// One JSON object in ASCII, without line breaks. parse_vocabulary is the inverse. It throws Error(code) as
// "origin: reason" for a malformed text, and for one that breaks a rule above.
std::string vocabulary_text(const PuzzleVocabulary& vocabulary);
PuzzleVocabulary parse_vocabulary(std::string_view text, const std::string& origin, ExitCode code);

// Reads `folder`/vocabulary.json; nothing if there is no such file. Throws Error(data).
std::optional<PuzzleVocabulary> read_vocabulary(const std::filesystem::path& folder);
// Writes the file, with a line per member. Throws Error(environment).
void write_vocabulary(const std::filesystem::path& folder, const PuzzleVocabulary& vocabulary);

}  // namespace hrm::data
