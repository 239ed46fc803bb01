#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/tasks/plan.h"

namespace hrm::tasks {

// Multiply-adds of the matrix products that this thread calls.
class StepRehearsal::WorkCounter {
 public:
  WorkCounter() {
    called() = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&count).needsInputs(true).scopes(
        {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~WorkCounter() { at::removeCallback(handle_); }
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  static double& called() {
    thread_local double value = 0;
    return value;
  }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    const bool adds = name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm";
    if (!adds && name != "aten::mm" && name != "aten::bmm") return nullptr;
    const size_t first = adds ? 1 : 0;
    const auto inputs = call.inputs();
    called() += static_cast<double>(inputs[first].toTensor().numel()) *
                static_cast<double>(inputs[first + 1].toTensor().size(-1));
    return nullptr;
  }

  at::CallbackHandle handle_ = 0;
};

// Logs the operation when it is waited for.
class StepRehearsal::LoggedPending : public parallel::Pending {
 public:
  LoggedPending(std::unique_ptr<parallel::Pending> pending, std::shared_ptr<std::vector<Logged>> log, size_t operation)
      : pending_(std::move(pending)), log_(std::move(log)), operation_(operation) {}

  void wait() override {
    log_->push_back({operation_, WorkCounter::called()});
    pending_->wait();
  }

 private:
  std::unique_ptr<parallel::Pending> pending_;
  std::shared_ptr<std::vector<Logged>> log_;
  size_t operation_;
};

// Another Comm, and a log of the starts and waits of all that goes through it and through what it is split into.
class StepRehearsal::Recorder : public parallel::Comm {
 public:
  using Reduction = parallel::Reduction;
  using Pending = parallel::Pending;
  using Transfer = parallel::Transfer;

  Recorder(std::shared_ptr<parallel::Comm> comm, std::shared_ptr<std::vector<Logged>> log,
           std::shared_ptr<size_t> started)
      : comm_(std::move(comm)), log_(std::move(log)), started_(std::move(started)) {}

  int rank() const override { return comm_->rank(); }
  int ranks() const override { return comm_->ranks(); }
  std::string describe() const override { return comm_->describe(); }

  std::unique_ptr<Pending> start_all_reduce(const at::Tensor& tensor, Reduction reduction) override {
    return logged(comm_->start_all_reduce(tensor, reduction));
  }
  std::unique_ptr<Pending> start_reduce_scatter(const at::Tensor& out, const at::Tensor& in) override {
    return logged(comm_->start_reduce_scatter(out, in));
  }
  std::unique_ptr<Pending> start_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    return logged(comm_->start_all_gather(out, in));
  }
  std::unique_ptr<Pending> start_all_to_all(const at::Tensor& out, const at::Tensor& in) override {
    return logged(comm_->start_all_to_all(out, in));
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Transfer>& sends,
                                          const std::vector<Transfer>& receives) override {
    return logged(comm_->start_exchange(sends, receives));
  }
  void broadcast(const at::Tensor& tensor, int root) override {
    comm_->broadcast(tensor, root);
    logged(nullptr)->wait();
  }
  void barrier() override { comm_->barrier(); }
  std::unique_ptr<Comm> split(const parallel::Subgroup& group) override {
    return std::make_unique<Recorder>(comm_->split(group), log_, started_);
  }

 private:
  std::unique_ptr<Pending> logged(std::unique_ptr<Pending> pending) {
    if (!pending) pending = std::make_unique<parallel::Done>();
    log_->push_back({*started_, WorkCounter::called()});
    return std::make_unique<LoggedPending>(std::move(pending), log_, (*started_)++);
  }

