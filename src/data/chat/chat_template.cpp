#include "hrm/data/chat_template.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <span>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBosField = "{bos}", kEosField = "{eos}", kResponseField = "{response}";
constexpr std::string_view kAsciiSpace = " \t\n\v\f\r";
constexpr uint64_t kConfigBytes = uint64_t{16} << 20;
// Newer versions of the library write this file instead of the member chat_template.
constexpr const char* kJinjaFile = "chat_template.jinja";
constexpr const char* kDefault = "default";
constexpr const char* kChoices = "name the template with chat.template: chatml, llama3, plain or custom";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kAsciiSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kAsciiSpace) + 1 - begin);
}

using config::ChatTemplateKind;
using Json = nlohmann::ordered_json;

// The message as transformers passes it to a template: without null members, and with reasoning under each of its
// names.
Json message_json(const ChatMessage& message) {
  if (message.json.empty()) return {{"role", message.role}, {"content", message.content}};
  const Json whole = Json::parse(message.json);
  Json out = Json::object();
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const auto thoughts = whole.find(name);
    if (thoughts == whole.end() || thoughts->is_null()) continue;
    out["thinking"] = *thoughts;
    for (const auto& [key, value] : whole.items()) {
      if (!value.is_null()) out[key] = value;
    }
    out["reasoning_content"] = *thoughts;
    return out;
  }
  for (const auto& [key, value] : whole.items()) {
    if (!value.is_null()) out[key] = value;
  }
  return out;
}

// Parses a date like "2026-11-25".
void set_date(const std::string& date, JinjaOptions& options) {
  const bool has_form = date.size() == 10 && date[4] == '-' && date[7] == '-';
  const auto part = [&](size_t begin, size_t size) {
    const std::optional<uint64_t> number =
        has_form ? whole_number(std::string_view(date).substr(begin, size)) : std::nullopt;
    return number ? static_cast<int>(*number) : 0;
  };
  const int year = part(0, 4), month = part(5, 2), day = part(8, 2);
  const std::chrono::year_month_day when{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  require(year >= 1900 && when.ok(), ExitCode::usage, "chat.date is '", printable_start(date),
          "', which is not a day of the form 2026-11-25");
  options.year = year;
  options.month = month;
  options.day = day;
}

// The length of the common prefix, in whole characters.
size_t common_length(const std::string& a, const std::string& b) {
  size_t length = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (length > 0 && length < a.size() && (static_cast<unsigned char>(a[length]) & 0xC0) == 0x80) --length;
  return length;
}

// Where each token ends in the text, in bytes.
std::vector<size_t> token_ends(const std::string& text, const std::vector<int32_t>& ids, const TextEncoder& encoder) {
  std::vector<size_t> ends;
  size_t end = 0;
  for (const int32_t id : ids) {
    const int64_t bytes = encoder.bytes(id);
    ends.push_back(end += bytes > 0 ? static_cast<size_t>(bytes) : encoder.decode({id}).size());
  }
  require(end == text.size(), ExitCode::data, "its ids stand for ", end, " bytes of a text of ", text.size(),
          ": the tokenizer changes the text, so that what the assistant says cannot be found in them; "
          "set chat.learn to response");
  return ends;
}

}  // namespace

std::vector<uint8_t> generated_marks(const JinjaOutput& output, const std::vector<int32_t>& ids,
                                     const TextEncoder& encoder) {
  const std::vector<size_t> ends = token_ends(output.text, ids, encoder);
  std::vector<uint8_t> marks(ids.size());
  size_t span = 0;
  const auto& spans = output.generated;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t from = i == 0 ? 0 : ends[i - 1], to = ends[i];
    const auto [leading, trailing] = encoder.white_ends(ids[i], from == 0);
    const size_t begin = std::min(from + static_cast<size_t>(leading), to);
    const size_t end = std::max(to - static_cast<size_t>(trailing), begin);
    while (span < spans.size() && begin >= spans[span].second) ++span;
    marks[i] = span < spans.size() && end > spans[span].first ? 1 : 0;
  }
  return marks;
}

