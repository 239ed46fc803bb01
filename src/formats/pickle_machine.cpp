#include "formats/pickle_machine.h"

#include <array>
#include <bit>
#include <cstdio>

#include "hrm/base/text.h"

namespace hrm::pickle {
namespace {

// Far above any real state dict, whose pickle takes about 150 bytes per tensor. They bound the memory that a hostile
// file can claim.
constexpr size_t kMaxNodes = size_t{2} << 20;  // also of entries in the memo
constexpr size_t kMaxTensors = 100'000;
constexpr size_t kMaxMarks = 1024;  // containers that are open inside one another
constexpr size_t kMaxDimensions = 64;
// Texts can be shared between many values through the memo; these are copied.
constexpr size_t kMaxName = 512;
constexpr size_t kMaxKey = 64;
// More than any of the known callables looks at.
constexpr size_t kMaxArguments = 8;

struct StorageName {
  std::string_view name;
  DType dtype;
};

constexpr std::array<StorageName, 10> kStorages{{
    {"ByteStorage", DType::u8},
    {"CharStorage", DType::i8},
    {"ShortStorage", DType::i16},
    {"IntStorage", DType::i32},
    {"LongStorage", DType::i64},
    {"HalfStorage", DType::f16},
    {"BFloat16Storage", DType::bf16},
    {"FloatStorage", DType::f32},
    {"DoubleStorage", DType::f64},
    {"BoolStorage", DType::boolean},
}};

struct CallableName {
  std::string_view name;
  Callable callable;
};

constexpr std::array<CallableName, 10> kCallables{{
    {"collections.OrderedDict", Callable::ordered_dict},
    {"torch._utils._rebuild_tensor_v2", Callable::rebuild_tensor},
    {"torch._utils._rebuild_parameter", Callable::rebuild_parameter},
    {"torch._utils._rebuild_parameter_with_state", Callable::rebuild_parameter},
    {"torch.Size", Callable::size},
    {"torch.jit._pickle.build_intlist", Callable::typed_list},
    {"torch.jit._pickle.build_doublelist", Callable::typed_list},
    {"torch.jit._pickle.build_boollist", Callable::typed_list},
    {"torch.jit._pickle.build_tensorlist", Callable::typed_list},
    {"torch.jit._pickle.restore_type_tag", Callable::type_tag},
}};

}  // namespace

void Machine::malformed(const std::string& what) const {
  fail(code_, origin_, ": the pickle is malformed at byte ", at_, ": ", what);
}

void Machine::refuse(const std::string& name) const {
  fail(code_, origin_, ": refuses '", printable(name),
       "': only tensors and containers are read, as torch.save(model.state_dict(), FILE) writes them");
}

std::string_view Machine::take(size_t count) {
  if (count > pickle_.size() - at_) malformed("it ends too early");
  const std::string_view bytes = pickle_.substr(at_, count);
  at_ += count;
  return bytes;
}

// Little-endian.
uint64_t Machine::number(size_t count) {
  const std::string_view bytes = take(count);
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

std::string_view Machine::line() {
  const size_t end = pickle_.find('\n', at_);
  if (end == std::string_view::npos) malformed("a line does not end");
  const std::string_view text = pickle_.substr(at_, end - at_);
  at_ = end + 1;
  return text;
}

Ref Machine::make(Kind kind) {
  if (nodes_.size() >= kMaxNodes) fail(code_, origin_, ": the pickle holds more than ", kMaxNodes, " values");
  nodes_.emplace_back().kind = kind;
  return static_cast<Ref>(nodes_.size() - 1);
}

Ref Machine::pop() {
  const Ref ref = top();
  stack_.pop_back();
  return ref;
}

// The values below a mark belong to the collection that the mark will close.
Ref Machine::top() const {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) malformed("a value is missing");
  return stack_.back();
}

void Machine::push_integer(int64_t value) {
  const Ref ref = make(Kind::integer);
  nodes_[ref].integer = value;
  push(ref);
}

void Machine::push_text(uint64_t length) {
  const std::string_view text = take(length);
  const Ref ref = make(Kind::text);
  nodes_[ref].text = text;
  push(ref);
}

// Two's complement of any length.
void Machine::push_long(uint64_t length) {
  const std::string_view bytes = take(length);
  uint64_t value = 0;
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint64_t byte = static_cast<unsigned char>(bytes[i]);
    if (i < 8) {
      value |= byte << (8 * i);
    } else if (byte != (negative ? 0xFFu : 0u)) {
      malformed("an integer of more than 64 bits");
    }
  }
  if (bytes.size() < 8 && negative) value |= ~uint64_t{0} << (8 * bytes.size());
  if (bytes.size() > 8 && (value >> 63 != 0) != negative) malformed("an integer of more than 64 bits");
  push_integer(static_cast<int64_t>(value));
}

