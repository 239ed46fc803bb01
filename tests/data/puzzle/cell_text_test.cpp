#include "hrm/data/cell_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using nlohmann::json;

Cells grid(const char* text) {
  Cells cells = parse_json_cells(json::parse(text), PuzzleForm::grid);
  shape_cells(cells, 0, 0, "");
  return cells;
}

void refuse(const char* text, PuzzleForm form, const std::vector<std::string>& parts) {
  expect_error(ExitCode::data, parts, [&] { parse_json_cells(json::parse(text), form); });
}

TEST(CellText, AGridIsAStringRowsOrArrays) {
  const std::vector<std::string> texts{"1", "2", "3", "4"};
  for (const char* text : {R"("1234")", R"("12\n34")", R"("12\r\n34\r\n")", R"(["12", "34"])",
                           R"([["1", "2"], ["3", "4"]])", "[[1, 2], [3, 4]]"}) {
    const Cells cells = grid(text);
    EXPECT_EQ(cells.texts, texts) << text;
    EXPECT_EQ(cells.rows, 2) << text;
    EXPECT_EQ(cells.cols, 2) << text;
  }
  EXPECT_EQ(grid(R"(["ä ", "€b"])").texts, (std::vector<std::string>{"ä", " ", "€", "b"}));
}

TEST(CellText, AnAnswerIsWrittenAsItsQuestionWas) {
  const std::vector<std::pair<const char*, const char*>> grids{{R"("1234")", "1234"},
                                                               {R"(["12", "34"])", R"(["12","34"])"},
                                                               {"[[1, 2], [3, 4]]", "[[1,2],[3,4]]"},
                                                               {R"([["1", "b"]])", R"([["1","b"]])"}};
  for (const auto& [text, same] : grids) EXPECT_EQ(format_cells(grid(text), PuzzleForm::grid), same);
  Cells cells = grid(R"("1234")");
  cells.texts[1] = "12";  // does not fit one character
  EXPECT_EQ(format_cells(cells, PuzzleForm::grid), R"([["1","12"],["3","4"]])");
  EXPECT_EQ(format_cells(parse_json_cells(json::parse("[1, 20]"), PuzzleForm::pairs), PuzzleForm::pairs), "[1,20]");
  EXPECT_EQ(format_cells(parse_cells("1+2", PuzzleForm::pairs), PuzzleForm::pairs), "1+2");
}

TEST(CellText, RefusesWhatIsNoGrid) {
  refuse("3", PuzzleForm::grid, {"neither a string nor an array"});
  refuse("\"\"", PuzzleForm::grid, {"no cells"});
  refuse(R"("\r")", PuzzleForm::grid, {"no cells"});
  refuse("[]", PuzzleForm::grid, {"no cells"});
  refuse("[[]]", PuzzleForm::grid, {"row 1 is empty"});
  refuse(R"(["12", "3"])", PuzzleForm::grid, {"row 2 has length 1, but row 1 has length 2"});
  refuse("[[1], [true]]", PuzzleForm::grid, {"cell 2 is neither a string nor a number"});
  refuse("[1, 2]", PuzzleForm::grid, {"row 1 is neither a string nor an array"});
  refuse(R"([[""]])", PuzzleForm::grid, {"cell 1 is empty"});
  refuse(R"(["a\tb"])", PuzzleForm::grid, {"cell 2", "control character \\t"});
  refuse(R"([["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]])", PuzzleForm::grid, {"33 bytes", "32"});
  refuse("[[1]]", PuzzleForm::pairs, {"cell 1 is neither a string nor a number"});
  const std::string longest(static_cast<size_t>(kMostCells), 'a');
  EXPECT_EQ(parse_cells(longest, PuzzleForm::pairs).cols, kMostCells);
  expect_error(ExitCode::data, {"more than 65535 cells"}, [&] { parse_cells(longest + "a", PuzzleForm::pairs); });
  expect_error(ExitCode::data, {"not valid UTF-8"}, [] { parse_cells("\xFF", PuzzleForm::pairs); });
}

