// Values of a template as text: str, repr and json.dumps of Python.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "formats/jinja/text.h"
#include "formats/jinja/value.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

// Elements of a list, tuple, dict or view that holds others, written one after the other.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void repr(const Value& value) {
    budget_.spend();
    switch (value.kind) {
      case Kind::text:
        // markupsafe.Markup('...').
        add(value.safe ? "Markup(" + python_repr(value.text()) + ")" : python_repr(value.text()));
        break;
      case Kind::list:
        between("[", value.items(), "]");
        break;
      case Kind::tuple:
        between("(", value.items(), value.items().size() == 1 ? ",)" : ")");
        break;
      case Kind::dict:
        dict(value.items());
        break;
      case Kind::view:
        if (value.text() == "range") throw Fault("a range cannot be written as text; use the filter list");
        add("dict_" + value.text());
        between("([", value.items(), "])");
        break;
      default:
        add(plain(value));
    }
  }

  std::string plain(const Value& value) const {
    switch (value.kind) {
      case Kind::undefined:
        return "Undefined";
      case Kind::none:
        return "None";
      case Kind::boolean:
        return value.truth ? "True" : "False";
      case Kind::integer:
        return std::to_string(value.whole);
      case Kind::real:
        return real_text(value.real);
      default:
        throw Fault(cat("a ", type_name(value), " cannot be written as text"));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) {
    budget_.spend_text(text.size());
    budget_.check_text(out_.size() + text.size());
    out_ += text;
  }
  void between(const char* begin, const Values& items, const char* end) {
    add(begin);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) add(", ");
      repr(items[i]);
    }
    add(end);
  }
  void dict(const Values& items) {
    add("{");
    for (size_t i = 0; i < items.size(); i += 2) {
      if (i > 0) add(", ");
      repr(items[i]);
      add(": ");
      repr(items[i + 1]);
    }
    add("}");
  }

  Budget& budget_;
  std::string out_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.spend();
    switch (value.kind) {
      case Kind::none:
        return add("null");
      case Kind::boolean:
        return add(value.truth ? "true" : "false");
      case Kind::integer:
        return add(std::to_string(value.whole));
      case Kind::real:
        return add(number(value.real));
      case Kind::text:
        return add(text(value.text()));
      case Kind::list:
      case Kind::tuple:
        return list(value.items(), level);
      case Kind::dict:
        return dict(value.items(), level);
      default:
        throw Fault(cat("tojson: ", value.kind == Kind::undefined
                                        ? cat(value.text(), " is undefined, which has no JSON")
                                        : cat("a ", type_name(value), " has no JSON")));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void add(std::string_view text) {
    budget_.spend_text(text.size());
    budget_.check_text(out_.size() + text.size());
    out_ += text;
  }

  static std::string number(double real) {
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
    return real_text(real);
  }

  std::string text(std::string_view value) const {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string out = "\"";
    const auto unicode = [&](char32_t c) {
      out += "\\u";
      for (int i = 3; i >= 0; --i) out += kDigits[c >> (4 * i) & 15];
    };
    for (size_t at = 0; at < value.size();) {
      const char32_t c = next_character(value, at);
      if (c == '"' || c == '\\') {
        out += '\\';
        out += static_cast<char>(c);
      } else if (c < 0x20) {
        constexpr std::string_view kShort = "\b\t\n\f\r", kLetters = "btnfr";
        const size_t place = kShort.find(static_cast<char>(c));
        if (place == std::string_view::npos) {
          unicode(c);
        } else {
          out += '\\';
          out += kLetters[place];
        }
      } else if (style_.ascii && c >= 0x10000) {
        unicode(0xD800 + ((c - 0x10000) >> 10));
        unicode(0xDC00 + ((c - 0x10000) & 0x3FF));
      } else if (style_.ascii && c >= 0x7F + 1) {
        unicode(c);
      } else {
        append_character(c, out);
      }
    }
    return out + "\"";
  }

  void line(int level) {
    if (style_.indent < 0) return;
    add("\n" + std::string(static_cast<size_t>(level) * static_cast<size_t>(style_.indent), ' '));
  }

  void list(const Values& items, int level) {
    if (items.empty()) return add("[]");
    add("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) add(style_.item_separator);
      line(level + 1);
      write(items[i], level + 1);
    }
    line(level);
    add("]");
  }

  std::string key(const Value& value) const {
    switch (value.kind) {
      case Kind::text:
        return text(value.text());
      case Kind::none:
        return "\"null\"";
      case Kind::boolean:
        return value.truth ? "\"true\"" : "\"false\"";
      case Kind::integer:
        return "\"" + std::to_string(value.whole) + "\"";
      case Kind::real:
        return "\"" + number(value.real) + "\"";
      default:
        throw Fault(cat("tojson: a ", type_name(value), " cannot be a key"));
    }
  }

  void dict(const Values& items, int level) {
    if (items.empty()) return add("{}");
    std::vector<size_t> order(items.size() / 2);
    std::iota(order.begin(), order.end(), size_t{0});
    if (style_.sorted) {
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return compare(items[2 * a], items[2 * b], "<", budget_) < 0; });
    }
    add("{");
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0) add(style_.item_separator);
      line(level + 1);
      add(key(items[2 * order[i]]));
      add(style_.key_separator);
      write(items[2 * order[i] + 1], level + 1);
    }
    line(level);
    add("}");
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string real_text(double real) {
  if (std::isnan(real)) return "nan";
  if (std::isinf(real)) return real > 0 ? "inf" : "-inf";
  // The shortest digits that are read back as the same number.
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, real, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;
  char fixed[64];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof fixed, real, std::chars_format::fixed).ptr;
  text.assign(fixed, fixed_end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.kind == Kind::undefined) return "";
  if (value.kind == Kind::text) {
    budget.spend_text(value.text().size());
    return value.text();
  }
  return to_repr(value, budget);
}

std::string to_repr(const Value& value, Budget& budget) {
  Writer writer(budget);
  writer.repr(value);
  return writer.take();
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace hrm::jinja
