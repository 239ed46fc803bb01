#include "hrm/formats/triples.h"

#include <charconv>
#include <optional>

#include "hrm/base/text.h"

namespace hrm {
namespace {

constexpr int64_t kIgnored = -100;

struct Ids {
  std::string_view text;
  uint32_t count = 0;
};

class TripleReader {
 public:
  TripleReader(std::string_view line, const TripleLimits& limits, ExitCode code)
      : line_(line), limits_(limits), code_(code) {}

  Triple read() {
    std::optional<Ids> encoder, decoder, labels;
    expect('{');
    if (!accept('}')) {
      do {
        const std::string_view key = name();
        expect(':');
        std::optional<Ids>* to = key == "encoder_ids" || key == "input_ids" ? &encoder
                                 : key == "decoder_input_ids"               ? &decoder
                                 : key == "labels" || key == "targets"      ? &labels
                                                                            : nullptr;
        if (to == nullptr) {
          fail(code_, "unknown key '", printable_start(key),
               "'; a record has encoder_ids (or input_ids), decoder_input_ids and labels (or targets)");
        }
        require(!to->has_value(), code_, "'", key, "' occurs twice, or beside its other name");
        *to = array(key, to == &labels);
      } while (accept(','));
      expect('}');
    }
    skip_space();
    require(at_ == line_.size(), code_, "text after the record, at character ", at_ + 1);
    require(encoder.has_value(), code_, "encoder_ids (or input_ids) are missing");
    require(labels.has_value(), code_, "labels (or targets) are missing");
    if (!decoder) decoder = encoder;
    require(decoder->count == labels->count, code_, labels->count, " labels for ", decoder->count, " decoder ids");
    return {encoder->text, decoder->text, labels->text, encoder->count, decoder->count};
  }

 private:
  void skip_space() {
    while (at_ < line_.size() && (line_[at_] == ' ' || line_[at_] == '\t' || line_[at_] == '\r')) ++at_;
  }
  bool accept(char c) {
    skip_space();
    if (at_ >= line_.size() || line_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(code_, "expected '", std::string_view(&c, 1), "' at character ", at_ + 1);
  }

  // Keys need no escapes, so one that has some is unknown.
  std::string_view name() {
    expect('"');
    const size_t end = line_.find('"', at_);
    require(end != std::string_view::npos, code_, "an unclosed string at character ", at_);
    const std::string_view text = line_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  Ids array(std::string_view key, bool labels) {
    expect('[');
    const size_t begin = at_;
    uint32_t count = 0;
    require(!accept(']'), code_, key, " is empty");
    do {
      number(key, labels);
      require(++count <= limits_.tokens, code_, key, " has more than ", limits_.tokens, " ids");
    } while (accept(','));
    expect(']');
    return {line_.substr(begin, at_ - 1 - begin), count};
  }

  void number(std::string_view key, bool label) {
    skip_space();
    const char* begin = line_.data() + at_;
    const char* end = line_.data() + line_.size();
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value);
    // JSON has no leading zeros, and an id no fraction.
    const char* digits = begin < end && *begin == '-' ? begin + 1 : begin;
    const bool leading_zero = error == std::errc() && *digits == '0' && stop - digits > 1;
    const bool fraction = stop != end && (*stop == '.' || *stop == 'e' || *stop == 'E');
    require(error == std::errc() && !leading_zero && !fraction, code_, key, " has something else than a whole number",
            " at character ", at_ + 1);
    at_ = static_cast<size_t>(stop - line_.data());
    if (label && value == kIgnored) return;
    require(value >= 0 && value < limits_.vocab_size, code_, "id ", value, " in ", key, " is outside 0 to ",
            limits_.vocab_size - 1, label ? " and not -100" : "");
  }

  std::string_view line_;
  const TripleLimits& limits_;
  ExitCode code_;
  size_t at_ = 0;
};

}  // namespace

Triple parse_triple(std::string_view line, const TripleLimits& limits, ExitCode code) {
  return TripleReader(line, limits, code).read();
}

void read_ids(std::string_view array, int32_t* out, int64_t count) {
  const char* at = array.data();
  const char* end = at + array.size();
  for (int64_t i = 0; i < count; ++i) {
    while (at != end && *at != '-' && (*at < '0' || *at > '9')) ++at;
    at = std::from_chars(at, end, out[i]).ptr;
  }
}

}  // namespace hrm
