// Finding, verifying and loading checkpoints.

#include <ATen/ops/mean.h>

#include <algorithm>
#include <set>

#include "checkpoint/entry_names.h"
#include "checkpoint/manifest.h"
#include "checkpoint/state_file.h"
#include "hrm/base/failpoint.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/checkpoint/checkpoint.h"
#include "hrm/formats/hf_config.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::checkpoint {
namespace fs = std::filesystem;
namespace {

bool is_average(const std::string& name) {
  return name.rfind(kEmaPrefix, 0) == 0;
}

std::string type_text(at::ScalarType type, const std::vector<int64_t>& sizes) {
  return cat(at::toString(type), " ", shape_text(sizes));
}

// Matches the entries of a running program against those of a checkpoint. All checks come before the first copy, so
// that a refused checkpoint changes nothing.
class Loader final : public StateVisitor {
 public:
  // With `state` null only entries of role weight are matched; all others are skipped. Entries of the state that
  // begin with one of `optional` may be missing on one side.
  Loader(const VerifiedCheckpoint& checkpoint, std::map<std::string, StoredTensor> model, const StateContent* state,
         std::vector<std::string> optional = {})
      : checkpoint_(checkpoint),
        dir_(checkpoint.dir()),
        model_(std::move(model)),
        state_(state),
        optional_(std::move(optional)) {}

  void load(Stateful& root) {
    // Weights first: where the architecture differs, so does much of the rest, which would say less.
    root.visit_state(*this);
    expect_all_used(model_, [](const std::string& name) { return !is_average(name); });
    if (state_ != nullptr) {
      match_state(root);
      expect_all_used(model_);
      std::set<std::string> passed_over;
      for (const std::string& prefix : optional_) {
        if (optional_here_.count(prefix) > 0 || !has(prefix)) continue;
        passed_over.insert(prefix);
        log::info("what ", dir_.string(), " holds as '", prefix, "*' is not needed here");
      }
      expect_state_used([&](const std::string& name) { return passed_over.count(prefix_of(name)) == 0; });
    }
    copy_all();
  }

  // Stored bfloat16 is read where this program has float32.
  void allow_rounded() { rounded_ = true; }

  // As load_weights_into.
  void allow_by_mean(const std::vector<std::string>& names) { by_mean_ = {names.begin(), names.end()}; }

  // Of the state alone, all of it.
  void load_part(Stateful& part) {
    match_state(part);
    expect_state_used(any_name);
    copy_all();
  }

  void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) override {
    if ((role == StateRole::weight) != (stage_ == Stage::weights) || starts_afresh(name)) return;
    const std::string where = in_model_file(role) ? archive_name({name, tensor, role}) : name;
    const StoredTensor& stored = find(in_model_file(role) ? model_ : state_->tensors, where);
    const std::vector<int64_t> sizes = part.split ? part.sizes : tensor.sizes().vec();
    if (by_mean_.count(where) > 0 && is_other_count(stored, tensor)) {
      checkpoint_.guard([&] { stored.verify({}, stored.sizes()); });
      copies_.push_back([target = tensor, &stored, where] {
        log::info("'", where, "' has ", target.size(0), " rows here and ", stored.sizes()[0],
                  " in the checkpoint: each new row is the mean of the old ones");
        const at::Tensor rows = stored.whole().to(target.scalar_type());
        at::Tensor(target).copy_(rows.mean(/*dim=*/0, /*keepdim=*/true).expand_as(target));
      });
      return;
    }
    if (!same_type(stored.type(), tensor.scalar_type()) || stored.sizes() != sizes) {
      differs("'", where, "' is ", type_text(stored.type(), stored.sizes()), " there and ",
              type_text(tensor.scalar_type(), sizes), " here");
    }
    checkpoint_.guard([&] { stored.verify(part, tensor.sizes()); });
    copies_.push_back(
        [target = tensor, &stored, part] { at::Tensor(target).copy_(stored.read(part, target.sizes())); });
  }
  void integer(const std::string& name, int64_t& value) override {
    if (stage_ == Stage::rest && !starts_afresh(name)) assign(value, find(state_->integers, name));
  }
  void real(const std::string& name, double& value) override {
    if (stage_ == Stage::rest && !starts_afresh(name)) assign(value, find(state_->reals, name));
  }

 private:
  enum class Stage { weights, rest };

  bool same_type(at::ScalarType stored, at::ScalarType here) const {
    return stored == here || (rounded_ && stored == at::kBFloat16 && here == at::kFloat);
  }

