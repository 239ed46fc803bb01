// Every file in configs/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "config/consistency.h"
#include "hrm/base/text.h"
#include "hrm/config/load.h"
#include "hrm/config/schema.h"
#include "support/paths.h"

namespace hrm::config {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> recipes() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(test::source_dir()) / "configs")) {
    if (entry.is_regular_file() && entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// The keys that a reader of a paper looks for: a recipe gives them although they may be as by default.
std::set<std::string> decisive_keys(const Config& c) {
  std::set<std::string> keys;
  const auto add = [&](const std::string& section, std::initializer_list<const char*> names) {
    for (const char* name : names) keys.insert(section + "." + name);
  };
  keys.insert("task");
  add("run", {"name", "seed"});
  add("data", {"train"});
  add("optim", {"name", "lr", "weight_decay", "grad_clip", "schedule", "warmup_steps", "ema"});
  if (c.optim.name == OptimizerKind::sgd) {
    add("optim", {"momentum"});
  } else {
    add("optim", {"beta1", "beta2"});
  }
  if (c.optim.schedule != Schedule::constant) add("optim", {"min_ratio"});
  add("train", {"global_batch_size", "steps"});
  add("precision", {"compute"});
  if (c.task == "puzzle") {
    add("data", {"test", "kind", "augmentation", "reference_semantics"});
    add("model", {"arch", "hidden_size", "num_heads", "expansion", "H_cycles", "L_cycles", "H_layers", "L_layers",
                  "pos_encodings", "puzzle_emb_ndim", "puzzle_emb_len", "no_ACT_continue", "halt_max_steps",
                  "halt_exploration_prob"});
    add("objective", {"loss", "loss_precision"});
    if (c.model.puzzle_emb_ndim != 0) add("optim", {"puzzle_emb_lr", "puzzle_emb_weight_decay"});
  } else if (c.task == "language") {
    add("data", {"encoder_len", "decoder_len"});
    add("lm", {"arch", "style", "hidden_size", "num_heads", "layers"});
    if (c.lm.style == LmStyle::modern) add("lm", {"qk_norm", "tied"});
    if (c.lm.arch == LmArch::hrm) {
      add("lm", {"encoder", "enc_layers", "h_layers", "l_layers", "h_len", "l_len", "h_cycles", "l_steps",
                 "gradient_cycles", "bridge", "prefix_len"});
      if (c.lm.encoder == LmEncoder::mamba2) {
        add("lm", {"mamba_expand", "mamba_head_dim", "mamba_state", "mamba_groups", "mamba_kernel"});
      }
      if (c.objective.halting > 0) add("objective", {"deep_supervision", "halting", "halting_target"});
    }
    if (c.moe.experts > 0) {
      add("moe", {"experts", "top_k", "inner", "activation", "place", "every", "score", "normalize", "load_weight",
                  "z_weight"});
    }
  } else if (c.task == "contrastive" && c.contrastive.mode == ContrastiveMode::compat) {
    add("contrastive", {"mode", "commit", "coord_dim_n", "rotor_k", "state_dim", "context", "retrieval_beta",
                        "beta_nudge", "nudge_mode", "nudge_scale", "tbptt_window_steps", "sdm_capacity"});
  } else if (c.task == "contrastive") {
    add("contrastive", {"rule", "tbptt_window_steps"});
    if (c.contrastive.network == ContrastiveNetwork::layered) {
      add("contrastive", {"network", "layer_count", "layer_width", "beta_nudge", "momentum"});
    } else {
      add("contrastive", {"coord_dim_n", "rotor_k", "learned_slots", "state_dim", "kappa", "gamma", "retrieval_beta"});
    }
  } else {
    add("hf", {"model", "weights"});
    add("lora", {"r"});
    add("chat", {"template", "max_length"});
    add("polychromic", {"objective", "diversity_weight", "n_generations", "diversity_metric", "diversity_temperature",
                        "max_generation_length", "baseline"});
  }
  return keys;
}

TEST(Recipes, EachLoadsAndCanTrain) {
  const auto files = recipes();
  EXPECT_GE(files.size(), 6u);
  std::set<std::string> names;
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    const LoadedConfig loaded = load_config({file.string()}, {});
    EXPECT_NO_THROW(validate(loaded));
    // The run is called as its recipe, and no two recipes write into one folder.
    EXPECT_EQ(loaded.config.run.name, file.stem().string());
    EXPECT_TRUE(names.insert(loaded.config.run.name).second);
    EXPECT_FALSE(loaded.config.task == "puzzle" && loaded.config.data.test.empty());
    const std::string text = read(file);
    EXPECT_TRUE(text.starts_with("//")) << "a recipe begins with a comment on what it trains and how to start it";
    EXPECT_NE(text.find("hrm_train train --config configs/" + file.parent_path().filename().string() + "/" +
                        file.filename().string()),
              std::string::npos);
    const LoadedConfig again = config_from_json_text(loaded.to_json(), "dump");
    EXPECT_TRUE(differing_keys(loaded.config, again.config).empty());
  }
}

TEST(Recipes, EachListsTheDecisiveKeysAndWhatDiffersFromTheDefaults) {
  for (const fs::path& file : recipes()) {
    SCOPED_TRACE(file.string());
    const LoadedConfig loaded = load_config({file.string()}, {});
    const std::vector<std::string> differing = differing_keys(loaded.config, Config());
    const std::set<std::string> decisive = decisive_keys(loaded.config);
    for (const std::string& key : decisive) ASSERT_NE(find_field(key), nullptr) << key << " is no key";
    for (const std::string& key : keys()) {
      const bool listed = loaded.origin(key).kind == Origin::Kind::file;
      const bool differs = std::find(differing.begin(), differing.end(), key) != differing.end();
      const bool wanted = decisive.count(key) > 0;
      EXPECT_TRUE(listed || !wanted) << key << " is decisive, but not in the file";
      EXPECT_TRUE(!listed || wanted || differs) << key << " is as by default and not decisive";
    }
  }
}

// Each key with the value that most recipes have, and below it the recipes that have another one. Only recipes of tasks
// that read the key count.
std::string resolved_recipes() {
  std::map<std::string, LoadedConfig> loaded;  // by name
  for (const fs::path& file : recipes()) loaded.emplace(file.stem().string(), load_config({file.string()}, {}));
  std::string out;
  for (const Field& field : fields()) {
    std::map<std::string, std::string> values;  // by recipe
    std::map<std::string, int> counts;
    for (const auto& [name, recipe] : loaded) {
      if (!is_read_by(field, recipe.config.task)) continue;
      ++counts[values[name] = to_text(field.get(recipe.config))];
    }
    if (values.empty()) continue;
    const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    const std::string common = std::max_element(counts.begin(), counts.end(), fewer)->first;
    out += cat(field.key, " = ", common, "\n");
    for (const auto& [name, value] : values) {
      if (value != common) out += cat("  ", name, " = ", value, "\n");
    }
  }
  return out;
}

// A recipe lists few keys, so that a new default could change it unnoticed. If the change is intended, renew the kept
// values with the command below and commit them.
TEST(Recipes, EachResolvesToTheKeptValues) {
  const std::string file = test::source_dir() + "/tests/config/resolved_recipes.txt";
  const std::string resolved = resolved_recipes();
  if (std::getenv("HRM_RENEW_RECIPES") != nullptr) {
    ASSERT_TRUE(std::ofstream(file) << resolved) << file;
    GTEST_SKIP() << "wrote " << file;
  }
  const auto lines = [](const std::string& text) {
    std::vector<std::string> out;
    std::string key;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      if (!line.starts_with(' ')) key = line.substr(0, line.find(' '));
      out.push_back(line.starts_with(' ') ? key + ":" + line.substr(1) : line);
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  const std::vector<std::string> kept = lines(read(file)), now = lines(resolved);
  std::vector<std::string> gone, added;
  std::set_difference(kept.begin(), kept.end(), now.begin(), now.end(), std::back_inserter(gone));
  std::set_difference(now.begin(), now.end(), kept.begin(), kept.end(), std::back_inserter(added));
  std::string changes;
  for (const std::string& line : gone) changes += "- " + line + "\n";
  for (const std::string& line : added) changes += "+ " + line + "\n";
  EXPECT_TRUE(changes.empty()) << "recipes train with other values than " << file << " says:\n"
                               << changes << "If that is intended, renew it:\n"
                               << "  HRM_RENEW_RECIPES=1 build/tests/test_config --gtest_filter='Recipes.*'";
}

TEST(Recipes, ShippedDataIsThere) {
  for (const fs::path& file : recipes()) {
    const LoadedConfig loaded = load_config({file.string()}, {});
    for (const std::string& data : {loaded.config.data.train, loaded.config.data.test}) {
      if (!data.starts_with("data/sudoku/")) continue;
      EXPECT_TRUE(fs::exists(fs::path(test::source_dir()) / data)) << data;
    }
  }
}

}  // namespace
}  // namespace hrm::config
