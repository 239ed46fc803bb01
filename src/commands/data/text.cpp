#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>

#include "commands/data/document_pieces.h"
#include "commands/data/language_build.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/commands/language_data.h"
#include "hrm/data/token_dataset.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using internal::DocumentPieces;
using internal::DocumentRules;
using internal::Piece;
using internal::PiecePosition;
using nlohmann::json;

// The shards of a split: those that are written, and the one that is being filled.
class SplitWriter {
 public:
  SplitWriter(fs::path folder, std::string split, bool wide)
      : folder_(std::move(folder)), split_(std::move(split)), wide_(wide) {}

  void begin_document() { documents_.push_back(static_cast<int64_t>(tokens_.size())); }
  void add(const std::vector<int32_t>& ids) { tokens_.insert(tokens_.end(), ids.begin(), ids.end()); }
  void end_document(int64_t eos) { tokens_.push_back(static_cast<uint32_t>(eos)); }
  int64_t waiting() const { return static_cast<int64_t>(tokens_.size()); }

  void flush() {
    if (tokens_.empty()) return;
    char number[16];
    std::snprintf(number, sizeof number, "-%05zu", shards_.size());
    const std::string stem = split_ + number;
    const int64_t count = waiting(), documents = static_cast<int64_t>(documents_.size());
    Hasher hasher;
    if (wide_) {
      write(stem + ".npy", DType::u32, count, std::as_bytes(std::span(tokens_)), hasher);
    } else {
      const std::vector<uint16_t> narrow(tokens_.begin(), tokens_.end());
      write(stem + ".npy", DType::u16, count, std::as_bytes(std::span(narrow)), hasher);
    }
    write(stem + ".documents.npy", DType::i64, documents, std::as_bytes(std::span(documents_)), hasher);
    shards_.push_back({stem + ".npy", count, documents, hasher.hex()});
    tokens_.clear();
    documents_.clear();
  }

  json to_json() const {
    json list = json::array();
    for (const TokenShard& shard : shards_) {
      list.push_back(
          {{"file", shard.file}, {"tokens", shard.tokens}, {"documents", shard.documents}, {"digest", shard.digest}});
    }
    return list;
  }
  void from_json(const json& list) {
    for (const json& item : list) {
      shards_.push_back({item.at("file"), item.at("tokens"), item.at("documents"), item.at("digest")});
    }
  }

  int64_t tokens() const { return sum(&TokenShard::tokens); }
  int64_t documents() const { return sum(&TokenShard::documents); }
  size_t shards() const { return shards_.size(); }

 private:
  int64_t sum(int64_t TokenShard::*of) const {
    int64_t total = 0;
    for (const TokenShard& shard : shards_) total += shard.*of;
    return total;
  }
  // Beside the target, then renamed: a shard is whole or not there.
  void write(const std::string& name, DType dtype, int64_t count, std::span<const std::byte> bytes, Hasher& hasher) {
    const fs::path part = folder_ / (name + ".part");
    write_npy(part, dtype, {count}, bytes);
    rename_path(part, folder_ / name);
    hasher.update(bytes);
  }

  fs::path folder_;
  std::string split_;
  bool wide_;
  std::vector<uint32_t> tokens_;
  std::vector<int64_t> documents_;
  std::vector<TokenShard> shards_;
};

json position_json(const PiecePosition& at) {
  return {{"file", at.file},
          {"offset", at.offset},
          {"document", at.document},
          {"inside", at.inside},
          {"malformed", at.malformed}};
}

PiecePosition position_of(const json& at) {
  return {at.at("file"), at.at("offset"), at.at("document"), at.at("inside"), at.at("malformed")};
}

// A state that somebody has changed by hand must not end in a crash.
template <class Restore>
void restore(const std::string& out, const Restore& action) {
  try {
    action();
  } catch (const json::exception&) {
    fail(ExitCode::data, "'", out, "': building.json is damaged; delete the folder and begin anew");
  }
}

