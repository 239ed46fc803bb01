#pragma once
// What a tokenizer.json's normalizer makes of a text.

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
  // Throws Error(code) for a pattern that is not understood.
  Normalizer(std::vector<NormalizerStep> steps, const std::string& origin, ExitCode code);

  // Of one thread at a time. The Normalizer must outlive it.
  class Worker {
   public:
    explicit Worker(const Normalizer& normalizer);

    // The normalized text: a view of `text`, or of memory that the next call writes. `leads`: whether the text stands
    // at the beginning of the one that is encoded; false afterwards where its beginning was taken away. Throws
    // Error(data) where the search for a pattern takes too long, and where the text grows beyond 32 times its size.
    std::string_view normalize(std::string_view text, bool& leads);

   private:
    bool apply(size_t step, std::string_view text, std::string& out, bool& leads);
    bool replace(size_t step, std::string_view text, std::string& out, bool& leads);

    const Normalizer& normalizer_;
    std::vector<std::optional<RegexSplitter::Matcher>> matchers_;  // by step
    std::vector<RegexSplitter::Match> matches_;
    std::string text_, next_;
    size_t size_ = 0;  // of the text at hand
  };

 private:
  std::vector<NormalizerStep> steps_;
  std::vector<std::optional<RegexSplitter>> splitters_;  // by step
};

}  // namespace hrm::data
