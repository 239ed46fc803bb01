#pragma once
// Text into words: the steps of a tokenizer.json's pre_tokenizer.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/regex_splitter.h"
#include "data/word_scanner.h"
#include "hrm/base/error.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class PreTokenizer {
 public:
  // Throws Error(code) for a pattern that is not understood. `only_regex`: none of the hand-written scanners, for
  // tests.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& origin, ExitCode code,
               bool only_regex = false);

  // Of one thread at a time. The PreTokenizer must outlive it.
  class Worker {
   public:
    explicit Worker(const PreTokenizer& pre_tokenizer);

    // Calls emit(word, readable) for the words of a text in order, none of them empty. Bytes up to `readable` may be
    // read. Throws Error(data) where the search for a pattern takes too long.
    template <class Emit>
    void words(std::string_view text, Emit&& emit) {
      const char *at = text.data(), *const end = at + text.size();
      if (const WordScanner scanner = pre_tokenizer_.only_scanner_) {
        while (at < end) {
          const char* stop = scanner(at, end);
          emit(std::string_view(at, static_cast<size_t>(stop - at)), end);
          at = stop;
        }
        return;
      }
      if (text.empty()) return;
      run_steps(text);
      for (const std::string_view word : pieces_) emit(word, word.data() + word.size());
      pieces_.clear();
      prefixed_.clear();
    }

   private:
    void run_steps(std::string_view text);

    const PreTokenizer& pre_tokenizer_;
    std::vector<std::optional<RegexSplitter::Matcher>> matchers_;  // by step
    std::vector<std::string_view> pieces_, next_;
    std::deque<std::string> prefixed_;  // pieces that got a space in front
    std::vector<size_t> ends_;
  };

 private:
  struct Step {
    bool prefix_space = false;
    WordScanner scanner = nullptr;
    std::optional<RegexSplitter> splitter;
  };
  std::vector<Step> steps_;             // those that do something
  WordScanner only_scanner_ = nullptr;  // where that is all there is to do
};

}  // namespace hrm::data
