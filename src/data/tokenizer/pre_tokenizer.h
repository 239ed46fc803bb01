#pragma once
// Splits text into words: the steps of a tokenizer.json's pre_tokenizer.

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex_splitter.h"
#include "data/tokenizer/word_scanner.h"
#include "hrm/base/error.h"
#include "hrm/formats/tokenizer_json.h"

namespace hrm::data {

class PreTokenizer {
 public:
  // Throws Error(code) for an unsupported pattern. `only_regex` disables the hand-written scanners, for tests.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& origin, ExitCode code,
               bool only_regex = false);

  // For one thread at a time. The PreTokenizer must outlive it.
  class Worker {
   public:
    explicit Worker(const PreTokenizer& pre_tokenizer);

    // Calls emit(word, readable) for the non-empty words of a text in order. Bytes up to `readable` may be read.
    // `leads`: the text begins the encoded text. Throws Error(data) if a pattern search takes too long.
    template <class Emit>
    void words(std::string_view text, Emit&& emit, bool leads = true) {
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
      run_steps(text, leads);
      for (const Piece& word : pieces_) emit(word.text, word.text.data() + word.text.size());
      pieces_.clear();
      made_.clear();
    }

   private:
    struct Piece {
      std::string_view text;
      bool leads;
    };
    struct Span {
      size_t begin, end;
      bool match;
    };

    void run_steps(std::string_view text, bool leads);
    void scan(const Piece& piece, WordScanner scanner);
    void find_spans(size_t step, std::string_view text);
    void find_literal(std::string_view pattern, std::string_view text);
    void find_words(std::string_view text);
    void find_characters(uint8_t classes, std::string_view text);
    void join_spans(SplitBehavior behavior);
    void put_metaspaces(const PreTokenizerStep& from);

    const PreTokenizer& pre_tokenizer_;
    std::vector<std::optional<RegexSplitter::Matcher>> matchers_;  // by step
    std::vector<Piece> pieces_, next_;
    std::deque<std::string> made_;  // pieces that are not views of the text
    std::vector<Span> spans_;
    std::vector<RegexSplitter::Match> matches_;
  };

 private:
  struct Step {
    PreTokenizerStep from;
    WordScanner scanner = nullptr;
    std::optional<RegexSplitter> splitter;
    bool cuts = true;       // cuts at the matches of `from`
    bool as_bytes = false;  // converts pieces to characters of GPT-2's alphabet
  };
  std::vector<Step> steps_;             // steps that have an effect
  WordScanner only_scanner_ = nullptr;  // set if this scanner is the only step
};

}  // namespace hrm::data
