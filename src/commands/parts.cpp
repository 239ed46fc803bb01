#include "commands/parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/tasks/registry.h"

namespace hrm::commands {
namespace {

constexpr std::string_view kTensor = "parallel.tensor=";

// What ranks must know before they open the model.
config::Config meeting_config(const std::vector<std::string>& overrides) {
  constexpr std::array<std::string_view, 6> kKeys{
      "parallel.meet_timeout_s=", "parallel.timeout_s=", "parallel.heartbeat_s=",
      "parallel.interface=",      "runtime.device=",     "runtime.allocator="};
  std::vector<std::string> settings;
  for (const std::string& setting : overrides) {
    if (std::any_of(kKeys.begin(), kKeys.end(), [&](std::string_view key) { return setting.starts_with(key); })) {
      settings.push_back(setting);
    }
  }
  return config::load_config({}, settings).config;
}

bool names_parts(const std::vector<std::string>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [](const auto& o) { return o.starts_with(kTensor); });
}

}  // namespace

int run_in_parts(const std::string& command, const std::vector<std::string>& overrides,
                 const std::function<int(train::Ranks&)>& body) {
  const parallel::Launch launch = parallel::detect_launch();
  if (launch.ranks == 1) {
    train::Ranks alone;
    alone.launch = launch;
    alone.comm = parallel::make_single_comm();
    return body(alone);
  }
  if (launch.rank > 0) log::set_level(log::Level::error);
  return train::run_as_ranks(launch, meeting_config(overrides), {.run = command}, body);
}

void check_parts(const std::string& command, int64_t tensor, int ranks) {
  require(tensor == ranks, ExitCode::usage, command,
          " gives each rank one part of the model, but parallel.tensor = ", tensor, " and the number of ranks is ",
          ranks, "; start ", tensor, tensor == 1 ? " process" : " ranks",
          tensor == 1 ? "" : cat(", e.g. by torchrun --no-python --nproc-per-node=", tensor),
          ", or set parallel.tensor to ", ranks);
}

tasks::ModelPlace place_parts(train::Ranks& ranks, const config::Config& config) {
  if (ranks.comm->alone()) return {};
  tasks::ModelPlace place;
  place.runtime = train::start_device(ranks, config);
  const auto mesh = train::make_mesh(ranks, config);
  place.tensor = mesh->shared_axis(parallel::Axis::tensor);
  log::info("ranks        ", parallel::describe(ranks.launch), "; ", ranks.comm->describe(), "; each has one part of ",
            config.parallel.tensor, " of the model");
  return place;
}

tasks::StoredModel open_in_parts(const std::string& command, train::Ranks& ranks, const std::string& path,
                                 const std::vector<std::string>& overrides, const std::string& base) {
  const int count = ranks.comm->ranks();
  if (ranks.comm->alone()) {
    tasks::StoredModel stored = tasks::open_stored_model(path, overrides, base);
    if (names_parts(overrides)) check_parts(command, stored.config.parallel.tensor, count);
    return stored;
  }
  std::string same = cat(command, " ", path, " ", base);
  for (const std::string& setting : overrides) same += " " + setting;
  train::check_same_program(*ranks.comm, same);
  tasks::StoredModel stored = tasks::open_stored_model(path, overrides, base, *ranks.comm);
  const tasks::TaskSpec& spec = tasks::task_spec(stored.config);
  require(spec.make_cut != nullptr, ExitCode::usage, command, " was started as ", count,
          " ranks, which cut models of text into parts, but the model of task ", spec.settings->name,
          " stays whole; start it as one process");
  if (names_parts(overrides)) check_parts(command, stored.config.parallel.tensor, count);
  // Shards and groups belong to the training.
  std::vector<std::string> parts{cat(kTensor, count), "parallel.zero=0", "parallel.replicas=1"};
  // So do products in 8 bits, which the opening functions leave out.
  if (stored.config.precision.blocks != config::BlockPrecision::same) parts.emplace_back("precision.blocks=same");
  stored = tasks::with_overrides(stored, parts);
  stored.place = place_parts(ranks, stored.config);
  return stored;
}

void report_alive(train::Ranks& ranks, int64_t count, const char* doing) {
  if (ranks.watchdog) ranks.watchdog->at(count, doing);
}

}  // namespace hrm::commands
