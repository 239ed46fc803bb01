// The builder of ARC datasets. The order of its random draws is that of TRM's dataset/build_arc_dataset.py.
#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "data/puzzle/arc_copies.h"
#include "data/puzzle/arc_files.h"
#include "data/puzzle/numpy_random.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/arc.h"
#include "hrm/data/dihedral.h"
#include "hrm/formats/npy.h"

namespace hrm::data {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kTriesPerCopy = 5;
constexpr size_t kMostIdentifierBytes = size_t{256} << 20;  // that a reader of dataset folders takes

// Pairs of one split, and the copies of the task: the task itself first.
struct ArcGroup {
  const std::vector<ArcAugmentation>* copies;
  const std::string* name;
  std::vector<ArcPair> pairs;
};

// Equal for tasks that have the same pairs, in whatever order.
std::string digest_of(const std::vector<ArcPair>& pairs, const ArcAugmentation& augmentation) {
  std::vector<std::string> texts;
  for (const ArcPair& pair : pairs) {
    std::string text;
    for (const ArcGrid& grid : {augmentation.apply(pair.input), augmentation.apply(pair.output)}) {
      text += cat(grid.rows, "x", grid.cols, ":");
      for (const uint8_t cell : grid.cells) text += static_cast<char>('0' + cell);
    }
    texts.push_back(std::move(text));
  }
  std::sort(texts.begin(), texts.end());
  Hasher hasher;
  for (const std::string& text : texts) hasher.update(text + "|");
  return hasher.hex();
}

ArcAugmentation draw_augmentation(NumpyRandom& random) {
  ArcAugmentation result;
  result.transform = static_cast<int>(random.below(8));
  std::vector<uint8_t> colours(result.colours.begin() + 1, result.colours.end());  // black stays
  random.shuffle(colours);
  std::copy(colours.begin(), colours.end(), result.colours.begin() + 1);
  return result;
}

std::vector<ArcAugmentation> draw_copies(const ArcTask& task, int64_t count, NumpyRandom& random) {
  std::vector<ArcAugmentation> copies(1);
  if (count == 0) return copies;
  std::vector<ArcPair> all = task.train;
  all.insert(all.end(), task.test.begin(), task.test.end());
  std::unordered_set<std::string> seen{digest_of(all, copies[0])};
  for (int64_t i = 0; i < kTriesPerCopy * count && static_cast<int64_t>(copies.size()) <= count; ++i) {
    const ArcAugmentation drawn = draw_augmentation(random);
    if (seen.insert(digest_of(all, drawn)).second) copies.push_back(drawn);
  }
  return copies;
}

std::string name_of(const ArcGroup& group, size_t copy) {
  return copy == 0 ? *group.name : arc_name(*group.name, (*group.copies)[copy]);
}

class SplitWriter {
 public:
  SplitWriter(const fs::path& out, const std::string& split, const std::vector<ArcGroup>& groups, bool compact)
      : folder_(out / split), moves_(split == "train"), compact_(compact), groups_(groups) {
    for (const ArcGroup& group : groups) {
      pairs_ += static_cast<int64_t>(group.pairs.size());
      puzzles_ += static_cast<int64_t>(group.copies->size());
      examples_ += static_cast<int64_t>(group.copies->size() * group.pairs.size());
    }
  }

  int64_t write(const std::unordered_map<std::string, int32_t>& identifiers, NumpyRandom& random) {
    make_directories(folder_);
    const std::string header = npy_header(DType::u8, {compact_ ? pairs_ : examples_, kArcCells});
    for (const char* what : {"inputs", "labels", "copies"}) {
      std::error_code ignored;
      fs::remove(file(what), ignored);
    }
    FileWriter inputs(file("inputs")), labels(file("labels"));
    inputs.write(as_bytes(header));
    labels.write(as_bytes(header));
    std::vector<int32_t> ids, puzzle_starts{0}, group_starts{0};
    std::vector<int64_t> codes;
    int32_t example = 0;
    std::array<uint8_t, kArcCells> tokens{};
    const auto write_pair = [&](const ArcGrid& input, const ArcGrid& output, int row, int col) {
      arc_tokens(input, row, col, tokens.data());
      inputs.write(std::as_bytes(std::span(tokens)));
      arc_tokens(output, row, col, tokens.data());
      labels.write(std::as_bytes(std::span(tokens)));
    };
    for (const ArcGroup& group : groups_) {
      for (const ArcPair& pair : group.pairs) {
        if (compact_) write_pair(pair.input, pair.output, 0, 0);
      }
      for (size_t copy = 0; copy < group.copies->size(); ++copy) {
        const ArcAugmentation& augmentation = (*group.copies)[copy];
        const uint32_t stays = random.below(static_cast<uint32_t>(group.pairs.size()));
        for (size_t i = 0; i < group.pairs.size(); ++i) {
          const ArcPair& pair = group.pairs[i];
          const bool swaps = dihedral_swaps_axes(augmentation.transform);
          const auto offset = [&](int a, int b) {
            return static_cast<int>(random.below(static_cast<uint32_t>(kArcSide - std::max(a, b) + 1)));
          };
          const bool moves = moves_ && i != stays;
          const int row = !moves  ? 0
                          : swaps ? offset(pair.input.cols, pair.output.cols)
                                  : offset(pair.input.rows, pair.output.rows);
          const int col = !moves  ? 0
                          : swaps ? offset(pair.input.rows, pair.output.rows)
                                  : offset(pair.input.cols, pair.output.cols);
          if (compact_) {
            codes.push_back(arc_copy_code(augmentation, row, col));
          } else {
            write_pair(augmentation.apply(pair.input), augmentation.apply(pair.output), row, col);
          }
          ++example;
        }
        ids.push_back(identifiers.at(name_of(group, copy)));
        puzzle_starts.push_back(example);
      }
      group_starts.push_back(static_cast<int32_t>(ids.size()));
    }
    inputs.finish();
    labels.finish();
    if (compact_) write_npy(file("copies"), DType::i64, {examples_}, std::as_bytes(std::span(codes)));
    write_index("puzzle_identifiers", ids);
    write_index("puzzle_indices", puzzle_starts);
    write_index("group_indices", group_starts);
    Json meta;
    meta["pad_id"] = 0;
    meta["ignore_label_id"] = 0;
    meta["blank_identifier_id"] = 0;
    meta["vocab_size"] = kArcVocabSize;
    meta["seq_len"] = kArcCells;
    meta["num_puzzle_identifiers"] = identifiers.size() + 1;
    meta["total_groups"] = groups_.size();
    meta["mean_puzzle_examples"] = static_cast<double>(examples_) / static_cast<double>(puzzles_);
    meta["total_puzzles"] = puzzles_;
    meta["sets"] = {"all"};
    if (compact_) meta["compact"] = true;
    write_text_atomic(folder_ / "dataset.json", python_json(meta));
    return examples_;
  }

