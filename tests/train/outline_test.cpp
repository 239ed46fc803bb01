// With parallel.zero=3 a rank builds an outline and reads its own part: never the whole model, and the same bits.
#include <ATen/ATen.h>

#include "checkpoint/hf_cases.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/export.h"
#include "hrm/checkpoint/hf_import.h"
#include "hrm/parallel/comm.h"
#include "support/live_bytes.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "support/temp_dir.h"
#include "support/whole_state.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

using test::Overrides;
using test::with;
using testing::SmallLanguage;
using testing::SmallPolychromic;

struct OutlineCase {
  const char* name;
  Overrides more;
  bool causal = false;
  // How the folder of a causal model stores its weights, which are drawn otherwise.
  std::optional<nn::WeightFormat> folder = std::nullopt;
  int64_t width = 40;  // of a causal model
};
void PrintTo(const OutlineCase& c, std::ostream* out) {
  *out << c.name;
}

// Folders of transformers. Slices of such widths begin within rows.
std::filesystem::path model_folder(int64_t width, int64_t inner, int64_t layers,
                                   std::optional<nn::WeightFormat> format = std::nullopt) {
  static const test::TempDir dir;
  const std::filesystem::path out = dir.path() / cat(width, " ", layers, format ? nn::name(*format) : "");
  if (std::filesystem::exists(out)) return out;
  if (!format) {
    std::filesystem::create_directories(out);
    std::ofstream(out / "config.json")
        << R"({"model_type": "qwen3", "vocab_size": 264, "num_attention_heads": 4, "num_key_value_heads": 2,
               "max_position_embeddings": 128, "tie_word_embeddings": true, "hidden_size": )"
        << width << R"(, "head_dim": )" << width / 4 << R"(, "intermediate_size": )" << inner
        << R"(, "num_hidden_layers": )" << layers << "}";
    return out;
  }
  const models::DecoderOptions options =
      checkpoint::decoder_options_of(read_hf_config(model_folder(width, inner, layers)), 128);
  const auto model = checkpoint::hf_decoder(options);
  checkpoint::export_hf(options, checkpoint::decoder_weights(*model), {.eos = 7}, out,
                        {.dtype = at::kFloat, .weights = *format});
  return out;
}

using Tensors = std::map<std::string, at::Tensor>;

// All weights that passes read, whole: the state's, and what is frozen, each when its block's turn has come.
template <class Run>
Tensors weights_of(Run& run, parallel::Comm& comm) {
  Tensors all = test::whole_state(run.trainer, comm);
  nn::ParameterSet& parameters = run.task.parameters();
  for (size_t group = 0; group < parameters.gradient_ready()->groups().size(); ++group) {
    parameters.block_use()->before(static_cast<int>(group));
    size_t part = 0;
    for (const nn::FrozenTensor& frozen : parameters.frozen()) {
      if (frozen.group != static_cast<int>(group)) continue;
      all[cat("frozen ", frozen.name, " ", part++)] = frozen.tensor.detach().clone();
    }
    for (const nn::Parameter& parameter : parameters.all()) {
      if (parameter.group == static_cast<int>(group)) all["compute " + parameter.name] = parameter.compute.clone();
    }
  }
  for (const nn::FrozenTensor& frozen : parameters.frozen()) {
    if (frozen.group < 0) all["frozen " + frozen.name] = frozen.tensor.detach().clone();
  }
  for (const nn::Parameter& parameter : parameters.all()) {
    if (parameter.group < 0) all["compute " + parameter.name] = parameter.compute.detach().clone();
  }
  return all;
}

template <class Run>
void expect_same_bits(const Overrides& settings) {
  const std::filesystem::path dir = testing::fresh_folder("run");
  const auto single = parallel::make_single_comm();
  Run whole(dir, settings);
  whole.trainer.start_fresh();
  const Tensors expected = weights_of(whole, *single);
  for (const int ranks : {2, 4}) {
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
    test::on_threads(ranks, [&](int rank) {
      const auto& comm = comms[static_cast<size_t>(rank)];
      Run run(dir, with(settings, {"parallel.zero=3"}), comm);
      run.trainer.start_fresh();
      const Tensors got = weights_of(run, *comm);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [name, tensor] : expected) {
        ASSERT_TRUE(got.contains(name)) << name;
        const at::Tensor& one = got.at(name);
        // One rank reads an embedding's master, several a copy.
        const bool is_copied = name.starts_with("compute ") && name.ends_with("embed_tokens.weight");
        const at::Tensor other = is_copied ? tensor.to(one.scalar_type()) : tensor;
        ASSERT_EQ(one.sizes(), other.sizes()) << name;
        EXPECT_TRUE(at::equal(one.contiguous().view(-1).view(at::kByte), other.contiguous().view(-1).view(at::kByte)))
            << name << " on rank " << rank << " of " << ranks;
      }
    });
  }
}

