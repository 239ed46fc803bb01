// Official state dicts: the fixtures' files and files made by hand.
#include "hrm/checkpoint/import.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/checkpoint/export.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"
#include "model_support.h"
#include "sample_state.h"
#include "support/expect_error.h"
#include "support/fixture_model.h"
#include "support/nested_pt.h"
#include "support/paths.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

struct Fixture {
  explicit Fixture(const std::string& name)
      : folder(fs::path(test::source_dir()) / "tests" / "fixtures" / name),
        file(folder / "step_12"),
        json(nlohmann::json::parse(read_text(folder / "case.json", ExitCode::data))),
        tensors(folder / "tensors.safetensors") {
    const nlohmann::json& c = json.at("config");
    config = test::fixture_model(c.contains("no_ACT_continue") ? "trm" : "hrm", c);
  }
  at::Tensor tensor(const std::string& name) const {
    const ArrayView& view = tensors.at(name);
    return tensor_from_bytes(view.dtype, view.shape, view.bytes);
  }
  fs::path folder, file;
  nlohmann::json json;
  SafetensorsFile tensors;
  config::ModelConfig config;
};

// Compares the first `segments` segments, 0 = all.
void expect_fixture_answers(const std::string& name, double tolerance, int64_t segments = 0) {
  const Fixture fixture(name);
  OfficialModel imported = read_official(fixture.file, name_of(fixture.config.arch), fixture.config);
  EXPECT_EQ(imported.dims.vocab_size, fixture.json["config"]["vocab_size"].get<int64_t>());
  EXPECT_EQ(imported.dims.num_puzzle_identifiers, fixture.json["config"]["num_puzzle_identifiers"].get<int64_t>());
  EXPECT_EQ(imported.dims.seq_len, fixture.config.mlp_t ? 16 : 0) << "known only where a weight tells it";
  EXPECT_EQ(imported.weights.raw.size(), fixture.json.at("keys").size());

  imported.dims.seq_len = fixture.json["config"]["seq_len"];
  auto model = models::make_puzzle_model(fixture.config, imported.dims, 99, at::kCPU, at::kFloat);
  set_weights(*model, imported.weights.raw);
  const at::Tensor logits = fixture.tensor("out.logits");
  const Answers answers =
      answers_of(*model, fixture.tensor("in.inputs"), fixture.tensor("in.puzzle_identifiers"), logits.size(0));
  if (segments == 0) segments = logits.size(0);
  const auto near = [&](const at::Tensor& got, const at::Tensor& expected) {
    return at::allclose(got.narrow(0, 0, segments), expected.narrow(0, 0, segments), tolerance, tolerance);
  };
  EXPECT_TRUE(near(answers.logits, logits)) << (answers.logits - logits).abs().max();
  EXPECT_TRUE(near(answers.q_halt, fixture.tensor("out.q_halt_logits")));
  EXPECT_TRUE(near(answers.q_continue, fixture.tensor("out.q_continue_logits")));
}

TEST(Import, HrmGivesTheOfficialAnswers) {
  expect_fixture_answers("checkpoint_hrm", 1e-4);
}
// These random weights magnify a difference about tenfold per segment: the official computation in float64 is 1e-4
// away from its own float32 after two segments and 4e-3 after four.
TEST(Import, TrmGivesTheOfficialAnswers) {
  expect_fixture_answers("checkpoint_trm", 2e-4, 2);
  expect_fixture_answers("checkpoint_trm", 2e-2);
}
// The reference computed in bfloat16, we in float32: eps(bf16) = 2^-8 through two segments of 12 block passes.
TEST(Import, HrmInBfloat16GivesSimilarAnswers) {
  expect_fixture_answers("checkpoint_hrm_bf16", 0.1);
}

TEST(Import, Bfloat16InitialStatesBecomeFloat) {
  const Fixture fixture("checkpoint_hrm_bf16");
  const TorchArchive archive(fixture.file);
  EXPECT_EQ(archive.at("_orig_mod.model.inner.H_init").dtype, DType::bf16);
  for (const auto& [name, tensor] : read_official(fixture.file, "hrm", fixture.config).weights.raw) {
    EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    const NamedTensor& stored = archive.at("_orig_mod.model.inner." + name);
    EXPECT_TRUE(at::equal(tensor, tensor_from_bytes(stored.dtype, stored.shape, stored.bytes).to(at::kFloat)));
  }
}

