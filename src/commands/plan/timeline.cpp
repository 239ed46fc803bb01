#include "commands/plan/timeline.h"

#include <algorithm>
#include <deque>
#include <limits>

#include "hrm/base/error.h"

namespace hrm::commands {
namespace {

using tasks::StepExchange;
using tasks::StepPlace;

// Milliseconds of computing before a place.
double computed_before(const StepPlace& place, const PassTimes& times) {
  const double both = times.forward_ms + times.backward_ms;
  const double before = both * static_cast<double>(times.micro_batches - 1 - place.micro_batches_left);
  switch (place.moment) {
    case StepPlace::Moment::before_forward:
      return 0;
    case StepPlace::Moment::in_forward:
      return before + place.ready * times.forward_ms;
    case StepPlace::Moment::in_backward:
      return before + times.forward_ms + place.ready * times.backward_ms;
    case StepPlace::Moment::after_backward:
      break;
  }
  return both * static_cast<double>(times.micro_batches);
}

// Operations under way.
class Transfers {
 public:
  struct Transfer {
    size_t exchange = 0;
    double ms = 0;  // still to go
    double times = 1;
  };

  void start(const Transfer& transfer, bool urgent) { (urgent ? urgent_ : others_).push_back(transfer); }

  // Computing for `ms`, at `rate` while something travels. Returns how much longer it takes.
  double pass(double ms, double rate) {
    double slowed = 0;
    while (ms > 0 && !(urgent_.empty() && others_.empty())) {
      const double times = first().front().times, beside = pass_first(ms / rate);
      ms -= beside * rate;
      slowed += times * beside * (1 - rate);
    }
    return slowed;
  }

  // Milliseconds until this exchange has arrived.
  double arrive(size_t exchange) {
    const auto is_this = [&](const Transfer& transfer) { return transfer.exchange == exchange; };
    const auto under_way = [&](const std::deque<Transfer>& transfers) {
      return std::any_of(transfers.begin(), transfers.end(), is_this);
    };
    double waited = 0;
    while (under_way(urgent_) || under_way(others_)) waited += pass_first(std::numeric_limits<double>::infinity());
    return waited;
  }

 private:
  std::deque<Transfer>& first() { return urgent_.empty() ? others_ : urgent_; }
  // Of the first transfer, at most `most`.
  double pass_first(double most) {
    std::deque<Transfer>& transfers = first();
    const double ms = std::min(most, transfers.front().ms);
    transfers.front().ms -= ms;
    if (transfers.front().ms <= 0) transfers.pop_front();
    return ms;
  }

  std::deque<Transfer> urgent_, others_;
};

struct Event {
  const StepPlace* place = nullptr;
  size_t exchange = 0;
  bool wait = false;
};

std::vector<Event> in_order(const std::vector<StepExchange>& exchanges) {
  std::vector<Event> events;
  for (size_t i = 0; i < exchanges.size(); ++i) {
    events.push_back({&exchanges[i], i, false});
    require(exchanges[i].wait.order > exchanges[i].order, ExitCode::unexpected, "a rehearsal starts '",
            exchanges[i].what, "' and never waits for it");
    events.push_back({&exchanges[i].wait, i, true});
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.place->order < b.place->order; });
  return events;
}

}  // namespace

StepTimeline simulate(const std::vector<StepExchange>& exchanges, const PassTimes& times,
                      const std::function<double(const parallel::CommOperation&)>& milliseconds) {
  const std::string tensor = parallel::axis_name(parallel::Axis::tensor);
  StepTimeline timeline;
  Transfers links;
  double computed = 0;
  PassTimes listed = times;
  for (const StepExchange& exchange : exchanges) {
    listed.micro_batches = std::min(listed.micro_batches, times.micro_batches - exchange.times + 1);
  }
  timeline.exchange_ms.resize(exchanges.size());
  for (const Event& event : in_order(exchanges)) {
    const double here = std::max(computed, computed_before(*event.place, listed));
    timeline.slowed_ms += links.pass(here - computed, times.rate_beside);
    computed = here;
    const parallel::CommOperation& operation = exchanges[event.exchange].operation;
    AxisTimes& axis = timeline.axes[operation.axis];
    const int64_t repeats = exchanges[event.exchange].times;
    if (event.wait) {
      const double waited = static_cast<double>(repeats) * links.arrive(event.exchange);
      axis.exposed_ms += waited;
      timeline.exposed_ms += waited;
    } else {
      const double ms = milliseconds(operation);
      timeline.exchange_ms[event.exchange] = ms;
      timeline.comm_ms += static_cast<double>(repeats) * ms;
      axis.calls += repeats;
      axis.bytes += repeats * operation.bytes;
      axis.ms += static_cast<double>(repeats) * ms;
      links.start({event.exchange, ms, static_cast<double>(repeats)}, operation.axis == tensor);
    }
  }
  return timeline;
}

}  // namespace hrm::commands
