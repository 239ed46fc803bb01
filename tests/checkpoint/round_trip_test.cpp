// What is saved comes back bit by bit, and only into the object that it belongs to.
#include <gtest/gtest.h>

#include <fstream>

#include "sample_state.h"
#include "support/expect_error.h"
#include "support/python.h"
#include "support/state_check.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

using test::expect_error;
using test::TempDir;

std::filesystem::path save(const TempDir& run, int64_t step, int64_t seed = 5, int64_t keep = 10) {
  SampleState state(seed);
  return save_checkpoint(run.path(), state, sample_meta(step), keep);
}

TEST(RoundTrip, EveryTypeAndScalarBitByBit) {
  const TempDir run;
  SampleState state(5), fresh(6);
  ASSERT_NE(test::first_state_difference(state, fresh), "");
  const auto dir = save_checkpoint(run.path(), state, sample_meta(42), 1);
  EXPECT_EQ(dir, run.path() / "checkpoints" / "step-000000042");

  const void* memory = fresh.weight.data_ptr();
  load_checkpoint(dir, fresh);
  EXPECT_EQ(test::first_state_difference(state, fresh), "");
  EXPECT_EQ(digest_state(state), digest_state(fresh));
  EXPECT_EQ(fresh.weight.data_ptr(), memory) << "loaded in place";
  EXPECT_TRUE(fresh.weight.requires_grad());
  EXPECT_EQ(fresh.moment.strides(), state.moment.strides());
}

TEST(RoundTrip, MetaComesBack) {
  const TempDir run;
  const FoundCheckpoint found = open_checkpoint(save(run, 7));
  EXPECT_EQ(found.meta.step, 7);
  EXPECT_EQ(found.meta.config_json, sample_meta(7).config_json);
  EXPECT_EQ(found.meta.info.at("model"), "sample, 12 parameters");
  EXPECT_EQ(found.meta.info.at("odd"), "line\\nbreak");
  EXPECT_EQ(found.meta.kind, CheckpointKind::full);
}

TEST(RoundTrip, AnObjectContinuesAfterARealCheckpoint) {
  class Walk : public Stateful {
   public:
    void visit_state(StateVisitor& v) override {
      v.tensor("walk.position", position_, StateRole::weight);
      v.tensor("walk.speed", speed_, StateRole::optimizer);
      v.integer("walk.step", step_);
      v.real("walk.rate", rate_);
    }
    void train(int i) {
      speed_.mul_(0.9).add_(i + 1);
      rate_ /= 3;
      position_.add_(speed_ * rate_ * static_cast<double>(++step_));
    }
    at::Tensor position_ = at::zeros({3}), speed_ = at::zeros({3});
    int64_t step_ = 0;
    double rate_ = 1;
  } trained, fresh;
  const TempDir run;
  EXPECT_EQ(test::unregistered_state<Walk>(
                trained, fresh, [](Walk& walk, int i) { walk.train(i); }, 3, 3,
                [&](Stateful& from, Stateful& to) {
                  load_checkpoint(save_checkpoint(run.path(), from, sample_meta(3), 1), to);
                }),
            "");
}

TEST(RoundTrip, OldCheckpointsGoAndTheNewestStay) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30, 40}) save(run, step, step, 2);
  const auto dirs = list_checkpoints(run.path());
  ASSERT_EQ(dirs.size(), 2u);
  EXPECT_EQ(dirs[0].filename(), "step-000000040");
  EXPECT_EQ(dirs[1].filename(), "step-000000030");
  // The new one stays even where later steps exist (a run that went back).
  const auto dir = save(run, 5, 5, 1);
  ASSERT_EQ(list_checkpoints(run.path()).size(), 1u);
  EXPECT_EQ(list_checkpoints(run.path())[0], dir);
  // Nothing else is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run / "checkpoints"), {}), 1);
}

TEST(RoundTrip, TheSameStepIsReplaced) {
  const TempDir run;
  save(run, 10, 1);
  save(run, 10, 2);
  SampleState expected(2), loaded(0);
  load_checkpoint(list_checkpoints(run.path()).at(0), loaded);
  EXPECT_EQ(digest_state(loaded), digest_state(expected));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run / "checkpoints"), {}), 1);
}

TEST(RoundTrip, LeftoversOfAKilledProcessAreRemoved) {
  const TempDir run;
  std::filesystem::create_directories(run.path() / "checkpoints" / ".tmp-step-000000009-77" / "deep");
  save(run, 10);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run / "checkpoints"), {}), 1);
}

