#include <algorithm>
#include <charconv>
#include <istream>
#include <ostream>
#include <thread>

#include "data/tokenizer/unicode.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/data.h"
#include "hrm/data/bpe_training.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/file_kind.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTogether = size_t{1} << 20;  // bytes of lines

// Minutes of work must not end at a file that can never be written.
void check_can_write(const std::string& file) {
  std::error_code error;
  require(!fs::is_directory(file, error), ExitCode::environment, "--out '", printable(file),
          "' is a folder; give the name of a file");
  const fs::path folder = fs::path(file).has_parent_path() ? fs::path(file).parent_path() : fs::path(".");
  require(fs::is_directory(folder, error), ExitCode::environment, "--out '", printable(file), "': there is no folder '",
          printable(folder.string()), "'; make it first");
}

void check_utf8(std::string_view text, const std::string& where) {
  const size_t valid = utf8_prefix(text);
  require(valid == text.size(), ExitCode::data, where, ": is not UTF-8 at byte ", valid, " of ", text.size());
}

void write_ids(const std::vector<int32_t>& ids, std::string& out) {
  char digits[16];
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ' ';
    out.append(digits, std::to_chars(digits, digits + sizeof digits, ids[i]).ptr);
  }
  out += '\n';
}

std::vector<int32_t> read_ids(std::string_view line, size_t number) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = line.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    const auto id = whole_number(word);
    require(id && *id <= INT32_MAX, ExitCode::data, "standard input, line ", number, ": '", printable_start(word),
            "' is not an id; a line holds ids with spaces between");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

void decode_lines(const TokenizeCommand& command, const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const std::vector<int32_t> ids = read_ids(line, number);
    try {
      out << tokenizer.decode(ids, command.skip_special) << '\n';
    } catch (const Error& error) {
      fail(error.code(), "standard input, line ", number, ": ", error.what());
    }
  }
}

void encode_lines(const TokenizeCommand& command, const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  std::vector<std::string> lines;
  size_t number = 0, bytes = 0;
  std::string text;
  const auto write = [&] {
    const std::vector<std::string_view> views(lines.begin(), lines.end());
    text.clear();
    for (const auto& ids : tokenizer.encode_batch(views, static_cast<int>(command.threads), command.add_special)) {
      write_ids(ids, text);
    }
    out << text;
    lines.clear();
    bytes = 0;
  };
  for (std::string line; std::getline(in, line);) {
    check_utf8(line, cat("standard input, line ", ++number));
    if (number == 1) line.erase(0, line.size() - without_byte_order_mark(line).size());
    bytes += line.size() + 1;
    lines.push_back(std::move(line));
    if (bytes >= kTogether) write();
  }
  write();
}

}  // namespace

void run_data_tokenizer(const TrainTokenizerCommand& command, std::ostream& out) {
  check_can_write(command.out);
  std::vector<MappedFile> files;
  std::vector<std::string_view> texts;
  for (const std::string& name : command.texts) {
    files.emplace_back(name);
    refuse_foreign_file(files.back().bytes(), name, ExitCode::data);
    texts.push_back(as_text(files.back().bytes()));
    check_utf8(texts.back(), printable(name));
    texts.back() = without_byte_order_mark(texts.back());
  }
  BpeTrainingOptions options;
  options.vocab_size = static_cast<int32_t>(command.vocab_size);
  options.min_frequency = command.min_frequency;
  options.special_tokens = command.special;
  options.words = command.words;
  options.nfc = !command.no_nfc;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  options.threads = static_cast<int>(command.threads > 0 ? command.threads : std::min(cores, 1024u));
  options.progress = [](const BpeTrainingProgress& progress) {
    log::progress(cat(progress.stage, ": ", progress.done, " of ", progress.total));
  };
  const TokenizerJson json = train_bpe(texts, options);
  log::progress_done();
  const Tokenizer tokenizer(json, command.out, ExitCode::unexpected);
  write_text_atomic(command.out, tokenizer_json_text(json));
  out << command.out << ": " << tokenizer.vocab_size() << " tokens (256 bytes, " << json.vocabulary.size() - 256
      << " learned, " << json.added_tokens.size() << " special), digest " << tokenizer.digest() << "\n";
  if (tokenizer.vocab_size() < command.vocab_size) {
    out << "no other pair stands " << command.min_frequency << " times in the text, so there are fewer than the "
        << command.vocab_size << " that were asked for\n";
  }
}

void run_data_tokenize(const TokenizeCommand& command, std::istream& in, std::ostream& out) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  if (command.decode) {
    decode_lines(command, tokenizer, in, out);
  } else {
    encode_lines(command, tokenizer, in, out);
  }
}

}  // namespace hrm::data