class Outlines : public ::testing::TestWithParam<OutlineCase> {};

TEST_P(Outlines, HaveTheBitsOfTheWholeModel) {
  const OutlineCase& c = GetParam();
  if (!c.causal) return expect_same_bits<SmallLanguage>(with({"lm.hidden_size=48"}, c.more));
  Overrides settings{"polychromic.objective=none", "polychromic.max_generation_length=100"};
  settings.push_back("hf.model=" + model_folder(c.width, 2 * c.width, 2, c.folder).string());
  if (c.folder) settings.push_back("hf.weights=load");
  if (std::string(c.name) == "experts") settings.back() = "hf.model=" + testing::answers_folder().string() + "/experts";
  expect_same_bits<SmallPolychromic>(with(settings, c.more));
}

INSTANTIATE_TEST_SUITE_P(
    Models, Outlines,
    ::testing::Values(
        OutlineCase{"decoder", {"lm.arch=decoder"}},
        OutlineCase{"untied_bf16", {"lm.arch=decoder", "lm.tied=false", "precision.compute=bf16", "optim.ema=0.9"}},
        OutlineCase{"mixture", {"lm.arch=decoder", "moe.experts=2", "moe.inner=48", "precision.compute=bf16"}},
        OutlineCase{"hrm", {}}, OutlineCase{"hrm_bf16", {"precision.compute=bf16"}},
        OutlineCase{"mamba", {"lm.encoder=mamba2", "lm.mamba_head_dim=32"}},
        OutlineCase{"adapter", {"precision.compute=bf16"}, true},
        OutlineCase{"dora", {"lora.dora=true", "precision.compute=bf16"}, true},
        OutlineCase{"dora_nf4", {"lora.dora=true", "hf.quantize=nf4"}, true},
        OutlineCase{"untied_head", {"lora.modules_to_save=lm_head"}, true},
        OutlineCase{"nf4", {"hf.quantize=nf4", "precision.compute=bf16"}, true},
        OutlineCase{"int8", {"hf.quantize=int8"}, true}, OutlineCase{"experts", {"lora.targets=o_proj"}, true},
        OutlineCase{"all_weights", {"lora.r=0", "precision.compute=bf16"}, true},
        OutlineCase{"folder", {"lora.r=0"}, true, nn::WeightFormat::f32},
        OutlineCase{"folder_bf16", {"precision.compute=bf16"}, true, nn::WeightFormat::f32},
        OutlineCase{"folder_nf4", {"hf.quantize=nf4"}, true, nn::WeightFormat::f32},
        OutlineCase{"nf4_rows", {"hf.quantize=nf4"}, true, std::nullopt, 64},
        OutlineCase{"folder_nf4_rows", {"hf.quantize=nf4"}, true, nn::WeightFormat::f32, 128},
        OutlineCase{"folder_e4m3", {"hf.quantize=fp8"}, true, nn::WeightFormat::fp8},
        OutlineCase{"folder_int8_as_floats", {"lora.r=0"}, true, nn::WeightFormat::int8}),
    [](const auto& info) { return std::string(info.param.name); });

// Bytes of the blocks' weights as they are trained or kept frozen, and the most that a rank has until its task is
// there, and then until its trainer is, beside what it has at the end.
struct Building {
  int64_t blocks = 0, task = 0, trainer = 0;
};