  // Of two matrices: whether they differ in the number of their rows alone.
  bool is_other_count(const StoredTensor& stored, const at::Tensor& tensor) const {
    const std::vector<int64_t>& sizes = stored.sizes();
    return same_type(stored.type(), tensor.scalar_type()) && sizes.size() == 2 && tensor.dim() == 2 &&
           sizes[1] == tensor.size(1) && sizes[0] != tensor.size(0) && sizes[0] > 0;
  }

  void match_state(Stateful& object) {
    stage_ = Stage::rest;
    object.visit_state(*this);
  }

  void copy_all() const {
    const at::NoGradGuard no_grad;
    checkpoint_.guard([&] {
      for (const auto& copy : copies_) copy();
    });
  }

  // The optional prefix that the name begins with, otherwise an empty string.
  std::string prefix_of(const std::string& name) const {
    for (const std::string& prefix : optional_) {
      if (name.starts_with(prefix)) return prefix;
    }
    return "";
  }

  // Whether the checkpoint has entries that begin so.
  bool has(const std::string& prefix) const {
    const auto any = [&](const auto& stored) {
      const auto first = stored.lower_bound(prefix);
      return first != stored.end() && first->first.starts_with(prefix);
    };
    return any(state_->tensors) || any(state_->integers) || any(state_->reals);
  }

  // Whether this entry of ours is one that the checkpoint need not have, and has not.
  bool starts_afresh(const std::string& name) {
    const std::string prefix = prefix_of(name);
    if (prefix.empty()) return false;
    optional_here_.insert(prefix);
    return !has(prefix);
  }

  template <class... Args>
  [[noreturn]] void differs(const Args&... difference) const {
    if (stage_ == Stage::weights) {
      fail(ExitCode::checkpoint, "the checkpoint ", dir_, " belongs to another architecture: ", difference...);
    }
    fail(ExitCode::checkpoint, "the checkpoint ", dir_, " cannot be resumed with this configuration: ", difference...,
         "; batch sizes, precision, optimizer and averaging must be as in its config.json");
  }

  template <class Value>
  const Value& find(const std::map<std::string, Value>& stored, const std::string& name) {
    const auto found = stored.find(name);
    if (found == stored.end()) differs("it has no entry '", name, "'");
    used_.insert(name);
    return found->second;
  }

  using NameTest = std::function<bool(const std::string&)>;
  static bool any_name(const std::string&) { return true; }

  void expect_state_used(const NameTest& matters) const {
    expect_all_used(state_->tensors, matters);
    expect_all_used(state_->integers, matters);
    expect_all_used(state_->reals, matters);
  }

  template <class Value>
  void expect_all_used(const std::map<std::string, Value>& stored, const NameTest& matters = any_name) const {
    for (const auto& [name, value] : stored) {
      if (used_.count(name) == 0 && matters(name)) {
        differs("its entry '", printable(name), "' has no counterpart here");
      }
    }
  }

  template <class Value>
  void assign(Value& target, Value value) {
    copies_.push_back([&target, value] { target = value; });
  }

  const VerifiedCheckpoint& checkpoint_;
  fs::path dir_;
  std::map<std::string, StoredTensor> model_;
  const StateContent* state_;
  const std::vector<std::string> optional_;
  bool rounded_ = false;
  std::set<std::string> by_mean_;
  std::set<std::string> optional_here_;  // those with entries of ours
  Stage stage_ = Stage::weights;
  // Names of registered entries are unique, and averages begin with "ema." in the model file.
  std::set<std::string> used_;
  std::vector<std::function<void()>> copies_;
};

// One set of weights by their names; empty where there are no averages and those are asked for.
std::map<std::string, StoredTensor> set_of(const std::map<std::string, StoredTensor>& model, bool averaged) {
  std::map<std::string, StoredTensor> set;
  const bool any = std::any_of(model.begin(), model.end(), [](const auto& entry) { return is_average(entry.first); });
  if (averaged && !any) return set;
  for (const auto& [name, tensor] : model) {
    if (is_average(name)) continue;
    const auto average = averaged ? model.find(kEmaPrefix + name) : model.end();
    set.emplace(name, average == model.end() ? tensor : average->second);
  }
  return set;
}

bool holds_only_average(const Manifest& manifest) {
  const auto exported = manifest.info.find(kWeightsInfo);
  return manifest.kind == CheckpointKind::weights && exported != manifest.info.end() &&
         exported->second.starts_with(kAveragedInfo);
}

