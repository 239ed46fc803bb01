#pragma once
// Which parameters have which weight decay, learning rate and update.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/optimizer.h"

namespace hrm::optim {

// What the user says of the parameters whose names match a pattern (a glob: * any text, ? a character, [ab] one of
// these). The first rule that matches a parameter counts for it.
struct GroupRule {
  std::string pattern;
  double weight_decay = 0;
  double lr_factor = 1;  // of the learning rate
  bool adamw = false;    // AdamW updates them, where muon would update the matrices
};

// From "pattern=decay", "pattern=decay:factor" or "pattern=decay:factor:adamw", with commas between several; spaces
// around each do not count. Empty: none. Throws Error(usage) naming the part that cannot be read.
std::vector<GroupRule> parse_group_rules(const std::string& text);

// What a task says of parameters that no rule matches; its globs may match nothing.
struct GroupDefaults {
  bool decay_vectors = true;                // false: vectors and scalars (norms, biases) do not decay
  std::vector<std::string> undecayed = {};  // globs of others that do not
  // Globs of embeddings and output heads: Muon leaves them, and all vectors and scalars, to AdamW.
  std::vector<std::string> not_matrices = {"*embed*", "*lm_head*", "*q_head*"};
  // Parameters that are this many matrices stacked along dimension 0, by name.
  std::map<std::string, int64_t> stacks = {};
};

struct GroupOptions {
  double weight_decay = 0;  // where neither a rule nor the defaults say otherwise
  std::vector<GroupRule> rules = {};
  GroupDefaults defaults = {};
  bool muon = false;  // mark the matrices
};

// Whether Muon's iteration updates a parameter of this name and number of dimensions.
bool is_muon_matrix(const std::string& name, int64_t dimensions, const GroupOptions& options);

// Splits the parameters of `all` (group_of, or a rank's shard) into groups, in the order of their first members. If all
// have the same settings, there is one group. `parameters`: the whole set, for names and shapes. Throws Error(usage)
// for a rule that matches no parameter, naming the nearest one, or only parameters of earlier rules.
std::vector<ParameterGroup> make_groups(const nn::ParameterSet& parameters, const ParameterGroup& all,
                                        const GroupOptions& options);

}  // namespace hrm::optim
