#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/byte_level.h"

namespace hrm::data {
namespace {

constexpr size_t kLongestRemembered = 64;  // bytes
constexpr size_t kFewestSlots = size_t{1} << 12, kMostSlots = size_t{1} << 18;
// Up to this many symbols, each merge scans all ranks. Above it, a heap is faster.
constexpr size_t kShort = 48;

uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_of(std::string_view word) {
  uint64_t hash = 0x243F6A8885A308D3u ^ word.size(), eight;
  size_t at = 0;
  for (; at + 8 <= word.size(); at += 8) {
    std::memcpy(&eight, word.data() + at, 8);
    hash = fold(hash ^ eight, 0x9E3779B97F4A7C15u);
  }
  eight = 0;
  std::memcpy(&eight, word.data() + at, word.size() - at);
  return fold(hash ^ eight, 0xC2B2AE3D27D4EB4Fu);
}

}  // namespace

BpeModel::BpeModel(const TokenizerJson& json) : byte_level_(is_byte_level(json)), fuse_unk_(json.fuse_unk) {
  std::unordered_map<std::string_view, int32_t> ids;
  std::unordered_map<int32_t, std::string_view> tokens;
  for (const VocabularyEntry& entry : json.vocabulary) {
    ids.emplace(entry.token, entry.id);
    tokens.emplace(entry.id, entry.token);
    if (!json.ignore_merges) continue;
    auto word = byte_level_ ? byte_level_bytes(entry.token) : std::optional(entry.token);
    if (word) words_.emplace(std::move(*word), entry.id);
  }
  const auto id_of = [&](std::string_view token) {
    const auto found = ids.find(token);
    return found == ids.end() ? -1 : found->second;
  };
  if (!json.unk_token.empty()) unk_id_ = id_of(json.unk_token);
  for (int byte = 0; byte < 256; ++byte) {
    fallback_ids_[byte] = json.byte_fallback ? id_of(byte_fallback_token(static_cast<unsigned char>(byte))) : -1;
  }
  symbol_ids_.assign(byte_level_ ? 256 : kTableEnd, -1);
  for (int byte = 0; byte_level_ && byte < 256; ++byte) {
    symbol_ids_[byte] = id_of(byte_level_text(std::string(1, static_cast<char>(byte))));
  }
  for (const VocabularyEntry& entry : json.vocabulary) {
    if (byte_level_ || entry.token.size() > 4) continue;
    const Character c = character_at(entry.token.data());
    if (c.bytes != entry.token.size()) continue;
    if (c.code < kTableEnd) {
      symbol_ids_[c.code] = entry.id;
    } else {
      beyond_ids_.emplace(c.code, entry.id);
    }
  }
  complete_ = byte_level_ && std::find(symbol_ids_.begin(), symbol_ids_.end(), -1) == symbol_ids_.end();
  const size_t size = std::bit_ceil(std::max<size_t>(2 * json.merges.size(), 16));
  slots_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  std::string joined;
  for (size_t rank = 0; rank < json.merges.size(); ++rank) {
    const auto [left, right] = json.merges[rank];
    joined.assign(tokens.at(left)).append(tokens.at(right));
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    size_t at = (key * kMixer) >> shift_;
    while (slots_[at].merge.rank != kNoRank) at = (at + 1) & mask_;
    slots_[at] = {key, {static_cast<uint32_t>(rank), ids.at(joined)}};
  }
}

int32_t BpeModel::whole_word(std::string_view word) const {
  if (words_.empty()) return -1;
  const auto found = words_.find(std::string(word));
  return found == words_.end() ? -1 : found->second;
}

void BpeModel::add_symbols(std::string_view word, std::vector<int32_t>& out) const {
  if (!complete_) return add_some_unknown(word, out);
  for (const char byte : word) out.push_back(symbol_ids_[static_cast<unsigned char>(byte)]);
}

// As in the library, the unknown token is written only when a known symbol follows, or at the end. Fallback bytes found
// meanwhile come before it.
void BpeModel::add_some_unknown(std::string_view word, std::vector<int32_t>& out) const {
  bool waits = false;
  const auto give = [&] {
    if (waits) out.push_back(unk_id_);
    waits = false;
  };
  for (size_t at = 0; at < word.size();) {
    Character c{static_cast<unsigned char>(word[at]), 1};
    if (!byte_level_) c = character_at(word.data() + at);
    int32_t id = -1;
    if (byte_level_ || c.code < kTableEnd) {
      id = symbol_ids_[c.code];
    } else if (const auto found = beyond_ids_.find(c.code); found != beyond_ids_.end()) {
      id = found->second;
    }
    const std::string_view symbol = word.substr(at, c.bytes);
    at += c.bytes;
    if (id >= 0) {
      give();
      out.push_back(id);
      continue;
    }
    // With a byte-level alphabet, the library uses the UTF-8 bytes of the character that represents the byte.
    const std::string text = byte_level_ ? byte_level_text(symbol) : std::string(symbol);
    const auto fallback = [&](char byte) { return fallback_ids_[static_cast<unsigned char>(byte)]; };
    if (std::all_of(text.begin(), text.end(), [&](char byte) { return fallback(byte) >= 0; })) {
      for (const char byte : text) out.push_back(fallback(byte));
    } else if (unk_id_ >= 0) {
      if (!fuse_unk_) give();
      waits = true;
    } else if (!told_.exchange(true)) {
      log::warn("the tokenizer has no token for ", byte_level_ ? "the byte " : "the character ",
                byte_level_ ? std::to_string(c.code) : cat("'", printable(symbol), "'"),
                ": it is left out of texts, and so are others without a token");
    }
  }
  give();
}

BpeEncoder::BpeEncoder(const BpeModel& model) : model_(model), slots_(kFewestSlots) {}

BpeEncoder::Key BpeEncoder::key_of(std::string_view word, const char* readable) {
  const size_t size = word.size();
  if (size > 15) return {hash_of(word), uint64_t{0x80} << 56 | static_cast<uint64_t>(size) << 32};
  Key key;
  if (readable - word.data() >= 16) {
    std::memcpy(&key.low, word.data(), 8);
    std::memcpy(&key.high, word.data() + 8, 8);
    if (size < 8) key.low &= (uint64_t{1} << (8 * size)) - 1;
    key.high = size <= 8 ? 0 : key.high & ((uint64_t{1} << (8 * (size - 8))) - 1);
  } else {
    std::memcpy(&key.low, word.data(), std::min<size_t>(size, 8));
    if (size > 8) std::memcpy(&key.high, word.data() + 8, size - 8);
  }
  key.high |= static_cast<uint64_t>(size) << 56;
  return key;
}

BpeEncoder::Slot& BpeEncoder::slot_of(const Key& key, std::string_view word) {
  const bool is_long = word.size() > 15;
  const size_t mask = slots_.size() - 1;
  // The word's place in texts_ is not part of its identity.
  const uint64_t high = is_long ? key.high >> 32 : key.high;
  size_t at = fold(key.low ^ 0x9E3779B97F4A7C15u, high ^ 0xC2B2AE3D27D4EB4Fu);
  for (;; ++at) {
    Slot& slot = slots_[at & mask];
    if (slot.count == 0) return slot;
    if (slot.key.low != key.low) continue;
    if (!is_long) {
      if (slot.key.high == high) return slot;
    } else if (slot.key.high >> 32 == high) {
      if (std::memcmp(texts_.data() + static_cast<uint32_t>(slot.key.high), word.data(), word.size()) == 0) return slot;
    }
  }
}

void BpeEncoder::remember(Slot& slot, Key key, std::string_view word, const int32_t* ids, size_t count) {
  slot.key = key;
  slot.count = static_cast<uint32_t>(count);
  if (word.size() > 15) {
    slot.key.high |= texts_.size();
    texts_ += word;
  }
  if (count <= kInside) {
    std::copy(ids, ids + count, slot.ids.begin());
  } else {
    slot.ids[0] = static_cast<int32_t>(ids_.size());
    ids_.insert(ids_.end(), ids, ids + count);
  }
  if (++used_ > slots_.size() / 2) grow();
}

void BpeEncoder::grow() {
  if (slots_.size() == kMostSlots) {
    // Clears the cache; frequent words soon return.
    std::fill(slots_.begin(), slots_.end(), Slot());
    texts_.clear();
    ids_.clear();
    used_ = 0;
    return;
  }
  std::vector<Slot> old(slots_.size() * 2);
  std::swap(old, slots_);
  for (const Slot& slot : old) {
    if (slot.count == 0) continue;
    const bool is_long = slot.key.high >> 63 != 0;
    const size_t size = is_long ? (slot.key.high >> 32) & 0xFF : 1;
    const std::string_view word =
        is_long ? std::string_view(texts_).substr(static_cast<uint32_t>(slot.key.high), size) : std::string_view();
    slot_of(slot.key, word) = slot;
  }
}

void BpeEncoder::encode(std::string_view word, const char* readable, std::vector<int32_t>& out) {
  if (word.size() > kLongestRemembered) return encode_afresh(word, out);
  const Key key = key_of(word, readable);
  Slot& slot = slot_of(key, word);
  if (slot.count == 1) {
    out.push_back(slot.ids[0]);
  } else if (slot.count != 0) {
    const int32_t* ids = slot.count <= kInside ? slot.ids.data() : ids_.data() + slot.ids[0];
    out.insert(out.end(), ids, ids + slot.count);
  } else {
    const size_t before = out.size();
    encode_afresh(word, out);
    if (out.size() == before) return;  // nothing in the word has a token
    remember(slot, key, word, out.data() + before, out.size() - before);
  }
}

void BpeEncoder::encode_afresh(std::string_view word, std::vector<int32_t>& out) {
  if (const int32_t id = model_.whole_word(word); id >= 0) {
    out.push_back(id);
    return;
  }
  symbols_.clear();
  model_.add_symbols(word, symbols_);
  if (symbols_.size() > kShort) {
    merge_long(out);
  } else {
    merge_short(out);
  }
}

void BpeEncoder::merge_short(std::vector<int32_t>& out) {
  size_t count = symbols_.size();
  std::array<BpeModel::Merge, kShort> merges;  // the merge of each symbol with the next one
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = model_.find(symbols_[i], symbols_[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == BpeModel::kNoRank) break;
    symbols_[best] = merges[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols_[i] = symbols_[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best + 1 < count) merges[best] = model_.find(symbols_[best], symbols_[best + 1]);
    if (best > 0) merges[best - 1] = model_.find(symbols_[best - 1], symbols_[best]);
  }
  out.insert(out.end(), symbols_.begin(), symbols_.begin() + static_cast<std::ptrdiff_t>(count));
}

void BpeEncoder::merge_long(std::vector<int32_t>& out) {
  require(symbols_.size() < UINT32_MAX, ExitCode::data, "a word of ", symbols_.size(),
          " symbols is too long for the tokenizer");
  constexpr uint32_t kNone = UINT32_MAX;
  const auto size = static_cast<uint32_t>(symbols_.size());
  // A linked list of symbols by place. A symbol that was merged into its left neighbour has no id.
  struct Symbol {
    int32_t id;
    uint32_t left, right;
  };
  std::vector<Symbol> list(size);
  for (uint32_t i = 0; i < size; ++i) {
    list[i] = {symbols_[i], i == 0 ? kNone : i - 1, i + 1 == size ? kNone : i + 1};
  }
  // Ordered by rank, then by place. Stale entries are detected when they are popped, because a rank identifies its
  // pair.
  std::vector<uint64_t> heap;
  const auto candidate = [&](uint32_t at) {
    const uint32_t rank = model_.find(list[at].id, list[list[at].right].id).rank;
    return rank == BpeModel::kNoRank ? UINT64_MAX : static_cast<uint64_t>(rank) << 32 | at;
  };
  const auto add = [&](uint32_t at) {
    const uint64_t entry = candidate(at);
    if (entry == UINT64_MAX) return;
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i + 1 < size; ++i) {
    const uint64_t entry = candidate(i);
    if (entry != UINT64_MAX) heap.push_back(entry);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(entry);
    Symbol& symbol = list[at];
    if (symbol.id < 0 || symbol.right == kNone) continue;
    const BpeModel::Merge merge = model_.find(symbol.id, list[symbol.right].id);
    if (merge.rank != static_cast<uint32_t>(entry >> 32)) continue;
    Symbol& gone = list[symbol.right];
    symbol.id = merge.id;
    symbol.right = gone.right;
    gone.id = -1;
    if (symbol.right != kNone) {
      list[symbol.right].left = at;
      add(at);
    }
    if (symbol.left != kNone) add(symbol.left);
  }
  for (uint32_t at = 0; at != kNone; at = list[at].right) out.push_back(list[at].id);
}

}  // namespace hrm::data
