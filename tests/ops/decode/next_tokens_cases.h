#pragma once
// Checks of the next tokens that hold on every device.

#include <limits>

#include "hrm/ops/next_tokens.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline std::vector<SamplingOptions> sampling_cases() {
  return {
      {.temperature = 0},
      {},
      {.temperature = 0.7},
      {.temperature = 1.3, .top_k = 5},
      {.top_k = 1},
      {.top_k = 97},
      {.top_k = 100000},
      {.top_p = 0.5},
      {.top_p = 0.99},
      {.top_p = 0},
      {.temperature = 0.8, .top_k = 20, .top_p = 0.9},
      {.min_p = 0.2},
      {.min_p = 1},
      {.temperature = 1.5, .top_k = 40, .top_p = 0.8, .min_p = 0.1},
      {.temperature = 1e-6, .top_p = 0.9},
      {.temperature = 100, .top_k = 50, .top_p = 0.5},
  };
}

inline std::string name_of(const SamplingOptions& o) {
  return cat("T ", o.temperature, " k ", o.top_k, " p ", o.top_p, " min ", o.min_p);
}

// Logits with many equals: of 16 bits, level, and in steps.
inline std::vector<at::Tensor> logits_cases(at::ScalarType dtype, at::Device device) {
  std::vector<at::Tensor> cases;
  for (const int64_t V : {1, 7, 97, 1024, 5003, 40000, 100003}) cases.push_back(normal({5, V}, 1, dtype, device) * 3);
  cases.push_back(at::zeros({3, 3000}, at::device(device).dtype(dtype)));
  cases.push_back((normal({4, 2500}, 2, at::kFloat, device) * 2).round().to(dtype));
  const at::Tensor wide = normal({6, 1001}, 3, dtype, device);
  cases.push_back(wide.narrow(1, 0, 900));  // rows that no 16 bytes end with
  cases.push_back(wide.narrow(1, 3, 500));
  cases.push_back(normal({300, 4}, 4, dtype, device).t());
  return cases;
}

inline at::Tensor draws_for(int64_t rows, uint64_t seed, at::Device device) {
  const at::Tensor draws = at::rand({rows}, at::detail::createCPUGenerator(seed), at::kDouble);
  draws[0] = 0;
  if (rows > 1) draws[rows - 1] = 1 - 0x1p-53;
  return draws.to(device);
}

// The tokens of the reference on the same device.
inline void expect_tokens_of_reference(at::ScalarType dtype, at::Device device) {
  for (const at::Tensor& logits : logits_cases(dtype, device)) {
    for (const SamplingOptions& options : sampling_cases()) {
      for (uint64_t seed = 1; seed < 4; ++seed) {
        const at::Tensor draws = draws_for(logits.size(0), seed, device);
        const at::Tensor ours = sample_tokens(logits, options, draws);
        const WithReference reference;
        expect_same_bits(ours, sample_tokens(logits, options, draws),
                         cat(dtype, " ", logits.sizes(), " ", name_of(options), " seed ", seed));
      }
    }
  }
}

inline WrittenRows written_rows(int64_t rows, int64_t draws, at::Device device) {
  const auto longs = at::device(device).dtype(at::kLong);
  return {.ids = at::full({rows}, 7, longs),
          .count = at::arange(rows, longs),
          .limits = at::full({rows}, 4, longs),
          .active = at::arange(rows, longs).remainder(3).ne(1),
          .draws = at::rand({rows, draws}, at::detail::createCPUGenerator(5), at::kDouble).to(device),
          .chosen = at::zeros({rows}, longs),
          .stop_ids = at::tensor({3, -2, 11, 12, 0, -2}, at::kLong).to(device),
          .log_p = at::full({rows}, 9, at::device(device).dtype(at::kFloat))};
}

inline WrittenRows copy_of(const WrittenRows& rows) {
  return {rows.ids.clone(),   rows.count.clone(),  rows.limits.clone(),   rows.active.clone(),
          rows.draws.clone(), rows.chosen.clone(), rows.stop_ids.clone(), rows.log_p.clone()};
}

