#include "hrm/formats/input_window.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "hrm/formats/file_kind.h"

namespace hrm {
namespace {

constexpr std::string_view kMark = "\xEF\xBB\xBF";  // of UTF-8, as spreadsheet programs write it
constexpr std::string_view kGzip = "\x1F\x8B", kZstd = "\x28\xB5\x2F\xFD";
constexpr const char* kTooShort = "ends too early; fetch or make it again";
constexpr const char* kDamaged = "is damaged; fetch or make it again";
constexpr size_t kUnpackedAtOnce = size_t{256} << 10;

// Frames without content, which parallel compressors put in front: 0x184D2A50 to 0x184D2A5F.
bool is_skippable_frame(std::string_view text) {
  return text.size() >= 4 && (static_cast<unsigned char>(text[0]) & 0xF0) == 0x50 &&
         text.substr(1, 3) == "\x2A\x4D\x18";
}

}  // namespace

class InputWindow::Unpacker {
 public:
  Unpacker(std::string_view packed, const std::string& origin, ExitCode code)
      : packed_(packed), origin_(origin), code_(code) {}
  virtual ~Unpacker() = default;
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  // Up to `room` bytes; 0 at the end.
  virtual size_t read(char* to, size_t room) = 0;

 protected:
  [[noreturn]] void refuse(const char* what) const { fail(code_, origin_, ": the compressed file ", what); }

  std::string_view packed_;  // what is not yet unpacked

 private:
  std::string origin_;
  ExitCode code_;
};

namespace {

class GzipUnpacker final : public InputWindow::Unpacker {
 public:
  GzipUnpacker(std::string_view packed, const std::string& origin, ExitCode code) : Unpacker(packed, origin, code) {
    // 16: with gzip's head and checksum.
    require(inflateInit2(&stream_, MAX_WBITS + 16) == Z_OK, ExitCode::environment, "zlib cannot be started");
  }
  ~GzipUnpacker() override { inflateEnd(&stream_); }

  size_t read(char* to, size_t room) override {
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(std::min(room, kUnpackedAtOnce));
    const uInt wanted = stream_.avail_out;
    while (stream_.avail_out == wanted) {
      if (between_members_ && !begin_member()) break;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed_.data()));
      stream_.avail_in = static_cast<uInt>(std::min(packed_.size(), size_t{1} << 30));
      const uInt given = stream_.avail_in;
      const int result = inflate(&stream_, Z_NO_FLUSH);
      packed_.remove_prefix(given - stream_.avail_in);
      if (result == Z_STREAM_END) {
        between_members_ = true;
      } else if (result == Z_BUF_ERROR || (result == Z_OK && packed_.empty() && stream_.avail_out == wanted)) {
        refuse(kTooShort);
      } else if (result != Z_OK) {
        refuse(kDamaged);
      }
    }
    return wanted - stream_.avail_out;
  }

 private:
  // Files may be joined; zeros behind them are padding.
  bool begin_member() {
    if (packed_.find_first_not_of('\0') == std::string_view::npos) return false;
    if (!packed_.starts_with(kGzip))
      refuse("goes on behind its end with bytes that are not gzip; fetch or make it again");
    inflateReset(&stream_);
    between_members_ = false;
    return true;
  }

  z_stream stream_{};
  bool between_members_ = false;
};

class ZstdUnpacker final : public InputWindow::Unpacker {
 public:
  ZstdUnpacker(std::string_view packed, const std::string& origin, ExitCode code)
      : Unpacker(packed, origin, code), stream_(ZSTD_createDStream()) {
    require(stream_ != nullptr, ExitCode::environment, "Zstandard cannot be started");
    // A few bytes may ask for any window. Allowed are 16 MiB, and up to 128 MiB for files that can fill it.
    const size_t most = std::min(std::max(packed.size(), kUnpackedAtOnce / 4), size_t{1} << 20) * 256;
    const int window_log = std::clamp(static_cast<int>(std::bit_width(most)) - 1, 24, 27);
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, window_log);
  }
  ~ZstdUnpacker() override { ZSTD_freeDStream(stream_); }

  size_t read(char* to, size_t room) override {
    ZSTD_outBuffer out{to, std::min(room, kUnpackedAtOnce), 0};
    while (out.pos == 0 && !(packed_.empty() && between_frames_)) {
      ZSTD_inBuffer in{packed_.data(), packed_.size(), 0};
      const size_t result = ZSTD_decompressStream(stream_, &out, &in);
      if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
        refuse("needs too large a window to be unpacked; compress it again without --long and --ultra");
      }
      if (ZSTD_isError(result)) refuse(kDamaged);
      if (in.pos == 0 && out.pos == 0 && packed_.empty()) refuse(kTooShort);
      packed_.remove_prefix(in.pos);
      between_frames_ = result == 0;
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* stream_;
  bool between_frames_ = true;
};

}  // namespace

std::string content_suffix(const std::filesystem::path& path) {
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
  };
  const std::string last = lower(path.extension().string());
  if (last != ".gz" && last != ".zst") return last;
  return lower(path.stem().extension().string());
}

InputWindow::InputWindow(const std::filesystem::path& path, ExitCode code) : origin_(path.string()), code_(code) {
  file_.emplace(path, code);
  start(file_->bytes());
}

InputWindow::InputWindow(std::span<const std::byte> bytes, const std::string& origin, ExitCode code)
    : origin_(origin), code_(code) {
  start(bytes);
}

InputWindow::~InputWindow() = default;
InputWindow::InputWindow(InputWindow&& other) noexcept = default;
InputWindow& InputWindow::operator=(InputWindow&& other) noexcept = default;

void InputWindow::start(std::span<const std::byte> bytes) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with(kGzip)) {
    unpacker_ = std::make_unique<GzipUnpacker>(text, origin_, code_);
  } else if (text.starts_with(kZstd) || is_skippable_frame(text)) {
    unpacker_ = std::make_unique<ZstdUnpacker>(text, origin_, code_);
  } else {
    refuse_foreign_file(bytes, origin_, code_);
    data_ = text.data();
    end_ = text.size();
  }
  if (view(kMark.size()).starts_with(kMark)) skip(kMark.size());
}

std::string InputWindow::rest() {
  std::string text;
  for (std::string_view part; !(part = view(kUnpackedAtOnce)).empty(); skip(part.size())) text += part;
  return text;
}

std::string_view InputWindow::view(size_t least) {
  if (unpacker_ && end_ - begin_ < least) fill(least);
  return {data_ + begin_, end_ - begin_};
}

void InputWindow::fill(size_t least) {
  const size_t kept = end_ - begin_, needed = 2 * least + kUnpackedAtOnce;
  if (buffer_.size() < needed) {
    std::vector<char> larger(std::max(needed, 2 * buffer_.size()));
    std::copy_n(buffer_.data() + begin_, kept, larger.data());
    buffer_ = std::move(larger);
  } else {
    std::memmove(buffer_.data(), buffer_.data() + begin_, kept);
  }
  data_ = buffer_.data();
  begin_ = 0;
  end_ = kept;
  while (end_ < buffer_.size()) {
    const size_t got = unpacker_->read(buffer_.data() + end_, buffer_.size() - end_);
    if (got == 0) {
      unpacker_.reset();
      return;
    }
    end_ += got;
  }
}

}  // namespace hrm
