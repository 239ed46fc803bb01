// Members, items and calls of a template's values.
#include <algorithm>
#include <ctime>

#include "formats/jinja/run_scopes.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

constexpr int64_t kMostRange = 100'000;  // of jinja2's sandbox

bool is_hidden(std::string_view name) {
  return name.starts_with("__");
}

Value undefined_member(const Value& of, const std::string& name) {
  return undefined_value(cat("'", printable_start(name, 40), "' of a ", type_name(of)));
}

}  // namespace

Value Run::member(const Value& of, const std::string& name) {
  if (of.is(Kind::undefined)) {
    throw Fault(cat(of.text(), " is undefined, so that it has no '", printable_start(name, 40), "'"));
  }
  if (is_hidden(name)) throw Fault(cat("the attribute '", printable_start(name, 40), "' is not accessible"));
  switch (of.kind) {
    case Kind::dict:
    case Kind::list:
    case Kind::tuple:
    case Kind::text:
      if (is_changing_method(of, name)) return undefined_value(cat("'", name, "', a method that changes a value,"));
      if (has_method(of, name)) return named_value(Kind::method, name, {of});
      if (of.is(Kind::dict)) {
        if (const Value* found = find(of, name, budget_)) return *found;
      }
      return undefined_member(of, name);
    case Kind::space: {
      const Values& items = static_cast<const Space*>(of.object)->items;
      for (size_t i = 0; i < items.size(); i += 2) {
        if (items[i].text() == name) return items[i + 1];
      }
      return undefined_member(of, name);
    }
    case Kind::loop: {
      if (name == "cycle" || name == "changed") return named_value(Kind::method, name, {of});
      return loop_member(*static_cast<const Loop*>(of.object), name);
    }
    case Kind::none:
      return undefined_member(of, name);
    default:
      throw Fault(cat("members of a ", type_name(of), " are not supported"));
  }
}

Value Run::loop_member(const Loop& loop, const std::string& name) {
  if (name == "index") return whole_value(loop.at + 1);
  if (name == "index0") return whole_value(loop.at);
  if (name == "revindex") return whole_value(loop.size - loop.at);
  if (name == "revindex0") return whole_value(loop.size - loop.at - 1);
  if (name == "first") return bool_value(loop.at == 0);
  if (name == "last") return bool_value(loop.at + 1 == loop.size);
  if (name == "length") return whole_value(loop.size);
  if (name == "previtem") return loop.before;
  if (name == "nextitem") return loop.behind;
  if (name == "depth") return whole_value(1);
  if (name == "depth0") return whole_value(0);
  return undefined_value(cat("'loop.", printable_start(name, 40), "'"));
}

Value Run::item(const Value& of, const Value& key) {
  if (of.is(Kind::undefined)) throw Fault(cat(of.text(), " is undefined, so that it has no items"));
  if (of.is(Kind::dict)) {
    const bool can_be_key = !key.is(Kind::list) && !key.is(Kind::dict) && !key.is(Kind::view);
    if (can_be_key) {
      if (const Value* found = find(of, key, budget_)) return *found;
    }
  }
  const bool is_row =
      of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::text) || (of.is(Kind::view) && of.text() == "range");
  if (is_row && key.is_whole()) {
    const int64_t size = length(of, budget_);
    int64_t place = key.as_whole();
    if (place < 0) place += size;
    if (place < 0 || place >= size) return undefined_value(cat("item ", key.as_whole(), " of a ", type_name(of)));
    if (!of.is(Kind::text)) return of.items()[place];
    const Value begin = whole_value(place), end = whole_value(place + 1);
    return slice(of, &begin, &end, nullptr, *this);
  }
  if (key.is(Kind::text) && !is_hidden(key.text())) {
    const bool has_members = of.is(Kind::dict) || of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::text) ||
                             of.is(Kind::space) || of.is(Kind::loop);
    if (has_members) return member(of, key.text());
  }
  return undefined_value(cat("an item of a ", type_name(of)));
}

