#include "hrm/runtime/tuning_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr int kFormat = 1;
// A choice takes about 200 bytes, and a run has some dozens.
constexpr JsonLimits kLimits{.bytes = size_t{4} << 20, .depth = 3};

// Letters, digits and dots alone: the name of a file everywhere.
std::string file_name(const std::string& device, const std::string& library) {
  std::string name = device + "_" + library;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '_';
  }
  return name + ".json";
}

// Keeps other processes from reading and replacing the file at the same time. Held by the process: a crash frees it.
class FileLock {
 public:
  explicit FileLock(const fs::path& file) : fd_(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    require(fd_ >= 0, ExitCode::environment, "cannot create '", file.string(), "': ", std::strerror(errno));
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { close(fd_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

double time_of(const nlohmann::json& json, const char* key) {
  const double us = json.value(key, 0.0);
  require(std::isfinite(us) && us >= 0, ExitCode::data, "the time '", key, "' is ", us);
  return us;
}

}  // namespace

TuningCache::TuningCache(const fs::path& folder, std::string device, std::string library, bool writes)
    : device_(std::move(device)), library_(std::move(library)), writes_(writes) {
  if (folder.empty()) return;
  file_ = folder / file_name(device_, library_);
  choices_ = read(/*warn=*/true);
}

TuningCache::Choices TuningCache::read(bool warn) const {
  std::error_code error;
  if (!fs::exists(file_, error) && !error) return {};
  std::string fault = "it is not a list of tuned algorithms";
  try {
    const auto found = from_text(read_text(file_, ExitCode::environment, kLimits.bytes));
    if (found && found->device == device_ && found->library == library_) return found->choices;
    if (found) fault = "it is of " + printable(found->device) + " and " + printable(found->library);
  } catch (const Error& e) {
    fault = e.what();
  }
  if (warn)
    log::warn("tuned algorithms: '", file_.string(), "' is not used", writes_ ? " and will be replaced: " : ": ",
              fault);
  return {};
}

std::optional<TunedChoice> TuningCache::find(const std::string& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? std::nullopt : std::optional(found->second);
}

TunedChoice TuningCache::add(const std::string& key, const TunedChoice& choice, const std::string& refused) {
  TunedChoice chosen = choice;
  if (!file_.empty() && writes_) {
    try {
      make_directories(file_.parent_path());
      const FileLock lock(fs::path(file_) += ".lock");
      Choices stored = read(/*warn=*/false);
      // What this process took from a checkpoint is its own matter, so its choices do not go into the file.
      const auto entry = stored.emplace(key, choice).first;
      if (entry->second.algorithm == refused) entry->second = choice;
      chosen = entry->second;
      write_text_atomic(file_, to_text({device_, library_, stored}, /*one_line=*/false) + "\n");
    } catch (const Error& e) {
      writes_ = false;
      log::warn("tuned algorithms cannot be kept for the next start: ", e.what());
    }
  }
  choices_[key] = chosen;
  return chosen;
}

void TuningCache::adopt(const Choices& choices) {
  for (const auto& [key, choice] : choices) choices_[key] = choice;
}

std::string TuningCache::to_text(const Portable& portable, bool one_line) {
  Json json;
  json["format"] = kFormat;
  json["device"] = portable.device;
  json["library"] = portable.library;
  json["choices"] = Json::object();
  for (const auto& [key, choice] : portable.choices) {
    // Hundredths of a microsecond: more would be noise.
    const auto rounded = [](double us) { return std::round(us * 100) / 100; };
    json["choices"][key] = {
        {"algorithm", choice.algorithm}, {"us", rounded(choice.us)}, {"untuned_us", rounded(choice.untuned_us)}};
  }
  return json.dump(one_line ? -1 : 1, ' ', false, Json::error_handler_t::replace);
}

std::optional<TuningCache::Portable> TuningCache::from_text(const std::string& text) {
  try {
    const nlohmann::json json = parse_json(text, "tuned algorithms", ExitCode::data, kLimits);
    if (json.at("format") != kFormat) return std::nullopt;
    Portable out{json.at("device").get<std::string>(), json.at("library").get<std::string>(), {}};
    for (const auto& [key, value] : json.at("choices").items()) {
      out.choices[key] = {value.at("algorithm").get<std::string>(), time_of(value, "us"), time_of(value, "untuned_us")};
    }
    return out;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

fs::path default_tuning_folder() {
  const auto absolute = [](const char* variable) {
    const char* value = std::getenv(variable);
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path();  // as the XDG specification has it
  };
  if (const fs::path cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "hrm_train";
  if (const fs::path home = absolute("HOME"); !home.empty()) return home / ".cache" / "hrm_train";
  return {};
}

}  // namespace hrm
