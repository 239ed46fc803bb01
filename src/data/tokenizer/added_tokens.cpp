#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/tokenizer/unicode.h"

namespace hrm::data {

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer)
    : nodes_(1) {
  Normalizer::Worker worker(normalizer);
  for (const AddedToken& token : tokens) {
    if (token.normalized != normalized) continue;
    bool leads = false;
    const std::string_view content = normalized ? worker.normalize(token.content, leads) : token.content;
    if (content.empty()) continue;  // the normalizer removes the whole token
    size_t at = 0;
    for (const char c : content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto found = std::find_if(nodes_[at].next.begin(), nodes_[at].next.end(),
                                      [&](const auto& edge) { return edge.first == byte; });
      if (found != nodes_[at].next.end()) {
        at = static_cast<size_t>(found->second);
      } else {
        const size_t made = nodes_.size();
        nodes_[at].next.emplace_back(byte, static_cast<int32_t>(made));
        nodes_.emplace_back();
        at = made;
      }
    }
    if (nodes_[at].token == nullptr) nodes_[at].token = &token;
  }
  for (const auto& [byte, node] : nodes_[0].next) begins_[byte] = true;
  empty_ = nodes_[0].next.empty();
  if (nodes_[0].next.size() == 1) only_ = nodes_[0].next[0].first;
}

size_t AddedTokenFinder::next_candidate(std::string_view text, size_t at) const {
  if (empty_ || at >= text.size()) return text.size();
  if (only_ >= 0) {
    const void* found = std::memchr(text.data() + at, only_, text.size() - at);
    return found == nullptr ? text.size() : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  }
  while (at < text.size() && !begins_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

std::pair<const AddedToken*, size_t> AddedTokenFinder::longest(std::string_view text, size_t at) const {
  std::pair<const AddedToken*, size_t> best{nullptr, 0};
  const size_t begin = at;
  for (size_t node = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto& next = nodes_[node].next;
    const auto found = std::find_if(next.begin(), next.end(), [&](const auto& edge) { return edge.first == byte; });
    if (found == next.end()) break;
    node = static_cast<size_t>(found->second);
    ++at;
    if (nodes_[node].token != nullptr) best = {nodes_[node].token, at - begin};
  }
  return best;
}

bool AddedTokenFinder::stands_alone(std::string_view text, size_t begin, size_t end) {
  const UnicodeTable& table = UnicodeTable::get();
  const auto is_word = [&](char32_t c) { return (table.classes(c) & kWord) != 0; };
  return (begin == 0 || !is_word(character_before(text.data() + begin).code)) &&
         (end == text.size() || !is_word(character_at(text.data() + end).code));
}

size_t AddedTokenFinder::space_before(std::string_view text, size_t end) {
  while (end > 0) {
    const Character c = character_before(text.data() + end);
    if ((UnicodeTable::get().classes(c.code) & kSpace) == 0) break;
    end -= c.bytes;
  }
  return end;
}

size_t AddedTokenFinder::space_after(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Character c = character_at(text.data() + begin);
    if ((UnicodeTable::get().classes(c.code) & kSpace) == 0) break;
    begin += c.bytes;
  }
  return begin;
}

}  // namespace hrm::data
