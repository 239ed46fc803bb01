#include "hrm/objectives/rewards.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/text_pattern.h"
#include "hrm/formats/json.h"
#include "hrm/objectives/text_heuristics.h"
#include "objectives/plain_text.h"

namespace hrm::objectives {
namespace {

using Values = std::vector<double>;

// Throws if the group lacks an input that the reward reads for each completion.
void need(size_t found, const AnswerGroup& group, const std::string& reward, const char* what) {
  require(found == group.texts.size(), ExitCode::usage, "the reward '", reward, "' needs ", what, " for each of the ",
          group.texts.size(), " completions, but has only ", found);
}

// A reward that scores each completion on its own.
class EachReward : public Reward {
 public:
  using Score = std::function<double(const AnswerGroup& group, size_t answer)>;
  using Check = std::function<void(const AnswerGroup& group)>;

  EachReward(std::string name, Score score, Check check = {})
      : name_(std::move(name)), score_(std::move(score)), check_(std::move(check)) {}

  std::string name() const override { return name_; }
  Values of(const AnswerGroup& group) const override {
    if (check_) check_(group);
    Values out(group.texts.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = score_(group, i);
    return out;
  }

 private:
  std::string name_;
  Score score_;
  Check check_;
};

std::unique_ptr<Reward> of_text(const std::string& name, double (*score)(std::string_view)) {
  return std::make_unique<EachReward>(name,
                                      [score](const AnswerGroup& group, size_t i) { return score(group.texts[i]); });
}

void need_embeddings(const AnswerGroup& group, const std::string& reward) {
  const at::Tensor &prompt = group.prompt_embedding, &answers = group.embeddings;
  require(prompt.defined() && answers.defined() && prompt.dim() == 1 && answers.dim() == 2 &&
              answers.size(0) == static_cast<int64_t>(group.texts.size()),
          ExitCode::usage, "the reward '", reward,
          "' needs embeddings of the prompt and of each completion; configure a sentence encoder");
}

// (1 + cosine of prompt and answer) / 2.
Values relevance(const AnswerGroup& group) {
  const auto unit = [](const at::Tensor& x) {
    const at::Tensor wide = x.detach().to(at::kDouble);
    return wide / wide.norm(2, -1, /*keepdim=*/true).clamp_min(1e-8);
  };
  const at::Tensor cosine = at::mv(unit(group.embeddings), unit(group.prompt_embedding));
  const at::Tensor scores = ((cosine + 1) / 2).cpu().contiguous();
  const auto* values = scores.const_data_ptr<double>();
  return Values(values, values + scores.numel());
}

class RelevanceReward : public Reward {
 public:
  std::string name() const override { return "relevance"; }
  Values of(const AnswerGroup& group) const override {
    need_embeddings(group, name());
    return relevance(group);
  }
};

class HeuristicReward : public Reward {
 public:
  std::string name() const override { return "heuristic"; }
  Values of(const AnswerGroup& group) const override {
    need_embeddings(group, name());
    Values out = relevance(group);
    for (size_t i = 0; i < out.size(); ++i) out[i] = heuristic_score(group.prompt, group.texts[i], out[i]);
    return out;
  }
};

class LearnedReward : public Reward {
 public:
  explicit LearnedReward(const std::string& file) : head_(file) {}
  std::string name() const override { return "learned"; }
  Values of(const AnswerGroup& group) const override {
    need_embeddings(group, name());
    const at::Tensor scores = head_.forward(group.prompt_embedding, group.embeddings).cpu().to(at::kDouble);
    return Values(scores.const_data_ptr<double>(), scores.const_data_ptr<double>() + scores.numel());
  }

 private:
  LearnedHead head_;
};

bool is_json_object(const std::string& text) {
  try {
    return parse_json(text, "answer", ExitCode::data, {.bytes = size_t{1} << 20, .depth = 64}).is_object();
  } catch (const Error&) {
    return false;
  }
}

class FormatReward : public Reward {
 public:
  explicit FormatReward(const RewardOptions& options) : options_(options) {
    if (!options.pattern.empty()) pattern_.emplace(options.pattern, "the reward 'format'");
  }
  std::string name() const override { return "format"; }
  Values of(const AnswerGroup& group) const override {
    Values out;
    for (const std::string& text : group.texts) out.push_back(fits(text) ? 1 : 0);
    return out;
  }

