#include <gtest/gtest.h>

#include "hrm/base/error.h"
#include "hrm/models/puzzle_model.h"

namespace hrm::models {
namespace {

config::ModelConfig trm() {
  config::ModelConfig c;
  c.arch = config::PuzzleArch::trm;
  c.H_layers = 0;
  return c;
}

data::PuzzleMeta sudoku() {
  data::PuzzleMeta meta;
  meta.vocab_size = 11;
  meta.seq_len = 81;
  return meta;
}

TEST(ResolveDims, Defaults) {
  config::ModelConfig c;
  PuzzleModelDims dims = resolve_dims(c, sudoku());
  EXPECT_EQ(dims.puzzle_emb_ndim, 512);
  EXPECT_EQ(dims.puzzle_emb_len, 1);
  EXPECT_EQ(dims.seq_len, 81);
  c.puzzle_emb_ndim = 513;
  EXPECT_EQ(resolve_dims(c, sudoku()).puzzle_emb_len, 2);
  c.puzzle_emb_ndim = 0;
  EXPECT_EQ(resolve_dims(c, sudoku()).puzzle_emb_len, 0);
  c = trm();
  c.puzzle_emb_len = 16;
  EXPECT_EQ(resolve_dims(c, sudoku()).puzzle_emb_len, 16);
}

struct Refusal {
  std::function<void(config::ModelConfig&)> edit;
  std::string sentence;  // part of the error
};

TEST(ResolveDims, RefusesContradictions) {
  const std::vector<Refusal> refusals{
      {[](auto& c) { c.H_layers = 0; }, "model.H_layers of at least 1"},
      {[](auto& c) { c.arch = config::PuzzleArch::trm; }, "set model.H_layers=0"},
      {[](auto& c) { c.arch = config::PuzzleArch::transformer, c.H_layers = 0; }, "set both to 1"},
      {[](auto& c) { c.mlp_t = true; }, "use none or learned"},
      {[](auto& c) { c.num_heads = 7; }, "must divide model.hidden_size (512)"},
      {[](auto& c) { c.hidden_size = 24, c.num_heads = 8; }, "even head width"},
      {[](auto& c) { c.puzzle_emb_ndim = 0, c.puzzle_emb_len = 2; }, "set model.puzzle_emb_len=0"},
      {[](auto& c) { c.puzzle_emb_ndim = 1025, c.puzzle_emb_len = 2; }, "use 0 or at least 3"},
  };
  for (const Refusal& refusal : refusals) {
    config::ModelConfig c;
    refusal.edit(c);
    try {
      resolve_dims(c, sudoku());
      ADD_FAILURE() << "accepted: " << refusal.sentence;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage) << error.what();
      EXPECT_NE(std::string(error.what()).find(refusal.sentence), std::string::npos) << error.what();
    }
  }
}

TEST(ResolveDims, RefusesEmptyData) {
  data::PuzzleMeta meta = sudoku();
  meta.vocab_size = 0;
  try {
    resolve_dims({}, meta);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
  }
}

// Heads do not matter where there is no attention.
TEST(ResolveDims, MlpVariantNeedsNoHeads) {
  config::ModelConfig c = trm();
  c.mlp_t = true;
  c.pos_encodings = config::PositionEncoding::none;
  c.num_heads = 7;
  EXPECT_NO_THROW(resolve_dims(c, sudoku()));
}

}  // namespace
}  // namespace hrm::models
