#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "commands/solve_games.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/commands/commands.h"
#include "hrm/commands/solve_view.h"
#include "hrm/formats/input_window.h"
#include "hrm/objectives/act.h"
#include "hrm/tasks/puzzle_evaluator.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/tasks/rollouts.h"

namespace hrm::commands {
namespace {

constexpr int64_t kRows = 256;  // that run at a time, if nothing else is asked for

// Of `puzzles`; those of one puzzle stop together where they may stop early.
int64_t rollout_rows(const SolveOptions& options, int64_t puzzles) {
  const int64_t most = options.batch_size > 0 ? options.batch_size : kRows;
  return options.early_halt ? puzzles * options.rollouts : std::min(most, puzzles * options.rollouts);
}

struct Answer {
  std::string text;
  double confidence = 0;      // sigmoid(q_halt)
  std::optional<bool> valid;  // nothing: the rules are not known
  int64_t segments = 0;       // that it took
  int64_t agreement = 1;      // rollouts with this answer
};

std::string read_puzzles(const SolveOptions& options, const std::string& origin) {
  if (origin == options.input) return InputWindow(options.input).rest();
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  return InputWindow(as_bytes(text), origin).rest();
}

// Cells of the first puzzle, for models that do not know how long theirs are. A maze may stand as its rows.
std::optional<int64_t> first_length(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line) && without_line_end(line).empty()) {
  }
  line = without_line_end(line);
  if (line.empty()) return std::nullopt;
  const auto length = static_cast<int64_t>(line.size());
  if (line.find('#') == std::string::npos) {
    return static_cast<int64_t>(std::min(line.find_first_of(",\t "), line.size()));
  }
  // A line with start and goal is a whole maze, otherwise the first of as many rows as it has cells.
  const bool whole = line.find('S') != std::string::npos && line.find('G') != std::string::npos;
  return whole ? length : length * length;
}

class Solver {
 public:
  Solver(const tasks::PuzzleInference& loaded, const Game& game, const SolveOptions& options)
      : loaded_(loaded), game_(game), options_(options) {
    segments_ = options.segments > 0 ? options.segments : loaded.config.model.halt_max_steps;
  }

