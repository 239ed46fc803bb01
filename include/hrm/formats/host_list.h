#pragma once
// Slurm's compact lists: host names, and the number of tasks per host. They come from environment variables.

#include <string>
#include <string_view>
#include <vector>

namespace hrm {

// Expands host names in order: "gpu[01-03,7],login" becomes gpu01, gpu02, gpu03, gpu7, login. Several brackets in a
// name multiply. Limits: 128 KiB of text, 65,536 hosts, 253 of the characters A-Z a-z 0-9 . _ - in a name, 18 digits in
// a number. The whole list is checked before names are built. Throws Error(environment).
std::vector<std::string> expand_hostlist(std::string_view list);

// Tasks per node in order: "4(x2),1" becomes 4, 4, 1. Limits: 128 KiB of text, 65,536 nodes, 2^20 tasks per node.
// Throws Error(environment).
std::vector<int> expand_counts(std::string_view counts);

}  // namespace hrm
