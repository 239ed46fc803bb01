// Damaged checkpoints are found out and passed over; interrupted and failing writes leave the older ones as they were.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>

#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "sample_state.h"
#include "support/expect_error.h"
#include "support/state_check.h"
#include "support/temp_dir.h"

namespace hrm::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::TempDir;

// Each damaged checkpoint is logged when it is passed over: hundreds here.
const bool kQuiet = (log::set_level(log::Level::error), true);

constexpr const char* kFiles[] = {"model.pt", "state.safetensors", "config.json", "manifest.json"};

// A run with checkpoints 10 and 20; `newest` is the second.
struct TwoCheckpoints {
  TwoCheckpoints() {
    SampleState first(1), second(2);
    save_checkpoint(run.path(), first, sample_meta(10), 5);
    newest = save_checkpoint(run.path(), second, sample_meta(20), 5);
  }
  void expect_fallback(const std::string& what) {
    const auto found = find_latest_valid(run.path());
    ASSERT_TRUE(found) << what;
    EXPECT_EQ(found->meta.step, 10) << what;
    SampleState state(3);
    const std::string before = digest_state(state);
    expect_error(ExitCode::checkpoint, {"step-000000020", "not usable"}, [&] { load_checkpoint(newest, state); });
    EXPECT_EQ(digest_state(state), before) << what;
  }
  TempDir run;
  fs::path newest;
};

// How many random changes are made to each file: few, or HRM_DAMAGE_ROUNDS.
int rounds() {
  const char* text = std::getenv("HRM_DAMAGE_ROUNDS");
  return text != nullptr ? std::atoi(text) : 50;
}

void overwrite_all(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(Damage, AnyFlippedByteIsFound) {
  TwoCheckpoints two;
  std::mt19937 random(17);
  for (const char* name : kFiles) {
    const std::string good = read_text(two.newest / name, ExitCode::data);
    for (int i = 0; i < rounds(); ++i) {
      std::string bad = good;
      const size_t at = random() % bad.size();
      bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
      overwrite_all(two.newest / name, bad);
      two.expect_fallback(cat(name, " byte ", at));
    }
    overwrite_all(two.newest / name, good);
  }
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20) << "as it was, it is good again";
}

TEST(Damage, AnyLostMovedOrForeignPartIsFound) {
  TwoCheckpoints two;
  std::mt19937 random(18);
  const auto below = [&](size_t end) { return static_cast<size_t>(random()) % end; };
  for (const char* name : kFiles) {
    const std::string good = read_text(two.newest / name, ExitCode::data);
    const std::string other = read_text(two.newest.parent_path() / "step-000000010" / name, ExitCode::data);
    for (int i = 0; i < rounds();) {
      std::string bad = good;
      const size_t at = below(bad.size()), size = 1 + below(std::min<size_t>(bad.size() - at, 4096));
      const size_t to = below(bad.size() - size + 1);
      const int kind = static_cast<int>(below(6));
      switch (kind) {
        case 0:  // cut off
          bad.resize(at);
          break;
        case 1:  // a part is missing
          bad.erase(at, size);
          break;
        case 2:  // a part is there twice
          bad.insert(to, good, at, size);
          break;
        case 3:  // two parts changed places
          std::swap_ranges(bad.begin() + static_cast<ptrdiff_t>(std::min(at, to)),
                           bad.begin() + static_cast<ptrdiff_t>(std::min(std::min(at, to) + size, std::max(at, to))),
                           bad.begin() + static_cast<ptrdiff_t>(std::max(at, to)));
          break;
        case 4:  // zeros, as a block that never reached the disk
          bad.replace(at, size, size, '\0');
          break;
        case 5:  // a part of the other checkpoint's file
          bad.replace(at, size, other, std::min(at, other.size()), size);
          break;
      }
      if (bad == good) continue;  // equal parts: drawn again
      overwrite_all(two.newest / name, bad);
      two.expect_fallback(cat(name, ", change ", kind, " at ", at, " of ", size, " bytes"));
      ++i;
    }
    overwrite_all(two.newest / name, good);
  }
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20) << "as it was, it is good again";
}

TEST(Damage, OfTheStateIsFoundByWhoReadsAPartOfIt) {
  TwoCheckpoints two;
  class Scalar : public Stateful {
   public:
    void visit_state(StateVisitor& v) override {
      v.tensor("loop.scalar", scalar, StateRole::loop);
      v.tensor("loop.empty", empty, StateRole::loop);
    }
    at::Tensor scalar = at::zeros({}, at::kDouble), empty = at::empty({0, 4});
  } part;
  for (const char* name : {"state.safetensors", "manifest.json"}) {
    const std::string good = read_text(two.newest / name, ExitCode::data);
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    overwrite_all(two.newest / name, bad);
    expect_error(ExitCode::checkpoint, {"step-000000020", "not usable", name},
                 [&] { load_state_part(two.newest, part, "loop."); });
    overwrite_all(two.newest / name, good);
  }
}

