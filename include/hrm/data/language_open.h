#pragma once
// Opens a folder of language data of either kind.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/config/load.h"
#include "hrm/data/language_stream.h"
#include "hrm/data/token_dataset.h"
#include "hrm/data/triple_dataset.h"

namespace hrm::data {

// Throws Error(data) if the folder is neither triples nor packed text; also throws like TripleDataset and TokenDataset.
std::shared_ptr<const LanguageSource> open_language_source(const std::filesystem::path& folder,
                                                           const std::string& split, const TripleOptions& triples = {},
                                                           const TokenOptions& tokens = {});

// Throws Error(usage) for a setting that no folder of data.train and data.test uses: data.document_masks for triples,
// data.max_malformed and data.cache for packed text.
void check_language_settings(const config::LoadedConfig& loaded);

// The sources in data.train, e.g. "books*3,code". Throws Error(usage) for an invalid weight. Throws Error(data) as
// above, and if two sources do not use the same language (ids).
std::vector<WeightedSource> open_language_training(const config::DataConfig& config);
// The slices in data.test, e.g. "old:books,code". If data.test is empty, the val splits of the folders of data.train;
// for "none", no slice. Checks that all slices have the language `meta`. max_samples: per slice. Throws Error(usage)
// and Error(data).
std::vector<ValidationSlice> open_validation_slices(const config::DataConfig& config, const LanguageMeta& meta,
                                                    int64_t max_samples);
// One folder, or `name:folder`, as a slice of its val split. Packed text or triples without val use test.
ValidationSlice open_validation_slice(const std::string& text, const config::DataConfig& config, int64_t max_samples);

}  // namespace hrm::data