void print_summary(const TextCommand& command, const LanguageMeta& meta, const SplitWriter& train,
                   const SplitWriter& val, uint64_t malformed, std::ostream& out) {
  out << command.out << ": packed text, vocabulary " << meta.vocab_size << ", "
      << (meta.vocab_size <= 65536 ? "uint16" : "uint32") << " tokens\n";
  for (const auto& [name, split] : {std::pair{"train", &train}, {"val", &val}}) {
    if (split->shards() == 0) continue;
    out << name << ": " << split->tokens() << " tokens, " << split->documents() << " documents, " << split->shards()
        << (split->shards() == 1 ? " shard\n" : " shards\n");
  }
  if (malformed > 0) out << malformed << " malformed documents were skipped\n";
}

}  // namespace

void run_data_text(const TextCommand& command, std::ostream& out) {
  const auto files = internal::input_files(command, "text");
  require(!command.split_blank_lines || command.separator.empty(), ExitCode::usage,
          "data text: give --split-blank-lines or --separator, not both");
  require(command.shard_tokens >= 1, ExitCode::usage, "--shard-tokens must be at least 1");
  const bool whole_files = !command.split_blank_lines && command.separator.empty();
  require(!whole_files || files.size() > 1 || command.validation == 0, ExitCode::usage,
          "data text: one file is one document, which cannot be divided into training and validation; cut it with "
          "--split-blank-lines or --separator, or give --validation 0");
  TextEncoder encoder = internal::encoder_of(command, "text");
  internal::BuildState state(
      command, files, cat("text 1\n", command.split_blank_lines, "\n", command.separator, "\n", command.shard_tokens));
  if (state.finished()) {
    out << command.out << ": is finished already; nothing was done\n";
    return;
  }
  const fs::path folder = command.out;
  internal::place_tokenizer(encoder, folder);
  const LanguageMeta& meta = encoder.meta;
  SplitWriter train(folder, "train", meta.vocab_size > 65536), val(folder, "val", meta.vocab_size > 65536);
  PiecePosition start;
  if (!state.saved().is_null()) {
    restore(command.out, [&] {
      start = position_of(state.saved().at("position"));
      train.from_json(state.saved().at("train"));
      val.from_json(state.saved().at("val"));
    });
  }
  const internal::ValidationDraw draw(command.validation, static_cast<uint64_t>(command.seed),
                                      whole_files ? static_cast<int64_t>(files.size()) : 0);
  DocumentPieces pieces(files, {command.split_blank_lines, command.separator}, command.max_malformed, start);
  uint64_t bytes = 0;
  for (const auto& file : files) bytes += file.bytes;
  internal::BuildProgress progress(files.size(), bytes, pieces.done());
  Piece piece;
  while (pieces.next(piece)) {
    const std::vector<int32_t> ids = encoder.encode(piece.text);
    internal::check_ids(ids, meta);
    SplitWriter& to = draw(piece.document) ? val : train;
    if (piece.begins) to.begin_document();
    to.add(ids);
    if (piece.ends) to.end_document(meta.eos_id);
    if (train.waiting() + val.waiting() >= command.shard_tokens) {
      train.flush();
      val.flush();
      state.save({{"position", position_json(pieces.position())}, {"train", train.to_json()}, {"val", val.to_json()}});
    }
    progress.show(pieces.position().file, pieces.done(),
                  static_cast<uint64_t>(train.tokens() + val.tokens() + train.waiting() + val.waiting()));
  }
  train.flush();
  val.flush();
  const double rate = progress.finish(pieces.done());
  require(train.tokens() > 0, ExitCode::data, "'", command.inputs[0], "': the files hold no text to train on");
  require(command.validation == 0 || val.tokens() > 0, ExitCode::data, "none of the ", pieces.position().document,
          " documents was drawn for validation; choose a larger --validation, or 0");
  json splits = {{"train", train.to_json()}};
  if (val.shards() > 0) splits["val"] = val.to_json();
  fsync_directory(folder);
  write_language_meta(folder, meta,
                      state.meta_member() + ",\n  \"malformed\": " + std::to_string(pieces.position().malformed) +
                          ",\n  \"splits\": " + splits.dump());
  state.remove();
  print_summary(command, meta, train, val, pieces.position().malformed, out);
  out << cat("read at ", static_cast<int64_t>(rate * 10 + 0.5) / 10.0, " MB/s\n");
}

}  // namespace hrm::data
