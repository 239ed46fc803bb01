#include "data/other_data.h"

#include <algorithm>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/hf_config.h"
#include "hrm/formats/input_window.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostEntries = 1000;  // entries of a folder to look at, including subfolders

std::string other_file(const fs::path& file) {
  constexpr size_t kLook = 512;
  try {
    const MappedFile mapped(file);
    return foreign_file(mapped.bytes().first(std::min(kLook, mapped.bytes().size())), file.string());
  } catch (const Error&) {
    return "";  // opening the file reports the error
  }
}

std::string other_folder(const fs::path& folder) {
  std::error_code error;
  const bool saved = fs::exists(folder / "dataset_dict.json", error) ||
                     (fs::exists(folder / "dataset_info.json", error) && fs::exists(folder / "state.json", error));
  if (saved) {
    const std::string name = printable(folder.string());
    const char* part = fs::exists(folder / "dataset_dict.json", error) ? "['train']" : "";
    return cat("; it was written by save_to_disk of the library datasets; make JSON lines of it: python3 -c \"from ",
               "datasets import load_from_disk; load_from_disk('", name, "')", part, ".to_json('train.jsonl')\"");
  }
  // The usual names in puzzle datasets on the Hugging Face Hub.
  for (const char* name : {"train.csv", "test.csv", "train.csv.gz", "test.csv.gz"}) {
    if (!fs::exists(folder / name, error)) continue;
    return cat("; give a file of it, such as '", printable((folder / name).string()), "'");
  }
  std::vector<fs::path> files;
  size_t entries = 0;
  for (fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end && entries < kMostEntries; at.increment(error), ++entries) {
    if (!at->path().filename().string().starts_with('.') && at->is_regular_file(error)) files.push_back(at->path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const std::string kind = other_file(file);
    if (!kind.empty()) return cat("; of '", printable(file.string()), "' inside of it: ", kind);
  }
  return "";
}

}  // namespace

std::string other_data(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return hub_name_hint(path.string(), HubKind::data);
  if (fs::is_directory(path, ignored)) return other_folder(path);
  const std::string kind = other_file(path);
  return kind.empty() ? "" : "; " + kind;
}

std::string other_table(const fs::path& path) {
  const std::string suffix = content_suffix(path);
  if (suffix != ".csv" && suffix != ".tsv") return "";
  const std::string name = printable(path.string()), stem = name.substr(0, name.rfind('.'));
  return cat("this is a table, and prompts and responses are JSON lines; make them: python3 -c \"import pandas; ",
             "pandas.read_csv('", name, "'", suffix == ".tsv" ? ", sep='\\t'" : "", ", dtype=str).to_json('", stem,
             ".jsonl', orient='records', lines=True)\"");
}

}  // namespace hrm::data
