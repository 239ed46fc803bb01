#pragma once
// What every target does: give the bytes to a parser and use all of what it returns. Only an hrm::Error with the
// parser's own exit code may come out, with a sentence of one line; anything else ends the process, which libFuzzer
// reports.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "hrm/base/error.h"

namespace hrm::fuzz {

// For what must hold: a parsed value that is not what it must be is a finding, too.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "check failed: %s\n", what);
  std::abort();
}

// Reads every byte, so that AddressSanitizer sees a span that leaves its memory.
inline void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  asm volatile("" : : "r"(sum));  // as if somebody used it
}
inline void touch(std::string_view text) {
  touch(std::as_bytes(std::span(text)));
}

// Runs `parse`; false where it threw an Error with one of these codes.
template <class Parse>
bool parses(std::initializer_list<ExitCode> codes, const Parse& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    const std::string sentence = error.what();
    const bool expected = std::find(codes.begin(), codes.end(), error.code()) != codes.end();
    if (!expected) std::fprintf(stderr, "exit code %d: %s\n", static_cast<int>(error.code()), error.what());
    check(expected, "an exit code of the parser");
    check(!sentence.empty() && sentence.size() < 8192, "a sentence of some length");
    for (const char c : sentence) {
      check(static_cast<unsigned char>(c) >= 0x20 && c != 0x7F, "no control characters in the sentence");
    }
    return false;
  }
}
template <class Parse>
bool parses(ExitCode code, const Parse& parse) {
  return parses({code}, parse);
}

// The input of a target.
inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}
inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace hrm::fuzz
