#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "formats/jinja/calls.h"
#include "formats/jinja/text.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

constexpr const char* kTooLarge = "a whole number leaves 64 bits";

const std::string& need_text(const std::string& what, const Value& value) {
  if (!value.is(Kind::text)) throw Fault(cat(what, " needs a text, not ", type_name(value)));
  return value.text();
}

int64_t need_whole(const std::string& what, const Value& value) {
  if (!value.is_whole()) throw Fault(cat(what, " needs a whole number, not ", type_name(value)));
  return value.as_whole();
}

// A place as Python reads it in a slice: negative ones count from the end.
int64_t place_in(int64_t place, int64_t size) {
  return std::clamp<int64_t>(place < 0 ? place + size : place, 0, size);
}

class TextMethods {
 public:
  TextMethods(const Value& of, const std::string& name, const Arguments& arguments, Caller& caller)
      : of_(of),
        text_(of.text()),
        name_(name),
        what_("str." + name),
        arguments_(arguments),
        budget_(caller.budget()),
        caller_(caller) {
    budget_.spend_text(text_.size());
  }

  Value call() {
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") return strip_ends();
    if (name_ == "split" || name_ == "rsplit") return split_parts();
    if (name_ == "startswith" || name_ == "endswith") return affix();
    if (name_ == "replace") return replaced();
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "rindex" || name_ == "count")
      return found();
    if (name_ == "join") return joined();
    if (name_ == "removeprefix" || name_ == "removesuffix") return without_affix();
    if (name_ == "partition" || name_ == "rpartition") return parted();
    if (name_ == "zfill" || name_ == "ljust" || name_ == "rjust" || name_ == "center") return padded();
    if (name_ == "splitlines") {
      const auto bound = bind(what_, arguments_, {"keepends"});
      return texts(split_lines(text_, bound[0] && is_true(*bound[0])));
    }
    static const std::set<std::string_view> kOthers = {"upper",   "lower",   "title",   "capitalize",
                                                       "isascii", "isalpha", "isdigit", "isalnum",
                                                       "isspace", "isupper", "islower"};
    if (!kOthers.contains(name_)) throw Fault(cat("the method ", what_, " is not supported"));
    bind(what_, arguments_, {});
    if (name_ == "upper") return kept(upper(text_));
    if (name_ == "lower") return kept(lower(text_));
    if (name_ == "title") return kept(title(text_));
    if (name_ == "capitalize") return kept(capitalize(text_));
    if (name_ == "isascii") return bool_value(is_ascii_text(text_));
    return bool_value(is_all(text_, std::string_view(name_).substr(2)));
  }

 private:
  Value kept(std::string text) const {
    budget_.spend_text(text.size());
    return text_value(std::move(text), of_.safe);
  }
  Value texts(const std::vector<std::string>& parts) const {
    budget_.spend_items(parts.size());
    Values out;
    for (const std::string& part : parts) out.push_back(text_value(part, of_.safe));
    return items_value(Kind::list, std::move(out));
  }

  Value strip_ends() const {
    const auto bound = bind(what_, arguments_, {"chars"});
    std::optional<std::string_view> characters;
    if (bound[0] && !bound[0]->is(Kind::none)) characters = need_text(what_, *bound[0]);
    if (characters) budget_.spend(static_cast<int64_t>(text_.size() / 64 * (characters->size() / 64)));
    return kept(std::string(strip(text_, name_ != "rstrip", name_ != "lstrip", characters)));
  }

  // Searches from the right compare at every place.
  void spend_search(size_t part) const {
    if (name_.starts_with('r')) budget_.spend(static_cast<int64_t>(text_.size() / 16 * (1 + part) / 64));
  }

  Value split_parts() const {
    const auto bound = bind(what_, arguments_, {"sep", "maxsplit"});
    std::optional<std::string_view> separator;
    if (bound[0] && !bound[0]->is(Kind::none)) separator = need_text(what_, *bound[0]);
    if (separator && separator->empty()) throw Fault(cat(what_, " needs a separator that is not empty"));
    // Before the parts are made: there may be as many as bytes.
    if (separator) spend_search(separator->size());
    if (separator) budget_.spend_items(static_cast<size_t>(count_of(text_, *separator)));
    if (!separator) budget_.spend(static_cast<int64_t>(text_.size() / 16));
    return texts(split(text_, separator, bound[1] ? need_whole(what_, *bound[1]) : -1, name_ == "rsplit"));
  }

  // The part between the optional places behind the first argument.
  std::string_view part(const std::vector<std::optional<Value>>& bound, int64_t* begin_place) const {
    const bool given = (bound[1] && !bound[1]->is(Kind::none)) || (bound[2] && !bound[2]->is(Kind::none));
    if (!given) return text_;
    budget_.spend(static_cast<int64_t>(text_.size() / 16));
    const std::vector<uint32_t> places = character_places(text_);
    const auto size = static_cast<int64_t>(places.size()) - 1;
    const auto place = [&](const std::optional<Value>& value, int64_t none) {
      return value && !value->is(Kind::none) ? need_whole(what_, *value) : none;
    };
    const int64_t begin = place(bound[1], 0), end = place_in(place(bound[2], size), size);
    *begin_place = begin < 0 ? std::max<int64_t>(begin + size, 0) : begin;
    // Beyond the end there is not even an empty text.
    if (*begin_place > size || *begin_place > end) return std::string_view();
    return std::string_view(text_).substr(places[*begin_place], places[end] - places[*begin_place]);
  }

  Value affix() const {
    const auto bound = bind(what_, arguments_, {"prefix", "start", "end"});
    if (!bound[0]) throw Fault(cat(what_, " needs a text"));
    int64_t begin = 0;
    const std::string_view text = part(bound, &begin);
    if (text.data() == nullptr) return bool_value(false);
    const auto fits = [&](const Value& value) {
      const std::string& affix = need_text(what_, value);
      return name_ == "startswith" ? text.starts_with(affix) : text.ends_with(affix);
    };
    if (!bound[0]->is(Kind::tuple)) return bool_value(fits(*bound[0]));
    budget_.spend_items(bound[0]->items().size());
    return bool_value(std::any_of(bound[0]->items().begin(), bound[0]->items().end(), fits));
  }

  Value replaced() const {
    const auto bound = bind(what_, arguments_, {"old", "new", "count"});
    if (!bound[0] || !bound[1]) throw Fault(cat(what_, " needs two texts"));
    const std::string& with = need_text(what_, *bound[1]);
    std::string out = replace(text_, need_text(what_, *bound[0]), of_.safe && !bound[1]->safe ? escaped(with) : with,
                              bound[2] ? need_whole(what_, *bound[2]) : -1, budget_.most_text());
    return kept(std::move(out));
  }

  Value found() const {
    const auto bound = bind(what_, arguments_, {"sub", "start", "end"});
    if (!bound[0]) throw Fault(cat(what_, " needs a text"));
    const std::string& wanted = need_text(what_, *bound[0]);
    spend_search(wanted.size());
    int64_t begin = 0;
    const std::string_view text = part(bound, &begin);
    if (name_ == "count") return whole_value(text.data() == nullptr ? 0 : count_of(text, wanted));
    const size_t at = text.data() == nullptr   ? std::string_view::npos
                      : name_.starts_with("r") ? text.rfind(wanted)
                                               : find_text(text, wanted);
    if (at != std::string_view::npos) return whole_value(begin + count_characters(text.substr(0, at)));
    if (name_.ends_with("index")) throw Fault(cat(what_, ": the text is not there"));
    return whole_value(-1);
  }

  Value joined() const {
    const auto bound = bind(what_, arguments_, {"iterable"});
    if (!bound[0]) throw Fault(cat(what_, " needs a list"));
    std::string out;
    bool is_first = true;
    for (const Value& value : elements(*bound[0], budget_)) {
      const std::string& part = need_text(what_, value);
      budget_.check_text(out.size() + text_.size() + part.size());
      if (!is_first) out += text_;
      out += of_.safe && !value.safe ? escaped(part) : part;
      is_first = false;
    }
    return kept(std::move(out));
  }

  Value without_affix() const {
    const auto bound = bind(what_, arguments_, {"prefix"});
    if (!bound[0]) throw Fault(cat(what_, " needs a text"));
    const std::string& affix = need_text(what_, *bound[0]);
    if (name_ == "removeprefix") return kept(text_.starts_with(affix) ? text_.substr(affix.size()) : text_);
    return kept(text_.ends_with(affix) ? text_.substr(0, text_.size() - affix.size()) : text_);
  }

  Value parted() const {
    const auto bound = bind(what_, arguments_, {"sep"});
    if (!bound[0] || need_text(what_, *bound[0]).empty())
      throw Fault(cat(what_, " needs a separator that is not empty"));
    const std::string& separator = bound[0]->text();
    const bool from_right = name_ == "rpartition";
    spend_search(separator.size());
    const size_t at = from_right ? text_.rfind(separator) : find_text(text_, separator);
    std::array<std::string, 3> parts;
    if (at != std::string::npos) {
      parts = {text_.substr(0, at), separator, text_.substr(at + separator.size())};
    } else {
      parts[from_right ? 2 : 0] = text_;
    }
    Values out;
    for (const std::string& one : parts) out.push_back(kept(one));
    return items_value(Kind::tuple, std::move(out));
  }

  Value padded() const {
    const auto bound = bind(what_, arguments_, {"width", "fillchar"});
    if (!bound[0]) throw Fault(cat(what_, " needs a width"));
    std::string fill = name_ == "zfill" ? "0" : " ";
    if (bound[1]) fill = need_text(what_, *bound[1]);
    if (count_characters(fill) != 1 || (name_ == "zfill" && bound[1])) throw Fault(cat(what_, " needs one character"));
    const int64_t size = count_characters(text_), width = need_whole(what_, *bound[0]);
    if (width <= size) return kept(text_);
    budget_.check_text(static_cast<size_t>(width) < budget_.most_text() ? static_cast<size_t>(width) * fill.size()
                                                                        : budget_.most_text() + 1);
    const int64_t more = width - size;
    // As Python's center: the odd one goes to the left when the width is odd.
    const int64_t left = name_ == "ljust" ? 0 : name_ == "center" ? more / 2 + (more & width & 1) : more;
    std::string before, behind;
    for (int64_t i = 0; i < more; ++i) (i < left ? before : behind) += fill;
    const bool has_sign = name_ == "zfill" && (text_.starts_with('-') || text_.starts_with('+'));
    if (has_sign) return kept(text_.substr(0, 1) + before + text_.substr(1));
    return kept(before + text_ + behind);
  }

  const Value& of_;
  const std::string& text_;
  const std::string& name_;
  std::string what_;
  const Arguments& arguments_;
  Budget& budget_;
  Caller& caller_;
};

