#include "commands/data/document_pieces.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"

namespace hrm::data::internal {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), is_space);
}

// The line break before the first blank line from `at` on, and where text continues behind it.
std::pair<uint64_t, uint64_t> blank_line(std::string_view text, uint64_t at) {
  for (size_t line = text.find('\n', at); line != std::string_view::npos; line = text.find('\n', line + 1)) {
    size_t next = line + 1;
    while (next < text.size() && is_space(text[next]) && text[next] != '\n') ++next;
    if (next < text.size() && text[next] != '\n') continue;
    size_t behind = next;
    while (behind < text.size()) {
      const size_t end = std::min(text.find('\n', behind), text.size());
      if (!is_blank(text.substr(behind, end - behind))) break;
      behind = std::min(end + 1, text.size());
    }
    return {line, behind};
  }
  return {text.size(), text.size()};
}

// Length of a piece of at most `most` bytes.
size_t piece_length(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  for (size_t cut = most; cut > most / 2; --cut) {
    if (text[cut - 1] == '\n' && !is_space(text[cut])) return cut;
  }
  size_t cut = most;
  while (cut > 1 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return cut;
}

}  // namespace

DocumentPieces::DocumentPieces(const std::vector<InputFile>& files, DocumentRules rules, uint64_t max_malformed,
                               const PiecePosition& position, uint64_t piece_bytes)
    : files_(files),
      rules_(std::move(rules)),
      max_malformed_(max_malformed),
      piece_bytes_(std::max<uint64_t>(piece_bytes, 8)),
      position_(position) {
  require(position.file <= files.size(), ExitCode::data, "the state of the build names file ", position.file, " of ",
          files.size(), "; delete the folder and begin anew");
  for (size_t i = 0; i < position.file; ++i) before_ += files[i].bytes;
}

void DocumentPieces::find_document_end() {
  const std::string_view text = as_text(file_->bytes());
  end_ = next_ = text.size();
  if (rules_.blank_lines) {
    std::tie(end_, next_) = blank_line(text, position_.offset);
    while (end_ > position_.offset && text[end_ - 1] == '\r') --end_;
  } else if (!rules_.separator.empty()) {
    const size_t found = text.find(rules_.separator, position_.offset);
    if (found != std::string_view::npos) {
      end_ = found;
      next_ = found + rules_.separator.size();
    }
  }
  known_end_ = true;
}

// False for a document that is skipped.
bool DocumentPieces::begin_document() {
  const std::string_view text = as_text(file_->bytes()).substr(position_.offset, end_ - position_.offset);
  if (is_blank(text)) return false;
  if (is_utf8(text)) return true;
  const std::string line =
      cat(file_->path().string(), ": the document at byte ", position_.offset, " is not valid UTF-8");
  require(++position_.malformed <= max_malformed_, ExitCode::data, line,
          "; malformed documents allowed by --max-malformed: ", max_malformed_);
  log::warn("skipped: ", line);
  return false;
}

bool DocumentPieces::next(Piece& piece) {
  while (position_.file < files_.size()) {
    const InputFile& input = files_[position_.file];
    if (!file_) {
      file_.emplace(input.path);
      refuse_foreign_file(file_->bytes(), input.path.string(), ExitCode::data);
      require(file_->bytes().size() == input.bytes && position_.offset <= input.bytes, ExitCode::data,
              input.path.string(), ": was changed while it was read; start again");
      known_end_ = false;
      if (position_.offset == 0) {
        position_.offset = input.bytes - without_byte_order_mark(as_text(file_->bytes())).size();
      }
    }
    if (position_.offset >= input.bytes) {
      file_.reset();
      before_ += input.bytes;
      ++position_.file;
      position_.offset = 0;
      continue;
    }
    if (!known_end_) find_document_end();
    if (!position_.inside && !begin_document()) {
      position_.offset = next_;
      known_end_ = false;
      continue;
    }
    const std::string_view rest = as_text(file_->bytes()).substr(position_.offset, end_ - position_.offset);
    piece.text = rest.substr(0, piece_length(rest, piece_bytes_));
    piece.document = position_.document;
    piece.begins = !position_.inside;
    piece.ends = piece.text.size() == rest.size();
    position_.inside = !piece.ends;
    position_.offset = piece.ends ? next_ : position_.offset + piece.text.size();
    if (piece.ends) {
      ++position_.document;
      known_end_ = false;
    }
    return true;
  }
  return false;
}

}  // namespace hrm::data::internal