ChatEncoder::ChatEncoder(TextEncoder encoder, const ChatTemplateOptions& options, const ModelTemplate& model)
    : encoder_(std::move(encoder)), options_(options) {
  const ChatTemplateKind name = options_.name;
  require(name != ChatTemplateKind::automatic, ExitCode::usage,
          "a chat template is model, chatml, llama3, plain or custom, not 'auto'");
  require(name == ChatTemplateKind::custom || (options_.prompt_template.empty() && options_.response_template.empty()),
          ExitCode::usage, "the chat template ", name, " has its own texts; choose custom for a prompt_template and a ",
          "response_template");
  if (name == ChatTemplateKind::custom) {
    set_custom();
  } else if (name == ChatTemplateKind::model) {
    set_model(model);
  } else if (name == ChatTemplateKind::plain) {
    eos_ = true;
    if (options_.bos == config::ChatBos::off) encoder_.leading.clear();
  } else {
    const bool knows = encoder_.id_of("<think>") && encoder_.id_of("</think>");
    set_family(/*thinks=*/options_.thinking == config::ChatThinking::on ||
               (options_.thinking == config::ChatThinking::automatic && !knows));
  }
  require(!bos_ || encoder_.meta.bos_id >= 0, ExitCode::usage,
          "the chat template begins a prompt with BOS, but the tokenizer names no such token");
  require(!eos_ || encoder_.meta.eos_id >= 0, ExitCode::usage, "the chat template ", name,
          " ends a response with EOS, but the tokenizer names no such token");
  if (eos_) stop_ids_ = {encoder_.meta.eos_id};
}

void ChatEncoder::set_family(bool thinks) {
  std::vector<std::string> tokens;
  std::string end;
  if (options_.name == ChatTemplateKind::chatml) {
    end = "<|im_end|>";
    tokens = {"<|im_start|>", end};
    before_role_ = "<|im_start|>";
    after_role_ = "\n";
    after_content_ = after_response_ = "<|im_end|>\n";
    if (!thinks) {
      after_assistant_ = "<think>\n\n</think>\n\n";
      tokens.insert(tokens.end(), {"<think>", "</think>"});
    }
  } else {
    end = "<|eot_id|>";
    tokens = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", end};
    begin_ = "<|begin_of_text|>";
    before_role_ = "<|start_header_id|>";
    after_role_ = "<|end_header_id|>\n\n";
    after_content_ = after_response_ = end;
    trims_ = true;
  }
  check_tokens(tokens);
  stop_ids_ = {*encoder_.id_of(end)};
  const int64_t eos = encoder_.meta.eos_id;
  if (eos >= 0 && eos != stop_ids_[0]) stop_ids_.push_back(eos);
}

void ChatEncoder::check_tokens(const std::vector<std::string>& tokens) {
  for (const std::string& token : tokens) {
    require(encoder_.id_of(token).has_value(), ExitCode::usage, "the chat template ", options_.name,
            " does not fit the tokenizer '",
            encoder_.file.empty() ? encoder_.meta.tokenizer_file : encoder_.file.string(), "', which has no token ",
            token, token.ends_with("think>") ? "; set thinking to on, or to auto" : "; choose another template");
  }
}

void ChatEncoder::set_custom() {
  std::string_view prompt = options_.prompt_template, response = options_.response_template;
  bos_ = prompt.starts_with(kBosField);
  if (bos_) prompt.remove_prefix(kBosField.size());
  eos_ = response.ends_with(kEosField);
  if (eos_) response.remove_suffix(kEosField.size());
  prompt_ = std::make_shared<TextTemplate>(prompt, "prompt_template");
  response_ = std::make_shared<TextTemplate>(response, "response_template");
  for (const std::string& name : prompt_->names()) {
    require(name != "bos", ExitCode::usage, "prompt_template: {bos} can only stand at the beginning");
    if (name != "prompt") members_.push_back(name);
  }
  require(!prompt_->names().empty(), ExitCode::usage, "prompt_template: has no place for a text, such as {prompt}");
  require(response_->names() == std::vector<std::string>{"response"} &&
              response.find(kResponseField) == response.rfind(kResponseField),
          ExitCode::usage, "response_template: must have the place {response} once, and may end with {eos}; other ",
          "places it has none");
  // The text after {response}, with doubled braces resolved.
  stop_text_ =
      TextTemplate(response.substr(response.rfind(kResponseField) + kResponseField.size()), "response_template")
          .fill([](const std::string&) { return std::string(); });
  require(eos_ || !stop_text_.empty(), ExitCode::usage,
          "response_template: nothing ends a response; put {eos} or a text behind {response}");
}

