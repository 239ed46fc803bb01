#pragma once
// From the texts of tokens to text: the steps of a tokenizer.json's decoder.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class TokenDecoder {
 public:
  explicit TokenDecoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}

  // The bytes that a token alone stands for, a sign for a space being one wherever the token stands.
  std::string bytes_of(const std::string& token) const;

  // A text that comes token by token. The TokenDecoder must outlive it.
  class Stream {
   public:
    explicit Stream(const TokenDecoder& decoder) : decoder_(decoder) { restart(); }

    // Appends to `out` what is certain after one more token: no incomplete character, and single bytes (<0xXX>) only
    // after the last of them, because an invalid one corrupts its neighbours.
    void push(const std::string& token, std::string& out);
    // Appends the rest; the next token begins a new text.
    void finish(std::string& out);

   private:
    struct Pending {
      std::string bytes;  // byte_level, byte_fallback: those that may belong together
      int32_t left = 0;   // strip, behind what joins all: how many may still be taken away
      bool first = true;  // metaspace: no text has come yet
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
