#include "checkpoint/part_file.h"

#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace {

// Keys of the metadata: before a tensor's name, and one of the file.
const std::string kBoxes = "part.";
const std::string kSlice = "slice.";                // "0/8": a tensor of 8 rows that ranks would share out
constexpr const char* kNumber = "checkpoint part";  // "3/8"

std::string number_text(PartNumber number) {
  return cat(number.part + 1, '/', number.parts);
}

std::string slice_text(const std::vector<int64_t>& sizes) {
  return cat("0/", sizes.front());
}

}  // namespace

void write_part_file(const std::vector<FileEntry>& entries, std::map<std::string, std::string> metadata,
                     const std::optional<PartNumber>& number,
                     const std::function<void(std::span<const std::byte>)>& sink) {
  if (number) metadata[kNumber] = number_text(*number);
  std::vector<SafetensorsEntry> header;
  for (const FileEntry& entry : entries) {
    if (!number) {
      require(holds_all(entry.part, entry.sizes), ExitCode::unexpected, "only a part of '", entry.name,
              "' is here, and a checkpoint of one file holds whole tensors");
      if (entry.part.split && !entry.sizes.empty()) metadata[kSlice + entry.name] = slice_text(entry.sizes);
    } else if (entry.part.split) {
      metadata[kBoxes + entry.name] = part_text(entry.part);
    }
    const DType dtype = dtype_of(entry.type);
    // The header needs their number alone.
    const auto bytes = static_cast<size_t>(array_bytes(dtype, entry.sizes).value());
    header.push_back({entry.name, dtype, entry.sizes, {static_cast<const std::byte*>(nullptr), bytes}});
  }
  sink(as_bytes(safetensors_header(header, metadata)));
  for (const FileEntry& entry : entries) {
    const at::Tensor host = host_tensor(entry.read());
    sink(bytes_of(host));
  }
}

PartFile::PartFile(const std::filesystem::path& path, const FileFact& fact)
    : name_(path.filename().string()), fact_(fact), file_(path, ExitCode::environment, Links::refuse) {
  require(file_.size() == fact.bytes, ExitCode::checkpoint, name_, " has ", file_.size(), " bytes instead of ",
          fact.bytes);
}

template <class ReadHeader>
void PartFile::open(const ReadHeader& read_header) {
  try {
    read_header([this](uint64_t offset, std::span<std::byte> into) { read(offset, into); });
  } catch (const Error& error) {
    if (error.code() == ExitCode::checkpoint) verify();  // which says it in plain words where bytes have changed
    throw;
  }
}

std::shared_ptr<PartFile> PartFile::of_archive(const std::filesystem::path& path, const FileFact& fact) {
  std::shared_ptr<PartFile> file(new PartFile(path, fact));
  file->open([&](const ReadBytes& read_bytes) {
    for (TorchPlace& place : torch_places(fact.bytes, read_bytes, path.string(), ExitCode::checkpoint)) {
      const auto bytes = static_cast<uint64_t>(array_bytes(place.dtype, place.shape).value());
      file->tensors_.push_back(
          {{std::move(place.name), place.dtype, place.shape, place.begin, place.begin + bytes}, {}});
    }
  });
  return file;
}

PartFile::PartFile(const std::filesystem::path& path, const FileFact& fact, const std::optional<PartNumber>& number)
    : PartFile(path, fact) {
  SafetensorsHeader header;
  open([&](const ReadBytes& read_bytes) {
    header = read_safetensors_header(file_.size(), read_bytes, name_, ExitCode::checkpoint);
  });
  metadata_ = std::move(header.metadata);
  if (number) {
    const std::string stored = metadata_[kNumber], expected = number_text(*number);
    require(stored == expected, ExitCode::checkpoint, name_, " is part ", printable_start(stored),
            " of a checkpoint, not ", expected, ": a part is there twice or in another's place");
  }
  for (SafetensorsPlace& place : header.tensors) {
    PartTensor& tensor = tensors_.emplace_back();
    if (const auto boxes = metadata_.find(kBoxes + place.name); number && boxes != metadata_.end()) {
      require(parse_part(boxes->second, tensor.part), ExitCode::checkpoint, name_, ": the boxes '",
              printable_start(boxes->second), "' of '", printable(place.name), "' are malformed");
    }
    const auto slice = metadata_.find(kSlice + place.name);
    require(number || slice == metadata_.end() || (!place.shape.empty() && slice->second == slice_text(place.shape)),
            ExitCode::checkpoint, name_, ": '", printable(place.name), "' is the slice ",
            slice == metadata_.end() ? "" : printable_start(slice->second),
            " of a tensor, and such a file holds whole tensors");
    tensor.place = std::move(place);
  }
}

void PartFile::verify() {
  if (verified_) return;
  constexpr size_t kAtOnce = size_t{4} << 20;
  std::vector<std::byte> buffer(std::min<size_t>(kAtOnce, file_.size()));
  Hasher hasher;
  for (uint64_t at = 0; at < file_.size(); at += buffer.size()) {
    const std::span<std::byte> piece(buffer.data(), std::min<size_t>(buffer.size(), file_.size() - at));
    read(at, piece);
    hasher.update(piece);
  }
  require(hasher.hex() == fact_.digest, ExitCode::checkpoint, name_, " is damaged: its digest does not fit");
  verified_ = true;
}

}  // namespace hrm::checkpoint
