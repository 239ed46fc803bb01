#include "hrm/data/language_open.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "data/other_data.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/config/check.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

TripleOptions triple_options(const config::DataConfig& config) {
  return {.max_malformed = static_cast<uint64_t>(config.max_malformed), .cache = config.cache, .progress = true};
}
TokenOptions token_options(const config::DataConfig& config) {
  return {.document_masks = config.document_masks};
}

bool has_split(const fs::path& folder, const std::string& split) {
  if (is_token_folder(folder)) return has_token_split(folder, split);
  std::error_code ignored;
  return fs::exists(folder / (split + ".jsonl"), ignored);
}

struct WeightedPath {
  std::string folder;
  double weight = 1;
};

std::vector<WeightedPath> training_folders(const std::string& text) {
  std::vector<WeightedPath> folders;
  for (const std::string& part : split_list(text)) {
    const size_t star = part.rfind('*');
    if (star == std::string::npos) {
      folders.push_back({part, 1});
      continue;
    }
    const std::string number = part.substr(star + 1);
    char* end = nullptr;
    const double weight = std::strtod(number.c_str(), &end);
    require(!number.empty() && *end == '\0' && std::isfinite(weight) && weight > 0, ExitCode::usage, "data.train: '",
            printable_start(part), "' must be a folder, or folder*weight with a number above 0");
    folders.push_back({split_list(part.substr(0, star)).empty() ? "" : split_list(part.substr(0, star))[0], weight});
  }
  require(!folders.empty(), ExitCode::usage,
          "data.train names no folder of language data; 'hrm_train data --help' says how to make one");
  return folders;
}

std::string name_of(const fs::path& folder) {
  fs::path path = folder.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

// "old:books", or only the folder.
struct NamedPath {
  std::string name;
  fs::path folder;
};

NamedPath named_path(const std::string& text) {
  const size_t colon = text.find(':');
  const bool named = colon != std::string::npos && text.find('/') > colon;
  const fs::path folder = named ? text.substr(colon + 1) : text;
  return {named ? text.substr(0, colon) : name_of(folder), folder};
}

}  // namespace

void check_language_settings(const config::LoadedConfig& loaded) {
  const config::DataConfig& data = loaded.config.data;
  std::vector<fs::path> folders;
  for (const WeightedPath& path : training_folders(data.train)) folders.emplace_back(path.folder);
  if (data.test != "none") {
    for (const std::string& text : split_list(data.test)) folders.push_back(named_path(text).folder);
  }
  // A folder of neither kind is reported when it is opened.
  const bool packed = std::any_of(folders.begin(), folders.end(), is_token_folder);
  const bool triples = std::any_of(folders.begin(), folders.end(), [](const fs::path& folder) {
    return !is_token_folder(folder) && is_triple_folder(folder);
  });
  if (triples && !packed) {
    config::Checker(loaded).refuse_unread({"data.document_masks"}, "data.train",
                                          "holds triples, one document in a row");
  }
  if (packed && !triples) {
    config::Checker(loaded).refuse_unread({"data.max_malformed", "data.cache"}, "data.train",
                                          "holds packed text, not lines");
  }
}

std::shared_ptr<const LanguageSource> open_language_source(const std::filesystem::path& folder,
                                                           const std::string& split, const TripleOptions& triples,
                                                           const TokenOptions& tokens) {
  if (is_token_folder(folder)) return std::make_shared<TokenDataset>(folder, split, tokens);
  require(is_triple_folder(folder), ExitCode::data, folder.string(),
          ": is not a folder of language data: it needs a meta.json, beside train.jsonl or with \"splits\"; of texts "
          "'hrm_train data text' makes one, of prompts and responses 'hrm_train data jsonl'",
          other_data(folder));
  return std::make_shared<TripleDataset>(folder, split, triples);
}

std::vector<WeightedSource> open_language_training(const config::DataConfig& config) {
  std::vector<WeightedSource> sources;
  for (const WeightedPath& path : training_folders(config.train)) {
    sources.push_back(
        {open_language_source(path.folder, "train", triple_options(config), token_options(config)), path.weight});
    const LanguageSource &first = *sources.front().source, &last = *sources.back().source;
    check_same_language(first.meta(), first.origin(), last.meta(), last.origin());
  }
  return sources;
}

ValidationSlice open_validation_slice(const std::string& text, const config::DataConfig& config, int64_t max_samples) {
  const NamedPath path = named_path(text);
  const std::string split = !has_split(path.folder, "val") && has_split(path.folder, "test") ? "test" : "val";
  return {path.name, open_language_source(path.folder, split, triple_options(config), token_options(config)),
          max_samples};
}

std::vector<ValidationSlice> open_validation_slices(const config::DataConfig& config, const LanguageMeta& meta,
                                                    int64_t max_samples) {
  std::vector<std::string> texts;
  if (config.test.empty()) {
    for (const WeightedPath& path : training_folders(config.train)) {
      if (has_split(path.folder, "val")) texts.push_back(path.folder);
    }
  } else if (config.test != "none") {
    texts = split_list(config.test);
  }
  std::vector<ValidationSlice> slices;
  for (const std::string& text : texts) {
    slices.push_back(open_validation_slice(text, config, max_samples));
    const ValidationSlice& slice = slices.back();
    check_same_language(meta, config.train, slice.source->meta(), slice.source->origin());
    for (size_t i = 0; i + 1 < slices.size(); ++i) {
      require(slices[i].name != slice.name, ExitCode::usage, "data.test: two folders have the name '", slice.name,
              "'; give one another name: name:folder");
    }
  }
  return slices;
}

}  // namespace hrm::data
