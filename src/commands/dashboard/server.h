#pragma once
// The HTTP server of the page. Only GET, only a handful of fixed paths; no path of a request reaches the file system.

#include <string>

#include "commands/dashboard/runs.h"

namespace hrm::dashboard {

struct ServerOptions {
  std::string address = "127.0.0.1";  // an IP address, or localhost
  int port = 0;                       // 0: any free one
};

// Serves until SIGINT or SIGTERM; prints the address of the page to stdout before. Throws Error(environment) if the
// address or the port cannot be had.
void serve(Runs& runs, const ServerOptions& options);

}  // namespace hrm::dashboard
