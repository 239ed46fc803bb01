#pragma once
// hrm_train data arithmetic | answers | text | jsonl: build language data (docs/data-language.md). Results go to `out`,
// progress to stderr. What was finished before a command was stopped is not done again when it is started anew.

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "hrm/data/answers.h"
#include "hrm/data/text_encoder.h"

namespace hrm::data {

struct InspectCommand;  // hrm/data/commands.h

// hrm_train data arithmetic: "What is a + b?" and its answer, as triples of characters.
struct ArithmeticCommand {
  int64_t digits = 2;       // --digits of a summand at most, 1 to 6
  int64_t samples = 2000;   // --samples for training, all different
  double validation = 0.1;  // --validation: as many problems for validation, as a share of --samples
  int64_t seed = 0;         // --seed
  std::string out;          // --out folder
};
// Neither a + b nor b + a of a validation problem is among the training problems. Throws Error(usage) if there are too
// few problems.
void run_data_arithmetic(const ArithmeticCommand& command, std::ostream& out);

// hrm_train data answers: prompts with several right answers (hrm/data/answers.h), as JSON lines of text with the files
// of a tokenizer of characters.
struct AnswersCommand {
  AnswersOptions options;
  std::string out;  // --out folder
};
// Writes train.jsonl, val.jsonl and test.jsonl, tokenizer.json and tokenizer_config.json, and config.json of a small
// model of the form of Qwen3 with that vocabulary. Throws Error(usage).
void run_data_answers(const AnswersCommand& command, std::ostream& out);

// What text and jsonl share.
struct LanguageBuild {
  std::vector<std::string> inputs;         // files and folders; folders are walked in sorted order
  std::vector<std::string> patterns;       // --pattern globs of names in folders; none: all but hidden ones
  std::string tokenizer = kByteTokenizer;  // --tokenizer FILE, or bytes
  std::string bos, eos;                    // --bos, --eos: special tokens of the file
  double validation = 0.01;                // --validation share of documents or records; 0 to 0.5
  uint64_t max_malformed = 0;              // --max-malformed documents or lines
  int64_t seed = 0;                        // --seed
  std::string out;                         // --out folder
  OpenTokenizer open_tokenizer = data::open_tokenizer;  // reads --tokenizer FILE
};

// hrm_train data text: shards of tokens (hrm/data/token_dataset.h).
struct TextCommand : LanguageBuild {
  bool split_blank_lines = false;  // --split-blank-lines: a document ends at a blank line, not at the file's end
  std::string separator;           // --separator: or at this text
  int64_t shard_tokens = int64_t{1} << 25;  // --shard-tokens
};
// Throws Error(usage, data, environment), one sentence.
void run_data_text(const TextCommand& command, std::ostream& out);

// hrm_train data jsonl: triples of ids (hrm/data/triple_dataset.h) from records of text. A record has a prompt and a
// response, or one text that is cut in two.
struct JsonlCommand : LanguageBuild {
  std::string prompt_field = "prompt";       // --prompt-field
  std::string response_field = "response";   // --response-field
  std::string text_field = "text";           // --text-field
  double text_prefix = 0.5;                  // --text-prefix: share of a text's ids that the encoder gets
  uint64_t save_bytes = uint64_t{64} << 20;  // of input between two states: what a stopped build loses at most
};
// Encoder: ids of the prompt. Decoder: BOS (EOS where there is none) and the ids of the response; labels: these ids and
// EOS. Throws Error(usage, data, environment), one sentence.
void run_data_jsonl(const JsonlCommand& command, std::ostream& out);

// hrm_train data inspect of a folder of triples or of shards: sizes and one example of each split. False where `path`
// is neither.
bool inspect_language(const std::filesystem::path& path, int64_t example, std::ostream& out);

// hrm_train data inspect for prompts and responses (hrm/data/chat_dataset.h): counts, and one example of each side as
// training has it, with texts, ids and the start of the labels. Without --config, the tokenizer is that of hf.tokenizer
// or hf.model, otherwise one beside the records. Throws Error(usage) if there is none, and for an example that no side
// has; otherwise as load_config, open_chat_encoder and open_chat_sides.
void inspect_chat(const InspectCommand& command, std::ostream& out);

}  // namespace hrm::data
