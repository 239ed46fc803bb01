#include "hrm/tasks/generation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <deque>

#include "hrm/base/error.h"
#include "hrm/runtime/async_read.h"
#include "hrm/runtime/device.h"
#include "tasks/generation/decode_rows.h"

namespace hrm::tasks {
namespace {

constexpr int64_t kStopIds = 16;
constexpr int64_t kMaxSamples = int64_t{1} << 20;
constexpr int64_t kPrefillTokens = 1 << 14;  // of prompts that are read together
constexpr int64_t kPrefillMultiple = 16;     // of tokens, of prompts that are read on a GPU, so that graphs are few
constexpr size_t kPromptGraphs = 32;         // of prompts that are read
// Of a place without a row (ops::next_tokens_), and in a list of stop ids where none is; -1 says that logits are not
// finite.
constexpr int64_t kNothing = -2;

void check_options(const GenerateOptions& o, const models::LanguageLimits& limits) {
  check(o.sampling);
  require(o.max_new_tokens > 0, ExitCode::usage, "a row of ", o.max_new_tokens, " new tokens; give 1 or more");
  require(o.samples > 0 && o.samples < kMaxSamples, ExitCode::usage, "samples of a prompt are 1 to ", kMaxSamples - 1,
          ", not ", o.samples);
  require(static_cast<int64_t>(o.stop_ids.size()) <= kStopIds, ExitCode::usage, "at most ", kStopIds,
          " ids can end a row, not ", o.stop_ids.size());
  require(o.begin_id >= 0 || !limits.prompted, ExitCode::usage,
          "this model begins its answers with a token of its own, and the data names none (bos_id or eos_id in "
          "meta.json)");
}

// What a graph that chooses tokens was made for.
CapturedStep::Key form_of(const GenerateOptions& o) {
  const SamplingOptions& s = o.sampling;
  return {o.vocabulary, std::bit_cast<int64_t>(s.temperature), s.top_k, std::bit_cast<int64_t>(s.top_p),
          std::bit_cast<int64_t>(s.min_p)};
}

at::Tensor longs(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

}  // namespace

int64_t generation_bucket(int64_t rows) {
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(rows, 1))));
  const int64_t three_quarters = power / 4 * 3;
  return power >= 4 && rows <= three_quarters ? three_quarters : power;
}

struct Generator::Call {
  const std::vector<std::vector<int32_t>>& prompts;
  const GenerateOptions& options;
  const GenerateListener& listener;
  models::LanguageLimits limits;
  std::vector<Generated> rows = {};
  std::vector<int64_t> tokens = {};      // that a row holds for the model, its prompt and what it was given since
  std::vector<int64_t> most = {};        // new tokens of a row
  std::vector<bool> ended = {};          // as far as the host knows
  std::vector<int64_t> ended_here = {};  // by the listener: the device does not know yet
  std::vector<int64_t> places = {};      // which row a place has; -1: none that runs
  int64_t next = 0;                      // the first row that had no place yet
  int64_t running = 0;
  AsyncReader reader = {};
  std::deque<std::vector<int64_t>> pushed = {};  // the rows whose tokens the reader has, for each of its entries

  int64_t begun_with(int64_t prompt) const {
    const auto length = static_cast<int64_t>(prompts[static_cast<size_t>(prompt)].size());
    return limits.prompted ? 1 : std::max<int64_t>(length, 1);
  }
};

Generator::Generator(models::LanguageModel& model, const GeneratorOptions& options)
    : model_(model), options_(options), device_(model.head().weight().device()) {
  require(options.batch_size >= 0, ExitCode::usage, "a batch of ", options.batch_size, " rows");
  if (options_.batch_size == 0) options_.batch_size = device_.is_cuda() ? 64 : 16;
  options_.cache = options_.cache && model.limits().cached;
}

Generator::~Generator() = default;

