#pragma once
// What a step sends: rehearsed by `plan --ranks`, and of trainings.

#include "commands/plan/ranks.h"
#include "hrm/base/error.h"
#include "hrm/tasks/registry.h"
#include "support/ranks.h"
#include "train/ranks.h"
#include "train/small_run.h"

namespace hrm::testing {

inline std::vector<parallel::CommOperation> operations_of(const std::vector<commands::StepExchange>& exchanges) {
  std::vector<parallel::CommOperation> out;
  for (const commands::StepExchange& exchange : exchanges) {
    EXPECT_EQ(exchange.times, 1);
    out.push_back(exchange.operation);
  }
  return out;
}

inline std::string text_of(const std::vector<parallel::CommOperation>& operations) {
  std::string out;
  for (const auto& operation : operations) {
    out += cat(operation.axis, static_cast<int>(operation.kind), ":", operation.bytes, " ");
  }
  return out;
}

// What one rank sends in the second step of a training. Run: SmallRun or the like.
template <class Run>
std::vector<parallel::CommOperation> trained(const std::shared_ptr<parallel::CountingComm>& comm,
                                             const std::vector<std::string>& more) {
  Run run(fresh_folder(cat("rank", comm->rank())), more, comm);
  run.trainer.start_fresh();
  run.trainer.run_steps(1);
  comm->forget();
  run.trainer.run_steps(1);
  EXPECT_EQ(comm->traffic().barriers, 0);
  return comm->traffic().operations;
}

// A step of ranks that are threads, of one with ranks that are not there, and the rehearsal: the same operations.
template <class Run>
void expect_rehearsed(commands::PlanInput in, const std::vector<std::string>& more) {
  for (const int ranks : {2, 4}) {
    in.ranks = ranks;
    const auto rehearsed = operations_of(commands::rehearse_step(in));
    ASSERT_GE(rehearsed.size(), 3u);
    std::vector<std::shared_ptr<parallel::Comm>> comms;
    for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
    test::on_threads(ranks, [&](int rank) {
      const auto real = trained<Run>(std::make_shared<parallel::CountingComm>(comms[static_cast<size_t>(rank)]), more);
      EXPECT_EQ(text_of(real), text_of(rehearsed)) << "rank " << rank << " of " << ranks;
    });
    for (const int rank : {0, ranks - 1}) {
      const auto faked = trained<Run>(parallel::make_fake_comm(rank, ranks), more);
      EXPECT_EQ(text_of(faked), text_of(rehearsed)) << "fake rank " << rank << " of " << ranks;
    }
  }
}

// A training of a task that may be cut over ranks.
struct MeshRun {
  MeshRun(const config::LoadedConfig& settings, const std::shared_ptr<parallel::Comm>& world)
      : loaded(settings),
        runtime(ops::start_runtime_and_ops(loaded.config)),
        mesh(std::make_shared<parallel::Mesh>(world, parallel::mesh_shape(loaded.config.parallel))),
        task(train::make_task(loaded.config, runtime, *mesh)),
        trainer(loaded.config, loaded.to_json(), runtime, *task, /*run_dir=*/{}, world, mesh) {}

  config::LoadedConfig loaded;
  Runtime runtime;
  std::shared_ptr<const parallel::Mesh> mesh;
  std::unique_ptr<tasks::Task> task;
  train::Trainer trainer;
};

// A step of this many ranks that are threads, and the rehearsal: the same operations on the same axes.
inline void expect_rehearsed_on_mesh(commands::PlanInput in, const config::LoadedConfig& loaded, int ranks) {
  in.ranks = ranks;
  const auto rehearsed = operations_of(commands::rehearse_step(in));
  std::vector<std::shared_ptr<parallel::Comm>> comms;
  for (auto& comm : parallel::make_thread_comms(ranks)) comms.push_back(std::move(comm));
  test::on_threads(ranks, [&](int rank) {
    const auto comm = std::make_shared<parallel::CountingComm>(comms[static_cast<size_t>(rank)]);
    MeshRun run(loaded, comm);
    run.trainer.start_fresh();
    run.trainer.run_steps(1);
    comm->forget();
    run.trainer.run_steps(1);
    auto expected = rehearsed, real = comm->traffic().operations;
    // What is rehearsed is rank 0. The last part has the fewest rows of the vocabulary. Of what all parts hold, ranks
    // add up what is in their shard, if there is any.
    if (run.mesh->coordinate(parallel::Axis::data) > 0) {
      for (auto* operations : {&expected, &real}) {
        std::erase_if(*operations, [](const parallel::CommOperation& operation) {
          return operation.axis == parallel::axis_name(parallel::Axis::tensor) &&
                 operation.kind == parallel::CommOperation::Kind::all_reduce;
        });
      }
    }
    for (size_t i = 0; i < std::min(real.size(), expected.size()) && !run.mesh->speaks(); ++i) {
      const bool of_data = !real[i].axis.empty() && real[i].axis != parallel::axis_name(parallel::Axis::tensor);
      if (of_data && real[i].bytes < expected[i].bytes) expected[i].bytes = real[i].bytes;
    }
    EXPECT_EQ(text_of(real), text_of(expected)) << "rank " << rank << " of " << ranks;
  });
}

}  // namespace hrm::testing
