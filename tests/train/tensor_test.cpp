// A language model that is cut over ranks trains as the whole, also beside ranks that read other rows.
#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/parallel/mesh.h"
#include "hrm/tasks/registry.h"
#include "support/expect_error.h"
#include "support/overrides.h"
#include "support/ranks.h"
#include "support/whole_state.h"
#include "train/small_language.h"
#include "train/small_polychromic.h"

namespace hrm {
namespace {

using test::Overrides;

// One rank trains the whole model of any mesh.
parallel::MeshShape shape_of(const config::Config& config, const parallel::Comm& world) {
  if (world.alone()) return {};
  return {.tensor = static_cast<int>(config.parallel.tensor), .replicas = static_cast<int>(config.parallel.replicas)};
}

struct TensorRun {
  TensorRun(const config::LoadedConfig& settings, const std::shared_ptr<parallel::Comm>& world,
            const std::filesystem::path& run_dir = {})
      : loaded(settings),
        runtime(ops::start_runtime_and_ops(loaded.config)),
        mesh(std::make_shared<parallel::Mesh>(world, shape_of(loaded.config, *world))),
        task(tasks::make_task(loaded.config, runtime, mesh->shared_axis(parallel::Axis::data),
                              mesh->shared_axis(parallel::Axis::tensor))),
        trainer(loaded.config, loaded.to_json(), runtime, *task, run_dir, world, mesh) {}

