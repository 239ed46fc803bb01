#include "hrm/config/print.h"

#include <algorithm>

#include "hrm/base/error.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"

namespace hrm::config {
namespace {

// `text` in lines of at most `width` characters, each after `indent` spaces.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out, line;
  const auto flush = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + "\n";
    line.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  flush();
  return out;
}

// Wide enough for every key.
size_t key_width() {
  size_t width = 0;
  for (const std::string& key : keys()) width = std::max(width, key.size());
  return width;
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

}  // namespace

std::string describe_fields() {
  const Config standard;
  const size_t width = key_width();
  std::string out, section = "?";
  for (const Field& field : fields()) {
    if (field.section != section) {
      section = field.section;
      for (const Section& s : sections()) {
        if (s.name == section) out += cat("\n", s.name, ": ", s.help, "\n");
      }
    }
    out += cat("  ", padded(field.key, width), " ", describe_rule(field.rule),
               field.unit.empty() ? "" : cat(" (", field.unit, ")"), "; default ", to_text(field.get(standard)), "\n");
    out += wrapped(field.help + defaults_of_tasks(field.key), width + 3, 120);
  }
  return out;
}

std::string values_with_origins(const LoadedConfig& loaded) {
  const size_t width = key_width();
  size_t longest = 0;
  std::vector<std::string> left;
  for (const Field& field : fields()) {
    left.push_back(cat(padded(field.key, width), " = ", safe_json(to_text(field.get(loaded.config)))));
    // One long path must not push the origins of all others off the screen.
    if (left.back().size() <= width + 40) longest = std::max(longest, left.back().size());
  }
  std::string out;
  for (size_t i = 0; i < left.size(); ++i) {
    out += cat(padded(left[i], longest), "   ", loaded.origin(fields()[i].key).text(), "\n");
  }
  return out;
}

}  // namespace hrm::config
