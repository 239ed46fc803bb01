#include "hrm/formats/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <utility>

#include "hrm/base/file.h"
#include "hrm/base/text.h"

namespace hrm {
namespace {

struct FileKind {
  std::string_view begin;  // the first bytes
  std::string_view name;
  std::string_view remedy;  // with the file's path instead of FILE, and without its suffix instead of STEM
};

constexpr std::string_view kWeightsOfOrigin =
    "this program reads safetensors, so give the folder of the model that it was made from";
constexpr const char* kTorchFile =
    "a file of torch.save; weights in this form are read where they are called pytorch_model.bin or adapter_model.bin";

constexpr std::array kKinds = {
    FileKind{"version https://git-lfs", "a Git LFS pointer in place of the file",
             "fetch the file: run 'git lfs pull' in its folder, or 'hf download NAME --local-dir FOLDER'"},
    FileKind{"PAR1", "a Parquet file",
             "make JSON lines of it: python3 -c \"import pandas; pandas.read_parquet('FILE').to_json('STEM.jsonl', "
             "orient='records', lines=True)\", or CSV of puzzles with .to_csv('STEM.csv', index=False)"},
    FileKind{"ARROW1", "an Arrow file",
             "make JSON lines of it: python3 -c \"import pandas; pandas.read_feather('FILE').to_json('STEM.jsonl', "
             "orient='records', lines=True)\", or CSV of puzzles with .to_csv('STEM.csv', index=False)"},
    FileKind{"FEA1", "a Feather file",
             "make JSON lines of it: python3 -c \"import pandas; pandas.read_feather('FILE').to_json('STEM.jsonl', "
             "orient='records', lines=True)\", or CSV of puzzles with .to_csv('STEM.csv', index=False)"},
    FileKind{"\x89HDF\r\n", "an HDF5 file", "save what it holds in a form that this program reads"},
    FileKind{"GGUF", "a GGUF file of llama.cpp", kWeightsOfOrigin},
    FileKind{"ggml", "a GGML file of llama.cpp", kWeightsOfOrigin},
    FileKind{"\x1F\x8B", "compressed by gzip", "unpack it with gunzip 'FILE'"},
    FileKind{"\x28\xB5\x2F\xFD", "compressed by zstd", "unpack it with zstd -d 'FILE'"},
    FileKind{std::string_view("\xFD\x37zXZ\0", 6), "compressed by xz", "unpack it with unxz 'FILE'"},
    FileKind{"BZh", "compressed by bzip2", "unpack it with bunzip2 'FILE'"},
    FileKind{"\x04\x22\x4D\x18", "compressed by lz4", "unpack it with lz4 -d 'FILE'"},
    FileKind{"PK\x03\x04", "a zip archive", "unpack it with unzip 'FILE'"},
    FileKind{"7z\xBC\xAF\x27\x1C", "a 7-Zip archive", "unpack it with 7z x 'FILE'"},
    FileKind{"Rar!\x1A\x07", "a RAR archive", "unpack it with unrar x 'FILE'"},
};

constexpr size_t kTarMagicAt = 257;
constexpr size_t kNameAt = 30;  // of a zip archive's first record

// A zip archive whose first record is PyTorch's pickle, or the older form: a bare pickle of PyTorch's magic number.
bool is_torch_file(std::string_view text) {
  constexpr size_t kLongestName = 256;
  if (text.starts_with("\x80\x02\x8A\x0A\x6C\xFC")) return true;
  return text.starts_with("PK\x03\x04") && text.size() > kNameAt &&
         text.substr(kNameAt, kLongestName).find("/data.pkl") != std::string_view::npos;
}

// UTF-16's mark and two ASCII characters. The mark by itself could be the length at the beginning of a safetensors
// file.
bool is_utf16(std::string_view text) {
  if (text.size() < 6 || !(text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF"))) return false;
  const size_t low = text[0] == '\xFF' ? 2 : 3, high = text[0] == '\xFF' ? 3 : 2;
  return text[high] == '\0' && text[high + 2] == '\0' && text[low] != '\0' && text[low + 2] != '\0';
}

// The marker of a message, then the length of its description, which is a multiple of 8 bytes.
bool is_arrow_stream(std::string_view text) {
  constexpr uint32_t kMostLength = uint32_t{1} << 24;
  if (text.size() < 8 || !text.starts_with("\xFF\xFF\xFF\xFF")) return false;
  uint32_t length = 0;
  for (size_t i = 0; i < 4; ++i) length |= static_cast<uint32_t>(static_cast<unsigned char>(text[4 + i])) << (8 * i);
  return length > 0 && length % 8 == 0 && length < kMostLength;
}

bool is_web_page(std::string_view text) {
  std::string start(text.substr(0, 256));
  start.erase(0, std::min(start.find_first_not_of(" \t\r\n"), start.size()));
  std::transform(start.begin(), start.end(), start.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

std::string filled(std::string_view remedy, const std::string& origin) {
  std::string text(remedy);
  const size_t dot = origin.rfind('.'), slash = origin.rfind('/');
  const bool has_suffix = dot != std::string::npos && (slash == std::string::npos || dot > slash + 1) && dot > 0;
  const std::string file = printable(origin), stem = has_suffix ? printable(origin.substr(0, dot)) : file;
  for (const auto& [word, value] : {std::pair<std::string_view, std::string>{"FILE", file}, {"STEM", stem}}) {
    for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += value.size()) {
      text.replace(at, word.size(), value);
    }
  }
  return text;
}

}  // namespace

std::string foreign_file(std::span<const std::byte> bytes, const std::string& origin) {
  const std::string_view text = as_text(bytes);
  if (is_torch_file(text)) return cat("this is ", kTorchFile);
  if (text.starts_with("PK\x03\x04") && text.substr(0, kNameAt + 64).find("[Content_Types].xml") == kNameAt) {
    return "this is a workbook or another Office document; save the table as CSV";
  }
  if (is_utf16(text)) {
    return cat("this is a text in UTF-16; make UTF-8 of it: ",
               filled("iconv -f UTF-16 -t UTF-8 'FILE' -o 'FILE.new' && mv 'FILE.new' 'FILE'", origin));
  }
  for (const FileKind& kind : kKinds) {
    if (!text.starts_with(kind.begin)) continue;
    return cat("this is ", kind.name, "; ", filled(kind.remedy, origin));
  }
  if (text.size() > kTarMagicAt && text.substr(kTarMagicAt).starts_with("ustar")) {
    return cat("this is a tar archive; ", filled("unpack it with tar xf 'FILE'", origin));
  }
  if (is_arrow_stream(text)) {
    return cat("this is an Arrow stream; ", filled("make JSON lines of it: python3 -c \"from datasets import Dataset; "
                                                   "Dataset.from_file('FILE').to_json('STEM.jsonl')\", or CSV of "
                                                   "puzzles with .to_csv('STEM.csv')",
                                                   origin));
  }
  if (is_web_page(text)) {
    return "this is a web page in place of the file; the download has failed, or it needs a login: fetch it again";
  }
  return "";
}

void refuse_foreign_file(std::span<const std::byte> bytes, const std::string& origin, ExitCode code) {
  const std::string kind = foreign_file(bytes, origin);
  require(kind.empty(), code, origin, ": ", kind);
}

}  // namespace hrm
