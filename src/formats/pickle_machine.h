#pragma once
// The part of Python's pickle machine (protocols 2 to 4) that tensor files need. It builds a tree of plain values. The
// few callables that PyTorch puts into such files are known by name and represent data, never code.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/formats/dtype.h"

namespace hrm::pickle {

// Index of a node. Containers may share nodes and, in hostile files, hold themselves.
using Ref = uint32_t;

enum class Kind { none, boolean, integer, real, text, tuple, list, dict, object, storage, tensor, callable };

// The callables that are known.
enum class Callable { ordered_dict, rebuild_tensor, rebuild_parameter, size, typed_list, type_tag, storage, module };

struct Layout {
  int64_t offset = 0;  // in elements, as the strides
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

struct Node {
  Kind kind = Kind::none;
  Callable callable = Callable::module;  // callable
  DType dtype = DType::f32;              // storage; a callable that is a storage type
  int64_t integer = 0;                   // integer, boolean; storage: number of elements
  double real = 0;
  std::string text;                // text; storage: the record's key; callable: its full name
  std::vector<Ref> items;          // containers; dict: key, value, key, ...; object: its state; tensor: its storage
  std::unique_ptr<Layout> layout;  // tensor: non-negative sizes, strides and offset, as many strides as sizes
};

class Machine {
 public:
  static constexpr size_t kMaxPickle = size_t{32} << 20;

  // `origin` names the file in errors.
  Machine(std::string_view pickle, const std::string& origin, ExitCode code)
      : pickle_(pickle), origin_(origin), code_(code) {}

  // The unpickled value. Throws Error(code): malformed, too large, or holding anything but tensors and containers.
  Ref run();

  const Node& node(Ref ref) const { return nodes_[ref]; }

 private:
  [[noreturn]] void malformed(const std::string& what) const;
  [[noreturn]] void refuse(const std::string& name) const;

  std::string_view take(size_t count);
  uint64_t number(size_t count);
  std::string_view line();

  Ref make(Kind kind);
  void push(Ref ref) { stack_.push_back(ref); }
  Ref pop();
  Ref top() const;
  void push_integer(int64_t value);
  void push_text(uint64_t length);
  void push_long(uint64_t length);
  std::vector<Ref> pop_to_mark();
  void push_tuple(std::vector<Ref> items);
  void put(uint64_t slot);
  void get(uint64_t slot);

  void step(unsigned char op);
  void append_items(std::vector<Ref> items);
  void set_items(const std::vector<Ref>& items);
  void push_callable(std::string_view module, std::string_view name);
  void reduce();
  void new_object();
  void build();
  void persistent_id();
  Ref rebuild_tensor(const std::vector<Ref>& arguments);
  std::vector<int64_t> sizes(Ref ref) const;

  std::string_view pickle_;
  std::string origin_;
  ExitCode code_;
  size_t at_ = 0;
  bool done_ = false;
  size_t tensors_ = 0;
  std::vector<Node> nodes_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::unordered_map<uint64_t, Ref> memo_;
};

}  // namespace hrm::pickle
