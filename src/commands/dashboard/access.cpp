#include "commands/dashboard/access.h"

#include <arpa/inet.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "hrm/base/error.h"

namespace hrm::dashboard {
namespace {

bool is_address(const std::string& host) {
  in6_addr parsed{};
  return inet_pton(AF_INET, host.c_str(), &parsed) == 1 || inet_pton(AF_INET6, host.c_str(), &parsed) == 1;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool is_loopback(std::string_view address) {
  const std::string text = lower_case(address);
  if (text == "localhost") return true;
  std::array<unsigned char, 4> four{};
  if (inet_pton(AF_INET, text.c_str(), four.data()) == 1) return four[0] == 127;
  in6_addr six{};
  return inet_pton(AF_INET6, text.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::string host_of(std::string_view header) {
  std::string_view host = header, rest;
  if (header.starts_with('[')) {
    const size_t close = header.find(']');
    if (close == header.npos) return "";
    host = header.substr(1, close - 1);
    rest = header.substr(close + 1);
    if (host.find(':') == host.npos) return "";
  } else if (const size_t colon = header.find(':'); colon != header.npos) {
    host = header.substr(0, colon);
    rest = header.substr(colon);
  }
  if (!rest.empty() && (rest[0] != ':' || !is_port(rest.substr(1)))) return "";
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == ':' || c == '_';
  };
  std::string out = lower_case(host);
  return std::all_of(out.begin(), out.end(), allowed) ? out : "";
}

Access::Access(std::string address, std::string token) : address_(lower_case(address)), token_(std::move(token)) {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) machine_ = lower_case(name.data());
}

bool Access::allows_host(std::string_view header) const {
  const std::string host = host_of(header);
  if (host.empty()) return false;
  if (is_loopback(host)) return true;
  if (is_loopback(address_)) return false;
  return host == address_ || host == machine_ || is_address(host);
}

bool Access::allows_token(std::string_view given) const {
  if (token_.empty()) return true;
  unsigned char different = given.size() == token_.size() ? 0 : 1;
  for (size_t i = 0; i < token_.size(); ++i) {
    const unsigned char other = i < given.size() ? static_cast<unsigned char>(given[i]) : 0;
    different = static_cast<unsigned char>(different | (static_cast<unsigned char>(token_[i]) ^ other));
  }
  return different == 0;
}

std::string new_token() {
  std::array<unsigned char, 16> bytes{};
  require(getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), ExitCode::environment,
          "the operating system gives no random numbers for the token");
  std::string out;
  for (const unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

}  // namespace hrm::dashboard
