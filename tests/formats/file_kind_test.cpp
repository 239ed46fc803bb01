// Files that stand where another kind is needed.
#include "hrm/formats/file_kind.h"

#include <functional>
#include <nlohmann/json.hpp>

#include "formats/format_testing.h"
#include "hrm/formats/csv.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"
#include "hrm/formats/npy.h"
#include "hrm/formats/safetensors.h"
#include "hrm/formats/torch_pickle.h"

namespace hrm {
namespace {

using namespace std::string_literals;

struct Foreign {
  std::string bytes, name, remedy;
};

const std::vector<Foreign>& foreign_files() {
  static const std::vector<Foreign> all = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer",
       "git lfs pull"},
      {"PAR1\x15\x04", "a Parquet file", "read_parquet('d/x.y').to_json('d/x.jsonl'"},
      {"ARROW1\0\0"s, "an Arrow file", "read_feather('d/x.y')"},
      {"\xFF\xFF\xFF\xFF\x10\x01\0\0"s, "an Arrow stream", "Dataset.from_file('d/x.y').to_json('d/x.jsonl')"},
      {"FEA1\0\0"s, "a Feather file", "read_feather"},
      {"\x1F\x8B\x08", "compressed by gzip", "gunzip 'd/x.y'"},
      {"\x28\xB5\x2F\xFD\x04", "compressed by zstd", "zstd -d 'd/x.y'"},
      {"\xFD\x37zXZ\0\0"s, "compressed by xz", "unxz 'd/x.y'"},
      {"BZh91AY", "compressed by bzip2", "bunzip2 'd/x.y'"},
      {"\x04\x22\x4D\x18\x60", "compressed by lz4", "lz4 -d 'd/x.y'"},
      {"7z\xBC\xAF\x27\x1C\0"s, "a 7-Zip archive", "7z x"},
      {std::string(257, 'a') + "ustar", "a tar archive", "tar xf 'd/x.y'"},
      {"GGUF\3\0\0\0"s, "a GGUF file", "the model that it was made from"},
      {"\x89HDF\r\n\x1A\n", "an HDF5 file", "save"},
      {"\n<!DOCTYPE HTML><html>", "a web page", "fetch it again"},
      {"\xFF\xFE{\0\"\0"s, "a text in UTF-16",
       "iconv -f UTF-16 -t UTF-8 'd/x.y' -o 'd/x.y.new' && mv 'd/x.y.new' 'd/x.y'"},
      {"\xFE\xFF\0q\0u"s, "a text in UTF-16", "iconv -f UTF-16"},
  };
  return all;
}

TEST(FileKind, IsNamedWithWhatToDo) {
  for (const Foreign& file : foreign_files()) {
    const std::string text = foreign_file(as_bytes(file.bytes), "d/x.y");
    EXPECT_TRUE(text.starts_with("this is " + file.name)) << text;
    EXPECT_NE(text.find(file.remedy), std::string::npos) << text;
  }
  const std::string workbook = "PK\x03\x04" + std::string(26, '\0') + "[Content_Types].xml";
  EXPECT_EQ(foreign_file(as_bytes(workbook), "x.xlsx").find("this is a workbook"), 0U);
  EXPECT_NE(foreign_file(as_bytes("PK\x03\x04"), "a.b/x").find("unzip 'a.b/x'"), std::string::npos);
  EXPECT_NE(foreign_file(as_bytes("PAR1"), "a.b/x").find("to_json('a.b/x.jsonl'"), std::string::npos)
      << "a dot of a folder begins no suffix";
}

TEST(FileKind, TensorsUnderTheWrongName) {
  const TempFolder dir;
  const std::string torch = "PK\x03\x04" + std::string(26, 'x') + "archive/data.pkl";
  for (const std::string& bytes : std::vector<std::string>{torch, "\x80\x02\x8A\x0A\x6C\xFC\x9C"s}) {
    write_file(dir / "model.safetensors", as_bytes(bytes));
    expect_error([&] { SafetensorsFile(dir / "model.safetensors", ExitCode::checkpoint); }, ExitCode::checkpoint,
                 {"model.safetensors: this is a file of torch.save", "called pytorch_model.bin"});
  }
  write_file(dir / "pytorch_model.bin", as_bytes("\x02\0\0\0\0\0\0\0{}"s));
  expect_error([&] { TorchArchive(dir / "pytorch_model.bin", ExitCode::checkpoint); }, ExitCode::checkpoint,
               {"pytorch_model.bin: this is a safetensors file", "model.safetensors"});
}

TEST(FileKind, TextAndTensorsAreNone) {
  for (const std::string& text :
       std::vector<std::string>{"", "P", "version", "version https://git", "{\"a\": 1}", "[1]", "question,answer\n",
                                "<think>", "\x08\0\0\0\0\0\0\0{}      ", "BZ", "\xFF\xFF\xFF",
                                "PK\x03\x04"s.substr(0, 3), "\xFF\xFE\0\0\0\0\0\0{\"a\""s, "\x80\x02}"}) {
    EXPECT_EQ(foreign_file(as_bytes(text), "x"), "") << text;
  }
}

TEST(FileKind, EveryReaderSaysIt) {
  const TempFolder dir;
  const std::vector<std::function<void(const std::filesystem::path&)>> readers = {
      [](const auto& file) { SafetensorsFile(file, ExitCode::data); },
      [](const auto& file) { TorchArchive(file, ExitCode::data); },
      [](const auto& file) { NpyFile(file, ExitCode::data); },
      [](const auto& file) { parse_json(read_text(file, ExitCode::data), file.string(), ExitCode::data); },
      [](const auto& file) {
        const MappedFile mapped(file);
        index_jsonl(mapped, [](std::string_view) { return JsonlFacts{}; }, {.code = ExitCode::data, .rules = ""});
      },
  };
  for (const Foreign& kind : foreign_files()) {
    const std::filesystem::path file = dir / "x.y";
    write_file(file, as_bytes(kind.bytes));
    for (const auto& read : readers) {
      expect_error([&] { read(file); }, ExitCode::data, {file.string() + ": this is " + kind.name});
    }
    // It unpacks these two.
    const bool packed = kind.name.ends_with("gzip") || kind.name.ends_with("zstd");
    expect_error([&] { CsvReader(file, ExitCode::data); }, ExitCode::data,
                 {file.string() + (packed ? ": the compressed file" : ": this is " + kind.name)});
  }
}

}  // namespace
}  // namespace hrm