// Writes a state dict of the variant's weights after `change`.
fs::path write_pt(const TempDir& dir, const NamedTensors& weights, const std::string& prefix) {
  std::vector<at::Tensor> hosts;
  std::vector<NamedTensor> entries;
  for (const auto& [name, tensor] : weights) {
    const at::Tensor& host = hosts.emplace_back(host_tensor(tensor));
    entries.push_back({prefix + name, dtype_of(host.scalar_type()), host.sizes().vec(), bytes_of(host)});
  }
  const std::vector<std::byte> bytes = build_torch_state_dict(entries);
  const fs::path file = dir / "weights.pt";
  write_file(file, bytes);
  return file;
}

TEST(Import, AnyPrefixAndEveryVariant) {
  const TempDir dir;
  for (const Variant& variant : all_variants()) {
    if (variant.config.arch == config::PuzzleArch::transformer) continue;
    const auto model = make_variant(variant.config);
    for (const std::string prefix : {"", "model.", "model.inner.", "_orig_mod.model.inner.",
                                     "module._orig_mod.model.inner.", "_orig_mod.module.", "model._orig_mod.inner."}) {
      const fs::path file = write_pt(dir, tensors_of(*model), prefix);
      const OfficialModel imported = read_official(file, name_of(variant.config.arch), variant.config);
      auto copy = make_variant(variant.config, 77);
      set_weights(*copy, imported.weights.raw);
      const NamedTensors original = tensors_of(*model), copied = tensors_of(*copy);
      for (size_t i = 0; i < original.size(); ++i) {
        EXPECT_TRUE(at::equal(original[i].second, copied[i].second)) << variant.name << " " << original[i].first;
      }
      const Answers a = answers_of(*model, sample_inputs(), sample_identifiers(), 2);
      const Answers b = answers_of(*copy, sample_inputs(), sample_identifiers(), 2);
      EXPECT_TRUE(at::equal(a.logits, b.logits)) << variant.name << " " << prefix;
    }
  }
}

// What trainers save: the state dict beside a step and the optimizer.
TEST(Import, StateDictsOneLevelDeep) {
  const TempDir dir;
  const Variant variant = all_variants()[0];
  const auto model = make_variant(variant.config);
  const fs::path file = write_pt(dir, tensors_of(*model), "_orig_mod.model.inner.");
  const std::string flat = read_text(file, ExitCode::data);
  for (const char* member : {"model", "state_dict", "model_state_dict", "module"}) {
    write_file(file, test::nested_pt(as_bytes(flat), member));
    const OfficialModel imported = read_official(file, name_of(variant.config.arch), variant.config);
    auto copy = make_variant(variant.config, 77);
    set_weights(*copy, imported.weights.raw);
    const NamedTensors original = tensors_of(*model), copied = tensors_of(*copy);
    for (size_t i = 0; i < original.size(); ++i) EXPECT_TRUE(at::equal(original[i].second, copied[i].second)) << member;
  }
  write_file(file, test::nested_pt(as_bytes(flat), "network"));
  expect_error(ExitCode::checkpoint, {"no HRM, TRM or URM model", "its tensors are called 'network.", " and so on"},
               [&] { read_official(file, name_of(variant.config.arch), variant.config); });
}

TEST(Import, RefusesByName) {
  const TempDir dir;
  const config::ModelConfig config = all_variants()[0].config;
  const NamedTensors good = tensors_of(*make_variant(config));
  const auto expect = [&](const std::vector<std::string>& parts, const std::function<void(NamedTensors&)>& change) {
    NamedTensors weights = good;
    change(weights);
    const fs::path file = write_pt(dir, weights, "model.inner.");
    expect_error(ExitCode::checkpoint, parts, [&] { read_official(file, "hrm", config); });
  };
  expect({"'surprise.weight'", "unknown"}, [](NamedTensors& w) { w.emplace_back("surprise.weight", at::ones({2})); });
  expect({"'lm_head.weight'", "missing"}, [](NamedTensors& w) {
    w.erase(std::find_if(w.begin(), w.end(), [](const auto& entry) { return entry.first == "lm_head.weight"; }));
  });
  expect({"'lm_head.weight'", "[7, 31]", "[7, 32]"}, [](NamedTensors& w) {
    for (auto& [name, tensor] : w) {
      if (name == "lm_head.weight") tensor = at::ones({7, 31});
    }
  });
  expect({"'model.inner.H_init'", "I64"}, [](NamedTensors& w) {
    for (auto& [name, tensor] : w) {
      if (name == "H_init") tensor = tensor.to(at::kLong);
    }
  });
  expect({"no HRM, TRM or URM model"}, [](NamedTensors& w) { w = {{"transformer.wte", at::ones({2, 2})}}; });
}

