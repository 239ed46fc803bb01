#include "train/run_checkpoints.h"

#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/log.h"

namespace hrm::train {
namespace {

using Files = std::map<std::string, checkpoint::FileFact>;

constexpr char kFailed = '!';  // before the reason, in place of files

// What a rank says of its part: its files, one a line, or why there is none.
std::string part_report(const std::optional<Files>& files, const std::string& failure) {
  if (!files) return kFailed + failure;
  std::ostringstream out;
  for (const auto& [name, fact] : *files) out << name << ' ' << fact.bytes << ' ' << fact.digest << '\n';
  return out.str();
}

// The files of all ranks. Otherwise the first rank's reason is in `failure`.
std::optional<Files> joined(const std::vector<std::string>& reports, std::string& failure) {
  Files files;
  failure.clear();
  for (const std::string& report : reports) {
    if (report.starts_with(kFailed)) {
      failure = report.substr(1);
      return std::nullopt;
    }
    std::istringstream lines(report);
    std::string name;
    checkpoint::FileFact fact;
    while (lines >> name >> fact.bytes >> fact.digest) files[name] = fact;
  }
  return files;
}

}  // namespace

RunCheckpoints::RunCheckpoints(Stateful& state, parallel::Comm& comm, std::filesystem::path run_dir,
                               checkpoint::SaverOptions options)
    : comm_(comm),
      owned_(state, parallel::owned_entries(state, comm)),
      run_dir_(std::move(run_dir)),
      asynchronous_(options.asynchronous) {
  const uint64_t own = checkpoint::checkpoint_bytes(list_state(owned_));
  if (!in_parts()) {
    bytes_ = own;
  } else {
    for (const std::string& bytes : comm_.all_gather_text(std::to_string(own))) bytes_ += std::stoull(bytes);
  }
  if (comm_.main() || in_parts()) saver_ = std::make_unique<checkpoint::Saver>(run_dir_, std::move(options));
}

void RunCheckpoints::prepare_memory() {
  if (saver_) saver_->prepare(list_state(owned_));
}

checkpoint::PartLayout RunCheckpoints::layout() const {
  return {comm_.rank(), comm_.ranks(), owned_.owned().split_weights};
}

std::string RunCheckpoints::failure() const {
  const std::string own = saver_ ? saver_->failure() : std::string();
  return own.empty() ? failure_ : own;
}

void RunCheckpoints::save(const checkpoint::CheckpointMeta& meta) {
  if (!in_parts()) {
    if (saver_) saver_->save(owned_, meta);
    return;
  }
  saver_->await_turn();
  settle(/*patience_s=*/0);
  // Other ranks' screens and logs have errors alone.
  if (!failure_.empty() && comm_.main())
    log::warn(failure_, "; training continues, the next checkpoint takes its place");
  std::string folder;
  if (comm_.main()) {
    saver_->drop();  // when the commit is through
    folder = checkpoint::begin_parts(run_dir_, meta.step).string();
  }
  folder = comm_.all_gather_text(folder)[0];
  saver_->save_part(owned_, meta, folder, layout());
  open_ = true;
  if (!asynchronous_) commit_if_written();
}

// Commits the parts that are on their way, or gives them up where one of them cannot be written in time.
void RunCheckpoints::settle(double patience_s) {
  if (!std::exchange(open_, false)) return;
  const std::optional<Files> own = saver_->part(patience_s);
  std::optional<Files> all = joined(comm_.all_gather_text(part_report(own, saver_->failure())), failure_);
  if (!all) {
    saver_->drop();
  } else {
    saver_->commit(comm_.main() ? std::move(*all) : Files());
  }
}

void RunCheckpoints::commit_if_written() {
  if (!open_) return;
  for (const std::string& written : comm_.all_gather_text(saver_->part_written() ? "written" : "")) {
    if (written.empty()) return;
  }
  settle(/*patience_s=*/0);
}

void RunCheckpoints::finish(double patience_s) {
  if (!in_parts()) {
    if (saver_) saver_->finish(patience_s);
    comm_.barrier();
    return;
  }
  settle(patience_s);
  std::string failure = failure_;
  if (failure.empty() && comm_.main()) {
    try {
      saver_->finish(patience_s);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  failure = comm_.all_gather_text(failure)[0];
  require(failure.empty(), ExitCode::environment, failure);
}

std::filesystem::path RunCheckpoints::dump(const std::filesystem::path& folder,
                                           const checkpoint::CheckpointMeta& meta) {
  std::filesystem::path written;
  std::string failure;
  const auto attempt = [&](const auto& work) {
    try {
      if (failure.empty()) work();
    } catch (const Error& error) {
      failure = error.what();
    }
  };
  if (!in_parts()) {
    attempt([&] {
      if (comm_.main()) written = checkpoint::save_checkpoint(folder, owned_, meta, 1);
    });
  } else {
    std::string place;
    if (comm_.main()) place = checkpoint::begin_parts(folder, meta.step).string();
    place = comm_.all_gather_text(place)[0];
    std::optional<Files> files;
    attempt([&] { files = checkpoint::write_part(place, list_state(owned_), layout(), meta); });
    files = joined(comm_.all_gather_text(part_report(files, failure)), failure);
    attempt([&] {
      if (comm_.main()) written = checkpoint::commit_parts(folder, place, *files, comm_.ranks(), meta, 1);
    });
  }
  failure = comm_.all_gather_text(failure)[0];
  require(failure.empty(), ExitCode::environment, failure);
  return written;
}

}  // namespace hrm::train
