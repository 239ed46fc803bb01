#include "commands/line/command_line_parts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr const char* kOverrides =
    "configuration values, e.g. optim.lr=3e-4 ('hrm_train config --describe' lists all keys)";

// What the types of options are called that stand for files and folders.
constexpr const char* kPathTypes[] = {"PATH", "FILE", "DIR", "FOLDER", "DUMP"};

}  // namespace

std::string not_empty(const std::string& text) {
  return text.empty() ? "needs a name, but got an empty text" : "";
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool number = end != text.c_str() && *end == '\0';
    if (number && value >= static_cast<double>(least)) return std::string();
    return cat("needs a number of at least ", least, ", but got '", printable_start(text), "'");
  };
  return {check, least > 0 ? "POSITIVE" : "NONNEGATIVE"};
}

void expand_home_in_paths(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool path = std::any_of(std::begin(kPathTypes), std::end(kPathTypes),
                                  [&](const char* part) { return type.find(part) != std::string::npos; });
    if (!path) continue;
    const bool named = type.starts_with("[NAME=]");
    const CLI::Validator expand(
        [named](std::string& text) {
          const size_t equals = named ? text.find('=') : std::string::npos;
          const size_t begin = equals == std::string::npos ? 0 : equals + 1;
          try {
            text = text.substr(0, begin) + expand_home(text.substr(begin));
          } catch (const Error& error) {
            return std::string(error.what());
          }
          return std::string();
        },
        "");
    option->transform(expand);
  }
  for (CLI::App* sub : app.get_subcommands({})) expand_home_in_paths(*sub);
}

void add_device(CLI::App& sub, std::string& device) {
  sub.add_option("--device", device, "device to use; auto = the GPU if a usable one is present")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

void add_sampling(CLI::App& sub, double& temperature, int64_t& top_k, double& top_p) {
  sub.add_option("--temperature", temperature,
                 "divide logits by this temperature and sample; 0 = always use the best token")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  sub.add_option("--top-k", top_k, "sample from the k best tokens; 0 = from all")
      ->capture_default_str()
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24));
  sub.add_option("--top-p", top_p, "then keep the smallest set of tokens with this total probability")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
}

void add_json_out(CLI::App& sub, std::string& file) {
  sub.add_option("--json", file, "also write the result to this file, as JSON")->type_name("FILE")->check(not_empty);
}

void check_can_write(const std::string& file, const char* option) {
  namespace fs = std::filesystem;
  if (file.empty()) return;
  std::error_code error;
  require(!fs::is_directory(file, error), ExitCode::environment, option, " '", printable(file),
          "' is a folder; give the name of a file");
  const fs::path folder = fs::path(file).has_parent_path() ? fs::path(file).parent_path() : fs::path(".");
  require(fs::is_directory(folder, error), ExitCode::environment, option, " '", printable(file),
          "': there is no folder '", printable(folder.string()), "'; make it first");
  const bool writable = access(fs::exists(file, error) ? file.c_str() : folder.c_str(), W_OK) == 0;
  require(writable, ExitCode::environment, option, " '", printable(file), "': no permission to write there");
}

void add_config_files(CLI::App& sub, std::vector<std::string>& files) {
  sub.add_option("--config", files, "configuration file; values of later files win")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

void add_overrides(CLI::App& sub, std::vector<std::string>& overrides) {
  sub.add_option("overrides", overrides, kOverrides)->type_name("KEY=VALUE");
}

}  // namespace hrm
