#include "data/puzzle/dataset_directory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/other_data.h"
#include "data/puzzle/arc_copies.h"
#include "data/puzzle/token_rows.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/data/arc.h"
#include "hrm/data/maze.h"
#include "hrm/data/sudoku.h"
#include "hrm/formats/json.h"
#include "hrm/formats/npy.h"

namespace hrm::data {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Small datasets are checked token by token when opened, so errors are found before training. Larger ones are checked
// row by row as they are read.
constexpr int64_t kScanAtOpen = int64_t{1} << 25;

// identifiers.json has a name for each puzzle.
constexpr JsonLimits kJsonLimits{.bytes = size_t{256} << 20, .depth = 8};
// Far above any puzzle. A file without bytes may claim any length.
constexpr int64_t kMaxSeqLen = int64_t{1} << 24;

json parse_json_file(const fs::path& path) {
  return parse_json(read_text(path, ExitCode::data, kJsonLimits.bytes), path.string(), ExitCode::data, kJsonLimits);
}

// The fields of dataset.json.
class MetaReader {
 public:
  explicit MetaReader(const fs::path& path) : path_(path.string()), json_(parse_json_file(path)) {
    require(json_.is_object(), ExitCode::data, path_, ": is not a JSON object");
  }

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  int64_t integer(const char* key, int64_t min) const {
    const json& value = at(key);
    require(value.is_number_integer(), ExitCode::data, path_, ": \"", key, "\" is not an integer");
    const int64_t number = value.get<int64_t>();
    require(number >= min, ExitCode::data, path_, ": \"", key, "\" is ", number, ", must be at least ", min);
    return number;
  }
  double real(const char* key) const {
    const json& value = at(key);
    require(value.is_number(), ExitCode::data, path_, ": \"", key, "\" is not a number");
    return value.get<double>();
  }
  bool flag(const char* key) const {
    if (!has(key)) return false;
    require(json_[key].is_boolean(), ExitCode::data, path_, ": \"", key, "\" is neither true nor false");
    return json_[key].get<bool>();
  }
  std::vector<std::string> texts(const char* key) const {
    const json& value = at(key);
    std::vector<std::string> result;
    require(value.is_array() && !value.empty(), ExitCode::data, path_, ": \"", key, "\" is not a list of names");
    for (const json& item : value) {
      require(item.is_string(), ExitCode::data, path_, ": \"", key, "\" is not a list of names");
      result.push_back(item.get<std::string>());
    }
    return result;
  }

 private:
  const json& at(const char* key) const {
    require(json_.contains(key), ExitCode::data, path_, ": has no \"", key, "\"");
    return json_[key];
  }

