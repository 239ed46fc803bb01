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

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/commands/commands.h"
#include "hrm/commands/solve_view.h"
#include "hrm/data/maze.h"
#include "hrm/data/sudoku.h"
#include "hrm/formats/input_window.h"
#include "hrm/objectives/act.h"
#include "hrm/tasks/puzzle_evaluator.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/tasks/puzzle_rules.h"
#include "hrm/tasks/rollouts.h"

namespace hrm::commands {
namespace {

constexpr int64_t kRows = 256;  // that run at a time, if nothing else is asked for

int64_t rollout_rows(const SolveOptions& options) {
  return options.batch_size > 0 ? options.batch_size : kRows;
}

// One puzzle as text: what people type, and what the answer is printed as.
struct Question {
  std::string text;  // S characters
  int64_t line = 0;  // of the input, for messages
};

struct Answer {
  std::string text;
  double confidence = 0;  // sigmoid(q_halt)
  bool valid = false;
  int64_t segments = 0;   // that it took
  int64_t agreement = 1;  // rollouts with this answer
};

// Text <-> tokens, and the rules of the game.
class Game {
 public:
  virtual ~Game() = default;
  virtual std::vector<int32_t> encode(const Question& question) const = 0;
  virtual char decode(int64_t token) const = 0;
  virtual bool valid(const std::string& question, const std::string& answer) const = 0;
  virtual bool is_given(char character) const = 0;
  virtual int64_t columns() const = 0;
  virtual const data::SudokuGeometry* geometry() const { return nullptr; }
};

class SudokuGame : public Game {
 public:
  SudokuGame(data::SudokuGeometry geometry, std::string origin) : geometry_(geometry), origin_(std::move(origin)) {}

  std::vector<int32_t> encode(const Question& question) const override {
    data::Grid grid;
    const std::string fault = data::parse_grid(geometry_, question.text, grid);
    require(fault.empty(), ExitCode::data, origin_, ":", question.line, ": the puzzle ", fault);
    const std::string conflict = data::find_conflict(geometry_, grid);
    require(conflict.empty(), ExitCode::data, origin_, ":", question.line,
            ": the puzzle contradicts itself: ", conflict);
    std::vector<int32_t> tokens;
    for (const uint8_t digit : grid) tokens.push_back(digit + 1);
    return tokens;
  }
  char decode(int64_t token) const override {
    if (token < 1 || token >= geometry_.vocab_size()) return '?';
    return data::format_grid({static_cast<uint8_t>(token - 1)})[0];
  }
  bool valid(const std::string& question, const std::string& answer) const override {
    data::Grid givens, grid;
    return data::parse_grid(geometry_, question, givens).empty() && data::parse_grid(geometry_, answer, grid).empty() &&
           data::is_solution(geometry_, givens, grid);
  }
  bool is_given(char character) const override { return character != '.' && character != '0'; }
  int64_t columns() const override { return geometry_.size(); }
  const data::SudokuGeometry* geometry() const override { return &geometry_; }

 private:
  data::SudokuGeometry geometry_;
  std::string origin_;
};

class MazeGame : public Game {
 public:
  MazeGame(int64_t side, std::string origin) : side_(side), origin_(std::move(origin)) {}

  std::vector<int32_t> encode(const Question& question) const override {
    const std::string fault = data::find_maze_fault(question.text);
    require(fault.empty(), ExitCode::data, origin_, ":", question.line, ": the maze ", fault);
    std::vector<int32_t> tokens;
    for (const char c : question.text) tokens.push_back(data::maze_token(c));
    return tokens;
  }
  char decode(int64_t token) const override { return token >= 1 && token <= 5 ? data::maze_character(token) : '?'; }
  bool valid(const std::string& question, const std::string& answer) const override {
    return data::check_maze_answer(question, answer).valid;
  }
  bool is_given(char character) const override { return character != ' '; }
  int64_t columns() const override { return side_; }

