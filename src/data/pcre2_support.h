#pragma once
// Shared by the users of PCRE2. Patterns and texts are UTF-8.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <string>

namespace hrm::data {

// Steps of one search. A pattern for words needs about as many as its longest word has characters.
constexpr uint32_t kMostSearchSteps = 10'000'000;

// PCRE2's text for an error code.
inline std::string pcre2_error_text(int error) {
  char text[256] = "unknown error";
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
  return text;
}

}  // namespace hrm::data
