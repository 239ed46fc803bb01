#pragma once
// Hand-written scanners for the word patterns of GPT-2, Qwen and Llama 3.

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

// The end of the word that begins at `at`, with at < end and well-formed UTF-8. Each of these patterns matches
// everywhere, so the words cover the whole text.
using WordScanner = const char* (*)(const char* at, const char* end);

// The scanner of a pattern; null unless it is one of the patterns above.
WordScanner find_word_scanner(std::string_view pattern);

}  // namespace hrm::data
