#include "hrm/data/puzzle_vocabulary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/data/dihedral.h"
#include "hrm/formats/json.h"

namespace hrm::data {
namespace {

using nlohmann::json;

constexpr const char* kFile = "vocabulary.json";
constexpr const char* kForms[] = {"grid", "pairs"};

nlohmann::ordered_json vocabulary_json(const PuzzleVocabulary& vocabulary) {
  nlohmann::ordered_json out;
  out["kind"] = kForms[static_cast<int>(vocabulary.form)];
  out["rows"] = vocabulary.rows;
  out["cols"] = vocabulary.cols;
  out["pad_id"] = 0;
  if (vocabulary.form == PuzzleForm::pairs) out["end_id"] = kEndToken;
  out["tokens"] = vocabulary.tokens;
  out["symmetries"] = vocabulary.symmetries;
  return out;
}

class Reader {
 public:
  Reader(const json& object, const std::string& origin, ExitCode code) : object_(object), origin_(origin), code_(code) {
    require(object.is_object(), code, origin, ": is not a JSON object");
  }

  const json& member(const char* key) const {
    const auto found = object_.find(key);
    require(found != object_.end(), code_, origin_, ": has no \"", key, "\"");
    return *found;
  }
  int64_t integer(const char* key, int64_t least, int64_t most) const {
    const json& value = member(key);
    require(value.is_number_integer() && value >= least && value <= most, code_, origin_, ": \"", key,
            "\" is not a whole number from ", least, " to ", most);
    return value.get<int64_t>();
  }
  std::vector<std::string> texts(const char* key) const {
    const json& value = member(key);
    const auto is_text = [](const json& item) { return item.is_string(); };
    require(value.is_array() && std::all_of(value.begin(), value.end(), is_text), code_, origin_, ": \"", key,
            "\" is not a list of texts");
    return value.get<std::vector<std::string>>();
  }

 private:
  const json& object_;
  const std::string& origin_;
  ExitCode code_;
};

void check_tokens(const PuzzleVocabulary& vocabulary, const std::string& origin, ExitCode code) {
  const std::vector<std::string>& tokens = vocabulary.tokens;
  const size_t special = vocabulary.special_tokens();
  require(tokens.size() > special && tokens.size() <= kMostPuzzleTokens, code, origin, ": \"tokens\" has ",
          tokens.size(), " entries, not ", special + 1, " to ", kMostPuzzleTokens);
  std::set<std::string_view> seen;
  for (size_t i = 0; i < tokens.size(); ++i) {
    require(
        tokens[i].empty() == (i < special) && tokens[i].size() <= kLongestCellText, code, origin, ": token ", i,
        " has a text of ", tokens[i].size(), " bytes; ",
        i < special ? cat("the first ", special, " must be empty") : cat("1 to ", kLongestCellText, " are allowed"));
    require(i < special || seen.insert(tokens[i]).second, code, origin, ": two tokens have the text \"",
            printable(tokens[i]), "\"");
  }
}

}  // namespace

std::optional<int32_t> PuzzleVocabulary::token(std::string_view text) const {
  const auto found = std::find(tokens.begin() + static_cast<std::ptrdiff_t>(special_tokens()), tokens.end(), text);
  if (found == tokens.end()) return std::nullopt;
  return static_cast<int32_t>(found - tokens.begin());
}

std::string vocabulary_text(const PuzzleVocabulary& vocabulary) {
  return vocabulary_json(vocabulary).dump(-1, ' ', /*ensure_ascii=*/true);
}

PuzzleVocabulary parse_vocabulary(std::string_view text, const std::string& origin, ExitCode code) {
  const json object = parse_json(text, origin, code);
  const Reader reader(object, origin, code);
  PuzzleVocabulary vocabulary;
  const json& kind = reader.member("kind");
  require(kind == kForms[0] || kind == kForms[1], code, origin, ": \"kind\" is neither \"grid\" nor \"pairs\"");
  vocabulary.form = kind == kForms[0] ? PuzzleForm::grid : PuzzleForm::pairs;
  const bool grid = vocabulary.form == PuzzleForm::grid;
  vocabulary.rows = reader.integer("rows", 1, grid ? kMostCells : 1);
  vocabulary.cols = reader.integer("cols", 1, kMostCells);
  require(vocabulary.cells() <= kMostCells, code, origin, ": puzzles of ", vocabulary.cells(), " cells; at most ",
          kMostCells, " are allowed");
  reader.integer("pad_id", 0, 0);
  if (!grid) reader.integer("end_id", kEndToken, kEndToken);
  vocabulary.tokens = reader.texts("tokens");
  check_tokens(vocabulary, origin, code);
  vocabulary.symmetries = reader.texts("symmetries");
  for (const std::string& name : vocabulary.symmetries) {
    require(std::find(kDihedralNames.begin(), kDihedralNames.end(), name) != kDihedralNames.end(), code, origin,
            ": \"symmetries\" names '", printable_start(name), "', which is unknown");
  }
  return vocabulary;
}

std::optional<PuzzleVocabulary> read_vocabulary(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFile;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return parse_vocabulary(read_text(path, ExitCode::data, JsonLimits{}.bytes), path.string(), ExitCode::data);
}

void write_vocabulary(const std::filesystem::path& folder, const PuzzleVocabulary& vocabulary) {
  make_directories(folder);
  const nlohmann::ordered_json object = vocabulary_json(vocabulary);
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += cat(text.size() > 1 ? ",\n  \"" : "\n  \"", key, "\": ", value.dump());
  }
  write_text_atomic(folder / kFile, text + "\n}\n");
}

}  // namespace hrm::data
