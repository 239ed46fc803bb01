#include "hrm/formats/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

// Written to the file once the buffer holds this much, so that a long gap between flushes costs no memory.
constexpr size_t kBufferSize = size_t{1} << 16;

constexpr std::array<uint32_t, 256> make_crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0);
    table[i] = crc;
  }
  return table;
}

constexpr auto kCrc32cTable = make_crc32c_table();

template <class Int>
std::string little_endian(Int value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(Int); ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

// TFRecord masks its checksums, so that a checksum over data that hold checksums stays sound.
std::string masked_crc(std::string_view data) {
  const uint32_t crc = crc32c(data);
  return little_endian<uint32_t>(((crc >> 15) | (crc << 17)) + 0xa282ead8u);
}

// The four wire forms of protobuf fields.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string integer_field(int number, int64_t value) {
  return varint(static_cast<uint64_t>(number) << 3 | 0) + varint(static_cast<uint64_t>(value));
}
std::string double_field(int number, double value) {
  return varint(static_cast<uint64_t>(number) << 3 | 1) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string bytes_field(int number, std::string_view value) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(value.size()) + std::string(value);
}
std::string float_field(int number, float value) {
  return varint(static_cast<uint64_t>(number) << 3 | 5) + little_endian(std::bit_cast<uint32_t>(value));
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The seconds that the next file's name holds.
int64_t next_file_time(const std::filesystem::path& directory, double started) {
  constexpr std::string_view kStart = "events.out.tfevents.";
  auto time = static_cast<int64_t>(started);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kStart)) continue;
    const std::string number = name.substr(kStart.size(), name.find('.', kStart.size()) - kStart.size());
    // A number of more digits would are in front of ours, whatever it is.
    if (const auto other = whole_number(number); other && number.size() == std::to_string(time).size()) {
      time = std::max(time, static_cast<int64_t>(*other) + 1);
    }
  }
  return time;
}

// tensorflow/core/util/event.proto: Event{wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7};
std::string summary_event(const std::string& summary, int64_t step, double wall_time) {
  return double_field(1, wall_time < 0 ? now() : wall_time) + integer_field(2, step) + bytes_field(5, summary);
}

// Summary{value = 1}; Value{tag = 1, simple_value = 2}.
std::string scalar_value(const std::string& tag, double value) {
  return bytes_field(1, bytes_field(1, tag) + float_field(2, static_cast<float>(value)));
}

}  // namespace

uint32_t crc32c(std::string_view text) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : text) crc = (crc >> 8) ^ kCrc32cTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

TensorboardWriter::TensorboardWriter(const std::filesystem::path& directory, const std::string& filename_suffix) {
  make_directories(directory);
  char host[256] = "localhost";
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  static std::atomic<int> count{0};
  const double started = now();
  // TensorBoard asks for "tfevents" in the name and reads a folder's files in the order of their names.
  path_ = directory / cat("events.out.tfevents.", next_file_time(directory, started), ".", host, ".", ::getpid(), ".",
                          count++, filename_suffix);
  do {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) {
    fail(ExitCode::environment, "cannot write '", path_.string(), "': ", std::system_category().message(errno));
  }
  record(double_field(1, started) + bytes_field(3, "brain.Event:2"));
}

TensorboardWriter::~TensorboardWriter() {
  close();
}

TensorboardWriter::TensorboardWriter(TensorboardWriter&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), buffer_(std::exchange(other.buffer_, {})) {}

TensorboardWriter& TensorboardWriter::operator=(TensorboardWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

void TensorboardWriter::close() noexcept {
  if (fd_ < 0) return;
  try {
    flush();
  } catch (const std::exception& e) {
    log::warn("TensorBoard records were lost: ", e.what());
  }
  ::close(fd_);
  fd_ = -1;
}

void TensorboardWriter::scalar(const std::string& tag, double value, int64_t step, double wall_time) {
  record(summary_event(scalar_value(tag, value), step, wall_time));
}

void TensorboardWriter::scalars(const std::vector<std::pair<std::string, double>>& values, int64_t step,
                                double wall_time) {
  std::string summary;
  for (const auto& [tag, value] : values) summary += scalar_value(tag, value);
  record(summary_event(summary, step, wall_time));
}

// Summary{value = 1}; Value{tag = 1, tensor = 8, metadata = 9}; TensorProto{dtype = 1, shape = 2, string_val = 8};
// SummaryMetadata{plugin_data = 1 {plugin_name = 1}}
void TensorboardWriter::text(const std::string& tag, const std::string& text, int64_t step, double wall_time) {
  constexpr int kString = 7;  // DT_STRING
  const std::string shape = bytes_field(2, integer_field(1, 1));
  const std::string tensor = integer_field(1, kString) + bytes_field(2, shape) + bytes_field(8, text);
  const std::string metadata = bytes_field(1, bytes_field(1, "text"));
  const std::string value = bytes_field(1, tag) + bytes_field(8, tensor) + bytes_field(9, metadata);
  record(summary_event(bytes_field(1, value), step, wall_time));
}

// SessionLog{status = 1}. From file version 2 on TensorBoard drops, at a START, what it has read of its step and later.
void TensorboardWriter::restart(int64_t step, double wall_time) {
  constexpr int kStart = 1;
  record(double_field(1, wall_time < 0 ? now() : wall_time) + integer_field(2, step) +
         bytes_field(7, integer_field(1, kStart)));
}

void TensorboardWriter::record(const std::string& event) {
  const std::string length = little_endian<uint64_t>(event.size());
  buffer_ += length + masked_crc(length) + event + masked_crc(event);
  if (buffer_.size() >= kBufferSize) flush();
}

void TensorboardWriter::flush() {
  // Emptied first: after a failed write the same bytes would come twice.
  const std::string bytes = std::exchange(buffer_, {});
  write_all(fd_, path_, as_bytes(bytes));
}

}  // namespace hrm