Value dict_method(const Value& of, const std::string& name, const Arguments& arguments, Caller& caller) {
  const std::string what = "dict." + name;
  const Values& items = of.items();
  if (name == "get") {
    const auto bound = bind(what, arguments, {"key", "default"});
    if (!bound[0]) throw Fault("dict.get needs a key");
    const Value* found = find(of, *bound[0], caller.budget());
    return found != nullptr ? *found : bound[1] ? *bound[1] : none_value();
  }
  bind(what, arguments, {});
  caller.budget().spend_items(items.size());
  if (name == "copy") return items_value(Kind::dict, items);
  Values out;
  if (name == "items") {
    for (size_t i = 0; i < items.size(); i += 2) out.push_back(items_value(Kind::tuple, {items[i], items[i + 1]}));
  } else if (name == "keys" || name == "values") {
    for (size_t i = name == "keys" ? 0 : 1; i < items.size(); i += 2) out.push_back(items[i]);
  } else {
    throw Fault(cat("the method ", what, " is not supported"));
  }
  return items_value(Kind::view, std::move(out), name);
}

Value list_method(const Value& of, const std::string& name, const Arguments& arguments, Caller& caller) {
  const std::string what = cat(type_name(of), ".", name);
  Budget& budget = caller.budget();
  budget.spend_items(of.items().size());
  if (name == "copy") {
    bind(what, arguments, {});
    return items_value(of.kind, of.items());
  }
  if (name != "index" && name != "count") throw Fault(cat("the method ", what, " is not supported"));
  const auto bound = bind(what, arguments, {"value"});
  if (!bound[0]) throw Fault(cat(what, " needs a value"));
  int64_t count = 0;
  for (size_t i = 0; i < of.items().size(); ++i) {
    if (!are_equal(of.items()[i], *bound[0], budget)) continue;
    if (name == "index") return whole_value(static_cast<int64_t>(i));
    ++count;
  }
  if (name == "index") throw Fault(cat(what, ": the value is not there"));
  return whole_value(count);
}

