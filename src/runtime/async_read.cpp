#include "hrm/runtime/async_read.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <thread>

namespace hrm {

void wait_for(const c10::Event& event) {
  while (!event.query()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

std::optional<c10::Event> record_event(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void AsyncReader::push(int64_t tag, const at::Tensor& values) {
  if (values.device().is_cpu()) {
    queue_.push_back({tag, values.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true), std::nullopt});
    return;
  }
  // As they are: a conversion on the device would be a kernel between two steps.
  at::Tensor host = at::empty(values.sizes(), at::TensorOptions().dtype(values.scalar_type()).pinned_memory(true));
  host.copy_(values, /*non_blocking=*/true);
  queue_.push_back({tag, std::move(host), record_event(values.device())});
}

std::optional<AsyncReader::Entry> AsyncReader::pop(bool wait) {
  if (queue_.empty()) return std::nullopt;
  Pending& front = queue_.front();
  if (front.event) {
    if (!wait && !front.event->query()) return std::nullopt;
    wait_for(*front.event);
  }
  const at::Tensor host = front.host.to(at::kDouble).contiguous();
  const double* data = host.const_data_ptr<double>();
  Entry entry{front.tag, std::vector<double>(data, data + host.numel())};
  queue_.pop_front();
  return entry;
}

}  // namespace hrm