TEST(Damage, TruncatedLongerEmptyAndMissingFilesAreFound) {
  TwoCheckpoints two;
  for (const char* name : kFiles) {
    const std::string good = read_text(two.newest / name, ExitCode::data);
    for (const std::string& bad :
         {good.substr(0, good.size() - 1), good.substr(0, good.size() / 2), std::string(), good + "\n"}) {
      overwrite_all(two.newest / name, bad);
      two.expect_fallback(cat(name, " with ", bad.size(), " bytes"));
    }
    fs::remove(two.newest / name);
    two.expect_fallback(cat(name, " missing"));
    fs::create_directory(two.newest / name);
    two.expect_fallback(cat(name, " is a folder"));
    fs::remove(two.newest / name);
    overwrite_all(two.newest / name, good);
  }
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20);
}

TEST(Damage, SwappedFilesAreFound) {
  TwoCheckpoints two;
  const auto swap = [](const fs::path& a, const fs::path& b) {
    fs::rename(a, a.string() + ".x");
    fs::rename(b, a);
    fs::rename(a.string() + ".x", b);
  };
  swap(two.newest / "model.pt", two.newest / "state.safetensors");
  two.expect_fallback("model.pt and state.safetensors");
  swap(two.newest / "model.pt", two.newest / "state.safetensors");
  const fs::path other = two.newest.parent_path() / "step-000000010";
  const std::string mine = read_text(two.newest / "model.pt", ExitCode::data);
  overwrite_all(two.newest / "model.pt", read_text(other / "model.pt", ExitCode::data));
  two.expect_fallback("model.pt of another step");
  overwrite_all(two.newest / "model.pt", mine);
  // A whole directory under the name of another step.
  fs::remove_all(two.newest);
  fs::copy(other, two.newest, fs::copy_options::recursive);
  two.expect_fallback("another step's directory");
}

// manifest.json with one piece of text replaced, and a digest that fits.
std::string forged(const std::string& manifest, const std::string& from, const std::string& to) {
  std::string body = manifest.substr(0, manifest.rfind("  \"digest\""));
  body.replace(body.find(from), from.size(), to);
  return cat(body, "  \"digest\": \"", digest_hex(as_bytes(body)), "\"\n}\n");
}

TEST(Damage, ManifestsThatSayOddThingsAreRefused) {
  TwoCheckpoints two;
  const fs::path file = two.newest / "manifest.json";
  const std::string good = read_text(file, ExitCode::data);
  const std::vector<std::vector<std::string>> cases = {
      {"\"version\": 1", "\"version\": 3", "format version 3, this program reads versions 1 and 2"},
      {"\"version\": 1", "\"version\": 2", "it has no 'parts'"},
      {"\"kind\": \"full\"", "\"kind\": \"half\"", "unknown kind 'half'"},
      {"\"format\": \"hrm-checkpoint\"", "\"format\": \"other\"", "not a checkpoint manifest"},
      {"\"model.pt\"", "\"../model.pt\"", "a file outside the directory"},
      {"\"model.pt\"", "\"config2.json\"", "config2.json is missing"},
      {"\"step\": 20", "\"step\": 21", "its files belong to step 21"},
      {"\"step\": 20", "\"step\": {}", "malformed"},
      {"\"step\": 20", "\"step\": ", "not valid JSON"},
  };
  for (const auto& one : cases) {
    overwrite_all(file, forged(good, one[0], one[1]));
    two.expect_fallback(one[1]);
    expect_error(ExitCode::checkpoint, {"step-000000020", one[2]}, [&] { open_checkpoint(two.newest); });
  }
  overwrite_all(file, forged(good, "\"kind\": \"full\"", "\"kind\": \"full\""));
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20) << "the forgery itself is not what was refused";
}

// A link could make any file of the system part of a checkpoint, and a pipe would be waited for.
TEST(Damage, LinksAndPipesAreRefused) {
  TwoCheckpoints two;
  for (const char* name : kFiles) {
    const fs::path file = two.newest / name, elsewhere = two.run / "elsewhere";
    fs::rename(file, elsewhere);
    fs::create_symlink(elsewhere, file);
    two.expect_fallback(cat(name, " is a link"));
    expect_error(ExitCode::checkpoint, {name, "is a symbolic link"}, [&] { open_checkpoint(two.newest); });
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    two.expect_fallback(cat(name, " is a pipe"));
    fs::remove(file);
    fs::rename(elsewhere, file);
  }
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20);
}

TEST(Damage, AnEmptyDirectoryIsPassedOver) {
  TwoCheckpoints two;
  const fs::path empty = two.newest.parent_path() / "step-000000099";
  fs::create_directory(empty);
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20);
  expect_error(ExitCode::checkpoint, {"step-000000099", "manifest.json is missing"}, [&] { open_checkpoint(empty); });
}

