#pragma once
// Byte-pair encoding of one word (Sennrich et al., 2016, arXiv 1508.07909), over bytes as in GPT-2 or over characters
// as in SentencePiece. While a pair of neighbours can be merged, the pair that was learned first is, the leftmost of
// equal ones.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

// The merges of a tokenizer; read by all threads.
class BpeModel {
 public:
  // `json` must outlive this object.
  explicit BpeModel(const TokenizerJson& json);

  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;  // place in the list of merges
    int32_t id = 0;           // of what the pair becomes
  };
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    for (size_t at = (key * kMixer) >> shift_;; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].merge.rank == kNoRank) return {};
    }
  }

  // Appends the tokens of a word's bytes or characters, those without one as TokenizerJson says. What is skipped for
  // want of a token is told once.
  void add_symbols(std::string_view word, std::vector<int32_t>& out) const;
  // The token that a word is as a whole, where the tokenizer ignores merges for those; else -1.
  int32_t whole_word(std::string_view word) const;

 private:
  static constexpr uint64_t kMixer = 0x9E3779B97F4A7C15u;
  struct Slot {
    uint64_t key = UINT64_MAX;
    Merge merge;
  };
  static constexpr char32_t kTableEnd = 0x10000;

  void add_some_unknown(std::string_view word, std::vector<int32_t>& out) const;

  bool byte_level_ = true;
  bool complete_ = true;                              // each byte has a token of its own
  std::vector<int32_t> symbol_ids_;                   // by byte, or by character below kTableEnd; -1: none
  std::unordered_map<char32_t, int32_t> beyond_ids_;  // of characters from kTableEnd on
  std::array<int32_t, 256> fallback_ids_{};           // of <0xXX>, where these are used; -1: none
  int32_t unk_id_ = -1;                               // -1: what is unknown is skipped
  bool fuse_unk_ = false;
  mutable std::atomic<bool> told_ = false;
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t mask_ = 0;
  int shift_ = 0;
  std::unordered_map<std::string, int32_t> words_;  // of bytes or characters; only with ignore_merges
};

// Encodes words and remembers them. Of one thread at a time; the model must outlive it.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model);

  // Appends the ids of a word, which is not empty. Bytes up to `readable` may be read.
  void encode(std::string_view word, const char* readable, std::vector<int32_t>& out);

  // The same without the memory.
  void encode_afresh(std::string_view word, std::vector<int32_t>& out);

 private:
  // A word of up to 15 bytes is its own key, its length in the highest byte. For longer ones: a hash; the length and
  // the place in texts_.
  struct Key {
    uint64_t low = 0, high = 0;
  };
  static constexpr uint32_t kInside = 3;
  struct Slot {
    Key key;
    uint32_t count = 0;                  // of ids; 0: free
    std::array<int32_t, kInside> ids{};  // where they are more: [0] is their place in ids_
  };

  static Key key_of(std::string_view word, const char* readable);
  Slot& slot_of(const Key& key, std::string_view word);
  void remember(Slot& slot, Key key, std::string_view word, const int32_t* ids, size_t count);
  void grow();
  void merge_short(std::vector<int32_t>& out);
  void merge_long(std::vector<int32_t>& out);

  const BpeModel& model_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
  std::string texts_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> symbols_;  // of the word at hand
};

}  // namespace hrm::data
