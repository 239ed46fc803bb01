// Compact ARC folders beside full ones.
#include "data/puzzle/arc_compact_cases.h"
#include "data/puzzle/device_table_cases.h"
#include "hrm/base/file.h"
#include "hrm/data/test_reader.h"
#include "hrm/formats/npy.h"
#include "support/temp_dir.h"

namespace hrm::data {
namespace {

using test::TempDir;
namespace fs = std::filesystem;

struct BothForms {
  explicit BothForms(ArcBuildOptions options, const fs::path& dir) : full_(dir / "full"), compact_(dir / "compact") {
    full_result = build_arc(options, full_);
    options.compact = true;
    compact_result = build_arc(options, compact_);
  }
  std::shared_ptr<PuzzleDataset> full(const std::string& split) const { return open_dataset(full_, split, {}); }
  std::shared_ptr<PuzzleDataset> compact(const std::string& split) const { return open_dataset(compact_, split, {}); }

  fs::path full_, compact_;
  ArcBuildResult full_result, compact_result;
};

std::string bytes_of(const fs::path& file) {
  return read_text(file, ExitCode::data);
}

// All that is not a row or dataset.json is equal byte for byte, and so are all examples, in order.
void expect_same_folders(const BothForms& both) {
  EXPECT_EQ(both.full_result.train_examples, both.compact_result.train_examples);
  EXPECT_EQ(both.full_result.test_examples, both.compact_result.test_examples);
  for (const char* file :
       {"identifiers.json", "test_puzzles.json", "train/all__puzzle_identifiers.npy", "train/all__puzzle_indices.npy",
        "train/all__group_indices.npy", "test/all__puzzle_identifiers.npy", "test/all__puzzle_indices.npy",
        "test/all__group_indices.npy"}) {
    EXPECT_EQ(bytes_of(both.full_ / file), bytes_of(both.compact_ / file)) << file;
  }
  for (const char* split : {"train", "test"}) {
    const auto full = both.full(split), compact = both.compact(split);
    EXPECT_FALSE(full->compact());
    EXPECT_TRUE(compact->compact());
    EXPECT_EQ(compact->kind(), PuzzleKind::arc);
    EXPECT_EQ(compact->identifiers(), full->identifiers());
    EXPECT_EQ(compact->mean_puzzle_examples(), full->mean_puzzle_examples());
    EXPECT_EQ(compact->digest(), full->digest()) << split;
    EXPECT_LT(compact->num_stored(), full->num_stored());
    EXPECT_LT(DeviceTable::bytes(*compact), DeviceTable::bytes(*full));
  }
}

TrainStreamOptions batches_of(int64_t size) {
  TrainStreamOptions options;
  options.seed = 11;
  options.global_batch_size = size;
  return options;
}

// Batches that the host makes of the compact folder, and those of its table on a device.
void expect_same_training(const BothForms& both, int64_t batches) {
  const TrainStreamOptions options = batches_of(32);
  TrainStreamOptions picks = options;
  picks.picks_only = true;
  const auto compact = both.compact("train");
  const DeviceTable table(*compact, picks, at::kCPU);
  TrainStream full(both.full("train"), options, 0), host(compact, options, 0), drawn(compact, picks, 0);
  for (int64_t i = 0; i < batches; ++i) {
    const StreamBatch want = full.next(), made = host.next(), got = drawn.next();
    ASSERT_EQ(want.position_after, made.position_after);
    ASSERT_EQ(want.position_after, got.position_after);
    expect_same_batch(made.batch, want.batch, cat("host, batch ", i));
    const PuzzleBatch batch = empty_batch(32, kArcCells, at::kCPU);
    load_rows(got, batch, &table);
    expect_same_batch(batch, want.batch, cat("table, batch ", i));
  }
  EXPECT_EQ(batch_digest(compact, options, 17), batch_digest(both.full("train"), options, 17));
}

void expect_same_evaluation(const BothForms& both) {
  for (const int64_t most : {int64_t{0}, int64_t{5}}) {
    const TestReaderOptions options{.global_batch_size = 16, .max_samples = most};
    const TestReader full(both.full("test"), options), compact(both.compact("test"), options);
    ASSERT_EQ(full.num_batches(), compact.num_batches());
    for (int64_t i = 0; i < full.num_batches(); ++i) {
      const TestBatch want = full.batch(i), got = compact.batch(i);
      EXPECT_EQ(got.examples, want.examples);
      EXPECT_EQ(got.batch.valid_rows, want.batch.valid_rows);
      expect_same_batch(got.batch, want.batch, cat("test batch ", i));
    }
  }
}

TEST(CompactArc, HoldsTheExamplesOfTheFullFolder) {
  const TempDir dir;
  const BothForms both(random_tasks(dir.path(), 6, 4), dir.path());
  expect_same_folders(both);
  // 12 groups: 20 batches of 32 rows are many epochs.
  expect_same_training(both, 20);
  expect_same_evaluation(both);
}

TEST(CompactArc, OfTheOfficialTasks) {
  const TempDir dir;
  const fs::path source = fixture("dataset_arc/source");
  const BothForms both({.subsets = {source / "arc_training_challenges.json", source / "arc_evaluation_challenges.json"},
                        .test = {"evaluation"},
                        .augment = 30},
                       dir.path());
  expect_same_folders(both);
  expect_same_training(both, 10);
  expect_same_evaluation(both);
}

TEST(CompactArc, WithoutCopies) {
  const TempDir dir;
  ArcBuildOptions options = random_tasks(dir.path(), 3, 3);
  options.augment = 0;
  const BothForms both(options, dir.path());
  EXPECT_EQ(both.compact("train")->digest(), both.full("train")->digest());
  expect_same_training(both, 5);
  expect_same_evaluation(both);
}

TEST(CompactArc, FormsReplaceEachOther) {
  const TempDir dir;
  ArcBuildOptions options = random_tasks(dir.path(), 3, 3);
  build_arc(options, dir / "full");
  options.compact = true;
  build_arc(options, dir / "out");
  options.compact = false;
  build_arc(options, dir / "out");
  EXPECT_FALSE(fs::exists(dir / "out/train/all__copies.npy"));
  for (const char* file : {"train/dataset.json", "train/all__inputs.npy", "test/all__labels.npy"}) {
    EXPECT_EQ(bytes_of(dir / "full" / file), bytes_of(dir / "out" / file)) << file;
  }
  options.compact = true;
  build_arc(options, dir / "out");
  EXPECT_TRUE(open_dataset(dir / "out", "train", {})->compact());
}

TEST(CompactArc, OtherAugmentationsAreRefused) {
  const TempDir dir;
  const auto compact = compact_arc(dir.path(), 2, 2, "train");
  for (const auto kind : {config::Augmentation::dihedral, config::Augmentation::sudoku}) {
    TrainStreamOptions options = batches_of(4);
    options.augmentation = kind;
    expect_error(ExitCode::usage, {"data.augmentation", "drawn already", "data.augmentation=none"},
                 [&] { TrainStream(compact, options, 0); });
  }
}

class DamagedCompactArc : public ::testing::Test {
 protected:
  DamagedCompactArc() { compact_arc(dir_.path(), 2, 3, "train"); }