const std::set<std::string_view>& methods_of(Kind kind) {
  static const std::set<std::string_view> kText = {
      "capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
      "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
      "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
      "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
      "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
      "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
      "swapcase",   "title",        "translate",    "upper",   "zfill"};
  static const std::set<std::string_view> kDict = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                   "pop",   "popitem", "setdefault", "update", "values"};
  static const std::set<std::string_view> kList = {"append", "clear", "copy",   "count",   "extend", "index",
                                                   "insert", "pop",   "remove", "reverse", "sort"};
  static const std::set<std::string_view> kTuple = {"count", "index"};
  static const std::set<std::string_view> kNone;
  return kind == Kind::text    ? kText
         : kind == Kind::dict  ? kDict
         : kind == Kind::list  ? kList
         : kind == Kind::tuple ? kTuple
                               : kNone;
}

[[noreturn]] void no_operation(const std::string& sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::undefined)) throw Fault(cat(value->text(), " is undefined"));
  }
  throw Fault(cat("'", sign, "' is not defined between ", type_name(a), " and ", type_name(b)));
}

Value whole_arithmetic(const std::string& sign, int64_t a, int64_t b) {
  int64_t out = 0;
  const auto checked = [&](bool overflows) {
    if (overflows) throw Fault(kTooLarge);
    return whole_value(out);
  };
  if (sign == "+") return checked(__builtin_add_overflow(a, b, &out));
  if (sign == "-") return checked(__builtin_sub_overflow(a, b, &out));
  if (sign == "*") return checked(__builtin_mul_overflow(a, b, &out));
  if (sign == "**") {
    if (b < 0) return real_value(std::pow(static_cast<double>(a), static_cast<double>(b)));
    out = 1;
    if (a == 0 || a == 1 || b == 0) return whole_value(b == 0 ? 1 : a);
    if (a == -1) return whole_value(b % 2 == 0 ? 1 : -1);
    for (int64_t i = 0; i < b; ++i) checked(__builtin_mul_overflow(out, a, &out));
    return whole_value(out);
  }
  if (b == 0) throw Fault("division by zero");
  if (sign == "/") return real_value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {
    if (sign == "%") return whole_value(0);
    return checked(__builtin_sub_overflow(int64_t{0}, a, &out));
  }
  // Python rounds down.
  const int64_t quotient = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
  return whole_value(sign == "//" ? quotient : a - quotient * b);
}

