#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "data/tokenizer/unicode.h"
#include "hrm/formats/byte_level.h"

namespace hrm::data {

using StepKind = PreTokenizerStep::Kind;

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& origin, ExitCode code,
                           bool only_regex) {
  for (size_t i = 0; i < steps.size(); ++i) {
    Step step;
    step.from = steps[i];
    const bool byte_level = step.from.kind == StepKind::byte_level;
    // BPE starts from bytes; their characters matter only to a later step.
    step.as_bytes = byte_level && i + 1 < steps.size();
    step.cuts = !byte_level || step.from.use_regex;
    if (byte_level) {
      step.from.pattern = kGpt2Pattern;
      step.from.behavior = SplitBehavior::isolated;
    }
    if ((byte_level && step.cuts) || (step.from.kind == StepKind::split && !step.from.literal)) {
      const bool plain = step.from.behavior == SplitBehavior::isolated;
      if (!only_regex && plain) step.scanner = find_word_scanner(step.from.pattern);
      if (step.scanner == nullptr) step.splitter.emplace(step.from.pattern, origin, code);
    }
    if (step.cuts || step.as_bytes || step.from.add_prefix_space) steps_.push_back(std::move(step));
  }
  const bool only = steps_.size() == 1 && !steps_[0].from.add_prefix_space && !steps_[0].as_bytes;
  if (only) only_scanner_ = steps_[0].scanner;
}

PreTokenizer::Worker::Worker(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {
  for (const Step& step : pre_tokenizer.steps_) {
    matchers_.emplace_back();
    if (step.splitter) matchers_.back().emplace(*step.splitter);
  }
}

void PreTokenizer::Worker::scan(const Piece& piece, WordScanner scanner) {
  const char *const begin = piece.text.data(), *const end = begin + piece.text.size();
  for (const char* at = begin; at < end;) {
    const char* stop = scanner(at, end);
    next_.push_back({{at, static_cast<size_t>(stop - at)}, piece.leads && at == begin});
    at = stop;
  }
}

void PreTokenizer::Worker::find_literal(std::string_view pattern, std::string_view text) {
  size_t last = 0;
  for (size_t at; (at = text.find(pattern, last)) != text.npos; last = at + pattern.size()) {
    if (last < at) spans_.push_back({last, at, false});
    spans_.push_back({at, at + pattern.size(), true});
  }
  if (last < text.size()) spans_.push_back({last, text.size(), false});
}

// Each character in one of the classes is a match.
void PreTokenizer::Worker::find_characters(uint8_t classes, std::string_view text) {
  const UnicodeTable& table = UnicodeTable::get();
  size_t last = 0;
  for (size_t at = 0; at < text.size();) {
    const Character c = character_at(text.data() + at);
    if ((table.classes(c.code) & classes) != 0) {
      if (last < at) spans_.push_back({last, at, false});
      last = at + c.bytes;
      spans_.push_back({at, last, true});
    }
    at += c.bytes;
  }
  if (last < text.size()) spans_.push_back({last, text.size(), false});
}

// White space matches; runs of word characters and runs of other characters stay separate.
void PreTokenizer::Worker::find_words(std::string_view text) {
  const UnicodeTable& table = UnicodeTable::get();
  const auto kind_at = [&](size_t at, size_t& next) {
    const Character c = character_at(text.data() + at);
    next = at + c.bytes;
    const uint8_t classes = table.classes(c.code);
    return (classes & kSpace) != 0 ? 0 : (classes & kWord) != 0 ? 1 : 2;
  };
  for (size_t at = 0, next = 0; at < text.size();) {
    const int kind = kind_at(at, next);
    size_t end = next;
    while (end < text.size() && kind_at(end, next) == kind) end = next;
    spans_.push_back({at, end, kind == 0});
    at = end;
  }
}

void PreTokenizer::Worker::find_spans(size_t index, std::string_view text) {
  const PreTokenizerStep& from = pre_tokenizer_.steps_[index].from;
  spans_.clear();
  switch (from.kind) {
    case StepKind::digits:
      return find_characters(kNumber, text);
    case StepKind::punctuation:
      return find_characters(kPunctuation, text);
    case StepKind::space:
      return find_characters(kSpace, text);
    case StepKind::whitespace:
      return find_words(text);
    case StepKind::metaspace:
      return find_literal(from.replacement, text);
    case StepKind::split:
    case StepKind::byte_level:
      break;
  }
  if (!matchers_[index]) {
    find_literal(from.pattern, text);
  } else {
    matches_.clear();
    matchers_[index]->find(text, matches_);
    size_t last = 0;
    for (const RegexSplitter::Match& match : matches_) {
      if (last != match.begin) spans_.push_back({last, match.begin, false});
      spans_.push_back({match.begin, match.end, true});
      last = match.end;
    }
    if (last != text.size()) spans_.push_back({last, text.size(), false});
  }
  if (from.invert) {
    for (Span& span : spans_) span.match = !span.match;
  }
}

// Joins spans like the library, including its treatment of the first span of a text.
void PreTokenizer::Worker::join_spans(SplitBehavior behavior) {
  const auto keep = [&](auto&& joins, bool backwards) {
    std::vector<Span> kept;
    bool before = false;  // whether the previous span was a match
    for (size_t i = 0; i < spans_.size(); ++i) {
      const Span& span = spans_[backwards ? spans_.size() - 1 - i : i];
      if (!kept.empty() && joins(span.match, before)) {
        (backwards ? kept.back().begin : kept.back().end) = backwards ? span.begin : span.end;
      } else {
        kept.push_back(span);
      }
      before = span.match;
    }
    if (backwards) std::reverse(kept.begin(), kept.end());
    spans_ = std::move(kept);
  };
  const auto merges = [](bool match, bool before) { return match && !before; };
  switch (behavior) {
    case SplitBehavior::removed:
      std::erase_if(spans_, [](const Span& span) { return span.match; });
      break;
    case SplitBehavior::contiguous:
      return keep([](bool match, bool before) { return match == before; }, /*backwards=*/false);
    case SplitBehavior::merged_with_previous:
      return keep(merges, /*backwards=*/false);
    case SplitBehavior::merged_with_next:
      return keep(merges, /*backwards=*/true);
    case SplitBehavior::isolated:
      break;
  }
}

void PreTokenizer::Worker::put_metaspaces(const PreTokenizerStep& from) {
  for (Piece& piece : pieces_) {
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += from.replacement;
      } else {
        text += c;
      }
    }
    const bool wanted = from.scheme == PrependScheme::always || (from.scheme == PrependScheme::first && piece.leads);
    if (wanted && !text.starts_with(from.replacement)) text.insert(0, from.replacement);
    piece.text = made_.emplace_back(std::move(text));
  }
}

