#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>

#include "commands/data/language_build.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/language_data.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kFlushBytes = uint64_t{1} << 20;

// A file that grows, and that a build that continues cuts to what its state knows of.
class GrowingFile {
 public:
  GrowingFile(const fs::path& path, uint64_t keep) : path_(path), size_(keep) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    require(fd_ >= 0, ExitCode::environment, "'", path.string(), "' cannot be written: ", std::strerror(errno));
    const off_t there = ::lseek(fd_, 0, SEEK_END);
    if (there < static_cast<off_t>(keep)) {
      ::close(fd_);
      fail(ExitCode::data, "'", path.string(),
           "' is shorter than building.json says; delete the folder and begin anew");
    }
    if (::ftruncate(fd_, static_cast<off_t>(keep)) != 0 || ::lseek(fd_, 0, SEEK_END) < 0) {
      const int why = errno;
      ::close(fd_);
      fail(ExitCode::environment, "'", path.string(), "' cannot be cut: ", std::strerror(why));
    }
  }
  ~GrowingFile() { ::close(fd_); }
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  void add(const std::string& text) {
    waiting_ += text;
    if (waiting_.size() >= kFlushBytes) flush();
  }
  void sync() {
    flush();
    require(::fsync(fd_) == 0, ExitCode::environment, "'", path_.string(),
            "' cannot be written: ", std::strerror(errno));
  }
  uint64_t size() const { return size_; }  // after sync()

 private:
  void flush() {
    write_all(fd_, path_, as_bytes(waiting_));
    size_ += waiting_.size();
    waiting_.clear();
  }
  fs::path path_;
  int fd_ = -1;
  uint64_t size_;
  std::string waiting_;
};

// Where a build stands.
struct Progress {
  size_t file = 0;
  uint64_t offset = 0;  // of the next line in it
  size_t line = 1;
  int64_t record = 0;  // well-formed ones so far
  int64_t validation = 0;
  uint64_t malformed = 0;
  uint64_t train_bytes = 0, val_bytes = 0, tokens = 0;

  json to_json() const {
    return {{"file", file},
            {"offset", offset},
            {"line", line},
            {"record", record},
            {"validation", validation},
            {"malformed", malformed},
            {"train_bytes", train_bytes},
            {"val_bytes", val_bytes},
            {"tokens", tokens}};
  }
  static Progress from_json(const json& at) {
    return {at.at("file"),      at.at("offset"),      at.at("line"),      at.at("record"), at.at("validation"),
            at.at("malformed"), at.at("train_bytes"), at.at("val_bytes"), at.at("tokens")};
  }
};

std::string member(const json& record, const std::string& name) {
  require(record[name].is_string(), ExitCode::data, "'", printable_start(name), "' is not a text");
  return record[name].get<std::string>();
}

void append_ids(std::string& text, const char* key, const std::vector<int32_t>& ids) {
  text += text.empty() ? "{\"" : ",\"";
  text += cat(key, "\":[");
  for (size_t i = 0; i < ids.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(ids[i]);
  text += "]";
}

// The record of ids of a line. Throws Error(data) with the reason alone.
std::string triple_of(std::string_view line, const JsonlCommand& command, const TextEncoder& encoder,
                      uint64_t& tokens) {
  check_jsonl_line(line, ExitCode::data);
  const json record = parse_json(line, "record", ExitCode::data, {.bytes = kMaxJsonlLine, .depth = 16});
  require(record.is_object(), ExitCode::data, "the line is not an object");
  std::vector<int32_t> prompt, response;
  if (record.contains(command.prompt_field) && record.contains(command.response_field)) {
    prompt = encoder.encode(member(record, command.prompt_field));
    response = encoder.encode(member(record, command.response_field));
  } else if (record.contains(command.text_field)) {
    prompt = encoder.encode(member(record, command.text_field));
    const auto cut = static_cast<int64_t>(std::llround(static_cast<double>(prompt.size()) * command.text_prefix));
    response.assign(prompt.begin() + cut, prompt.end());
    prompt.resize(cut);
  } else {
    fail(ExitCode::data, "has neither '", command.prompt_field, "' with '", command.response_field, "' nor '",
         command.text_field, "'; name the right ones with --prompt-field, --response-field or --text-field");
  }
  require(!prompt.empty() && !response.empty(), ExitCode::data, prompt.empty() ? "the prompt" : "the response",
          " is empty");
  internal::check_ids(prompt, encoder.meta);
  internal::check_ids(response, encoder.meta);
  const int64_t begin = encoder.meta.bos_id >= 0 ? encoder.meta.bos_id : encoder.meta.eos_id;
  std::vector<int32_t> decoder{static_cast<int32_t>(begin)};
  decoder.insert(decoder.end(), response.begin(), response.end());
  response.push_back(static_cast<int32_t>(encoder.meta.eos_id));
  std::string text;
  append_ids(text, "encoder_ids", prompt);
  append_ids(text, "decoder_input_ids", decoder);
  append_ids(text, "labels", response);
  tokens += prompt.size() + response.size();
  return text + "}\n";
}

}  // namespace

