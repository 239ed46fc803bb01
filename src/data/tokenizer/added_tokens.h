#pragma once
// Finds added tokens in the text itself; at each place the longest one matches.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/normalizer.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class AddedTokenFinder {
 public:
  // Uses the tokens with this `normalized` flag. Tokens that are searched in normalized text are normalized themselves.
  // `tokens` must outlive this object.
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized, const Normalizer& normalizer);

  // Calls on_text(part) and on_token(id) for the parts of a text in order; text parts are not empty. lstrip and rstrip
  // tokens include the white space next to them. A single_word token matches only without a letter, digit, mark or
  // underscore next to it.
  template <class OnText, class OnToken>
  void split(std::string_view text, OnText&& on_text, OnToken&& on_token) const {
    size_t begin = 0;  // beginning of the text not yet reported
    for (size_t at = 0; (at = next_candidate(text, at)) < text.size();) {
      const auto [token, length] = longest(text, at);
      if (token == nullptr) {
        ++at;
        continue;
      }
      const size_t stop = at + length;
      if (!token->single_word || stands_alone(text, at, stop)) {
        const size_t from = token->lstrip ? std::max(space_before(text, at), begin) : at;
        if (begin < from) on_text(text.substr(begin, from - begin));
        on_token(token->id);
        begin = token->rstrip ? space_after(text, stop) : stop;
      }
      at = stop;
    }
    if (begin < text.size()) on_text(text.substr(begin));
  }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int32_t>> next;
    const AddedToken* token = nullptr;
  };

  size_t next_candidate(std::string_view text, size_t at) const;
  std::pair<const AddedToken*, size_t> longest(std::string_view text, size_t at) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end);
  static size_t space_before(std::string_view text, size_t end);
  static size_t space_after(std::string_view text, size_t begin);

  std::vector<Node> nodes_;         // a byte trie; the first node is its root
  std::array<bool, 256> begins_{};  // whether a token begins with this byte
  int only_ = -1;                   // the first byte of all tokens, if they share it
  bool empty_ = true;
};

}  // namespace hrm::data
