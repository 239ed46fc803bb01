#pragma once
// Decodes token texts to text: the steps of a tokenizer.json's decoder.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class TokenDecoder {
 public:
  explicit TokenDecoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  // The bytes of a single token. A replacement sign for a space counts as a space, regardless of the token's place.
  std::string bytes_of(const std::string& token) const;

  // Decodes a text token by token. The TokenDecoder must outlive it.
  class Stream {
   public:
    explicit Stream(const TokenDecoder& decoder) : decoder_(decoder) { restart(); }

    // Appends to `out` the text that is certain after one more token. Incomplete characters wait, and a run of single
    // bytes (<0xXX>) waits for its end, because an invalid one corrupts its neighbours.
    void push(const std::string& token, std::string& out);
    // Appends the rest. The next token begins a new text.
    void finish(std::string& out);

   private:
    struct Pending {
      std::string bytes;  // byte_level, byte_fallback: bytes that may belong together
      int32_t left = 0;   // strip, after all texts were joined: how many more to remove
      bool first = true;  // metaspace: no text so far
    };

    void restart();
    void feed(size_t step, std::string text, std::string& out);
    void give_bytes(size_t step, std::string& out);

    const TokenDecoder& decoder_;
    std::vector<Pending> pending_;  // by step
  };

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace hrm::data