 private:
  bool fits(const std::string& text) const {
    if (!text.starts_with(options_.prefix) || !text.ends_with(options_.suffix)) return false;
    if (text.size() < options_.prefix.size() + options_.suffix.size()) return false;
    if (options_.json_object && !is_json_object(text)) return false;
    return !pattern_ || matches(text);
  }

  bool matches(const std::string& text) const {
    const auto answer = pattern_->matches(text);
    if (answer == data::TextPattern::Answer::gave_up && !warned_.exchange(true)) {
      log::warn("reward 'format': the pattern '", printable_start(pattern_->pattern()), "' takes too long on '",
                printable_start(text), "' and is given up there: no reward; make it simpler");
    }
    return answer == data::TextPattern::Answer::yes;
  }

  RewardOptions options_;
  std::optional<data::TextPattern> pattern_;
  mutable std::atomic<bool> warned_ = false;
};

std::string first_line(const std::string& text) {
  for (const std::string& line : split_list(text, '\n')) {
    if (!trimmed_characters(line).empty()) return line;
  }
  return "";
}

// The normalised form that same_answer compares.
std::string answer_key(const std::string& text) {
  const auto is_quote = [](char32_t c) {
    return c == U'"' || c == U'\'' || c == U'`' || (c >= U'\u2018' && c <= U'\u201F') || c == U'\u00AB' ||
           c == U'\u00BB';
  };
  const auto is_end = [&](char32_t c) {
    return is_space(c) || is_quote(c) || std::u32string_view(U".,;:!?").find(c) != std::u32string_view::npos;
  };
  std::u32string out;
  for (const char32_t c : trimmed_characters(folded(text))) {
    if (out.empty() && (is_quote(c) || is_space(c))) continue;
    const char32_t next = is_space(c) ? U' ' : c;
    if (next != U' ' || out.back() != U' ') out += next;
  }
  // An answer of only such characters keeps one of them.
  while (out.size() > 1 && is_end(out.back())) out.pop_back();
  return to_utf8(out);
}

double overlong(int64_t tokens, int64_t most, int64_t margin) {
  const int64_t over = tokens - (most - margin);
  if (over <= 0) return 0;
  return margin > 0 ? -std::min(1.0, static_cast<double>(over) / static_cast<double>(margin)) : -1;
}

std::unique_ptr<Reward> make_answer(const RewardOptions& options) {
  const bool one_line = options.first_line;
  return std::make_unique<EachReward>(
      "answer",
      [one_line](const AnswerGroup& group, size_t i) {
        const std::string key = answer_key(one_line ? first_line(group.texts[i]) : group.texts[i]);
        return std::any_of(group.references.begin(), group.references.end(),
                           [&](const std::string& reference) { return answer_key(reference) == key; })
                   ? 1.0
                   : 0.0;
      },
      [](const AnswerGroup& group) {
        require(!group.references.empty(), ExitCode::usage,
                "the reward 'answer' needs reference answers, but the prompt '", printable_start(group.prompt),
                "' has none");
      });
}

std::unique_ptr<Reward> make_diversity(const RewardOptions&) {
  return std::make_unique<EachReward>(
      "diversity", [](const AnswerGroup& group, size_t i) { return group.diversity[i]; },
      [](const AnswerGroup& group) { need(group.diversity.size(), group, "diversity", "the diversity"); });
}

std::unique_ptr<Reward> make_finished(const RewardOptions&) {
  return std::make_unique<EachReward>(
      "finished", [](const AnswerGroup& group, size_t i) { return group.finished[i] ? 1.0 : 0.0; },
      [](const AnswerGroup& group) { need(group.finished.size(), group, "finished", "the way it ended"); });
}

std::unique_ptr<Reward> make_format(const RewardOptions& options) {
  require(!options.pattern.empty() || !options.prefix.empty() || !options.suffix.empty() || options.json_object,
          ExitCode::usage,
          "the reward 'format' needs grpo.reward_pattern, the regular expression that the whole completion must match");
  return std::make_unique<FormatReward>(options);
}

std::unique_ptr<Reward> make_learned(const RewardOptions& options) {
  require(!options.head.empty(), ExitCode::usage,
          "the reward 'learned' needs grpo.reward_head, its network's safetensors file");
  return std::make_unique<LearnedReward>(options.head);
}

std::unique_ptr<Reward> make_overlong(const RewardOptions& options) {
  const int64_t most = options.max_tokens, margin = options.margin;
  require(most > 0 && margin >= 0 && margin <= most, ExitCode::usage,
          "the reward 'overlong' needs max_tokens above 0 and a margin of 0 to max_tokens, not ", most, " and ",
          margin);
  return std::make_unique<EachReward>(
      "overlong",
      [most, margin](const AnswerGroup& group, size_t i) { return overlong(group.tokens[i], most, margin); },
      [](const AnswerGroup& group) { need(group.tokens.size(), group, "overlong", "the number of tokens"); });
}

std::unique_ptr<Reward> make_sentiment(const RewardOptions&) {
  return std::make_unique<EachReward>(
      "sentiment", [](const AnswerGroup& group, size_t i) { return sentiment_score(group.prompt, group.texts[i]); });
}

template <double (*kScore)(std::string_view)>
std::unique_ptr<Reward> make_of_text(const RewardOptions& options) {
  return of_text(options.name, kScore);
}

template <class T>
std::unique_ptr<Reward> make_plain(const RewardOptions&) {
  return std::make_unique<T>();
}

using Make = std::unique_ptr<Reward> (*)(const RewardOptions&);

const std::map<std::string, Make>& makers() {
  static const std::map<std::string, Make> table{{"answer", make_answer},
                                                 {"diversity", make_diversity},
                                                 {"engagement", make_of_text<engagement_score>},
                                                 {"finished", make_finished},
                                                 {"format", make_format},
                                                 {"heuristic", make_plain<HeuristicReward>},
                                                 {"learned", make_learned},
                                                 {"length", make_of_text<length_score>},
                                                 {"lexical", make_of_text<lexical_score>},
                                                 {"overlong", make_overlong},
                                                 {"punctuation", make_of_text<punctuation_score>},
                                                 {"relevance", make_plain<RelevanceReward>},
                                                 {"sentiment", make_sentiment}};
  return table;
}

// Rejects options that the reward would ignore.
void check_reward_options(const RewardOptions& options) {
  const auto only = [&](bool given, const char* option, const char* reward) {
    require(!given || options.name == reward, ExitCode::usage, "the reward '", options.name, "' has no option ", option,
            "; '", reward, "' has it");
  };
  only(!options.pattern.empty(), "pattern", "format");
  only(!options.prefix.empty(), "prefix", "format");
  only(!options.suffix.empty(), "suffix", "format");
  only(options.json_object, "json_object", "format");
  only(options.first_line, "first_line", "answer");
  only(options.max_tokens != 0, "max_tokens", "overlong");
  only(options.margin != 0, "margin", "overlong");
  only(!options.head.empty(), "head", "learned");
}

}  // namespace

const std::vector<std::string>& reward_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const auto& [name, make] : makers()) out.push_back(name);
    return out;
  }();
  return names;
}

std::unique_ptr<Reward> make_reward(const RewardOptions& options) {
  const auto found = makers().find(options.name);
  if (found == makers().end()) {
    std::string all;
    for (const std::string& one : reward_names()) all += (all.empty() ? "" : ", ") + one;
    const std::string near = nearest_name(options.name, reward_names());
    fail(ExitCode::usage, "unknown reward '", printable_start(options.name), "'",
         near.empty() ? "" : cat("; did you mean '", near, "'?"),
         near.empty() ? "; it must be one of " : " Known rewards: ", all);
  }
  check_reward_options(options);
  return found->second(options);
}

bool same_answer(const std::string& text, const std::string& reference) {
  return answer_key(text) == answer_key(reference);
}

}  // namespace hrm::objectives
