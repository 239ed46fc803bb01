#include "hrm/config/check.h"

#include "hrm/base/text.h"
#include "hrm/config/schema.h"

namespace hrm::config {

std::string Checker::at(const std::string& key) const {
  return cat(key, " = ", safe_json(to_text(find_field(key)->get(loaded_.config))), " (", loaded_.origin(key).text(),
             ")");
}

bool Checker::by_default(const std::string& key) const {
  return loaded_.by_default(key);
}

bool Checker::is_default_value(const std::string& key) const {
  const Field* field = find_field(key);
  return field->get(loaded_.config) == field->get(Config());
}

bool Checker::asked_beside(const std::string& key, const std::string& other) const {
  if (by_default(key) || is_default_value(key)) return false;
  const Origin &own = loaded_.origin(key), &switched = loaded_.origin(other);
  return own.kind == Origin::Kind::command_line || switched.kind == Origin::Kind::standard ||
         (switched.kind == Origin::Kind::file && switched.file == own.file);
}

void Checker::refuse_unread(std::initializer_list<const char*> keys, const char* other, const std::string& why,
                            const std::string& way_out) const {
  for (const char* key : keys) {
    require(!asked_beside(key, other), at(key), " has no effect, for ", at(other), " ", why, "; leave it out",
            way_out.empty() ? "" : ", or ", way_out);
  }
}

std::string nearest_divisors(int64_t n, int64_t wanted) {
  if (wanted >= n) return cat("use at most ", n);
  int64_t below = wanted, above = wanted;
  while (n % below != 0) --below;
  while (n % above != 0) ++above;
  return cat("use ", below, " or ", above);
}

}  // namespace hrm::config
