#pragma once
// Sign SGD on the rows of a table that a batch touched.

#include "hrm/ops/sparse_sign_sgd.h"

namespace hrm::optim {

using ops::sparse_sign_sgd_;

}  // namespace hrm::optim
