#pragma once
// Opens a folder of language data, whichever kind it is.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/load.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"

namespace hrm::data {

// Throws Error(data) for a folder that is neither triples nor packed text, and as TripleDataset and TokenDataset.
std::shared_ptr<const LanguageSource> open_language_source(const std::filesystem::path& folder,
                                                           const std::string& split, const TripleOptions& triples = {},
                                                           const TokenOptions& tokens = {});

// Throws Error(usage) for a setting of section data that was set although no folder of data.train and data.test uses
// it: document_masks for triples, max_malformed and cache for packed text.
void check_language_settings(const config::LoadedConfig& loaded);

// What data.train names: "books*3,code". Throws Error(usage) for a weight that is none, Error(data) as above and where
// two of them are not the same language.
std::vector<WeightedSource> open_language_training(const config::DataConfig& config);
// The slices that data.test names, "old:books,code"; if it is empty, the val splits of the folders of data.train; for
// "none" no slice. Rows are checked to be of the language `meta`. max_samples: of each. Throws Error(usage, data).
std::vector<ValidationSlice> open_validation_slices(const config::DataConfig& config, const LanguageMeta& meta,
                                                    int64_t max_samples);
// One folder, or `name:folder`, as a slice of its val split (of packed text or triples; test where there is no val).
ValidationSlice open_validation_slice(const std::string& text, const config::DataConfig& config, int64_t max_samples);

}  // namespace hrm::data
