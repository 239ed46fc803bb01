#include "parallel/store_client.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "hrm/base/error.h"

namespace hrm::parallel {
namespace {

// What the protocol of LibTorch 2.11's TCPStore has: numbers in the machine's byte order, texts behind their length in
// 8 bytes, keys behind a slash.
enum class Query : uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  count_keys = 7,
  delete_key = 8,
  multi_get = 10,
  cancel_wait = 12,
  ping = 13,
};
constexpr uint32_t kMagic = 0x3c85f7ce;
constexpr uint8_t kReady = 0, kNotReady = 1;
constexpr uint8_t kCame = 0, kCanceled = 1;

// More than anything that ranks tell each other: who announces more is no store.
constexpr uint64_t kMostBytes = uint64_t{1} << 30;
constexpr std::chrono::milliseconds kBetweenTries{200};
// One address of several may swallow what is sent to it; the next one is tried after so long.
constexpr std::chrono::seconds kOneAddress{10};
// For the last answers of a server that does answer, e.g. to the end of a wait.
constexpr std::chrono::seconds kGrace{1};

std::string system_error(int number) {
  return std::strerror(number);
}

}  // namespace

class StoreClient::Request {
 public:
  explicit Request(Query query) { number(query); }

  template <class T>
  Request& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  template <class Bytes>
  Request& text(const Bytes& value) {
    number<uint64_t>(value.size());
    bytes_.append(value.begin(), value.end());
    return *this;
  }
  Request& key(const std::string& key) { return text("/" + key); }
  Request& keys(const std::vector<std::string>& keys) {
    number<uint64_t>(keys.size());
    for (const std::string& one : keys) key(one);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

StoreClient::StoreClient(std::string host, int port, Clock::time_point end)
    : host_(std::move(host)), port_(port), end_(end + kGrace) {
  try {
    connect_until(end);
  } catch (...) {
    close_socket();
    throw;
  }
}

StoreClient::~StoreClient() {
  close_socket();
}

void StoreClient::set_limit(std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

c10::intrusive_ptr<c10d::Store> StoreClient::clone() {
  const std::lock_guard lock(mutex_);
  auto copy = c10::make_intrusive<StoreClient>(host_, port_, op_end());
  copy->limit_ = limit_;
  copy->setTimeout(timeout_);
  return copy;
}

void StoreClient::set(const std::string& key, const std::vector<uint8_t>& value) {
  const std::lock_guard lock(mutex_);
  send(Request(Query::set).key(key).text(value));
}

std::vector<uint8_t> StoreClient::compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                             const std::vector<uint8_t>& desired) {
  const std::lock_guard lock(mutex_);
  send(Request(Query::compare_set).key(key).text(expected).text(desired));
  return receive_bytes();
}

std::vector<uint8_t> StoreClient::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  wait_for_keys({key}, timeout_);
  send(Request(Query::get).key(key));
  return receive_bytes();
}

std::vector<std::vector<uint8_t>> StoreClient::multiGet(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  wait_for_keys(keys, timeout_);
  send(Request(Query::multi_get).keys(keys));
  std::vector<std::vector<uint8_t>> values;
  values.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) values.push_back(receive_bytes());
  return values;
}

int64_t StoreClient::add(const std::string& key, int64_t value) {
  const std::lock_guard lock(mutex_);
  send(Request(Query::add).key(key).number(value));
  return receive_number<int64_t>();
}

bool StoreClient::deleteKey(const std::string& key) {
  const std::lock_guard lock(mutex_);
  send(Request(Query::delete_key).key(key));
  return receive_number<int64_t>() == 1;
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  send(Request(Query::check).keys(keys));
  const auto answer = receive_number<uint8_t>();
  if (answer != kReady && answer != kNotReady) give_up(StoreTrouble::foreign, "no store answers so");
  return answer == kReady;
}

int64_t StoreClient::getNumKeys() {
  const std::lock_guard lock(mutex_);
  send(Request(Query::count_keys));
  return receive_number<int64_t>();
}

void StoreClient::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void StoreClient::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const std::lock_guard lock(mutex_);
  wait_for_keys(keys, timeout);
}

