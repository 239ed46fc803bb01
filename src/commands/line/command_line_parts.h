#pragma once
// What the files of the command line share.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hrm {

// Set by the subcommand that was chosen, run after the whole line was read.
using Action = std::function<int()>;

inline constexpr const char* kRunOrStep = "run folder (its newest checkpoint) or checkpoint folder";

// For names of files: "" would otherwise count as not given.
std::string not_empty(const std::string& text);

// For numbers without an upper end; CLI11's own checks name the largest double in their message.
CLI::Validator at_least(int64_t least);

// Makes all options of the app and its subcommands that name files or folders, by their type, expand a leading "~/". A
// shell does not expand it in --out=~/here.
void expand_home_in_paths(CLI::App& app);

void add_device(CLI::App& sub, std::string& device);
void add_config_files(CLI::App& sub, std::vector<std::string>& files);
void add_overrides(CLI::App& sub, std::vector<std::string>& overrides);
// --temperature, --top-k and --top-p, of whatever samples text.
void add_sampling(CLI::App& sub, double& temperature, int64_t& top_k, double& top_p);
void add_json_out(CLI::App& sub, std::string& file);

// Minutes of work must not end at a result file that can never be written.
void check_can_write(const std::string& file, const char* option = "--json");

// Subcommands in files of their own.
void add_data(CLI::App& app, Action& action);
void add_data_own_puzzles(CLI::App& data, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);

}  // namespace hrm
