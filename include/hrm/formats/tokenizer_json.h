#pragma once
// tokenizer.json of the Hugging Face `tokenizers` library, for BPE (https://huggingface.co/docs/tokenizers). Supports
// byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM), and BPE over characters with byte fallback (Llama 2, Mistral,
// TinyLlama). This file only describes the data; data/tokenizer.h implements the tokenizer.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct VocabularyEntry {
  std::string token;  // UTF-8; in byte-level BPE each character is one byte (data/tokenizer.h)
  int32_t id = 0;

  bool operator==(const VocabularyEntry&) const = default;
};

// A token that is searched in the text itself, before BPE.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only if no letter or digit is next to it
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // searched in the normalized text
  bool special = false;      // decode can skip it

  bool operator==(const AddedToken&) const = default;
};

// One change of the text before it is split into words.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, replace, prepend, strip, strip_accents };
  Kind kind = Kind::nfc;
  std::string pattern = {};  // replace: what to search
  bool literal = false;      // `pattern` is literal text, otherwise a regular expression in Oniguruma syntax
  std::string content = {};  // replace: the replacement; prepend: the text to prepend
  bool left = false;         // strip: white space at the beginning
  bool right = false;        // strip: white space at the end

  bool operator==(const NormalizerStep&) const = default;
};

// What a split does with its matches. Text between two matches is always a separate piece, unless joined as below.
enum class SplitBehavior {
  isolated,              // each match is a piece
  removed,               // matches are dropped
  merged_with_previous,  // a match ends the previous piece
  merged_with_next,      // a match begins the next piece
  contiguous             // adjacent matches form one piece
};

// When Metaspace prepends its replacement character to a text that does not begin with it.
enum class PrependScheme { always, first, never };  // first: only where the text begins, not after an added token

// Splits text into words; BPE never merges across words.
struct PreTokenizerStep {
  enum class Kind {
    split,        // at the matches of `pattern`
    byte_level,   // GPT-2's pattern if `use_regex`; then each byte becomes a character of its alphabet
    digits,       // matches are \p{N}
    punctuation,  // matches are \p{P} and the other ASCII symbols
    whitespace,   // words are \w+ and [^\w\s]+; white space is dropped
    space,        // matches are white space
    metaspace     // `replacement` replaces each space and is prepended as `scheme` says
  };
  Kind kind = Kind::byte_level;
  std::string pattern;  // a regular expression in Oniguruma syntax
  bool add_prefix_space = false;
  bool use_regex = false;
  bool literal = false;  // `pattern` is literal text
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // swaps matches and the text between them
  std::string replacement = {};
  PrependScheme scheme = PrependScheme::always;
  bool cuts = false;  // metaspace: a word begins at each `replacement`

  bool operator==(const PreTokenizerStep&) const = default;
};

// One step of decoding: from token texts to the whole text.
struct DecoderStep {
  enum class Kind {
    byte_level,     // characters of GPT-2's alphabet to bytes; joins all texts
    replace,        // `pattern`, literal text, by `content`
    byte_fallback,  // <0xXX> to the byte
    fuse,           // joins all texts
    strip,          // removes up to `count` times `content`, one character, at the beginning
    metaspace       // `pattern`, one character, to a space; dropped in the first text if `prepends`
  };
  Kind kind = Kind::byte_level;
  std::string pattern = {}, content = {};
  int32_t count = 0;
  bool prepends = false;

  bool operator==(const DecoderStep&) const = default;
};

// One place of a template: the text itself, or the ids of a special token.
struct TemplatePiece {
  bool sequence = false;  // the text; the second text of a pair if `second`
  bool second = false;
  std::string token;                // otherwise: the special token's name
  std::vector<int32_t> ids;         // its ids, at least one
  std::vector<std::string> tokens;  // one per id
  int32_t type_id = 0;

  bool operator==(const TemplatePiece&) const = default;
};

struct TokenizerJson {
  std::vector<VocabularyEntry> vocabulary;          // sorted by id
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of both halves, in order of priority
  std::vector<AddedToken> added_tokens;             // in the file's order
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizer;      // empty: a text is one word
  std::vector<DecoderStep> decoder{DecoderStep()};  // at least one
  bool has_template = false;                        // otherwise nothing is added around a text
  std::vector<TemplatePiece> single, pair;          // what is added around one text, and around two
  // trim_offsets: a token's span excludes white space at its ends. `first_space_counts`: but includes one space at the
  // beginning of the text.
  bool trims_offsets = false, first_space_counts = false;
  bool ignore_merges = false;  // a word that is itself a token needs no merges
  // For a symbol (a byte with a byte_level step, otherwise a character) that has no token. With `byte_fallback`: the
  // tokens <0xXX> of its bytes. Otherwise `unk_token`, once for adjacent symbols with `fuse_unk`. Without one the
  // symbol is dropped.
  bool byte_fallback = false;
  std::string unk_token = {};  // empty: none
  bool fuse_unk = false;

  bool operator==(const TokenizerJson&) const = default;
};

// Whether BPE starts from bytes, each a character of GPT-2's alphabet. Otherwise it starts from characters.
bool is_byte_level(const TokenizerJson& tokenizer);

// Throws Error(code) as "origin: reason". Limits: 64 MiB, 2^20 tokens of 4,096 bytes, 2^20 merges, 2^16 added tokens,
// 16 steps of a kind. Patterns have at most 16 KiB, and ids are below 2^21.
//
// Unsupported models, normalizers, pre-tokenizers, post-processors and decoders, dropout and unknown keys are errors
// that name them. A duplicate token, id or merge, and a merge of or into an unknown token, are errors too. So is an
// added token whose id the library would change. Truncation and padding, left over from a library call, are ignored
// with one warning per file.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);

// Writes a text that the `tokenizers` library can open. Equal tokenizers give equal texts. Throws Error(unexpected) for
// merges of unknown tokens and for texts that are not UTF-8; nothing else is checked.
std::string tokenizer_json_text(const TokenizerJson& tokenizer);

}  // namespace hrm