void StoreClient::wait_for_keys(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  send(Request(Query::wait).keys(keys));
  pollfd poll_for{fd_, POLLIN, 0};
  const Clock::time_point end = Clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int ready = poll(&poll_for, 1, static_cast<int>(std::clamp<int64_t>(left, 0, INT32_MAX)));
    if (ready > 0) {
      if (receive_number<uint8_t>() != kCame) give_up(StoreTrouble::foreign, "no store answers so");
      return;
    }
    if (ready == 0 && left <= 0) break;
    if (ready < 0 && errno != EINTR) give_up(StoreTrouble::closed, system_error(errno));
  }
  send(Request(Query::cancel_wait));
  // The keys may have come just now: then both answers follow.
  auto answer = receive_number<uint8_t>();
  const bool came = answer == kCame;
  if (came) answer = receive_number<uint8_t>();
  if (answer != kCanceled) give_up(StoreTrouble::foreign, "no store answers so");
  if (!came) C10_THROW_ERROR(DistStoreError, cat("not set within ", timeout.count(), " ms"));
}

StoreClient::Clock::time_point StoreClient::op_end() const {
  return limit_.count() == 0 ? end_ : Clock::now() + limit_;
}

void StoreClient::connect_until(Clock::time_point end) {
  while (true) {
    try {
      connect_once(end);
      greet(end);
      return;
    } catch (const StoreError& error) {
      // The server may start later, or a former one may be about to end.
      const bool may_change = error.trouble() == StoreTrouble::unreachable || error.trouble() == StoreTrouble::closed;
      if (!may_change || Clock::now() + kBetweenTries >= end) throw;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
}

void StoreClient::connect_once(Clock::time_point end) {
  close_socket();
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int code = getaddrinfo(host_.c_str(), std::to_string(port_).c_str(), &hints, &list); code != 0) {
    give_up(StoreTrouble::unreachable, gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(list, freeaddrinfo);
  std::string why = "no address";
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    fd_ = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd_ < 0) {
      why = system_error(errno);
      continue;
    }
    int error = connect(fd_, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      try {
        await(POLLOUT, at->ai_next == nullptr ? end : std::min<Clock::time_point>(end, Clock::now() + kOneAddress));
        socklen_t size = sizeof error;
        if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      } catch (const StoreError&) {
        error = ETIMEDOUT;
      }
    }
    if (error == 0) {
      const int on = 1;
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      return;
    }
    why = system_error(error);
    close_socket();
  }
  give_up(StoreTrouble::unreachable, why);
}

void StoreClient::greet(Clock::time_point end) {
  const auto token = static_cast<uint32_t>(getpid());
  Request greeting(Query::validate);
  greeting.number(kMagic).number(Query::ping).number(token);
  send(greeting);
  uint32_t answer = 0;
  receive(&answer, sizeof answer, end);
  if (answer != token) give_up(StoreTrouble::foreign, "no store answers so");
}

// Until something can be read or written.
void StoreClient::await(short events, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) give_up(StoreTrouble::silent, "no answer in time");
    pollfd poll_for{fd_, events, 0};
    const int ready = poll(&poll_for, 1, static_cast<int>(std::min<int64_t>(left, INT32_MAX)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) give_up(StoreTrouble::closed, system_error(errno));
  }
}

void StoreClient::send(const Request& request) {
  if (fd_ < 0) give_up(StoreTrouble::closed, "the connection is closed");
  const Clock::time_point end = op_end();
  const std::string& bytes = request.bytes();
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      await(POLLOUT, end);
    } else if (errno != EINTR) {
      give_up(StoreTrouble::closed, system_error(errno));
    }
  }
}

void StoreClient::receive(void* to, size_t bytes, Clock::time_point end) {
  for (size_t got = 0; got < bytes;) {
    const ssize_t count = recv(fd_, static_cast<char*>(to) + got, bytes - got, 0);
    if (count > 0) {
      got += static_cast<size_t>(count);
    } else if (count == 0) {
      give_up(StoreTrouble::closed, "the connection was closed");
    } else if (errno == EAGAIN) {
      await(POLLIN, end);
    } else if (errno != EINTR) {
      give_up(StoreTrouble::closed, system_error(errno));
    }
  }
}

template <class T>
T StoreClient::receive_number() {
  T value{};
  receive(&value, sizeof value, op_end());
  return value;
}

std::vector<uint8_t> StoreClient::receive_bytes() {
  const auto size = receive_number<uint64_t>();
  if (size > kMostBytes) give_up(StoreTrouble::foreign, "no store answers so");
  std::vector<uint8_t> bytes(size);
  receive(bytes.data(), bytes.size(), op_end());
  return bytes;
}

void StoreClient::close_socket() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

// What comes later on this connection would be taken for the answer to something else.
void StoreClient::give_up(StoreTrouble trouble, const std::string& why) {
  close_socket();
  throw StoreError(trouble, why);
}

}  // namespace hrm::parallel
