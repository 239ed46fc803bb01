#pragma once
// Opens prompts and responses for training, validation and test, without leakage between them, and with the tokenizer
// and the template that a configuration names.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_dataset.h"
#include "hrm/data/chat_split.h"

namespace hrm::data {

// A side of a split, for ChatSource (hrm/data/chat_source.h).
struct ChatSide {
  std::shared_ptr<const ChatDataset> dataset;
  std::vector<int64_t> examples;  // of the dataset, ascending; empty: there is no such side
};
struct ChatSides {
  ChatSide train, validation, test;
};

// Error(data) where a prompt, or the id of one, is on both sides, with file and line of both. A side without a dataset
// has none.
void check_no_leak(const ChatSide& one, const ChatSide& other);

// Whether the files of a folder are the sides of a split: it has a train.jsonl, or else a train.json, plain or
// compressed (.gz, .zst).
bool is_split_chat_folder(const std::filesystem::path& path);

// A folder that is already split has train.jsonl, and optionally val.jsonl (or validation.jsonl, or valid.jsonl) and
// test.jsonl, all with the suffix of train. Its other *.jsonl files are not read, and the log names them. Everything
// else, a file or a folder of other *.jsonl, is split by `split`: three fractions, and `values` taken from the examples
// if `stratified`.
//
// Throws as ChatDataset and split_groups. Error(data) if a prompt, or its id, is in two of the files, with file and
// line of both, and if there are two validation files.
ChatSides open_chat_sides(const std::filesystem::path& path, const ChatEncoder& encoder, const ChatDataOptions& options,
                          SplitOptions split, bool stratified = false);

// The folder of tokenizer.json: hf.tokenizer, or hf.model.
std::filesystem::path tokenizer_folder(const config::HfConfig& hf);
// That tokenizer with chat.template. Throws as open_chat_encoder of a folder.
ChatEncoder open_chat_encoder(const config::Config& config);
// In a checkpoint's information: ChatEncoder::name of what its prompts were made with.
inline constexpr const char* kChatTemplate = "chat_template";
// Settings that keep the prompts of a checkpoint as they were. Checkpoints without chat.bos are older than the template
// `model`: chat.template = auto was guessed from special tokens then, and its name is kept in `info`; `plain` added no
// BOS. Checkpoints without chat.tools_field are from versions that ignored the tools of records. `overrides` come first
// and always hold, but chat.template=auto counts as none. Empty for other checkpoints. Error(checkpoint) for a
// config.json that is not one.
std::vector<std::string> settings_of_earlier_chat(const std::string& config_json,
                                                  const std::map<std::string, std::string>& info,
                                                  const std::vector<std::string>& overrides = {});

// How `chat` and data.max_malformed read records.
ChatDataOptions chat_data_options(const config::Config& config, bool need_response);

}  // namespace hrm::data