  std::string path_;
  json json_;
};

// An index array of int32 or int64.
std::vector<int64_t> read_index(const fs::path& path) {
  const NpyFile file(path);
  const ArrayView& array = file.array();
  require(array.dtype == DType::i32 || array.dtype == DType::i64, ExitCode::data, path.string(), ": has dtype ",
          name(array.dtype), ", must be I32 or I64");
  require(array.shape.size() == 1, ExitCode::data, path.string(), ": has shape ", shape_text(array.shape),
          ", must have one dimension");
  std::vector<int64_t> values(array.numel());
  for (size_t i = 0; i < values.size(); ++i) {
    if (array.dtype == DType::i32) {
      values[i] = token_at(reinterpret_cast<const int32_t*>(array.bytes.data()), static_cast<int64_t>(i));
    } else {
      values[i] = token_at(reinterpret_cast<const int64_t*>(array.bytes.data()), static_cast<int64_t>(i));
    }
  }
  return values;
}

// Checks the start indices of ranges over `total` items: 0, ascending, then total. No range may be empty.
void check_ranges(const std::vector<int64_t>& starts, int64_t total, const fs::path& path, const char* things) {
  require(!starts.empty() && starts.front() == 0, ExitCode::data, path.string(), ": must start with 0");
  for (size_t i = 1; i < starts.size(); ++i) {
    require(starts[i] > starts[i - 1], ExitCode::data, path.string(), ": entry ", i, " is ", starts[i],
            ", not above the ", starts[i - 1], " before it");
  }
  require(starts.back() == total, ExitCode::data, path.string(), ": ends with ", starts.back(), ", but there are ",
          total, " ", things);
}

// The memory-mapped token arrays of one set in the folder.
struct TokenArrays {
  NpyFile inputs, labels;
};

class DirectoryDataset final : public PuzzleDataset {
 public:
  DirectoryDataset(const fs::path& root, const std::string& split, const config::DataConfig& config) {
    const fs::path dir = root / split;
    origin_ = dir.string();
    std::error_code ignored;
    require(fs::is_directory(dir, ignored), ExitCode::data, root.string(), ": has no folder \"", split,
            "\", so it is not a data set with a ", split, " split", other_data(root));
    const fs::path meta_path = dir / "dataset.json";
    const MetaReader reader(meta_path);
    meta_.pad_id = reader.integer("pad_id", 0);
    meta_.ignore_label_id = reader.has("ignore_label_id") ? reader.integer("ignore_label_id", INT32_MIN) : -1;
    meta_.blank_identifier_id = reader.integer("blank_identifier_id", 0);
    meta_.vocab_size = reader.integer("vocab_size", 1);
    meta_.seq_len = reader.integer("seq_len", 1);
    meta_.num_puzzle_identifiers = reader.integer("num_puzzle_identifiers", 1);
    mean_puzzle_examples_ = reader.real("mean_puzzle_examples");
    require(meta_.pad_id < meta_.vocab_size, ExitCode::data, meta_path.string(), ": \"pad_id\" is ", meta_.pad_id,
            ", outside the vocabulary of ", meta_.vocab_size);
    require(meta_.blank_identifier_id < meta_.num_puzzle_identifiers, ExitCode::data, meta_path.string(),
            ": \"blank_identifier_id\" is ", meta_.blank_identifier_id, ", but there are ",
            meta_.num_puzzle_identifiers, " identifiers");
    require(meta_.seq_len <= kMaxSeqLen, ExitCode::data, meta_path.string(), ": \"seq_len\" is ", meta_.seq_len,
            ", must be at most ", kMaxSeqLen);
    const std::vector<std::string> sets = reader.texts("sets");
    const bool compact = reader.flag("compact");
    require(!compact || (sets.size() == 1 && meta_.vocab_size == kArcVocabSize && meta_.seq_len == kArcCells &&
                         meta_.pad_id == 0 && meta_.ignore_label_id == 0),
            ExitCode::data, meta_path.string(), ": is compact, but is not one set of ARC tasks with ", kArcCells,
            " cells, ", kArcVocabSize, " tokens and 0 as \"pad_id\" and \"ignore_label_id\"");
    for (const std::string& set : sets) {
      // The name becomes part of paths.
      require(is_plain_file_name(set), ExitCode::data, meta_path.string(), ": \"sets\" names '", printable_start(set),
              "'; letters, digits and . _ - make a name");
      if (compact) copies_.emplace(dir / (set + "__copies.npy"));
      add_set(dir, set);
    }
    require(reader.integer("total_groups", 0) == num_groups(), ExitCode::data, meta_path.string(),
            ": \"total_groups\" is ", reader.integer("total_groups", 0), ", but the sets have ", num_groups());
    // TRM's builders write this key; HRM's do not.
    require(!reader.has("total_puzzles") || reader.integer("total_puzzles", 0) == num_puzzles(), ExitCode::data,
            meta_path.string(), ": \"total_puzzles\" is not the ", num_puzzles(), " puzzles that the sets have");
    read_identifiers(root / "identifiers.json");
    finish_index();
    if (copies_) copies_->place(group_indices_, puzzle_indices_, sizes_of_pairs());
    open_vocabulary(root, config);
    if (!vocabulary_) guess_kind(root, config);
    if (!copies_ && num_examples() * meta_.seq_len <= kScanAtOpen) {
      std::vector<int32_t> row(meta_.seq_len);
      for (int64_t index = 0; index < num_examples(); ++index) example(index, row.data(), row.data());
    }
  }

  void example(int64_t index, int32_t* inputs, int32_t* labels) const override {
    if (copies_) return make_copy(index, inputs, labels);
    read_row(index, inputs, labels);
  }

