#pragma once
// Goes through the documents of text files, in pieces that a tokenizer can take. A byte-order mark at the beginning of
// a file is skipped.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands/data/language_build.h"
#include "hrm/base/file.h"

namespace hrm::data::internal {

struct DocumentRules {
  bool blank_lines = false;    // a document ends at a blank line
  std::string separator = {};  // or at this text; with neither at the end of its file
};

// What of a document is to be encoded at once. Large documents are cut where a line begins with something else than
// white space, which is where tokenizers' own patterns cut; otherwise between two characters.
struct Piece {
  std::string_view text;
  int64_t document = 0;  // counted over all files
  bool begins = false;   // the document
  bool ends = false;
};

// Where a DocumentPieces stands: all that a build has to keep.
struct PiecePosition {
  size_t file = 0;
  uint64_t offset = 0;
  int64_t document = 0;  // the next one, or the one that is under way
  bool inside = false;   // pieces of the document were given already
  uint64_t malformed = 0;
};

class DocumentPieces {
 public:
  // Starts at `position`. More than max_malformed documents that are not UTF-8 are an Error(data) "file: reason".
  DocumentPieces(const std::vector<InputFile>& files, DocumentRules rules, uint64_t max_malformed,
                 const PiecePosition& position, uint64_t piece_bytes = uint64_t{1} << 20);
  // The next piece, a view until the next call; false at the end.
  bool next(Piece& piece);
  const PiecePosition& position() const { return position_; }
  // Bytes of all files before the position.
  uint64_t done() const { return before_ + position_.offset; }

 private:
  void find_document_end();
  bool begin_document();

  const std::vector<InputFile>& files_;
  DocumentRules rules_;
  uint64_t max_malformed_, piece_bytes_;
  PiecePosition position_;
  std::optional<MappedFile> file_;
  uint64_t before_ = 0;
  bool known_end_ = false;
  uint64_t end_ = 0, next_ = 0;  // of the document, and where the next one begins
};

}  // namespace hrm::data::internal
