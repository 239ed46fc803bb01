// arc_tokens, arc_voting, dataset_arc: grids and tokens, votes, and the builder's files.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "hrm/base/file.h"
#include "hrm/data/arc.h"
#include "hrm/data/arc_votes.h"
#include "parity/dataset_case.h"
#include "support/temp_dir.h"

namespace hrm::parity {
namespace {

using data::ArcGrid;
using nlohmann::json;

// FIPS 180-4, for the hashes that the cases name grids by.
std::string sha256(std::string text) {
  const auto root_bits = [](int64_t prime, double power) {
    const double root = std::pow(static_cast<double>(prime), power);
    return static_cast<uint32_t>((root - std::floor(root)) * 4294967296.0);
  };
  std::vector<int64_t> primes;
  for (int64_t n = 2; primes.size() < 64; ++n) {
    if (std::none_of(primes.begin(), primes.end(), [&](int64_t p) { return n % p == 0; })) primes.push_back(n);
  }
  std::array<uint32_t, 8> state{};
  for (size_t i = 0; i < 8; ++i) state[i] = root_bits(primes[i], 0.5);
  const uint64_t bits = text.size() * 8;
  text += '\x80';
  while (text.size() % 64 != 56) text += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(bits >> shift);
  for (size_t block = 0; block < text.size(); block += 64) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<uint8_t>(text[block + i]);
    for (size_t i = 16; i < 64; ++i) {
      const uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<uint32_t, 8> s = state;
    for (size_t i = 0; i < 64; ++i) {
      const uint32_t first = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                             ((s[4] & s[5]) ^ (~s[4] & s[6])) + root_bits(primes[i], 1.0 / 3) + w[i];
      const uint32_t second = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                              ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < 8; ++i) state[i] += s[i];
  }
  std::string hex;
  for (const uint32_t word : state) {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", word);
    hex += digits;
  }
  return hex;
}

std::string hash_of(const ArcGrid& grid) {
  std::string bytes{static_cast<char>(grid.rows), static_cast<char>(grid.cols)};
  for (const uint8_t cell : grid.cells) bytes += static_cast<char>(cell);
  return sha256(bytes);
}

ArcGrid grid_of(const at::Tensor& t) {
  const at::Tensor bytes = t.to(at::kByte).contiguous();
  const uint8_t* begin = bytes.const_data_ptr<uint8_t>();
  return {static_cast<int>(t.size(0)), static_cast<int>(t.size(1)), {begin, begin + bytes.numel()}};
}

std::vector<int32_t> tokens_of(const at::Tensor& t) {
  const at::Tensor ints = t.to(at::kInt).contiguous();
  return {ints.const_data_ptr<int32_t>(), ints.const_data_ptr<int32_t>() + ints.numel()};
}

void check_arc_tokens(const Case& c) {
  size_t number = 0;
  for (const json& example : c.json.at("examples")) {
    const std::string at = "ex" + std::to_string(number++) + ".";
    SCOPED_TRACE(at);
    const auto grid = [&](const std::string& name) { return grid_of(c.at(at + name)); };
    const data::ArcName name = data::parse_arc_name(example.at("aug_name"));
    EXPECT_EQ(name.task, example.at("task"));
    if (name.copy) {
      EXPECT_EQ(data::arc_name(name.task, name.augmentation), example.at("aug_name"));
    }
    for (const std::string side : {"input", "output"}) {
      EXPECT_EQ(hash_of(grid(side)), example.at("grid_hash_" + side)) << side;
      const ArcGrid copy = name.augmentation.apply(grid(side));
      EXPECT_EQ(copy, grid("aug_" + side)) << side;
      EXPECT_EQ(name.augmentation.undo(copy), grid(side)) << side;
      std::array<uint8_t, data::kArcCells> tokens{};
      data::arc_tokens(copy, example.at("offset").at(0), example.at("offset").at(1), tokens.data());
      expect_equal("seq_" + side, at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())),
                   c.at(at + "seq_" + side));
      EXPECT_EQ(data::crop_arc(tokens_of(c.at(at + "seq_" + side)).data()), grid("crop_" + side)) << side;
    }
    EXPECT_EQ(data::crop_arc(tokens_of(c.at(at + "corrupt")).data()), grid("crop_corrupt"));
    EXPECT_EQ(name.augmentation.undo(grid("crop_output")), grid("inv_crop_output"));
  }
  EXPECT_GT(number, 0U);
}

