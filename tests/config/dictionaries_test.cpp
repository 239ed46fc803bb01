// What the fuzz targets of configurations are given to make inputs of: tests/fuzz/config_words.h, and the kept
// dictionaries (tests/fuzz/dictionaries), which are to hold no word of a configuration.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "fuzz/config_words.h"
#include "support/paths.h"

namespace hrm::config {
namespace {

std::set<std::string> lines_of(const std::string& name) {
  std::ifstream in(test::source_dir() + "/tests/fuzz/dictionaries/" + name);
  std::set<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.insert(line + "\n");
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

TEST(FuzzDictionaries, HoldSectionsKeysAndChoicesOfAFile) {
  const std::set<std::string> words = fuzz::file_words();
  for (const char* word : {"\"task\":", "\"model\":", "\"hidden_size\":", "\"nvtx\":", "\"include_eval\":", "\"trm\"",
                           "\"puzzle\"", "\"1-sqrt\"", "\"halt\":", "\"q_continue\":"}) {
    EXPECT_TRUE(words.count(word)) << word;
  }
  for (const Section& section : sections()) EXPECT_TRUE(words.count("\"" + section.name + "\":")) << section.name;
}

TEST(FuzzDictionaries, HoldSectionsKeysAndChoicesOfACommandLine) {
  const std::set<std::string> words = fuzz::argument_words();
  for (const char* word : {"task", "model.", "hidden_size", "nvtx.include_eval", "trm", "puzzle", "halt.q_continue"}) {
    EXPECT_TRUE(words.count(word)) << word;
  }
  for (const Section& section : sections()) EXPECT_TRUE(words.count(section.name + ".")) << section.name;
}

// libFuzzer refuses a dictionary with a line that it cannot read.
TEST(FuzzDictionaries, LinesAreReadable) {
  EXPECT_EQ(fuzz::dictionary_line("\"trm\":"), "\"\\x22trm\\x22:\"\n");
  for (const auto& words : {fuzz::file_words(), fuzz::argument_words()}) {
    for (const std::string& word : words) {
      EXPECT_TRUE(std::all_of(word.begin(), word.end(), [](char c) { return c > ' ' && c < 0x7F && c != '\\'; }))
          << word;
    }
  }
}

TEST(FuzzDictionaries, KeptOnesHoldNoWordOfAConfiguration) {
  const auto check = [](const std::string& name, const std::set<std::string>& words) {
    const std::set<std::string> kept = lines_of(name);
    for (const std::string& word : words) EXPECT_FALSE(kept.count(fuzz::dictionary_line(word))) << name << ": " << word;
  };
  check("config.dict", fuzz::file_words());
  check("config_arguments.dict", fuzz::argument_words());
}

}  // namespace
}  // namespace hrm::config
