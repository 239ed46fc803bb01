#pragma once
// Checks of semantic diversity that hold on every device, for whichever way computes it there.

#include <limits>

#include "hrm/ops/diversity.h"
#include "ops/diversity/diversity_impl.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline Diversity named(const DiversityResult& result) {
  return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
}

inline std::optional<at::Tensor> optional_counts(const at::Tensor& counts) {
  return counts.defined() ? std::optional(counts) : std::nullopt;
}

// All pairs in float64, from the values that the op gets.
inline Diversity exact_diversity(const at::Tensor& embeddings, const at::Tensor& counts) {
  return named(reference::semantic_diversity(embeddings.to(at::kDouble), optional_counts(counts)));
}

// As one writes it with torch's functions: unit vectors, one product, sums, in float32.
inline Diversity float32_diversity(const at::Tensor& embeddings, const at::Tensor& counts) {
  const int64_t N = embeddings.size(1);
  const auto floats = embeddings.options().dtype(at::kFloat);
  const at::Tensor n =
      (counts.defined() ? counts.to(at::kFloat).clamp(0, N) : at::full({embeddings.size(0)}, N, floats)).unsqueeze(1);
  const at::Tensor valid = at::arange(N, floats).lt(n).to(at::kFloat);
  const at::Tensor x = at::where(valid.unsqueeze(2).gt(0), embeddings.to(at::kFloat), 0.0);
  const at::Tensor units = x / x.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-8);
  const at::Tensor pairs = valid.unsqueeze(2) * valid.unsqueeze(1) * (1 - at::eye(N, floats));
  const at::Tensor sums = ((1 - at::bmm(units, units.transpose(1, 2))) * pairs).sum(2), all = sums.sum(1, true);
  return {(all / (n * (n - 1)).clamp_min(1)).squeeze(1), sums / (n - 1).clamp_min(1),
          (all - 2 * sums) * valid * n.gt(2) / ((n - 1) * (n - 2)).clamp_min(1)};
}

// At most twice the error of float32_diversity. Cosines are sums of magnitudes up to 1, a mean of them is of two such
// sums; D_-i of three vectors is 3 D - 2 r_i.
inline void expect_diversity(const Diversity& ours, const Diversity& plain, const Diversity& exact,
                             const std::string& what) {
  expect_as_good(ours.totals, plain.totals, exact.totals, what + ", totals", 2);
  expect_as_good(ours.rows, plain.rows, exact.rows, what + ", rows", 2);
  expect_as_good(ours.loo, plain.loo, exact.loo, what + ", loo", 5);
}

inline void expect_exact(const at::Tensor& embeddings, const at::Tensor& counts, const std::string& what) {
  expect_diversity(semantic_diversity(embeddings, counts), float32_diversity(embeddings, counts),
                   exact_diversity(embeddings, counts), what);
}

inline at::Tensor counts_of(const std::vector<int64_t>& counts, at::Device device, at::ScalarType type = at::kLong) {
  return at::tensor(counts, at::kLong).to(device, type);
}

// Embeddings that have something in common, as those of answers to one question do.
inline at::Tensor related(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype, at::Device device) {
  return (normal(sizes, seed, at::kFloat, device) + normal({sizes[0], 1, sizes[2]}, seed + 1, at::kFloat, device))
      .to(dtype);
}

struct DiversitySize {
  int64_t groups, vectors, dim;
};

inline void expect_sizes(const std::vector<DiversitySize>& sizes, at::ScalarType dtype, at::Device device) {
  for (const auto& [G, N, d] : sizes) {
    const std::string what = cat(dtype, " G ", G, " N ", N, " d ", d);
    const at::Tensor embeddings = related({G, N, d}, static_cast<uint64_t>(N), dtype, device);
    expect_exact(embeddings, {}, what);
    // Counts of every kind, also none, one and two, in both types; what stands behind them is no number.
    std::vector<int64_t> counts;
    for (int64_t g = 0; g < G; ++g) counts.push_back(G > 3 && g < 3 ? std::min(N, g) : (g * 37 + 11) % (N + 1));
    const at::ScalarType count_type = G % 2 == 0 ? at::kLong : at::kInt;
    const at::Tensor numbers = counts_of(counts, device, count_type);
    const at::Tensor padding = at::arange(N, numbers.options()).ge(numbers.unsqueeze(1));
    const at::Tensor padded = embeddings.masked_fill(padding.unsqueeze(2), std::numeric_limits<double>::quiet_NaN());
    const Diversity ours = semantic_diversity(padded, numbers);
    expect_diversity(ours, float32_diversity(padded, numbers), exact_diversity(padded, numbers), what + ", counts");
    EXPECT_EQ(ours.rows.masked_select(padding).count_nonzero().item<int64_t>(), 0) << what;
    EXPECT_EQ(ours.loo.masked_select(padding).count_nonzero().item<int64_t>(), 0) << what;
  }
}