Value Run::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind) {
    case Kind::macro:
      return call_macro(*static_cast<const Macro*>(callee.object), arguments);
    case Kind::function:
      return call_function(callee.text(), arguments);
    case Kind::method:
      if (callee.items()[0].is(Kind::loop)) return call_loop(callee, arguments);
      return call_method(callee.items()[0], callee.text(), arguments, *this);
    case Kind::undefined:
      throw Fault(cat(callee.text(), " is undefined and cannot be called"));
    default:
      throw Fault(cat("a ", type_name(callee), " cannot be called"));
  }
}

Value Run::call_loop(const Value& method, const Arguments& arguments) {
  auto& loop = *static_cast<Loop*>(method.items()[0].object);
  if (!arguments.named.empty()) throw Fault(cat("loop.", method.text(), " takes no arguments with names"));
  const Values& values = arguments.positional;
  if (method.text() == "cycle") {
    if (values.empty()) throw Fault("loop.cycle needs values");
    return values[static_cast<size_t>(loop.at) % values.size()];
  }
  bool is_same = loop.changed.size() == values.size() && loop.at > 0;
  for (size_t i = 0; is_same && i < values.size(); ++i) is_same = are_equal(values[i], loop.changed[i], budget_);
  loop.changed = values;
  return bool_value(!is_same);
}

Value Run::call_macro(const Macro& macro, const Arguments& arguments) {
  const Deeper deeper(*this);
  const Statement& definition = *macro.definition;
  const std::string name = definition.text.empty() ? "caller" : definition.text;
  Inner inner(*this, *macro.scope);
  Scope& scope = inner.scope();
  Values more(arguments.positional.begin() +
                  static_cast<int64_t>(std::min(arguments.positional.size(), definition.parameters.size())),
              arguments.positional.end());
  if (!more.empty() && !program_.names.contains("varargs")) {
    throw Fault(
        cat("the macro '", printable_start(name, 40), "' takes at most ", definition.parameters.size(), " arguments"));
  }
  Values named;
  for (const auto& one : arguments.named) {
    const std::string& key = one.first;
    const Value& value = one.second;
    const auto is_it = [&](const Parameter& parameter) { return parameter.name == key; };
    const auto found = std::find_if(definition.parameters.begin(), definition.parameters.end(), is_it);
    if (found == definition.parameters.end()) {
      if (key == "caller") {
        scope.set(key, value);
        continue;
      }
      if (!program_.names.contains("kwargs")) {
        throw Fault(
            cat("the macro '", printable_start(name, 40), "' has no parameter '", printable_start(key, 40), "'"));
      }
      put(named, text_value(key), value, budget_);
      continue;
    }
    const auto place = static_cast<size_t>(found - definition.parameters.begin());
    if (place < arguments.positional.size()) {
      throw Fault(
          cat("the macro '", printable_start(name, 40), "' has two values for '", printable_start(key, 40), "'"));
    }
  }
  if (program_.names.contains("varargs")) scope.set("varargs", items_value(Kind::tuple, std::move(more)));
  if (program_.names.contains("kwargs")) scope.set("kwargs", items_value(Kind::dict, std::move(named)));
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    if (i < arguments.positional.size()) {
      scope.set(parameter.name, arguments.positional[i]);
      continue;
    }
    const auto given = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& one) { return one.first == parameter.name; });
    if (given != arguments.named.end()) {
      scope.set(parameter.name, given->second);
    } else {
      scope.set(parameter.name, parameter.initial ? evaluate(*parameter.initial, scope)
                                                  : undefined_value("'" + printable_start(parameter.name) + "'"));
    }
  }
  std::string text;
  execute(definition.body, scope, text);
  return text_value(std::move(text));
}