void ChatEncoder::set_model(const ModelTemplate& model) {
  try {
    model_ = std::make_shared<const JinjaTemplate>(model.text, model.origin);
  } catch (const Error& error) {
    fail(error.code(), error.what(), "; ", kChoices);
  }
  model_digest_ = digest_hex(std::as_bytes(std::span(model.text)));
  auto variables = nlohmann::ordered_json::object();
  const TokenizerConfig& tokens = model.tokens;
  for (const auto& [name, token] :
       {std::pair("bos_token", &tokens.bos_token), std::pair("eos_token", &tokens.eos_token),
        std::pair("unk_token", &tokens.unk_token), std::pair("sep_token", &tokens.sep_token),
        std::pair("pad_token", &tokens.pad_token), std::pair("cls_token", &tokens.cls_token),
        std::pair("mask_token", &tokens.mask_token)}) {
    if (!token->empty()) variables[name] = *token;
  }
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  if (options_.thinking != config::ChatThinking::automatic) {
    require(model_->mentions("enable_thinking"), ExitCode::usage, "chat.thinking is ", options_.thinking, ", but ",
            model.origin, " knows no enable_thinking; leave it out");
    variables["enable_thinking"] = options_.thinking == config::ChatThinking::on;
  }
  if (!options_.date.empty()) {
    require(model_->mentions("strftime_now"), ExitCode::usage, "chat.date is ", options_.date, ", but ", model.origin,
            " asks for no date; leave it out");
    set_date(options_.date, limits_);
  } else if (model_->mentions("strftime_now")) {
    log::warn(model.origin, " may write today's date into prompts, which are others tomorrow; fix it with chat.date");
  }
  variables_ = std::make_shared<const nlohmann::ordered_json>(std::move(variables));
  const int64_t end = end_of_answer(), eos = encoder_.meta.eos_id;
  if (end >= 0) stop_ids_.push_back(end);
  if (eos >= 0 && eos != end) stop_ids_.push_back(eos);
  require(
      !stop_ids_.empty(), ExitCode::data, model.origin,
      " writes no special token behind an answer, and tokenizer_config.json names no eos_token, so that nothing ends "
      "a response; name the eos_token");
}

JinjaOutput ChatEncoder::run(const std::vector<ChatMessage>& messages, bool asks, const std::string& tools) const {
  Json variables = *variables_;
  Json list = Json::array();
  for (const ChatMessage& message : messages) list.push_back(message_json(message));
  variables["messages"] = std::move(list);
  if (!tools.empty()) variables["tools"] = Json::parse(tools);
  variables["add_generation_prompt"] = asks;
  return model_->render(variables, limits_);
}

int64_t ChatEncoder::end_of_answer() const {
  // A word that no template contains.
  constexpr std::string_view kAnswer = "answer9f3e";
  std::string text;
  try {
    text = run({{"user", "question"}, {"assistant", std::string(kAnswer)}}, false, "").text;
  } catch (const Error&) {
    return -1;  // the template needs another beginning; EOS then ends the answer
  }
  const size_t at = text.rfind(kAnswer);
  if (at == std::string::npos) return -1;
  for (const int32_t id : encoder_.encode(text.substr(at + kAnswer.size()))) {
    if (encoder_.bytes(id) == 0) return id;
  }
  return -1;
}

const std::string& ChatEncoder::single_message(const std::vector<ChatMessage>& messages) const {
  require(messages.size() == 1 && messages[0].role == "user", ExitCode::data, "the chat template ", options_.name,
          " takes one message of the user before the response, not ", messages.size(),
          messages.size() == 1 ? " of another role" : "", "; model, chatml and llama3 take more");
  return messages[0].content;
}

void ChatEncoder::refuse_extras(const std::vector<ChatMessage>& messages, const ChatExtras& more) const {
  const std::string place =
      cat(", for which the chat template ", options_.name, " has no place; set chat.template to model");
  const auto check = [&](const std::string& json, const std::string& which) {
    if (json.empty()) return;
    const Json message = Json::parse(json);
    for (const auto& [name, value] : message.items()) {
      require(name == "role" || name == "content" || value.is_null(), ExitCode::data, which, " has '",
              printable_start(name), "'", place);
    }
    fail(ExitCode::data, which, " has a list of parts as its content", place);
  };
  for (size_t i = 0; i < messages.size(); ++i) check(messages[i].json, cat("message ", i + 1));
  check(more.response, "the response");
  require(more.tools.empty() || more.tools == "[]", ExitCode::data, "has tools", place,
          ", or chat.tools_field to nothing, so that they are skipped");
}