std::vector<Ref> Machine::pop_to_mark() {
  if (marks_.empty()) malformed("a mark is missing");
  std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

void Machine::push_tuple(std::vector<Ref> items) {
  const Ref ref = make(Kind::tuple);
  nodes_[ref].items = std::move(items);
  push(ref);
}

void Machine::put(uint64_t slot) {
  if (memo_.size() >= kMaxNodes) fail(code_, origin_, ": the pickle holds more than ", kMaxNodes, " memo entries");
  memo_[slot] = top();
}

void Machine::get(uint64_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) malformed("a memo entry is missing");
  push(found->second);
}

Ref Machine::run() {
  if (pickle_.size() > kMaxPickle) {
    fail(code_, origin_, ": a pickle of ", human_bytes(pickle_.size()), " is too large; at most ",
         human_bytes(kMaxPickle), " are read");
  }
  while (!done_) step(static_cast<unsigned char>(take(1)[0]));
  const Ref root = pop();
  if (!stack_.empty() || !marks_.empty()) malformed("values are left over");
  return root;
}

// Opcodes as in Python's pickletools.
void Machine::step(unsigned char op) {
  switch (op) {
    case 0x80:  // PROTO
      if (const uint64_t protocol = number(1); protocol < 2 || protocol > 5) {
        malformed(cat("protocol ", protocol, " is not known"));
      }
      return;
    case 0x95:  // FRAME
      number(8);
      return;
    case '.':  // STOP
      done_ = true;
      return;
    case '(':  // MARK
      if (marks_.size() >= kMaxMarks) malformed("containers nest too deeply");
      marks_.push_back(stack_.size());
      return;
    case '0':  // POP
      pop();
      return;
    case '1':  // POP_MARK
      pop_to_mark();
      return;
    case 'N':  // NONE
      push(make(Kind::none));
      return;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      push(make(Kind::boolean));
      nodes_[stack_.back()].integer = op == 0x88;
      return;
    case 'K':  // BININT1
      push_integer(static_cast<int64_t>(number(1)));
      return;
    case 'M':  // BININT2
      push_integer(static_cast<int64_t>(number(2)));
      return;
    case 'J':  // BININT
      push_integer(static_cast<int32_t>(number(4)));
      return;
    case 0x8a:  // LONG1
      push_long(number(1));
      return;
    case 0x8b:  // LONG4
      push_long(number(4));
      return;
    case 'G': {  // BINFLOAT, big-endian
      uint64_t bits = 0;
      for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
      push(make(Kind::real));
      nodes_[stack_.back()].real = std::bit_cast<double>(bits);
      return;
    }
    case 'U':   // SHORT_BINSTRING, of Python 2
    case 0x8c:  // SHORT_BINUNICODE
    case 'C':   // SHORT_BINBYTES
      push_text(number(1));
      return;
    case 'T':  // BINSTRING
    case 'X':  // BINUNICODE
    case 'B':  // BINBYTES
      push_text(number(4));
      return;
    case 0x8d:  // BINUNICODE8
    case 0x8e:  // BINBYTES8
      push_text(number(8));
      return;
    case ')':  // EMPTY_TUPLE
      push_tuple({});
      return;
    case 0x85:    // TUPLE1
    case 0x86:    // TUPLE2
    case 0x87: {  // TUPLE3
      std::vector<Ref> items(op - 0x84u);
      for (size_t i = items.size(); i-- > 0;) items[i] = pop();
      push_tuple(std::move(items));
      return;
    }
    case 't':  // TUPLE
      push_tuple(pop_to_mark());
      return;
    case ']':  // EMPTY_LIST
      push(make(Kind::list));
      return;
    case 'l': {  // LIST
      std::vector<Ref> items = pop_to_mark();
      push(make(Kind::list));
      nodes_[stack_.back()].items = std::move(items);
      return;
    }
    case 'a':  // APPEND
      append_items({pop()});
      return;
    case 'e':  // APPENDS
      append_items(pop_to_mark());
      return;
    case '}':  // EMPTY_DICT
      push(make(Kind::dict));
      return;
    case 'd': {  // DICT
      const std::vector<Ref> items = pop_to_mark();
      push(make(Kind::dict));
      set_items(items);
      return;
    }
    case 's': {  // SETITEM
      const Ref value = pop();
      const Ref key = pop();
      set_items({key, value});
      return;
    }
    case 'u':  // SETITEMS
      set_items(pop_to_mark());
      return;
    case 'q':  // BINPUT
      put(number(1));
      return;
    case 'r':  // LONG_BINPUT
      put(number(4));
      return;
    case 0x94:  // MEMOIZE
      put(memo_.size());
      return;
    case 'h':  // BINGET
      get(number(1));
      return;
    case 'j':  // LONG_BINGET
      get(number(4));
      return;
    case 'c': {  // GLOBAL
      const std::string_view module = line();
      push_callable(module, line());
      return;
    }
    case 0x93: {  // STACK_GLOBAL
      const Ref name = pop();
      const Ref module = pop();
      if (nodes_[name].kind != Kind::text || nodes_[module].kind != Kind::text) malformed("a name is not text");
      push_callable(nodes_[module].text, nodes_[name].text);
      return;
    }
    case 'i': {  // INST
      const std::string_view module = line();
      refuse(cat(module, ".", line()));
    }
    case 'R':  // REDUCE
      reduce();
      return;
    case 0x81:  // NEWOBJ
      new_object();
      return;
    case 'b':  // BUILD
      build();
      return;
    case 'Q':  // BINPERSID
      persistent_id();
      return;
    default: {
      char text[48];
      std::snprintf(text, sizeof(text), "pickle instruction 0x%02X", op);
      refuse(text);
    }
  }
}

