// The commands import and export, from an official file to files for other programs.
#include <gtest/gtest.h>

#include <fstream>

#include "hrm/base/file.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/commands/commands.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::commands {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

// What the fixture's case.json says about its model.
const std::vector<std::string> kHrm = {"model.arch=hrm",   "model.hidden_size=32", "model.num_heads=2",
                                       "model.H_layers=1", "model.L_layers=1",     "model.puzzle_emb_ndim=32"};

ImportOptions import_options(const TempDir& dir) {
  ImportOptions options;
  options.from = "hrm";
  options.path = (fs::path(test::source_dir()) / "tests/fixtures/checkpoint_hrm/step_12").string();
  options.overrides = kHrm;
  options.out = (dir / "run").string();
  return options;
}

TEST(ImportExport, ThereAndBack) {
  const TempDir dir;
  const ImportOptions options = import_options(dir);
  EXPECT_EQ(run_import(options), 0);
  const checkpoint::FoundCheckpoint found = checkpoint::open_checkpoint(options.out);
  EXPECT_EQ(found.meta.kind, checkpoint::CheckpointKind::weights);
  EXPECT_EQ(found.meta.step, 0);
  EXPECT_EQ(found.meta.info.at("imported_from"), "step_12");

  for (const std::string to : {"pt", "safetensors", "torchscript"}) {
    ExportOptions exported;
    exported.to = to;
    exported.checkpoint = options.out;
    exported.out = (dir / ("model." + to)).string();
    EXPECT_EQ(run_export(exported), 0);
    EXPECT_GT(fs::file_size(exported.out), 1000u);
  }
  const TorchArchive official(options.path), pt(dir / "model.pt");
  const SafetensorsFile safetensors(dir / "model.safetensors");
  EXPECT_EQ(pt.tensors().size(), official.tensors().size());
  for (const NamedTensor& entry : official.tensors()) {
    const NamedTensor& mine = pt.at(entry.name);
    EXPECT_TRUE(std::equal(mine.bytes.begin(), mine.bytes.end(), entry.bytes.begin(), entry.bytes.end())) << entry.name;
    EXPECT_TRUE(safetensors.contains(entry.name.substr(std::string("_orig_mod.").size())));
  }
}

TEST(ImportExport, RefusesInOneSentence) {
  const TempDir dir;
  ImportOptions options = import_options(dir);
  options.overrides.emplace_back("model.hidden_size=64");
  expect_error(ExitCode::checkpoint, {"step_12", "model.hidden_size is 32 there and 64", "add model.hidden_size=32"},
               [&] { run_import(options); });
  EXPECT_FALSE(fs::exists(options.out));
  options = import_options(dir);
  options.path = (dir / "missing.pt").string();
  expect_error(ExitCode::checkpoint, {"missing.pt"}, [&] { run_import(options); });

  options = import_options(dir);
  run_import(options);
  expect_error(ExitCode::usage, {"already holds checkpoints"}, [&] { run_import(options); });

  ExportOptions exported;
  exported.checkpoint = options.out;
  exported.out = (dir / "x").string();
  exported.to = "onnx";
  expect_error(ExitCode::usage, {"'onnx'", "torchscript, safetensors, pt, hf, peft or checkpoint"},
               [&] { run_export(exported); });
  exported.to = "hf";
  expect_error(ExitCode::usage, {"puzzle models", "--to safetensors"}, [&] { run_export(exported); });
  exported.to = "pt";
  exported.dtype = "bfloat16";
  expect_error(ExitCode::usage, {"--dtype bfloat16", "--to hf and checkpoint"}, [&] { run_export(exported); });
  exported.dtype = "fp8";
  expect_error(ExitCode::usage, {"--dtype fp8 is for --to hf"}, [&] { run_export(exported); });
  exported.dtype = "half";
  expect_error(ExitCode::usage, {"'half'", "float32, bfloat16, fp8 or int8"}, [&] { run_export(exported); });
  exported.dtype = "float32";
  exported.weights = "ema";
  expect_error(ExitCode::checkpoint, {"no averaged weights"}, [&] { run_export(exported); });
  exported.weights = "raw";
  exported.checkpoint = (dir / "nowhere").string();
  expect_error(ExitCode::checkpoint, {"nowhere"}, [&] { run_export(exported); });
  exported.checkpoint = options.out;
  exported.out = "/proc/hrm/x";
  expect_error(ExitCode::environment, {"/proc/hrm"}, [&] { run_export(exported); });
}

}  // namespace
}  // namespace hrm::commands