 private:
  fs::path file(const char* what) const { return folder_ / (std::string("all__") + what + ".npy"); }
  void write_index(const char* what, const std::vector<int32_t>& values) const {
    write_npy(file(what), DType::i32, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values)));
  }

  fs::path folder_;
  bool moves_, compact_;
  const std::vector<ArcGroup>& groups_;
  int64_t puzzles_ = 0, examples_ = 0, pairs_ = 0;
};

}  // namespace

ArcBuildResult build_arc(const ArcBuildOptions& options, const fs::path& out) {
  NumpyRandom random(static_cast<uint32_t>(options.seed));
  std::vector<std::pair<ArcSource, std::vector<ArcAugmentation>>> tasks;
  std::vector<bool> in_test;
  Json test_puzzles = Json::object();
  std::set<std::string> names;
  ArcBuildResult result;
  for (const fs::path& path : options.subsets) {
    const bool test = std::count(options.test.begin(), options.test.end(), arc_subset_name(path)) > 0;
    std::vector<ArcSource> sources = read_arc_sources(path, options.unsolved && test);
    random.shuffle(sources);
    for (ArcSource& source : sources) {
      require(names.insert(source.task.name).second, ExitCode::data, path.string(), ": task ",
              printable_start(source.task.name), " is named twice; name each task once");
      if (test) test_puzzles[source.task.name] = source.json;
      std::vector<ArcAugmentation> copies = draw_copies(source.task, options.augment, random);
      result.not_full += static_cast<int64_t>(copies.size()) <= options.augment && options.augment > 0;
      tasks.emplace_back(std::move(source), std::move(copies));
      in_test.push_back(test);
      if (tasks.size() % 16 == 0) log::progress(cat("drawing copies: ", tasks.size(), " tasks"));
    }
  }
  log::progress_done();

  std::vector<ArcGroup> train, test;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const ArcTask& task = tasks[i].first.task;
    std::vector<ArcPair> own = task.train;
    if (in_test[i]) {
      test.push_back({&tasks[i].second, &task.name, task.test});
    } else {
      own.insert(task.test_first ? own.begin() : own.end(), task.test.begin(), task.test.end());
    }
    train.push_back({&tasks[i].second, &task.name, std::move(own)});
  }
  require(!train.empty(), ExitCode::data, "there is no task to build data of");
  std::unordered_map<std::string, int32_t> identifiers;
  Json listed = Json::array({"<blank>"});
  for (const ArcGroup& group : train) {
    for (size_t copy = 0; copy < group.copies->size(); ++copy) {
      const std::string name = name_of(group, copy);
      identifiers.emplace(name, static_cast<int32_t>(listed.size()));
      listed.push_back(name);
    }
  }
  const std::string identifier_text = python_json(listed);
  require(identifier_text.size() <= kMostIdentifierBytes, ExitCode::usage, listed.size(),
          " tasks and copies have names of ", identifier_text.size() >> 20, " MiB, and a dataset may have ",
          kMostIdentifierBytes >> 20, "; make fewer copies");
  make_directories(out);
  for (const char* split : {"train", "test"}) {  // what an earlier build left there is no dataset any more
    std::error_code ignored;
    fs::remove(out / split / "dataset.json", ignored);
  }
  result.train_examples = SplitWriter(out, "train", train, options.compact).write(identifiers, random);
  if (!test.empty()) {
    result.test_examples = SplitWriter(out, "test", test, options.compact).write(identifiers, random);
  }
  write_text_atomic(out / "identifiers.json", identifier_text);
  write_text_atomic(out / kArcTestPuzzles, python_json(test_puzzles));
  result.tasks = static_cast<int64_t>(tasks.size());
  result.identifiers = static_cast<int64_t>(listed.size());
  return result;
}

}  // namespace hrm::data