  std::shared_ptr<parallel::Comm> comm_;
  std::shared_ptr<std::vector<Logged>> log_;
  std::shared_ptr<size_t> started_;
};

StepRehearsal::StepRehearsal(int64_t ranks, const parallel::MeshShape& shape)
    : log_(std::make_shared<std::vector<Logged>>()),
      work_(std::make_unique<WorkCounter>()),
      world_(std::make_shared<parallel::CountingComm>(std::make_shared<Recorder>(
          parallel::make_fake_comm(0, static_cast<int>(ranks)), log_, std::make_shared<size_t>(0)))),
      mesh_(std::make_unique<parallel::Mesh>(world_, shape)) {}

StepRehearsal::~StepRehearsal() = default;

void StepRehearsal::add(const Event& event, StepPlace place) {
  place.order = static_cast<int64_t>(events_.size());
  events_.push_back(event);
  StepExchange& exchange = exchanges_.at(event.exchange);
  (event.wait ? exchange.wait : exchange) = place;
}

void StepRehearsal::note_next(const std::string& what, const StepPlace& place) {
  const size_t operation = log_->at(noted_++).operation;
  const bool wait = operation < exchange_of_.size();
  if (!wait) {
    exchange_of_.push_back(exchanges_.size());
    StepExchange& exchange = exchanges_.emplace_back();
    exchange.what = what;
    exchange.operation = world_->traffic().operations.at(operation);
  }
  add({exchange_of_[operation], wait}, place);
}

void StepRehearsal::note(const std::string& what, Moment moment, double ready, int64_t micro_batches_left) {
  const StepPlace place{.moment = moment, .ready = ready, .micro_batches_left = micro_batches_left};
  while (noted_ < log_->size()) note_next(what, place);
}

void StepRehearsal::note_by_kind(const std::string& gathered, const std::string& others, Moment moment) {
  const auto& operations = world_->traffic().operations;
  while (noted_ < log_->size()) {
    const bool gathers = operations.at(log_->at(noted_).operation).kind == parallel::CommOperation::Kind::all_gather;
    note_next(gathers ? gathered : others, {.moment = moment});
  }
}

void StepRehearsal::note_work(const std::string& what, Moment moment, double from, double to,
                              int64_t micro_batches_left) {
  const auto& operations = world_->traffic().operations;
  const std::string tensor = parallel::axis_name(parallel::Axis::tensor);
  const double work = WorkCounter::called() - noted_work_;
  while (noted_ < log_->size()) {
    const auto [operation, before] = (*log_)[noted_];
    const double share = work > 0 ? (before - noted_work_) / work : 0;
    const bool gathers = operations.at(operation).kind == parallel::CommOperation::Kind::all_gather;
    note_next(operations.at(operation).axis == tensor ? what
              : gathers                               ? "weights"
                                                      : "gradients",
              {.moment = moment, .ready = from + (to - from) * share, .micro_batches_left = micro_batches_left});
  }
  noted_work_ += work;
}

// What was started before a mark and is not waited for by then.
std::vector<size_t> StepRehearsal::waited_later(size_t mark) const {
  std::set<size_t> open;
  for (size_t i = 0; i < mark; ++i) {
    if (events_[i].wait) {
      open.erase(events_[i].exchange);
    } else {
      open.insert(events_[i].exchange);
    }
  }
  return {open.begin(), open.end()};
}

void StepRehearsal::repeat(size_t from, size_t to, int64_t times) {
  const std::vector<size_t> before = waited_later(from), after = waited_later(to);
  std::vector<size_t> open = after;
  const int64_t listed = std::min(times, kMostListed), others = times - listed;
  for (StepExchange& exchange : exchanges_) {
    exchange.micro_batches_left -= others;
    exchange.wait.micro_batches_left -= others;
  }
  for (int64_t turn = 1; turn <= listed; ++turn) {
    require(before.size() == open.size(), ExitCode::unexpected, "a micro-batch that is repeated leaves ", open.size(),
            " operations under way, but found ", before.size());
    std::map<size_t, size_t> copies;
    for (size_t i = 0; i < before.size(); ++i) copies[before[i]] = open[i];
    for (size_t i = from; i < to; ++i) {
      const Event event = events_[i];
      const StepExchange original = exchanges_[event.exchange];
      if (!event.wait) {
        copies[event.exchange] = exchanges_.size();
        exchanges_.push_back(original);
        exchanges_.back().times = turn == listed ? 1 + others : 1;
      }
      StepPlace place = event.wait ? original.wait : original;
      place.micro_batches_left -= turn;
      add({copies.at(event.exchange), event.wait}, place);
    }
    for (size_t i = 0; i < open.size(); ++i) open[i] = copies.at(after[i]);
  }
  for (size_t& exchange : exchange_of_) {
    const auto found = std::find(after.begin(), after.end(), exchange);
    if (found != after.end()) exchange = open[static_cast<size_t>(found - after.begin())];
  }
}

ModelOutline ModelPlan::outline_part(const config::Config& config,
                                     const std::shared_ptr<const nn::TensorAcross>& /*across*/) const {
  fail(ExitCode::usage, "plan knows no parts of ", name(), ", but parallel.tensor = ", config.parallel.tensor,
       "; set it to 1");
}

void ModelPlan::rehearse_pass(const PlanInput& in, const ModelOutline& /*outline*/, int64_t /*micro_batches_left*/,
                              StepRehearsal& /*step*/) const {
  outline_part(in.config, nullptr);  // refuses
}

}  // namespace hrm::tasks
