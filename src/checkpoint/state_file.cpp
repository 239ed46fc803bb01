#include "checkpoint/state_file.h"

#include <charconv>
#include <cmath>

#include "checkpoint/entry_names.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::checkpoint {
namespace {

const std::string kInteger = "integer.";
const std::string kReal = "real.";

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

namespace {

std::vector<FileEntry> file_entries(const StateListing& listing, PartNumber part, bool weights) {
  std::vector<FileEntry> entries;
  for (const TensorEntry& entry : listing.tensors) {
    if (in_model_file(entry.role) != weights) continue;
    // Where this rank holds nothing of it another one does, unless the whole is empty.
    if (entry.part.split && entry.part.boxes.empty() && (part.part > 0 || count_of(entry.part.sizes) > 0)) continue;
    entries.push_back({weights ? archive_name(entry) : entry.name, entry.tensor.scalar_type(),
                       entry.tensor.sizes().vec(), entry.part, [tensor = entry.tensor] { return tensor; }});
  }
  return entries;
}

}  // namespace

std::vector<FileEntry> state_entries(const StateListing& listing, PartNumber part) {
  return file_entries(listing, part, /*weights=*/false);
}

std::vector<FileEntry> weight_entries(const StateListing& listing, PartNumber part) {
  return file_entries(listing, part, /*weights=*/true);
}

std::map<std::string, std::string> scalar_texts(const std::vector<std::pair<std::string, int64_t>>& integers,
                                                const std::vector<std::pair<std::string, double>>& reals) {
  std::map<std::string, std::string> metadata;
  for (const auto& [name, value] : integers) metadata[kInteger + name] = std::to_string(value);
  for (const auto& [name, value] : reals) metadata[kReal + name] = hex_float(value);
  return metadata;
}

StateContent stored_state(const VerifiedCheckpoint& checkpoint, const std::string& prefix) {
  StateContent content;
  content.tensors = stored_tensors(checkpoint.state_parts(), prefix);
  for (const std::shared_ptr<PartFile>& file : checkpoint.state_parts()) {
    for (const auto& [key, value] : file->metadata()) {
      take(content.integers, kInteger, prefix, key, value, file->name());
      take(content.reals, kReal, prefix, key, value, file->name());
    }
  }
  return content;
}

std::map<std::string, StoredTensor> stored_model(const VerifiedCheckpoint& checkpoint) {
  return stored_tensors(checkpoint.model_parts(), /*prefix=*/"");
}

}  // namespace hrm::checkpoint
