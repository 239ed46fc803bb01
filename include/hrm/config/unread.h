#pragma once
// Settings that were asked for and change nothing.

#include <initializer_list>
#include <string>

#include "hrm/config/load.h"

namespace hrm::config {

// validate() refuses what the configuration alone shows to be of no effect; this is for what the data show. Throws
// Error(usage) for the first of `keys` that somebody set to another value than usual beside the value of `other`: "KEY
// has no effect, for OTHER WHY; leave it out, or WAY_OUT". What a file says is let through where another file or the
// command line gives `other`.
void refuse_unread(const LoadedConfig& loaded, std::initializer_list<const char*> keys, const char* other,
                   const char* why, const std::string& way_out = "");

}  // namespace hrm::config
