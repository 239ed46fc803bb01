// hrm_train generate.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands/parts.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/data/chat_prompts.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"
#include "hrm/formats/record_file.h"
#include "hrm/runtime/nvtx.h"
#include "hrm/tasks/answer_text.h"
#include "hrm/tasks/generation.h"
#include "hrm/tasks/registry.h"
#include "hrm/tasks/text_writer.h"

namespace hrm::commands {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Prompt {
  std::string text;         // of a record of messages: empty
  std::string origin;       // for messages: "prompts.txt:7"
  ExitCode code;            // of an error in it
  std::string record = {};  // the line of JSON that it comes from; empty: it is a text alone
  std::vector<ChatMessage> messages = {};
  std::string tools = {};  // ChatRecord::tools
  std::vector<int32_t> ids = {};
};

nlohmann::json parse_record(std::string_view line, const std::string& where) {
  nlohmann::json record = parse_json(line, where, ExitCode::data, {.bytes = kMaxJsonlLine, .depth = 16});
  require(record.is_object(), ExitCode::data, where,
          ": give an object with a text \"prompt\", or with \"messages\", on each line");
  return record;
}

// Whether prompts are records: by the file's name, or because its text begins as records do, alone or in one array.
bool holds_records(const std::string& name, std::string_view start) {
  constexpr std::string_view kSpace = " \t\r\n";
  size_t first = start.find_first_not_of(kSpace);
  if (is_record_file_name(name)) return true;
  if (first != start.npos && start[first] == '[') first = start.find_first_not_of(kSpace, first + 1);
  return first != start.npos && start[first] == '{';
}

// One prompt a line, or records as train reads them. A launcher gives standard input to rank 0, or to several ranks
// that would each take some of it: rank 0 reads it for all.
std::vector<Prompt> read_prompts(const GenerateOptions& o, parallel::Comm& comm) {
  constexpr size_t kLook = 4096;
  if (o.has_prompt) return {{o.prompt, "--prompt", ExitCode::usage}};
  const bool piped = o.input == "-";
  const std::string origin = piped ? "standard input" : o.input;
  std::string all;
  if (piped && comm.main()) all.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (piped && !comm.alone()) all = comm.all_gather_text(all)[0];
  InputWindow input = piped ? InputWindow(as_bytes(all), origin) : InputWindow(o.input);
  std::vector<Prompt> prompts;
  JsonlLine line;
  const auto where = [&] { return cat(origin, ":", line.number); };
  if (holds_records(o.input, input.view(kLook))) {
    RecordFile records = piped ? RecordFile(as_bytes(all), origin) : RecordFile(o.input);
    while (records.next(line)) {
      parse_record(line.text, where());  // of which members it is made, the model says
      prompts.push_back({.text = "", .origin = where(), .code = ExitCode::data, .record = std::string(line.text)});
    }
  } else {
    const std::string text = input.rest();
    JsonlLines lines(as_bytes(text));
    while (lines.next(line)) {
      require(is_utf8(line.text), ExitCode::data, where(), ": the prompt is not UTF-8");
      prompts.push_back({std::string(line.text), where(), ExitCode::data});
    }
  }
  require(!prompts.empty(), ExitCode::data, origin, " holds no prompt; give one a line");
  return prompts;
}

// What the options say of the configuration.
std::vector<std::string> overrides_of(const GenerateOptions& o) {
  std::vector<std::string> overrides{"runtime.device=" + o.device, "runtime.allocator=expandable"};
  if (!o.quantize.empty()) overrides.push_back("hf.quantize=" + o.quantize);
  return overrides;
}

tasks::TextWriter open_writer(const GenerateOptions& o, train::Ranks& ranks) {
  const tasks::StoredModel stored = open_in_parts("generate", ranks, o.checkpoint, overrides_of(o), o.base);
  const tasks::TaskSpec& spec = tasks::task_spec(stored.config);
  require(spec.open_writer != nullptr, ExitCode::usage, "'", stored.folder.string(), "' holds a model of task ",
          spec.settings->name, ", not a language model; use hrm_train solve or eval");
  return spec.open_writer(stored, {.weights = o.weights, .chat_template = o.chat_template, .system = o.system});
}

// An answer that a record has already is skipped.
std::vector<int32_t> chat_ids(Prompt& prompt, const data::ChatPrompts& chat, const std::string& system) {
  const ChatRecord record = prompt.record.empty() ? chat.record_of(prompt.text) : chat.read(prompt.record);
  if (!prompt.record.empty()) {
    require(!record.messages.empty() || !parse_record(prompt.record, prompt.origin).contains("messages"), prompt.code,
            "'messages' has nothing to answer");
    prompt.text = record.prompt;
    prompt.messages = record.messages;
    prompt.tools = record.tools;
  }
  data::ChatPrompts::Asked asked = chat.ask(record);
  if (!system.empty()) {
    require(asked.messages[0].role != "system", prompt.code,
            "'messages' begins with a system message of its own; leave --system out");
    asked.messages.insert(asked.messages.begin(), {.role = "system", .content = system});
  }
  return chat.encoder().prompt_ids(asked.messages, asked.values, asked.more);
}

std::vector<int32_t> text_ids(Prompt& prompt, const data::TextEncoder& text) {
  if (!prompt.record.empty()) {
    const nlohmann::json record = parse_record(prompt.record, prompt.origin);
    require(!record.contains("messages"), prompt.code,
            "'messages' are for models of transformers with a chat template; give \"prompt\"");
    const auto found = record.find("prompt");
    require(found != record.end() && found->is_string(), prompt.code,
            "give an object with a text \"prompt\" on each line");
    prompt.text = found->get<std::string>();
  }
  return text.encode(prompt.text);
}

void encode_prompts(std::vector<Prompt>& prompts, const tasks::TextWriter& writer, const std::string& system) {
  const models::LanguageLimits limits = writer.model->limits();
  const int64_t most = limits.prompted ? limits.max_prompt : limits.max_tokens;
  for (Prompt& prompt : prompts) {
    try {
      prompt.ids = writer.chat ? chat_ids(prompt, *writer.chat, system) : text_ids(prompt, *writer.text);
    } catch (const Error& error) {
      fail(prompt.code, prompt.origin, ": ", error.what());
    }
    if (writer.joins && writer.begin_id >= 0) prompt.ids.push_back(static_cast<int32_t>(writer.begin_id));
    const auto length = static_cast<int64_t>(prompt.ids.size());
    require(most == 0 || length <= most, prompt.code, prompt.origin, ": the prompt has ", length,
            " tokens, but the model takes at most ", most);
    require(length > 0 || (!limits.prompted && writer.begin_id >= 0), prompt.code, prompt.origin,
            ": the prompt is empty");
  }
}

// What else ranks must agree on, so that each enters the same operations.
std::string shared_options(const GenerateOptions& o) {
  std::string text = cat(o.max_new_tokens, " ", o.temperature, " ", o.top_k, " ", o.top_p, " ", o.min_p, " ", o.samples,
                         " ", o.seed, " ", o.batch_size, " ", o.weights, " ", o.chat_template, " ", o.system, " ",
                         o.has_prompt     ? "prompt"
                         : o.input == "-" ? "standard input"
                                          : "file");
  for (const std::string& stop : o.stop) text += cat(" ", stop);
  return text;
}

// Ranks with other prompts would wait in operations that the others do not know.
void check_same_prompts(const std::vector<std::vector<int32_t>>& ids, parallel::Comm& comm) {
  if (comm.alone()) return;
  Hasher hasher;
  for (const std::vector<int32_t>& prompt : ids) {
    hasher.update(cat(prompt.size(), ":"));
    hasher.update(std::as_bytes(std::span(prompt)));
  }
  const std::vector<std::string> all = comm.all_gather_text(hasher.hex());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    require(all[rank] == all[0], ExitCode::data, "rank ", rank,
            " reads other prompts than rank 0; give all ranks the same options and files");
  }
}

