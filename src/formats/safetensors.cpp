#include "hrm/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"

namespace hrm {
namespace {

// Far above any file of ours: about 130 bytes of header per tensor.
constexpr uint64_t kMaxSafetensorsHeader = uint64_t{16} << 20;
constexpr size_t kMaxSafetensorsTensors = 100'000;
constexpr size_t kMaxTensorDimensions = 64;
constexpr size_t kMaxTensorName = 1024;
constexpr size_t kPrefix = 8;
constexpr const char* kMetadata = "__metadata__";

uint64_t load_u64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// Parses the header value by value. Invalid content is refused at once, so memory grows only with tensors and nothing
// nests deeper than name -> description -> shape. Throws Error without the file's name; the caller adds it.
class SafetensorsHeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SafetensorsHeaderReader(uint64_t data_size) : data_size_(data_size) {}

  std::vector<SafetensorsPlace> tensors;  // places are counted from the beginning of the data
  std::map<std::string, std::string> metadata;

  bool null() override { refuse_value(); }
  bool boolean(bool) override { refuse_value(); }
  bool number_integer(number_integer_t) override { refuse_value(); }
  bool number_float(number_float_t, const string_t&) override { refuse_value(); }
  bool binary(binary_t&) override { refuse_value(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) bad("its shape is too large");
      if (tensor().shape.size() == kMaxTensorDimensions) bad("it has more than 64 dimensions");
      tensor().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::offsets) {
      if (offsets_ == 2) bad("it has more than two data_offsets");
      (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    } else {
      refuse_value();
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = std::move(value);
    } else if (place_ == Place::tensor && key_ == "dtype") {
      const auto dtype = dtype_from_name(value);
      const bool narrow = value.starts_with("F8") || value.starts_with("F6") || value.starts_with("F4");
      if (!dtype) {
        bad("the element type '", printable_start(value), "' is not supported",
            narrow ? "; such weights are quantised: give the folder of the model that they were made from" : "");
      }
      tensor().dtype = *dtype;
    } else {
      refuse_value();
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == kMetadata) {
      keys_.clear();
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      if (tensors.size() == kMaxSafetensorsTensors)
        bad("the header lists more than ", kMaxSafetensorsTensors, " tensors");
      tensors.emplace_back().name = key_;
      keys_.clear();
      offsets_ = 0;
      place_ = Place::tensor;
    } else {
      refuse_value();
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      finish_tensor();
      place_ = Place::top;
    } else {
      place_ = place_ == Place::metadata ? Place::top : Place::outside;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") refuse_value();
    place_ = key_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool key(string_t& value) override {
    if (place_ == Place::tensor && value != "dtype" && value != "shape" && value != "data_offsets") {
      bad("it has other keys than dtype, shape and data_offsets");
    }
    if (value.size() > kMaxTensorName) bad("a name is longer than ", kMaxTensorName, " bytes");
    std::set<std::string>& seen = place_ == Place::top ? names_ : keys_;
    if (!seen.insert(value).second) {
      fail(ExitCode::data, "the safetensors header is malformed: '", printable(value), "' occurs twice");
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    fail(ExitCode::data, "the safetensors header is not JSON: ", printable_start(error.what(), 200));
  }

 private:
  enum class Place { outside, top, metadata, tensor, shape, offsets };

  SafetensorsPlace& tensor() { return tensors.back(); }

  template <class... Args>
  [[noreturn]] void bad(const Args&... what) const {
    const bool inside = place_ == Place::tensor || place_ == Place::shape || place_ == Place::offsets;
    if (inside) fail(ExitCode::data, "the tensor '", printable(tensors.back().name), "' is malformed: ", what...);
    fail(ExitCode::data, "the safetensors header is malformed: ", what...);
  }

  [[noreturn]] void refuse_value() const {
    switch (place_) {
      case Place::outside:
        bad("it is not an object");
      case Place::top:
        if (key_ == kMetadata) fail(ExitCode::data, "the metadata are not an object");
        fail(ExitCode::data, "the tensor '", printable(key_), "' is malformed: its description is not an object");
      case Place::metadata:
        fail(ExitCode::data, "the metadata entry '", printable(key_), "' is not text");
      case Place::tensor:
        bad("it has no ", key_, " of the right type");
      case Place::shape:
        bad("sizes must be whole numbers of zero or more");
      case Place::offsets:
        bad("data_offsets must be whole numbers of zero or more");
    }
    bad("it is malformed");
  }

  void finish_tensor() {
    for (const char* name : {"dtype", "shape", "data_offsets"}) {
      if (keys_.count(name) == 0) bad("it has no ", name);
    }
    if (offsets_ != 2) bad("it has fewer than two data_offsets");
    const SafetensorsPlace& it = tensor();
    const auto needed = array_bytes(it.dtype, it.shape);
    if (!needed) bad("its shape ", shape_text(it.shape), " is too large");
    if (it.begin > it.end || it.end > data_size_) {
      bad("its data_offsets [", it.begin, ", ", it.end, "] leave the file's ", data_size_,
          " bytes of data; the file may be truncated");
    }
    if (it.end - it.begin != static_cast<uint64_t>(*needed)) {
      bad("its shape ", shape_text(it.shape), " takes ", *needed, " bytes, but its data_offsets hold ",
          it.end - it.begin);
    }
  }

  const uint64_t data_size_;
  Place place_ = Place::outside;
  std::string key_;
  std::set<std::string> names_, keys_;  // keys_: of the tensor or the metadata that are open
  int offsets_ = 0;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, ExitCode code)
    : SafetensorsFile(path.string(), code) {
  file_.emplace(path, code);
  read(file_->bytes());
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, const std::string& origin, ExitCode code) {
  SafetensorsFile file(origin, code);
  file.read(bytes);
  return file;
}

void SafetensorsFile::read(std::span<const std::byte> bytes) {
  refuse_foreign_file(bytes, origin_, code_);
  const auto copy = [&](uint64_t offset, std::span<std::byte> into) {
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  };
  SafetensorsHeader header = read_safetensors_header(bytes.size(), copy, origin_, code_);
  metadata_ = std::move(header.metadata);
  for (SafetensorsPlace& tensor : header.tensors) {
    names_.push_back(tensor.name);
    tensors_.emplace(std::move(tensor.name), ArrayView{tensor.dtype, std::move(tensor.shape),
                                                       bytes.subspan(tensor.begin, tensor.end - tensor.begin)});
  }
}

SafetensorsHeader read_safetensors_header(uint64_t size,
                                          const std::function<void(uint64_t, std::span<std::byte>)>& read,
                                          const std::string& origin, ExitCode code) {
  require(size >= kPrefix, code, origin, ": too short for a safetensors file");
  std::array<std::byte, kPrefix> prefix{};
  read(0, prefix);
  const uint64_t header_size = load_u64(prefix);
  require(header_size <= kMaxSafetensorsHeader, code, origin, ": not a safetensors file (its header would take ",
          header_size, " bytes)");
  require(header_size <= size - kPrefix, code, origin, ": the file ends inside its header");
  std::string text(header_size, '\0');
  read(kPrefix, std::as_writable_bytes(std::span(text)));
  require(!text.empty() && text.front() == '{', code, origin, ": not a safetensors file (no JSON header)");
  const uint64_t data = size - kPrefix - header_size;

  SafetensorsHeaderReader header(data);
  try {
    nlohmann::json::sax_parse(text.begin(), text.end(), &header);
  } catch (const Error& e) {
    fail(code, origin, ": ", e.what());
  }
  // Empty tensors share their begin with the next one, so the end decides between them.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorsPlace& a, const SafetensorsPlace& b) {
                     return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
                   });
  uint64_t at = 0;
  for (SafetensorsPlace& tensor : header.tensors) {
    require(tensor.begin == at, code, origin, ": the tensor '", printable(tensor.name),
            tensor.begin < at ? "' overlaps the one before it" : "' leaves a gap before it");
    at = tensor.end;
    tensor.begin += kPrefix + header_size;
    tensor.end += kPrefix + header_size;
  }
  require(at == data, code, origin, ": ", data - at, " bytes follow the last tensor");
  return {std::move(header.tensors), std::move(header.metadata)};
}

const ArrayView& SafetensorsFile::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  const std::string near = nearest_name(name, names_);
  fail(code_, origin_, ": there is no tensor '", printable(name), "'",
       near.empty() ? "" : "; did you mean '" + printable(near) + "'?");
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      fail(ExitCode::unexpected, "'", printable(text), "' is not UTF-8 and cannot stand in a safetensors file");
    }
  };
  std::string text = "{";
  if (!metadata.empty()) {
    text += quoted(kMetadata) + ":{";
    for (const auto& [key, value] : metadata) {
      require(key.size() <= kMaxTensorName, ExitCode::unexpected, "the metadata entry '", printable_start(key),
              "' has too long a name for a safetensors file");
      text += quoted(key) + ":" + quoted(value) + ",";
    }
    text.back() = '}';
    text += ',';
  }
  std::set<std::string> seen;
  uint64_t at = 0;
  require(entries.size() <= kMaxSafetensorsTensors, ExitCode::unexpected, "a safetensors file cannot hold ",
          entries.size(), " tensors");
  for (const SafetensorsEntry& entry : entries) {
    require(entry.name.size() <= kMaxTensorName && entry.shape.size() <= kMaxTensorDimensions, ExitCode::unexpected,
            "the tensor '", printable_start(entry.name), "' has too long a name or shape for a safetensors file");
    require(entry.name != kMetadata && seen.insert(entry.name).second, ExitCode::unexpected, "the tensor name '",
            printable(entry.name), "' cannot be used twice in a safetensors file");
    const auto needed = array_bytes(entry.dtype, entry.shape);
    require(needed && static_cast<uint64_t>(*needed) == entry.bytes.size(), ExitCode::unexpected, "the tensor '",
            printable(entry.name), "' of shape ", shape_text(entry.shape), " has ", entry.bytes.size(), " bytes");
    text += quoted(entry.name) + ":{\"dtype\":\"" + name(entry.dtype) + "\",\"shape\":[";
    for (size_t i = 0; i < entry.shape.size(); ++i) text += (i ? "," : "") + std::to_string(entry.shape[i]);
    text += "],\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + entry.bytes.size()) + "]},";
    at += entry.bytes.size();
  }
  if (text.back() == ',') text.pop_back();
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  require(text.size() <= kMaxSafetensorsHeader, ExitCode::unexpected, "the safetensors header would take ", text.size(),
          " bytes");
  std::string header;
  for (size_t i = 0; i < kPrefix; ++i) header += static_cast<char>(static_cast<uint64_t>(text.size()) >> (8 * i));
  return header + text;
}

std::vector<std::byte> build_safetensors(const std::vector<SafetensorsEntry>& entries,
                                         const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(entries, metadata);
  size_t total = header.size();
  for (const SafetensorsEntry& entry : entries) total += entry.bytes.size();
  std::vector<std::byte> file;
  file.reserve(total);
  const auto append = [&](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); };
  append(as_bytes(header));
  for (const SafetensorsEntry& entry : entries) append(entry.bytes);
  return file;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsEntry>& entries,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = safetensors_header(entries, metadata);
  std::vector<std::span<const std::byte>> parts{as_bytes(header)};
  for (const SafetensorsEntry& entry : entries) parts.push_back(entry.bytes);
  write_file(path, parts);
}

}  // namespace hrm
