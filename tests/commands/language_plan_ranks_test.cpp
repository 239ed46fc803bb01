// `plan --ranks` for language models: what is sent is what training sends.
#include "commands/plan_cases.h"
#include "commands/rehearsal.h"
#include "hrm/tasks/language.h"
#include "support/overrides.h"
#include "train/small_language.h"

namespace hrm::commands {
namespace {

using test::Overrides;

using test::with;

// Blocks enough for buffers that take turns.
const Overrides kTurns{"parallel.zero=3", "parallel.bucket_mb=1", "lm.hidden_size=128", "lm.layers=6"};

struct LanguageCase {
  const char* name;
  Overrides more;
};
void PrintTo(const LanguageCase& value, std::ostream* out) {
  *out << value.name;
}

PlanInput language_ranks_input(const Overrides& more) {
  const config::Config config = testing::small_language_config(testing::fresh_folder("config"), more).config;
  return testing::make_plan_input(config, models::language_sizes(config.data, /*vocabulary=*/259),
                                  known_gpus().front());
}

class LanguageRehearsal : public ::testing::TestWithParam<LanguageCase> {};

TEST_P(LanguageRehearsal, IsWhatTrainingSends) {
  const Overrides& more = GetParam().more;
  testing::expect_rehearsed<testing::SmallLanguage>(language_ranks_input(more), more);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LanguageRehearsal,
    ::testing::Values(
        LanguageCase{"hrm", {}}, LanguageCase{"decoder", {"lm.arch=decoder"}},
        LanguageCase{"several_buckets", {"lm.arch=decoder", "lm.hidden_size=128", "parallel.bucket_mb=1"}},
        LanguageCase{"accumulation", {"lm.arch=decoder", "train.micro_batch_size=1"}},
        LanguageCase{"experts", {"moe.experts=2", "moe.inner=16", "moe.bias_rate=0.001"}},
        LanguageCase{"halting", {"objective.halting=0.1", "objective.deep_supervision=0.5"}},
        LanguageCase{"zero1", {"lm.arch=decoder", "parallel.zero=1", "optim.ema=0.9"}},
        LanguageCase{"zero2",
                     {"lm.arch=decoder", "lm.hidden_size=128", "lm.layers=4", "parallel.bucket_mb=1", "parallel.zero=2",
                      "train.micro_batch_size=1"}},
        LanguageCase{"zero1_bf16", {"lm.arch=decoder", "parallel.zero=1", "precision.compute=bf16", "lm.tied=false"}},
        LanguageCase{"zero3", with(kTurns, {"lm.arch=decoder", "train.micro_batch_size=1"})},
        LanguageCase{"zero3_bf16",
                     with(kTurns, {"lm.arch=decoder", "lm.tied=false", "precision.compute=bf16", "optim.ema=0.9"})},
        LanguageCase{"zero3_prefix", with(kTurns, {"lm.enc_layers=4", "lm.bridge=prefix", "train.micro_batch_size=2"})},
        LanguageCase{"zero3_cross", with(kTurns, {"lm.bridge=cross_attention"})},
        LanguageCase{"zero3_cycles", with(kTurns, {"lm.bridge=prefix", "objective.deep_supervision=0.5"})},
        LanguageCase{"prototype", {"lm.style=prototype"}}),
    [](const auto& info) { return std::string(info.param.name); });

// parallel.tensor: the part of the model itself runs, so that all that it sends is there.
struct MeshCase {
  const char* name;
  int ranks = 2;
  Overrides more = {};
};
void PrintTo(const MeshCase& value, std::ostream* out) {
  *out << value.name;
}

const Overrides kCut{"parallel.tensor=2", "lm.num_heads=4", "lm.hidden_size=32", "lm.inner=64"};

class MeshRehearsal : public ::testing::TestWithParam<MeshCase> {};

TEST_P(MeshRehearsal, IsWhatTrainingSends) {
  const Overrides more = with(kCut, GetParam().more);
  testing::expect_rehearsed_on_mesh(
      language_ranks_input(more), testing::small_language_config(testing::fresh_folder("run"), more), GetParam().ranks);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshRehearsal,
    ::testing::Values(MeshCase{"decoder", 2, {"lm.arch=decoder"}},
                      MeshCase{"decoder_data", 4, {"lm.arch=decoder", "parallel.bucket_mb=1", "lm.hidden_size=128"}},
                      MeshCase{"tensor_4", 4, {"lm.arch=decoder", "parallel.tensor=4", "lm.tied=false"}},
                      MeshCase{"accumulation", 2, {"lm.arch=decoder", "train.micro_batch_size=1"}},
                      MeshCase{"accumulation_data", 4, {"lm.arch=decoder", "train.micro_batch_size=1"}},
                      MeshCase{"chunks", 2, {"lm.arch=decoder", "objective.chunk=7", "lm.recompute=true"}},
                      MeshCase{"documents",
                               2,
                               {"lm.arch=decoder", "data.train={text}", "data.encoder_len=0", "data.decoder_len=24",
                                "data.document_masks=true", "lm.window=8"}},
                      MeshCase{"hrm", 4, {"objective.halting=0.1", "objective.deep_supervision=0.5"}},
                      MeshCase{"hrm_prefix", 2, {"lm.bridge=prefix", "train.micro_batch_size=2"}},
                      MeshCase{"zero1", 4, {"lm.arch=decoder", "parallel.zero=1", "optim.ema=0.9"}},
                      MeshCase{"zero2",
                               4,
                               {"lm.arch=decoder", "parallel.zero=2", "lm.hidden_size=128", "lm.layers=4",
                                "parallel.bucket_mb=1", "train.micro_batch_size=1"}},
                      MeshCase{"zero3", 4, with(kTurns, {"lm.arch=decoder", "train.micro_batch_size=1"})},
                      MeshCase{"replicas", 8, {"lm.arch=decoder", "parallel.zero=1", "parallel.replicas=2"}},
                      MeshCase{"whole_replicas",
                               4,
                               {"lm.arch=decoder", "parallel.tensor=1", "parallel.zero=3", "parallel.replicas=2",
                                "parallel.bucket_mb=1", "lm.hidden_size=128", "lm.layers=6"}},
                      MeshCase{"mamba2", 2, {"lm.encoder=mamba2"}}),
    [](const auto& info) { return std::string(info.param.name); });

// What a rank of a training holds, and all that it is spared.
TEST(LanguagePlanOfRanks, BlocksInTurnAreCounted) {
  const Overrides base{"lm.arch=decoder", "lm.hidden_size=128",   "lm.layers=6",
                       "lm.tied=false",   "parallel.bucket_mb=1", "precision.compute=bf16"};
  const auto memory = [&](const Overrides& more) {
    PlanInput in = language_ranks_input(with(base, more));
    in.ranks = 4;
    std::map<std::string, double> out;
    for (const PlanItem& item : make_plan(in).memory) out[item.name] = item.value;
    return out;
  };
  auto whole = memory({}), shares = memory({"parallel.zero=1"}), turns = memory({"parallel.zero=3"});
  testing::SmallLanguage run(testing::fresh_folder("run"), with(base, {"parallel.zero=3"}),
                             parallel::make_fake_comm(0, 4));
  ASSERT_NE(run.trainer.weights(), nullptr);
  EXPECT_EQ(turns["blocks in turn"], static_cast<double>(run.trainer.weights()->buffer_bytes()));
  EXPECT_LT(turns["blocks in turn"], 0.8 * (shares["compute copies"] - turns["compute copies"]));
  // A copy of the embedding travels, so that its masters are shares, too.
  const int64_t embedding = run.task.parameters().all()[0].master.numel();
  EXPECT_EQ(shares["compute copies"], whole["compute copies"] + 2 * static_cast<double>(embedding));
  EXPECT_EQ(shares["blocks in turn"], 0);
  // Shares of the masters. The embedding, whose gradient takes a turn, is padded by itself.
  EXPECT_NEAR(turns["weights"], shares["weights"], 4 * nn::ParameterSet::kGradAlignment * sizeof(float));
  EXPECT_LT(shares["weights"], 0.27 * whole["weights"]) << "norms alone are whole";
  EXPECT_LT(turns["gradients"], shares["gradients"]);
}

// The decoder's blocks are through before the core's, those of the core after the last of their uses in the pass.
TEST(LanguageBackward, IsDoneBlockByBlock) {
  const PlanInput decoder = language_ranks_input({"lm.arch=decoder", "lm.layers=4"});
  EXPECT_DOUBLE_EQ(decoder.model->backward_done(decoder, 0, 4), 0);
  EXPECT_DOUBLE_EQ(decoder.model->backward_done(decoder, 1, 4), 0.25);
  EXPECT_DOUBLE_EQ(decoder.model->backward_done(decoder, 4, 4), 1);
  // Two blocks of the decoder, one of H, two uses of one of L, one of the encoder.
  const PlanInput hrm = language_ranks_input({});
  EXPECT_DOUBLE_EQ(hrm.model->backward_done(hrm, 2, 5), 2.0 / 6);
  EXPECT_DOUBLE_EQ(hrm.model->backward_done(hrm, 3, 5), 4.0 / 6);
  EXPECT_DOUBLE_EQ(hrm.model->backward_done(hrm, 4, 5), 5.0 / 6);
  EXPECT_DOUBLE_EQ(hrm.model->backward_done(hrm, 5, 5), 1);
}

}  // namespace
}  // namespace hrm::commands
