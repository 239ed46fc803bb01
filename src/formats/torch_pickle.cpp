#include "hrm/formats/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <type_traits>

#include "formats/pickle_machine.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"

namespace hrm {
namespace {

using pickle::Kind;
using pickle::Layout;
using pickle::Machine;
using pickle::Node;
using pickle::Ref;

// Shared and cyclic containers could unfold without end; real files stay far below.
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxVisits = size_t{1} << 20;
constexpr size_t kMaxLeaves = size_t{1} << 17;
constexpr size_t kMaxPath = 1024;
// A tensor expanded by zero strides can be far larger than its storage. Copies may take this much more than the file.
constexpr uint64_t kMaxExpansion = uint64_t{16} << 20;
// Of the beginning that says what a file is, and of the name of a byte order.
constexpr uint64_t kStart = 4096, kMaxOrder = 64;
// Names of all values together. A long path can be given to many values in few bytes.
constexpr uint64_t kMaxNames = uint64_t{64} << 20;

constexpr std::array<std::string_view, 5> kStateDictMembers{"state_dict", "model_state_dict", "model_state", "model",
                                                            "module"};

bool is_contiguous(const Layout& layout) {
  int64_t expected = 1;
  for (size_t i = layout.shape.size(); i-- > 0;) {
    if (layout.shape[i] == 1) continue;
    if (layout.strides[i] != expected) return false;
    expected *= layout.shape[i];
  }
  return true;
}

// One past the last element that the tensor touches; nothing when that leaves int64. No size is zero.
std::optional<int64_t> extent(const Layout& layout) {
  int64_t last = layout.offset;
  for (size_t i = 0; i < layout.shape.size(); ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(layout.shape[i] - 1, layout.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  int64_t end;
  if (__builtin_add_overflow(last, 1, &end)) return std::nullopt;
  return end;
}

// Gathers a strided tensor into C order. The caller has checked the bounds; no size is zero.
void gather(const Layout& layout, size_t item, std::span<const std::byte> storage, std::span<std::byte> out) {
  std::vector<int64_t> index(layout.shape.size(), 0);
  std::vector<int64_t> strides = layout.strides;
  // The stride of a size of one is never used and may be any number.
  for (size_t i = 0; i < strides.size(); ++i) {
    if (layout.shape[i] == 1) strides[i] = 0;
  }
  int64_t source = layout.offset;
  for (size_t at = 0; at < out.size(); at += item) {
    std::memcpy(out.data() + at, storage.data() + static_cast<size_t>(source) * item, item);
    for (size_t i = index.size(); i-- > 0;) {
      source += strides[i];
      if (++index[i] < layout.shape[i]) break;
      source -= strides[i] * layout.shape[i];
      index[i] = 0;
    }
  }
}

// Walks the object tree and names its leaves. `archive`: all bytes, or empty where storages are not looked at.
class Flattener {
 public:
  Flattener(const Machine& machine, const ZipReader& zip, const std::string& root, const std::string& origin,
            ExitCode code, std::span<const std::byte> archive, uint64_t copy_budget,
            std::deque<std::vector<std::byte>>* copies)
      : machine_(machine),
        zip_(zip),
        root_(root),
        origin_(origin),
        code_(code),
        archive_(archive),
        copy_budget_(copy_budget),
        copies_(copies) {}

  void walk(Ref ref, size_t depth = 0) {
    if (++visits_ > kMaxVisits || depth > kMaxDepth) {
      fail(code_, origin_, ": the containers nest too deeply or too often");
    }
    const Node& node = machine_.node(ref);
    switch (node.kind) {
      case Kind::none:
        return;
      case Kind::tensor:
        leaf();
        tensors.push_back(tensor(node));
        return;
      case Kind::integer:
        scalar(node.integer);
        return;
      case Kind::boolean:
        scalar(node.integer != 0);
        return;
      case Kind::real:
        scalar(node.real);
        return;
      case Kind::text:
        scalar(node.text);
        return;
      case Kind::object:
        for (const Ref state : node.items) walk(state, depth + 1);
        return;
      case Kind::tuple:
      case Kind::list:
        for (size_t i = 0; i < node.items.size(); ++i) descend(std::to_string(i), node.items[i], depth);
        return;
      case Kind::dict:
        for (size_t i = 0; i + 1 < node.items.size(); i += 2) {
          const Node& key = machine_.node(node.items[i]);
          if (key.kind == Kind::text) {
            descend(key.text, node.items[i + 1], depth);
          } else if (key.kind == Kind::integer) {
            descend(std::to_string(key.integer), node.items[i + 1], depth);
          } else {
            fail(code_, origin_, ": in '", printable(path_), "' a dict key is neither text nor an integer");
          }
        }
        return;
      case Kind::storage:
        fail(code_, origin_, ": '", printable(path_), "' is a bare storage; save a tensor instead");
      case Kind::callable:
        fail(code_, origin_, ": refuses '", printable(node.text), "' as the value of '", printable(path_),
             "': only tensors and containers are read");
    }
  }

  std::vector<NamedTensor> tensors;
  std::vector<uint64_t> begins;  // of their bytes in the archive; of copies: not known
  std::map<std::string, TorchScalar> scalars;

 private:
  void descend(const std::string& key, Ref value, size_t depth) {
    const size_t length = path_.size();
    if (length + key.size() + 1 > kMaxPath) fail(code_, origin_, ": a name is longer than ", kMaxPath, " characters");
    if (length > 0) path_ += '.';
    path_ += key;
    walk(value, depth + 1);
    path_.resize(length);
  }

  void leaf() {
    if (++leaves_ > kMaxLeaves) fail(code_, origin_, ": more than ", kMaxLeaves, " values");
    if (path_.size() > name_budget_) fail(code_, origin_, ": the names of the values are too long");
    name_budget_ -= path_.size();
  }

  template <class Value>
  void scalar(const Value& value) {
    leaf();
    // Long texts can be shared between many names.
    if constexpr (std::is_same_v<Value, std::string>) {
      if (value.size() > text_budget_) fail(code_, origin_, ": the texts in the pickle are too long");
      text_budget_ -= value.size();
    }
    if (!scalars.emplace(path_, value).second) fail(code_, origin_, ": two values are named '", printable(path_), "'");
  }

  ZipReader::Place storage(const Node& node) {
    const auto found = storages_.find(node.text);
    if (found != storages_.end()) return found->second;
    const std::string record = root_ + "/data/" + node.text;
    if (!archive_.empty()) zip_.at(record);
    return storages_.emplace(node.text, zip_.place(record)).first->second;
  }

  NamedTensor tensor(const Node& node) {
    const Layout& layout = *node.layout;
    const Node& source = machine_.node(node.items[0]);
    NamedTensor result{path_, source.dtype, layout.shape, {}};
    const auto where = [&] { return cat(origin_, ": the tensor '", printable(path_), "'"); };
    const size_t item = item_size(source.dtype);
    const auto needed = array_bytes(source.dtype, layout.shape);
    require(needed.has_value(), code_, where(), " of shape ", shape_text(layout.shape), " is too large");
    const ZipReader::Place bytes = storage(source);
    begins.push_back(bytes.offset);
    // A division, because the count is any number that the pickle holds.
    require(bytes.size % item == 0 && static_cast<uint64_t>(source.integer) == bytes.size / item, code_, where(),
            " has a storage of ", bytes.size, " bytes, but ", source.integer, " elements of ", name(source.dtype),
            " are due");
    if (*needed == 0) return result;
    const auto end = extent(layout);
    require(end && *end <= source.integer, code_, where(), " of shape ", shape_text(layout.shape),
            " reaches beyond its storage of ", source.integer, " elements");
    if (is_contiguous(layout)) {
      begins.back() += static_cast<uint64_t>(layout.offset) * item;
      if (!archive_.empty()) result.bytes = archive_.subspan(begins.back(), static_cast<size_t>(*needed));
      return result;
    }
    require(!archive_.empty(), code_, where(), " is strided; save it with .contiguous()");
    require(static_cast<uint64_t>(*needed) <= copy_budget_, code_, where(),
            " is expanded from a smaller storage; save it with .contiguous()");
    copy_budget_ -= static_cast<uint64_t>(*needed);
    std::vector<std::byte>& copy = copies_->emplace_back(static_cast<size_t>(*needed));
    gather(layout, item, archive_.subspan(bytes.offset, bytes.size), copy);
    result.bytes = copy;
    return result;
  }

  const Machine& machine_;
  const ZipReader& zip_;
  const std::string& root_;
  const std::string& origin_;
  ExitCode code_;
  std::span<const std::byte> archive_;
  uint64_t copy_budget_;
  uint64_t text_budget_ = uint64_t{64} << 20;
  uint64_t name_budget_ = kMaxNames;
  std::deque<std::vector<std::byte>>* copies_;
  std::map<std::string, ZipReader::Place> storages_;  // by key; each is checked once
  std::string path_;
  size_t visits_ = 0;
  size_t leaves_ = 0;
};

// What a file begins with says what it is.
void check_start(std::span<const std::byte> bytes, const std::string& origin, ExitCode code) {
  const std::string_view text = as_text(bytes);
  // The old format starts with a bare pickle of the magic number 0x1950a86a20f9469cfc6c.
  if (text.substr(0, 4) == std::string_view("\x80\x02\x8a\x0a", 4)) {
    fail(code, origin, ": PyTorch's old format without zip; open it in Python and save it again with torch.save: ",
         "python3 -c \"import torch; f = '", printable(origin),
         "'; torch.save(torch.load(f, map_location='cpu'), f)\"");
  }
  if (text.substr(0, 2) != "PK") refuse_foreign_file(bytes, origin, code);
  // Behind the length of its header, a safetensors file begins with it.
  constexpr size_t kLength = 8;
  require(text.size() <= kLength || text.substr(0, 2) == "PK" || text[kLength] != '{', code, origin,
          ": this is a safetensors file; name it so: model.safetensors, or adapter_model.safetensors for an adapter");
  require(text.substr(0, 2) == "PK", code, origin, ": not a PyTorch file (no zip archive)");
}

// Everything lies in one folder, named after the file when it was saved.
std::string root_of(const ZipReader& zip, const std::string& origin, ExitCode code) {
  require(!zip.names().empty(), code, origin, ": the archive is empty");
  const std::string& first = zip.names().front();
  std::string root = first.substr(0, first.find('/'));
  require(zip.contains(root + "/data.pkl"), code, origin, ": not a PyTorch file (the archive has no '", printable(root),
          "/data.pkl')");
  if (zip.contains(root + "/byteorder")) {
    const ZipReader::Place place = zip.place(root + "/byteorder");
    const std::string order = place.size <= kMaxOrder ? zip.text(root + "/byteorder") : "long";
    require(order == "little", code, origin, ": the byte order is '", printable(order.substr(0, 16)),
            "'; only little-endian files are read");
  }
  return root;
}

}  // namespace

std::vector<TorchPlace> torch_places(uint64_t size, const ReadBytes& read, const std::string& origin, ExitCode code) {
  std::vector<std::byte> start(std::min<uint64_t>(size, kStart));
  read(0, start);
  check_start(start, origin, code);
  const ZipReader zip(size, read, origin, code);
  const std::string root = root_of(zip, origin, code);
  const uint64_t pickle_size = zip.place(root + "/data.pkl").size;
  require(pickle_size <= Machine::kMaxPickle, code, origin, ": a pickle of ", pickle_size, " bytes; at most ",
          Machine::kMaxPickle, " are read");
  const std::string text = zip.text(root + "/data.pkl");
  Machine machine(text, origin, code);
  const Ref tree = machine.run();
  Flattener flattener(machine, zip, root, origin, code, {}, 0, nullptr);
  flattener.walk(tree);
  std::vector<TorchPlace> places;
  std::set<std::string> names;
  for (size_t i = 0; i < flattener.tensors.size(); ++i) {
    const NamedTensor& tensor = flattener.tensors[i];
    require(names.insert(tensor.name).second && flattener.scalars.count(tensor.name) == 0, code, origin,
            ": two values are named '", printable(tensor.name), "'");
    places.push_back({tensor.name, tensor.dtype, tensor.shape, flattener.begins[i]});
  }
  return places;
}

TorchArchive::TorchArchive(const std::filesystem::path& path, ExitCode code) : TorchArchive(path.string(), code) {
  file_.emplace(path, code);
  read(file_->bytes());
}

TorchArchive TorchArchive::parse(std::span<const std::byte> bytes, const std::string& origin, ExitCode code) {
  TorchArchive archive(origin, code);
  archive.read(bytes);
  return archive;
}

void TorchArchive::read(std::span<const std::byte> bytes) {
  check_start(bytes, origin_, code_);
  const ZipReader zip(bytes, origin_, code_);
  const std::string root = root_of(zip, origin_, code_);

  Machine machine(as_text(zip.at(root + "/data.pkl")), origin_, code_);
  const Ref tree = machine.run();
  Flattener flattener(machine, zip, root, origin_, code_, bytes, bytes.size() + kMaxExpansion, &copies_);
  flattener.walk(tree);
  if (const Node& top = machine.node(tree); top.kind == Kind::dict) {
    for (size_t i = 0; i + 1 < top.items.size(); i += 2) {
      const Node &key = machine.node(top.items[i]), &value = machine.node(top.items[i + 1]);
      const bool holds = value.kind == Kind::dict || value.kind == Kind::object || value.kind == Kind::list ||
                         value.kind == Kind::tuple;
      if (key.kind == Kind::text && holds) containers_.push_back(key.text);
    }
  }
  tensors_ = std::move(flattener.tensors);
  scalars_ = std::move(flattener.scalars);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const std::string& name = tensors_[i].name;
    require(index_.emplace(name, i).second && scalars_.count(name) == 0, code_, origin_, ": two values are named '",
            printable(name), "'");
  }
}

std::vector<NamedTensor> state_dict_of(const TorchArchive& archive, const std::string& origin, ExitCode code) {
  std::string member;
  for (const std::string& key : archive.containers()) {
    if (std::find(kStateDictMembers.begin(), kStateDictMembers.end(), key) == kStateDictMembers.end()) continue;
    require(member.empty(), code, origin, ": both '", member, "' and '", key,
            "' may be the model's state dict; save one of them alone");
    member = key;
  }
  if (member.empty()) return archive.tensors();
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& tensor : archive.tensors()) {
    if (!tensor.name.starts_with(member + ".")) continue;
    tensors.push_back(tensor);
    tensors.back().name.erase(0, member.size() + 1);
  }
  return tensors;
}

const NamedTensor& TorchArchive::at(const std::string& name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return tensors_[found->second];
  std::vector<std::string> names;
  for (const NamedTensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string near = nearest_name(name, names);
  fail(code_, origin_, ": there is no tensor '", printable(name), "'",
       near.empty() ? "" : "; did you mean '" + printable(near) + "'?");
}

}  // namespace hrm