TEST(Import, ContradictionsInOneSentence) {
  const TempDir dir;
  const config::ModelConfig config = all_variants()[0].config;
  const fs::path file = write_pt(dir, tensors_of(*make_variant(config)), "_orig_mod.model.inner.");
  config::ModelConfig other = config;
  other.hidden_size = 64;
  other.H_layers = 1;
  other.pos_encodings = config::PositionEncoding::learned;
  expect_error(ExitCode::checkpoint,
               {"does not fit the configuration", "model.hidden_size is 32 there and 64", "model.H_layers is 2",
                "model.hidden_size=32 model.H_layers=2 model.pos_encodings=rope"},
               [&] { read_official(file, "hrm", other); });
  expect_error(ExitCode::usage, {"--from trm needs model.arch=trm"}, [&] { read_official(file, "trm", config); });
  other = all_variants()[4].config;
  expect_error(ExitCode::checkpoint, {"model.arch is hrm there and trm in the configuration"},
               [&] { read_official(file, "trm", other); });
  other.arch = config::PuzzleArch::urm;
  expect_error(ExitCode::checkpoint, {"model.arch is hrm there and urm in the configuration"},
               [&] { read_official(file, "urm", other); });
  const Variant urm = all_variants()[7];
  ASSERT_EQ(urm.name, "urm");
  const fs::path urm_file = write_pt(dir, tensors_of(*make_variant(urm.config)), "model.inner.");
  other = all_variants()[4].config;
  other.L_layers = 3;
  expect_error(ExitCode::checkpoint, {"model.arch is urm there and trm", "model.L_layers is 2 there and 3"},
               [&] { read_official(urm_file, "trm", other); });
  expect_error(ExitCode::checkpoint, {"nothing.pt"}, [&] { read_official(dir / "nothing.pt", "hrm", config); });
  std::ofstream(dir / "text.pt") << "no zip";
  expect_error(ExitCode::checkpoint, {"text.pt"}, [&] { read_official(dir / "text.pt", "hrm", config); });
}

TEST(Import, MakesACheckpointOfWeights) {
  const Fixture fixture("checkpoint_trm");
  const TempDir run;
  const OfficialModel imported = read_official(fixture.file, "trm", fixture.config);
  save_weights(run.path(), imported.weights, sample_meta(0), 1);
  const ModelWeights back = load_weights(open_checkpoint(run.path()).dir);
  ASSERT_EQ(back.raw.size(), imported.weights.raw.size());
  for (size_t i = 0; i < back.raw.size(); ++i) {
    EXPECT_EQ(back.raw[i].first, imported.weights.raw[i].first);
    EXPECT_TRUE(at::equal(back.raw[i].second, imported.weights.raw[i].second));
  }
}

TEST(Import, ExportedPtIsTheOfficialFileAgain) {
  for (const std::string name : {"checkpoint_hrm", "checkpoint_hrm_bf16", "checkpoint_trm"}) {
    const Fixture fixture(name);
    const TempDir dir;
    const OfficialModel imported = read_official(fixture.file, name_of(fixture.config.arch), fixture.config);
    export_pt(imported.weights.raw, dir / "out.pt");
    const TorchArchive official(fixture.file), ours(dir / "out.pt");
    ASSERT_EQ(official.tensors().size(), ours.tensors().size());
    for (const NamedTensor& entry : official.tensors()) {
      const NamedTensor& mine = ours.at(entry.name);
      EXPECT_EQ(mine.shape, entry.shape);
      if (entry.dtype != mine.dtype) continue;  // an H_init of float32 that fits bfloat16
      EXPECT_TRUE(std::equal(mine.bytes.begin(), mine.bytes.end(), entry.bytes.begin(), entry.bytes.end()))
          << entry.name;
    }
    const bool bf16 = name == "checkpoint_hrm_bf16";
    EXPECT_EQ(ours.at("_orig_mod.model.inner.H_init").dtype, bf16 ? DType::bf16 : DType::f32);
  }
}

}  // namespace
}  // namespace hrm::checkpoint
