#pragma once

// What a folder's tensors have wrong, the first few by name.

#include <string>

#include "hrm/base/error.h"
#include "hrm/formats/dtype.h"

namespace hrm::checkpoint {

// Whether a tensor of this type may hold weights.
inline bool floats(DType type) {
  return type == DType::f32 || type == DType::f16 || type == DType::bf16 || type == DType::f64;
}

class Contradictions {
 public:
  template <class... Args>
  void add(const Args&... what) {
    if (++count_ <= kShown) text_ += cat(count_ > 1 ? ", " : "", what...);
  }
  bool none() const { return count_ == 0; }
  std::string text() const { return count_ > kShown ? cat(text_, " and ", count_ - kShown, " more") : text_; }

 private:
  static constexpr int kShown = 8;
  std::string text_;
  int count_ = 0;
};

}  // namespace hrm::checkpoint
