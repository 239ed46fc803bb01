#pragma once
// The normalizer of a tokenizer.json.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex_splitter.h"
#include "hrm/base/error.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class Normalizer {
 public:
  // Throws Error(code) for an unsupported pattern.
  Normalizer(std::vector<NormalizerStep> steps, const std::string& origin, ExitCode code);

  // For one thread at a time. The Normalizer must outlive it.
  class Worker {
   public:
    explicit Worker(const Normalizer& normalizer);

    // The normalized text: a view of `text`, or of memory that the next call overwrites. `leads`: whether `text` begins
    // the encoded text; set to false if its beginning was removed. Throws Error(data) if a pattern search takes too
    // long, or if the text grows beyond 32 times its size.
    std::string_view normalize(std::string_view text, bool& leads);

   private:
    bool apply(size_t step, std::string_view text, std::string& out, bool& leads);
    bool replace(size_t step, std::string_view text, std::string& out, bool& leads);

    const Normalizer& normalizer_;
    std::vector<std::optional<RegexSplitter::Matcher>> matchers_;  // by step
    std::vector<RegexSplitter::Match> matches_;
    std::string text_, next_;
    size_t size_ = 0;  // size of the current text
  };

 private:
  std::vector<NormalizerStep> steps_;
  std::vector<std::optional<RegexSplitter>> splitters_;  // by step
};

}  // namespace hrm::data