  void expect_refused(const std::vector<std::string>& parts) {
    expect_error(ExitCode::data, parts, [&] { open_dataset(dir_ / "compact", "train", {}); });
  }
  fs::path file(const std::string& what) const { return dir_ / "compact/train" / ("all__" + what + ".npy"); }
  std::vector<int64_t> codes() const {
    const NpyFile npy(file("copies"));
    const auto* begin = reinterpret_cast<const int64_t*>(npy.array().bytes.data());
    return {begin, begin + npy.array().shape[0]};
  }
  void write_codes(const std::vector<int64_t>& values) const {
    write_npy(file("copies"), DType::i64, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values)));
  }
  void replace_meta(const std::string& from, const std::string& to) const {
    const fs::path meta = dir_ / "compact/train/dataset.json";
    std::string text = bytes_of(meta);
    ASSERT_NE(text.find(from), std::string::npos) << text;
    write_text(meta, text.replace(text.find(from), from.size(), to));
  }

  TempDir dir_;
};

TEST_F(DamagedCompactArc, Codes) {
  const std::vector<int64_t> good = codes();
  std::vector<int64_t> bad = good;
  bad[1] ^= int64_t{1} << 13;  // colour 0 becomes 1, which another has
  write_codes(bad);
  expect_refused({"all__copies.npy", "entry 1", "no copy of a pair"});
  bad = good;
  bad[2] = -1;
  write_codes(bad);
  expect_refused({"all__copies.npy", "entry 2 is -1"});
  bad[2] = good[2] | int64_t{1} << 53;
  write_codes(bad);
  expect_refused({"all__copies.npy", "entry 2"});
  bad[2] = good[2] | 31 << 3;
  write_codes(bad);
  expect_refused({"all__copies.npy", "entry 2", "to row 31", "beyond the 30"});
  bad = good;
  bad.pop_back();
  write_codes(bad);
  expect_refused({"all__puzzle_indices.npy", cat(bad.size()), "examples"});
  write_npy(file("copies"), DType::i32, {1}, std::as_bytes(std::span("abc", 4)));
  expect_refused({"all__copies.npy", "I32", "must be I64"});
  fs::remove(file("copies"));
  expect_refused({"all__copies.npy"});
  write_codes(good);
  EXPECT_TRUE(open_dataset(dir_ / "compact", "train", {})->compact());
}

TEST_F(DamagedCompactArc, Pairs) {
  const std::string inputs = bytes_of(file("inputs"));
  std::string moved = inputs;
  moved.back() = 5;  // a colour in the last cell
  write_text(file("inputs"), moved);
  expect_refused({"all__inputs.npy", "no grid of colours at the first cell"});
  // One pair more than the groups have.
  write_text(file("inputs"), inputs);
  const std::string row = inputs.substr(inputs.size() - kArcCells);
  for (const char* what : {"inputs", "labels"}) {
    const std::string all = bytes_of(file(what));
    const size_t header = npy_header(DType::u8, {1000, kArcCells}).size();
    std::string data = all.substr(header) + row;
    write_npy(file(what), DType::u8, {static_cast<int64_t>(data.size()) / kArcCells, kArcCells},
              as_bytes(std::string_view(data)));
  }
  expect_refused({"all__copies.npy", "pairs, but there are"});
}

TEST_F(DamagedCompactArc, Descriptions) {
  replace_meta("\"compact\": true", "\"compact\": 1");
  expect_refused({"dataset.json", "\"compact\" is neither true nor false"});
  replace_meta("\"compact\": 1", "\"compact\": false");
  expect_refused({"train/all__puzzle_indices.npy", "examples"});  // a full folder has a row for each example
  replace_meta("\"compact\": false", "\"compact\": true");
  replace_meta("\"ignore_label_id\": 0", "\"ignore_label_id\": 1");
  expect_refused({"dataset.json", "is compact, but is not one set of ARC tasks"});
  replace_meta("\"ignore_label_id\": 1", "\"ignore_label_id\": 0");
  replace_meta("\"vocab_size\": 12", "\"vocab_size\": 13");
  expect_refused({"dataset.json", "12 tokens"});
}

}  // namespace
}  // namespace hrm::data