inline void expect_same_rows(const WrittenRows& a, const WrittenRows& b, const std::string& what) {
  expect_same_bits(a.ids, b.ids, what + ", ids");
  expect_same_bits(a.count, b.count, what + ", count");
  expect_same_bits(a.active, b.active, what + ", active");
  expect_same_bits(a.chosen, b.chosen, what + ", chosen");
  // Whole numbers are summed on one side, float32 ones on the other.
  EXPECT_TRUE(at::allclose(a.log_p, b.log_p, 1e-5, 1e-5, /*equal_nan=*/true)) << what << ": " << a.log_p << b.log_p;
}

// Step after step, until all rows have ended.
inline void expect_rows_of_reference(at::ScalarType dtype, at::Device device) {
  for (const SamplingOptions& options : sampling_cases()) {
    const WrittenRows ours = written_rows(9, 3, device), theirs = copy_of(ours);
    for (uint64_t step = 0; step < 6; ++step) {
      const at::Tensor logits = normal({9, 50}, 10 + step, dtype, device);
      logits[8][4] = std::numeric_limits<float>::quiet_NaN();
      next_tokens_(logits, options, ours);
      {
        const WithReference reference;
        next_tokens_(logits, options, theirs);
      }
      expect_same_rows(ours, theirs, cat(dtype, " ", name_of(options), " step ", step));
    }
    EXPECT_FALSE(ours.active.any().item<bool>());
  }
}

// Rows that several blocks share where a device can: of ids at the borders of their stretches, at the end of the row,
// and of what is not finite in one of them.
inline void expect_long_rows(at::ScalarType dtype, at::Device device) {
  for (const int64_t V : {16384, 50001, 70000}) {
    const int64_t stretch = (V + 63) / 64 * 8;
    std::vector<int64_t> wanted{0, stretch - 1, stretch, 3 * stretch + 5, V - 1};
    const auto rows = static_cast<int64_t>(wanted.size());
    at::Tensor logits = normal({rows + 1, V}, 7, dtype, device);
    for (int64_t row = 0; row < rows; ++row) logits[row][wanted[static_cast<size_t>(row)]] = 60;
    logits[rows][V - 2] = std::numeric_limits<float>::quiet_NaN();
    wanted.push_back(-1);
    // More rows, fewer blocks for each.
    for (const int64_t times : {4, 9, 30}) {
      const at::Tensor many = logits.repeat({times, 1});
      for (const SamplingOptions& options : {SamplingOptions{.top_p = 0.9}, SamplingOptions{.top_k = 9}}) {
        expect_same_bits(sample_tokens(many, options, draws_for(many.size(0), 3, device)),
                         at::tensor(wanted, at::kLong).to(device).repeat({times}), cat(dtype, " ", V, " x ", times));
      }
    }
    for (const SamplingOptions& options :
         {SamplingOptions{.temperature = 0}, SamplingOptions{}, SamplingOptions{.top_k = 50},
          SamplingOptions{.top_p = 0.9},
          SamplingOptions{.temperature = 0.5, .top_k = 4000, .top_p = 0.8, .min_p = 0.01}}) {
      const at::Tensor draws = draws_for(rows + 1, 2, device);
      const at::Tensor got = sample_tokens(logits, options, draws);
      expect_same_bits(got, at::tensor(wanted, at::kLong).to(device), cat(dtype, " ", V, " ", name_of(options)));
      // Level rows: every stretch has its share of the draws.
      const at::Tensor level = at::zeros({4, V}, at::device(device).dtype(dtype));
      const at::Tensor at_draws = at::tensor({0.0, 0.3, 0.6, 0.999999}, at::kDouble).to(device);
      const at::Tensor chosen = sample_tokens(level, options, at_draws);
      const WithReference reference;
      expect_same_bits(chosen, sample_tokens(level, options, at_draws),
                       cat(dtype, " level ", V, " ", name_of(options)));
    }
    const WrittenRows ours = written_rows(rows + 1, 3, device), theirs = copy_of(ours);
    next_tokens_(logits, {.temperature = 1.5, .top_p = 0.7}, ours);
    const WithReference reference;
    next_tokens_(logits, {.temperature = 1.5, .top_p = 0.7}, theirs);
    expect_same_rows(ours, theirs, cat(dtype, " rows of ", V));
  }
}

