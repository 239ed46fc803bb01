// Checkpoints in parts: what ranks hold in one way is loaded by ranks that hold it in another.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>

#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/checkpoint/reshard.h"
#include "sample_state.h"
#include "support/expect_error.h"
#include "support/live_bytes.h"
#include "support/state_parts.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

// One entry of the state as a rank holds it.
struct Held {
  std::vector<int64_t> sizes;
  StatePart part;
};

Held whole(const std::vector<int64_t>& sizes) {
  return {sizes, {}};
}

// Rank `part` of `parts` has its share of rows; with `uneven` the last one has all but one row for each other.
Held rows(const std::vector<int64_t>& sizes, int64_t part, int64_t parts, bool uneven = false) {
  const int64_t first = uneven ? part : sizes[0] * part / parts;
  const int64_t end = !uneven ? sizes[0] * (part + 1) / parts : part + 1 == parts ? sizes[0] : part + 1;
  std::vector<int64_t> here = sizes;
  here[0] = end - first;
  return {here, rows_part(here, first, sizes[0])};
}

// A share of a flat vector of all parameters.
Held share(const std::vector<int64_t>& sizes, int64_t offset, int64_t all, int64_t rank, int64_t ranks) {
  const int64_t begin = all * rank / ranks, end = all * (rank + 1) / ranks;
  const int64_t first = std::max(begin, offset), last = std::min(end, offset + count_of(sizes));
  const int64_t count = std::max<int64_t>(last - first, 0);
  return {{count}, run_part(sizes, count > 0 ? first - offset : 0, count)};
}

// `groups` equal groups of rows, each cut into `parts`, of which this is `part`; of each of these the `half` of
// `halves`.
Held grouped(const std::vector<int64_t>& sizes, int64_t groups, int64_t part, int64_t parts, int64_t half = 0,
             int64_t halves = 1) {
  const int64_t group = sizes[0] / groups, size = group / parts / halves;
  Held held{sizes, {.split = true, .sizes = sizes, .boxes = {}}};
  held.sizes[0] = groups * size;
  for (int64_t i = 0; i < groups; ++i) {
    StateBox box{{i * size, 0}, {i * group + part * group / parts + half * size, 0}, {size, sizes[1]}};
    held.part.boxes.push_back(box);
  }
  return held;
}

// Columns by `part`, rows by `half`.
Held block(const std::vector<int64_t>& sizes, int64_t part, int64_t parts, int64_t half = 0, int64_t halves = 1) {
  const std::vector<int64_t> here{sizes[0] / halves, sizes[1] / parts};
  return {here, box_part(here, {half * here[0], part * here[1]}, sizes)};
}

const std::map<std::string, std::vector<int64_t>> kWeights = {
    {"qkv_proj", {24, 8}}, {"gate_up_proj", {20, 8}}, {"down_proj", {8, 10}}, {"norm", {8}}, {"gate", {}}};

// A way to hold the state.
enum class Layout { one, zero_of_2, zero_of_3, weights_too_of_4, mesh_2x2, uneven_of_3 };
constexpr std::array kLayouts = {Layout::one,      Layout::zero_of_2,  Layout::zero_of_3, Layout::weights_too_of_4,
                                 Layout::mesh_2x2, Layout::uneven_of_3};

int64_t ranks_of(Layout layout) {
  constexpr std::array<int64_t, 6> ranks = {1, 2, 3, 4, 4, 3};
  return ranks.at(static_cast<size_t>(layout));
}

