#pragma once
// Byte-pair encoding of one word (Sennrich et al., 2016, arXiv 1508.07909), over bytes as in GPT-2 or over characters
// as in SentencePiece. It repeatedly merges the adjacent pair that was learned first, the leftmost one if it occurs
// several times.

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

// The merges of a tokenizer, shared by all threads.
class BpeModel {
 public:
  // `json` must outlive this object.
  explicit BpeModel(const TokenizerJson& json);

  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;  // place in the list of merges
    int32_t id = 0;           // id of the merged pair
  };
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    for (size_t at = (key * kMixer) >> shift_;; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].merge.rank == kNoRank) return {};
    }
  }

  // Appends the tokens of a word's bytes or characters. TokenizerJson says what replaces those without a token. If they
  // are skipped, a warning is logged once.
  void add_symbols(std::string_view word, std::vector<int32_t>& out) const;
  // The token equal to the whole word, if the tokenizer ignores merges for such words; otherwise -1.
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
  bool complete_ = true;                              // each byte has its own token
  std::vector<int32_t> symbol_ids_;                   // by byte, or by character below kTableEnd; -1: none
  std::unordered_map<char32_t, int32_t> beyond_ids_;  // by character, from kTableEnd on
  std::array<int32_t, 256> fallback_ids_{};           // ids of <0xXX> by byte, if used; -1: none
  int32_t unk_id_ = -1;                               // -1: unknown symbols are skipped
  bool fuse_unk_ = false;
  mutable std::atomic<bool> told_ = false;
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t mask_ = 0;
  int shift_ = 0;
  std::unordered_map<std::string, int32_t> words_;  // words by their bytes or characters; only with ignore_merges
};

// Encodes words and caches them. For one thread at a time; the model must outlive it.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model);

  // Appends the ids of a word, which must not be empty. Bytes up to `readable` may be read.
  void encode(std::string_view word, const char* readable, std::vector<int32_t>& out);

  // The same without the cache.
  void encode_afresh(std::string_view word, std::vector<int32_t>& out);

 private:
  // The key of a word of up to 15 bytes is the word, with its length in the highest byte. Longer words: a hash, the
  // length and the place in texts_.
  struct Key {
    uint64_t low = 0, high = 0;
  };
  static constexpr uint32_t kInside = 3;
  struct Slot {
    Key key;
    uint32_t count = 0;                  // number of ids; 0: free slot
    std::array<int32_t, kInside> ids{};  // if there are more, [0] is their place in ids_
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
  std::vector<int32_t> symbols_;  // scratch for the current word
};

}  // namespace hrm::data