Value real_arithmetic(const std::string& sign, double a, double b) {
  if (sign == "+") return real_value(a + b);
  if (sign == "-") return real_value(a - b);
  if (sign == "*") return real_value(a * b);
  if (sign == "**") {
    if (a < 0 && b != std::floor(b)) throw Fault("a power of a negative number is not a real number");
    if (a == 0 && b < 0) throw Fault("division by zero");
    return real_value(std::pow(a, b));
  }
  if (b == 0) throw Fault("division by zero");
  if (sign == "/") return real_value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return real_value(rest == 0 ? std::copysign(0.0, b) : rest);
  const double quotient = (a - rest) / b, floored = std::floor(quotient);
  return real_value(quotient - floored > 0.5 ? floored + 1 : floored);
}

Value repeated(const Value& value, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  if (value.is(Kind::text)) {
    const size_t size = value.text().size();
    budget.spend_text(size == 0 || static_cast<uint64_t>(count) <= budget.most_text() / size
                          ? size * static_cast<size_t>(count)
                          : budget.most_text() + 1);
    std::string out;
    if (size > 0) {
      for (int64_t i = 0; i < count; ++i) out += value.text();
    }
    return text_value(std::move(out), value.safe);
  }
  const size_t size = value.items().size();
  Values out;
  if (size == 0) return items_value(value.kind, {});
  for (int64_t i = 0; i < count; ++i) {
    budget.spend(static_cast<int64_t>(1 + size / 4));
    out.insert(out.end(), value.items().begin(), value.items().end());
  }
  return items_value(value.kind, std::move(out));
}

Value sum_of_texts(const Value& a, const Value& b, Budget& budget) {
  budget.spend_text(a.text().size() + b.text().size());
  // Markup escapes what is added to it, on either side.
  const bool safe = a.safe || b.safe;
  const auto part = [&](const Value& value) { return safe && !value.safe ? escaped(value.text()) : value.text(); };
  std::string out = part(a) + part(b);
  budget.check_text(out.size());
  return text_value(std::move(out), safe);
}

}  // namespace

std::vector<std::optional<Value>> bind(const std::string& what, const Arguments& arguments,
                                       std::initializer_list<std::string_view> names) {
  if (arguments.positional.size() > names.size()) {
    throw Fault(cat(what, " takes at most ", names.size(), " arguments, not ", arguments.positional.size()));
  }
  std::vector<std::optional<Value>> bound(names.size());
  std::copy(arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) throw Fault(cat(what, " knows no argument '", printable_start(name, 40), "'"));
    std::optional<Value>& place = bound[static_cast<size_t>(found - names.begin())];
    if (place) throw Fault(cat(what, " has two values for '", name, "'"));
    place = value;
  }
  return bound;
}