void PreTokenizer::Worker::run_steps(std::string_view text, bool leads) {
  pieces_.assign(1, {text, leads});
  made_.clear();
  bool as_bytes = false;
  for (size_t i = 0; i < pre_tokenizer_.steps_.size(); ++i) {
    const Step& step = pre_tokenizer_.steps_[i];
    const PreTokenizerStep& from = step.from;
    if (from.add_prefix_space) {
      for (Piece& piece : pieces_) {
        if (!piece.text.starts_with(' ')) piece.text = made_.emplace_back(cat(' ', piece.text));
      }
    }
    if (from.kind == StepKind::metaspace) put_metaspaces(from);
    if (step.cuts && (from.kind != StepKind::metaspace || from.cuts)) {
      const SplitBehavior behavior = from.kind == StepKind::metaspace    ? SplitBehavior::merged_with_next
                                     : from.kind == StepKind::whitespace ? SplitBehavior::removed
                                                                         : from.behavior;
      next_.clear();
      for (const Piece& piece : pieces_) {
        if (step.scanner != nullptr) {
          scan(piece, step.scanner);
          continue;
        }
        find_spans(i, piece.text);
        join_spans(behavior);
        for (const Span& span : spans_) {
          if (span.begin == span.end) continue;
          next_.push_back({piece.text.substr(span.begin, span.end - span.begin), piece.leads && span.begin == 0});
        }
      }
      std::swap(pieces_, next_);
    }
    if (step.as_bytes) {
      for (Piece& piece : pieces_) piece.text = made_.emplace_back(byte_level_text(piece.text));
      as_bytes = true;
    }
  }
  if (!as_bytes) return;
  for (Piece& piece : pieces_) {
    std::optional<std::string> bytes = byte_level_bytes(piece.text);
    require(bytes.has_value(), ExitCode::unexpected, "a word is none of GPT-2's alphabet");
    piece.text = made_.emplace_back(std::move(*bytes));
  }
}

}  // namespace hrm::data
