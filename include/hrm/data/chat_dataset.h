#pragma once
// Tokenized prompts and responses in memory, for fine-tuning a causal language model and for sampling completions. They
// come from JSON lines or a JSON array (hrm/formats/chat_record.h, record_file.h).
// This header does not depend on torch.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hrm/data/chat_template.h"
#include "hrm/data/language_meta.h"

namespace hrm::data {

struct ChatDataOptions {
  ChatFields fields;
  // Template of the user's message, with places for members of the record: "Reply to this tweet:\n\n{tweet}". {prompt}
  // is the member fields.prompt. If empty, that member is used unchanged. Ignored for records with messages.
  std::string instruction;
  // Largest number of prompt and response tokens. Longer responses are cut. An example is dropped if its prompt leaves
  // no room for a response.
  int64_t max_tokens = 512;
  bool need_response = true;  // false: a record without a response is a prompt to sample for
  // Learn every assistant turn that the template marks, not only the last one.
  bool every_turn = false;
  bool deduplicate = false;    // keep only the first of several records with the same prompt and response
  uint64_t max_malformed = 0;  // malformed lines to skip, with the reason in the log, before failing
};

struct ChatExample {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> response_ids;  // ends with the end token unless it was cut; empty without a response
  // What the user says. For several messages: all of them, as lines "role: content". If the template uses other members
  // of the record, or the record has tools or extra members: the text of the whole prompt.
  std::string prompt;
  std::string response;
  // 1 for each token of prompt and response that is learned. If empty, the whole response is learned.
  std::vector<uint8_t> learned = {};
  bool is_cut = false;                                      // the response was cut at ChatDataOptions::max_tokens
  std::vector<std::string> answers;                         // all right answers; empty: unknown
  std::string key;                                          // group key, the same for all examples of one prompt
  double value = std::numeric_limits<double>::quiet_NaN();  // the record's member fields.value
  int32_t file = 0;                                         // index into ChatDataset::files()
  int64_t line = 0;                                         // 1-based line number
  int64_t ids() const { return static_cast<int64_t>(prompt_ids.size() + response_ids.size()); }
};

// Each record (a line, or an element of an array) counts once: in `examples` or in one of the reasons. Blank lines are
// not records.
struct ChatCounts {
  int64_t lines = 0;
  int64_t examples = 0;
  // Dropped:
  int64_t malformed = 0;       // includes bad_utf8
  int64_t empty_prompt = 0;    // empty or only white space, also below
  int64_t no_response = 0;     // a required response is missing: no such member, or the conversation ends with the user
  int64_t empty_response = 0;  // a required response is empty
  int64_t empty_answers = 0;   // the list of answers is empty, or one of them is
  int64_t long_prompt = 0;     // leaves no room for a response in max_tokens
  int64_t duplicates = 0;
  // For information:
  int64_t bad_utf8 = 0;
  int64_t cut_responses = 0;  // among the examples
  int64_t joined_keys = 0;    // record ids that share a prompt with another id and were merged into one group
  int64_t prompts = 0;        // distinct keys of the examples

  int64_t dropped() const {
    return malformed + empty_prompt + no_response + empty_response + empty_answers + long_prompt + duplicates;
  }
  // "4,940 records: 4,935 examples of 4,446 prompts; dropped 5: 2 malformed, 3 with an empty response; 7 responses cut"
  std::string text() const;
};

// Whether `path` holds such records. True for a file named *.jsonl or *.json, also compressed, and for a file that
// begins with { or [ and is not CSV. Also true for a folder with *.jsonl files, also compressed.
bool is_chat_path(const std::filesystem::path& path);

// Immutable and safe to read from several threads.
class ChatDataset {
 public:
  // `path` is a file, or a folder whose *.jsonl files (also compressed) are read in sorted order. Dropped records are
  // counted; the log names the first lines for each reason. Throws Error(usage) for invalid options. Throws
  // Error(data), one sentence, for missing files, for more malformed lines than max_malformed ("file:line: reason"),
  // and if no example is left.
  ChatDataset(const std::filesystem::path& path, const ChatEncoder& encoder, const ChatDataOptions& options);

  int64_t size() const { return static_cast<int64_t>(examples_.size()); }
  const ChatExample& operator[](int64_t index) const { return examples_[index]; }
  const std::vector<ChatExample>& examples() const { return examples_; }
  const ChatCounts& counts() const { return counts_; }
  const LanguageMeta& meta() const { return meta_; }
  const std::string& origin() const { return origin_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }
  // "file:line" of an example.
  std::string place(int64_t index) const;
  // One entry per example, in order.
  std::vector<std::string> keys() const;
  std::vector<double> values() const;
  // Groups the given examples (ascending) by prompt. The groups are in the order of their first examples.
  std::vector<std::vector<int64_t>> examples_of_prompts(std::span<const int64_t> examples) const;
  // The known right answers of examples that share a prompt, without duplicates. These are their listed answers, or
  // their responses if none of them lists answers.
  std::vector<std::string> right_answers(std::span<const int64_t> examples) const;

 private:
  class Reader;

  std::string origin_;
  LanguageMeta meta_;
  std::vector<std::filesystem::path> files_;
  std::vector<ChatExample> examples_;
  ChatCounts counts_;
};

}  // namespace hrm::data
