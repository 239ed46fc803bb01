#include "hrm/formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "hrm/base/text.h"

namespace hrm {
namespace {

// The limit of the reference implementation.
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr size_t kPrefix = 8;
constexpr const char* kMetadata = "__metadata__";

uint64_t load_u64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// Refuses what a JSON library would let pass: keys that occur twice in one object (the last would win silently), and
// nesting that no header has.
class StrictKeys {
 public:
  using Event = nlohmann::json::parse_event_t;

  bool operator()(int depth, Event event, nlohmann::json& value) {
    if (depth > 8) problem_ = "nested too deeply";
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      if (!keys_.empty()) keys_.pop_back();
    } else if (event == Event::key && !keys_.empty()) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) problem_ = "'" + printable(key) + "' occurs twice";
    }
    if (!problem_.empty()) throw Error(ExitCode::data, problem_);
    return true;
  }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
};

uint64_t unsigned_number(const nlohmann::json& value, const char* what) {
  if (!value.is_number_unsigned()) fail(ExitCode::data, what, " must be whole numbers of zero or more");
  return value.get<uint64_t>();
}

struct Range {
  uint64_t begin;
  uint64_t end;
};

// One tensor of the header. Throws Error without the file's name; the caller adds it.
Range read_tensor(const nlohmann::json& value, uint64_t data_size, ArrayView* view) {
  const ExitCode code = ExitCode::data;
  require(value.is_object(), code, "its description is not an object");
  require(value.contains("dtype") && value["dtype"].is_string(), code, "it has no dtype");
  require(value.contains("shape") && value["shape"].is_array(), code, "it has no shape");
  require(value.contains("data_offsets") && value["data_offsets"].is_array() && value["data_offsets"].size() == 2, code,
          "it has no data_offsets");
  require(value.size() == 3, code, "it has other keys than dtype, shape and data_offsets");
  const std::string& type = value["dtype"].get_ref<const std::string&>();
  const auto dtype = dtype_from_name(type);
  require(dtype.has_value(), code, "the element type '", printable(type), "' is not supported");
  view->dtype = *dtype;
  for (const auto& size : value["shape"]) {
    const uint64_t number = unsigned_number(size, "sizes");
    require(number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), code, "its shape is too large");
    view->shape.push_back(static_cast<int64_t>(number));
  }
  const auto needed = array_bytes(view->dtype, view->shape);
  require(needed.has_value(), code, "its shape ", shape_text(view->shape), " is too large");
  const Range range{unsigned_number(value["data_offsets"][0], "data_offsets"),
                    unsigned_number(value["data_offsets"][1], "data_offsets")};
  require(range.begin <= range.end && range.end <= data_size, code, "its data_offsets [", range.begin, ", ", range.end,
          "] leave the file's ", data_size, " bytes of data; the file may be truncated");
  require(range.end - range.begin == static_cast<uint64_t>(*needed), code, "its shape ", shape_text(view->shape),
          " takes ", *needed, " bytes, but its data_offsets hold ", range.end - range.begin);
  return range;
}

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
  require(bytes.size() >= kPrefix, code_, origin_, ": too short for a safetensors file");
  const uint64_t header_size = load_u64(bytes);
  require(header_size <= kMaxHeader, code_, origin_, ": not a safetensors file (its header would take ", header_size,
          " bytes)");
  require(header_size <= bytes.size() - kPrefix, code_, origin_, ": the file ends inside its header");
  const std::string_view text = as_text(bytes.subspan(kPrefix, header_size));
  require(!text.empty() && text.front() == '{', code_, origin_, ": not a safetensors file (no JSON header)");
  const std::span<const std::byte> data = bytes.subspan(kPrefix + header_size);

  nlohmann::json header;
  try {
    header = nlohmann::json::parse(text.begin(), text.end(), StrictKeys());
  } catch (const nlohmann::json::exception& e) {
    fail(code_, origin_, ": the safetensors header is not JSON: ", printable(e.what()));
  } catch (const Error& e) {
    fail(code_, origin_, ": the safetensors header is malformed: ", e.what());
  }
  require(header.is_object(), code_, origin_, ": the safetensors header is not an object");

  struct Placed {
    Range range;
    std::string name;
  };
  std::vector<Placed> placed;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      require(value.is_object(), code_, origin_, ": the metadata are not an object");
      for (const auto& [key, entry] : value.items()) {
        require(entry.is_string(), code_, origin_, ": the metadata entry '", printable(key), "' is not text");
        metadata_[key] = entry.get<std::string>();
      }
      continue;
    }
    ArrayView view;
    Range range{};
    try {
      range = read_tensor(value, data.size(), &view);
    } catch (const Error& e) {
      fail(code_, origin_, ": the tensor '", printable(name), "' is malformed: ", e.what());
    }
    view.bytes = data.subspan(range.begin, range.end - range.begin);
    placed.push_back({range, name});
    tensors_.emplace(name, std::move(view));
  }

  // Empty tensors share their begin with the next one, so the end decides between them.
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.range.begin, a.range.end) < std::tie(b.range.begin, b.range.end);
  });
  uint64_t at = 0;
  for (const Placed& tensor : placed) {
    require(tensor.range.begin == at, code_, origin_, ": the tensor '", printable(tensor.name),
            tensor.range.begin < at ? "' overlaps the one before it" : "' leaves a gap before it");
    at = tensor.range.end;
    names_.push_back(tensor.name);
  }
  require(at == data.size(), code_, origin_, ": ", data.size() - at, " bytes follow the last tensor");
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
    for (const auto& [key, value] : metadata) text += quoted(key) + ":" + quoted(value) + ",";
    text.back() = '}';
    text += ',';
  }
  std::set<std::string> seen;
  uint64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
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
  require(text.size() <= kMaxHeader, ExitCode::unexpected, "the safetensors header would take ", text.size(), " bytes");
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