const char* finish_name(tasks::Finish finish) {
  switch (finish) {
    case tasks::Finish::stop_id:
      return "eos";
    case tasks::Finish::listener:
      return "stop";
    case tasks::Finish::length:
      return "length";
  }
  return "";
}

// Answers in the order of their prompts; of a single one in text, each character as soon as it is there. All ranks put
// the texts together, which may end by --stop, and one prints them.
class Printer {
 public:
  Printer(const std::vector<Prompt>& prompts, const GenerateOptions& options, const tasks::TextWriter& writer,
          bool prints)
      : prompts_(prompts),
        options_(options),
        encoder_(*writer.text),
        stops_(options.stop),
        begun_(Clock::now()),
        prints_(prints) {
    stops_.insert(stops_.end(), writer.ends.texts.begin(), writer.ends.texts.end());
    told_ = begun_;
    const size_t rows = prompts.size() * static_cast<size_t>(options.samples);
    streams_ = prints && rows == 1 && options.format == "text";
    answers_.resize(rows);
  }

  bool add(int64_t row, int32_t id) {
    Answer& answer = at(row);
    answer.text += answer.pieces->push(id);
    ++tokens_;
    if (streams_) print_new(answer);
    return !answer.pieces->stopped();
  }

  void end(int64_t row, const tasks::Generated& generated) {
    Answer& answer = at(row);
    answer.text += answer.pieces->finish();
    // The stop string may come to its end with the last token that there is room for.
    answer.finish = answer.pieces->stopped() ? tasks::Finish::listener : generated.finish;
    answer.tokens = generated.ids.size();
    answer.ended = true;
    for (; next_ < answers_.size() && answers_[next_].ended; ++next_) print(next_);
    ++ended_;
    tell();
  }

