#include "formats/jinja/value.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/jinja/text.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

void check_key(const Value& key) {
  const bool good = key.kind != Kind::list && key.kind != Kind::dict && key.kind != Kind::view;
  if (!good) throw Fault(cat("a ", type_name(key), " cannot be a key of a dict"));
}

bool are_equal_items(const Values& a, const Values& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!are_equal(a[i], b[i], budget)) return false;
  }
  return true;
}

bool are_equal_dicts(const Value& a, const Value& b, Budget& budget) {
  if (a.items().size() != b.items().size()) return false;
  for (size_t i = 0; i < a.items().size(); i += 2) {
    const Value* other = find(b, a.items()[i], budget);
    if (other == nullptr || !are_equal(a.items()[i + 1], *other, budget)) return false;
  }
  return true;
}

}  // namespace

void Budget::spend(int64_t steps) {
  left_ -= steps;
  if (left_ < 0) throw Fault(cat("it takes more than ", steps_, " steps, the most that a template may take"));
}

void Budget::spend_text(size_t bytes) {
  check_text(bytes);
  spend(static_cast<int64_t>(bytes / 256));
}

void Budget::check_text(size_t bytes) const {
  if (bytes > most_text_)
    throw Fault(cat("it makes a text of more than ", human_bytes(most_text_), ", the most allowed"));
}

Value none_value() {
  Value value;
  value.kind = Kind::none;
  return value;
}

Value bool_value(bool truth) {
  Value value;
  value.kind = Kind::boolean;
  value.truth = truth;
  return value;
}

Value whole_value(int64_t whole) {
  Value value;
  value.kind = Kind::integer;
  value.whole = whole;
  return value;
}

Value real_value(double real) {
  Value value;
  value.kind = Kind::real;
  value.real = real;
  return value;
}

Value text_value(std::string text, bool safe) {
  Value value = named_value(Kind::text, std::move(text));
  value.safe = safe;
  return value;
}

Value undefined_value(std::string name) {
  return named_value(Kind::undefined, std::move(name));
}

Value named_value(Kind kind, std::string name, Values items) {
  return items_value(kind, std::move(items), std::move(name));
}

Value object_value(Kind kind, Object* object) {
  Value value;
  value.kind = kind;
  value.object = object;
  return value;
}

Value items_value(Kind kind, Values items, std::string name) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.payload ? item.payload->depth + 1 : 1);
  if (depth > kMostDepth) throw Fault(cat("values stand inside one another more than ", kMostDepth, " deep"));
  auto payload = std::make_shared<Payload>();
  payload->text = std::move(name);
  payload->items = std::move(items);
  payload->depth = depth;
  Value value;
  value.kind = kind;
  value.payload = std::move(payload);
  return value;
}

namespace {

Value value_at(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMostDepth) throw Fault(cat("values stand inside one another more than ", kMostDepth, " deep"));
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return bool_value(json.get<bool>());
    case Type::number_integer:
      return whole_value(json.get<int64_t>());
    case Type::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) throw Fault("a number is beyond 64 bits");
      return whole_value(json.get<int64_t>());
    case Type::number_float:
      return real_value(json.get<double>());
    case Type::string:
      if (!is_utf8(json.get_ref<const std::string&>())) throw Fault("a text is not UTF-8");
      return text_value(json.get<std::string>());
    case Type::array: {
      Values items;
      for (const auto& item : json) items.push_back(value_at(item, depth + 1));
      return items_value(Kind::list, std::move(items));
    }
    case Type::object: {
      Values items;
      for (const auto& [key, item] : json.items()) {
        if (!is_utf8(key)) throw Fault("a key is not UTF-8");
        items.push_back(text_value(key));
        items.push_back(value_at(item, depth + 1));
      }
      return items_value(Kind::dict, std::move(items));
    }
    default:
      return none_value();
  }
}

}  // namespace

Value value_of(const nlohmann::ordered_json& json) {
  return value_at(json, 0);
}

const char* type_name(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::text:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::view:
      return value.text() == "range" ? "range" : "view of a dict";
    case Kind::generator:
      return "generator";
    case Kind::space:
      return "namespace";
    case Kind::loop:
      return "loop";
    case Kind::macro:
      return "macro";
    case Kind::method:
      return "method";
    case Kind::function:
      return "function";
  }
  return "value";
}

bool is_true(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
      return value.truth;
    case Kind::integer:
      return value.whole != 0;
    case Kind::real:
      return value.real != 0;
    case Kind::text:
      return !value.text().empty();
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::view:
      return !value.items().empty();
    default:
      return true;
  }
}

