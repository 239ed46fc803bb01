#pragma once
// Model cases: the configuration and the weights that a case describes, and the checks that the mutation tests run
// again on a model that they have broken.

#include <functional>
#include <memory>

#include "hrm/models/puzzle_model.h"
#include "hrm/objectives/act.h"
#include "parity/cases.h"

namespace hrm::parity {

// Where a test may break what is checked.
struct Mutation {
  std::function<void(config::ModelConfig&)> config{};
  std::function<void(models::PuzzleModel&)> weights{};
  // After act_begin of each training step; `halted` are the slots that had halted before it.
  std::function<void(objectives::ActState&, const at::Tensor& halted)> after_begin{};
};

// The model of a case's `config` object, randomly initialised, on device().
std::shared_ptr<models::PuzzleModel> build_model(const std::string& arch, const nlohmann::json& config,
                                                 at::ScalarType dtype, const Mutation& mutation = {});

at::ScalarType forward_dtype(const nlohmann::json& config);

// Copies weights (official names without prefix) into the model; both must have exactly the same names.
void load_weights(models::PuzzleModel& model, const std::map<std::string, at::Tensor>& weights);

void check_forward(const Case& loaded, const Mutation& mutation);
void check_train_trace(const Case& loaded, const Mutation& mutation);
void check_urm(const Case& loaded, const Mutation& mutation);

}  // namespace hrm::parity