std::string ChatEncoder::prompt_text(const std::vector<ChatMessage>& messages, const std::vector<std::string>& values,
                                     const ChatExtras& more) const {
  require(values.size() == members_.size(), ExitCode::unexpected, values.size(), " values for ", members_.size(),
          " members of a chat template");
  if (model_) return run(messages, true, more.tools).text;
  refuse_extras(messages, more);
  if (options_.name == ChatTemplateKind::plain) return single_message(messages);
  if (options_.name == ChatTemplateKind::custom) {
    const std::string& prompt = single_message(messages);
    return prompt_->fill([&](const std::string& name) {
      if (name == "prompt") return prompt;
      return values[std::find(members_.begin(), members_.end(), name) - members_.begin()];
    });
  }
  std::string text = begin_;
  for (const ChatMessage& message : messages) {
    require(message.role != "tool" && message.role != "developer", ExitCode::data, "the chat template ", options_.name,
            " has no place for a message of role ", message.role);
    text += before_role_ + message.role + after_role_;
    text += trims_ ? trimmed(message.content) : std::string_view(message.content);
    text += after_content_;
  }
  return text + before_role_ + "assistant" + after_role_ + after_assistant_;
}

std::string ChatEncoder::response_text(const std::string& content, const std::vector<ChatMessage>& messages,
                                       const ChatExtras& more) const {
  if (model_) {
    std::vector<ChatMessage> all = messages;
    all.push_back({"assistant", content, more.response});
    const std::string prompt = run(messages, true, more.tools).text, whole = run(all, false, more.tools).text;
    const size_t alike = common_length(prompt, whole);
    require(alike == prompt.size(), ExitCode::data,
            "the chat template writes the answer elsewhere than it asks for it: '",
            printable_start(whole.substr(alike), 40), "' stands where its prompt has '",
            printable_start(prompt.substr(alike), 40),
            "'; train with a template that keeps the prompt (trl has some, *_training.jinja), or set chat.template");
    return whole.substr(alike);
  }
  refuse_extras(messages, more);
  if (response_) {
    return response_->fill([&](const std::string&) { return content; });
  }
  return std::string(trims_ ? trimmed(content) : std::string_view(content)) + after_response_;
}

std::vector<int32_t> ChatEncoder::ids_of(const std::string& text) const {
  std::vector<int32_t> ids = encoder_.encode(text);
  for (const int32_t id : ids) {
    require(id >= 0 && id < encoder_.meta.vocab_size, ExitCode::data, "the tokenizer gives id ", id,
            ", which is outside the vocabulary of ", encoder_.meta.vocab_size);
  }
  return ids;
}

std::vector<int32_t> ChatEncoder::prompt_ids(const std::vector<ChatMessage>& messages,
                                             const std::vector<std::string>& values, const ChatExtras& more) const {
  std::vector<int32_t> ids = ids_of(prompt_text(messages, values, more));
  if (bos_) ids.insert(ids.begin(), static_cast<int32_t>(encoder_.meta.bos_id));
  if (options_.name == ChatTemplateKind::plain)
    ids.insert(ids.begin(), encoder_.leading.begin(), encoder_.leading.end());
  return ids;
}

std::vector<int32_t> ChatEncoder::response_ids(const std::string& content, const std::vector<ChatMessage>& messages,
                                               const ChatExtras& more) const {
  std::vector<int32_t> ids = ids_of(response_text(content, messages, more));
  if (eos_) ids.push_back(static_cast<int32_t>(encoder_.meta.eos_id));
  return ids;
}

std::string ChatEncoder::sampled_text(const std::vector<int32_t>& response_ids) const {
  const std::unique_ptr<TextStream> stream = encoder_.stream();
  std::string text;
  for (const int32_t id : response_ids) {
    if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) break;
    text += stream->push(id);
  }
  return text + stream->finish();
}

ChatEncoder::Turns ChatEncoder::turns(const std::vector<ChatMessage>& messages, const std::string& response,
                                      const ChatExtras& more) const {
  require(marks_turns(), ExitCode::unexpected, "a template without marks has no turns to learn");
  std::vector<ChatMessage> all = messages;
  all.push_back({"assistant", response, more.response});
  const JinjaOutput whole = run(all, false, more.tools);
  Turns turns{.ids = ids_of(whole.text), .learned = {}};
  turns.learned = generated_marks(whole, turns.ids, encoder_);
  const std::vector<size_t> ends = token_ends(whole.text, turns.ids, encoder_);
  const size_t last = whole.generated.empty() ? 0 : whole.generated.back().first;
  for (size_t begin = 0; begin < last && turns.prompt < std::ssize(ends); ++turns.prompt) begin = ends[turns.prompt];
  const bool answers =
      std::any_of(turns.learned.begin() + turns.prompt, turns.learned.end(), [](uint8_t one) { return one; });
  require(answers, ExitCode::data, "the chat template marks nothing of the last answer as the assistant's");
  return turns;
}