bool has_method(const Value& of, std::string_view name) {
  return methods_of(of.kind).contains(name);
}

bool is_changing_method(const Value& of, std::string_view name) {
  static const std::set<std::string_view> kDict = {"clear", "pop", "popitem", "setdefault", "update"};
  static const std::set<std::string_view> kList = {"append", "clear",  "extend",  "insert",
                                                   "pop",    "remove", "reverse", "sort"};
  return (of.is(Kind::dict) && kDict.contains(name)) || (of.is(Kind::list) && kList.contains(name));
}

Value call_method(const Value& of, const std::string& name, const Arguments& arguments, Caller& caller) {
  if (of.is(Kind::text)) return TextMethods(of, name, arguments, caller).call();
  if (of.is(Kind::dict)) return dict_method(of, name, arguments, caller);
  return list_method(of, name, arguments, caller);
}

Value arithmetic(const std::string& sign, const Value& a, const Value& b, Caller& caller) {
  Budget& budget = caller.budget();
  if (a.is_whole() && b.is_whole()) return whole_arithmetic(sign, a.as_whole(), b.as_whole());
  if (a.is_number() && b.is_number()) return real_arithmetic(sign, a.as_real(), b.as_real());
  const auto is_row = [](const Value& value) {
    return value.is(Kind::text) || value.is(Kind::list) || value.is(Kind::tuple);
  };
  if (sign == "+" && a.is(Kind::text) && b.is(Kind::text)) return sum_of_texts(a, b, budget);
  if (sign == "+" && a.kind == b.kind && is_row(a)) {
    budget.spend_items(a.items().size() + b.items().size());
    Values out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return items_value(a.kind, std::move(out));
  }
  if (sign == "*" && is_row(a) && b.is_whole()) return repeated(a, b.as_whole(), budget);
  if (sign == "*" && a.is_whole() && is_row(b)) return repeated(b, a.as_whole(), budget);
  if (sign == "%" && a.is(Kind::text)) throw Fault("formatting a text with % is not supported");
  no_operation(sign, a, b);
}

Value slice(const Value& of, const Value* begin, const Value* end, const Value* step, Caller& caller) {
  if (of.is(Kind::undefined)) throw Fault(cat(of.text(), " is undefined"));
  const bool good =
      of.is(Kind::text) || of.is(Kind::list) || of.is(Kind::tuple) || (of.is(Kind::view) && of.text() == "range");
  // As obj[slice] of a dict or a number in Jinja.
  if (!good) return undefined_value(cat("a slice of a ", type_name(of)));
  const auto number = [&](const Value* value, int64_t none) {
    return value == nullptr || value->is(Kind::none) ? none : need_whole("a slice", *value);
  };
  const int64_t stride = number(step, 1);
  if (stride == 0) throw Fault("a slice has the step 0");
  std::vector<uint32_t> places;
  if (of.is(Kind::text)) {
    caller.budget().spend(static_cast<int64_t>(of.text().size() / 64));
    places = character_places(of.text());
  }
  const auto size = static_cast<int64_t>(of.is(Kind::text) ? places.size() - 1 : of.items().size());
  const auto bounded = [&](const Value* value, int64_t none) {
    if (value == nullptr || value->is(Kind::none)) return none;
    int64_t place = number(value, 0);
    if (place < 0) place = std::max<int64_t>(place + size, stride < 0 ? -1 : 0);
    return std::min<int64_t>(place, stride < 0 ? size - 1 : size);
  };
  const int64_t first = bounded(begin, stride < 0 ? size - 1 : 0), last = bounded(end, stride < 0 ? -1 : size);
  std::string text;
  Values items;
  for (int64_t i = first; stride < 0 ? i > last : i < last;) {
    if (of.is(Kind::text)) {
      text.append(of.text(), places[i], places[i + 1] - places[i]);
    } else {
      items.push_back(of.items()[i]);
    }
    if (stride > 0 ? stride > last - i : stride < last - i) break;
    i += stride;
  }
  if (of.is(Kind::text)) return text_value(std::move(text), of.safe);
  caller.budget().spend_items(items.size());
  return items_value(of.kind, std::move(items), of.text());
}

}  // namespace hrm::jinja
