// hrm_train generate.
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/data/chat_prompts.h"
#include "hrm/formats/chat_record.h"
#include "hrm/formats/input_window.h"
#include "hrm/formats/json.h"
#include "hrm/formats/jsonl.h"
#include "hrm/formats/record_file.h"
#include "hrm/tasks/answer_text.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/generation.h"
#include "hrm/tasks/language_inference.h"
#include "hrm/tasks/puzzle_inference.h"

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

// One prompt a line, or records as train reads them.
std::vector<Prompt> read_prompts(const GenerateOptions& o) {
  constexpr size_t kLook = 4096;
  if (o.has_prompt) return {{o.prompt, "--prompt", ExitCode::usage}};
  const bool piped = o.input == "-";
  const std::string origin = piped ? "standard input" : o.input;
  const std::string all = piped ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : "";
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
      require(is_utf8(line.text), ExitCode::data, where(), ": the prompt is no UTF-8");
      prompts.push_back({std::string(line.text), where(), ExitCode::data});
    }
  }
  require(!prompts.empty(), ExitCode::data, origin, " holds no prompt; give one a line");
  return prompts;
}

// What stands between the prompt and the answer in the rows that a model was trained with.
int64_t begin_of(const data::LanguageMeta& meta) {
  return meta.bos_id >= 0 ? meta.bos_id : meta.eos_id;
}

// What writes, whatever kind of model it is.
struct GenerateSubject {
  std::optional<tasks::LanguageInference> language;
  std::optional<tasks::CausalInference> causal;
  models::LanguageModel* model = nullptr;
  const data::TextEncoder* text = nullptr;
  std::optional<data::ChatPrompts> chat = {};  // of a model with a template
  int64_t begin_id = -1, vocabulary = 0;
  tasks::AnswerEnds ends = {};
  bool cuda_graphs = true;
};

GenerateSubject open_language_subject(const GenerateOptions& o, const std::vector<std::string>& overrides) {
  require(o.chat_template.empty(), ExitCode::usage,
          "--template is for models of transformers; this one reads prompts as they stand");
  require(o.system.empty(), ExitCode::usage,
          "--system is for models of transformers with a chat template; this one reads prompts as they stand");
  GenerateSubject subject;
  const tasks::LanguageInference& loaded =
      subject.language.emplace(tasks::open_language_model(o.checkpoint, overrides, o.weights));
  require(loaded.text.has_value(), ExitCode::checkpoint, "'", loaded.checkpoint.string(),
          "' does not say which tokenizer made the ids that its model was trained with (tokenizer_file in the "
          "meta.json of its data), so text cannot be turned into them");
  subject.model = loaded.model.get();
  subject.text = &*loaded.text;
  subject.begin_id = begin_of(loaded.meta);
  if (loaded.meta.eos_id >= 0) subject.ends.ids.push_back(loaded.meta.eos_id);
  subject.cuda_graphs = loaded.config.runtime.cuda_graphs;
  return subject;
}

// A checkpoint of task polychromic, or a folder of transformers or PEFT: prompts are made as those of the training
// were.
GenerateSubject open_causal_subject(const GenerateOptions& o, std::vector<std::string> overrides, bool folder) {
  if (!o.chat_template.empty()) overrides.push_back("chat.template=" + o.chat_template);
  if (!o.base.empty()) overrides.push_back("hf.model=" + o.base);
  GenerateSubject subject;
  tasks::CausalInference& loaded =
      subject.causal.emplace(folder ? tasks::open_model_folder(o.checkpoint, overrides)
                                    : tasks::open_causal_checkpoint(o.checkpoint, overrides, o.weights));
  if (loaded.lm.lora) {
    loaded.lm.lora->merge();
    loaded.lm.lora->set_mode(nn::LoraMode::merged);
  }
  subject.model = loaded.lm.model.get();
  subject.text = &loaded.chat->encoder();
  const std::string& name = loaded.chat->name();
  require(o.system.empty() || name == "model" || name == "chatml" || name == "llama3", ExitCode::usage,
          "--system: the chat template ", name, " has no place for it, as model, chatml and llama3 have; leave it out");
  // Of a record what makes the prompt alone: responses, ids and values need not be there.
  const config::ChatConfig& chat = loaded.config.chat;
  const ChatFields fields{.prompt = chat.prompt_field,
                          .response = "",
                          .answers = "",
                          .tools = chat.tools_field,
                          .id = "",
                          .value = "",
                          .texts = {}};
  subject.chat.emplace(*loaded.chat, fields, chat.instruction);
  subject.begin_id = subject.text->meta.bos_id;
  subject.ends = tasks::answer_ends(*loaded.chat, loaded.lm.facts.eos_ids);
  subject.vocabulary = std::min(subject.text->meta.vocab_size, loaded.lm.facts.vocab_size);
  subject.cuda_graphs = loaded.config.runtime.cuda_graphs;
  return subject;
}

