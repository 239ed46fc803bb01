#include "checkpoint/state_file.h"

#include <charconv>
#include <cmath>

#include "checkpoint/entry_names.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/safetensors.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

const std::string kInteger = "integer.";
const std::string kReal = "real.";
const std::string kSlice = "slice.";

// As C's "%a" prints it, but independent of the locale: 0x1.8p+1, -0x1p-3, inf, nan.
std::string hex_float(double value) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, std::fabs(value), std::chars_format::hex).ptr;
  return cat(std::signbit(value) ? "-" : "", std::isfinite(value) ? "0x" : "", std::string_view(digits, end));
}

bool parse(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse(std::string_view text, double& value) {
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) text.remove_prefix(1);
  if (text.rfind("0x", 0) == 0) text.remove_prefix(2);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::hex);
  if (negative) value = -value;
  return error == std::errc() && end == text.data() + text.size();
}

bool parse(std::string_view text, StateSlice& slice) {
  const size_t slash = text.find('/');
  return slash != std::string_view::npos && parse(text.substr(0, slash), slice.offset) &&
         parse(text.substr(slash + 1), slice.global_rows);
}

// Reads the value of `key` into its map, where the key is `kind` and a name that begins with `prefix`.
template <class Value>
void take(std::map<std::string, Value>& into, const std::string& kind, const std::string& prefix,
          const std::string& key, const std::string& text, const std::string& origin) {
  if (!key.starts_with(kind + prefix)) return;
  const std::string name = key.substr(kind.size());
  require(parse(text, into[name]), ExitCode::checkpoint, origin, ": the value '", printable(text), "' of '",
          printable(name), "' is malformed");
}

}  // namespace

void write_state_file(const StateListing& listing, const std::function<void(std::span<const std::byte>)>& sink) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : listing.integers) metadata[kInteger + name] = std::to_string(value);
  for (const auto& [name, value] : listing.reals) metadata[kReal + name] = hex_float(value);

  std::vector<SafetensorsEntry> entries;
  for (const TensorEntry& entry : listing.tensors) {
    if (entry.slice.global_rows >= 0) {
      metadata[kSlice + entry.name] = cat(entry.slice.offset, '/', entry.slice.global_rows);
    }
    if (in_model_file(entry.role)) continue;
    const at::Tensor& tensor = entry.tensor;
    // The header needs their number alone.
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(nullptr), tensor.nbytes());
    entries.push_back({entry.name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes});
  }
  sink(as_bytes(safetensors_header(entries, metadata)));
  for (const TensorEntry& entry : listing.tensors) {
    if (in_model_file(entry.role)) continue;
    const at::Tensor host = host_tensor(entry.tensor);
    sink(bytes_of(host));
  }
}

StateContent read_state_file(std::span<const std::byte> bytes, const std::string& origin, const std::string& prefix) {
  const SafetensorsFile file = SafetensorsFile::parse(bytes, origin, ExitCode::checkpoint);
  StateContent content;
  for (const std::string& name : file.names()) {
    if (!name.starts_with(prefix)) continue;
    const ArrayView& view = file.at(name);
    content.tensors.emplace(name, tensor_from_bytes(view.dtype, view.shape, view.bytes));
  }
  for (const auto& [key, value] : file.metadata()) {
    take(content.integers, kInteger, prefix, key, value, origin);
    take(content.reals, kReal, prefix, key, value, origin);
    take(content.slices, kSlice, prefix, key, value, origin);
  }
  return content;
}

}  // namespace hrm::checkpoint