ModelWeights read_weights(const VerifiedCheckpoint& checkpoint) {
  const std::map<std::string, StoredTensor> model = stored_model(checkpoint);
  ModelWeights weights;
  weights.only_average = holds_only_average(checkpoint.manifest());
  std::map<std::string, at::Tensor> raw;
  for (const auto& [name, stored] : model) {
    if (!is_average(name)) raw[name] = stored.whole();
  }
  for (const auto& [name, stored] : set_of(model, /*averaged=*/true)) {
    const auto average = model.find(kEmaPrefix + name);
    weights.ema.emplace_back(name, average == model.end() ? raw.at(name) : average->second.whole());
  }
  weights.raw.assign(raw.begin(), raw.end());
  return weights;
}

FoundCheckpoint found(const VerifiedCheckpoint& checkpoint) {
  return {checkpoint.dir(), checkpoint.meta()};
}

}  // namespace

std::vector<fs::path> list_checkpoints(const fs::path& run_dir) {
  std::vector<fs::path> dirs;
  std::error_code error, ignored;
  const fs::directory_iterator entries(run_dir / "checkpoints", error);
  // What cannot be listed is not empty: a run would begin anew in silence.
  require(!error || error == std::errc::no_such_file_or_directory, ExitCode::environment,
          "cannot list the checkpoints in ", run_dir / "checkpoints", ": ", error.message());
  for (const fs::directory_entry& entry : entries) {
    if (entry.is_directory(ignored) && step_of_name(entry.path().filename().string()) >= 0) {
      dirs.push_back(entry.path());
    }
  }
  std::sort(dirs.begin(), dirs.end(), [](const fs::path& a, const fs::path& b) {
    return step_of_name(a.filename().string()) > step_of_name(b.filename().string());
  });
  return dirs;
}

namespace {

constexpr const char* kQuarantined = "bad-";

// Renames a bad checkpoint; says what became of it.
std::string quarantine_it(const fs::path& dir) {
  failpoint::hit(Failpoint::checkpoint_quarantine);
  std::error_code error;
  const std::string name = kQuarantined + dir.filename().string();
  fs::path away = dir.parent_path() / name;
  for (int copy = 2; fs::exists(fs::symlink_status(away, error)); ++copy) {
    away = dir.parent_path() / cat(name, '-', copy);
  }
  fs::rename(dir, away, error);
  if (error) return cat("it could not be renamed: ", error.message());
  return cat("it is called ", away.filename().string(), " now");
}

// The newest that lost its name in this way; empty: none did.
std::string quarantined(const fs::path& run_dir) {
  std::error_code ignored;
  std::string newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_dir / "checkpoints", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kQuarantined)) newest = std::max(newest, name);
  }
  return newest;
}

}  // namespace

std::optional<FoundCheckpoint> find_latest_valid(const fs::path& run_dir, Quarantine quarantine) {
  failpoint::hit(Failpoint::checkpoint_find);
  const std::vector<fs::path> dirs = list_checkpoints(run_dir);
  std::string reason;
  for (const fs::path& dir : dirs) {
    try {
      return found(VerifiedCheckpoint(dir));
    } catch (const UnreadableCheckpoint& error) {
      if (reason.empty()) reason = error.what();
      log::warn(error.what(), dir != dirs.back() ? "; trying the one before it" : "");
    } catch (const Error& error) {
      if (reason.empty()) reason = error.what();
      const std::string renamed = quarantine == Quarantine::yes ? "; " + quarantine_it(dir) : "";
      log::warn(error.what(), renamed, dir != dirs.back() ? "; trying the one before it" : "");
    }
  }
  if (!dirs.empty()) {
    fail(ExitCode::checkpoint, "none of the ", dirs.size(), " checkpoints of the run ", run_dir,
         " is usable; the newest: ", reason);
  }
  // Beginning anew in silence would throw away what was trained.
  const std::string bad = quarantined(run_dir);
  require(bad.empty(), ExitCode::checkpoint, "the run ", run_dir, " has no checkpoint but bad ones, the newest ", bad,
          "; to begin anew choose another run.name, or remove them");
  return std::nullopt;
}

std::optional<FoundCheckpoint> find_before(const fs::path& run_dir, int64_t step) {
  for (const fs::path& dir : list_checkpoints(run_dir)) {
    if (step_of_name(dir.filename().string()) > step) continue;
    try {
      return found(VerifiedCheckpoint(dir));
    } catch (const Error& error) {
      log::warn(error.what(), "; trying the one before it");
    }
  }
  return std::nullopt;
}

