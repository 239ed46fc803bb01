#include "hrm/data/bpe_training.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <thread>
#include <unordered_map>

#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/word_scanner.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/formats/byte_level.h"

namespace hrm::data {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr size_t kLongestToken = 2048;  // bytes; as text it may be twice as long, which is the limit of tokenizer.json
constexpr int32_t kMostTokens = 1 << 20;

std::vector<PreTokenizerStep> steps_of(const std::string& words) {
  PreTokenizerStep bytes;
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::split;
  if (words == "gpt2") {
    bytes.use_regex = true;
    return {bytes};
  }
  require(words == "qwen3" || words == "llama3", ExitCode::usage, "words are cut as qwen3, llama3 or gpt2, not as '",
          printable_start(words), "'");
  split.pattern = words == "qwen3" ? kQwenPattern : kLlama3Pattern;
  return {split, bytes};
}

// Cuts a text after a non-empty line if the next line begins with a letter. For all patterns this is a word boundary.
// So neither the pieces nor the counts depend on the number of threads.
void cut_pieces(std::string_view text, std::vector<std::string_view>& pieces) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  size_t begin = 0;
  while (text.size() - begin > kPiece) {
    size_t end = begin + kPiece;
    for (; (end = text.find('\n', end)) != text.npos; ++end) {
      if (end + 1 < text.size() && is_letter(text[end + 1]) && text[end - 1] > ' ') break;
    }
    if (end == text.npos) break;
    pieces.push_back(text.substr(begin, end + 1 - begin));
    begin = end + 1;
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
}

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using WordCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;

void count_words(std::string_view piece, bool nfc, PreTokenizer::Worker& worker, std::string& normalized,
                 WordCounts& counts) {
  if (nfc && normalize_nfc(piece, normalized)) piece = normalized;
  worker.words(piece, [&](std::string_view word, const char*) {
    if (const auto found = counts.find(word); found != counts.end()) {
      ++found->second;
    } else {
      counts.emplace(word, 1);
    }
  });
}

// Sorted by their bytes.
std::map<std::string, int64_t> count_all(const std::vector<std::string_view>& pieces, const BpeTrainingOptions& options,
                                         const PreTokenizer& pre_tokenizer) {
  int64_t total = 0;
  for (const std::string_view piece : pieces) total += static_cast<int64_t>(piece.size());
  std::atomic<size_t> next{0};
  std::atomic<int64_t> done{0};
  std::mutex mutex;
  std::map<std::string, int64_t> all;
  std::exception_ptr failure;
  const auto work = [&](bool reports) {
    try {
      PreTokenizer::Worker worker(pre_tokenizer);
      std::string normalized;
      WordCounts counts;
      for (size_t i = 0; (i = next.fetch_add(1)) < pieces.size();) {
        count_words(pieces[i], options.nfc, worker, normalized, counts);
        done += static_cast<int64_t>(pieces[i].size());
        if (reports && options.progress) options.progress({"counting words", done, total});
      }
      const std::lock_guard lock(mutex);
      for (const auto& [word, count] : counts) all[word] += count;
    } catch (...) {
      next = pieces.size();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> pool;
  for (int i = 1; i < options.threads; ++i) pool.emplace_back(work, false);
  work(true);
  pool.clear();
  if (failure) std::rethrow_exception(failure);
  return all;
}

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

// The words as symbols, with the count and places of each adjacent pair.
class Merger {
 public:
  Merger(const std::map<std::string, int64_t>& words, const std::array<int32_t, 256>& ids) {
    for (const auto& [bytes, count] : words) {
      const auto word = static_cast<uint32_t>(words_.size());
      words_.push_back({symbols_.size(), bytes.size(), count});
      for (const char byte : bytes) symbols_.push_back(ids[static_cast<unsigned char>(byte)]);
      for (size_t i = 1; i < bytes.size(); ++i) {
        Pair& pair = pairs_[key_of(symbols_[words_[word].begin + i - 1], symbols_[words_[word].begin + i])];
        pair.count += count;
        if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
      }
    }
    for (const auto& [key, pair] : pairs_) heap_.push({pair.count, key});
  }

  struct Best {
    int64_t count = 0;  // 0: no pair left
    int32_t left = 0, right = 0;
  };
  // The most frequent pair, the first among equals; it is not returned again.
  Best next() {
    while (!heap_.empty()) {
      const Entry top = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(top.key);
      if (found == pairs_.end() || found->second.taken || found->second.count == 0) continue;
      if (found->second.count != top.count) {
        heap_.push({found->second.count, top.key});
        continue;
      }
      found->second.taken = true;
      return {top.count, static_cast<int32_t>(top.key >> 32), static_cast<int32_t>(top.key)};
    }
    return {};
  }

  void merge(int32_t left, int32_t right, int32_t made) {
    std::vector<uint32_t> words;
    std::swap(words, pairs_[key_of(left, right)].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    grown_.clear();
    for (const uint32_t word : words) merge_in(word, left, right, made);
    for (const uint64_t key : grown_) {
      Pair& pair = pairs_[key];
      pair.grown = false;
      heap_.push({pair.count, key});
    }
  }

 private:
  struct Word {
    size_t begin, size;  // in symbols_
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    bool taken = false;
    bool grown = false;           // gained occurrences in the current merge
    std::vector<uint32_t> words;  // that contain the pair, or did
  };
  struct Entry {
    int64_t count;  // when it was pushed; a pair that has become more frequent has two entries
    uint64_t key;

    bool operator<(const Entry& other) const { return count != other.count ? count < other.count : key > other.key; }
  };

  void merge_in(uint32_t index, int32_t left, int32_t right, int32_t made) {
    Word& word = words_[index];
    int32_t* symbols = symbols_.data() + word.begin;
    old_.assign(symbols, symbols + word.size);
    in_merge_.assign(word.size, false);
    is_made_.clear();
    size_t out = 0;
    for (size_t i = 0; i < old_.size(); ++i) {
      const bool here = i + 1 < old_.size() && old_[i] == left && old_[i + 1] == right;
      symbols[out++] = here ? made : old_[i];
      is_made_.push_back(here);
      if (here) {
        in_merge_[i] = in_merge_[i + 1] = true;
        ++i;
      }
    }
    if (out == old_.size()) return;
    word.size = out;
    // Only pairs that touch the merge change their counts.
    for (size_t i = 1; i < old_.size(); ++i) {
      if (in_merge_[i - 1] || in_merge_[i]) pairs_[key_of(old_[i - 1], old_[i])].count -= word.count;
    }
    for (size_t i = 1; i < out; ++i) {
      if (!is_made_[i - 1] && !is_made_[i]) continue;
      const uint64_t key = key_of(symbols[i - 1], symbols[i]);
      Pair& pair = pairs_[key];
      pair.count += word.count;
      if (pair.words.empty() || pair.words.back() != index) pair.words.push_back(index);
      if (!pair.grown) grown_.push_back(key);
      pair.grown = true;
    }
  }

  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Entry> heap_;
  std::vector<uint64_t> grown_;
  std::vector<int32_t> old_;
  std::vector<bool> in_merge_, is_made_;
};

void check_training_options(const BpeTrainingOptions& options) {
  const auto& special = options.special_tokens;
  require(options.threads >= 1 && options.threads <= 1024, ExitCode::usage, "a tokenizer cannot be trained with ",
          options.threads, " threads; use 1 to 1024");
  require(options.min_frequency >= 1, ExitCode::usage, "a pair cannot be required to stand ", options.min_frequency,
          " times; the least is 1");
  require(special.size() <= 4096, ExitCode::usage, special.size(), " special tokens are too many; at most 4096");
  const auto least = static_cast<int64_t>(256 + special.size());
  require(options.vocab_size >= least && options.vocab_size <= kMostTokens, ExitCode::usage, "a vocabulary of ",
          options.vocab_size, " tokens cannot be made: 256 bytes and ", special.size(), " special tokens need ", least,
          ", and at most ", kMostTokens, " are possible");
  std::set<std::string> seen;
  for (const std::string& token : special) {
    require(!token.empty() && token.size() <= kLongestToken && is_utf8(token), ExitCode::usage, "the special token '",
            printable_start(token), "' is not 1 to ", kLongestToken, " bytes of UTF-8");
    require(seen.insert(token).second, ExitCode::usage, "the special token '", printable_start(token),
            "' was given twice");
    const auto bytes = byte_level_bytes(token);
    require(!bytes || bytes->size() > 1, ExitCode::usage, "the special token '", printable_start(token),
            "' is that of a byte; use a longer one");
  }
}

}  // namespace

TokenizerJson train_bpe(std::span<const std::string_view> texts, const BpeTrainingOptions& options) {
  check_training_options(options);
  TokenizerJson result;
  if (options.nfc) result.normalizers.emplace_back();
  result.pre_tokenizer = steps_of(options.words);
  const PreTokenizer pre_tokenizer(result.pre_tokenizer, "the pattern of words", ExitCode::usage);
  std::vector<std::string_view> pieces;
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t valid = utf8_prefix(texts[i]);
    require(valid == texts[i].size(), ExitCode::data, "text ", i, " is not UTF-8 at byte ", valid, " of ",
            texts[i].size());
    cut_pieces(texts[i], pieces);
  }

  std::vector<std::string> tokens;  // as bytes, by id
  std::unordered_map<std::string, int32_t> ids;
  std::array<int32_t, 256> byte_ids{};
  std::vector<int> bytes(256);
  for (int byte = 0; byte < 256; ++byte) bytes[byte] = byte;
  std::sort(bytes.begin(), bytes.end(), [](int a, int b) { return kByteLevelCharacters[a] < kByteLevelCharacters[b]; });
  const auto add = [&](std::string token) {
    const auto id = static_cast<int32_t>(tokens.size());
    ids.emplace(token, id);
    tokens.push_back(std::move(token));
    return id;
  };
  for (const int byte : bytes) byte_ids[byte] = add(std::string(1, static_cast<char>(byte)));

  const std::set<std::string> special(options.special_tokens.begin(), options.special_tokens.end());
  const size_t wanted = static_cast<size_t>(options.vocab_size) - special.size();
  Merger merger(count_all(pieces, options, pre_tokenizer), byte_ids);
  while (tokens.size() < wanted) {
    const Merger::Best best = merger.next();
    if (best.count < options.min_frequency) break;
    std::string token = tokens[best.left] + tokens[best.right];
    if (token.size() > kLongestToken || special.contains(byte_level_text(token))) continue;
    // Two merges may give the same token, e.g. a + aa and aa + a.
    const auto known = ids.find(token);
    const int32_t made = known != ids.end() ? known->second : add(std::move(token));
    result.merges.emplace_back(best.left, best.right);
    merger.merge(best.left, best.right, made);
    if (options.progress && tokens.size() % 256 == 0) {
      options.progress({"merging", static_cast<int64_t>(tokens.size()), static_cast<int64_t>(wanted)});
    }
  }
  for (size_t id = 0; id < tokens.size(); ++id) {
    result.vocabulary.push_back({byte_level_text(tokens[id]), static_cast<int32_t>(id)});
  }
  for (const std::string& token : options.special_tokens) {
    AddedToken added;
    added.content = token;
    added.id = static_cast<int32_t>(tokens.size() + result.added_tokens.size());
    added.special = true;
    result.added_tokens.push_back(std::move(added));
  }
  return result;
}

}  // namespace hrm::data