  config::LoadedConfig loaded;
  Runtime runtime;
  std::shared_ptr<const parallel::Mesh> mesh;
  std::unique_ptr<tasks::Task> task;
  train::Trainer trainer;
};

struct MeshCase {
  const char* name;
  int tensor = 2, data = 1;
  Overrides more = {};
};
void PrintTo(const MeshCase& c, std::ostream* out) {
  *out << c.name;
}

// Plain gradient steps: others have the size of the rate whatever the gradient, so that rounding shows.
Overrides plain_settings(int tensor, const Overrides& more = {}) {
  return test::with({"lm.arch=decoder", "lm.num_heads=4", "lm.hidden_size=32", "lm.inner=64", "data.encoder_len=0",
                     "data.decoder_len=24", "data.train={text}", "optim.name=sgd", "optim.lr=0.05",
                     "optim.grad_clip=0.3", "optim.ema=0.9", cat("parallel.tensor=", tensor)},
                    more);
}

class TensorTraining : public ::testing::TestWithParam<MeshCase> {};

TEST_P(TensorTraining, HasTheWeightsAndLossesOfOneRank) {
  const MeshCase& c = GetParam();
  const Overrides settings = plain_settings(c.tensor, c.more);
  const std::filesystem::path dir = testing::fresh_folder(c.name);
  constexpr int64_t kSteps = 5;
  TensorRun whole(testing::small_language_config(dir, settings), parallel::make_single_comm());
  whole.trainer.start_fresh();
  whole.trainer.run_steps(kSteps);
  const tasks::NamedValues evaluated = whole.task->evaluate([](const tasks::EvalProgress&) {});
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(c.tensor * c.data)) comms.push_back(std::move(comm));
  test::on_threads(c.tensor * c.data, [&](int rank) {
    TensorRun part(testing::small_language_config(dir, settings), comms[static_cast<size_t>(rank)]);
    part.trainer.start_fresh();
    part.trainer.run_steps(kSteps);
    // Weights, averages and momenta.
    const test::WholeState state = test::whole_state(part.trainer, *comms[static_cast<size_t>(rank)]);
    for (const TensorEntry& entry : list_state(whole.trainer).tensors) {
      if (entry.role == StateRole::loop || !entry.tensor.is_floating_point()) continue;
      const at::Tensor expected = entry.tensor.detach();
      // Momenta are sums of gradients, which differ more than what they have made of the weights.
      const double close = entry.role == StateRole::optimizer ? 2e-5 : 1e-6;
      EXPECT_LE((state.at(entry.name) - expected).norm().item<double>(), 1e-8 + close * expected.norm().item<double>())
          << entry.name;
    }
    const tasks::NamedValues of_part = part.task->evaluate([](const tasks::EvalProgress&) {});
    ASSERT_EQ(of_part.size(), evaluated.size());
    for (size_t i = 0; i < evaluated.size(); ++i) {
      if (evaluated[i].first.ends_with("_ms")) continue;
      EXPECT_NEAR(of_part[i].second, evaluated[i].second, 1e-5 * std::abs(evaluated[i].second)) << evaluated[i].first;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, TensorTraining,
    ::testing::Values(
        MeshCase{"tensor_2"}, MeshCase{"tensor_2_data_2", 2, 2}, MeshCase{"tensor_4", 4},
        MeshCase{"accumulated", 2, 2, {"train.micro_batch_size=2"}}, MeshCase{"zero_1", 2, 2, {"parallel.zero=1"}},
        MeshCase{"zero_2", 2, 2, {"parallel.zero=2", "train.micro_batch_size=2", "lm.layers=3"}},
        MeshCase{"zero_3", 2, 2, {"parallel.zero=3", "train.micro_batch_size=2"}},
        MeshCase{"zero_3_hrm",
                 2,
                 2,
                 {"parallel.zero=3", "lm.arch=hrm", "data.train={sums}", "data.encoder_len=20", "data.decoder_len=6"}},
        MeshCase{"replicas_zero_1", 1, 4, {"parallel.zero=1", "parallel.replicas=2"}},
        MeshCase{"replicas_zero_2", 1, 4, {"parallel.zero=2", "parallel.replicas=2", "lm.layers=3"}},
        MeshCase{"replicas_zero_3", 1, 4, {"parallel.zero=3", "parallel.replicas=2", "train.micro_batch_size=1"}},
        MeshCase{"documents", 2, 1, {"data.document_masks=true", "lm.tied=false"}},
        MeshCase{"hrm", 2, 2, {"lm.arch=hrm", "data.train={sums}", "data.encoder_len=20", "data.decoder_len=6"}}));

// Causal models: adapters, completions that are sampled by the parts together, all weights. Ranks that read other rows
// have other dropout masks and prompts, so there are none.
TEST(TensorFineTuning, HasTheWeightsOfOneRank) {
  const std::filesystem::path dir = testing::fresh_folder("fine_tuning");
  const Overrides plain{"optim.name=sgd", "optim.lr=0.3", "parallel.tensor=2"};
  for (const Overrides& more :
       {Overrides{"lora.dropout=0.1"}, Overrides{"polychromic.share_prompts=off"},
        Overrides{"lora.r=0", "hf.recompute=true"}, Overrides{"hf.quantize=int8"},
        Overrides{"hf.quantize=fp8", "lora.dropout=0.1", "polychromic.share_prompts=off"},
        Overrides{"grpo.start_step=2", "grpo.max_completion_length=8", "grpo.rewards=answer", "grpo.beta=0.1"}}) {
    const config::LoadedConfig loaded = testing::small_polychromic_config(dir, test::with(plain, more));
    constexpr int64_t kSteps = 3;
    TensorRun whole(loaded, parallel::make_single_comm());
    whole.trainer.start_fresh();
    whole.trainer.run_steps(kSteps);
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(2)) comms.push_back(std::move(comm));
    test::on_threads(2, [&](int rank) {
      TensorRun part(loaded, comms[static_cast<size_t>(rank)]);
      part.trainer.start_fresh();
      part.trainer.run_steps(kSteps);
      const std::vector<nn::Parameter>& all = part.task->parameters().all();
      for (size_t i = 0; i < all.size(); ++i) {
        const at::Tensor expected = all[i].cut.part_of(whole.task->parameters().all()[i].master.detach());
        EXPECT_LE((all[i].master.detach() - expected).norm().item<double>(),
                  1e-8 + 5e-6 * expected.norm().item<double>())
            << all[i].name << " with " << more.front();
      }
    });
  }
}

Overrides steps_of(int64_t steps) {
  return {cat("train.steps=", steps), "train.log_every=2", "lm.tied=false", "optim.warmup_steps=0"};
}

// Trains to the end of `steps` in `dir`, from the newest checkpoint there.
void train_mesh(const std::filesystem::path& dir, int tensor, int data, int steps) {
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(tensor * data)) comms.push_back(std::move(comm));
  const Overrides settings = plain_settings(tensor, steps_of(steps));
  test::on_threads(tensor * data, [&](int rank) {
    const auto& comm = comms[static_cast<size_t>(rank)];
    TensorRun run(testing::small_language_config(dir, settings), comm, dir / "small");
    const auto found = checkpoint::find_latest_valid(dir / "small");
    comm->barrier();
    if (found) {
      run.trainer.resume(found->dir);
    } else {
      run.trainer.start_fresh();
    }
    EXPECT_EQ(run.trainer.run(), train::Outcome::finished);
  });
}

std::map<std::string, at::Tensor> stored_state(const std::filesystem::path& dir, int steps) {
  TensorRun run(testing::small_language_config(dir / "reader", plain_settings(1, steps_of(steps))),
                parallel::make_single_comm());
  run.trainer.resume(checkpoint::open_checkpoint(dir / "small").dir);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : list_state(run.trainer).tensors) tensors[entry.name] = entry.tensor.detach().clone();
  return tensors;
}

std::vector<double> logged_values(const std::filesystem::path& dir, const std::string& key) {
  std::ifstream file(dir / "small" / "metrics.jsonl");
  std::vector<double> values;
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains(key)) values.push_back(json[key]);
  }
  return values;
}