namespace {

// Why a folder with weights is no folder of a model either.
std::string model_fault(const fs::path& folder) {
  std::error_code error;
  bool weights = false;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string suffix = at->path().extension().string();
    weights = weights || suffix == ".safetensors" || suffix == ".bin" || suffix == ".gguf";
  }
  if (!weights) return "";
  if (!fs::exists(folder / "config.json", error)) {
    return ", and no config.json beside its weights; 'hf download NAME --local-dir FOLDER' fetches all files of a "
           "model";
  }
  return ", and its config.json does not say of which kind its model is ('model_type')";
}

}  // namespace

FoundCheckpoint open_checkpoint(const fs::path& run_or_step) {
  std::error_code ignored;
  if (!fs::exists(run_or_step, ignored)) {
    fail(ExitCode::checkpoint, "there is no checkpoint at ", run_or_step, ": give a run folder or a step folder",
         hub_name_hint(run_or_step.string()));
  }
  if (!fs::is_directory(run_or_step, ignored)) {
    fail(ExitCode::checkpoint, run_or_step,
         " is a file: give a run folder or a step folder (`hrm_train import` turns .pt files into one)");
  }
  // "run/checkpoints/" and "run/checkpoints" mean the same.
  fs::path path = run_or_step.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (step_of_name(path.filename().string()) >= 0 || fs::exists(path / kManifestFile, ignored)) {
    return found(VerifiedCheckpoint(path));
  }
  if (path.filename() == "checkpoints") path = fs::absolute(path).parent_path();
  if (std::optional<FoundCheckpoint> latest = find_latest_valid(path)) return *latest;
  fail(ExitCode::checkpoint, "the folder ", run_or_step, " holds no checkpoint", model_fault(path));
}

FoundCheckpoint read_meta(const fs::path& dir) {
  return found(VerifiedCheckpoint(dir, Check::meta));
}

void load_checkpoint(const fs::path& dir, Stateful& root, const std::vector<std::string>& optional) {
  const VerifiedCheckpoint checkpoint(dir, Check::used);
  if (checkpoint.manifest().kind != CheckpointKind::full) {
    fail(ExitCode::checkpoint, "the checkpoint ", dir,
         " holds weights alone: training can start from them, but nothing can be resumed");
  }
  failpoint::hit(Failpoint::checkpoint_load);
  StateContent state;
  std::map<std::string, StoredTensor> model;
  checkpoint.guard([&] {
    state = stored_state(checkpoint, /*prefix=*/"");
    model = stored_model(checkpoint);
  });
  Loader(checkpoint, std::move(model), &state, optional).load(root);
}

bool load_state_part(const fs::path& dir, Stateful& part, const std::string& prefix) {
  const VerifiedCheckpoint checkpoint(dir, Check::state);
  if (checkpoint.manifest().kind != CheckpointKind::full) return false;
  StateContent state;
  checkpoint.guard([&] { state = stored_state(checkpoint, prefix); });
  if (state.tensors.empty() && state.integers.empty() && state.reals.empty()) return false;
  Loader(checkpoint, {}, &state).load_part(part);
  return true;
}

void load_weights_into(const fs::path& dir, Stateful& root, WeightSet which, const std::vector<std::string>& by_mean) {
  const VerifiedCheckpoint checkpoint(dir, Check::used);
  std::map<std::string, StoredTensor> model, chosen;
  checkpoint.guard([&] { model = stored_model(checkpoint); });
  if (which != WeightSet::raw) chosen = set_of(model, /*averaged=*/true);
  if (which == WeightSet::ema && chosen.empty()) {
    fail(ExitCode::checkpoint, "the checkpoint ", dir, " holds no averaged weights: use the raw ones");
  }
  if (chosen.empty()) chosen = set_of(model, /*averaged=*/false);
  Loader loader(checkpoint, std::move(chosen), nullptr);
  loader.allow_by_mean(by_mean);
  if (checkpoint.manifest().kind == CheckpointKind::weights) loader.allow_rounded();
  loader.load(root);
}

StoredSets stored_sets(const fs::path& dir) {
  const VerifiedCheckpoint checkpoint(dir, Check::used);
  StoredSets sets{.only_average = holds_only_average(checkpoint.manifest())};
  std::map<std::string, StoredTensor> model;
  checkpoint.guard([&] { model = stored_model(checkpoint); });
  sets.average = sets.only_average ||
                 std::any_of(model.begin(), model.end(), [](const auto& entry) { return is_average(entry.first); });
  return sets;
}

ModelWeights load_weights(const fs::path& dir) {
  const VerifiedCheckpoint checkpoint(dir);
  ModelWeights weights;
  checkpoint.guard([&] { weights = read_weights(checkpoint); });
  return weights;
}

}  // namespace hrm::checkpoint