Held held_weight(Layout layout, int64_t rank, const std::string& name, StateRole role) {
  const std::vector<int64_t>& sizes = kWeights.at(name);
  const int64_t ranks = ranks_of(layout);
  const int64_t tensor = rank % 2, data = rank / 2;  // of the mesh
  switch (layout) {
    case Layout::one:
      return whole(sizes);
    case Layout::zero_of_2:
    case Layout::zero_of_3:
    case Layout::weights_too_of_4: {
      if (role == StateRole::weight && layout != Layout::weights_too_of_4) return whole(sizes);
      int64_t offset = 0, at = 0;
      for (const auto& [other, its] : kWeights) {
        if (other == name) at = offset;
        offset += count_of(its);
      }
      return share(sizes, at, offset, rank, ranks);
    }
    case Layout::mesh_2x2: {
      // Weights and averages are cut by the axis tensor, moments by both.
      const bool both = role == StateRole::optimizer;
      const int64_t half = both ? data : 0, halves = both ? 2 : 1;
      if (name == "qkv_proj") return grouped(sizes, 3, tensor, 2, half, halves);
      if (name == "gate_up_proj") return grouped(sizes, 2, tensor, 2, 0, 1);
      if (name == "down_proj") return block(sizes, tensor, 2, half, halves);
      return whole(sizes);
    }
    case Layout::uneven_of_3:
      if (sizes.empty()) return whole(sizes);
      return rows(sizes, rank, ranks, /*uneven=*/true);
  }
  return whole(sizes);
}

Held held_slots(Layout layout, int64_t rank, const std::vector<int64_t>& sizes) {
  if (layout == Layout::one) return whole(sizes);
  if (layout == Layout::mesh_2x2) return rows(sizes, rank / 2, 2);
  return rows(sizes, rank, ranks_of(layout));
}

// What one rank holds. Values are 0 until they are filled.
class RankState : public Stateful {
 public:
  RankState(Layout layout, int64_t rank) {
    for (const auto& [name, sizes] : kWeights) {
      add(name, StateRole::weight, held_weight(layout, rank, name, StateRole::weight), at::kFloat);
      if (name != "norm")
        add("ema." + name, StateRole::ema, held_weight(layout, rank, name, StateRole::ema), at::kFloat);
      for (const std::string moment : {".exp_avg", ".exp_avg_sq"}) {
        add("optim." + name + moment, StateRole::optimizer, held_weight(layout, rank, name, StateRole::optimizer),
            at::kFloat);
      }
    }
    add("carry.z", StateRole::carry, held_slots(layout, rank, {12, 3, 2}), at::kBFloat16);
    add("carry.steps", StateRole::carry, held_slots(layout, rank, {12}), at::kLong);
    add("carry.halted", StateRole::carry, held_slots(layout, rank, {12, 1}), at::kBool);
    add("optim.step", StateRole::optimizer, whole({}), at::kLong);
  }

  void visit_state(StateVisitor& visitor) override {
    for (Entry& entry : entries_) {
      if (owned_ && owned_->count(entry.name) == 0) continue;
      visitor.tensor(entry.name, entry.tensor, entry.role, entry.part);
    }
    if (owned_ && !scalars_) return;
    visitor.integer("loop.step", step);
    visitor.real("loop.rate", rate);
  }

  // From now on visits these entries alone.
  void own(const std::set<std::string>& names, bool scalars) {
    owned_ = names;
    scalars_ = scalars;
  }

  int64_t step = 0;
  double rate = 0;

 private:
  struct Entry {
    std::string name;
    StateRole role;
    at::Tensor tensor;
    StatePart part;
  };
  void add(const std::string& name, StateRole role, const Held& held, at::ScalarType type) {
    entries_.push_back({name, role, at::zeros(held.sizes, type), held.part});
  }
  std::vector<Entry> entries_;
  std::optional<std::set<std::string>> owned_;
  bool scalars_ = true;
};

// Values that tell every element from its neighbours.
test::WholeState values(int64_t seed) {
  RankState one(Layout::one, 0);
  test::WholeState out;
  int64_t next = seed;
  for (const TensorEntry& entry : list_state(one).tensors) {
    const at::Tensor raw = at::arange(entry.tensor.numel(), at::kLong).mul(7919).add(++next * 104729).remainder(251);
    out[entry.name] = (entry.tensor.scalar_type() == at::kBool ? raw.remainder(2) : raw)
                          .view(entry.tensor.sizes())
                          .to(entry.tensor.scalar_type());
  }
  return out;
}

