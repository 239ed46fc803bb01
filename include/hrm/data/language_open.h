#pragma once
// Opens a folder of language data, whichever kind it is.

#include <filesystem>
#include <memory>
#include <string>

#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"

namespace hrm::data {

// Throws Error(data) for a folder that is neither triples nor packed text, and as TripleDataset and TokenDataset.
std::shared_ptr<const LanguageSource> open_language_source(const std::filesystem::path& folder,
                                                           const std::string& split, const TripleOptions& triples = {},
                                                           const TokenOptions& tokens = {});

}  // namespace hrm::data