Value Run::call_function(const std::string& name, const Arguments& arguments) {
  if (name == "raise_exception") {
    const auto bound = bind("the function 'raise_exception'", arguments, {"message"});
    const std::string message = bound[0] ? to_text(*bound[0], budget_) : "";
    throw Fault(cat("the template refuses the conversation: ", printable_start(message, 400)));
  }
  if (name == "strftime_now") return now_as(arguments);
  if (name == "range") {
    const auto bound = bind("the function 'range'", arguments, {"start", "stop", "step"});
    const auto number = [&](const std::optional<Value>& value, int64_t none) {
      if (!value) return none;
      if (!value->is_whole()) throw Fault(cat("the function 'range' needs whole numbers, not ", type_name(*value)));
      return value->as_whole();
    };
    if (!bound[0]) throw Fault("the function 'range' needs a number");
    const int64_t begin = bound[1] ? number(bound[0], 0) : 0,
                  end = bound[1] ? number(bound[1], 0) : number(bound[0], 0);
    const int64_t step = number(bound[2], 1);
    if (step == 0) throw Fault("the function 'range' has the step 0");
    Values items;
    for (int64_t at = begin; step > 0 ? at < end : at > end;) {
      if (static_cast<int64_t>(items.size()) >= kMostRange)
        throw Fault(cat("a range has more than ", kMostRange, " numbers"));
      items.push_back(whole_value(at));
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    budget_.spend_items(items.size());
    return items_value(Kind::view, std::move(items), "range");
  }
  // namespace and dict: members of a dict or of pairs, then those with names.
  Values items;
  if (arguments.positional.size() > 1) throw Fault(cat("the function '", name, "' takes one dict"));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::dict)) {
      items = from.items();
      budget_.spend_items(items.size());
    } else {
      for (const Value& pair : elements(from, budget_)) {
        const Values both = elements(pair, budget_);
        if (both.size() != 2) throw Fault(cat("the function '", name, "' needs pairs of a key and a value"));
        put(items, both[0], both[1], budget_);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) put(items, text_value(key), value, budget_);
  if (name == "dict") return items_value(Kind::dict, std::move(items));
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!items[i].is(Kind::text)) throw Fault("a member of a namespace needs a name");
    if (items[i].text().starts_with("_")) throw Fault("a member of a namespace cannot begin with '_'");
  }
  budget_.spend(4);
  auto space = std::make_unique<Space>();
  space->items = std::move(items);
  objects_.push_back(std::move(space));
  return object_value(Kind::space, objects_.back().get());
}

Value Run::now_as(const Arguments& arguments) {
  const auto bound = bind("the function 'strftime_now'", arguments, {"format"});
  if (!bound[0] || !bound[0]->is(Kind::text)) throw Fault("the function 'strftime_now' needs a format");
  const std::string& format = bound[0]->text();
  if (format.size() > 256 || format.find('\0') != std::string::npos) {
    throw Fault("the format of 'strftime_now' is longer than 256 bytes, or holds a null character");
  }
  // Others differ between systems.
  constexpr std::string_view kKnown = "aAbBcdHIjmMpSUwWxXyYZzF%DeTR";
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    ++i;
    if (i < format.size() && format[i] == '-') ++i;  // without a leading zero
    if (i >= format.size() || kKnown.find(format[i]) == std::string_view::npos) {
      const std::string shown = i < format.size() ? printable(format.substr(i, 1)) : "";
      throw Fault(cat("the format of 'strftime_now' has %", shown, ", which is not supported"));
    }
  }
  std::tm when{};
  if (options_.year == 0) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &when);
  } else {
    when.tm_year = options_.year - 1900;
    when.tm_mon = options_.month - 1;
    when.tm_mday = options_.day;
    when.tm_isdst = -1;
    std::mktime(&when);  // the day of the week and of the year
  }
  // Names of days and months would follow the locale; the program never leaves "C".
  std::string out(4096, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &when));
  return text_value(std::move(out));
}

}  // namespace hrm::jinja