  bool compact() const override { return copies_.has_value(); }
  int64_t num_stored() const override { return copies_ ? arrays_[0].inputs.array().shape[0] : num_examples(); }
  void stored_row(int64_t row, int32_t* inputs, int32_t* labels) const override {
    if (!copies_) return read_row(row, inputs, labels);
    read(arrays_[0].inputs, row, inputs, /*is_label=*/false);
    read(arrays_[0].labels, row, labels, /*is_label=*/true);
  }
  StoredExample stored_example(int64_t index) const override {
    if (!copies_) return {index, 0};
    const int64_t puzzle = puzzle_of_example(index);
    return {copies_->first_pair(puzzle) + index - puzzle_indices_[puzzle], copies_->code(index)};
  }

 private:
  void read_row(int64_t index, int32_t* inputs, int32_t* labels) const {
    size_t set = 0;
    while (index >= parts_[set].examples.end) ++set;
    const int64_t row = index - parts_[set].examples.begin;
    read(arrays_[set].inputs, row, inputs, /*is_label=*/false);
    read(arrays_[set].labels, row, labels, /*is_label=*/true);
  }

  void make_copy(int64_t index, int32_t* inputs, int32_t* labels) const {
    static_assert(kIgnoreLabel == ops::kArcIgnored);
    const StoredExample stored = stored_example(index);
    std::array<int32_t, kArcCells> own_inputs{}, own_labels{};
    stored_row(stored.row, own_inputs.data(), own_labels.data());
    const ops::ArcCopy copy = ops::arc_copy_of(stored.copy);
    ops::arc_copy_row(copy, own_inputs.data(), kArcSide, 0, inputs);
    ops::arc_copy_row(copy, own_labels.data(), kArcSide, ops::kArcIgnored, labels);
  }

  // Of a compact folder. Throws Error(data) for a row that is no grid.
  std::vector<ArcPairSize> sizes_of_pairs() const {
    std::vector<ArcPairSize> sizes;
    std::array<int32_t, kArcCells> inputs{}, labels{};
    for (int64_t row = 0; row < num_stored(); ++row) {
      stored_row(row, inputs.data(), labels.data());
      std::replace(labels.begin(), labels.end(), ops::kArcIgnored, 0);
      ArcPairSize& size = sizes.emplace_back();
      for (const auto& [tokens, file] : {std::pair(&inputs, &arrays_[0].inputs), {&labels, &arrays_[0].labels}}) {
        const ArcGrid grid = crop_arc(tokens->data());
        std::array<uint8_t, kArcCells> again{};
        arc_tokens(grid, 0, 0, again.data());
        require(grid.rows > 0 && std::equal(again.begin(), again.end(), tokens->begin()), ExitCode::data,
                file->path().string(), ": row ", row, " is no grid of colours at the first cell, as compact folders ",
                "have");
        size = {std::max(size.rows, grid.rows), std::max(size.cols, grid.cols)};
      }
    }
    return sizes;
  }