 private:
  int64_t side_;
  std::string origin_;
};

std::string trimmed_end(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.pop_back();
  return line;
}

// One puzzle per line; a maze may also be its `columns` rows, one per line. Empty lines separate puzzles. Only the
// first field of a line with a comma or a tab counts (Sudoku), so later columns do no harm.
std::vector<Question> read_questions(std::istream& in, const std::string& origin, int64_t cells, int64_t columns,
                                     bool maze) {
  std::vector<Question> questions;
  std::string line, rows;
  int64_t number = 0, first_row = 0;
  while (std::getline(in, line)) {
    ++number;
    line = trimmed_end(line);
    if (!maze) {
      const size_t end = line.find_first_of(",\t ");
      if (end != std::string::npos) line.resize(end);
      if (!line.empty()) questions.push_back({line, number});
      continue;
    }
    if (line.empty() && rows.empty()) continue;
    if (rows.empty()) first_row = number;
    // Editors strip blanks at the end of a row.
    if (static_cast<int64_t>(line.size()) < columns) line.resize(static_cast<size_t>(columns), ' ');
    rows += line;
    if (static_cast<int64_t>(rows.size()) >= cells) {
      questions.push_back({rows, first_row});
      rows.clear();
    }
  }
  require(rows.empty(), ExitCode::data, origin, ":", first_row, ": the maze has ", rows.size(), " cells instead of ",
          cells);
  require(!questions.empty(), ExitCode::data, origin, " holds no puzzle; give one a line, e.g. ",
          "..53.....8......2..7..1.5..4....53...1..7...6..32...8..6.5....9..4....3......97..");
  return questions;
}

std::string read_puzzles(const SolveOptions& options, const std::string& origin) {
  if (origin == options.input) return InputWindow(options.input).rest();
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  return InputWindow(as_bytes(text), origin).rest();
}

// Cells of the first puzzle, for models that do not know how long theirs are. A maze may stand as its rows.
std::optional<int64_t> first_length(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line) && trimmed_end(line).empty()) {
  }
  line = trimmed_end(line);
  if (line.empty()) return std::nullopt;
  const auto length = static_cast<int64_t>(line.size());
  if (line.find('#') == std::string::npos) {
    return static_cast<int64_t>(std::min(line.find_first_of(",\t "), line.size()));
  }
  // A line with start and goal is a whole maze, otherwise the first of as many rows as it has cells.
  const bool whole = line.find('S') != std::string::npos && line.find('G') != std::string::npos;
  return whole ? length : length * length;
}