TEST(TensorCheckpoints, AnotherMeshGoesOn) {
  const std::filesystem::path one = testing::fresh_folder("one"), other = testing::fresh_folder("other");
  train_mesh(one, 1, 1, 8);
  train_mesh(other, 2, 2, 4);
  train_mesh(other, 1, 1, 6);
  train_mesh(other, 4, 1, 8);
  const auto expected = stored_state(one, 8), got = stored_state(other, 8);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    if (!tensor.is_floating_point()) continue;
    EXPECT_TRUE(at::allclose(got.at(name).to(at::kDouble), tensor.to(at::kDouble), 1e-4, 1e-6)) << name;
  }
  for (const char* key : {"train/loss", "train/cross_entropy", "train/tokens", "train/grad_norm_raw"}) {
    const std::vector<double> a = logged_values(one, key), b = logged_values(other, key);
    ASSERT_EQ(a.size(), 4U) << key;
    ASSERT_EQ(b.size(), 4U) << key;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4 * std::abs(a[i])) << key;
  }
}

struct Layout {
  const char* name;
  int ranks;
  Overrides more = {};
};

// What one mesh saves each of the others goes on with: the same bits of every whole tensor.
TEST(MeshCheckpoints, EveryMeshGoesOnFromEveryOther) {
  const std::vector<Layout> layouts{{"one", 1},
                                    {"tensor_2", 2, {"parallel.tensor=2"}},
                                    {"tensor_4", 4, {"parallel.tensor=4"}},
                                    {"tensor_2_data_2", 4, {"parallel.tensor=2"}},
                                    {"zero_2", 2, {"parallel.zero=2"}},
                                    {"zero_3", 4, {"parallel.zero=3"}},
                                    {"tensor_2_zero_2", 4, {"parallel.tensor=2", "parallel.zero=2"}},
                                    {"tensor_2_zero_3", 4, {"parallel.tensor=2", "parallel.zero=3"}},
                                    {"replicas_zero_3", 4, {"parallel.replicas=2", "parallel.zero=3"}}};
  const Overrides settings{"lm.arch=decoder",   "lm.num_heads=4",          "lm.hidden_size=32",   "lm.inner=64",
                           "lm.tied=false",     "data.encoder_len=0",      "data.decoder_len=24", "data.train={text}",
                           "optim.ema=0.9",     "train.steps=2",           "train.log_every=2",   "eval.max_samples=8",
                           "runtime.threads=1", "train.checkpoint_every=1"};
  const std::filesystem::path dir = testing::fresh_folder("meshes");
  const auto on_mesh = [&](const Layout& layout, const std::function<void(TensorRun&, parallel::Comm&)>& body) {
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(layout.ranks)) comms.push_back(std::move(comm));
    test::on_threads(layout.ranks, [&](int rank) {
      const auto& comm = comms[static_cast<size_t>(rank)];
      Overrides all = settings;
      all.insert(all.end(), layout.more.begin(), layout.more.end());
      TensorRun run(testing::small_language_config(dir / layout.name, all), comm, dir / layout.name / "small");
      body(run, *comm);
    });
  };
  // Of the saved and the loaded state, on rank 0.
  std::map<std::string, test::WholeState> saved;
  std::map<std::string, std::filesystem::path> checkpoints;
  for (const Layout& layout : layouts) {
    on_mesh(layout, [&](TensorRun& run, parallel::Comm& comm) {
      run.trainer.start_fresh();
      run.trainer.run();
      test::WholeState state = test::whole_state(run.trainer, comm);
      if (comm.main()) saved[layout.name] = std::move(state);
    });
    const auto found = checkpoint::find_latest_valid(dir / layout.name / "small");
    ASSERT_TRUE(found) << layout.name;
    checkpoints[layout.name] = found->dir;
  }
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      on_mesh(to, [&](TensorRun& run, parallel::Comm& comm) {
        run.trainer.resume(checkpoints.at(from.name));
        const test::WholeState state = test::whole_state(run.trainer, comm);
        if (!comm.main()) return;
        const test::WholeState& want = saved.at(from.name);
        ASSERT_EQ(state.size(), want.size()) << from.name << " to " << to.name;
        for (const auto& [name, tensor] : want) {
          EXPECT_TRUE(at::equal(state.at(name), tensor)) << name << ", " << from.name << " to " << to.name;
        }
      });
    }
  }
}

