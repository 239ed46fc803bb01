#pragma once
// Our kernel of the plain product.

#include "ops/linear/linear_impl.h"

namespace hrm::ops::testing {

// While it lives, our kernel of the plain product wherever it fits, also where the library's is faster.
class WithTiles {
 public:
  WithTiles() { set_always_tiles(true); }
  ~WithTiles() { set_always_tiles(false); }
  WithTiles(const WithTiles&) = delete;
  WithTiles& operator=(const WithTiles&) = delete;
};

}  // namespace hrm::ops::testing
