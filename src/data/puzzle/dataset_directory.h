#pragma once
// The official directory layout: <root>/<split>/{dataset.json, <set>__*.npy}, <root>/identifiers.json.

#include <filesystem>
#include <memory>
#include <string>

#include "hrm/data/dataset.h"

namespace hrm::data {

std::shared_ptr<PuzzleDataset> open_dataset_directory(const std::filesystem::path& root, const std::string& split,
                                                      const config::DataConfig& config);

}  // namespace hrm::data