  std::vector<Answer> solve(const std::vector<Question>& questions) {
    const int64_t rows = static_cast<int64_t>(questions.size());
    const int64_t cells = loaded_.model->dims().seq_len;
    at::Tensor inputs = at::empty({rows, cells}, at::kInt);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<int32_t> tokens = game_.encode(questions[static_cast<size_t>(row)]);
      std::copy(tokens.begin(), tokens.end(), inputs.data_ptr<int32_t>() + row * cells);
    }
    const at::Tensor ids = at::full({rows}, options_.puzzle_identifier, at::kInt);
    // Nothing to compare with: labels that are all ignored.
    const at::Tensor labels = at::full_like(inputs, data::kIgnoreLabel);
    const data::PuzzleBatch batch{inputs, labels, ids, rows};
    if (options_.watch) return read(questions, watched(questions[0], batch));
    if (options_.rollouts > 1) return wider(questions, batch);
    if (!evaluator_) {
      fp8_.emplace(loaded_.model->fp8());
      evaluator_ = std::make_unique<tasks::PuzzleEvaluator>(
          *loaded_.model, tasks::PuzzleEvaluatorOptions{.batch_size = rows,
                                                        .segments = segments_,
                                                        .early_halt = options_.early_halt,
                                                        .cuda_graphs = loaded_.config.runtime.cuda_graphs,
                                                        .seed = static_cast<uint64_t>(loaded_.config.run.seed)});
    }
    return read(questions, evaluator_->run(batch, next_numbers(questions.size())));
  }

 private:
  // Several rollouts of each puzzle, and the chosen answers.
  std::vector<Answer> wider(const std::vector<Question>& questions, const data::PuzzleBatch& batch) {
    const config::EvalConfig& kept = loaded_.config.eval;
    if (!rollouts_) {
      const auto state = options_.noisy_state.empty() ? kept.noisy_state
                                                      : config::value_of_name<config::NoisyState>(options_.noisy_state);
      require(state == config::NoisyState::z_H || !loaded_.config.model.facts().one_state, ExitCode::usage,
              "a model of arch ", loaded_.config.model.arch,
              " does not read z_L, so all rollouts would be equal; give ", "--noisy-state z_H");
      fp8_.emplace(loaded_.model->fp8());
      rollouts_ = std::make_unique<tasks::RolloutEvaluator>(
          *loaded_.model,
          tasks::RolloutOptions{.rows = rollout_rows(options_, batch.valid_rows),
                                .rollouts = options_.rollouts,
                                .segments = segments_,
                                .noise = options_.noise < 0 ? kept.noise : options_.noise,
                                .noisy_state = state,
                                .residual_window = kept.residual_window,
                                .seed = static_cast<uint64_t>(loaded_.config.run.seed),
                                .cuda_graphs = loaded_.config.runtime.cuda_graphs,
                                .early_halt = options_.early_halt,
                                .agreeing = options_.agreeing > 0 ? options_.agreeing : kept.agreeing_rollouts,
                                .call_puzzles = batch.valid_rows});
    }
    const tasks::RolloutEvaluator::Answers found = rollouts_->run(batch, next_numbers(questions.size()));
    const bool by_rules = options_.selector == "valid";
    require(!by_rules || game_.has_rules(), ExitCode::usage, "--selector valid needs the rules of the puzzles, which ",
            "are not known; choose another selector");
    const auto rows = static_cast<int64_t>(questions.size()), K = options_.rollouts;
    const at::Tensor tokens = found.tokens.to(at::kCPU, at::kLong).contiguous();
    std::vector<std::string> texts;  // K for each question
    for (int64_t row = 0; row < rows; ++row) {
      const at::Tensor of_row = tokens[row];
      for (int64_t k = 0; k < K; ++k) texts.push_back(text_of(questions[static_cast<size_t>(row)], of_row, k));
    }
    at::Tensor chosen;
    if (by_rules) {
      const at::Tensor valid = at::empty({rows, K}, at::kBool);
      for (int64_t i = 0; i < rows * K; ++i) {
        const std::string& question = questions[static_cast<size_t>(i / K)].text;
        valid.data_ptr<bool>()[i] = *game_.valid(question, texts[static_cast<size_t>(i)]);
      }
      chosen = tasks::choose_valid(found, valid.to(found.q_halt.device()));
    } else {
      chosen = tasks::choose_rollouts(found, options_.selector.empty()
                                                 ? kept.selector
                                                 : config::value_of_name<config::RolloutSelector>(options_.selector));
    }
    chosen = chosen.to(at::kCPU);
    const at::Tensor q_halt = found.q_halt.to(at::kCPU).contiguous(), segments = found.segments.to(at::kCPU);
    std::vector<Answer> answers;
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = texts.begin() + row * K;
      const int64_t best = chosen[row].item<int64_t>();
      const std::string& text = *(first + best);
      const double q = q_halt.const_data_ptr<float>()[row * K + best];
      answers.push_back({text, 1 / (1 + std::exp(-q)), game_.valid(questions[static_cast<size_t>(row)].text, text),
                         segments[row].item<int64_t>(), std::count(first, first + K, text)});
    }
    return answers;
  }

  std::vector<int64_t> next_numbers(size_t count) {
    std::vector<int64_t> numbers(count);
    for (int64_t& number : numbers) number = solved_++;
    return numbers;
  }

  // All segments of one batch, each shown.
  tasks::PuzzleEvaluator::Answers watched(const Question& question, const data::PuzzleBatch& host) {
    const at::Device device = loaded_.runtime.device;
    const data::PuzzleBatch batch{host.inputs.to(device), host.labels.to(device), host.puzzle_identifiers.to(device),
                                  host.valid_rows};
    std::string previous = question.text;
    const objectives::Evaluation result = objectives::act_evaluate(
        *loaded_.model, batch, segments_,
        [&](int64_t segment, const models::SegmentOutput& out) {
          const at::Tensor tokens = out.logits.argmax(-1).to(at::kCPU, at::kLong).contiguous();
          show(question.text, segment, text_of(question, tokens, 0), previous,
               out.q_halt.to(at::kCPU, at::kFloat).contiguous());
        },
        static_cast<uint64_t>(loaded_.config.run.seed), solved_++);
    return {result.output.logits, result.output.q_halt, result.output.q_continue, result.state.steps};
  }

  std::vector<Answer> read(const std::vector<Question>& questions,
                           const tasks::PuzzleEvaluator::Answers& result) const {
    const at::Tensor tokens = result.logits.argmax(-1).to(at::kCPU, at::kLong).contiguous();
    const at::Tensor q_halt = result.q_halt.to(at::kCPU, at::kFloat).contiguous();
    const at::Tensor steps = result.steps.to(at::kCPU).contiguous();
    std::vector<Answer> answers;
    for (int64_t row = 0; row < static_cast<int64_t>(questions.size()); ++row) {
      const Question& question = questions[static_cast<size_t>(row)];
      Answer answer{text_of(question, tokens, row),
                    1 / (1 + std::exp(-static_cast<double>(q_halt.data_ptr<float>()[row]))), std::nullopt,
                    steps.data_ptr<int32_t>()[row], 1};
      answer.valid = game_.valid(question.text, answer.text);
      answers.push_back(std::move(answer));
    }
    return answers;
  }

  std::string text_of(const Question& question, const at::Tensor& tokens, int64_t row) const {
    const int64_t cells = tokens.size(1);
    return game_.text(question, {tokens.const_data_ptr<int64_t>() + row * cells, static_cast<size_t>(cells)});
  }

  // The watched grid goes to stderr: stdout carries answers only.
  void show(const std::string& question, int64_t segment, const std::string& now, std::string& previous,
            const at::Tensor& q_halt) {
    std::vector<CellStyle> styles(now.size());
    int64_t changed = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      styles[i] = {game_.is_given(question[i]) && question[i] == now[i], segment > 1 && now[i] != previous[i]};
      changed += styles[i].changed;
    }
    const bool color = log::stderr_is_interactive();
    const std::string grid = draw_cells(now, styles, game_.columns(), game_.geometry(), color);
    if (color && segment > 1) {
      std::cerr << "\033[" << std::count(grid.begin(), grid.end(), '\n') + 1 << "A";
    }
    const double confidence = 1 / (1 + std::exp(-static_cast<double>(q_halt.data_ptr<float>()[0])));
    std::cerr << (color ? "\033[K" : "") << "segment " << segment << "/" << segments_ << ", "
              << (segment > 1 ? cat(changed, changed == 1 ? " cell" : " cells", " changed, ") : std::string())
              << "confidence " << std::fixed << std::setprecision(3) << confidence << ", "
              << (game_.valid(question, now).value_or(false) ? "valid" : "not valid yet") << "\n"
              << grid << std::flush;
    previous = now;
    if (color) std::this_thread::sleep_for(std::chrono::duration<double>(options_.watch_delay_seconds));
  }

  const tasks::PuzzleInference& loaded_;
  const Game& game_;
  const SolveOptions& options_;
  int64_t segments_ = 0;
  std::optional<nn::Fp8Evaluation> fp8_;               // of the weights, which stay as they are
  std::unique_ptr<tasks::PuzzleEvaluator> evaluator_;  // for the first batch, which is the largest
  std::unique_ptr<tasks::RolloutEvaluator> rollouts_;
  int64_t solved_ = 0;  // puzzles so far: each has noise of its own
};

