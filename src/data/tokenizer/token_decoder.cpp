#include "data/tokenizer/token_decoder.h"

#include <utility>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"
#include "hrm/formats/byte_level.h"

namespace hrm::data {
namespace {

using DecoderKind = DecoderStep::Kind;

// A Replace may add at most this many bytes, because several in a row could double the text repeatedly.
constexpr size_t kMostGrownBytes = size_t{64} << 10;

std::string replaced(const std::string& text, const std::string& pattern, std::string_view content) {
  size_t at = text.find(pattern);
  if (at == text.npos) return text;
  std::string out;
  size_t last = 0;
  const size_t most = text.size() + kMostGrownBytes;
  for (; at != text.npos; at = text.find(pattern, last)) {
    out.append(text, last, at - last).append(content);
    require(out.size() <= most, ExitCode::data, "the tokenizer's decoder makes more than ", most,
            " bytes of a text of ", text.size());
    last = at + pattern.size();
  }
  return out.append(text, last);
}

// Removes `sign` from the beginning, up to `most` times. If nothing else is left, returns how many more may be removed,
// otherwise 0.
int32_t strip_signs(std::string& text, const std::string& sign, int32_t most) {
  size_t at = 0;
  for (; most > 0 && text.compare(at, sign.size(), sign) == 0; --most) at += sign.size();
  text.erase(0, at);
  return text.empty() ? most : 0;
}

bool joins_all(const DecoderStep& step) {
  return step.kind == DecoderKind::fuse || step.kind == DecoderKind::byte_level;
}

}  // namespace

std::string TokenDecoder::bytes_of(const std::string& token) const {
  std::string text = token;
  for (const DecoderStep& step : steps_) {
    if (step.kind == DecoderKind::byte_level) return byte_level_bytes(text).value_or(text);
    if (step.kind == DecoderKind::replace) text = replaced(text, step.pattern, step.content);
    if (step.kind == DecoderKind::metaspace) text = replaced(text, step.pattern, " ");
    if (step.kind != DecoderKind::byte_fallback) continue;
    if (const auto byte = byte_fallback_byte(text)) return std::string(1, static_cast<char>(*byte));
  }
  return text;
}

void TokenDecoder::Stream::restart() {
  pending_.assign(decoder_.steps_.size(), Pending());
  for (size_t i = 0; i < pending_.size(); ++i) pending_[i].left = decoder_.steps_[i].count;
}

void TokenDecoder::Stream::push(const std::string& token, std::string& out) {
  feed(0, token, out);
}

void TokenDecoder::Stream::finish(std::string& out) {
  for (size_t i = 0; i < decoder_.steps_.size(); ++i) {
    if (decoder_.steps_[i].kind == DecoderKind::byte_fallback) give_bytes(i, out);
    if (decoder_.steps_[i].kind != DecoderKind::byte_level) continue;
    std::string text;
    append_utf8_lossy(pending_[i].bytes, /*complete=*/true, text);
    feed(i + 1, std::move(text), out);
  }
  restart();
}

// Bytes that form valid UTF-8 become one text. Otherwise each byte becomes one U+FFFD.
void TokenDecoder::Stream::give_bytes(size_t index, std::string& out) {
  std::string bytes;
  std::swap(bytes, pending_[index].bytes);
  if (bytes.empty()) return;
  if (utf8_prefix(bytes) == bytes.size()) return feed(index + 1, std::move(bytes), out);
  for (size_t i = 0; i < bytes.size(); ++i) feed(index + 1, "\uFFFD", out);
}

// Passes on a text that leaves step `index` - 1. If a step has joined all texts, it is the next part of that text.
void TokenDecoder::Stream::feed(size_t index, std::string text, std::string& out) {
  bool joined = false;
  for (size_t i = 0; i < index; ++i) joined = joined || joins_all(decoder_.steps_[i]);
  for (; index < decoder_.steps_.size(); ++index) {
    const DecoderStep& step = decoder_.steps_[index];
    Pending& pending = pending_[index];
    switch (step.kind) {
      case DecoderKind::byte_level: {
        pending.bytes += byte_level_bytes(text).value_or(text);
        text.clear();
        pending.bytes.erase(0, append_utf8_lossy(pending.bytes, /*complete=*/false, text));
        break;
      }
      case DecoderKind::byte_fallback:
        if (const auto byte = byte_fallback_byte(text)) {
          pending.bytes += static_cast<char>(*byte);
          return;
        }
        give_bytes(index, out);
        break;
      case DecoderKind::replace:
        text = replaced(text, step.pattern, step.content);
        break;
      case DecoderKind::metaspace:
        text = replaced(text, step.pattern, step.prepends && pending.first ? "" : " ");
        pending.first = false;
        break;
      case DecoderKind::strip:
        if (joined) {
          pending.left = strip_signs(text, step.content, pending.left);
        } else {
          strip_signs(text, step.content, step.count);
        }
        break;
      case DecoderKind::fuse:
        break;
    }
    joined = joined || joins_all(step);
  }
  out += text;
}

}  // namespace hrm::data
