// The file of tuned algorithms.
#include "hrm/runtime/tuning_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "support/temp_dir.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;
using test::TempDir;

constexpr const char* kDevice = "NVIDIA H200, 9.0, 132 SMs";
constexpr const char* kLibrary = "cuBLASLt 130100";

TuningCache open_cache(const fs::path& folder) {
  return {folder, kDevice, kLibrary};
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  return files;
}

TEST(TuningCache, RoundTrip) {
  const TempDir dir;
  const TunedChoice one{"0a1b", 12.34, 15.5}, two{"ff", 0, 0};
  {
    TuningCache cache = open_cache(dir / "not" / "there" / "yet");
    EXPECT_EQ(cache.find("512x512x512"), std::nullopt);
    EXPECT_EQ(cache.add("512x512x512", one), one);
    EXPECT_EQ(cache.add("1x1x1", two), two);
    EXPECT_EQ(cache.file().filename(), "NVIDIA_H200__9.0__132_SMs_cuBLASLt_130100.json");
  }
  const TuningCache again = open_cache(dir / "not" / "there" / "yet");
  EXPECT_EQ(again.find("512x512x512"), one);
  EXPECT_EQ(again.find("1x1x1"), two);
  EXPECT_EQ(again.find("1x1x2"), std::nullopt);
}

TEST(TuningCache, OtherDevicesAndLibrariesHaveOtherFiles) {
  const TempDir dir;
  TuningCache cache = open_cache(dir.path());
  cache.add("a", {"01", 1, 2});
  EXPECT_EQ(TuningCache(dir.path(), "NVIDIA H100, 9.0, 132 SMs", kLibrary).find("a"), std::nullopt);
  EXPECT_EQ(TuningCache(dir.path(), kDevice, "cuBLASLt 130200").find("a"), std::nullopt);
  // A file that somebody copied to the name of another device.
  TuningCache other(dir.path(), "NVIDIA H100, 9.0, 132 SMs", kLibrary);
  fs::copy_file(cache.file(), other.file());
  TuningCache copied(dir.path(), "NVIDIA H100, 9.0, 132 SMs", kLibrary);
  EXPECT_EQ(copied.find("a"), std::nullopt);
  // The next choice replaces what does not belong there.
  copied.add("b", {"02", 1, 2});
  const TuningCache rebuilt(dir.path(), "NVIDIA H100, 9.0, 132 SMs", kLibrary);
  EXPECT_EQ(rebuilt.choices().size(), 1U);
  EXPECT_TRUE(rebuilt.find("b"));
}

TEST(TuningCache, ABadFileIsRebuilt) {
  for (const std::string bad : {"", "{", "[]", "{\"format\": 2}", "null", "\xff\xfe\x00",
                                "{\"format\": 1, \"device\": \"d\", \"library\": \"l\"}",
                                "{\"format\": 1, \"device\": 3, \"library\": \"l\", \"choices\": {}}"}) {
    SCOPED_TRACE(printable(bad));
    const TempDir dir;
    const fs::path file = open_cache(dir.path()).file();
    write_text_atomic(file, bad);
    TuningCache cache = open_cache(dir.path());
    EXPECT_TRUE(cache.choices().empty());
    cache.add("a", {"01", 1, 2});
    EXPECT_EQ(open_cache(dir.path()).choices().size(), 1U);
  }
}

// Every truncation and every flipped byte of a good file: no crash, and nothing that was not in it before or is no
// list.
TEST(TuningCache, DamageAnywhere) {
  const TempDir dir;
  TuningCache cache = open_cache(dir.path());
  cache.add("a", {"01", 1, 2});
  cache.add("b", {"02", 3, 4});
  const std::string good = read_text(cache.file(), ExitCode::environment);
  for (size_t length = 0; length < good.size() - 1; ++length) {
    const auto found = TuningCache::from_text(good.substr(0, length));
    EXPECT_FALSE(found) << length;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char bit : {'\x01', '\x10', '\x40'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bit);
      const auto found = TuningCache::from_text(bad);
      EXPECT_TRUE(!found || found->choices.size() <= 2U) << i;
    }
  }
}

TEST(TuningCache, TimesThatAreNoTimesAreRefused) {
  const auto text = [](const std::string& us) {
    return "{\"format\": 1, \"device\": \"d\", \"library\": \"l\", \"choices\": {\"a\": {\"algorithm\": \"0\", "
           "\"us\": " +
           us + "}}}";
  };
  EXPECT_TRUE(TuningCache::from_text(text("1.5")));
  EXPECT_FALSE(TuningCache::from_text(text("-1")));
  EXPECT_FALSE(TuningCache::from_text(text("\"x\"")));
  EXPECT_FALSE(TuningCache::from_text(text("1e999")));
}