void print_answer(const Game& game, const Question& question, const Answer& answer, const SolveOptions& options) {
  if (options.format == "jsonl") {
    nlohmann::ordered_json json;
    json["question"] = game.json(question.text);
    json["answer"] = game.json(answer.text);
    json["confidence"] = answer.confidence;
    json["segments"] = answer.segments;
    if (options.rollouts > 1) {
      json["rollouts"] = options.rollouts;
      json["agreement"] = answer.agreement;
    }
    if (answer.valid) json["valid"] = *answer.valid;
    std::cout << json.dump() << "\n";
    return;
  }
  std::cout << answer.text << "\tconfidence " << std::fixed << std::setprecision(3) << answer.confidence
            << "\tsegments " << answer.segments;
  if (options.rollouts > 1) std::cout << "\tagreement " << answer.agreement << "/" << options.rollouts;
  if (answer.valid) std::cout << (*answer.valid ? "\tvalid" : "\tinvalid");
  std::cout << "\n";
}

}  // namespace

int run_solve(const SolveOptions& options) {
  const std::string origin = options.input.empty() || options.input == "-" ? "standard input" : options.input;
  const std::string text = read_puzzles(options, origin);
  const tasks::PuzzleInference loaded =
      tasks::open_puzzle_model(options.checkpoint, {"runtime.device=" + options.device, "runtime.allocator=expandable"},
                               options.weights, first_length(text));
  const auto& dims = loaded.model->dims();
  require(options.puzzle_identifier < dims.num_puzzle_identifiers, ExitCode::usage, "--puzzle-identifier ",
          options.puzzle_identifier, " is not below the model's ", dims.num_puzzle_identifiers);
  const std::unique_ptr<Game> game = make_game(loaded, origin);
  require(!options.early_halt || options.batch_size == 0 || options.batch_size >= options.rollouts, ExitCode::usage,
          "--batch-size ", options.batch_size, " has no room for all rollouts of a puzzle, which --early-halt stops ",
          "together; give at least ", options.rollouts);
  require(options.agreeing <= options.rollouts, ExitCode::usage, "--agreeing ", options.agreeing, " is more than ",
          "--rollouts ", options.rollouts, "; give fewer");
  require(!options.watch || game->has_rules(), ExitCode::usage, "--watch draws Sudoku and mazes only; leave it out");
  std::istringstream in(text);
  const std::vector<Question> questions = game->read(in);

  Solver solver(loaded, *game, options);
  const int64_t rows = options.batch_size > 0 ? options.batch_size : kRows;
  const size_t batch = options.watch ? 1 : static_cast<size_t>(std::max<int64_t>(rows / options.rollouts, 1));
  int64_t valid = 0;
  for (size_t first = 0; first < questions.size(); first += batch) {
    const size_t count = std::min(batch, questions.size() - first);
    const std::vector<Question> part(questions.begin() + static_cast<int64_t>(first),
                                     questions.begin() + static_cast<int64_t>(first + count));
    const std::vector<Answer> answers = solver.solve(part);
    for (size_t i = 0; i < count; ++i) {
      print_answer(*game, part[i], answers[i], options);
      valid += answers[i].valid.value_or(false);
    }
    std::cout << std::flush;
  }
  if (game->has_rules())
    log::info(valid, " of ", questions.size(), questions.size() == 1 ? " answer is" : " answers are", " valid");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