// Directions that differ by `away`, of lengths that differ: nothing may cancel.
inline void expect_close_vectors(int64_t groups, int64_t vectors, at::ScalarType dtype, at::Device device) {
  for (const double away : {1e-1, 1e-2, 1e-3}) {
    const at::Tensor base = normal({groups, 1, 384}, 1, at::kFloat, device);
    const at::Tensor embeddings = ((base + away * normal({groups, vectors, 384}, 2, at::kFloat, device)) *
                                   (0.5 + at::arange(vectors, at::device(device)).view({1, vectors, 1})))
                                      .to(dtype);
    const Diversity ours = semantic_diversity(embeddings), exact = exact_diversity(embeddings, {});
    const auto worst = [](const at::Tensor& a, const at::Tensor& b) {
      return (difference(a, b) / b).max().item<double>();
    };
    const std::string what = cat(dtype, " N ", vectors, " away ", away);
    ASSERT_LT(exact.totals.max().item<double>(), 3 * away * away + 1e-4) << what << ": the vectors are not close";
    EXPECT_LT(worst(ours.totals, exact.totals), 1e-4) << what;
    EXPECT_LT(worst(ours.rows, exact.rows), 1e-4) << what;
    EXPECT_LT(worst(ours.loo, exact.loo), 3e-4) << what;
  }
}

inline void expect_values(const Diversity& result, double total, double row, double loo, double within,
                          const std::string& what) {
  EXPECT_LE(largest_difference(result.totals, at::full_like(result.totals, total)), within) << what << ", totals";
  EXPECT_LE(largest_difference(result.rows, at::full_like(result.rows, row)), within) << what << ", rows";
  EXPECT_LE(largest_difference(result.loo, at::full_like(result.loo, loo)), within) << what << ", loo";
}

// What the definition says without a computation, with `vectors` vectors of 97 or 384 numbers.
inline void expect_known(int64_t vectors, at::ScalarType dtype, at::Device device) {
  const auto n = static_cast<double>(vectors);
  for (const int64_t d : {97, 384}) {
    const std::string what = cat(dtype, " N ", vectors, " d ", d);
    const at::Tensor one = normal({2, 1, d}, 3, dtype, device);
    const at::Tensor powers =
        at::pow(2, at::arange(vectors, at::device(device).dtype(at::kFloat)).remainder(9) - 4).to(dtype);
    // Equal ones, and such as differ in length.
    expect_values(semantic_diversity(one.expand({2, vectors, d})), 0, 0, 0, 1e-9, what + ", equal");
    expect_values(semantic_diversity(one * powers.view({1, vectors, 1})), 0, 0, 0, 1e-9, what + ", of one direction");
    expect_values(semantic_diversity(at::zeros({2, vectors, d}, one.options())), 1, 1, vectors > 2 ? 1 : 0, 1e-6,
                  what + ", zeros");
    // The last one is zero: the others differ from it alone.
    const at::Tensor last_zero = one.repeat({1, vectors, 1});
    last_zero.select(1, vectors - 1).zero_();
    const Diversity zero = semantic_diversity(last_zero);
    EXPECT_LE(largest_difference(zero.totals, at::full_like(zero.totals, 2 / n)), 1e-6) << what;
    EXPECT_LE(largest_difference(zero.rows.select(1, 0), at::full({2}, 1 / (n - 1), zero.rows.options())), 1e-6);
    EXPECT_LE(largest_difference(zero.rows.select(1, vectors - 1), at::ones({2}, zero.rows.options())), 1e-6);
    EXPECT_LE(largest_difference(zero.loo.select(1, vectors - 1), at::zeros({2}, zero.rows.options())), 2e-6);
    // The last one is the others' opposite.
    const at::Tensor opposite = one.repeat({1, vectors, 1});
    opposite.select(1, vectors - 1).neg_();
    const Diversity far = semantic_diversity(opposite);
    EXPECT_LE(largest_difference(far.totals, at::full_like(far.totals, 4 / n)), 2e-6) << what;
    EXPECT_LE(largest_difference(far.rows.select(1, vectors - 1), at::full({2}, 2, far.rows.options())), 2e-6);
    EXPECT_LE(largest_difference(far.loo.select(1, vectors - 1), at::zeros({2}, far.rows.options())), 2e-6);
  }
}

// Norms on both sides of 1e-8, where cosines shrink.
inline void expect_clamped_norms(int64_t vectors, at::Device device) {
  const at::Tensor one = normal({2, 1, 384}, 4, at::kFloat, device);
  const at::Tensor unit = one / one.norm(2, {-1}, true);
  const at::Tensor lengths = at::arange(vectors, at::device(device)).remainder(7).add(1).mul(3e-9);
  const at::Tensor embeddings = unit * lengths.view({1, vectors, 1});
  expect_exact(embeddings, {}, cat("clamped, N ", vectors));
  EXPECT_GT(semantic_diversity(embeddings).totals.min().item<double>(), 0.1) << "the short ones are no unit vectors";
}

