#pragma once
// A client of LibTorch's TCPStore whose every step ends in time. LibTorch's own waits without a limit for a server that
// accepts the connection and then says nothing.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace hrm::parallel {

enum class StoreTrouble {
  unreachable,  // no connection
  closed,       // the other side closes the connection
  silent,       // no answer in time
  foreign,      // an answer that no store gives
};

class StoreError : public std::runtime_error {
 public:
  StoreError(StoreTrouble trouble, const std::string& why) : std::runtime_error(why), trouble_(trouble) {}
  StoreTrouble trouble() const { return trouble_; }

 private:
  StoreTrouble trouble_;
};

// From several threads: one operation at a time. Throws StoreError, after which each further operation does so, too,
// and c10::DistStoreError where a wait for keys ends without them.
class StoreClient : public c10d::Store {
 public:
  using Clock = std::chrono::steady_clock;

  // Tries to connect until `end`. All later operations end 1 s after it, until set_limit().
  StoreClient(std::string host, int port, Clock::time_point end);
  ~StoreClient() override;
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  // From now on each operation has so long for itself.
  void set_limit(std::chrono::milliseconds limit);

  c10::intrusive_ptr<c10d::Store> clone() override;
  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  // Waits until someone has set it, as LibTorch's does.
  std::vector<uint8_t> get(const std::string& key) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  class Request;

  Clock::time_point op_end() const;
  void connect_until(Clock::time_point end);
  void connect_once(Clock::time_point end);
  void greet(Clock::time_point end);
  void await(short events, Clock::time_point end);
  void send(const Request& request);
  void receive(void* to, size_t bytes, Clock::time_point end);
  template <class T>
  T receive_number();
  std::vector<uint8_t> receive_bytes();
  void wait_for_keys(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  void close_socket();
  [[noreturn]] void give_up(StoreTrouble trouble, const std::string& why);

  std::string host_;
  int port_;
  Clock::time_point end_;
  std::chrono::milliseconds limit_{0};  // 0: up to end_
  int fd_ = -1;
  std::mutex mutex_;
};

}  // namespace hrm::parallel
