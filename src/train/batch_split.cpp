#include "hrm/train/batch_split.h"

#include "hrm/base/error.h"

namespace hrm::train {

BatchSplit split_batch(const config::TrainConfig& config, int64_t ranks) {
  require(config.global_batch_size % ranks == 0, ExitCode::usage,
          "train.global_batch_size = ", config.global_batch_size, " cannot be split over ", ranks,
          " ranks: choose a multiple of them");
  BatchSplit split{.own = config.global_batch_size / ranks};
  split.micro = config.micro_batch_size > 0 ? config.micro_batch_size : split.own;
  require(ranks > 1 || split.own % split.micro == 0, ExitCode::usage, "train.micro_batch_size = ", split.micro,
          " does not divide train.global_batch_size = ", config.global_batch_size, "; choose a divisor of it");
  require(split.own % split.micro == 0, ExitCode::usage, "train.micro_batch_size = ", split.micro,
          " does not divide the ", split.own, " samples that each of ", ranks,
          " ranks has of train.global_batch_size = ", config.global_batch_size);
  split.accumulation = split.own / split.micro;
  return split;
}

}  // namespace hrm::train