TEST(RoundTrip, WeightsByOfficialName) {
  const TempDir run;
  SampleState state(5);
  const ModelWeights weights = load_weights(save_checkpoint(run.path(), state, sample_meta(1), 1));
  ASSERT_EQ(weights.raw.size(), 4u);
  ASSERT_EQ(weights.ema.size(), 4u);
  const std::map<std::string, at::Tensor> raw(weights.raw.begin(), weights.raw.end());
  const std::map<std::string, at::Tensor> ema(weights.ema.begin(), weights.ema.end());
  EXPECT_TRUE(at::equal(raw.at("H_level.layers.0.mlp.weight"), state.weight));
  EXPECT_TRUE(at::equal(ema.at("H_level.layers.0.mlp.weight"), state.average));
  EXPECT_TRUE(at::equal(ema.at("puzzle_emb.weights"), state.table)) << "what has no average stands in both sets";
  EXPECT_EQ(raw.at("H_init").scalar_type(), at::kBFloat16);
}

TEST(RoundTrip, NamesOfTheModelObjectAreStripped) {
  class Prefixed : public Stateful {
   public:
    void visit_state(StateVisitor& v) override {
      v.tensor("model.H_init", init, StateRole::weight);
      v.tensor("ema.model.H_init", average, StateRole::ema);
    }
    at::Tensor init = at::ones({2}), average = at::full({2}, 3.0);
  } state, fresh;
  fresh.init.zero_();
  const TempDir run;
  const auto dir = save_checkpoint(run.path(), state, sample_meta(1), 1);
  EXPECT_EQ(load_weights(dir).raw.at(0).first, "H_init");
  EXPECT_EQ(load_weights(dir).ema.at(0).first, "H_init");
  load_checkpoint(dir, fresh);
  EXPECT_TRUE(at::equal(fresh.init, state.init));
}

TEST(RoundTrip, WeightsAloneIntoAnObject) {
  const TempDir run;
  SampleState state(5);
  const auto dir = save_checkpoint(run.path(), state, sample_meta(1), 1);
  SampleState raw(6), ema(6), untouched(6);
  load_weights_into(dir, raw, WeightSet::raw);
  EXPECT_TRUE(at::equal(raw.weight, state.weight));
  EXPECT_TRUE(at::equal(raw.moment, untouched.moment));
  EXPECT_EQ(raw.step, untouched.step);
  load_weights_into(dir, ema, WeightSet::ema);
  EXPECT_TRUE(at::equal(ema.weight, state.average));
  EXPECT_TRUE(at::equal(ema.table, state.table));
}

// Entries of a state that others do not know.
class Part : public Stateful {
 public:
  void visit_state(StateVisitor& v) override {
    v.tensor("part.values", values, StateRole::loop);
    if (longer) v.tensor("part.more", more, StateRole::loop);
    v.integer("part.count", count);
    v.real("part.rate", rate);
  }
  at::Tensor values = at::zeros({3}), more = at::zeros({2});
  bool longer = false;
  int64_t count = 0;
  double rate = 0;
};

class WithPart : public Stateful {
 public:
  void visit_state(StateVisitor& v) override {
    sample.visit_state(v);
    part.visit_state(v);
  }
  SampleState sample{1};
  Part part;
};

TEST(StatePart, TakesTheEntriesWithItsPrefixAndLooksAtTheStateAlone) {
  const TempDir run;
  WithPart whole;
  whole.part.values.fill_(2.5);
  whole.part.count = 7;
  whole.part.rate = 0.125;
  const auto dir = save_checkpoint(run.path(), whole, sample_meta(3), 1);
  std::filesystem::remove(dir / "model.pt");
  std::filesystem::remove(dir / "config.json");
  Part part;
  EXPECT_TRUE(load_state_part(dir, part, "part."));
  EXPECT_EQ(test::first_state_difference(part, whole.part), "");

  // Neither side may have more than the other.
  Part longer;
  longer.longer = true;
  test::expect_error(ExitCode::checkpoint, {"part.more"}, [&] { load_state_part(dir, longer, "part."); });
  EXPECT_EQ(longer.count, 0) << "a refused checkpoint changes nothing";
  whole.part.longer = true;
  const auto other = save_checkpoint(run.path(), whole, sample_meta(4), 2);
  test::expect_error(ExitCode::checkpoint, {"part.more"}, [&] { load_state_part(other, part, "part."); });
}

TEST(StatePart, IsNotThere) {
  const TempDir run;
  Part part;
  part.count = 9;
  EXPECT_FALSE(load_state_part(save(run, 7), part, "part."));
  const auto weights = save_weights(run.path(), {{{"H_init", at::zeros({2})}}, {}}, sample_meta(8), 2);
  EXPECT_FALSE(load_state_part(weights, part, "part."));
  EXPECT_EQ(part.count, 9);
}

