#include "data/pre_tokenizer.h"

namespace hrm::data {

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& origin, ExitCode code,
                           bool only_regex) {
  for (const PreTokenizerStep& from : steps) {
    const bool byte_level = from.kind == PreTokenizerStep::Kind::byte_level;
    Step step;
    step.prefix_space = byte_level && from.add_prefix_space;
    if (!byte_level || from.use_regex) {
      const std::string_view pattern = byte_level ? kGpt2Pattern : std::string_view(from.pattern);
      if (!only_regex) step.scanner = find_word_scanner(pattern);
      if (step.scanner == nullptr) step.splitter.emplace(pattern, origin, code);
    }
    if (step.prefix_space || step.scanner != nullptr || step.splitter) steps_.push_back(std::move(step));
  }
  if (steps_.size() == 1 && !steps_[0].prefix_space) only_scanner_ = steps_[0].scanner;
}

PreTokenizer::Worker::Worker(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {
  for (const Step& step : pre_tokenizer.steps_) {
    matchers_.emplace_back();
    if (step.splitter) matchers_.back().emplace(*step.splitter);
  }
}

void PreTokenizer::Worker::run_steps(std::string_view text) {
  pieces_.assign(1, text);
  prefixed_.clear();
  for (size_t i = 0; i < pre_tokenizer_.steps_.size(); ++i) {
    const Step& step = pre_tokenizer_.steps_[i];
    if (step.prefix_space) {
      for (std::string_view& piece : pieces_) {
        if (!piece.starts_with(' ')) piece = prefixed_.emplace_back(cat(' ', piece));
      }
    }
    if (step.scanner == nullptr && !step.splitter) continue;
    next_.clear();
    for (const std::string_view piece : pieces_) {
      ends_.clear();
      if (step.splitter) {
        matchers_[i]->split(piece, ends_);
      } else {
        const char *const begin = piece.data(), *const end = begin + piece.size();
        for (const char* at = begin; at < end;) {
          at = step.scanner(at, end);
          ends_.push_back(static_cast<size_t>(at - begin));
        }
      }
      size_t begin = 0;
      for (const size_t end : ends_) {
        next_.push_back(piece.substr(begin, end - begin));
        begin = end;
      }
    }
    std::swap(pieces_, next_);
  }
}

}  // namespace hrm::data
