#include "hrm/data/language_open.h"

#include "hrm/base/error.h"

namespace hrm::data {

std::shared_ptr<const LanguageSource> open_language_source(const std::filesystem::path& folder,
                                                           const std::string& split, const TripleOptions& triples,
                                                           const TokenOptions& tokens) {
  if (is_token_folder(folder)) return std::make_shared<TokenDataset>(folder, split, tokens);
  require(is_triple_folder(folder), ExitCode::data, folder.string(),
          ": is no folder of language data: it needs a meta.json, beside train.jsonl or with \"splits\"");
  return std::make_shared<TripleDataset>(folder, split, triples);
}

}  // namespace hrm::data
