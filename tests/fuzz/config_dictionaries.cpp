// config_dictionaries FOLDER: writes the generated part of the dictionaries config.dict and config_arguments.dict.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "fuzz/config_words.h"

namespace {

bool write(const std::filesystem::path& file, const std::set<std::string>& words) {
  std::ofstream out(file);
  for (const std::string& word : words) out << hrm::fuzz::dictionary_line(word);
  return out.flush().good();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: config_dictionaries FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  const bool written = write(folder / "config.dict", hrm::fuzz::file_words()) &&
                       write(folder / "config_arguments.dict", hrm::fuzz::argument_words());
  return written ? 0 : 3;
}
