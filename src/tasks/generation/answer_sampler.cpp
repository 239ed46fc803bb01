#include "hrm/tasks/answer_sampler.h"

#include <chrono>
#include <optional>

#include "tasks/generation/elapsed.h"

namespace hrm::tasks {
namespace {

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n\f\v";
  const size_t first = text.find_first_not_of(space);
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(space) - first + 1);
}

}  // namespace

int64_t Answers::tokens() const {
  int64_t sum = 0;
  for (const std::vector<int32_t>& answer : ids) sum += static_cast<int64_t>(answer.size());
  return sum;
}

AnswerSampler::AnswerSampler(models::LanguageModel& model, nn::LoraSet* lora, const data::ChatEncoder& chat,
                             const std::vector<int64_t>& eos_ids, int64_t rows, int64_t positions, bool cuda_graphs)
    : lora_(lora),
      text_(chat.encoder()),
      ends_(answer_ends(chat, eos_ids)),
      generator_(model, {.batch_size = rows, .cuda_graphs = cuda_graphs, .tokens = positions}) {}

Answers AnswerSampler::sample(const std::vector<std::vector<int32_t>>& prompts, const AnswerOptions& options) {
  GenerateOptions generate{.max_new_tokens = options.max_new_tokens,
                           .sampling = options.sampling,
                           .seed = options.seed,
                           .samples = options.samples,
                           .keys = options.keys,
                           .stop_ids = ends_.ids,
                           .vocabulary = text_.meta.vocab_size};

  // A template may end an answer with a text instead of a token.
  struct Written {
    std::unique_ptr<AnswerText> pieces;
    std::string text;
  };
  std::vector<Written> written(ends_.texts.empty() ? 0 : prompts.size() * static_cast<size_t>(options.samples));
  for (Written& row : written) row.pieces = std::make_unique<AnswerText>(text_, ends_.texts);
  GenerateListener listener;
  if (!written.empty()) {
    listener.on_token = [&](int64_t row, int32_t id) {
      Written& answer = written[static_cast<size_t>(row)];
      answer.text += answer.pieces->push(id);
      return !answer.pieces->stopped();
    };
  }

  auto start = Clock::now();
  std::optional<nn::WithLoraMode> merged;
  if (lora_ != nullptr) {
    lora_->merge();
    merged.emplace(*lora_, nn::LoraMode::merged);
  }
  merge_ms_ = ms_since(start);
  start = Clock::now();
  std::vector<Generated> rows = generator_.run(prompts, generate, listener);
  generate_ms_ = ms_since(start);

  Answers answers{.samples = options.samples, .ids = {}, .texts = {}, .finished = {}};
  for (size_t r = 0; r < rows.size(); ++r) {
    Generated& row = rows[r];
    if (written.empty()) {
      answers.texts.push_back(trimmed(text_.decode(row.ids)));
    } else {
      answers.texts.push_back(trimmed(written[r].text + written[r].pieces->finish()));
    }
    answers.finished.push_back(row.finish != Finish::length);
    if (row.finish == Finish::stop_id) row.ids.push_back(row.stop_id);
    answers.ids.push_back(std::move(row.ids));
  }
  return answers;
}

}  // namespace hrm::tasks
