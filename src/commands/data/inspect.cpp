#include <algorithm>
#include <iomanip>
#include <ostream>

#include "commands/data/support.h"
#include "data/other_data.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/commands/data.h"
#include "hrm/commands/language_data.h"
#include "hrm/config/load.h"
#include "hrm/config/task_settings.h"
#include "hrm/data/arc.h"
#include "hrm/data/chat_dataset.h"
#include "hrm/data/chat_open.h"
#include "hrm/data/maze.h"
#include "hrm/data/puzzle_csv.h"
#include "hrm/data/sudoku.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"
#include "hrm/data/vectors.h"

namespace hrm::data {
namespace {

std::string draw_sudoku(const SudokuGeometry& geometry, const std::vector<int32_t>& tokens) {
  Grid grid(tokens.size());
  // PAD and unsupervised cells are shown as blanks.
  for (size_t i = 0; i < tokens.size(); ++i) grid[i] = static_cast<uint8_t>(tokens[i] > 0 ? tokens[i] - 1 : 0);
  return draw_grid(geometry, grid);
}

std::string draw_tokens(const std::vector<int32_t>& tokens) {
  const int side = maze_side(tokens.size());
  const size_t width = side > 0 ? static_cast<size_t>(side) : 32;
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string token = tokens[i] < 0 ? "-" : std::to_string(tokens[i]);
    text += std::string(token.size() < 3 ? 3 - token.size() : 1, ' ') + token;
    if ((i + 1) % width == 0 || i + 1 == tokens.size()) text += '\n';
  }
  return text;
}

// The rows and columns that hold a grid: its colours, "." for black, and "+" for its end.
std::string draw_arc(const std::vector<int32_t>& tokens) {
  std::string text;
  for (int row = 0; row < kArcSide; ++row) {
    std::string line;
    for (int col = 0; col < kArcSide; ++col) {
      const int32_t token = tokens[static_cast<size_t>(row * kArcSide + col)];
      const char colour = token == 2 ? '.' : static_cast<char>('0' + token - 2);
      line += token < 1 ? "  " : token == 1 ? " +" : std::string{' ', colour};
    }
    line.resize(line.find_last_not_of(' ') + 1);
    if (!line.empty()) text += line + "\n";
  }
  return text;
}

// Cells as wide as the longest; nothing for padding and for labels that are ignored.
std::string draw_symbols(const PuzzleVocabulary& vocabulary, const std::vector<int32_t>& tokens) {
  const auto text_of = [&](int32_t token) { return token < 0 ? std::string() : vocabulary.tokens[token]; };
  // Characters beyond ASCII have several bytes.
  const auto width_of = [](const std::string& text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  };
  std::ptrdiff_t width = 1;
  for (const std::string& token : vocabulary.tokens) width = std::max(width, width_of(token));
  std::string out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string text = text_of(tokens[i]);
    const bool end = static_cast<int64_t>(i + 1) % vocabulary.cols == 0;
    out += text + std::string(static_cast<size_t>(width - width_of(text)), ' ') + (width > 1 && !end ? " " : "");
    if (!end) continue;
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

std::string draw_board(const PuzzleDataset& dataset, const std::vector<int32_t>& tokens,
                       const SudokuGeometry& geometry) {
  if (dataset.vocabulary()) return draw_symbols(*dataset.vocabulary(), tokens);
  std::string text;
  switch (dataset.kind()) {
    case PuzzleKind::sudoku:
      return draw_sudoku(geometry, tokens);
    case PuzzleKind::maze:
      for (const int32_t token : tokens) text += token > 0 ? maze_character(token) : '?';
      return draw_maze(text);
    case PuzzleKind::arc:
      return draw_arc(tokens);
    case PuzzleKind::unknown:
      break;
  }
  return draw_tokens(tokens);
}

void print_dataset(const InspectCommand& command, const config::DataConfig& config, const std::string& title,
                   const PuzzleDataset& dataset, std::ostream& out) {
  const PuzzleMeta& meta = dataset.meta();
  out << title << ": " << dataset.num_groups() << " groups, " << dataset.num_puzzles() << " puzzles, "
      << dataset.num_examples() << " examples (" << dataset.mean_puzzle_examples() << " per puzzle)\n"
      << "  kind " << name(dataset.kind()) << ", seq_len " << meta.seq_len << ", vocab_size " << meta.vocab_size
      << ", num_puzzle_identifiers " << meta.num_puzzle_identifiers << ", pad_id " << meta.pad_id
      << ", ignore_label_id ";
  if (meta.ignore_label_id == -1) {
    out << "none";
  } else {
    out << meta.ignore_label_id;
  }
  out << "\n";
  if (const auto& vocabulary = dataset.vocabulary()) {
    out << "  " << (vocabulary->form == PuzzleForm::grid ? "grids of " : "pairs of ") << vocabulary->rows << "x"
        << vocabulary->cols << ", " << vocabulary->tokens.size() - vocabulary->special_tokens() << " symbols, "
        << vocabulary->symmetries.size() << " symmetries\n";
  }
  if (dataset.parts().size() > 1) {
    for (const DatasetPart& part : dataset.parts()) {
      out << "  set " << part.name << ": " << part.examples.size() << " examples\n";
    }
  }
  require(command.example >= 0 && command.example < dataset.num_examples(), ExitCode::usage, "--example ",
          command.example, " is not one of the ", dataset.num_examples(), " examples of ", title);
  std::vector<int32_t> inputs(meta.seq_len), labels(meta.seq_len);
  dataset.example(command.example, inputs.data(), labels.data());
  SudokuGeometry geometry;
  if (dataset.kind() == PuzzleKind::sudoku) geometry = sudoku_geometry(meta.seq_len, config.box_rows, config.box_cols);
  const int32_t identifier = dataset.puzzle_identifier(dataset.puzzle_of_example(command.example));
  out << "  example " << command.example << ", puzzle identifier " << identifier;
  if (identifier < static_cast<int32_t>(dataset.identifiers().size())) out << " " << dataset.identifiers()[identifier];
  out << "\n" << draw_board(dataset, inputs, geometry) << "\n" << draw_board(dataset, labels, geometry);
}

void print_vectors(const InspectCommand& command, const VectorDataset& dataset, std::ostream& out) {
  out << dataset.origin() << ": " << vectors_text(dataset) << "\n";
  require(command.example >= 0 && command.example < dataset.rows(), ExitCode::usage, "--example ", command.example,
          " is not one of the ", dataset.rows(), " rows of ", dataset.origin());
  out << "  row " << command.example << ", label " << dataset.labels().data_ptr<int64_t>()[command.example] << "\n";
  // Rows of two dimensions are drawn as such.
  const int64_t features = dataset.features();
  const int64_t width = dataset.row_shape().size() > 1 ? dataset.row_shape().back() : 16;
  const float* inputs = dataset.inputs().data_ptr<float>() + command.example * features;
  for (int64_t i = 0; i < features; ++i) {
    out << " " << std::setw(5) << std::setprecision(4) << inputs[i] << ((i + 1) % width == 0 ? "\n" : "");
  }
  if (features % width != 0) out << "\n";
}

bool inspect_vectors(const InspectCommand& command, std::ostream& out) {
  const std::filesystem::path path = command.path;
  if (!is_vector_folder(path)) return false;
  std::error_code ignored;
  for (const char* split : {"train", "test"}) {
    if (std::filesystem::exists(path / split, ignored)) print_vectors(command, *open_vectors(path, split), out);
  }
  return true;
}

// Settings of prompts and responses beside a CSV file, which holds puzzles.
void refuse_table_of_records(const InspectCommand& command) {
  for (const std::string& value : command.overrides) {
    const bool chat = value.starts_with("hf.") || value.starts_with("chat.") || value == "task=polychromic";
    require(!chat, ExitCode::data, command.path, ": ", other_table(command.path));
  }
}

// As a training with these files and values reads a CSV file. A box of the command line comes first.
config::DataConfig csv_configuration(const InspectCommand& command, const config::DataConfig& boxes) {
  const config::Config config = config::load_config(command.config_files, command.overrides).config;
  require(config::task_settings(config).data == config::TrainingData::puzzles, ExitCode::usage, "data inspect: '",
          printable(command.path), "' is a CSV file, which is read by task puzzle, and the configuration is of task ",
          config.task, "; give one of task puzzle, or none");
  config::DataConfig data = config.data;
  if (command.box.empty()) return data;
  data.box_rows = boxes.box_rows;
  data.box_cols = boxes.box_cols;
  return data;
}

}  // namespace

void run_data_inspect(const InspectCommand& command, std::ostream& out) {
  config::DataConfig config;
  const auto [box_rows, box_cols] = parse_box(command.box);
  config.box_rows = box_rows;
  config.box_cols = box_cols;
  const std::filesystem::path path = command.path;
  std::error_code ignored;
  const bool has_meta = is_token_folder(path) || is_triple_folder(path);
  const bool has_splits =
      std::filesystem::exists(path / "train", ignored) || std::filesystem::exists(path / "test", ignored);
  if (!has_meta && !has_splits && (is_chat_path(path) || is_split_chat_folder(path))) return inspect_chat(command, out);
  const bool configured = !command.config_files.empty() || !command.overrides.empty();
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const bool puzzles = std::filesystem::exists(path / "train" / "dataset.json", ignored) ||
                       std::filesystem::exists(path / "test" / "dataset.json", ignored);
  if (!has_meta && !puzzles && !is_vector_folder(path) && !is_puzzle_csv(path)) {
    const std::string other = other_data(path);
    require(other.empty(), ExitCode::data, "'", printable(path.string()), "' ",
            std::filesystem::exists(path, ignored) ? "holds no data that can be read" : "does not exist", other);
    require(is_folder || other_table(path).empty(), ExitCode::data, path.string(), ": ", other_table(path));
    require(is_folder || !std::filesystem::exists(path, ignored), ExitCode::data, "'", printable(path.string()),
            "' holds no records: prompts and responses are JSON lines or one JSON array, puzzles are *.csv; of texts "
            "'hrm_train data text' makes a folder of data");
  }
  if (configured && is_puzzle_csv(path)) {
    refuse_table_of_records(command);
    config = csv_configuration(command, config);
  } else {
    require(!configured || !std::filesystem::exists(path, ignored), ExitCode::usage,
            "data inspect: configurations say how prompts and responses, or puzzles in CSV files, are read, and '",
            printable(path.string()), "' holds other data; leave --config and KEY=VALUE out");
  }
  if (inspect_language(path, command.example, out) || inspect_vectors(command, out)) return;
  if (!std::filesystem::is_directory(path, ignored)) {
    print_dataset(command, config, path.string(), *open_dataset(path, "test", config), out);
    return;
  }
  bool any = false;
  for (const char* split : {"train", "test"}) {
    if (!std::filesystem::exists(path / split, ignored)) continue;
    print_dataset(command, config, (path / split).string(), *open_dataset(path, split, config), out);
    any = true;
  }
  require(
      any, ExitCode::data, path.string(),
      ": has neither a train nor a test folder nor a meta.json nor *.jsonl, so it is not a data set; of *.json files "
      "give one");
}

}  // namespace hrm::data