  void add_set(const fs::path& dir, const std::string& set) {
    const auto file = [&](const char* what) { return dir / (set + "__" + what + ".npy"); };
    arrays_.push_back({NpyFile(file("inputs")), NpyFile(file("labels"))});
    for (const NpyFile* npy : {&arrays_.back().inputs, &arrays_.back().labels}) {
      const ArrayView& array = npy->array();
      require(array.dtype == DType::u8 || array.dtype == DType::i32 || array.dtype == DType::i64, ExitCode::data,
              npy->path().string(), ": has dtype ", name(array.dtype), ", must be U8, I32 or I64");
      require(array.shape.size() == 2 && array.shape[1] == meta_.seq_len, ExitCode::data, npy->path().string(),
              ": has shape ", shape_text(array.shape), ", must be [examples, ", meta_.seq_len,
              "] as dataset.json says");
    }
    const int64_t rows = arrays_.back().inputs.array().shape[0], examples = copies_ ? copies_->examples() : rows;
    require(arrays_.back().labels.array().shape[0] == rows, ExitCode::data, file("labels").string(), ": has ",
            arrays_.back().labels.array().shape[0], " rows, but the inputs have ", rows);
    const std::vector<int64_t> identifiers = read_index(file("puzzle_identifiers"));
    for (size_t i = 0; i < identifiers.size(); ++i) {
      require(identifiers[i] >= 0 && identifiers[i] < meta_.num_puzzle_identifiers, ExitCode::data,
              file("puzzle_identifiers").string(), ": entry ", i, " is ", identifiers[i], ", must be below ",
              meta_.num_puzzle_identifiers);
      puzzle_identifiers_.push_back(static_cast<int32_t>(identifiers[i]));
    }
    const std::vector<int64_t> puzzles = read_index(file("puzzle_indices"));
    const std::vector<int64_t> groups = read_index(file("group_indices"));
    check_ranges(puzzles, examples, file("puzzle_indices"), "examples");
    require(puzzles.size() == identifiers.size() + 1, ExitCode::data, file("puzzle_indices").string(), ": has ",
            puzzles.size(), " entries, but there are ", identifiers.size(),
            " puzzle identifiers and one more is needed");
    check_ranges(groups, static_cast<int64_t>(identifiers.size()), file("group_indices"), "puzzles");
    const int64_t first_example = puzzle_indices_.back(), first_puzzle = group_indices_.back();
    for (size_t i = 1; i < puzzles.size(); ++i) puzzle_indices_.push_back(first_example + puzzles[i]);
    for (size_t i = 1; i < groups.size(); ++i) group_indices_.push_back(first_puzzle + groups[i]);
    parts_.push_back({set, {first_example, puzzle_indices_.back()}});
  }

  void read(const NpyFile& file, int64_t index, int32_t* out, bool is_label) const {
    const ArrayView& array = file.array();
    const std::byte* bytes = array.bytes.data() + index * meta_.seq_len * item_size(array.dtype);
    const TokenRow row{meta_, index};
    const auto convert = [&](const auto* tokens) {
      is_label ? read_labels(row, tokens, file.path(), out) : read_inputs(row, tokens, file.path(), out);
    };
    switch (array.dtype) {
      case DType::u8:
        convert(reinterpret_cast<const uint8_t*>(bytes));
        break;
      case DType::i32:
        convert(reinterpret_cast<const int32_t*>(bytes));
        break;
      default:
        convert(reinterpret_cast<const int64_t*>(bytes));
        break;
    }
  }

  // Optional names, only for display.
  void read_identifiers(const fs::path& path) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return;
    const json names = parse_json_file(path);
    require(names.is_array(), ExitCode::data, path.string(), ": is not a list of names");
    for (const json& item : names) identifiers_.push_back(item.is_string() ? item.get<std::string>() : item.dump());
  }

  // A folder that says what its tokens mean is of no kind that must be guessed.
  void open_vocabulary(const fs::path& root, const config::DataConfig& config) {
    vocabulary_ = read_vocabulary(root);
    if (!vocabulary_) return;
    require(
        vocabulary_->cells() == meta_.seq_len && static_cast<int64_t>(vocabulary_->tokens.size()) == meta_.vocab_size,
        ExitCode::data, origin_, ": has ", meta_.seq_len, " cells and ", meta_.vocab_size,
        " tokens, but vocabulary.json says ", vocabulary_->cells(), " and ", vocabulary_->tokens.size());
    require(config.kind == config::PuzzleFileKind::automatic, ExitCode::usage, "data.kind is ", config.kind, ", but ",
            origin_, " has symbols of its own (vocabulary.json); set data.kind=auto");
  }

