#pragma once
// What is read of a tokenizer.json at most.

#include <cstddef>
#include <cstdint>

namespace hrm {

constexpr size_t kTokenizerMostBytes = size_t{64} << 20;       // Qwen 3: 11 MB, Gemma 3: 33 MB
constexpr size_t kTokenizerMostTokens = size_t{1} << 20;       // Gemma 3: 262,144
constexpr size_t kTokenizerMostMerges = size_t{1} << 20;       // Gemma 3: 514,906
constexpr size_t kTokenizerMostAddedTokens = size_t{1} << 16;  // Gemma 3: 6,415
constexpr size_t kTokenizerLongestToken = 4096;                // Llama 3: 256
constexpr size_t kTokenizerLongestPattern = size_t{16} << 10;
constexpr size_t kTokenizerMostSteps = 16;
constexpr size_t kTokenizerMostPieces = 64;
constexpr int kTokenizerDepth = 4;  // sequences inside sequences
constexpr int32_t kTokenizerMostId = 1 << 21;

}  // namespace hrm