// The ranks' states, each with its elements of `wholes`; every entry is owned by the first rank that holds its boxes.
std::vector<std::unique_ptr<RankState>> ranks_with(Layout layout, const test::WholeState& wholes) {
  std::vector<std::unique_ptr<RankState>> states;
  std::set<std::string> taken;
  for (int64_t rank = 0; rank < ranks_of(layout); ++rank) {
    auto state = std::make_unique<RankState>(layout, rank);
    test::fill_state(*state, wholes);
    state->step = 1000;
    state->rate = 1.0 / 3;
    std::set<std::string> own;
    for (const TensorEntry& entry : list_state(*state).tensors) {
      if (taken.insert(entry.name + " " + part_text(entry.part)).second) own.insert(entry.name);
    }
    state->own(own, rank == 0);
    states.push_back(std::move(state));
  }
  return states;
}

bool weights_are_split(Layout layout) {
  RankState state(layout, 0);
  bool split = false;
  for (const TensorEntry& entry : list_state(state).tensors) {
    if (entry.role == StateRole::weight || entry.role == StateRole::ema) split = split || entry.part.split;
  }
  return split;
}

fs::path save_parts(const fs::path& run, Layout layout, const test::WholeState& wholes, int64_t step,
                    int64_t keep = 10) {
  auto states = ranks_with(layout, wholes);
  if (layout == Layout::one) return save_checkpoint(run, *states[0], sample_meta(step), keep);
  const fs::path folder = begin_parts(run, step);
  std::map<std::string, FileFact> files;
  const auto parts = static_cast<int64_t>(states.size());
  for (int64_t part = 0; part < parts; ++part) {
    files.merge(write_part(folder, list_state(*states[static_cast<size_t>(part)]),
                           {part, parts, weights_are_split(layout)}, sample_meta(step)));
  }
  EXPECT_TRUE(!fs::exists(run / "checkpoints") || list_checkpoints(run).empty() ||
              list_checkpoints(run).front().filename() != cat("step-", step));
  return commit_parts(run, folder, files, parts, sample_meta(step), keep);
}

// Loads on the ranks of a layout and puts what they hold together.
test::WholeState load(const fs::path& dir, Layout layout) {
  test::WholeState out = values(0);
  for (auto& [name, tensor] : out) tensor.zero_();
  for (int64_t rank = 0; rank < ranks_of(layout); ++rank) {
    RankState state(layout, rank);
    load_checkpoint(dir, state);
    EXPECT_EQ(state.step, 1000);
    EXPECT_EQ(state.rate, 1.0 / 3);
    for (const TensorEntry& entry : list_state(state).tensors) {
      test::copy_part(entry.part, entry.tensor, out.at(entry.name), /*to_whole=*/true);
    }
  }
  return out;
}

