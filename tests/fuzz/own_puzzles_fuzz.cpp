// vocabulary.json of puzzles of any kind, and questions as `solve` reads them.
#include <nlohmann/json.hpp>

#include "fuzz/fuzz.h"
#include "hrm/data/cell_text.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::data, [&] {
    const data::PuzzleVocabulary read = data::parse_vocabulary(text, "vocabulary.json", ExitCode::data);
    fuzz::check(read.tokens.size() <= data::kMostPuzzleTokens && read.cells() >= 1 && read.cells() <= data::kMostCells,
                "sizes within the limits");
    const std::string written = data::vocabulary_text(read);
    fuzz::check(data::parse_vocabulary(written, "again", ExitCode::data) == read, "the same after writing it");
  });
  for (const data::PuzzleForm form : {data::PuzzleForm::grid, data::PuzzleForm::pairs}) {
    fuzz::parses(ExitCode::data, [&] {
      data::PuzzleVocabulary vocabulary;
      vocabulary.form = form;
      vocabulary.tokens = {"", "#", ".", "1-2"};
      const data::Cells cells = data::parse_cell_line(text, vocabulary);
      fuzz::check(!cells.texts.empty() && static_cast<int64_t>(cells.texts.size()) <= data::kMostCells, "cells");
      for (const std::string& cell : cells.texts) fuzz::touch(cell);
      fuzz::touch(data::format_cells(cells, form));
    });
  }
  return 0;
}
