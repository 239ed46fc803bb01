#pragma once
// Opens prompts and responses for training, validation and test, without leakage between the splits. The tokenizer and
// the chat template come from the configuration.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/config.h"
#include "hrm/data/chat_dataset.h"
#include "hrm/data/chat_split.h"

namespace hrm::data {

// One split, for ChatSource (hrm/data/chat_source.h).
struct ChatSide {
  std::shared_ptr<const ChatDataset> dataset;
  std::vector<int64_t> examples;  // indices into the dataset, ascending; empty: no such split
};
struct ChatSides {
  ChatSide train, validation, test;
};

// Throws Error(data) if a prompt, or its id, is in both splits; the message names file and line of both. A split
// without a dataset is empty.
void check_no_leak(const ChatSide& one, const ChatSide& other);

// Whether a folder is already split: it has a train.jsonl, or otherwise a train.json, plain or compressed (.gz, .zst).
bool is_split_chat_folder(const std::filesystem::path& path);

// A folder that is already split has train.jsonl. It may have val.jsonl (or validation.jsonl, or valid.jsonl) and
// test.jsonl. All have the suffix of train; other *.jsonl files there are ignored, with a warning that names them.
// Anything else (a file, or a folder of other *.jsonl files) is split by `split`, which needs three shares. If
// `stratified`, its `values` come from the examples.
//
// Throws like ChatDataset and split_groups. Also throws Error(data) if there are two validation files. Two files must
// not share a prompt or a prompt's id: otherwise Error(data) names file and line of both.
ChatSides open_chat_sides(const std::filesystem::path& path, const ChatEncoder& encoder, const ChatDataOptions& options,
                          SplitOptions split, bool stratified = false);

// The folder of the tokenizer: hf.tokenizer, or hf.model if that is empty.
std::filesystem::path tokenizer_folder(const config::HfConfig& hf);
// That tokenizer with chat.template. Throws like open_chat_encoder of a folder.
ChatEncoder open_chat_encoder(const config::Config& config);
// Key in a checkpoint's info: the ChatEncoder::name that built its prompts.
inline constexpr const char* kChatTemplate = "chat_template";
// Settings that keep the prompts of an older checkpoint unchanged. Empty for other checkpoints.
// - Without chat.bos, a checkpoint predates the template `model`. Then chat.template=auto was resolved from special
// tokens, with the resolved name in `info`, and `plain` added no BOS.
// - Without chat.tools_field, a checkpoint comes from a version that ignored the tools of records.
//
// `overrides` win, but chat.template=auto does not count as an override. Throws Error(checkpoint) if config_json is not
// a valid config.json.
std::vector<std::string> settings_of_earlier_chat(const std::string& config_json,
                                                  const std::map<std::string, std::string>& info,
                                                  const std::vector<std::string>& overrides = {});

// Options for reading records, from section chat and data.max_malformed.
ChatDataOptions chat_data_options(const config::Config& config, bool need_response);

}  // namespace hrm::data
