#pragma once
// The rules of the puzzles that the project knows: whether an answer solves its question, without a reference answer.

#include <cstdint>
#include <functional>

#include "hrm/config/config.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::tasks {

enum class PuzzleGame { unknown, sudoku, maze };

// By the sizes of the model, and by data.kind where both would fit.
PuzzleGame game_of(const models::PuzzleModelDims& dims, const config::DataConfig& data);

// Takes the S tokens of a question and of an answer. A Sudoku must be full and break no rule, a maze have one path from
// start to goal; both must keep what is given. Tokens that stand for nothing make an answer invalid.
using PuzzleRules = std::function<bool(const int32_t* question, const int32_t* answer)>;

// Empty for a game that is not known, and for a Sudoku whose boxes are not.
PuzzleRules puzzle_rules(const models::PuzzleModelDims& dims, const config::DataConfig& data);

}  // namespace hrm::tasks
