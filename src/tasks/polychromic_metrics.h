#pragma once
// Names of the polychromic task's metrics that more than one of its files knows.

namespace hrm::tasks {

// How many steps sampled answers, by what for, and how many learned from rewards: what such steps alone have is divided
// by their number.
constexpr const char *kDiversitySteps = "diversity_steps", *kRewardSteps = "reward_steps",
                     *kRewardUpdates = "reward_updates";
constexpr const char* kRewardPrefix = "reward/";

}  // namespace hrm::tasks