  int64_t tokens() const { return tokens_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

 private:
  struct Answer {
    std::unique_ptr<tasks::AnswerText> pieces = {};
    std::string text = {};
    size_t printed = 0, tokens = 0;
    tasks::Finish finish = tasks::Finish::length;
    bool ended = false;
  };

  Answer& at(int64_t row) {
    Answer& answer = answers_[static_cast<size_t>(row)];
    if (!answer.pieces) answer.pieces = std::make_unique<tasks::AnswerText>(encoder_, stops_);
    return answer;
  }

  void print_new(Answer& answer) {
    std::cout << std::string_view(answer.text).substr(answer.printed) << std::flush;
    answer.printed = answer.text.size();
  }

  void print(size_t row) {
    Answer& answer = answers_[row];
    if (!prints_) {
      // Rank 0 does.
    } else if (options_.format == "text") {
      print_new(answer);
      std::cout << "\n" << std::flush;
    } else {
      const auto samples = static_cast<size_t>(options_.samples);
      Json json;
      const Prompt& prompt = prompts_[row / samples];
      if (prompt.messages.empty()) json["prompt"] = prompt.text;
      for (const ChatMessage& message : prompt.messages) {
        json["messages"].push_back(message.json.empty() ? Json({{"role", message.role}, {"content", message.content}})
                                                        : Json::parse(message.json));
      }
      if (!prompt.tools.empty()) json["tools"] = Json::parse(prompt.tools);
      if (samples > 1) json["sample"] = row % samples;
      json["text"] = answer.text;
      json["tokens"] = answer.tokens;
      json["finish"] = finish_name(answer.finish);
      std::cout << json.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
    }
    answer = {.ended = true};
  }

  void tell() {
    const Clock::time_point now = Clock::now();
    if (answers_.size() == 1 || now - told_ < std::chrono::seconds(1)) return;
    told_ = now;
    log::progress(cat(ended_, " of ", answers_.size(), " answers, ",
                      static_cast<int64_t>(static_cast<double>(tokens_) / seconds()), " tokens/s"));
  }

  const std::vector<Prompt>& prompts_;
  const GenerateOptions& options_;
  const data::TextEncoder& encoder_;
  std::vector<std::string> stops_;
  Clock::time_point begun_, told_;
  std::vector<Answer> answers_;
  bool prints_, streams_ = false;
  size_t next_ = 0, ended_ = 0;
  int64_t tokens_ = 0;
};

int generate(const GenerateOptions& o, train::Ranks& ranks) {
  tasks::GenerateOptions options;
  options.max_new_tokens = o.max_new_tokens;
  options.sampling = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .min_p = o.min_p};
  options.seed = static_cast<uint64_t>(o.seed);
  options.samples = o.samples;
  tasks::check(options.sampling);
  if (!ranks.comm->alone()) train::check_same_program(*ranks.comm, shared_options(o));
  std::vector<Prompt> prompts = read_prompts(o, *ranks.comm);

  const tasks::TextWriter writer = open_writer(o, ranks);
  encode_prompts(prompts, writer, o.system);
  std::vector<std::vector<int32_t>> ids;
  for (Prompt& prompt : prompts) ids.push_back(std::move(prompt.ids));
  check_same_prompts(ids, *ranks.comm);
  options.begin_id = writer.begin_id;
  options.stop_ids = writer.ends.ids;
  options.vocabulary = writer.vocabulary;

  tasks::Generator generator(*writer.model, {.batch_size = o.batch_size, .cuda_graphs = writer.cuda_graphs});
  Printer printer(prompts, o, writer, ranks.comm->main());
  {
    const ProfilerRange range(RangeKind::sample, "generate");
    generator.run(ids, options,
                  {.on_token =
                       [&](int64_t row, int32_t id) {
                         report_alive(ranks, printer.tokens(), "step");
                         return printer.add(row, id);
                       },
                   .on_end = [&](int64_t row, const tasks::Generated& generated) { printer.end(row, generated); }});
  }
  log::progress_done();
  const double seconds = printer.seconds();
  const size_t rows = prompts.size() * static_cast<size_t>(o.samples);
  log::info(rows, rows == 1 ? " answer, " : " answers, ", printer.tokens(), " tokens in ", human_seconds(seconds), ", ",
            std::fixed, std::setprecision(1), static_cast<double>(printer.tokens()) / seconds, " tokens/s");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_generate(const GenerateOptions& o) {
  return run_in_parts("generate", overrides_of(o), [&](train::Ranks& ranks) { return generate(o, ranks); });
}

}  // namespace hrm::commands
