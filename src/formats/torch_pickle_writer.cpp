#include <cstdio>
#include <set>

#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/formats/torch_pickle.h"
#include "hrm/formats/zip.h"

namespace hrm {
namespace {

const char* storage_name(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return "ByteStorage";
    case DType::i8:
      return "CharStorage";
    case DType::i16:
      return "ShortStorage";
    case DType::i32:
      return "IntStorage";
    case DType::i64:
      return "LongStorage";
    case DType::f16:
      return "HalfStorage";
    case DType::bf16:
      return "BFloat16Storage";
    case DType::f32:
      return "FloatStorage";
    case DType::f64:
      return "DoubleStorage";
    case DType::boolean:
      return "BoolStorage";
    case DType::u16:
    case DType::u32:
    case DType::f8_e4m3:
      break;
  }
  fail(ExitCode::unexpected, "torch.save knows no storage of element type ", name(dtype));
}

// Emits pickle protocol 2, the one that torch.save uses. Opcodes as in Python's pickletools.
class Emitter {
 public:
  Emitter& op(char code) {
    out_ += code;
    return *this;
  }

  Emitter& global(const char* module, const char* name) {
    out_ += 'c';
    out_ += module;
    out_ += '\n';
    out_ += name;
    out_ += '\n';
    return *this;
  }

  Emitter& text(const std::string& value) {
    out_ += 'X';  // BINUNICODE
    little_endian(value.size(), 4);
    out_ += value;
    return *this;
  }

  // value >= 0
  Emitter& integer(int64_t value) {
    if (value <= 0xFF) {
      out_ += 'K';
      little_endian(static_cast<uint64_t>(value), 1);
    } else if (value <= 0x7FFFFFFF) {
      out_ += 'J';
      little_endian(static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";  // LONG1 of eight bytes
      little_endian(static_cast<uint64_t>(value), 8);
    }
    return *this;
  }

  Emitter& tuple(const std::vector<int64_t>& values) {
    op('(');
    for (const int64_t value : values) integer(value);
    return op('t');
  }

  std::string take() { return std::move(out_); }

 private:
  void little_endian(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }

  std::string out_;
};

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace

std::vector<std::byte> build_torch_state_dict(const std::vector<NamedTensor>& entries, const std::string& root) {
  require(!root.empty() && root.find('/') == std::string::npos, ExitCode::unexpected,
          "the folder inside a .pt file cannot be '", printable(root), "'");
  Emitter pickle;
  pickle.op('\x80').op('\x02');
  pickle.global("collections", "OrderedDict").op(')').op('R').op('(');
  std::set<std::string> seen;
  for (size_t i = 0; i < entries.size(); ++i) {
    const NamedTensor& entry = entries[i];
    require(seen.insert(entry.name).second, ExitCode::unexpected, "the tensor '", printable(entry.name),
            "' occurs twice in a state dict");
    const auto needed = array_bytes(entry.dtype, entry.shape);
    require(needed && static_cast<uint64_t>(*needed) == entry.bytes.size(), ExitCode::unexpected, "the tensor '",
            printable(entry.name), "' of shape ", shape_text(entry.shape), " has ", entry.bytes.size(), " bytes");
    const int64_t numel = *needed / static_cast<int64_t>(item_size(entry.dtype));
    pickle.text(entry.name);
    pickle.global("torch._utils", "_rebuild_tensor_v2").op('(');
    pickle.op('(').text("storage").global("torch", storage_name(entry.dtype)).text(std::to_string(i)).text("cpu");
    pickle.integer(numel).op('t').op('Q');
    pickle.integer(0).tuple(entry.shape).tuple(contiguous_strides(entry.shape));
    pickle.op('\x89');                                            // requires_grad = False
    pickle.global("collections", "OrderedDict").op(')').op('R');  // no hooks
    pickle.op('t').op('R');
  }
  pickle.op('u').op('.');

  const std::string tree = pickle.take();
  ZipWriter zip;
  zip.add(root + "/data.pkl", tree);
  // The records that torch.save writes beside the pickle; the loader checks the last version that it may read.
  zip.add(root + "/.format_version", "1");
  zip.add(root + "/.storage_alignment", "64");
  zip.add(root + "/byteorder", "little");
  uint32_t data_crc = crc32(as_bytes(tree));
  for (size_t i = 0; i < entries.size(); ++i) {
    zip.add(root + "/data/" + std::to_string(i), entries[i].bytes);
    data_crc = crc32(entries[i].bytes, data_crc);
  }
  zip.add(root + "/version", "3\n");
  // 20 digits for the structure, 20 for the contents; torch only asks that equal ids mean equal files.
  char id[41];
  std::snprintf(id, sizeof(id), "%020llu%020llu", static_cast<unsigned long long>(hash_name(tree)),
                static_cast<unsigned long long>(data_crc));
  zip.add(root + "/.data/serialization_id", id);
  return zip.finish();
}

}  // namespace hrm
