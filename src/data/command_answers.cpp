#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "data/character_tokenizer.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/data/language_commands.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

// What prompts and answers are written with, the rarest ids behind.
constexpr std::string_view kCharacters = " +0123456789.,Saefilmoprstu";

}  // namespace

void run_data_answers(const AnswersCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data answers: give the folder to write with --out");
  const AnswersCorpus corpus = make_answers_corpus(command.options);
  const fs::path folder = command.out;
  make_directories(folder);
  const nlohmann::ordered_json config = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"pad_token", "<pad>"}};
  write_text_atomic(folder / "tokenizer.json",
                    internal::character_tokenizer_text({"<pad>", "<bos>", "<eos>"}, kCharacters));
  write_text_atomic(folder / "tokenizer_config.json", config.dump(1) + "\n");
  out << command.out << ": numbers up to " << command.options.largest << " split in two, " << kFewestAnswers << " to "
      << kMostAnswers << " right answers to a prompt, " << corpus.problems << " prompts in all\n";
  const auto write = [&](const char* split, const std::string& text, int64_t prompts) {
    const fs::path file = folder / (std::string(split) + ".jsonl");
    std::error_code ignored;
    if (prompts == 0) {
      fs::remove(file, ignored);  // of an earlier build
      return;
    }
    write_text_atomic(file, text);
    out << split << ": " << prompts << " prompts, " << prompts * command.options.responses << " records\n";
  };
  write("train", corpus.train, command.options.train);
  write("val", corpus.validation, command.options.validation);
  write("test", corpus.test, command.options.test);
}

}  // namespace hrm::data