void Machine::append_items(std::vector<Ref> items) {
  Node& list = nodes_[top()];
  if (list.kind != Kind::list) malformed("items are appended to something that is not a list");
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void Machine::set_items(const std::vector<Ref>& items) {
  Node& dict = nodes_[top()];
  if (dict.kind != Kind::dict) malformed("items are set in something that is not a dict");
  if (items.size() % 2 != 0) malformed("a dict entry has no value");
  dict.items.insert(dict.items.end(), items.begin(), items.end());
}

void Machine::push_callable(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > kMaxName) malformed("a name is too long");
  const std::string full = cat(module, ".", name);
  Callable callable = Callable::module;
  DType dtype = DType::f32;
  bool known = module == "__torch__" || module.substr(0, 10) == "__torch__.";
  if (module == "torch") {
    for (const StorageName& storage : kStorages) {
      if (name == storage.name) {
        known = true;
        callable = Callable::storage;
        dtype = storage.dtype;
      }
    }
  }
  for (const CallableName& entry : kCallables) {
    if (full == entry.name) {
      known = true;
      callable = entry.callable;
    }
  }
  if (!known) refuse(full);
  const Ref ref = make(Kind::callable);
  nodes_[ref].callable = callable;
  nodes_[ref].dtype = dtype;
  nodes_[ref].text = full;
  push(ref);
}

