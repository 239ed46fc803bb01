#pragma once
// The patterns by which GPT-2, Qwen and Llama 3 cut text into words, as scanners written by hand.

#include <string_view>

namespace hrm::data {

// GPT-2 (encoder.py), and the ByteLevel pre-tokenizer with use_regex.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Qwen 2 to 3: each digit is a word.
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Llama 3: up to three digits.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Where the word that begins at `at` ends; at < end, well-formed UTF-8. Each of these patterns matches everywhere, so
// the words are the whole text.
using WordScanner = const char* (*)(const char* at, const char* end);

// The scanner of a pattern; null for any other pattern than those above.
WordScanner find_word_scanner(std::string_view pattern);

}  // namespace hrm::data