// Mazes and Sudoku can be told apart by the model's sizes.
std::unique_ptr<Game> make_game(const tasks::PuzzleInference& loaded, const std::string& origin) {
  const auto& dims = loaded.model->dims();
  const tasks::PuzzleGame game = tasks::game_of(dims, loaded.config.data);
  if (game == tasks::PuzzleGame::maze) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(dims.seq_len))));
    return std::make_unique<MazeGame>(side, origin);
  }
  require(game == tasks::PuzzleGame::sudoku, ExitCode::usage, "the model of '", loaded.checkpoint.string(), "' (",
          dims.seq_len, " cells, ", dims.vocab_size, " tokens) plays neither Sudoku nor mazes; use `hrm_train eval`");
  return std::make_unique<SudokuGame>(
      data::sudoku_geometry(dims.seq_len, loaded.config.data.box_rows, loaded.config.data.box_cols), origin);
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
    if (options_.watch) return read(questions, watched(questions[0].text, batch));
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
      require(state == config::NoisyState::z_H || loaded_.config.model.arch != config::PuzzleArch::transformer,
              ExitCode::usage, "a model of arch transformer does not read z_L, so all rollouts would be equal; give ",
              "--noisy-state z_H");
      fp8_.emplace(loaded_.model->fp8());
      rollouts_ = std::make_unique<tasks::RolloutEvaluator>(
          *loaded_.model,
          tasks::RolloutOptions{.rows = std::min(rollout_rows(options_), batch.valid_rows * options_.rollouts),
                                .rollouts = options_.rollouts,
                                .segments = segments_,
                                .noise = options_.noise < 0 ? kept.noise : options_.noise,
                                .noisy_state = state,
                                .residual_window = kept.residual_window,
                                .seed = static_cast<uint64_t>(loaded_.config.run.seed),
                                .cuda_graphs = loaded_.config.runtime.cuda_graphs});
    }
    const tasks::RolloutEvaluator::Answers found = rollouts_->run(batch, next_numbers(questions.size()));
    const bool by_rules = options_.selector == "valid";
    const auto selector = by_rules ? config::RolloutSelector::q
                          : options_.selector.empty()
                              ? kept.selector
                              : config::value_of_name<config::RolloutSelector>(options_.selector);
    const at::Tensor chosen = tasks::choose_rollouts(found, selector).to(at::kCPU);
    const at::Tensor tokens = found.tokens.to(at::kCPU, at::kLong).contiguous();
    const at::Tensor q_halt = found.q_halt.to(at::kCPU).contiguous();
    std::vector<Answer> answers;
    for (int64_t row = 0; row < static_cast<int64_t>(questions.size()); ++row) {
      const std::string& question = questions[static_cast<size_t>(row)].text;
      const at::Tensor of_row = tokens[row];
      std::vector<std::string> texts;
      for (int64_t k = 0; k < options_.rollouts; ++k) texts.push_back(text_of(of_row, k));
      const float* q = q_halt.const_data_ptr<float>() + row * options_.rollouts;
      auto best = static_cast<size_t>(chosen[row].item<int64_t>());
      if (by_rules && !game_.valid(question, texts[best])) {
        for (size_t k = 0; k < texts.size(); ++k) {
          const bool better = !game_.valid(question, texts[best]) || q[k] > q[best];
          if (better && game_.valid(question, texts[k])) best = k;
        }
      }
      answers.push_back({texts[best], 1 / (1 + std::exp(-static_cast<double>(q[best]))),
                         game_.valid(question, texts[best]), segments_,
                         std::count(texts.begin(), texts.end(), texts[best])});
    }
    return answers;
  }

  std::vector<int64_t> next_numbers(size_t count) {
    std::vector<int64_t> numbers(count);
    for (int64_t& number : numbers) number = solved_++;
    return numbers;
  }

  // All segments of one batch, each shown.
  tasks::PuzzleEvaluator::Answers watched(const std::string& question, const data::PuzzleBatch& host) {
    const at::Device device = loaded_.runtime.device;
    const data::PuzzleBatch batch{host.inputs.to(device), host.labels.to(device), host.puzzle_identifiers.to(device),
                                  host.valid_rows};
    std::string previous = question;
    const objectives::Evaluation result = objectives::act_evaluate(
        *loaded_.model, batch, segments_,
        [&](int64_t segment, const models::SegmentOutput& out) {
          const at::Tensor tokens = out.logits.argmax(-1).to(at::kCPU, at::kLong).contiguous();
          show(question, segment, text_of(tokens, 0), previous, out.q_halt.to(at::kCPU, at::kFloat).contiguous());
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
      Answer answer{text_of(tokens, row), 1 / (1 + std::exp(-static_cast<double>(q_halt.data_ptr<float>()[row]))),
                    false, steps.data_ptr<int32_t>()[row], 1};
      answer.valid = game_.valid(questions[static_cast<size_t>(row)].text, answer.text);
      answers.push_back(std::move(answer));
    }
    return answers;
  }

  std::string text_of(const at::Tensor& tokens, int64_t row) const {
    const int64_t cells = tokens.size(1);
    const int64_t* data = tokens.const_data_ptr<int64_t>() + row * cells;
    std::string text;
    for (int64_t i = 0; i < cells; ++i) text += game_.decode(data[i]);
    return text;
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
              << (game_.valid(question, now) ? "valid" : "not valid yet") << "\n"
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

void print_answer(const Question& question, const Answer& answer, const SolveOptions& options) {
  if (options.format == "jsonl") {
    nlohmann::ordered_json json;
    json["question"] = question.text;
    json["answer"] = answer.text;
    json["confidence"] = answer.confidence;
    json["segments"] = answer.segments;
    if (options.rollouts > 1) {
      json["rollouts"] = options.rollouts;
      json["agreement"] = answer.agreement;
    }
    json["valid"] = answer.valid;
    std::cout << json.dump() << "\n";
    return;
  }
  std::cout << answer.text << "\tconfidence " << std::fixed << std::setprecision(3) << answer.confidence
            << "\tsegments " << answer.segments << "\t";
  if (options.rollouts > 1) std::cout << "agreement " << answer.agreement << "/" << options.rollouts << "\t";
  std::cout << (answer.valid ? "valid" : "invalid") << "\n";
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
  std::istringstream in(text);
  const std::vector<Question> questions =
      read_questions(in, origin, dims.seq_len, game->columns(), /*maze=*/game->geometry() == nullptr);

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
      print_answer(part[i], answers[i], options);
      valid += answers[i].valid;
    }
    std::cout << std::flush;
  }
  log::info(valid, " of ", questions.size(), questions.size() == 1 ? " answer is" : " answers are", " valid");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