void Machine::reduce() {
  const Ref arguments_ref = pop();
  const Ref callable_ref = pop();
  if (nodes_[callable_ref].kind != Kind::callable || nodes_[arguments_ref].kind != Kind::tuple) {
    malformed("a call without a callable or its arguments");
  }
  std::vector<Ref> arguments;
  for (const Ref argument : nodes_[arguments_ref].items) {
    if (arguments.size() == kMaxArguments) break;
    arguments.push_back(argument);
  }
  const auto kind_of = [&](size_t i) { return i < arguments.size() ? nodes_[arguments[i]].kind : Kind::none; };
  const std::string name = nodes_[callable_ref].text;
  switch (nodes_[callable_ref].callable) {
    case Callable::ordered_dict:
      if (!arguments.empty()) malformed("an OrderedDict with arguments");
      push(make(Kind::dict));
      return;
    case Callable::rebuild_tensor:
      push(rebuild_tensor(arguments));
      return;
    case Callable::rebuild_parameter:
      if (kind_of(0) != Kind::tensor) malformed("a parameter without a tensor");
      push(arguments[0]);
      return;
    case Callable::size:
    case Callable::typed_list:
    case Callable::type_tag:
      if (kind_of(0) != Kind::tuple && kind_of(0) != Kind::list && kind_of(0) != Kind::dict) {
        malformed("a container without items");
      }
      push(arguments[0]);
      return;
    case Callable::storage:
    case Callable::module:
      refuse(name + "()");
  }
}

void Machine::new_object() {
  const Ref arguments = pop();
  const Ref callable = pop();
  if (nodes_[callable].kind != Kind::callable || nodes_[arguments].kind != Kind::tuple) {
    malformed("an object without a class");
  }
  if (nodes_[callable].callable != Callable::module) refuse("new " + nodes_[callable].text);
  if (!nodes_[arguments].items.empty()) malformed("an object with arguments");
  push(make(Kind::object));
}

void Machine::build() {
  const Ref state = pop();
  Node& target = nodes_[top()];
  // An OrderedDict's attributes (the _metadata of a state dict: version numbers of modules) hold no data.
  if (target.kind == Kind::dict) return;
  if (target.kind != Kind::object) malformed("a state for something that has none");
  if (!target.items.empty()) malformed("an object with two states");
  target.items = {state};
}

// ('storage', type, key, location, number of elements)
void Machine::persistent_id() {
  const Ref id = pop();
  const std::vector<Ref>& parts = nodes_[id].items;
  if (nodes_[id].kind != Kind::tuple || parts.size() < 5) malformed("a persistent id that is not a storage");
  const Node& tag = nodes_[parts[0]];
  const Node& type = nodes_[parts[1]];
  const Node& key = nodes_[parts[2]];
  const Node& count = nodes_[parts[4]];
  if (tag.kind != Kind::text || tag.text != "storage" || type.kind != Kind::callable ||
      type.callable != Callable::storage || key.kind != Kind::text || key.text.size() > kMaxKey ||
      count.kind != Kind::integer || count.integer < 0) {
    malformed("a persistent id that is not a storage");
  }
  Node storage;
  storage.kind = Kind::storage;
  storage.dtype = type.dtype;
  storage.text = key.text;
  storage.integer = count.integer;
  const Ref ref = make(Kind::storage);
  nodes_[ref] = std::move(storage);
  push(ref);
}

std::vector<int64_t> Machine::sizes(Ref ref) const {
  const Node& tuple = nodes_[ref];
  if (tuple.kind != Kind::tuple || tuple.items.size() > kMaxDimensions) malformed("a shape that is not a tuple");
  std::vector<int64_t> values;
  for (const Ref item : tuple.items) {
    if (nodes_[item].kind != Kind::integer || nodes_[item].integer < 0) malformed("a size or stride below zero");
    values.push_back(nodes_[item].integer);
  }
  return values;
}

// (storage, offset, shape, strides, requires_grad, hooks[, metadata])
Ref Machine::rebuild_tensor(const std::vector<Ref>& arguments) {
  if (arguments.size() < 4 || nodes_[arguments[0]].kind != Kind::storage ||
      nodes_[arguments[1]].kind != Kind::integer || nodes_[arguments[1]].integer < 0) {
    malformed("a tensor without a storage");
  }
  auto layout = std::make_unique<Layout>();
  layout->offset = nodes_[arguments[1]].integer;
  layout->shape = sizes(arguments[2]);
  layout->strides = sizes(arguments[3]);
  if (layout->shape.size() != layout->strides.size()) malformed("a tensor with more sizes than strides");
  if (++tensors_ > kMaxTensors) fail(code_, origin_, ": the pickle holds more than ", kMaxTensors, " tensors");
  const Ref ref = make(Kind::tensor);
  nodes_[ref].items = {arguments[0]};
  nodes_[ref].layout = std::move(layout);
  return ref;
}

}  // namespace hrm::pickle
