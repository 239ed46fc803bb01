#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>

#include "data/tokenizer/character_tokenizer.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/commands/language_data.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

// What prompts and answers are written with, the rarest ids behind.
constexpr std::string_view kAnswerCharacters = " +0123456789.,Saefilmoprstu";

// A model for these rows, of the form of Qwen3, to be trained from scratch.
nlohmann::ordered_json model_config(int64_t vocabulary) {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"model_type", "qwen3"},
          {"vocab_size", vocabulary},
          {"hidden_size", 128},
          {"intermediate_size", 384},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", true},
          {"attention_bias", false},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"pad_token_id", nullptr}};
}

}  // namespace

void run_data_answers(const AnswersCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data answers: give the folder to write with --out");
  const AnswersCorpus corpus = make_answers_corpus(command.options);
  const fs::path folder = command.out;
  make_directories(folder);
  const nlohmann::ordered_json config = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}, {"pad_token", "<pad>"}};
  write_text_atomic(folder / "tokenizer.json",
                    internal::character_tokenizer_text({"<pad>", "<bos>", "<eos>"}, kAnswerCharacters));
  write_text_atomic(folder / "tokenizer_config.json", config.dump(1) + "\n");
  // All 256 bytes and the three special tokens.
  write_text_atomic(folder / "config.json", model_config(256 + 3).dump(1) + "\n");
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