TEST(RoundTrip, KindWeights) {
  const TempDir run;
  ModelWeights weights;
  weights.raw = {{"H_level.layers.0.mlp.weight", at::ones({4, 3})},
                 {"q_head.bias", at::ones({4})},
                 {"puzzle_emb.weights", at::ones({5, 2})},
                 {"H_init", at::ones({3}, at::kBFloat16)}};
  const auto dir = save_weights(run.path(), weights, sample_meta(0), 1);
  const FoundCheckpoint found = open_checkpoint(run.path());
  EXPECT_EQ(found.dir, dir);
  EXPECT_EQ(found.meta.kind, CheckpointKind::weights);
  SampleState state(5);
  expect_error(ExitCode::checkpoint, {"weights alone", "resumed"}, [&] { load_checkpoint(dir, state); });
  expect_error(ExitCode::checkpoint, {"no averaged weights"}, [&] { load_weights_into(dir, state, WeightSet::ema); });
  load_weights_into(dir, state);
  EXPECT_TRUE(at::equal(state.weight, at::ones({4, 3})));
  EXPECT_TRUE(load_weights(dir).ema.empty());
}

TEST(RoundTrip, KindWeightsMayBeRounded) {
  const TempDir dir;
  const at::Tensor exact = at::rand({4, 3}).add(1);
  const std::vector<std::pair<std::string, at::Tensor>> weights = {{"H_level.layers.0.mlp.weight", exact},
                                                                   {"q_head.bias", at::ones({4})},
                                                                   {"puzzle_emb.weights", at::rand({5, 2})},
                                                                   {"H_init", at::ones({3}, at::kBFloat16)}};
  std::ofstream(dir / "words.txt") << "a file beside the weights";
  // Any name will do, and so will a file that the manifest does not list.
  const auto rounded = dir / "any name";
  write_weights_folder(rounded, weights, at::kBFloat16, sample_meta(7), {dir / "words.txt"});
  std::ofstream(rounded / "README.md") << "a card";
  const FoundCheckpoint found = open_checkpoint(rounded);
  EXPECT_EQ(found.dir, rounded);
  EXPECT_EQ(found.meta.kind, CheckpointKind::weights);
  EXPECT_EQ(found.meta.step, 7);
  EXPECT_EQ(found.meta.config_json, sample_meta(7).config_json);
  for (const auto& [name, tensor] : load_weights(rounded).raw) EXPECT_EQ(tensor.scalar_type(), at::kBFloat16) << name;
  SampleState state(5);
  load_weights_into(rounded, state, WeightSet::ema_or_raw);
  EXPECT_TRUE(at::equal(state.weight, exact.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_FALSE(at::equal(state.weight, exact)) << "rounding must be seen here";
  EXPECT_TRUE(at::equal(state.table, weights[2].second.to(at::kBFloat16).to(at::kFloat)));
  // The rows' mean is taken in float32.
  state.table = at::zeros({2, 2});
  load_weights_into(rounded, state, WeightSet::raw, {"puzzle_emb.weights"});
  const at::Tensor mean = weights[2].second.to(at::kBFloat16).to(at::kFloat).mean(0, /*keepdim=*/true);
  EXPECT_TRUE(at::equal(state.table, mean.expand({2, 2})));

  expect_error(ExitCode::environment, {"any name", "exists already"},
               [&] { write_weights_folder(rounded, weights, at::kBFloat16, sample_meta(7)); });
  // The manifest covers the file beside the weights, too.
  std::ofstream(rounded / "words.txt") << "another";
  expect_error(ExitCode::checkpoint, {"words.txt has 7 bytes"}, [&] { open_checkpoint(rounded); });
  // Half of a folder never has the name.
  expect_error(ExitCode::checkpoint, {"absent"},
               [&] { write_weights_folder(dir / "none", weights, at::kFloat, sample_meta(7), {dir / "absent"}); });
  EXPECT_FALSE(fs::exists(dir / "none"));
}

TEST(RoundTrip, KindFullMayNotBeRounded) {
  const TempDir run;
  SampleState state(5);
  state.weight = state.weight.detach().to(at::kBFloat16);
  const auto dir = save_checkpoint(run.path(), state, sample_meta(1), 1);
  SampleState exact(5);
  expect_error(ExitCode::checkpoint, {"H_level.layers.0.mlp.weight", "BFloat16 [4, 3] there and", "Float [4, 3] here"},
               [&] { load_weights_into(dir, exact); });
}

TEST(RoundTrip, RowsOfAnotherCountAreTheMeanWhereThatIsAllowed) {
  const TempDir run;
  ModelWeights weights;
  const at::Tensor rows = at::arange(6, at::kFloat).view({2, 3});
  weights.raw = {{"H_level.layers.0.mlp.weight", rows},
                 {"q_head.bias", at::ones({4})},
                 {"puzzle_emb.weights", at::ones({5, 2})},
                 {"H_init", at::ones({3}, at::kBFloat16)}};
  const auto dir = save_weights(run.path(), weights, sample_meta(0), 1);
  SampleState state(5);
  const at::Tensor before = state.weight.detach().clone();
  expect_error(ExitCode::checkpoint, {"H_level.layers.0.mlp.weight", "[2, 3] there and", "[4, 3] here"},
               [&] { load_weights_into(dir, state, WeightSet::ema_or_raw, {"puzzle_emb.weights"}); });
  EXPECT_TRUE(at::equal(state.weight, before));
  load_weights_into(dir, state, WeightSet::ema_or_raw, {"H_level.layers.0.mlp.weight"});
  EXPECT_TRUE(at::equal(state.weight, at::tensor({1.5F, 2.5F, 3.5F}).expand({4, 3})));
  // Rows of another width have no mean here.
  weights.raw[0].second = at::ones({4, 2});
  const TempDir wide;
  const auto other = save_weights(wide.path(), weights, sample_meta(0), 1);
  expect_error(ExitCode::checkpoint, {"[4, 2] there and"},
               [&] { load_weights_into(other, state, WeightSet::raw, {"H_level.layers.0.mlp.weight"}); });
}

// A SampleState with one difference.
enum class Change { missing, extra, shape, dtype, slice, integer_missing, integer_extra, ema_missing };
class Changed : public SampleState {
 public:
  explicit Changed(Change change) : SampleState(6), change_(change) {
    if (change == Change::shape) bias = at::ones({5});
    if (change == Change::dtype) table = at::ones({5, 2}, at::kDouble);
  }
  void visit_state(StateVisitor& v) override {
    v.tensor("H_level.layers.0.mlp.weight", weight, StateRole::weight);
    v.tensor("q_head.bias", bias, StateRole::weight);
    if (change_ != Change::missing) v.tensor("puzzle_emb.weights", table, StateRole::weight);
    v.tensor("H_init", half, StateRole::weight);
    if (change_ == Change::extra) v.tensor("L_init", half, StateRole::weight);
    if (change_ != Change::ema_missing) v.tensor("ema.H_level.layers.0.mlp.weight", average, StateRole::ema);
    v.tensor("optim.H_level.layers.0.mlp.weight.m", moment, StateRole::optimizer);
    for (size_t i = 0; i < types.size(); ++i) v.tensor(cat("carry.type", i), types[i], StateRole::carry);
    v.tensor("carry.split", odd, StateRole::carry, rows_part(odd.sizes(), 0, change_ == Change::slice ? 16 : 4));
    v.tensor("loop.scalar", scalar, StateRole::loop);
    v.tensor("loop.empty", empty, StateRole::loop);
    if (change_ != Change::integer_missing) v.integer("loop.step", step);
    if (change_ == Change::integer_extra) v.integer("loop.epoch", step);
    v.real("loop.third", third);
    v.real("loop.tiny", tiny);
    v.real("loop.infinite", infinite);
  }

 private:
  Change change_;
};

TEST(OtherArchitecture, NamesTheFirstDifferenceAndChangesNothing) {
  const TempDir run;
  const auto dir = save(run, 1);
  const std::string architecture = "belongs to another architecture: ";
  const std::string configuration = "cannot be resumed with this configuration: ";
  const std::vector<std::tuple<Change, std::string, std::string>> cases = {
      {Change::missing, architecture, "'puzzle_emb.weights' has no counterpart"},
      {Change::extra, architecture, "no entry 'L_init'"},
      {Change::shape, architecture, "[4] there and Float [5]"},
      {Change::dtype, architecture, "Float [5, 2] there and Double [5, 2] here"},
      {Change::slice, configuration, "'carry.split' is Float [4] there and Float [16] here"},
      {Change::integer_missing, configuration, "'loop.step' has no counterpart"},
      {Change::integer_extra, configuration, "no entry 'loop.epoch'"},
      {Change::ema_missing, configuration, "'ema.H_level"},
  };
  for (const auto& [change, kind, part] : cases) {
    Changed object(change);
    const std::string before = digest_state(object);
    expect_error(ExitCode::checkpoint, {"step-000000001", kind, part}, [&] { load_checkpoint(dir, object); });
    EXPECT_EQ(digest_state(object), before) << part;
  }
}

TEST(OpenCheckpoint, TakesARunACheckpointsFolderAndAStep) {
  const TempDir run;
  save(run, 1);
  const auto dir = save(run, 2);
  EXPECT_EQ(open_checkpoint(run.path()).meta.step, 2);
  EXPECT_EQ(open_checkpoint(run / "checkpoints").meta.step, 2);
  EXPECT_EQ(open_checkpoint(run / "checkpoints/").meta.step, 2);
  EXPECT_EQ(open_checkpoint(run.path() / "checkpoints" / "step-000000001/").meta.step, 1);
  std::filesystem::copy(dir, run / "kept", std::filesystem::copy_options::recursive);
  EXPECT_EQ(open_checkpoint(run / "kept").meta.step, 2) << "a copy under any name";
}

TEST(OpenCheckpoint, SaysWhatIsMissing) {
  const TempDir run;
  EXPECT_FALSE(find_latest_valid(run.path()));
  EXPECT_FALSE(find_latest_valid(run / "nowhere"));
  expect_error(ExitCode::checkpoint, {"there is no checkpoint at", "nowhere"},
               [&] { open_checkpoint(run / "nowhere"); });
  expect_error(ExitCode::checkpoint, {"holds no checkpoint"}, [&] { open_checkpoint(run.path()); });
  std::ofstream(run / "model.safetensors") << "x";
  expect_error(ExitCode::checkpoint, {"holds no checkpoint, and no config.json beside its weights", "hf download"},
               [&] { open_checkpoint(run.path()); });
  std::ofstream(run / "config.json") << "{}";
  expect_error(ExitCode::checkpoint, {"holds no checkpoint, and its config.json does not say", "'model_type'"},
               [&] { open_checkpoint(run.path()); });
  std::ofstream(run / "model.pt") << "x";
  expect_error(ExitCode::checkpoint, {"is a file", "import"}, [&] { open_checkpoint(run / "model.pt"); });
}

TEST(ModelFile, OpensInPythonAndAgreesWithOurReader) {
  if (test::python_with_torch().empty()) GTEST_SKIP() << "no Python that can import torch";
  const TempDir run;
  SampleState state(5);
  const auto dir = save_checkpoint(run.path(), state, sample_meta(1), 1);
  // Python reads model.pt by torch's own reader and state.safetensors by hand, and writes all bytes as hex.
  const auto result = test::run_python(run / "check.py", R"(
import json, struct, sys, torch
module = torch.jit.load(sys.argv[1] + "/model.pt")
def show(kind, name, t):
    raw = t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes().hex() if t.numel() else ""
    print(kind, name, str(t.dtype), list(t.shape), raw)
for name, t in module.named_parameters(): show("parameter", name, t)
for name, t in module.named_buffers(): show("buffer", name, t)
assert set(module.state_dict()) == {n for n, _ in module.named_parameters()} | {n for n, _ in module.named_buffers()}
assert all(p.requires_grad for p in module.parameters())
with open(sys.argv[1] + "/state.safetensors", "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
meta = header.pop("__metadata__")
print("third", float.fromhex(meta["real.loop.third"]) == 5 / 3, "step", int(meta["integer.loop.step"]) == -2**63 + 5)
print("slice", meta["slice.carry.split"], "tensors", len(header))
)",
                                       dir.string());
  ASSERT_EQ(result.status, 0) << result.output;
  const auto line = [](const std::string& kind, const std::string& name, const std::string& type, const at::Tensor& t) {
    std::string hex;
    const at::Tensor host = host_tensor(t);
    for (const std::byte byte : bytes_of(host)) {
      const char* digits = "0123456789abcdef";
      hex += digits[static_cast<int>(byte) >> 4];
      hex += digits[static_cast<int>(byte) & 15];
    }
    return cat(kind, " ", name, " torch.", type, " ", shape_text(host.sizes().vec()), " ", hex, "\n");
  };
  const std::string& out = result.output;
  for (const std::string& expected :
       {line("parameter", "H_level.layers.0.mlp.weight", "float32", state.weight),
        line("parameter", "q_head.bias", "float32", state.bias),
        line("buffer", "puzzle_emb.weights", "float32", state.table), line("buffer", "H_init", "bfloat16", state.half),
        line("buffer", "ema.H_level.layers.0.mlp.weight", "float32", state.average)}) {
    EXPECT_NE(out.find(expected), std::string::npos) << expected << "\nis not in\n" << out;
  }
  EXPECT_NE(out.find("third True step True\nslice 0/4 tensors 14\n"), std::string::npos) << out;
}

}  // namespace
}  // namespace hrm::checkpoint
