#include "hrm/formats/npy.h"

#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"

namespace hrm {
namespace {

constexpr std::string_view kNpyMagic("\x93NUMPY", 6);
constexpr size_t kNpyAlignment = 64;
// numpy itself refuses headers above 10,000 characters by default; this leaves room for any real shape.
constexpr size_t kMaxNpyHeader = size_t{1} << 16;
constexpr size_t kMaxNpyDimensions = 32;

struct Descr {
  DType dtype;
  std::string_view text;  // without the byte order
};

constexpr std::array<Descr, 11> kDescrs{{
    {DType::u8, "u1"},
    {DType::i8, "i1"},
    {DType::i16, "i2"},
    {DType::i32, "i4"},
    {DType::i64, "i8"},
    {DType::f16, "f2"},
    {DType::f32, "f4"},
    {DType::f64, "f8"},
    {DType::boolean, "b1"},
    {DType::u16, "u2"},
    {DType::u32, "u4"},
}};

// Reads the header's Python dict literal: string keys; values are strings, True, False or tuples of integers.
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string_view text, const std::string& origin, ExitCode code)
      : text_(text), origin_(origin), code_(code) {}

  void read(DType* dtype, std::vector<int64_t>* shape) {
    bool have_descr = false, have_order = false, have_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      bool* seen = key == "descr" ? &have_descr : key == "fortran_order" ? &have_order : &have_shape;
      if (key != "descr" && key != "fortran_order" && key != "shape") bad("unknown key '" + printable(key) + "'");
      if (*seen) bad("key '" + key + "' twice");
      *seen = true;
      if (key == "descr") {
        *dtype = descr();
      } else if (key == "fortran_order") {
        if (boolean()) {
          fail(code_, origin_, ": the array is in Fortran order; save it with numpy.ascontiguousarray");
        }
      } else {
        *shape = tuple();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) bad("text after the closing brace");
    if (!have_descr || !have_order || !have_shape) bad("descr, fortran_order and shape are needed");
  }

 private:
  [[noreturn]] void bad(const std::string& what) const {
    fail(code_, origin_, ": the .npy header is malformed at character ", at_, ": ", what);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }

  bool accept(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) bad(std::string("expected '") + c + "'");
  }

  std::string string() {
    skip_space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) bad("expected a string");
    const size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) bad("unclosed string");
    const std::string value(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return value;
  }

  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return word == "True";
      }
    }
    bad("expected True or False");
  }

  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      skip_space();
      int64_t value = 0;
      const char* end = text_.data() + text_.size();
      const auto [stop, error] = std::from_chars(text_.data() + at_, end, value);
      if (error != std::errc() || value < 0) bad("expected a size");
      at_ = static_cast<size_t>(stop - text_.data());
      accept('L');  // Python 2 wrote 3L
      values.push_back(value);
      if (values.size() > kMaxNpyDimensions) bad("more than 32 dimensions");
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  DType descr() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') {
      fail(code_, origin_, ": the array has fields (a structured type); save each field as an array of its own");
    }
    const std::string text = string();
    if (!text.empty() && text[0] == '>' && text != ">u1" && text != ">i1" && text != ">b1") {
      fail(code_, origin_, ": the array is big-endian ('", printable(text), "'); save it with .astype('<",
           printable(text.substr(1)), "')");
    }
    for (const Descr& known : kDescrs) {
      if (text.size() == 3 && std::string_view("<|>=").find(text[0]) != std::string_view::npos &&
          std::string_view(text).substr(1) == known.text) {
        return known.dtype;
      }
    }
    fail(
        code_, origin_, ": the element type '", printable(text),
        "' is not supported; uint8, uint16, uint32, int8, int16, int32, int64, float16, float32, float64 and bool are");
  }

  std::string_view text_;
  const std::string& origin_;
  ExitCode code_;
  size_t at_ = 0;
};

}  // namespace

ArrayView parse_npy(std::span<const std::byte> bytes, const std::string& origin, ExitCode code) {
  const std::string_view text = as_text(bytes);
  if (!text.starts_with(kNpyMagic)) refuse_foreign_file(bytes, origin, code);
  require(text.substr(0, kNpyMagic.size()) == kNpyMagic && text.size() >= 10, code, origin, ": not a .npy file");
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text[i])); };
  const size_t major = byte(6);
  require(major >= 1 && major <= 3, code, origin, ": .npy format version ", major, " is not known");
  const size_t prefix = major == 1 ? 10 : 12;
  require(text.size() >= prefix, code, origin, ": the file ends inside its header");
  size_t header = byte(8) | byte(9) << 8;
  if (major > 1) header |= byte(10) << 16 | byte(11) << 24;
  require(header <= kMaxNpyHeader, code, origin, ": a header of ", header, " bytes is too long");
  require(text.size() - prefix >= header, code, origin, ": the file ends inside its header");

  ArrayView array;
  NpyHeaderReader(text.substr(prefix, header), origin, code).read(&array.dtype, &array.shape);
  array.bytes = bytes.subspan(prefix + header);
  const auto needed = array_bytes(array.dtype, array.shape);
  require(needed.has_value(), code, origin, ": the shape ", shape_text(array.shape), " is too large");
  require(static_cast<uint64_t>(*needed) == array.bytes.size(), code, origin, ": shape ", shape_text(array.shape),
          " of ", name(array.dtype), " takes ", *needed, " bytes, but ", array.bytes.size(),
          " follow the header; the file is ",
          array.bytes.size() < static_cast<uint64_t>(*needed) ? "truncated" : "longer than its array");
  return array;
}

NpyFile::NpyFile(const std::filesystem::path& path, ExitCode code)
    : file_(path, code), array_(parse_npy(file_.bytes(), path.string(), code)) {}

std::string npy_header(DType dtype, const std::vector<int64_t>& shape) {
  std::string_view descr;
  for (const Descr& known : kDescrs) {
    if (known.dtype == dtype) descr = known.text;
  }
  require(!descr.empty(), ExitCode::unexpected, "the .npy format has no element type ", name(dtype));
  std::string dict = "{'descr': '";
  dict += item_size(dtype) == 1 ? '|' : '<';
  dict += descr;
  dict += "', 'fortran_order': False, 'shape': (";
  for (const int64_t size : shape) dict += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
  // "(3, 4, ), }" is as good to Python, but readers that match numpy's own spelling are about.
  if (shape.size() > 1) dict.resize(dict.size() - 2);
  dict += "), }";
  const size_t unpadded = 10 + dict.size() + 1;
  dict.append((kNpyAlignment - unpadded % kNpyAlignment) % kNpyAlignment, ' ');
  dict += '\n';
  require(dict.size() <= 0xFFFF, ExitCode::unexpected, "a shape of ", shape.size(), " sizes has no .npy header");
  std::string header(kNpyMagic);
  header += {'\x01', '\x00', static_cast<char>(dict.size() & 0xFF), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

void write_npy(const std::filesystem::path& path, DType dtype, const std::vector<int64_t>& shape,
               std::span<const std::byte> bytes) {
  const auto needed = array_bytes(dtype, shape);
  require(needed && static_cast<uint64_t>(*needed) == bytes.size(), ExitCode::unexpected, "shape ", shape_text(shape),
          " of ", name(dtype), " does not take ", bytes.size(), " bytes, for '", path.string(), "'");
  const std::string header = npy_header(dtype, shape);
  const std::array parts{as_bytes(header), bytes};
  write_file(path, parts);
}

}  // namespace hrm