void Generator::make_room(const Room& room) {
  if (rows_ && room.rows <= room_.rows && room.tokens <= room_.tokens && room.prompt <= room_.prompt &&
      room.draws <= room_.draws) {
    return;
  }
  // Graphs belong to the buffers that they were captured with.
  captured_.reset();
  captured_begin_.reset();
  rows_.reset();
  room_ = {std::max(room.rows, room_.rows), std::max(room.tokens, room_.tokens), std::max(room.prompt, room_.prompt),
           std::max(room.draws, room_.draws)};
  const int64_t B = room_.rows;
  rows_ = options_.cache ? make_cached_rows(model_, B, room_.tokens)
                         : make_whole_rows(model_, B, room_.tokens, room_.prompt, device_);
  const auto ints = at::device(device_).dtype(at::kLong);
  ids_ = at::zeros({B}, ints);
  count_ = at::zeros({B}, ints);
  limits_ = at::zeros({B}, ints);
  active_ = at::zeros({B}, ints.dtype(at::kBool));
  draws_ = at::zeros({B, room_.draws}, ints.dtype(at::kDouble));
  chosen_ = at::zeros({B}, ints);
  stop_ids_ = at::zeros({kStopIds}, ints);
  begin_ = {.ids = at::zeros({B, room_.tokens}, ints),
            .facts = at::zeros({4, B}, ints),
            .draws = at::zeros_like(draws_),
            .chosen = at::zeros({B}, ints)};
  const bool captures = options_.cuda_graphs && rows_->capturable();
  captured_ = std::make_unique<CapturedStep>(
      CapturedStepOptions{.name = "generation step", .device = device_, .enabled = captures, .warmup = 1});
  // Prompts come in more shapes than steps: what does not come again is not worth a graph.
  captured_begin_ = std::make_unique<CapturedStep>(CapturedStepOptions{
      .name = "reading of prompts",
      .device = device_,
      .enabled = captures && !model_.limits().prompted,
      .warmup = 2,
      .most = kPromptGraphs,
  });
}

// The next token of each row, from the hidden states (n, D) at their ends; ids, count, active and chosen are written.
void Generator::choose(const at::Tensor& hidden, const at::Tensor& ids, const at::Tensor& count,
                       const at::Tensor& limits, const at::Tensor& active, const at::Tensor& draws,
                       const at::Tensor& chosen, const GenerateOptions& options) {
  at::Tensor logits = model_.logits(hidden);
  if (options.vocabulary > 0 && options.vocabulary < logits.size(1)) logits = logits.narrow(1, 0, options.vocabulary);
  ops::next_tokens_(logits, options.sampling,
                    {.ids = ids,
                     .count = count,
                     .limits = limits,
                     .active = active,
                     .draws = draws,
                     .chosen = chosen,
                     .stop_ids = stop_ids_});
}