GenerateSubject open_generate_subject(const GenerateOptions& o) {
  const std::vector<std::string> overrides{"runtime.device=" + o.device, "runtime.allocator=expandable"};
  if (tasks::is_model_folder(o.checkpoint)) {
    require(o.weights != "ema", ExitCode::checkpoint, "'", o.checkpoint,
            "' holds no averaged weights, as checkpoints may; leave --weights out");
    return open_causal_subject(o, overrides, /*folder=*/true);
  }
  const config::Config stored = tasks::stored_config(o.checkpoint, {});
  tasks::check_base(o.base, o.checkpoint, stored);
  if (stored.task == "polychromic") return open_causal_subject(o, overrides, false);
  return open_language_subject(o, overrides);
}

// An answer that a record has already is left out.
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

void encode_prompts(std::vector<Prompt>& prompts, const GenerateSubject& subject, const std::string& system) {
  const models::LanguageLimits limits = subject.model->limits();
  const int64_t most = limits.prompted ? limits.max_prompt : limits.max_tokens;
  // A plain decoder that learned from prompts and answers has them in one row.
  const bool joined = subject.language && !limits.prompted && subject.language->config.data.encoder_len > 0;
  for (Prompt& prompt : prompts) {
    try {
      prompt.ids = subject.chat ? chat_ids(prompt, *subject.chat, system) : text_ids(prompt, *subject.text);
    } catch (const Error& error) {
      fail(prompt.code, prompt.origin, ": ", error.what());
    }
    if (joined && subject.begin_id >= 0) prompt.ids.push_back(static_cast<int32_t>(subject.begin_id));
    const auto length = static_cast<int64_t>(prompt.ids.size());
    require(most == 0 || length <= most, prompt.code, prompt.origin, ": the prompt has ", length,
            " tokens, but the model takes at most ", most);
    require(length > 0 || (!limits.prompted && subject.begin_id >= 0), prompt.code, prompt.origin,
            ": the prompt is empty");
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

// Answers in the order of their prompts; of a single one in text, each character as soon as it is there.
class Printer {
 public:
  Printer(const std::vector<Prompt>& prompts, const GenerateOptions& options, const GenerateSubject& subject)
      : prompts_(prompts), options_(options), encoder_(*subject.text), stops_(options.stop), begun_(Clock::now()) {
    stops_.insert(stops_.end(), subject.ends.texts.begin(), subject.ends.texts.end());
    told_ = begun_;
    const size_t rows = prompts.size() * static_cast<size_t>(options.samples);
    streams_ = rows == 1 && options.format == "text";
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
    if (options_.format == "text") {
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
  bool streams_ = false;
  size_t next_ = 0, ended_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace

int run_generate(const GenerateOptions& o) {
  tasks::GenerateOptions options;
  options.max_new_tokens = o.max_new_tokens;
  options.sampling = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .min_p = o.min_p};
  options.seed = static_cast<uint64_t>(o.seed);
  options.samples = o.samples;
  tasks::check(options.sampling);
  std::vector<Prompt> prompts = read_prompts(o);

  const GenerateSubject subject = open_generate_subject(o);
  encode_prompts(prompts, subject, o.system);
  std::vector<std::vector<int32_t>> ids;
  for (Prompt& prompt : prompts) ids.push_back(std::move(prompt.ids));
  options.begin_id = subject.begin_id;
  options.stop_ids = subject.ends.ids;
  options.vocabulary = subject.vocabulary;

  tasks::Generator generator(*subject.model, {.batch_size = o.batch_size, .cuda_graphs = subject.cuda_graphs});
  Printer printer(prompts, o, subject);
  generator.run(ids, options,
                {.on_token = [&](int64_t row, int32_t id) { return printer.add(row, id); },
                 .on_end = [&](int64_t row, const tasks::Generated& generated) { printer.end(row, generated); }});
  log::progress_done();
  const double seconds = printer.seconds();
  const size_t rows = prompts.size() * static_cast<size_t>(o.samples);
  log::info(rows, rows == 1 ? " answer, " : " answers, ", printer.tokens(), " tokens in ", human_seconds(seconds), ", ",
            std::fixed, std::setprecision(1), static_cast<double>(printer.tokens()) / seconds, " tokens/s");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
