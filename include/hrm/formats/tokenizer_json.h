#pragma once
// tokenizer.json of the Hugging Face `tokenizers` library, as far as byte-level BPE goes: the models of GPT-2, Llama 3
// and Qwen. https://huggingface.co/docs/tokenizers. Text and numbers only; what they mean is data/tokenizer.h.

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
  bool single_word = false;  // only where no letter or digit stands beside it
  bool lstrip = false;       // takes the white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // decode can leave it out

  bool operator==(const AddedToken&) const = default;
};

// Cuts text into words, which BPE never crosses.
struct PreTokenizerStep {
  enum class Kind {
    split,      // at the matches of `pattern`, and between them ("Isolated")
    byte_level  // GPT-2's pattern where `use_regex`; the last step
  };
  Kind kind = Kind::byte_level;
  std::string pattern;  // a regular expression as Oniguruma reads it
  bool add_prefix_space = false;
  bool use_regex = false;

  bool operator==(const PreTokenizerStep&) const = default;
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
  bool nfc = false;                                 // normalization form C
  std::vector<PreTokenizerStep> pre_tokenizer;      // at least one, the last of which is byte_level
  bool has_template = false;                        // else nothing is put around a text
  std::vector<TemplatePiece> single, pair;          // what is put around one text, and around two
  bool ignore_merges = false;                       // a word that is a token as a whole needs no merges

  bool operator==(const TokenizerJson&) const = default;
};

// Throws Error(code) as "origin: reason". At most 64 MiB, 2^20 tokens of 4,096 bytes, 2^20 merges, 2^16 added tokens,
// 16 steps, patterns of 16 KiB, ids below 2^21. Refused by name: other models, normalizers, pre-tokenizers,
// post-processors and decoders, dropout, unknown tokens, byte fallback, truncation, padding; keys that are not known.
// So are a token or an id twice, a merge of or into a token that is not there, a merge twice, a vocabulary in which one
// of the 256 bytes has no token.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& origin, ExitCode code = ExitCode::data);

// The same as text, which the `tokenizers` library opens, too. Equal tokenizers give equal texts. Throws
// Error(unexpected) for a merge of tokens that are not there and for text that is no UTF-8; else nothing is checked.
std::string tokenizer_json_text(const TokenizerJson& tokenizer);

}  // namespace hrm