void Generator::begin_rows(Call& call, const std::vector<int64_t>& rows, const std::vector<int64_t>& places) {
  const GenerateOptions& o = call.options;
  std::vector<int64_t> prompts, of, limits;
  int64_t T = 1, S = 1;
  for (const int64_t row : rows) {
    const int64_t prompt = row / o.samples;
    if (prompts.empty() || prompts.back() != prompt) {
      prompts.push_back(prompt);
      T = std::max(T, call.begun_with(prompt));
      S = std::max(S, static_cast<int64_t>(call.prompts[static_cast<size_t>(prompt)].size()));
    }
    of.push_back(static_cast<int64_t>(prompts.size()) - 1);
    limits.push_back(call.most[static_cast<size_t>(row)]);
  }
  const auto P = static_cast<int64_t>(prompts.size()), n = static_cast<int64_t>(rows.size()), B = room_.rows;
  if (device_.is_cuda() && options_.cache && !call.limits.prompted) {
    T = std::min((T + kPrefillMultiple - 1) / kPrefillMultiple * kPrefillMultiple, room_.tokens);
  }
  const at::Tensor ids = at::full({P, T}, std::max<int64_t>(o.begin_id, 0), at::kLong);
  const at::Tensor facts = at::zeros({4, B}, at::kLong);
  auto* const fact = facts.data_ptr<int64_t>();
  std::copy(places.begin(), places.end(), fact + B);
  std::copy(of.begin(), of.end(), fact + 2 * B);
  std::copy(limits.begin(), limits.end(), fact + 3 * B);
  PromptBatch batch;
  const at::Tensor apart = at::zeros({P, S}, at::kLong), mask = at::zeros({P, S}, at::kBool);
  for (int64_t i = 0; i < P; ++i) {
    const std::vector<int32_t>& prompt = call.prompts[static_cast<size_t>(prompts[static_cast<size_t>(i)])];
    const auto length = static_cast<int64_t>(prompt.size());
    fact[i] = call.begun_with(prompts[static_cast<size_t>(i)]);
    const at::Tensor& to = call.limits.prompted ? apart : ids;
    std::copy(prompt.begin(), prompt.end(), to.data_ptr<int64_t>() + i * to.size(1));
    mask[i].narrow(0, 0, length).fill_(true);
  }
  batch.inputs.ids = begin_.ids.narrow(0, 0, P).narrow(1, 0, T);
  batch.inputs.ids.copy_(ids);
  begin_.facts.copy_(facts);
  if (call.limits.prompted) {
    batch.inputs.prompt_ids = apart.to(device_);
    batch.inputs.prompt_mask = mask.to(device_);
  }
  const int64_t N = room_.draws;
  const at::Tensor draws = at::zeros({n, N}, at::kDouble);
  if (o.sampling.temperature > 0) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      const uint64_t key = o.key(row / o.samples) * kMaxSamples + static_cast<uint64_t>(row % o.samples);
      const std::vector<double> values = sampling_draws(o.seed, key, limits[static_cast<size_t>(i)]);
      std::copy(values.begin(), values.end(), draws.data_ptr<double>() + i * N);
    }
  }
  begin_.draws.narrow(0, 0, n).copy_(draws);
  CapturedStep::Key key = form_of(o);
  key.insert(key.end(), {P, T, n});
  const int64_t replays = captured_begin_->replays();
  captured_begin_->run(key, {begin_.ids, begin_.facts, begin_.draws, begin_.chosen, active_, stop_ids_},
                       [&] { read_prompts(batch, n, o); });
  counts_.captured_prefills += captured_begin_->replays() - replays;
  call.reader.push(0, begin_.chosen.narrow(0, 0, n));
  call.pushed.push_back(rows);
  ++counts_.prefills;
  counts_.prompts += P;
}

// The device work of begin_rows().
void Generator::read_prompts(const PromptBatch& prompts, int64_t n, const GenerateOptions& options) {
  const auto part = [&](int64_t fact, int64_t count) { return begin_.facts.select(0, fact).narrow(0, 0, count); };
  PromptBatch batch = prompts;
  batch.inputs.ids = prompts.inputs.ids.contiguous();
  batch.lengths = part(0, batch.inputs.ids.size(0));
  const at::Tensor places = part(1, n), most = part(3, n);
  const at::Tensor hidden = rows_->begin(batch, places, part(2, n));
  const at::Tensor last = at::zeros_like(most), count = at::zeros_like(most), chosen = begin_.chosen.narrow(0, 0, n);
  const at::Tensor active = at::ones({n}, active_.options()), draws = begin_.draws.narrow(0, 0, n);
  choose(hidden, last, count, most, active, draws, chosen, options);
  ids_.index_copy_(0, places, last);
  count_.index_copy_(0, places, count);
  limits_.index_copy_(0, places, most);
  active_.index_copy_(0, places, active);
  draws_.index_copy_(0, places, draws);
  rows_->settle(active_);
}