// By hand: what is chosen, what ends a row, and which draw it takes.
inline void expect_rows_to_go_on(at::Device device) {
  const auto longs = [&](std::vector<int64_t> values) { return at::tensor(values, at::kLong).to(device); };
  const at::Tensor logits = at::zeros({5, 8}, at::device(device));
  for (const auto& [row, token] : {std::pair<int64_t, int64_t>{0, 6}, {1, 3}, {2, 6}, {3, 6}, {4, 6}}) {
    logits[row][token] = 50;
  }
  logits[4][1] = std::numeric_limits<float>::infinity();
  const WrittenRows rows{.ids = longs({0, 0, 0, 0, 5}),
                         .count = longs({1, 1, 3, 2, 0}),
                         .limits = longs({4, 4, 4, 4, 4}),
                         .active = at::tensor({1, 1, 1, 0, 1}).to(device, at::kBool),
                         .draws = at::full({5, 1}, 0.5, at::device(device).dtype(at::kDouble)),
                         .chosen = longs({9, 9, 9, 9, 9}),
                         .stop_ids = longs({3})};
  next_tokens_(logits, {.temperature = 0.5}, rows);
  expect_same_bits(rows.chosen, longs({6, 3, 6, -2, -1}), "an idle row, and one that is not finite");
  expect_same_bits(rows.ids, longs({6, 3, 6, 6, 0}), "ids");
  expect_same_bits(rows.count, longs({2, 2, 4, 2, 1}), "count");
  expect_same_bits(rows.active, at::tensor({1, 0, 0, 0, 1}).to(device, at::kBool), "a stop id, the limit");
  // Two tokens of one half each: the draw decides.
  const at::Tensor halves = at::zeros({1, 2}, at::device(device));
  WrittenRows one = written_rows(1, 3, device);
  one.draws = at::tensor({0.1, 0.9, 0.2}, at::kDouble).view({1, 3}).to(device);
  one.limits.fill_(9);
  one.stop_ids = longs({});
  for (const int64_t want : {0, 1, 0, 0}) {
    next_tokens_(halves, {}, one);
    EXPECT_EQ(one.chosen.item<int64_t>(), want) << "the last draw serves those that follow";
    EXPECT_NEAR(one.log_p.item<float>(), std::log(0.5), 1e-6);
  }
}

inline void expect_bad_input_named(at::Device device) {
  const at::Tensor logits = at::zeros({2, 3}, at::device(device));
  const at::Tensor draws = at::zeros({2}, at::device(device).dtype(at::kDouble));
  expect_message(error_of([&] { sample_tokens(logits, {}, draws.narrow(0, 0, 1)); }),
                 {"hrm::sample_tokens", "[1]", "[2, 3]"});
  expect_message(error_of([&] { sample_tokens(logits, {}, {}); }), {"hrm::sample_tokens", "[2, 3]"});
  expect_message(error_of([&] { sample_tokens(logits[0], {}, draws); }), {"hrm::sample_tokens", "[3]"});
  expect_message(error_of([&] { sample_tokens(logits, {.top_p = 2}, draws); }), {"hrm::sample_tokens", "top_p 2"});
  WrittenRows rows = written_rows(2, 1, device);
  rows.count = rows.count.to(at::kInt);
  expect_message(error_of([&] { next_tokens_(logits, {}, rows); }), {"hrm::next_tokens_", "[2]", "[2, 3]"});
  rows = written_rows(2, 1, device);
  rows.stop_ids = at::zeros({33}, rows.ids.options());
  expect_message(error_of([&] { next_tokens_(logits, {}, rows); }), {"hrm::next_tokens_", "32", "[33]"});
}

}  // namespace hrm::ops::testing
