#pragma once
// The command line of hrm_train.

namespace hrm {

// Reads the arguments and runs the subcommand that they name; returns its exit code. --help and --version print to
// stdout. Throws Error(usage) for arguments that make no sense, and whatever the subcommand throws.
int run_command_line(int argc, const char* const* argv);

}  // namespace hrm
