#include "hrm/tasks/answer_sampler.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace hrm::tasks {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

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
                             int64_t rows, int64_t positions, bool cuda_graphs)
    : lora_(lora),
      chat_(chat),
      generator_(model, {.batch_size = rows, .cuda_graphs = cuda_graphs, .tokens = positions}) {}

Answers AnswerSampler::sample(const std::vector<std::vector<int32_t>>& prompts, const AnswerOptions& options) {
  const data::TextEncoder& text = chat_.encoder();
  GenerateOptions generate{.max_new_tokens = options.max_new_tokens,
                           .sampling = options.sampling,
                           .seed = options.seed,
                           .samples = options.samples,
                           .keys = options.keys,
                           .stop_ids = chat_.stop_ids(),
                           .vocabulary = text.meta.vocab_size};
  if (generate.stop_ids.empty() && text.meta.eos_id >= 0) generate.stop_ids.push_back(text.meta.eos_id);

  // A template may end an answer with a text in place of a token.
  const std::string& stop_text = chat_.stop_text();
  std::vector<std::string> written(stop_text.empty() ? 0 : prompts.size() * static_cast<size_t>(options.samples));
  std::vector<std::unique_ptr<data::TextStream>> streams(written.size());
  GenerateListener listener;
  if (!stop_text.empty()) {
    listener.on_token = [&](int64_t row, int32_t id) {
      const auto r = static_cast<size_t>(row);
      if (!streams[r]) streams[r] = text.stream();
      written[r] += streams[r]->push(id);
      return written[r].find(stop_text) == std::string::npos;
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
    std::string shown = text.decode(row.ids);
    if (const size_t end = stop_text.empty() ? std::string::npos : shown.find(stop_text); end != std::string::npos) {
      shown.resize(end);
    }
    answers.texts.push_back(trimmed(shown));
    answers.finished.push_back(row.finish != Finish::length);
    if (row.finish == Finish::stop_id) row.ids.push_back(row.stop_id);
    answers.ids.push_back(std::move(row.ids));
  }
  return answers;
}

}  // namespace hrm::tasks
