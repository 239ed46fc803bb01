#include <algorithm>
#include <cmath>
#include <ostream>
#include <string>

#include "data/tokenizer/character_tokenizer.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/philox.h"
#include "hrm/commands/language_data.h"
#include "hrm/data/sampler.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxDigits = 6;  // CounterPermutation takes 2^40 problems
constexpr int32_t kPadId = 0, kBosId = 1, kEosId = 2, kFirstCharacter = 3;
constexpr std::string_view kArithmeticCharacters = " +0123456789?Wahist";
constexpr int64_t kVocabulary = kFirstCharacter + 256;  // these characters, then all other bytes

int32_t character_id(char c) {
  return kFirstCharacter + static_cast<int32_t>(kArithmeticCharacters.find(c));
}

std::string text_of_ids(const std::vector<int32_t>& ids) {
  std::string text = "[";
  for (const int32_t id : ids) text += (text.size() > 1 ? "," : "") + std::to_string(id);
  return text + "]";
}

std::vector<int32_t> ids_of(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(character_id(c));
  return ids;
}

std::string record_of(int64_t a, int64_t b) {
  std::vector<int32_t> decoder = ids_of(std::to_string(a + b)), labels = decoder;
  decoder.insert(decoder.begin(), kBosId);
  labels.push_back(kEosId);
  return "{\"encoder_ids\":" + text_of_ids(ids_of(cat("What is ", a, " + ", b, "?"))) +
         ",\"decoder_input_ids\":" + text_of_ids(decoder) + ",\"labels\":" + text_of_ids(labels) + "}\n";
}

}  // namespace

void run_data_arithmetic(const ArithmeticCommand& command, std::ostream& out) {
  require(!command.out.empty(), ExitCode::usage, "data arithmetic: give the folder to write with --out");
  require(command.digits >= 1 && command.digits <= kMaxDigits, ExitCode::usage, "--digits ", command.digits,
          " is not within 1 to ", kMaxDigits);
  require(command.samples >= 1, ExitCode::usage, "--samples must be at least 1");
  require(command.validation > 0 && command.validation <= 1, ExitCode::usage, "--validation ", command.validation,
          " must be above 0 and at most 1");
  int64_t numbers = 1;
  for (int64_t i = 0; i < command.digits; ++i) numbers *= 10;
  const int64_t problems = numbers * numbers;
  const int64_t held = std::max<int64_t>(1, std::llround(static_cast<double>(command.samples) * command.validation));
  const double share = static_cast<double>(held) / static_cast<double>(command.samples + held);
  const uint64_t seed = static_cast<uint64_t>(command.seed);
  const CounterPermutation order(seed, 0, static_cast<uint64_t>(problems));
  std::string train, validation;
  int64_t train_count = 0, held_count = 0;
  for (int64_t i = 0; i < problems && (train_count < command.samples || held_count < held); ++i) {
    const int64_t problem = static_cast<int64_t>(order(static_cast<uint64_t>(i)));
    const int64_t a = problem / numbers, b = problem % numbers;
    // The draw belongs to the pair in either order.
    CounterRng rng(seed, Stream::generate, static_cast<uint64_t>(std::min(a, b) * numbers + std::max(a, b)));
    const bool to_validation = rng.uniform() < static_cast<float>(share);
    if (to_validation && held_count < held) {
      validation += record_of(a, b);
      ++held_count;
    } else if (!to_validation && train_count < command.samples) {
      train += record_of(a, b);
      ++train_count;
    }
  }
  require(train_count == command.samples && held_count == held, ExitCode::usage, "with --digits ", command.digits,
          " there are ", problems, " problems, of which ", train_count, " of ", command.samples, " for training and ",
          held_count, " of ", held, " for validation were found; choose fewer --samples or more --digits");
  const fs::path folder = command.out;
  make_directories(folder);
  LanguageMeta meta;
  meta.vocab_size = kVocabulary;
  meta.pad_id = kPadId;
  meta.bos_id = kBosId;
  meta.eos_id = kEosId;
  meta.tokenizer_file = "tokenizer.json";
  const std::string tokenizer = internal::character_tokenizer_text({"<pad>", "<bos>", "<eos>"}, kArithmeticCharacters);
  meta.tokenizer_digest = digest_hex(as_bytes(tokenizer));
  write_text_atomic(folder / meta.tokenizer_file, tokenizer);
  write_text_atomic(folder / "train.jsonl", train);
  write_text_atomic(folder / "val.jsonl", validation);
  write_language_meta(folder, meta);
  // "What is 12 + 34?", and an answer with one digit more and BOS or EOS.
  out << command.out << ": sums of numbers of up to " << command.digits << " digits, vocabulary " << meta.vocab_size
      << ", up to " << 12 + 2 * command.digits << " encoder and " << command.digits + 2 << " decoder ids\n"
      << "train: " << train_count << " problems\nval: " << held_count
      << " problems, none of them in train, also not as b + a\n";
}

}  // namespace hrm::data
