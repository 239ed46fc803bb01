#include <array>
#include <functional>
#include <utility>

#include "formats/tokenizer_json_node.h"

namespace hrm::internal {
namespace {

constexpr int32_t kMostStripped = 1024;

// Calls `read` for each step of a Sequence, also inside of others; `member` is the name of its list.
void for_each_step(const JsonNode& node, const char* member, const std::function<void(const JsonNode&)>& read,
                   int depth = 0) {
  if (node.type() != "Sequence" || depth == kTokenizerDepth) return read(node);
  node.object({"type", member});
  const JsonNode list = node.at(member);
  for (size_t i = 0, count = list.array(kTokenizerMostSteps); i < count; ++i) {
    for_each_step(list.at(i), member, read, depth + 1);
  }
}

template <class Step>
void add_step(const JsonNode& node, std::vector<Step>& steps, Step step) {
  node.check(steps.size() < kTokenizerMostSteps, "more than ", kTokenizerMostSteps, " steps");
  steps.push_back(std::move(step));
}

// {"Regex": expression} or {"String": text}.
std::pair<std::string, bool> pattern_of(const JsonNode& node) {
  node.object({"Regex", "String"});
  node.check(node.value.size() == 1, "is neither a Regex nor a String");
  const bool literal = node.value.contains("String");
  std::string pattern = node.at(literal ? "String" : "Regex").text(kTokenizerLongestPattern);
  node.check(!pattern.empty(), "is empty");
  return {std::move(pattern), literal};
}

std::string character_of(const JsonNode& node) {
  const std::string& text = node.text(4);
  const auto starts =
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  node.check(starts == 1, "'", printable_start(text), "' is not one character");
  return text;
}

SplitBehavior behavior_of(const JsonNode& node) {
  const std::string& name = node.text(256);
  constexpr std::array<std::pair<const char*, SplitBehavior>, 5> known{
      {{"Isolated", SplitBehavior::isolated},
       {"Removed", SplitBehavior::removed},
       {"MergedWithPrevious", SplitBehavior::merged_with_previous},
       {"MergedWithNext", SplitBehavior::merged_with_next},
       {"Contiguous", SplitBehavior::contiguous}}};
  for (const auto& [text, behavior] : known) {
    if (name == text) return behavior;
  }
  node.refuse("'", printable_start(name),
              "' is not known to this program; it knows Isolated, Removed, MergedWithPrevious, MergedWithNext and "
              "Contiguous");
}

// Files before version 0.15 of the library say `add_prefix_space` where later ones say `prepend_scheme`.
PrependScheme scheme_of(const JsonNode& node) {
  node.object({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  if (!node.has("prepend_scheme")) {
    return node.flag_or("add_prefix_space", true) ? PrependScheme::always : PrependScheme::never;
  }
  const JsonNode scheme = node.at("prepend_scheme");
  const std::string& name = scheme.text(256);
  scheme.check(name == "always" || name == "first" || name == "never", "'", printable_start(name),
               "' is not known to this program; it knows always, first and never");
  node.check(node.flag_or("add_prefix_space", true) || name == "never", "'add_prefix_space' is false, but ",
             "'prepend_scheme' is '", name, "'");
  return name == "always" ? PrependScheme::always : name == "first" ? PrependScheme::first : PrependScheme::never;
}

NormalizerStep normalizer_of(const JsonNode& node) {
  using Kind = NormalizerStep::Kind;
  const std::string type = node.type();
  constexpr std::array<std::pair<const char*, Kind>, 6> plain{{{"NFC", Kind::nfc},
                                                               {"NFD", Kind::nfd},
                                                               {"NFKC", Kind::nfkc},
                                                               {"NFKD", Kind::nfkd},
                                                               {"Lowercase", Kind::lowercase},
                                                               {"StripAccents", Kind::strip_accents}}};
  NormalizerStep step;
  for (const auto& [name, kind] : plain) {
    if (type != name) continue;
    node.object({"type"});
    step.kind = kind;
    return step;
  }
  if (type == "Replace") {
    node.object({"type", "pattern", "content"});
    step.kind = Kind::replace;
    std::tie(step.pattern, step.literal) = pattern_of(node.at("pattern"));
    step.content = node.at("content").text(kTokenizerLongestToken);
  } else if (type == "Prepend") {
    node.object({"type", "prepend"});
    step.kind = Kind::prepend;
    step.content = node.at("prepend").text(kTokenizerLongestToken);
  } else if (type == "Strip") {
    node.object({"type", "strip_left", "strip_right"});
    step.kind = Kind::strip;
    step.left = node.at("strip_left").flag();
    step.right = node.at("strip_right").flag();
  } else {
    node.refuse("the normalizer '", printable_start(type),
                "' is not known to this program; it knows NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Replace, "
                "Prepend and Strip, also in a Sequence");
  }
  return step;
}

PreTokenizerStep pre_tokenizer_of(const JsonNode& node) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = node.type();
  PreTokenizerStep step;
  if (type == "ByteLevel") {
    node.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    step.add_prefix_space = node.at("add_prefix_space").flag();
    step.use_regex = node.flag_or("use_regex", true);
  } else if (type == "Split") {
    node.object({"type", "pattern", "behavior", "invert"});
    step.kind = Kind::split;
    std::tie(step.pattern, step.literal) = pattern_of(node.at("pattern"));
    step.behavior = behavior_of(node.at("behavior"));
    step.invert = node.at("invert").flag();
  } else if (type == "CharDelimiterSplit") {
    node.object({"type", "delimiter"});
    step.kind = Kind::split;
    step.pattern = character_of(node.at("delimiter"));
    step.literal = true;
    step.behavior = SplitBehavior::removed;
  } else if (type == "Digits") {
    node.object({"type", "individual_digits"});
    step.kind = Kind::digits;
    step.behavior = node.at("individual_digits").flag() ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else if (type == "Punctuation") {
    node.object({"type", "behavior"});
    step.kind = Kind::punctuation;
    if (node.has("behavior")) step.behavior = behavior_of(node.at("behavior"));
  } else if (type == "Whitespace") {
    node.object({"type"});
    step.kind = Kind::whitespace;
  } else if (type == "WhitespaceSplit") {
    node.object({"type"});
    step.kind = Kind::space;
    step.behavior = SplitBehavior::removed;
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.scheme = scheme_of(node);
    step.replacement = character_of(node.at("replacement"));
    step.cuts = node.flag_or("split", true);
  } else {
    node.refuse("the pre-tokenizer '", printable_start(type),
                "' is not known to this program; it knows ByteLevel, Split, Digits, Punctuation, Whitespace, "
                "WhitespaceSplit, CharDelimiterSplit and Metaspace, also in a Sequence");
  }
  return step;
}

DecoderStep decoder_of(const JsonNode& node) {
  using Kind = DecoderStep::Kind;
  const std::string type = node.type();
  DecoderStep step;
  if (type == "ByteLevel") {
    node.object({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // none of which a decoder looks at
  } else if (type == "Replace") {
    node.object({"type", "pattern", "content"});
    step.kind = Kind::replace;
    bool literal = false;
    std::tie(step.pattern, literal) = pattern_of(node.at("pattern"));
    node.at("pattern").check(literal, "is a Regex; in a decoder this program knows a String");
    step.content = node.at("content").text(kTokenizerLongestToken);
  } else if (type == "ByteFallback" || type == "Fuse") {
    node.object({"type"});
    step.kind = type == "Fuse" ? Kind::fuse : Kind::byte_fallback;
  } else if (type == "Strip") {
    node.object({"type", "content", "start", "stop"});
    step.kind = Kind::strip;
    step.content = character_of(node.at("content"));
    step.count = node.at("start").id();
    node.at("start").check(step.count <= kMostStripped, "is ", step.count, "; at most ", kMostStripped, " are read");
    node.at("stop").check(node.at("stop").id() == 0, "is not 0; this program takes nothing away at the end");
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.prepends = scheme_of(node) != PrependScheme::never;
    step.pattern = character_of(node.at("replacement"));
  } else {
    node.refuse("the decoder '", printable_start(type),
                "' is not known to this program; it knows ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace, "
                "also in a Sequence");
  }
  return step;
}

}  // namespace

std::vector<NormalizerStep> read_normalizers(const JsonNode& node) {
  std::vector<NormalizerStep> steps;
  if (node.value.is_null()) return steps;
  for_each_step(node, "normalizers", [&](const JsonNode& from) {
    NormalizerStep step = normalizer_of(from);
    // A form twice is the form once.
    const bool again = !steps.empty() && steps.back() == step && step.kind <= NormalizerStep::Kind::nfkd;
    if (!again) add_step(from, steps, std::move(step));
  });
  return steps;
}

std::vector<PreTokenizerStep> read_pre_tokenizers(const JsonNode& node) {
  std::vector<PreTokenizerStep> steps;
  if (node.value.is_null()) return steps;
  for_each_step(node, "pretokenizers", [&](const JsonNode& from) { add_step(from, steps, pre_tokenizer_of(from)); });
  const auto count = [&](PreTokenizerStep::Kind kind) {
    return std::count_if(steps.begin(), steps.end(), [&](const PreTokenizerStep& step) { return step.kind == kind; });
  };
  const auto bytes = count(PreTokenizerStep::Kind::byte_level);
  node.check(bytes <= 1, "has ", bytes, " ByteLevel steps; this program knows one");
  node.check(bytes == 0 || count(PreTokenizerStep::Kind::metaspace) == 0,
             "has a ByteLevel and a Metaspace; this program knows one of them");
  return steps;
}

std::vector<DecoderStep> read_decoders(const JsonNode& node) {
  using Kind = DecoderStep::Kind;
  node.check(!node.value.is_null(), "is null; without a decoder the texts of tokens make no text again");
  std::vector<DecoderStep> steps;
  bool fused = false;
  for_each_step(node, "decoders", [&](const JsonNode& from) {
    DecoderStep step = decoder_of(from);
    // A text that comes token by token cannot be searched as a whole.
    from.check(!fused || step.kind == Kind::strip || step.kind == Kind::fuse, "'", from.type(),
               "' stands behind the step that joins the tokens; this program knows Strip and Fuse there");
    fused = fused || step.kind == Kind::fuse || step.kind == Kind::byte_level;
    add_step(from, steps, std::move(step));
  });
  node.check(!steps.empty(), "has no steps");
  return steps;
}

}  // namespace hrm::internal