bool are_equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend();
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.as_whole() == b.as_whole() : a.as_real() == b.as_real();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      budget.spend_text(std::min(a.text().size(), b.text().size()));
      return a.text() == b.text();
    case Kind::list:
    case Kind::tuple:
      return are_equal_items(a.items(), b.items(), budget);
    case Kind::view:
      return a.payload == b.payload || (a.text() == b.text() && are_equal_items(a.items(), b.items(), budget));
    case Kind::dict:
      return are_equal_dicts(a, b, budget);
    case Kind::method:
    case Kind::function:
      return a.text() == b.text() && are_equal_items(a.items(), b.items(), budget);
    case Kind::generator:
      return a.payload == b.payload;
    default:
      return a.object == b.object;
  }
}

int compare(const Value& a, const Value& b, const char* sign, Budget& budget) {
  budget.spend();
  const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return order(a.as_whole(), b.as_whole());
    return order(a.as_real(), b.as_real());
  }
  if (a.kind == Kind::text && b.kind == Kind::text) {
    budget.spend_text(std::min(a.text().size(), b.text().size()));
    return order(a.text(), b.text());
  }
  if (a.kind == b.kind && (a.kind == Kind::list || a.kind == Kind::tuple)) {
    const size_t both = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < both; ++i) {
      if (!are_equal(a.items()[i], b.items()[i], budget)) return compare(a.items()[i], b.items()[i], sign, budget);
    }
    return order(a.items().size(), b.items().size());
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::undefined)) throw Fault(cat(value->text(), " is undefined"));
  }
  throw Fault(cat("'", sign, "' is not defined between ", type_name(a), " and ", type_name(b)));
}

bool contains(const Value& container, const Value& value, Budget& budget) {
  switch (container.kind) {
    case Kind::text:
      if (!value.is(Kind::text)) throw Fault(cat("'in' of a text needs a text, not ", type_name(value)));
      budget.spend_text(container.text().size());
      return find_text(container.text(), value.text()) != std::string::npos;
    case Kind::dict:
      return find(container, value, budget) != nullptr;
    default:
      break;
  }
  if (container.is(Kind::undefined)) return false;
  for (const Value& item : elements(container, budget)) {
    if (are_equal(item, value, budget)) return true;
  }
  return false;
}

const Value* find(const Value& dict, const Value& key, Budget& budget) {
  check_key(key);
  const Values& items = dict.items();
  if (key.is(Kind::text)) return find(dict, key.text(), budget);
  for (size_t i = 0; i < items.size(); i += 2) {
    if (are_equal(items[i], key, budget)) return &items[i + 1];
  }
  return nullptr;
}

const Value* find(const Value& dict, std::string_view key, Budget& budget) {
  const Values& items = dict.items();
  budget.spend_items(items.size() / 4);
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i].is(Kind::text) && items[i].text() == key) return &items[i + 1];
  }
  return nullptr;
}

void put(Values& dict_items, Value key, Value value, Budget& budget) {
  check_key(key);
  budget.spend_items(dict_items.size());
  for (size_t i = 0; i < dict_items.size(); i += 2) {
    if (dict_items[i].kind == key.kind || (dict_items[i].is_number() && key.is_number())) {
      if (!are_equal(dict_items[i], key, budget)) continue;
      dict_items[i + 1] = std::move(value);
      return;
    }
  }
  dict_items.push_back(std::move(key));
  dict_items.push_back(std::move(value));
}

int64_t length(const Value& value, Budget& budget) {
  switch (value.kind) {
    case Kind::undefined:
      return 0;
    case Kind::text:
      budget.spend_text(value.text().size());
      return count_characters(value.text());
    case Kind::dict:
      return static_cast<int64_t>(value.items().size() / 2);
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      return static_cast<int64_t>(value.items().size());
    default:
      throw Fault(cat("a ", type_name(value), " has no length"));
  }
}

Values elements(const Value& value, Budget& budget) {
  Values out;
  switch (value.kind) {
    case Kind::undefined:
      return out;
    case Kind::text:
      budget.spend(static_cast<int64_t>(value.text().size() / 4));
      for (size_t at = 0; at < value.text().size();) {
        const size_t begin = at;
        next_character(value.text(), at);
        out.push_back(text_value(value.text().substr(begin, at - begin), value.safe));
      }
      return out;
    case Kind::dict:
      budget.spend_items(value.items().size());
      for (size_t i = 0; i < value.items().size(); i += 2) out.push_back(value.items()[i]);
      return out;
    case Kind::list:
    case Kind::tuple:
    case Kind::view:
      budget.spend_items(value.items().size());
      return value.items();
    case Kind::generator:
      budget.spend_items(value.items().size());
      out.assign(value.items().begin() + static_cast<int64_t>(value.payload->next), value.items().end());
      value.payload->next = value.items().size();
      return out;
    default:
      throw Fault(cat("a ", type_name(value), " cannot be looped over"));
  }
}

}  // namespace hrm::jinja