TEST(Damage, NothingGoodLeftIsAnError) {
  TwoCheckpoints two;
  for (const fs::path& dir : list_checkpoints(two.run.path())) fs::resize_file(dir / "model.pt", 100);
  expect_error(ExitCode::checkpoint, {"none of the 2 checkpoints", "model.pt has 100 bytes"},
               [&] { find_latest_valid(two.run.path()); });
  expect_error(ExitCode::checkpoint, {"none of the 2 checkpoints"}, [&] { open_checkpoint(two.run.path()); });
}

// One save that must fail with exit code 3 and leave what was there.
void expect_failed_save(const fs::path& run, const std::vector<std::string>& parts) {
  SampleState state(9);
  state.moment = at::ones({300, 1000});  // 1.2 MB
  expect_error(ExitCode::environment, parts, [&] { save_checkpoint(run, state, sample_meta(30), 1); });
}

TEST(WriteFailure, NoPermission) {
  // A file where the folder should be, and a file system that takes no files: both fail for root, too.
  const TempDir run;
  std::ofstream(run / "file") << "x";
  expect_failed_save(run / "file", {"checkpoint of step 30 was not saved", "file"});
  expect_failed_save("/proc/hrm_run", {"checkpoint of step 30 was not saved", "/proc/hrm_run"});
  if (::geteuid() != 0) {
    fs::permissions(run.path(), fs::perms::owner_read | fs::perms::owner_exec);
    expect_failed_save(run / "run", {"Permission denied"});
    fs::permissions(run.path(), fs::perms::owner_all);
  }
}

TEST(WriteFailure, FileSizeLimit) {
  TwoCheckpoints two;
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{100000, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  expect_failed_save(two.run.path(), {"checkpoint of step 30 was not saved", "too large", "untouched"});
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(std::distance(fs::directory_iterator(two.run / "checkpoints"), {}), 2) << "nothing left behind";
  EXPECT_EQ(find_latest_valid(two.run.path())->meta.step, 20);
}

TEST(WriteFailure, FullDisk) {
  const TempDir mount_point;
  if (::mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=512k") != 0) {
    GTEST_SKIP() << "no file system can be mounted here";
  }
  {
    SampleState state(1);
    save_checkpoint(mount_point.path(), state, sample_meta(10), 5);
    expect_failed_save(mount_point.path(), {"checkpoint of step 30 was not saved", "No space left", "untouched"});
    EXPECT_EQ(std::distance(fs::directory_iterator(mount_point / "checkpoints"), {}), 1);
    SampleState loaded(3);
    load_checkpoint(find_latest_valid(mount_point.path())->dir, loaded);
    EXPECT_EQ(digest_state(loaded), digest_state(state));
  }
  ::umount(mount_point.path().c_str());
}

// A process that saves without pause is killed at random moments. Whatever it was doing, all visible checkpoints are
// good, and the newest is at most one save old.
TEST(Kill, AtRandomMomentsLeavesGoodCheckpoints) {
  const TempDir run;
  const auto start = std::chrono::steady_clock::now();
  {
    SampleState state(1);
    save_checkpoint(run.path(), state, sample_meta(1), 2);
  }
  const auto one_save =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  std::mt19937 random(4);
  int64_t last = 1;
  for (int round = 0; round < 25; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t step = last + 1;; ++step) {
        SampleState state(step);
        save_checkpoint(run.path(), state, sample_meta(step), 2);
        if (::write(pipe_ends[1], &step, sizeof step) != sizeof step) ::_exit(1);
        save_checkpoint(run.path(), state, sample_meta(step), 2);  // replacing must be as safe
      }
    }
    ::close(pipe_ends[1]);
    int64_t saved = last;
    for (int i = 0; i < round % 3; ++i) ASSERT_EQ(::read(pipe_ends[0], &saved, sizeof saved), ssize_t{sizeof saved});
    ::usleep(static_cast<useconds_t>(random() % (2 * one_save)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself";
    while (::read(pipe_ends[0], &saved, sizeof saved) == sizeof saved) {
    }
    ::close(pipe_ends[0]);

    for (const fs::path& dir : list_checkpoints(run.path())) {
      SampleState loaded(0);
      ASSERT_NO_THROW(load_checkpoint(dir, loaded)) << dir;
      SampleState expected(open_checkpoint(dir).meta.step);
      ASSERT_EQ(digest_state(loaded), digest_state(expected)) << dir;
    }
    last = find_latest_valid(run.path())->meta.step;
    EXPECT_GE(last, saved);
    EXPECT_LE(last, saved + 1);
  }
  EXPECT_GE(last, 25) << "the children did save";
}

}  // namespace
}  // namespace hrm::checkpoint