  // The layout does not say what the tokens mean, but the sizes nearly determine it.
  void guess_kind(const fs::path& root, const config::DataConfig& config) {
    std::error_code ignored;
    if (config.kind == config::PuzzleFileKind::automatic && meta_.seq_len == kArcCells &&
        meta_.vocab_size == kArcVocabSize && fs::exists(root / kArcTestPuzzles, ignored)) {
      kind_ = PuzzleKind::arc;
      return;
    }
    const int side = maze_side(static_cast<size_t>(meta_.seq_len));
    const bool may_be_sudoku = side > 0 && side <= kMaxSudokuSize && meta_.vocab_size == side + 2;
    const bool may_be_maze = side > 0 && meta_.vocab_size == kMazeVocabSize;
    if (config.kind != config::PuzzleFileKind::automatic) {
      const bool sudoku = config.kind == config::PuzzleFileKind::sudoku;
      const bool fits = sudoku ? may_be_sudoku : may_be_maze;
      require(fits, ExitCode::usage, "data.kind is ", config.kind, ", but ", origin_, " has ", meta_.seq_len,
              " cells and ", meta_.vocab_size, " tokens, which is no ", config.kind);
      kind_ = sudoku ? PuzzleKind::sudoku : PuzzleKind::maze;
      return;
    }
    if (may_be_sudoku && !(may_be_maze && first_is_maze())) {
      kind_ = PuzzleKind::sudoku;
    } else if (may_be_maze) {
      kind_ = PuzzleKind::maze;
    }
  }
  bool first_is_maze() const {
    std::vector<int32_t> inputs(meta_.seq_len), labels(meta_.seq_len);
    example(0, inputs.data(), labels.data());
    std::string text;
    for (const int32_t token : inputs) text += token >= 1 && token < kMazeVocabSize ? maze_character(token) : '?';
    return find_maze_fault(text).empty();
  }

  std::vector<TokenArrays> arrays_;
  std::optional<ArcCopies> copies_;  // of a compact folder
};

}  // namespace

std::shared_ptr<PuzzleDataset> open_dataset_directory(const fs::path& root, const std::string& split,
                                                      const config::DataConfig& config) {
  require(config.subsample == 0, ExitCode::usage, "data.subsample is for CSV files, but ", root.string(),
          " is a directory; take the subset when building it (hrm_train data sudoku --subsample)");
  require(config.min_rating == 0, ExitCode::usage, "data.min_rating is for CSV files, but ", root.string(),
          " is a directory; select when building it (hrm_train data sudoku --min-rating)");
  return std::make_shared<DirectoryDataset>(root, split, config);
}

void write_dataset(const fs::path& dir, const std::string& split, const PuzzleRows& rows) {
  const fs::path folder = dir / split;
  make_directories(folder);
  const int64_t examples = rows.puzzle_indices.back();
  const int64_t groups = static_cast<int64_t>(rows.group_indices.size()) - 1;
  const auto file = [&](const char* what) { return folder / (std::string("all__") + what + ".npy"); };
  const auto write = [&](const char* what, DType dtype, std::vector<int64_t> shape, const auto& values) {
    write_npy(file(what), dtype, shape, std::as_bytes(std::span(values)));
  };
  write("inputs", DType::u8, {examples, rows.meta.seq_len}, rows.inputs);
  write("labels", DType::u8, {examples, rows.meta.seq_len}, rows.labels);
  const auto length = [](const auto& values) { return std::vector<int64_t>{static_cast<int64_t>(values.size())}; };
  write("puzzle_identifiers", DType::i32, length(rows.puzzle_identifiers), rows.puzzle_identifiers);
  write("puzzle_indices", DType::i32, length(rows.puzzle_indices), rows.puzzle_indices);
  write("group_indices", DType::i32, length(rows.group_indices), rows.group_indices);
  nlohmann::ordered_json meta;
  meta["pad_id"] = rows.meta.pad_id;
  meta["ignore_label_id"] = rows.meta.ignore_label_id == -1 ? json(nullptr) : json(rows.meta.ignore_label_id);
  meta["blank_identifier_id"] = rows.meta.blank_identifier_id;
  meta["vocab_size"] = rows.meta.vocab_size;
  meta["seq_len"] = rows.meta.seq_len;
  meta["num_puzzle_identifiers"] = rows.meta.num_puzzle_identifiers;
  meta["total_groups"] = groups;
  meta["mean_puzzle_examples"] = static_cast<double>(examples) / static_cast<double>(rows.puzzle_identifiers.size());
  meta["total_puzzles"] = rows.puzzle_identifiers.size();  // needed by TRM's reader, ignored by HRM's
  meta["sets"] = {"all"};
  // dataset.json makes the split readable, so it is written last.
  write_text_atomic(dir / "identifiers.json", "[\"<blank>\"]\n");
  write_text_atomic(folder / "dataset.json", meta.dump(2) + "\n");
}

}  // namespace hrm::data
