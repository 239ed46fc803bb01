#include "hrm/checkpoint/saver.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <chrono>

#include "hrm/base/error.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/runtime/async_read.h"
#include "hrm/runtime/describe_exception.h"
#include "hrm/runtime/memory.h"

namespace hrm::checkpoint {

namespace {

constexpr size_t kAlignment = 64;

size_t room_of(const at::Tensor& tensor) {
  return (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

bool on_device(const StateListing& listing) {
  return std::any_of(listing.tensors.begin(), listing.tensors.end(),
                     [](const TensorEntry& entry) { return !entry.tensor.device().is_cpu(); });
}

}  // namespace

void Snapshot::prepare(const StateListing& like) {
  size_t bytes = 0;
  for (const TensorEntry& entry : like.tensors) bytes += room_of(entry.tensor);
  const bool page_locked = on_device(like);
  if (bytes == block_bytes_ && page_locked == page_locked_) return;
  listing_ = {};
  block_.reset();  // before the new one is there
  block_bytes_ = 0;
  block_ = host_block(bytes, page_locked);
  block_bytes_ = bytes;
  page_locked_ = page_locked;
}

void Snapshot::take(Stateful& root) {
  failpoint::hit(Failpoint::checkpoint_snapshot);
  const at::NoGradGuard no_grad;
  StateListing listing = list_state(root);
  prepare(listing);
  copied_.reset();
  std::optional<at::Device> device;
  auto* place = static_cast<std::byte*>(block_.get());
  for (TensorEntry& entry : listing.tensors) {
    const at::Tensor source = entry.tensor;
    // A tensor with a storage of its own, as torch's archives need it.
    at::Tensor copy = at::from_blob(
        place, source.sizes(), [block = block_](void*) {}, at::TensorOptions().dtype(source.scalar_type()));
    place += room_of(source);
    copy.copy_(source, /*non_blocking=*/true);
    if (!source.device().is_cpu()) device = source.device();
    entry.tensor = source.requires_grad() ? copy.set_requires_grad(true) : copy;
  }
  if (device) copied_ = record_event(*device);
  listing_ = std::move(listing);
}

void Snapshot::wait() {
  if (copied_) wait_for(*copied_);
}

Saver::Saver(std::filesystem::path run_dir, const SaverOptions& options)
    : run_dir_(std::move(run_dir)), options_(options), thread_([this] { run(); }) {}

Saver::~Saver() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Saver::await_turn() {
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::writing && options_.asynchronous) {
    const auto start = std::chrono::steady_clock::now();
    changed_.wait(lock, [&] { return stage_ != Stage::writing; });
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    log::info("training waited ", human_seconds(waited.count()), " for the checkpoint of step ", meta_.step,
              ": the disk is slower than one in each interval");
  }
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
}

// Gives the thread work. It starts afresh with its retries.
void Saver::begin(std::function<void()> job, Stage after) {
  std::unique_lock lock(mutex_);
  job_ = std::move(job);
  after_job_ = after;
  attempts_ = 0;
  pause_s_ = options_.first_retry_s;
  stage_ = Stage::writing;
  changed_.notify_all();
  if (!options_.asynchronous) changed_.wait(lock, [&] { return stage_ != Stage::writing; });
}

void Saver::save(Stateful& root, const CheckpointMeta& meta) {
  await_turn();
  drop();  // the thread leaves the copy alone
  snapshot_.take(root);
  meta_ = meta;
  begin([this] { save_listing(run_dir_, snapshot_.listing(), meta_, options_.keep, options_.before_commit); },
        Stage::idle);
}

void Saver::save_part(Stateful& root, const CheckpointMeta& meta, const std::filesystem::path& folder,
                      const PartLayout& layout) {
  await_turn();
  drop();
  snapshot_.take(root);
  meta_ = meta;
  folder_ = folder;
  layout_ = layout;
  begin([this] { part_ = write_part(folder_, snapshot_.listing(), layout_, meta_); }, Stage::written);
}

std::optional<std::map<std::string, FileFact>> Saver::part(double patience_s) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
  const auto done = [&] { return stage_ == Stage::idle || stage_ == Stage::written; };
  changed_.wait_for(lock, std::chrono::duration<double>(patience_s), done);
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
  if (stage_ != Stage::written) return std::nullopt;
  return part_;
}

bool Saver::part_written() const {
  std::lock_guard lock(mutex_);
  return stage_ == Stage::written;
}

void Saver::commit(std::map<std::string, FileFact> files) {
  if (files.empty()) {
    std::lock_guard lock(mutex_);
    saved_step_ = meta_.step;
    lost_ = 0;
    stage_ = Stage::idle;
    return;
  }
  begin(
      [this, files = std::move(files)] {
        commit_parts(run_dir_, folder_, files, layout_.parts, meta_, options_.keep, options_.before_commit);
      },
      Stage::idle);
}

void Saver::drop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
  if (stage_ == Stage::failed || stage_ == Stage::written) ++lost_;
  stage_ = Stage::idle;
  changed_.notify_all();
}

void Saver::finish(double patience_s) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return stage_ == Stage::idle; };
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
  if (done() || changed_.wait_for(lock, std::chrono::duration<double>(patience_s), done)) return;
  changed_.wait(lock, [&] { return stage_ != Stage::writing; });
  if (done()) return;
  stage_ = Stage::idle;
  changed_.notify_all();
  fail(ExitCode::environment, failure_);
}

int64_t Saver::saved_step() const {
  std::lock_guard lock(mutex_);
  return saved_step_;
}

int64_t Saver::lost_in_a_row() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

std::string Saver::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Saver::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return end_ || stage_ == Stage::writing || stage_ == Stage::failed; });
    if (stage_ == Stage::failed && !end_) {
      const auto pause = std::chrono::duration<double>(pause_s_);
      if (changed_.wait_for(lock, pause, [&] { return end_ || stage_ != Stage::failed; })) continue;
      pause_s_ = std::min(2 * pause_s_, options_.last_retry_s);
      stage_ = Stage::writing;
    }
    if (stage_ != Stage::writing) return;  // the end
    lock.unlock();
    std::string failure;
    try {
      snapshot_.wait();
      job_();
    } catch (...) {
      failure = describe_exception(std::current_exception()).sentence;
    }
    lock.lock();
    ++attempts_;
    failure_ = failure;
    if (failure.empty()) {
      if (attempts_ > 1) log::info("the checkpoint of step ", meta_.step, " is saved now");
      stage_ = after_job_;
      if (stage_ == Stage::idle) {
        saved_step_ = meta_.step;
        lost_ = 0;
      }
    } else {
      stage_ = Stage::failed;
      if (!end_) log::warn(failure, "; training continues, the next try comes in ", human_seconds(pause_s_));
    }
    changed_.notify_all();
  }
}

}  // namespace hrm::checkpoint
