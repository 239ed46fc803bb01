#include "hrm/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "hrm/base/error.h"
#include "hrm/base/file.h"

namespace hrm {
namespace {

// Traces repeat themselves: higher levels take twice the time for a tenth of the size.
constexpr int kLevel = 3;
constexpr int kGzipHead = 16;  // added to the window's bits: a gzip head and checksum
constexpr size_t kMostAtOnce = size_t{1} << 30;

}  // namespace

struct GzipWriter::State {
  explicit State(const std::filesystem::path& path) : file(path) {
    require(deflateInit2(&stream, kLevel, Z_DEFLATED, MAX_WBITS + kGzipHead, MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK,
            ExitCode::environment, "zlib cannot be started");
  }
  ~State() { deflateEnd(&stream); }

  // Packs what the stream was given, and with Z_FINISH the end.
  void pack(int flush) {
    do {
      stream.next_out = packed.data();
      stream.avail_out = static_cast<uInt>(packed.size());
      deflate(&stream, flush);
      file.write(as_bytes({reinterpret_cast<const char*>(packed.data()), packed.size() - stream.avail_out}));
    } while (stream.avail_out == 0);
  }

  FileWriter file;
  z_stream stream{};
  std::array<Bytef, size_t{64} << 10> packed;
};

GzipWriter::GzipWriter(const std::filesystem::path& path) : state_(std::make_unique<State>(path)) {}
GzipWriter::~GzipWriter() = default;

void GzipWriter::write(std::string_view text) {
  while (!text.empty()) {
    const std::string_view part = text.substr(0, std::min(text.size(), kMostAtOnce));
    state_->stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(part.data()));
    state_->stream.avail_in = static_cast<uInt>(part.size());
    state_->pack(Z_NO_FLUSH);
    text.remove_prefix(part.size());
  }
}

void GzipWriter::finish() {
  state_->stream.next_in = nullptr;
  state_->stream.avail_in = 0;
  state_->pack(Z_FINISH);
  state_->file.finish();
}

}  // namespace hrm