TEST(TensorSettings, RefusesWhatCannotBeCut) {
  const std::filesystem::path dir = testing::fresh_folder("refused");
  const auto refuses = [&](const Overrides& more, const std::string& text) {
    Overrides all{"lm.arch=decoder",   "data.encoder_len=0", "data.decoder_len=24",
                  "data.train={text}", "parallel.tensor=4",  "lm.num_heads=4"};
    all.insert(all.end(), more.begin(), more.end());
    test::expect_error(ExitCode::usage, {text}, [&] { testing::small_language_config(dir, all); });
  };
  refuses({"lm.num_heads=2"}, "parallel.tensor = 4 (command line) does not divide lm.num_heads = 2");
  refuses({"lm.kv_heads=2"}, "does not divide lm.kv_heads = 2");
  refuses({"lm.inner=30"}, "does not divide lm.inner = 30");
  refuses({"parallel.replicas=2"}, "but parallel.zero = 0 (default) splits nothing; set parallel.zero to 1, 2 or 3");
  refuses({"optim.name=muon", "optim.lr=0.02"}, "set parallel.tensor to 1");
  refuses({"moe.experts=4"}, "set parallel.tensor to 1, or moe.experts to 0");
  refuses({"precision.fake_quantize=int8"}, "set precision.fake_quantize to none");
  const auto tasks_refuse = [&](const Overrides& more, const std::string& text) {
    test::expect_error(ExitCode::usage, {text}, [&] { testing::small_polychromic_config(dir, more); });
  };
  tasks_refuse({"parallel.tensor=2", "lora.dora=true"}, "set parallel.tensor to 1, or lora.dora to false");
  tasks_refuse({"parallel.tensor=2", "hf.quantize=nf4"}, "set hf.quantize to int8 or fp8, or parallel.tensor to 1");
  test::expect_error(ExitCode::usage, {"so small that the exchange would take longer", "set parallel.tensor to 1"},
                     [&] { testing::small_config(dir, {"parallel.tensor=2"}); });
  refuses({"lm.arch=hrm", "lm.style=prototype", "data.encoder_len=8", "data.train=" + testing::sums_folder().string()},
          "set parallel.tensor to 1, or lm.style to modern");
}

}  // namespace
}  // namespace hrm