// Rows that wait take free places, all samples of a prompt together.
void Generator::admit(Call& call) {
  const auto total = static_cast<int64_t>(call.rows.size()), B = static_cast<int64_t>(call.places.size());
  std::vector<int64_t> free;
  for (int64_t place = 0; place < B; ++place) {
    if (call.places[static_cast<size_t>(place)] < 0) free.push_back(place);
  }
  const auto room = static_cast<int64_t>(free.size());
  // Reading few prompts costs as much as reading more of them.
  if (call.next == total || (call.running > 0 && room < std::min(std::max<int64_t>(B / 8, 1), total - call.next)))
    return;
  size_t used = 0;
  while (call.next < total && used < free.size()) {
    std::vector<int64_t> rows, places;
    int64_t prompts = 0, longest = 0;
    while (call.next < total) {
      const int64_t prompt = call.next / call.options.samples;
      const int64_t group = (prompt + 1) * call.options.samples - call.next;
      const auto left = static_cast<int64_t>(free.size() - used);
      if (left == 0 || (group > left && left < B)) break;
      longest = std::max(
          {longest, call.begun_with(prompt), static_cast<int64_t>(call.prompts[static_cast<size_t>(prompt)].size())});
      if (prompts > 0 && ++prompts * longest > kPrefillTokens) break;
      prompts = std::max<int64_t>(prompts, 1);
      for (int64_t i = 0; i < std::min(group, left); ++i) {
        call.tokens[static_cast<size_t>(call.next)] = call.begun_with(prompt);
        call.places[static_cast<size_t>(free[used])] = call.next;
        rows.push_back(call.next++);
        places.push_back(free[used++]);
      }
    }
    if (rows.empty()) break;
    call.running += static_cast<int64_t>(rows.size());
    begin_rows(call, rows, places);
  }
}

// When no row waits any more, those that run become the first, in their order.
void Generator::move_together(Call& call) {
  const auto B = static_cast<int64_t>(call.places.size());
  const int64_t smaller = generation_bucket(call.running);
  if (call.next < static_cast<int64_t>(call.rows.size()) || smaller >= B) return;
  std::vector<int64_t> kept, rows;
  for (const bool idle : {false, true}) {
    for (int64_t place = 0; place < B && static_cast<int64_t>(kept.size()) < smaller; ++place) {
      const int64_t row = call.places[static_cast<size_t>(place)];
      if ((row < 0) != idle) continue;
      kept.push_back(place);
      rows.push_back(row);
    }
  }
  const at::Tensor index = longs(kept, device_);
  rows_->keep(index);
  for (const at::Tensor& t : {ids_, count_, limits_, active_, draws_}) {
    t.narrow(0, 0, smaller).copy_(t.index_select(0, index));
  }
  call.places = rows;
  ++counts_.moves;
}

void Generator::step(Call& call) {
  const auto B = static_cast<int64_t>(call.places.size());
  int64_t longest = 0;
  for (const int64_t row : call.places) {
    if (row >= 0) longest = std::max(longest, ++call.tokens[static_cast<size_t>(row)]);
  }
  const int64_t span = rows_->span(longest);
  CapturedStep::Key key = form_of(call.options);
  key.insert(key.end(), {B, span});
  captured_->run(key, {ids_, count_, limits_, active_, draws_, chosen_, stop_ids_}, [&] {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, 0, B); };
    const at::Tensor hidden = rows_->step(part(ids_), span);
    choose(hidden, part(ids_), part(count_), part(limits_), part(active_), part(draws_), part(chosen_), call.options);
    rows_->settle(part(active_));
  });
  call.reader.push(0, chosen_.narrow(0, 0, B));
  call.pushed.push_back(call.places);
  ++counts_.steps;
}

void Generator::end_row(Call& call, int64_t row, Finish finish) {
  const auto r = static_cast<size_t>(row);
  call.ended[r] = true;
  call.rows[r].finish = finish;
  const auto place = std::find(call.places.begin(), call.places.end(), row);
  if (finish == Finish::listener) call.ended_here.push_back(place - call.places.begin());
  *place = -1;
  --call.running;
  if (call.listener.on_end) call.listener.on_end(row, call.rows[r]);
}

