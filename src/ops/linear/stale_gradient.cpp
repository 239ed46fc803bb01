#include "hrm/ops/stale_gradient.h"

#include <ATen/ATen.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <utility>

#include "ops/linear/linear_impl.h"

namespace hrm::ops {
namespace {

std::atomic<int64_t> elements_overwritten{int64_t{1} << 20};

// It travels with the tensor, which autograd keeps in many places.
struct StaleMark : c10::BackendMeta {
  bool stale = false;
  bool is_added_to = false;  // by a backward pass to come
};

StaleMark* mark_of(const at::Tensor& buffer) {
  return buffer.defined() ? dynamic_cast<StaleMark*>(buffer.unsafeGetTensorImpl()->get_backend_meta()) : nullptr;
}

}  // namespace

int64_t overwritten_elements() {
  return elements_overwritten;
}

void set_overwritten_elements(int64_t elements) {
  elements_overwritten = elements;
}

void allow_stale(const at::Tensor& buffer) {
  if (mark_of(buffer) == nullptr) buffer.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<StaleMark>());
}

void discard_gradient_(const at::Tensor& buffer) {
  StaleMark* const mark = mark_of(buffer);
  const bool stays = mark != nullptr && !mark->is_added_to;
  if (mark != nullptr) mark->stale = stays;
  if (!stays) at::Tensor(buffer).zero_();
}

bool take_stale(const at::Tensor& buffer) {
  StaleMark* const mark = mark_of(buffer);
  return mark != nullptr && std::exchange(mark->stale, false);
}

void settle_gradient_(const at::Tensor& buffer) {
  if (take_stale(buffer)) at::Tensor(buffer).zero_();
}

void forget_passes(const at::Tensor& buffer) {
  if (StaleMark* const mark = mark_of(buffer)) mark->is_added_to = false;
}

void before_adding_(const at::Tensor& buffer) {
  settle_gradient_(buffer);
  if (StaleMark* const mark = mark_of(buffer)) mark->is_added_to = true;
}

}  // namespace hrm::ops