void expect_same(const test::WholeState& a, const test::WholeState& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(Parts, EveryLayoutLoadsEveryOther) {
  const test::WholeState wholes = values(1);
  for (const Layout from : kLayouts) {
    const TempDir run;
    const fs::path dir = save_parts(run.path(), from, wholes, 20);
    EXPECT_EQ(fs::exists(dir / "state.safetensors"), from == Layout::one);
    EXPECT_EQ(fs::exists(dir / "model.pt"), !weights_are_split(from));
    for (const Layout to : kLayouts) {
      SCOPED_TRACE(cat(static_cast<int>(from), " to ", static_cast<int>(to)));
      expect_same(load(dir, to), wholes);
    }
  }
}

TEST(Parts, WeightsForOtherCommands) {
  const test::WholeState wholes = values(2);
  for (const Layout from : kLayouts) {
    const TempDir run;
    const fs::path dir = save_parts(run.path(), from, wholes, 20);
    EXPECT_EQ(open_checkpoint(run.path()).meta.step, 20);
    EXPECT_EQ(read_meta(dir).meta.config_json, sample_meta(20).config_json);
    const ModelWeights weights = load_weights(dir);
    ASSERT_EQ(weights.raw.size(), kWeights.size());
    ASSERT_EQ(weights.ema.size(), kWeights.size());
    for (const auto& [name, tensor] : weights.raw) EXPECT_TRUE(at::equal(tensor, wholes.at(name))) << name;
    for (const auto& [name, tensor] : weights.ema) {
      EXPECT_TRUE(at::equal(tensor, wholes.at(name == "norm" ? name : "ema." + name))) << name;
    }
    // Into a model that is cut itself.
    for (const WeightSet set : {WeightSet::raw, WeightSet::ema}) {
      RankState third(Layout::mesh_2x2, 2);
      load_weights_into(dir, third, set);
      for (const TensorEntry& entry : list_state(third).tensors) {
        if (entry.role != StateRole::weight) continue;
        at::Tensor expected = at::zeros_like(entry.tensor);
        const bool average = set == WeightSet::ema && entry.name != "norm";
        test::copy_part(entry.part, expected, wholes.at((average ? "ema." : "") + entry.name), /*to_whole=*/false);
        EXPECT_TRUE(at::equal(entry.tensor, expected)) << entry.name;
      }
    }
  }
}

// A checkpoint that is spoilt, with a good one before it.
struct Spoilt {
  Spoilt() {
    save_parts(run.path(), Layout::mesh_2x2, values(3), 10);
    dir = save_parts(run.path(), Layout::mesh_2x2, values(4), 20);
  }
  // Every way to read it names the file, and the one before is used.
  void expect_refused(const std::vector<std::string>& parts) {
    std::vector<std::string> expected = parts;
    expected.push_back("step-000000020");
    expect_error(ExitCode::checkpoint, expected, [&] { open_checkpoint(dir); });
    expect_error(ExitCode::checkpoint, expected, [&] { load_weights(dir); });
    expect_error(ExitCode::checkpoint, expected, [&] {
      RankState one(Layout::one, 0);
      load_checkpoint(dir, one);
    });
    EXPECT_EQ(find_latest_valid(run.path())->meta.step, 10);
  }
  // The manifest after somebody has adapted it to a changed file.
  void forge(const std::string& name) {
    Manifest manifest = parse_manifest(read_text(dir / "manifest.json", ExitCode::checkpoint));
    const std::string text = read_text(dir / name, ExitCode::checkpoint);
    manifest.files[name] = {text.size(), digest_hex(as_bytes(text))};
    write_text_atomic(dir / "manifest.json", manifest_text(manifest, InfoValues::read));
  }
  TempDir run;
  fs::path dir;
};

const std::string kSecond = "state-00002-of-00004.safetensors", kThird = "state-00003-of-00004.safetensors";

TEST(PartsDamage, MissingPart) {
  for (const std::string& name : {kSecond, kThird, std::string("model-00002-of-00004.safetensors")}) {
    Spoilt spoilt;
    fs::remove(spoilt.dir / name);
    spoilt.expect_refused({name + " is missing"});
  }
  Spoilt unlisted;
  Manifest manifest = parse_manifest(read_text(unlisted.dir / "manifest.json", ExitCode::checkpoint));
  manifest.files.erase(kThird);
  write_text_atomic(unlisted.dir / "manifest.json", manifest_text(manifest));
  unlisted.expect_refused({"manifest.json does not list " + kThird});
}

TEST(PartsDamage, SwappedAndDoubledParts) {
  Spoilt swapped;
  fs::rename(swapped.dir / kSecond, swapped.dir / "aside");
  fs::rename(swapped.dir / kThird, swapped.dir / kSecond);
  fs::rename(swapped.dir / "aside", swapped.dir / kThird);
  swapped.expect_refused({kSecond});
  swapped.forge(kSecond);
  swapped.forge(kThird);
  swapped.expect_refused({kSecond + " is part 3/4 of a checkpoint, not 2/4"});

  Spoilt doubled;
  fs::copy_file(doubled.dir / kSecond, doubled.dir / kThird, fs::copy_options::overwrite_existing);
  doubled.expect_refused({kThird});
  doubled.forge(kThird);
  doubled.expect_refused({kThird + " is part 2/4 of a checkpoint, not 3/4"});

  // A part of the right number with what another one has.
  Spoilt twice;
  const auto states = ranks_with(Layout::mesh_2x2, values(4));
  StateListing listing = list_state(*states[2]);
  for (TensorEntry& entry : listing.tensors) {
    for (const TensorEntry& first : list_state(*states[0]).tensors) {
      if (first.name == entry.name && entry.part.split && entry.role == StateRole::optimizer) entry = first;
    }
  }
  TempDir other;
  write_part(other.path(), listing, {2, 4, true}, sample_meta(20));
  fs::copy_file(other / kThird, twice.dir / kThird, fs::copy_options::overwrite_existing);
  twice.forge(kThird);
  expect_error(ExitCode::checkpoint, {"is there twice", "state-00001-of-00004.safetensors", kThird}, [&] {
    RankState one(Layout::one, 0);
    load_checkpoint(twice.dir, one);
  });
}

// A part of another checkpoint, whole in itself, in which elements lack.
TEST(PartsDamage, ElementsThatNoPartHolds) {
  Spoilt spoilt;
  const StateListing nothing;
  TempDir other;
  write_part(other.path(), nothing, {2, 4, true}, sample_meta(20));
  fs::copy_file(other / kThird, spoilt.dir / kThird, fs::copy_options::overwrite_existing);
  spoilt.forge(kThird);
  expect_error(ExitCode::checkpoint, {"no part holds the elements", "step-000000020"}, [&] {
    RankState one(Layout::one, 0);
    load_checkpoint(spoilt.dir, one);
  });
}

TEST(PartsDamage, TruncatedAndChangedParts) {
  Spoilt cut;
  fs::resize_file(cut.dir / kThird, fs::file_size(cut.dir / kThird) - 1);
  cut.expect_refused({kThird + " has"});

  Spoilt linked;
  fs::rename(linked.dir / kThird, linked.dir / "aside");
  fs::create_symlink("aside", linked.dir / kThird);
  linked.expect_refused({kThird + " is a symbolic link"});

  Spoilt changed;
  {
    std::fstream file(changed.dir / kThird, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  changed.expect_refused({kThird + " is damaged"});
  // The ranks that need nothing of it read nothing of it.
  RankState first(Layout::mesh_2x2, 0), third(Layout::mesh_2x2, 2);
  load_checkpoint(changed.dir, first);
  EXPECT_EQ(first.step, 1000);
  const std::string before = digest_state(third);
  expect_error(ExitCode::checkpoint, {kThird + " is damaged"}, [&] { load_checkpoint(changed.dir, third); });
  EXPECT_EQ(digest_state(third), before) << "a refused checkpoint changes nothing";

  // A header that is no JSON any more is called damaged, too, not parsed wrongly.
  Spoilt header;
  {
    std::fstream file(header.dir / kThird, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put('x');
  }
  header.expect_refused({kThird + " is damaged: its digest does not fit"});
}

// Many changes of single bytes: none goes unnoticed, and none ends the process.
TEST(PartsDamage, AnyByte) {
  Spoilt spoilt;
  for (const std::string& name : {kSecond, std::string("model-00001-of-00004.safetensors")}) {
    const std::string good = read_text(spoilt.dir / name, ExitCode::checkpoint);
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 150) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      write_file(spoilt.dir / name, as_bytes(bad));
      expect_error(ExitCode::checkpoint, {name}, [&] { open_checkpoint(spoilt.dir); });
      spoilt.forge(name);  // the parsers themselves refuse it, or find other values
      try {
        RankState one(Layout::one, 0);
        load_checkpoint(spoilt.dir, one);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint) << error.what();
      }
    }
    write_file(spoilt.dir / name, as_bytes(good));
    spoilt.forge(name);
  }
  EXPECT_EQ(open_checkpoint(spoilt.dir).meta.step, 20);
}

TEST(Parts, AnotherShapeOrEntryIsNamed) {
  const TempDir run;
  const fs::path dir = save_parts(run.path(), Layout::zero_of_3, values(5), 20);
  struct Wider : RankState {
    Wider() : RankState(Layout::zero_of_2, 1) {}
    void visit_state(StateVisitor& visitor) override {
      RankState::visit_state(visitor);
      visitor.tensor("optim.more", more, StateRole::optimizer, run_part({6}, 3, 3));
    }
    at::Tensor more = at::zeros({3});
  } wider;
  expect_error(ExitCode::checkpoint, {"it has no entry 'optim.more'"}, [&] { load_checkpoint(dir, wider); });
}

TEST(Parts, ARankThatWritesElsewhere) {
  const TempDir run, elsewhere;
  const auto states = ranks_with(Layout::zero_of_2, values(6));
  const fs::path folder = begin_parts(run.path(), 20);
  std::map<std::string, FileFact> files = write_part(folder, list_state(*states[0]), {0, 2, true}, sample_meta(20));
  files.merge(write_part(elsewhere / "folder", list_state(*states[1]), {1, 2, true}, sample_meta(20)));
  expect_error(ExitCode::environment, {"model-00002-of-00002.safetensors", "one file system", "step 20"},
               [&] { commit_parts(run.path(), folder, files, 2, sample_meta(20), 3); });
  EXPECT_TRUE(list_checkpoints(run.path()).empty());
  // It may be tried again, and what it replaces goes.
  for (const auto& entry : fs::directory_iterator(elsewhere / "folder")) fs::copy(entry.path(), folder);
  commit_parts(run.path(), folder, files, 2, sample_meta(20), 3);
  save_parts(run.path(), Layout::zero_of_3, values(7), 20);
  expect_same(load(list_checkpoints(run.path()).at(0), Layout::one), values(7));
  EXPECT_EQ(std::distance(fs::directory_iterator(run / "checkpoints"), {}), 1) << "nothing temporary is left";
}

TEST(Parts, OlderOnesArePruned) {
  const TempDir run;
  for (const int64_t step : {10, 20, 30}) save_parts(run.path(), Layout::zero_of_2, values(step), step, 2);
  const auto dirs = list_checkpoints(run.path());
  ASSERT_EQ(dirs.size(), 2u);
  expect_same(load(dirs[1], Layout::mesh_2x2), values(20));
}

TEST(Parts, OfTheStateAlone) {
  const TempDir run;
  const test::WholeState wholes = values(8);
  const fs::path dir = save_parts(run.path(), Layout::mesh_2x2, wholes, 20);
  for (int64_t part = 0; part < 4; ++part) fs::remove(dir / part_file_name("model", part, 4));
  struct Carry : Stateful {
    void visit_state(StateVisitor& visitor) override {
      visitor.tensor("carry.z", z, StateRole::carry);
      visitor.tensor("carry.steps", steps, StateRole::carry);
      visitor.tensor("carry.halted", halted, StateRole::carry);
    }
    at::Tensor z = at::zeros({12, 3, 2}, at::kBFloat16), steps = at::zeros({12}, at::kLong),
               halted = at::zeros({12, 1}, at::kBool);
  } carry;
  EXPECT_TRUE(load_state_part(dir, carry, "carry."));
  EXPECT_TRUE(at::equal(carry.z, wholes.at("carry.z")));
}

TEST(Parts, OnePartOfATensorIsNoCheckpoint) {
  const TempDir run;
  RankState second(Layout::zero_of_2, 1);
  expect_error(ExitCode::unexpected, {"only a part of", "holds whole tensors"},
               [&] { save_checkpoint(run.path(), second, sample_meta(1), 1); });
}

TEST(Reshard, AnyNumberToAnyOther) {
  const test::WholeState wholes = values(9);
  for (const Layout from : kLayouts) {
    const TempDir run;
    const fs::path dir = save_parts(run.path(), from, wholes, 20);
    for (const int64_t ranks : {1, 2, 7}) {
      SCOPED_TRACE(cat(static_cast<int>(from), " to ", ranks));
      const fs::path out = run / cat("to", ranks);
      reshard(dir, ranks, out);
      EXPECT_EQ(fs::exists(out / "model.pt"), ranks == 1);
      EXPECT_EQ(fs::exists(out / "state.safetensors"), ranks == 1);
      EXPECT_EQ(fs::exists(out / part_file_name("state", 6, 7)), ranks == 7);
      const FoundCheckpoint found = open_checkpoint(out);
      EXPECT_EQ(found.meta.step, 20);
      EXPECT_EQ(found.meta.config_json, sample_meta(20).config_json);
      EXPECT_EQ(found.meta.info, open_checkpoint(dir).meta.info);
      for (const Layout to : {Layout::one, Layout::mesh_2x2}) expect_same(load(out, to), wholes);
      // And back.
      reshard(out, 1, run / cat("back", ranks));
      expect_same(load(run / cat("back", ranks), Layout::one), wholes);
    }
  }
}

// Whoever wrote it: one rank's file of one checkpoint is that of another, byte for byte.
TEST(Reshard, ToOneIsWhatOneRankWrites) {
  const TempDir run;
  const fs::path one = save_parts(run.path(), Layout::one, values(10), 20);
  const fs::path parts = save_parts(run / "other", Layout::mesh_2x2, values(10), 20);
  reshard(parts, 1, run / "joined");
  const auto text = [](const fs::path& file) { return read_text(file, ExitCode::checkpoint); };
  const ModelWeights a = load_weights(one), b = load_weights(run / "joined");
  for (size_t i = 0; i < a.raw.size(); ++i) EXPECT_TRUE(at::equal(a.raw[i].second, b.raw[i].second));
  EXPECT_EQ(text(one / "config.json"), text(run / "joined" / "config.json"));
}

// Of eight tensors of a megabyte each, and their averages, one is in memory at a time, or two copies of it.
TEST(Reshard, HoldsOneTensorAtATime) {
  struct Weights : Stateful {
    void visit_state(StateVisitor& visitor) override {
      for (size_t i = 0; i < tensors.size(); ++i) visitor.tensor(cat("w.", i), tensors[i], StateRole::weight);
      for (size_t i = 0; i < tensors.size(); ++i) visitor.tensor(cat("ema.w.", i), tensors[i], StateRole::ema);
      for (size_t i = 0; i < tensors.size(); ++i) visitor.tensor(cat("m.", i), tensors[i], StateRole::optimizer);
    }
    std::vector<at::Tensor> tensors;
  };
  constexpr int64_t kElements = int64_t{1} << 18;
  const TempDir run;
  fs::path dir;
  {
    Weights weights;
    for (int i = 0; i < 8; ++i) weights.tensors.push_back(at::randn({512, kElements / 512}));
    dir = save_checkpoint(run.path(), weights, sample_meta(1), 2);
  }
  test::LiveBytes live;
  for (const int64_t ranks : {3, 1}) {
    const fs::path out = run / cat("of", ranks);
    live.begin();
    const int64_t before = live.now();
    reshard(dir, ranks, out);
    EXPECT_LE(live.peak() - before, 2 * 4 * kElements) << ranks;
    EXPECT_FALSE(fs::exists(out / "weights.tmp"));
    dir = out;
  }
  const ModelWeights whole = load_weights(dir);
  EXPECT_EQ(whole.raw.size(), 8U);
}

TEST(Reshard, RefusesWhatItCannotDo) {
  Spoilt spoilt;
  const fs::path out = spoilt.run / "out";
  expect_error(ExitCode::usage, {"1 to 2000", "0"}, [&] { reshard(spoilt.dir, 0, out); });
  {
    std::fstream file(spoilt.dir / kThird, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  expect_error(ExitCode::checkpoint, {kThird + " is damaged"}, [&] { reshard(spoilt.dir, 1, out); });
  EXPECT_FALSE(fs::exists(out));
  reshard(list_checkpoints(spoilt.run.path()).at(1), 3, out);
  expect_error(ExitCode::environment, {"exists already"},
               [&] { reshard(list_checkpoints(spoilt.run.path()).at(1), 3, out); });
  ModelWeights weights;
  weights.raw = {{"norm", at::ones({8})}};
  const fs::path only = save_weights(spoilt.run / "weights", weights, sample_meta(1), 1);
  expect_error(ExitCode::checkpoint, {"weights alone"}, [&] { reshard(only, 2, spoilt.run / "two"); });
}

}  // namespace
}  // namespace hrm::checkpoint