void Generator::read_one(Call& call) {
  const std::vector<double> tokens = call.reader.pop(/*wait=*/true)->values;
  const std::vector<int64_t> rows = std::move(call.pushed.front());
  call.pushed.pop_front();
  const std::vector<int64_t>& stops = call.options.stop_ids;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto token = static_cast<int64_t>(tokens[i]);
    if (rows[i] < 0 || token == kNothing || call.ended[static_cast<size_t>(rows[i])]) continue;
    Generated& row = call.rows[static_cast<size_t>(rows[i])];
    require(token >= 0, ExitCode::diverged, "the model's logits are not finite after ", row.ids.size(),
            " new tokens of prompt ", row.prompt + 1);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      row.stop_id = static_cast<int32_t>(token);
      end_row(call, rows[i], Finish::stop_id);
      continue;
    }
    row.ids.push_back(static_cast<int32_t>(token));
    if (call.listener.on_token && !call.listener.on_token(rows[i], row.ids.back())) {
      end_row(call, rows[i], Finish::listener);
    } else if (static_cast<int64_t>(row.ids.size()) == call.most[static_cast<size_t>(rows[i])]) {
      end_row(call, rows[i], Finish::length);
    }
  }
  if (call.ended_here.empty()) return;
  active_.index_fill_(0, longs(call.ended_here, device_), 0);
  rows_->settle(active_);
  call.ended_here.clear();
}

std::vector<Generated> Generator::run(const std::vector<std::vector<int32_t>>& prompts, const GenerateOptions& options,
                                      const GenerateListener& listener) {
  const at::NoGradGuard no_grad;
  Call call{.prompts = prompts, .options = options, .listener = listener, .limits = model_.limits()};
  check_options(options, call.limits);
  counts_ = {};
  if (prompts.empty()) return {};
  require(options.keys.empty() || options.keys.size() == prompts.size(), ExitCode::unexpected, options.keys.size(),
          " keys for ", prompts.size(), " prompts");

  Room room{.tokens = options_.tokens, .draws = options.sampling.temperature > 0 ? options.max_new_tokens : 1};
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto length = static_cast<int64_t>(prompts[p].size());
    const int64_t most = call.limits.prompted ? call.limits.max_prompt : call.limits.max_tokens;
    require(most == 0 || length <= most, ExitCode::usage, "prompt ", p + 1, " has ", length,
            " tokens, but the model takes at most ", most);
    require(length > 0 || (!call.limits.prompted && options.begin_id >= 0), ExitCode::usage, "prompt ", p + 1,
            " is empty", call.limits.prompted ? "" : ", and there is no token that a text begins with");
    // The last token is written, but not read again.
    const int64_t begun = call.begun_with(static_cast<int64_t>(p));
    const int64_t fits = std::min(options.max_new_tokens, call.limits.max_tokens + 1 - begun);
    room.tokens = std::max(room.tokens, begun + fits - 1);
    if (call.limits.prompted) room.prompt = std::max(room.prompt, length);
    for (int64_t sample = 0; sample < options.samples; ++sample) {
      call.rows.push_back({.prompt = static_cast<int64_t>(p), .sample = sample});
      call.most.push_back(fits);
    }
  }
  const auto total = static_cast<int64_t>(call.rows.size());
  call.tokens.resize(call.rows.size());
  call.ended.resize(call.rows.size());
  const int64_t B = std::min(options_.batch_size, generation_bucket(total));
  room.rows = B;
  make_room(room);
  call.places.assign(static_cast<size_t>(B), -1);
  active_.zero_();
  rows_->settle(active_);
  std::vector<int64_t> stops = options.stop_ids;
  stops.resize(kStopIds, kNothing);
  stop_ids_.copy_(at::tensor(stops, at::kLong));

  // A GPU computes the next step while the host reads this one's tokens.
  const size_t behind = device_.is_cuda() ? 1 : 0;
  const auto begun = std::chrono::steady_clock::now();
  for (bool first = true;; first = false) {
    admit(call);
    if (first) {
      synchronize(device_);
      counts_.prefill_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
    }
    while (call.reader.pending() > behind) read_one(call);
    if (call.running == 0 && call.next == total) break;
    if (call.running == 0) continue;
    move_together(call);
    step(call);
    while (call.reader.pending() > behind) read_one(call);
  }
  while (call.reader.pending() > 0) read_one(call);
  return std::move(call.rows);
}

}  // namespace hrm::tasks
