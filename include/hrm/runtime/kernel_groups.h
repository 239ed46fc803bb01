#pragma once
// What kernels and operations are for, by parts of their names.

#include <initializer_list>
#include <string>
#include <string_view>

namespace hrm {

struct KernelGroup {
  const char* part;   // of a name: a kernel's arguments have our struct's, an operation its own
  const char* group;  // "matrix products"
};

// Adds entries for kernels of ours, as a constant beside the ops. They come before those of libraries, and of several
// that fit a name the one with the longest part counts. The scripts that read traces take the entries from the sources
// (scripts/lib/kernel_profile.py): two strings in braces.
class KernelGroups {
 public:
  KernelGroups(std::initializer_list<KernelGroup> groups);
};

// "matrix products", "attention", ...: what a kernel or operation of this name is for; "other" where no entry fits.
std::string kernel_group(std::string_view name);

}  // namespace hrm