void check_arc_voting(const Case& c) {
  const auto names =
      json::parse(read_text(c.folder / "identifiers.json", ExitCode::data)).get<std::vector<std::string>>();
  data::ArcVotes votes(names, data::read_arc_test_puzzles(c.folder / "test_puzzles.json"));
  const std::vector<int32_t> inputs = tokens_of(c.at("inputs")), answers = tokens_of(c.at("preds")),
                             ids = tokens_of(c.at("puzzle_identifiers"));
  const at::Tensor q = c.at("q_halt_logits").contiguous();
  for (size_t row = 0; row < ids.size(); ++row) {
    votes.add(ids[row], inputs.data() + row * data::kArcCells, answers.data() + row * data::kArcCells,
              q.const_data_ptr<float>()[row]);
  }
  for (const auto& [task, by_input] : c.json.at("ranking").items()) {
    size_t found = 0;
    for (const data::ArcTask& known : votes.tasks()) {
      if (known.name != task) continue;
      for (const data::ArcPair& pair : known.test) {
        const std::string input = hash_of(pair.input);
        if (!by_input.contains(input)) continue;
        ++found;
        const auto ranking = votes.ranking(task, pair.input);
        ASSERT_EQ(ranking.size(), by_input.at(input).size()) << task;
        for (size_t i = 0; i < ranking.size(); ++i) {
          const json& want = by_input.at(input).at(i);
          EXPECT_EQ(hash_of(ranking[i].grid), want.at(0)) << task << " " << i;
          EXPECT_EQ(ranking[i].votes, want.at(1)) << task << " " << i;
          EXPECT_NEAR(ranking[i].mean_q, want.at(2).get<double>(), 1e-9) << task << " " << i;
        }
      }
    }
    EXPECT_EQ(found, by_input.size()) << task;
  }
  for (const json& k : c.json.at("config").at("pass_Ks")) {
    EXPECT_NEAR(votes.pass(k), c.json.at("result").at("ARC/pass@" + std::to_string(k.get<int>())).get<double>(), 1e-12)
        << k;
  }
  EXPECT_EQ(json::parse(votes.submission()), json::parse(read_text(c.folder / "submission.json", ExitCode::data)));
}

// The reader, and the builder's files byte for byte.
void check_dataset_arc(const Case& c) {
  check_dataset(c);
  const test::TempDir dir;
  data::build_arc({.subsets = {c.folder / "source" / "arc_training_challenges.json",
                               c.folder / "source" / "arc_evaluation_challenges.json"},
                   .test = {"evaluation"},
                   .augment = c.json.at("config").at("num_aug"),
                   .seed = c.json.at("config").at("seed")},
                  dir / "arc");
  int compared = 0;
  for (const json& file : c.json.at("files")) {
    const auto path = file.get<std::string>();
    if (!path.starts_with("arc/")) continue;
    ++compared;
    EXPECT_TRUE(read_text(dir / path, ExitCode::data) == read_text(c.folder / path, ExitCode::data)) << path;
  }
  EXPECT_GT(compared, 10);
}

const RegisterKind kArcTokens("arc_tokens", check_arc_tokens);
const RegisterKind kArcVoting("arc_voting", check_arc_voting);
const RegisterKind kDatasetArc("dataset_arc", check_dataset_arc);

}  // namespace
}  // namespace hrm::parity
