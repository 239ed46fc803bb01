#pragma once
// The model of a fixture, from the "config" of its case.json.

#include <nlohmann/json.hpp>
#include <string>

#include "hrm/config/config.h"

namespace hrm::test {

inline config::ModelConfig fixture_model(const std::string& arch, const nlohmann::json& json) {
  config::ModelConfig model{.arch = config::value_of_name<config::PuzzleArch>(arch)};
  model.hidden_size = json.at("hidden_size");
  model.num_heads = json.at("num_heads");
  model.expansion = json.at("expansion");
  model.H_cycles = json.at("H_cycles");
  model.L_cycles = json.at("L_cycles");
  model.H_layers = json.at("H_layers");
  model.L_layers = json.at("L_layers");
  model.pos_encodings = config::value_of_name<config::PositionEncoding>(json.at("pos_encodings").get<std::string>());
  model.puzzle_emb_ndim = json.at("puzzle_emb_ndim");
  model.puzzle_emb_len = json.value("puzzle_emb_len", int64_t{0});
  model.mlp_t = json.value("mlp_t", false);
  model.no_ACT_continue = json.value("no_ACT_continue", false);
  model.halt_max_steps = json.at("halt_max_steps");
  model.halt_exploration_prob = json.at("halt_exploration_prob");
  model.rms_norm_eps = json.at("rms_norm_eps");
  model.rope_theta = json.at("rope_theta");
  return model;
}

}  // namespace hrm::test
