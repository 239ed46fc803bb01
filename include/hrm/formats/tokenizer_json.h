#pragma once
// tokenizer.json of the Hugging Face `tokenizers` library, for BPE: over bytes (GPT-2, Llama 3, Qwen, SmolLM) and over
// characters with single bytes as a fallback (Llama 2, Mistral, TinyLlama). https://huggingface.co/docs/tokenizers.
// Text and numbers only; data/tokenizer.h gives them their meaning.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hrm/base/error.h"

namespace hrm {

struct VocabularyEntry {
  std::string token;  // UTF-8; of what BPE makes, each character stands for one byte (data/tokenizer.h)
  int32_t id = 0;

  bool operator==(const VocabularyEntry&) const = default;
};

// A token that is looked for in the text itself, before BPE.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no letter or digit is beside it
  bool lstrip = false;       // takes the white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // decode can leave it out

  bool operator==(const AddedToken&) const = default;
};

// One change of a text before it is cut into words.
struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, replace, prepend, strip, strip_accents };
  Kind kind = Kind::nfc;
  std::string pattern = {};  // replace: what is looked for
  bool literal = false;      // `pattern` is the text itself, otherwise a regular expression as Oniguruma reads it
  std::string content = {};  // replace: what is there instead; prepend: what is put in front
  bool left = false;         // strip: white space at the beginning
  bool right = false;        // strip: and at the end

  bool operator==(const NormalizerStep&) const = default;
};

// What becomes of the matches of a split. Text between two matches is always a piece of its own, or joined as said.
enum class SplitBehavior {
  isolated,              // each match is a piece
  removed,               // matches are dropped
  merged_with_previous,  // a match ends the piece in front of it
  merged_with_next,      // a match begins the piece behind it
  contiguous             // matches side by side are one piece
};

// When a Metaspace puts its sign in front of a text that does not begin with it.
enum class PrependScheme { always, first, never };  // first: where the text begins, not behind an added token

// Cuts text into words, which BPE never crosses.
struct PreTokenizerStep {
  enum class Kind {
    split,        // at the matches of `pattern`
    byte_level,   // GPT-2's pattern where `use_regex`; from here on each byte is a character of its alphabet
    digits,       // matches are \p{N}
    punctuation,  // matches are \p{P} and ASCII's other signs
    whitespace,   // words are \w+ and [^\w\s]+; white space is dropped
    space,        // matches are white space
    metaspace     // `replacement` instead of each space, and in front as `scheme` says
  };
  Kind kind = Kind::byte_level;
  std::string pattern;  // a regular expression as Oniguruma reads it
  bool add_prefix_space = false;
  bool use_regex = false;
  bool literal = false;  // `pattern` is the text itself
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what is between matches counts as a match, and matches as what is between
  std::string replacement = {};
  PrependScheme scheme = PrependScheme::always;
  bool cuts = false;  // metaspace: a word begins at each `replacement`

  bool operator==(const PreTokenizerStep&) const = default;
};

// One step from the texts of tokens to the text of all.
struct DecoderStep {
  enum class Kind {
    byte_level,     // characters of GPT-2's alphabet into bytes; all becomes one text
    replace,        // `pattern`, a text, by `content`
    byte_fallback,  // <0xXX> into the byte
    fuse,           // all becomes one text
    strip,          // up to `count` times `content`, one character, at the beginning
    metaspace       // `pattern`, one character, into a space; nothing in the first text where `prepends`
  };
  Kind kind = Kind::byte_level;
  std::string pattern = {}, content = {};
  int32_t count = 0;
  bool prepends = false;

  bool operator==(const DecoderStep&) const = default;
};

// One place of a template: the text itself, or the ids that a special token stands for.
struct TemplatePiece {
  bool sequence = false;  // the text; of a pair of texts "B" where `second`
  bool second = false;
  std::string token;                // else: the special token's name
  std::vector<int32_t> ids;         // and what it stands for, at least one
  std::vector<std::string> tokens;  // as many
  int32_t type_id = 0;

  bool operator==(const TemplatePiece&) const = default;
};

struct TokenizerJson {
  std::vector<VocabularyEntry> vocabulary;          // sorted by id
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of both halves; what comes first is merged first
  std::vector<AddedToken> added_tokens;             // in the file's order
  std::vector<NormalizerStep> normalizers;
  std::vector<PreTokenizerStep> pre_tokenizer;      // none: a text is one word
  std::vector<DecoderStep> decoder{DecoderStep()};  // at least one
  bool has_template = false;                        // else nothing is put around a text
  std::vector<TemplatePiece> single, pair;          // what is put around one text, and around two
  // Where a token is in a text does not count white space at its ends (trim_offsets); one space that begins a text
  // counts where `first_space_counts`.
  bool trims_offsets = false, first_space_counts = false;
  bool ignore_merges = false;  // a word that is a token as a whole needs no merges
  // The replacement of a symbol (a byte with a byte_level step, otherwise a character) that has no token: with
  // `byte_fallback` the tokens <0xXX> of its bytes; otherwise this token, once for neighbours with `fuse_unk`;
  // otherwise nothing.
  bool byte_fallback = false;
  std::string unk_token = {};  // empty: none
  bool fuse_unk = false;

  bool operator==(const TokenizerJson&) const = default;
};

// Whether BPE begins with bytes, each a character of GPT-2's alphabet; otherwise with characters.
bool is_byte_level(const TokenizerJson& tokenizer);

// Throws Error(code) as "origin: reason". At most 64 MiB, 2^20 tokens of 4,096 bytes, 2^20 merges, 2^16 added tokens,
// 16 steps of a kind, patterns of 16 KiB, ids below 2^21. Refused by name: other models, normalizers, pre-tokenizers,
// post-processors and decoders, dropout, unknown keys. Also refused: a duplicate token, id or merge, a merge of or into
// an unknown token, and an added token whose id the library would change. Truncation and padding, which a library call
// left there, are ignored with one warning for each file.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);

// The same as text, which the `tokenizers` library opens, too. Equal tokenizers give equal texts. Throws
// Error(unexpected) for a merge of tokens that are not there and for text that is no UTF-8; otherwise nothing is
// checked.
std::string tokenizer_json_text(const TokenizerJson& tokenizer);

}  // namespace hrm
