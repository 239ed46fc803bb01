#pragma once
// Prompts and responses in memory, as ids: what a causal language model is fine-tuned on, and what it is asked. Read
// from JSON lines or a JSON array (hrm/formats/chat_record.h, record_file.h). No torch here.

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
  // What the user says, with places for members of the record: "Reply to this tweet:\n\n{tweet}". {prompt} is the
  // member fields.prompt. Empty: that member as it is. Records of messages have no use for it.
  std::string instruction;
  // Ids of prompt and response together; a longer response is cut, a prompt that leaves no room for one is dropped.
  int64_t max_tokens = 512;
  bool need_response = true;  // false: a record without one is a prompt to be answered
  // Every turn of the assistant is learned, as the template marks them, not the last one alone.
  bool every_turn = false;
  bool deduplicate = false;    // of records with the same prompt and response the first alone
  uint64_t max_malformed = 0;  // lines that are skipped, with their reason in the log, before it is an error
};

struct ChatExample {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> response_ids;  // with what ends it, unless it was cut; empty where there is no response
  std::string prompt;                 // what the user says; of messages all of them, "role: content" in lines; of a
                                      // template with members its text, as they make another prompt
  std::string response;
  // A mark for each id of prompt and response, 1 where it is learned; empty: the response is.
  std::vector<uint8_t> learned = {};
  bool is_cut = false;                                      // the response, at ChatDataOptions::max_tokens
  std::vector<std::string> answers;                         // all that are right; empty: not known
  std::string key;                                          // the same for all examples of one prompt
  double value = std::numeric_limits<double>::quiet_NaN();  // of fields.value
  int32_t file = 0;                                         // of ChatDataset::files()
  int64_t line = 0;                                         // 1-based
  int64_t ids() const { return static_cast<int64_t>(prompt_ids.size() + response_ids.size()); }
};

// Every record, a line or an element of an array, is counted once in `examples` or in one of the reasons; blank lines
// are none.
struct ChatCounts {
  int64_t lines = 0;
  int64_t examples = 0;
  // Dropped:
  int64_t malformed = 0;       // bad_utf8 among them
  int64_t empty_prompt = 0;    // nothing but white space, also below
  int64_t no_response = 0;     // where there must be one: no such member, or a conversation that ends with the user
  int64_t empty_response = 0;  // the same
  int64_t empty_answers = 0;   // a list without answers, or with one that is empty
  int64_t long_prompt = 0;     // no room for a response in max_tokens
  int64_t duplicates = 0;
  // For information:
  int64_t bad_utf8 = 0;
  int64_t cut_responses = 0;  // of the examples
  int64_t joined_keys = 0;    // ids of records whose prompts another id has, too: they were made one group
  int64_t prompts = 0;        // different keys of the examples

  int64_t dropped() const {
    return malformed + empty_prompt + no_response + empty_response + empty_answers + long_prompt + duplicates;
  }
  // "4,940 records: 4,935 examples of 4,446 prompts; dropped 5: 2 malformed, 3 with an empty response; 7 responses cut"
  std::string text() const;
};

// Whether records can be read from `path`: a file called *.jsonl or *.json, also compressed, or one that begins like
// such a file and is not CSV; or a folder that holds *.jsonl files, also compressed.
bool is_chat_path(const std::filesystem::path& path);

// Immutable and safe to read from several threads.
class ChatDataset {
 public:
  // `path`: a file, or a folder whose *.jsonl files, also compressed, are read in sorted order. Dropped records are
  // counted, and the log names the first lines of each kind. Throws Error(usage) for options; Error(data), one
  // sentence, for missing files, for more malformed lines than max_malformed ("file:line: reason") and if no example is
  // left.
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
  // Of all examples, in order.
  std::vector<std::string> keys() const;
  std::vector<double> values() const;
  // Groups these examples by prompt, in ascending order, groups in the order of their first ones: one group per prompt
  // to sample for.
  std::vector<std::vector<int64_t>> examples_of_prompts(std::span<const int64_t> examples) const;
  // The known right answers of these examples, which have the same prompt: all of their answers, or all of their
  // responses if none lists answers; each once.
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
