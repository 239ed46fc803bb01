#include "data/tokenizer/normalizer.h"

#include <utility>

#include "data/tokenizer/unicode.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

// A sequence of Replace steps could double a text repeatedly. Real normalizers stay far below this limit.
constexpr size_t kMostGrowth = 32, kMostGrown = size_t{1} << 20;

void check_growth(size_t before, size_t after) {
  require(after <= kMostGrowth * before + kMostGrown, ExitCode::data, "the tokenizer's normalizer makes ",
          human_bytes(after), " and more of a text of ", human_bytes(before));
}

NormalizationForm form_of(NormalizerStep::Kind kind) {
  switch (kind) {
    case NormalizerStep::Kind::nfd:
      return NormalizationForm::nfd;
    case NormalizerStep::Kind::nfkc:
      return NormalizationForm::nfkc;
    case NormalizerStep::Kind::nfkd:
      return NormalizationForm::nfkd;
    default:
      return NormalizationForm::nfc;
  }
}

bool is_white_space_at(std::string_view text, const Character& c) {
  return !text.empty() && (UnicodeTable::get().classes(c.code) & kSpace) != 0;
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizerStep> steps, const std::string& origin, ExitCode code)
    : steps_(std::move(steps)) {
  for (const NormalizerStep& step : steps_) {
    splitters_.emplace_back();
    const bool searches = step.kind == NormalizerStep::Kind::replace && !step.literal;
    if (searches) splitters_.back().emplace(step.pattern, origin, code);
  }
}

Normalizer::Worker::Worker(const Normalizer& normalizer) : normalizer_(normalizer) {
  for (const std::optional<RegexSplitter>& splitter : normalizer.splitters_) {
    matchers_.emplace_back();
    if (splitter) matchers_.back().emplace(*splitter);
  }
}

std::string_view Normalizer::Worker::normalize(std::string_view text, bool& leads) {
  size_ = text.size();
  for (size_t i = 0; i < normalizer_.steps_.size(); ++i) {
    if (!apply(i, text, next_, leads)) continue;
    std::swap(text_, next_);
    text = text_;
    check_growth(size_, text.size());
  }
  return text;
}

// True: `out`, which must not overlap `text`, holds the result. False: the result is `text`.
bool Normalizer::Worker::apply(size_t index, std::string_view text, std::string& out, bool& leads) {
  using Kind = NormalizerStep::Kind;
  const NormalizerStep& step = normalizer_.steps_[index];
  switch (step.kind) {
    case Kind::nfc:
    case Kind::nfd:
    case Kind::nfkc:
    case Kind::nfkd:
      return data::normalize(text, form_of(step.kind), out);
    case Kind::replace:
      return replace(index, text, out, leads);
    case Kind::prepend:
      if (text.empty()) return false;
      out.assign(step.content).append(text);
      return true;
    case Kind::lowercase:
      out.clear();
      for (size_t at = 0; at < text.size();) {
        const Character c = character_at(text.data() + at);
        append_lower_case(c.code, out);
        at += c.bytes;
      }
      return true;
    case Kind::strip_accents:
      out.clear();
      for (size_t at = 0; at < text.size();) {
        const Character c = character_at(text.data() + at);
        const bool mark = (UnicodeTable::get().classes(c.code) & kMark) != 0;
        if (!mark) out.append(text, at, c.bytes);
        if (mark && at == 0) leads = false;
        at += c.bytes;
      }
      return true;
    case Kind::strip:
      break;
  }
  std::string_view rest = text;
  while (step.left && !rest.empty()) {
    const Character c = character_at(rest.data());
    if (!is_white_space_at(rest, c)) break;
    rest.remove_prefix(c.bytes);
    leads = false;
  }
  while (step.right && !rest.empty()) {
    const Character c = character_before(rest.data() + rest.size());
    if (!is_white_space_at(rest, c)) break;
    rest.remove_suffix(c.bytes);
  }
  out = rest;
  return true;
}

bool Normalizer::Worker::replace(size_t index, std::string_view text, std::string& out, bool& leads) {
  const NormalizerStep& step = normalizer_.steps_[index];
  matches_.clear();
  if (matchers_[index]) {
    matchers_[index]->find(text, matches_);
  } else {
    for (size_t at = 0; (at = text.find(step.pattern, at)) != text.npos; at += step.pattern.size()) {
      matches_.push_back({at, at + step.pattern.size()});
    }
  }
  // The library does not search an empty text.
  if (matches_.empty() || text.empty()) return false;
  if (matches_[0].begin == 0 && matches_[0].end > 0 && step.content.empty()) leads = false;
  check_growth(size_, matches_.size() * step.content.size());
  out.clear();
  size_t last = 0;
  for (const RegexSplitter::Match& match : matches_) {
    out.append(text, last, match.begin - last).append(step.content);
    last = match.end;
  }
  out.append(text, last);
  return true;
}

}  // namespace hrm::data