TEST(CellText, AStringTakesTheShapeThatIsAskedFor) {
  const auto shaped = [](int64_t rows, int64_t cols) {
    Cells cells = parse_cells("123456", PuzzleForm::grid);
    shape_cells(cells, rows, cols, "; say more");
    return std::pair{cells.rows, cells.cols};
  };
  EXPECT_EQ(shaped(2, 0), (std::pair<int64_t, int64_t>{2, 3}));
  EXPECT_EQ(shaped(0, 2), (std::pair<int64_t, int64_t>{3, 2}));
  EXPECT_EQ(shaped(6, 1), (std::pair<int64_t, int64_t>{6, 1}));
  expect_error(ExitCode::data, {"6 cells", "no square; say more"}, [&] { shaped(0, 0); });
  expect_error(ExitCode::data, {"do not make 4 rows"}, [&] { shaped(4, 0); });
  expect_error(ExitCode::data, {"do not make 2 rows and 2 columns"}, [&] { shaped(2, 2); });
}

TEST(CellText, ALineIsAnArrayUnlessItsBracketIsASymbol) {
  PuzzleVocabulary vocabulary{PuzzleForm::grid, {"", "a", "b"}, 1, 2, {}};
  EXPECT_EQ(parse_cell_line(R"([["a","b"]])", vocabulary).texts, (std::vector<std::string>{"a", "b"}));
  expect_error(ExitCode::data, {"JSON array"}, [&] { parse_cell_line("[a", vocabulary); });
  vocabulary.tokens[2] = "[";
  EXPECT_EQ(parse_cell_line("[a", vocabulary).texts, (std::vector<std::string>{"[", "a"}));
}

TEST(PuzzleVocabulary, IsReadAsItWasWritten) {
  const test::TempDir dir;
  const PuzzleVocabulary grids{PuzzleForm::grid, {"", "a", "\"", "\\", "ä"}, 2, 3, {"identity", "rotate_180"}};
  const PuzzleVocabulary pairs{PuzzleForm::pairs, {"", "", "10"}, 1, 7, {}};
  for (const PuzzleVocabulary& vocabulary : {grids, pairs}) {
    EXPECT_EQ(parse_vocabulary(vocabulary_text(vocabulary), "x", ExitCode::data), vocabulary);
    write_vocabulary(dir.path(), vocabulary);
    EXPECT_EQ(read_vocabulary(dir.path()), vocabulary);
  }
  EXPECT_EQ(grids.token("\\"), 3);
  EXPECT_EQ(grids.token("?"), std::nullopt);
  EXPECT_EQ(grids.token(""), std::nullopt);
  EXPECT_EQ(read_vocabulary(dir / "nowhere"), std::nullopt);
  // A checkpoint's manifest doubles backslashes and must find nothing else to change.
  for (const char c : vocabulary_text(grids)) EXPECT_TRUE(c >= 0x20 && c < 0x7F);
}

TEST(PuzzleVocabulary, RefusesDamagedFiles) {
  const std::string good = vocabulary_text({PuzzleForm::grid, {"", "a", "b"}, 2, 3, {}});
  const auto refuse_with = [&](const std::string& from, const std::string& to, const std::string& part) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    expect_error(ExitCode::data, {"file: ", part}, [&] { parse_vocabulary(text, "file", ExitCode::data); });
  };
  refuse_with("\"grid\"", "\"cube\"", "\"kind\"");
  refuse_with("\"kind\"", "\"sort\"", "has no \"kind\"");
  refuse_with(":2", ":0", "\"rows\" is not a whole number");
  refuse_with(":2", ":65535", "196605 cells");
  refuse_with("\"b\"", "\"a\"", "two tokens have the text \"a\"");
  refuse_with("\"b\"", "\"\"", "token 2 has a text of 0 bytes");
  refuse_with("\"b\"", "3", "\"tokens\" is not a list of texts");
  refuse_with("\"symmetries\":[]", "\"symmetries\":[\"mirror\"]", "'mirror', which is unknown");
  refuse_with("\"pad_id\":0", "\"pad_id\":1", "\"pad_id\"");
}

}  // namespace
}  // namespace hrm::data
