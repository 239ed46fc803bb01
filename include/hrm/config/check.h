#pragma once
// What the rules of a configuration are written with: sentences that name a key, its value and where that is from.

#include <initializer_list>
#include <string>

#include "hrm/base/error.h"
#include "hrm/config/load.h"

namespace hrm::config {

class Checker {
 public:
  explicit Checker(const LoadedConfig& loaded) : loaded_(loaded) {}

  const LoadedConfig& loaded() const { return loaded_; }

  // "key = value (origin)".
  std::string at(const std::string& key) const;
  // Whether nobody has set the key.
  bool by_default(const std::string& key) const;
  bool is_default_value(const std::string& key) const;
  // Whether somebody set `key` to another value than the default and meant it to go with the value of `other`. A value
  // from a file is not refused where another file or the command line switches off what it belongs to.
  bool asked_beside(const std::string& key, const std::string& other) const;

  // Error(usage) unless the condition holds.
  template <class... Args>
  void require(bool condition, const Args&... sentence) const {
    hrm::require(condition, ExitCode::usage, sentence...);
  }

  // Error(usage) for the first of `keys` that was set although it has no effect with `other`: "KEY has no effect, for
  // OTHER WHY; leave it out, or WAY_OUT". A condition on one key belongs to the field itself (ReadWhen). This serves
  // conditions on several keys or on the data.
  void refuse_unread(std::initializer_list<const char*> keys, const char* other, const std::string& why,
                     const std::string& way_out = "") const;

 private:
  const LoadedConfig& loaded_;
};

// "use 6 or 8": the divisors of n next to `wanted`.
std::string nearest_divisors(int64_t n, int64_t wanted);

}  // namespace hrm::config