std::string ChatEncoder::description() const {
  return cat(options_.name, "\n", model_digest_, "\n", after_assistant_, "\n", options_.prompt_template, "\n",
             options_.response_template);
}

namespace {

// Files next to tokenizer_config.json take precedence over its member chat_template, as in the library.
void read_template_files(const fs::path& folder, TokenizerFolder& result) {
  auto& templates = result.config.chat_templates;
  std::error_code ignored;
  std::vector<std::pair<std::string, fs::path>> files;
  if (fs::exists(folder / kJinjaFile, ignored)) files.emplace_back(kDefault, folder / kJinjaFile);
  for (fs::directory_iterator at(folder / kNamedTemplates, ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    if (at->path().extension() == ".jinja") files.emplace_back(at->path().stem().string(), at->path());
  }
  std::sort(files.begin() + (files.empty() || files[0].first != kDefault ? 0 : 1), files.end());
  if (!files.empty()) {
    templates.clear();
    result.template_origins.clear();
  }
  for (const auto& [name, file] : files) {
    const std::string text = read_text(file, ExitCode::data, kConfigBytes);
    refuse_foreign_file(as_bytes(text), file.string(), ExitCode::data);
    templates.emplace_back(name, without_byte_order_mark(text));
    result.template_origins[name] = file.string();
  }
}

}  // namespace

TokenizerFolder open_tokenizer_folder(const fs::path& folder) {
  TokenizerFolder result;
  const fs::path file = folder / "tokenizer_config.json";
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    result.config = parse_tokenizer_config(read_text(file, ExitCode::data, kConfigBytes), file.string());
  }
  for (const auto& [name, text] : result.config.chat_templates) {
    result.template_origins[name] = cat(file.string(), ": chat_template", name == kDefault ? "" : " '",
                                        name == kDefault ? "" : name, name == kDefault ? "" : "'");
  }
  read_template_files(folder, result);
  const FolderTokenizer found = read_folder_tokenizer(folder);
  result.encoder = open_tokenizer(folder, "", "");
  result.encoder.file = found.file;
  LanguageMeta& meta = result.encoder.meta;
  const auto id_of = [&](const std::string& token, const char* key, int64_t none) -> int64_t {
    if (token.empty()) return none;
    const std::optional<int32_t> id = result.encoder.id_of(token);
    require(id.has_value(), ExitCode::data, file.string(), ": its ", key, " '", printable_start(token),
            "' is not a token of the tokenizer.json beside it");
    return *id;
  };
  meta.bos_id = id_of(result.config.bos_token, "bos_token", -1);
  meta.eos_id = id_of(result.config.eos_token, "eos_token", -1);
  // Padding is masked and never learned, so any id works.
  meta.pad_id = id_of(result.config.pad_token, "pad_token", meta.eos_id >= 0 ? meta.eos_id : meta.pad_id);
  meta.tokenizer_file = "tokenizer.json";
  meta.tokenizer_digest = digest_hex(as_bytes(found.text));
  return result;
}

ChatEncoder open_chat_encoder(const fs::path& folder, ChatTemplateOptions options) {
  TokenizerFolder opened = open_tokenizer_folder(folder);
  const auto& templates = opened.config.chat_templates;
  if (options.name == ChatTemplateKind::automatic) {
    require(!templates.empty(), ExitCode::usage, (folder / "tokenizer_config.json").string(),
            ": has no chat_template; ", kChoices);
    options.name = ChatTemplateKind::model;
  }
  if (options.name != ChatTemplateKind::model) return ChatEncoder(std::move(opened.encoder), options);
  const std::string wanted = options.entry.empty() ? kDefault : options.entry;
  std::string names;
  for (const auto& [name, text] : templates) {
    if (name == wanted) {
      return ChatEncoder(std::move(opened.encoder), options,
                         {.text = text, .origin = opened.template_origins[name], .tokens = opened.config});
    }
    names += cat(names.empty() ? "" : ", ", printable_start(name));
  }
  fail(ExitCode::usage, "'", printable(folder.string()), "' has ",
       names.empty() ? "no chat_template" : cat("no chat template '", printable_start(wanted), "', but ", names), "; ",
       names.empty() ? kChoices : "choose one with chat.template_name");
}

}  // namespace hrm::data
