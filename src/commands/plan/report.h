#pragma once
// What `plan` says, as JSON and as text made of it.

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "commands/plan/best.h"
#include "commands/plan/ranks.h"

namespace hrm::commands {

using Json = nlohmann::ordered_json;

Json plan_json(const PlanInput& input, const Plan& plan);
void print_plan(const Json& json, std::ostream& out);

// Of several numbers of ranks.
Json ranks_json(const RanksInput& input, const std::vector<RanksPlan>& plans);
void print_ranks(const Json& json, std::ostream& out);

// Of all meshes of one number of ranks.
Json best_json(const RanksInput& input, int64_t ranks, const BestMeshes& best);
void print_best(const Json& json, std::ostream& out);

// Parts of them. Bytes and texts are values of the JSON.
std::string bytes_text(const Json& value);
std::string text_of(const Json& value);
void print_assumptions(const Json& json, std::ostream& out);
Json head_json(const RanksInput& input);
// What head_json() says, as the first line; `gpus`: of what the ranks are, "8 NVIDIA H200".
void print_head(const Json& json, const std::string& gpus, std::ostream& out);
// Of a plan's step on one axis; nullopt: nothing travels on it.
std::optional<double> exposed_ms(const Json& plan, const std::string& axis);
Json ranks_plan_json(const RanksPlan& plan);
Json assumptions_json(const RanksInput& input, const Plan& own, bool with_parts);

}  // namespace hrm::commands
