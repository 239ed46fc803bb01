// A task of ARC as JSON, a file of tasks' one entry. The first byte chooses whether answers may be missing.
#include "data/puzzle/arc_files.h"
#include "fuzz/fuzz.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  fuzz::parses(ExitCode::data, [&] {
    const data::ArcSource source = data::parse_arc_source(fuzz::text_of(data + 1, size - 1), "task", "task.json",
                                                          /*unsolved=*/(data[0] & 1) != 0);
    fuzz::check(!source.task.train.empty() && !source.task.test.empty(), "pairs of both kinds");
    for (const auto* pairs : {&source.task.train, &source.task.test}) {
      for (const data::ArcPair& pair : *pairs) {
        for (const data::ArcGrid& grid : {pair.input, pair.output}) {
          fuzz::check(grid.rows >= 1 && grid.rows <= data::kArcSide && grid.cols >= 1 && grid.cols <= data::kArcSide,
                      "1 to 30 rows and columns");
          fuzz::check(grid.cells.size() == static_cast<size_t>(grid.rows * grid.cols), "all cells");
          uint8_t tokens[data::kArcCells];
          data::arc_tokens(grid, data::kArcSide - grid.rows, 0, tokens);
          for (const uint8_t token : tokens) fuzz::check(token < data::kArcVocabSize, "tokens of the vocabulary");
          const data::ArcAugmentation turn{.transform = data[0] % 8, .colours = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}};
          fuzz::check(turn.undo(turn.apply(grid)) == grid, "the inverse of a copy");
        }
      }
    }
    fuzz::touch(data::python_json(source.json));
  });
  fuzz::parses(ExitCode::data, [&] {
    const data::ArcName name = data::parse_arc_name(std::string(fuzz::text_of(data + 1, size - 1)));
    if (name.copy) fuzz::touch(data::arc_name(name.task, name.augmentation));
  });
  return 0;
}