template <class Task>
Building building_of(const config::LoadedConfig& loaded, int ranks) {
  Building most;
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
  test::on_threads(ranks, [&](int rank) {
    const auto& comm = comms[static_cast<size_t>(rank)];
    const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
    test::LiveBytes live;
    Task task(loaded.config, runtime, comm);
    Building building;
    building.task = live.peak();
    for (const nn::Parameter& parameter : task.parameters().all()) {
      if (parameter.group >= 0) building.blocks += 4 * parameter.master.numel();
    }
    for (const nn::FrozenTensor& frozen : task.parameters().frozen()) {
      if (frozen.group >= 0) building.blocks += static_cast<int64_t>(frozen.tensor.nbytes());
    }
    live.begin();
    train::Trainer trainer(loaded.config, loaded.to_json(), runtime, task, {}, comm);
    building.trainer = live.peak() - live.now();
    comm->barrier();
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    most = {building.blocks, std::max(most.task, building.task), std::max(most.trainer, building.trainer)};
  });
  return most;
}

// The embedding, which every rank has, is small beside the blocks. Moments would hide what was there before them, so
// there are none of the decoder.
TEST(OutlineMemory, NoRankHoldsTheWholeModel) {
  const Overrides plain{"parallel.zero=3", "parallel.bucket_mb=1"};
  const Building decoder = building_of<tasks::LanguageTask>(
      testing::small_language_config(
          testing::fresh_folder("decoder"),
          with(plain, {"lm.arch=decoder", "lm.hidden_size=96", "lm.layers=24", "optim.name=sgd"})),
      4);
  EXPECT_GT(decoder.blocks, 8 << 20);
  EXPECT_LT(decoder.task, decoder.blocks / 4);
  EXPECT_LT(decoder.trainer, decoder.blocks / 4);

  const Overrides adapter = with(plain, {"hf.model=" + model_folder(96, 96, 64).string(), "polychromic.objective=none",
                                         "lora.r=1", "lora.targets=o_proj", "polychromic.max_generation_length=100"});
  for (const char* frozen : {"precision.compute=bf16", "hf.quantize=nf4"}) {
    const Building base = building_of<tasks::PolychromicTask>(
        testing::small_polychromic_config(testing::fresh_folder("adapter"), with(adapter, {frozen})), 4);
    EXPECT_GT(base.blocks, 1 << 20) << frozen;
    EXPECT_LT(base.task, base.blocks / 4) << frozen;
    EXPECT_LT(base.trainer, base.blocks / 4) << frozen;
  }
}

// Of a checkpoint of one rank, each rank reads its own part: whatever stood in memory beside it would be a tensor.
TEST(OutlineMemory, AResumeReadsItsOwnPart) {
  constexpr int kRanks = 4;
  const Overrides settings{"lm.arch=decoder", "lm.hidden_size=96", "lm.layers=24",
                           "optim.name=sgd",  "train.steps=1",     "optim.warmup_steps=0"};
  const std::filesystem::path dir = testing::fresh_folder("whole");
  std::filesystem::path checkpoint;
  {
    SmallLanguage whole(dir, settings);
    whole.trainer.start_fresh();
    whole.trainer.run();
    checkpoint = checkpoint::open_checkpoint(dir / "small").dir;
  }
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(kRanks)) comms.push_back(std::move(comm));
  test::on_threads(kRanks, [&](int rank) {
    const auto& comm = comms[static_cast<size_t>(rank)];
    SmallLanguage run(dir, with(settings, {"parallel.zero=3", "parallel.bucket_mb=1"}), comm);
    test::LiveBytes live;
    run.trainer.resume(checkpoint);
    EXPECT_LT(live.peak(), run.task.parameters().count()) << "that is a quarter of the float32 weights";
    comm->barrier();
  });
}

// A rank of a tensor axis builds its part of each layer from the start: weights and gradients, and no more.
TEST(OutlineMemory, APartOfALayerIsBuiltAlone) {
  constexpr int kParts = 4;
  const config::LoadedConfig loaded = testing::small_language_config(
      testing::fresh_folder("tensor"),
      {"parallel.tensor=4", "lm.arch=decoder", "lm.num_heads=4", "lm.hidden_size=96", "lm.layers=24"});
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(kParts)) comms.push_back(std::move(comm));
  test::on_threads(kParts, [&](int rank) {
    const Runtime runtime = ops::start_runtime_and_ops(loaded.config);
    const test::LiveBytes live;
    tasks::LanguageTask task(loaded.config, runtime, parallel::make_single_comm(), comms[static_cast<size_t>(rank)]);
    const int64_t part = 4 * task.parameters().count();
    EXPECT_LT(live.peak(), 2 * part + part / 2) << "of a whole of " << kParts * part;
    comms[static_cast<size_t>(rank)]->barrier();
  });
}

}  // namespace
}  // namespace hrm
