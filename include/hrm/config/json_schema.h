#pragma once
// The configuration for editors.

#include <string>

namespace hrm::config {

// A JSON Schema (draft 2020-12) of a configuration file, indented, ending with a newline: every key with its type,
// range or choices, default and help. It accepts the names that the loader accepts: sections as objects, dotted names,
// and names of older versions, which are marked as deprecated. Rules between keys are the loader's alone.
std::string json_schema();

}  // namespace hrm::config
