#include "data/tokenizer/character_tokenizer.h"

#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/formats/byte_level.h"

namespace hrm::data::internal {

constexpr int kBytes = 256;

std::string character_tokenizer_text(const std::vector<std::string>& special, std::string_view characters) {
  using nlohmann::ordered_json;
  ordered_json vocab, added = ordered_json::array();
  size_t next = 0;
  for (const std::string& token : special) {
    added.push_back({{"id", next},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[token] = next++;
  }
  for (const char c : characters) vocab[byte_level_text({&c, 1})] = next++;
  for (int byte = 0; byte < kBytes; ++byte) {
    const char c = static_cast<char>(byte);
    const std::string token = byte_level_text({&c, 1});
    if (!vocab.contains(token)) vocab[token] = next++;
  }
  require(next == special.size() + kBytes, ExitCode::unexpected, "a vocabulary of ", next, " tokens");
  const ordered_json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", added},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", bytes},
                             {"post_processor", nullptr},
                             {"decoder", bytes},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"ignore_merges", false},
                               {"vocab", vocab},
                               {"merges", ordered_json::array()}}}};
  return file.dump(1) + "\n";
}

}  // namespace hrm::data::internal