// Two groups out of one whose second vector has a value that is not finite.
inline void expect_nonfinite(int64_t vectors, at::Device device) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const at::Tensor embeddings = normal({2, vectors, 384}, 5, at::kFloat, device), good = embeddings.clone();
    embeddings[0][1][7] = value;
    const Diversity ours = semantic_diversity(embeddings), want = semantic_diversity(good);
    for (const at::Tensor& result : {ours.totals, ours.rows, ours.loo}) {
      const bool fixed = result.is_same(ours.loo) && vectors < 3;  // zero whatever the vectors are
      EXPECT_EQ(result[0].isnan().all().item<bool>(), !fixed) << value << " N " << vectors;
    }
    expect_same_bits(ours.rows[1], want.rows[1], "the other group");
    expect_same_bits(ours.loo[1], want.loo[1], "the other group");
  }
}

// Groups, vectors and elements that are not where a contiguous tensor has them give the same.
inline void expect_any_strides(at::ScalarType dtype, at::Device device) {
  for (const int64_t N : {5, 100}) {
    const at::Tensor embeddings = related({3, N, 96}, 6, dtype, device);
    const Diversity want = semantic_diversity(embeddings);
    const auto expect_same = [&](const at::Tensor& view, const std::string& what) {
      ASSERT_FALSE(view.is_contiguous() && view.storage_offset() == 0) << what;
      const Diversity ours = semantic_diversity(view);
      expect_diversity(ours, want, exact_diversity(embeddings, {}), cat(dtype, " N ", N, " ", what));
    };
    expect_same(embeddings.transpose(0, 1).contiguous().transpose(0, 1), "groups inside");
    expect_same(embeddings.transpose(1, 2).contiguous().transpose(1, 2), "elements apart");
    const at::Tensor wide = at::zeros({3, N + 2, 128}, embeddings.options());
    for (const int64_t shift : {1, 16}) {
      const at::Tensor view = wide.narrow(1, 1, N).narrow(2, shift, 96);
      view.copy_(embeddings);
      expect_same(view, cat("rows apart, shift ", shift));
    }
    const at::Tensor odd = at::zeros({3, N, 97}, embeddings.options()).narrow(2, 0, 96);
    odd.copy_(embeddings);
    expect_same(odd, "rows at odd places");
    const at::Tensor counts = counts_of({2, 0, N, 1, N - 1, 7}, device).view({3, 2}).select(1, 0);  // 2, N, N - 1
    expect_exact(embeddings, counts, "counts apart");
  }
}

inline void expect_no_vectors(at::Device device) {
  const auto floats = at::device(device).dtype(at::kFloat);
  const Diversity none = semantic_diversity(at::zeros({3, 0, 8}, floats));
  expect_same_bits(none.totals, at::zeros({3}, floats));
  EXPECT_EQ(none.rows.sizes(), at::IntArrayRef({3, 0}));
  EXPECT_EQ(none.loo.sizes(), at::IntArrayRef({3, 0}));
  const Diversity no_groups = semantic_diversity(at::zeros({0, 4, 8}, floats), counts_of({}, device));
  EXPECT_EQ(no_groups.totals.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(no_groups.rows.sizes(), at::IntArrayRef({0, 4}));
  // Counts outside 0..N are taken into it.
  const at::Tensor embeddings = normal({2, 4, 8}, 7, at::kFloat, device);
  const Diversity clamped = semantic_diversity(embeddings, counts_of({-3, 9}, device));
  EXPECT_EQ(clamped.totals[0].item<double>(), 0);
  expect_same_bits(clamped.rows[1], semantic_diversity(embeddings).rows[1]);
}

inline void expect_bad_embeddings_named(at::Device device) {
  const at::Tensor x = at::zeros({2, 3, 4}, at::device(device));
  const auto error = [](const at::Tensor& embeddings, const at::Tensor& counts) {
    return error_of([&] { semantic_diversity(embeddings, counts); });
  };
  expect_message(error(x[0], {}), {"hrm::semantic_diversity", "(G, N, d)", "[3, 4]"});
  expect_message(error(x.to(at::kInt), {}), {"hrm::semantic_diversity", "[2, 3, 4]", "Int"});
  expect_message(error(x.narrow(2, 0, 0), {}), {"hrm::semantic_diversity", "[2, 3, 0]"});
  expect_message(error(x, counts_of({1}, device)), {"hrm::semantic_diversity", "[1]", "[2, 3, 4]"});
  expect_message(error(x, at::zeros({2}, x.options())), {"hrm::semantic_diversity", "counts", "Float"});
  const at::Tensor leaf = x.clone().requires_grad_();
  expect_message(error_of([&] { semantic_diversity(leaf).totals.sum().backward(); }), {"semantic_diversity"});
}

}  // namespace hrm::ops::testing