void run_data_jsonl(const JsonlCommand& command, std::ostream& out) {
  const auto files = internal::input_files(command, "jsonl");
  require(command.text_prefix > 0 && command.text_prefix < 1, ExitCode::usage, "--text-prefix ", command.text_prefix,
          " must be between 0 and 1");
  TextEncoder encoder = internal::encoder_of(command, "jsonl");
  internal::BuildState state(command, files,
                             cat("jsonl 1\n", command.prompt_field, "\n", command.response_field, "\n",
                                 command.text_field, "\n", command.text_prefix));
  if (state.finished()) {
    out << command.out << ": is finished already; nothing was done\n";
    return;
  }
  const fs::path folder = command.out;
  internal::place_tokenizer(encoder, folder);
  Progress at;
  if (!state.saved().is_null()) {
    try {
      at = Progress::from_json(state.saved().at("position"));
    } catch (const json::exception&) {
      fail(ExitCode::data, "'", command.out, "': building.json is damaged; delete the folder and begin anew");
    }
  }
  GrowingFile train(folder / "train.jsonl", at.train_bytes), val(folder / "val.jsonl", at.val_bytes);
  const internal::ValidationDraw draw(command.validation, static_cast<uint64_t>(command.seed), 0);
  uint64_t bytes = 0, before = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += files[i].bytes;
    if (i < at.file) before += files[i].bytes;
  }
  internal::BuildProgress progress(files.size(), bytes, before + at.offset);
  uint64_t saved = before + at.offset;
  for (; at.file < files.size(); before += files[at.file].bytes, ++at.file, at.offset = 0, at.line = 1) {
    const MappedFile file(files[at.file].path);
    refuse_foreign_file(file.bytes(), file.path().string(), ExitCode::data);
    const std::string_view start = without_byte_order_mark(as_text(file.bytes()));
    const size_t first = start.find_first_not_of(" \t\r\n");
    require(
        first == start.npos || start[first] != '[', ExitCode::data, file.path().string(),
        ": is one JSON array, and each line must be a record; make such lines with: jq -c '.[]' FILE > lines.jsonl");
    JsonlLines lines(file.bytes(), at.offset, at.line);
    JsonlLine line;
    while (lines.next(line)) {
      std::string triple;
      try {
        triple = triple_of(line.text, command, encoder, at.tokens);
      } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;
        const std::string reason = cat(file.path().string(), ":", line.number, ": ", error.what());
        require(++at.malformed <= command.max_malformed, ExitCode::data, reason,
                "; malformed lines allowed by --max-malformed: ", command.max_malformed);
        log::warn("skipped: ", reason);
      }
      if (!triple.empty()) {
        const bool held_out = draw(at.record++);
        at.validation += held_out;
        (held_out ? val : train).add(triple);
      }
      at.offset = lines.offset();
      at.line = lines.number();
      if (before + at.offset - saved >= command.save_bytes) {
        train.sync();
        val.sync();
        at.train_bytes = train.size();
        at.val_bytes = val.size();
        state.save({{"position", at.to_json()}});
        saved = before + at.offset;
      }
      progress.show(at.file, before + at.offset, at.tokens);
    }
  }
  train.sync();
  val.sync();
  const double rate = progress.finish(bytes);
  require(at.record > at.validation, ExitCode::data, "'", command.inputs[0], "': the files hold no record to train on");
  require(command.validation == 0 || at.validation > 0, ExitCode::data, "none of the ", at.record,
          " records was drawn for validation; choose a larger --validation, or 0");
  if (at.validation == 0) fs::remove(folder / "val.jsonl");
  fsync_directory(folder);
  write_language_meta(folder, encoder.meta,
                      state.meta_member() + ",\n  \"malformed\": " + std::to_string(at.malformed));
  state.remove();
  out << command.out << ": triples, vocabulary " << encoder.meta.vocab_size << "\ntrain: " << at.record - at.validation
      << " records\nval: " << at.validation << " records\n";
  if (at.malformed > 0) out << at.malformed << " malformed lines were skipped\n";
  out << cat(at.tokens, " ids, read at ", static_cast<int64_t>(rate * 10 + 0.5) / 10.0, " MB/s\n");
}

}  // namespace hrm::data
