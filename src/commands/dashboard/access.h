#pragma once
// Who may read the page: requests to this machine's own names (so that no foreign web page can read it by pointing its
// host name here, DNS rebinding), and with a token where other machines can connect.

#include <string>
#include <string_view>

namespace hrm::dashboard {

// 127.0.0.0/8, ::1 and localhost.
bool is_loopback(std::string_view address);

// The host of a Host header without its port and brackets, in lower case; empty if it is malformed.
std::string host_of(std::string_view header);

class Access {
 public:
  // `address`: what the server listens on. `token`: empty for none.
  Access(std::string address, std::string token);

  // Only loopback names where the server listens on loopback. Else also any IP address, which no DNS can redirect, the
  // name of this machine and `address`. A port may follow; which one does not matter (SSH tunnels change it).
  bool allows_host(std::string_view header) const;

  // In a time that does not depend on where the two differ. True if there is no token.
  bool allows_token(std::string_view given) const;

 private:
  std::string address_, machine_, token_;
};

// 32 hex digits from the operating system's generator. Throws Error(environment).
std::string new_token();

}  // namespace hrm::dashboard