// Two processes that tune at the same time: the first one's choice holds for both.
TEST(TuningCache, TheFirstChoiceHolds) {
  const TempDir dir;
  TuningCache first = open_cache(dir.path()), second = open_cache(dir.path());
  const TunedChoice one{"01", 1, 2}, two{"02", 1, 2}, three{"03", 1, 2};
  EXPECT_EQ(first.add("a", one), one);
  EXPECT_EQ(second.add("a", two), one);
  EXPECT_EQ(second.find("a"), one);
  EXPECT_EQ(second.add("b", two), two);
  EXPECT_EQ(first.add("c", three), three);
  EXPECT_EQ(open_cache(dir.path()).choices().size(), 3U) << "what the other process added must stay";
  // Unless it cannot run.
  EXPECT_EQ(second.add("a", two, /*refused=*/"01"), two);
  EXPECT_EQ(open_cache(dir.path()).find("a"), two);
}

TEST(TuningCache, ManyWritersLoseNothing) {
  const TempDir dir;
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 4; ++writer) {
    threads.emplace_back([&dir, writer] {
      TuningCache cache = open_cache(dir.path());
      for (int i = 0; i < 10; ++i) cache.add(cat(writer, " ", i), {cat(writer), 1, 2});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(open_cache(dir.path()).choices().size(), 40U);
  // The file and its lock, no temporary file.
  EXPECT_EQ(files_in(dir.path()).size(), 2U);
}

TEST(TuningCache, WithoutAFolderItLivesInTheProcess) {
  TuningCache cache = open_cache("");
  EXPECT_TRUE(cache.file().empty());
  const TunedChoice choice{"01", 1, 2};
  EXPECT_EQ(cache.add("a", choice), choice);
  EXPECT_EQ(cache.find("a"), choice);
}

TEST(TuningCache, AFolderThatCannotBeWritten) {
  const TempDir dir;
  write_text_atomic(dir / "file", "no folder");
  TuningCache cache = open_cache(dir / "file" / "below");
  const TunedChoice choice{"01", 1, 2};
  EXPECT_EQ(cache.add("a", choice), choice);
  EXPECT_EQ(cache.add("b", choice), choice);
  EXPECT_EQ(cache.find("a"), choice);
}

TEST(TuningCache, WhatWasAdoptedStaysOutOfTheFile) {
  const TempDir dir;
  TuningCache cache = open_cache(dir.path());
  cache.add("a", {"01", 1, 2});
  cache.adopt({{"a", {"02", 0, 0}}, {"b", {"03", 0, 0}}});
  EXPECT_EQ(cache.find("a")->algorithm, "02");
  cache.add("c", {"04", 1, 2});
  const TuningCache again = open_cache(dir.path());
  EXPECT_EQ(again.find("a")->algorithm, "01");
  EXPECT_FALSE(again.find("b"));
  EXPECT_TRUE(again.find("c"));
}

TEST(TuningCache, TravelsAsOnePrintableLine) {
  const TuningCache::Portable out{kDevice, kLibrary, {{"a b", {"01", 1.25, 2}}, {"c", {"02", 0, 0}}}};
  const std::string text = TuningCache::to_text(out);
  EXPECT_EQ(text, printable(text)) << "a checkpoint's facts are written in this form";
  const auto back = TuningCache::from_text(text);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->device, out.device);
  EXPECT_EQ(back->library, out.library);
  EXPECT_EQ(back->choices, out.choices);
}

// Sets or (nullptr) unsets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(TuningCache, DefaultFolder) {
  const Variable home("HOME", "/home/a");
  {
    const Variable cache("XDG_CACHE_HOME", "/var/cache/a");
    EXPECT_EQ(default_tuning_folder(), "/var/cache/a/hrm_train");
  }
  {
    const Variable cache("XDG_CACHE_HOME", "relative");
    EXPECT_EQ(default_tuning_folder(), "/home/a/.cache/hrm_train");
  }
  const Variable cache("XDG_CACHE_HOME", nullptr);
  EXPECT_EQ(default_tuning_folder(), "/home/a/.cache/hrm_train");
  const Variable homeless("HOME", nullptr);
  EXPECT_EQ(default_tuning_folder(), "");
}

}  // namespace
}  // namespace hrm
