#include "hrm/data/puzzle_records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/cell_text.h"
#include "hrm/formats/csv.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"

namespace hrm::data {
namespace {

constexpr JsonLimits kRecordLimits{.bytes = kMaxJsonlLine, .depth = 8};

// What `parse` returns; with a name in front of what is wrong.
template <class F>
Cells named_cells(const char* name, F&& parse) {
  try {
    return parse();
  } catch (const Error& error) {
    fail(error.code(), "the ", name, ": ", error.what());
  }
}

std::vector<uint8_t> numbers(const std::vector<std::string>& texts, SymbolTable& symbols) {
  std::vector<uint8_t> result;
  result.reserve(texts.size());
  for (const std::string& text : texts) result.push_back(symbols.number(text));
  return result;
}

// Throws Error(data) with only the reason.
PuzzleRecord make_record(Cells question, Cells answer, const PuzzleRecordOptions& options, SymbolTable& symbols) {
  const bool pairs = options.form == PuzzleForm::pairs;
  shape_cells(question, options.rows, options.cols, "; give --rows or --cols, or write its rows");
  // An answer without rows has those of its question.
  const bool fits = answer.rows > 0 ? answer.rows == question.rows && answer.cols == question.cols
                                    : answer.texts.size() == question.texts.size();
  require(pairs || fits, ExitCode::data, "the question has ", cells_text(question, options.form), ", but the answer ",
          answer.rows > 0 ? cells_text(answer, options.form) : cat(answer.texts.size(), " cells"));
  PuzzleRecord record;
  record.question = numbers(question.texts, symbols);
  record.answer = numbers(answer.texts, symbols);
  record.rows = question.rows;
  record.cols = question.cols;
  return record;
}

std::vector<PuzzleRecord> read_csv(const std::filesystem::path& path, const PuzzleRecordOptions& options,
                                   SymbolTable& symbols) {
  CsvReader reader(path);
  const size_t question = reader.column(options.question_field), answer = reader.column(options.answer_field);
  std::vector<PuzzleRecord> records;
  CsvRow row;
  while (reader.next(row)) {
    const auto cells = [&](const char* name, size_t column) {
      return named_cells(name, [&] { return parse_cells(row.fields[column], options.form); });
    };
    try {
      Cells asked = cells("question", question);
      records.push_back(make_record(std::move(asked), cells("answer", answer), options, symbols));
    } catch (const Error& error) {
      reader.fail_at(row.line, error.what());
    }
    records.back().line = row.line;
  }
  return records;
}

const nlohmann::json& member(const nlohmann::json& record, const std::string& name) {
  require(record.is_object(), ExitCode::data, "the line is not a JSON object");
  const auto found = record.find(name);
  require(found != record.end(), ExitCode::data, "the record has no member \"", printable(name), "\"");
  return *found;
}

std::vector<PuzzleRecord> read_json_lines(const std::filesystem::path& path, const PuzzleRecordOptions& options,
                                          SymbolTable& symbols) {
  const std::string text = InputWindow(path).rest();
  JsonlLines lines(as_bytes(text));
  std::vector<PuzzleRecord> records;
  JsonlLine line;
  while (lines.next(line)) {
    const std::string place = cat(path.string(), ":", line.number);
    const nlohmann::json record = parse_json(line.text, place, ExitCode::data, kRecordLimits);
    const auto cells = [&](const char* name, const nlohmann::json& value) {
      return named_cells(name, [&] { return parse_json_cells(value, options.form); });
    };
    try {
      Cells asked = cells("question", member(record, options.question_field));
      records.push_back(
          make_record(std::move(asked), cells("answer", member(record, options.answer_field)), options, symbols));
    } catch (const Error& error) {
      fail(error.code(), place, ": ", error.what());
    }
    records.back().line = line.number;
  }
  return records;
}

}  // namespace

SymbolTable::SymbolTable(std::string_view alphabet, size_t most) : fixed_(false), most_(most) {
  if (alphabet.empty()) return;
  try {
    for (const std::string& symbol : parse_cells(alphabet, PuzzleForm::pairs).texts) {
      require(!numbers_.contains(symbol), ExitCode::usage, "'", symbol, "' stands in it twice");
      number(symbol);
    }
  } catch (const Error& error) {
    fail(ExitCode::usage, "--alphabet: ", error.what());
  }
  fixed_ = true;
}

uint8_t SymbolTable::number(const std::string& text) {
  const auto found = numbers_.find(text);
  if (found != numbers_.end()) return found->second;
  require(!fixed_, ExitCode::data, "the symbol \"", printable(text), "\" is not in the alphabet");
  require(texts_.size() < most_, ExitCode::data, "\"", printable(text), "\" is symbol number ", most_ + 1, "; at most ",
          most_, " different symbols are allowed");
  const auto number = static_cast<uint8_t>(texts_.size());
  numbers_.emplace(text, number);
  texts_.push_back(text);
  return number;
}

std::vector<uint8_t> SymbolTable::order() const {
  std::vector<uint8_t> order(texts_.size());
  std::iota(order.begin(), order.end(), uint8_t{0});
  const auto key = [this](uint8_t i) { return std::pair<size_t, std::string_view>(texts_[i].size(), texts_[i]); };
  if (!fixed_) std::sort(order.begin(), order.end(), [&](uint8_t a, uint8_t b) { return key(a) < key(b); });
  return order;
}

std::vector<PuzzleRecord> read_puzzle_records(const std::filesystem::path& path, const PuzzleRecordOptions& options,
                                              SymbolTable& symbols) {
  const std::string suffix = content_suffix(path);
  const bool csv = suffix == ".csv", json = suffix == ".jsonl" || suffix == ".ndjson" || suffix == ".json";
  require(csv || json, ExitCode::data, "'", printable(path.string()),
          "' is neither *.csv nor *.jsonl; a compressed file also ends with .gz or .zst");
  std::vector<PuzzleRecord> records = csv ? read_csv(path, options, symbols) : read_json_lines(path, options, symbols);
  require(!records.empty(), ExitCode::data, path.string(), ": holds no puzzles");
  return records;
}

}  // namespace hrm::data
