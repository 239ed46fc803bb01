#pragma once
// Assigns weight decay, learning rate and update rule to parameters.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hrm/nn/parameter.h"
#include "hrm/optim/optimizer.h"

namespace hrm::optim {

// A user's rule for the parameters whose names match a glob: * any text, ? one character, [ab] one of these. The first
// matching rule applies.
struct GroupRule {
  std::string pattern;
  double weight_decay = 0;
  double lr_factor = 1;  // of the learning rate
  bool adamw = false;    // AdamW updates them, even if muon would update the matrices
};

// Parses "pattern=decay", "pattern=decay:factor" or "pattern=decay:factor:adamw", separated by commas. Ignores spaces
// around each. Empty: no rules. Throws Error(usage) naming the unreadable part.
std::vector<GroupRule> parse_group_rules(const std::string& text);

// A task's defaults for parameters without a rule; its globs may match nothing.
struct GroupDefaults {
  bool decay_vectors = true;                // false: vectors and scalars (norms, biases) do not decay
  std::vector<std::string> undecayed = {};  // globs of other parameters without decay
  // Globs of embeddings and output heads. Muon leaves them, and all vectors and scalars, to AdamW.
  std::vector<std::string> not_matrices = {"*embed*", "*lm_head*", "*q_head*", "*dwconv*"};
  // Parameters that stack this many matrices along dimension 0, by name.
  std::map<std::string, int64_t> stacks = {};
};

struct GroupOptions {
  double weight_decay = 0;  // if neither a rule nor the defaults apply
  std::vector<GroupRule> rules = {};
  GroupDefaults defaults = {};
  bool muon = false;  // mark the matrices
};

// Whether Muon's iteration updates a parameter with this name and number of dimensions.
bool is_muon_matrix(const std::string& name, int64_t dimensions, const GroupOptions& options);

// Splits the parameters of `all` (group_of, or a rank's share of it) into groups, ordered by first member. If all have
// the same settings, `all` remains one group. `parameters`: the whole set, for names and shapes. Throws Error(usage) if
// a rule matches no parameter, with the nearest one, or if earlier rules have taken all its matches.
std::vector<ParameterGroup> make_groups(const nn::ParameterSet& parameters, const ParameterGroup& all,
                                        const GroupOptions& options);

}  // namespace hrm::optim
