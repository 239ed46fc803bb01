#include "hrm/formats/manifest.h"

#include <functional>

#include "formats/format_testing.h"
#include "hrm/base/hash.h"

namespace hrm::checkpoint {
namespace {

constexpr const char* kDigest = "0123456789abcdef0123456789abcdef";

Manifest sample() {
  return {42, CheckpointKind::full, {{"model", "hrm"}, {"note", "a"}}, {{kModelFile, {123, kDigest}}}};
}

// The text with one piece replaced and a digest that fits.
std::string forged(const std::string& from, const std::string& to) {
  const std::string text = manifest_text(sample());
  std::string body = text.substr(0, text.rfind("  \"digest\""));
  const size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  return cat(body, "  \"digest\": \"", digest_hex(as_bytes(body)), "\"\n}\n");
}

void expect_manifest_refused(const std::string& text, const std::vector<std::string>& parts) {
  expect_error([&] { parse_manifest(text); }, ExitCode::checkpoint, parts);
}

TEST(Manifest, RoundTrip) {
  Manifest manifest = sample();
  EXPECT_EQ(parse_manifest(manifest_text(manifest)), manifest);
  EXPECT_EQ(parse_manifest(forged("42", "42")), manifest) << "the forgery itself is not what is refused";
  manifest.info.clear();
  manifest.files.clear();
  manifest.kind = CheckpointKind::weights;
  EXPECT_EQ(parse_manifest(manifest_text(manifest)), manifest);
  manifest.info["note"] = "a\nb";
  EXPECT_EQ(parse_manifest(manifest_text(manifest)).info["note"], "a\\nb");
}

TEST(Manifest, OfParts) {
  Manifest manifest = sample();
  EXPECT_EQ(manifest_text(manifest).find("parts"), std::string::npos) << "as before";
  manifest.parts = 8;
  const std::string text = manifest_text(manifest);
  EXPECT_NE(text.find("\"version\": 2"), std::string::npos);
  EXPECT_EQ(parse_manifest(text), manifest);
  EXPECT_EQ(part_file_name(kStateParts, 2, 8), "state-00003-of-00008.safetensors");
}

// What was read is written again as it is.
TEST(Manifest, InfoThatWasRead) {
  Manifest manifest = sample();
  manifest.info["note"] = "a\nb";
  const Manifest read = parse_manifest(manifest_text(manifest));
  EXPECT_EQ(parse_manifest(manifest_text(read, InfoValues::read)), read);
}

TEST(Manifest, RefusesDamage) {
  const std::string good = manifest_text(sample());
  expect_truncations_fail(good, ExitCode::checkpoint, [](auto bytes) { parse_manifest(as_text(bytes)); });
  expect_manifest_refused("", {"it has no digest"});
  expect_manifest_refused(good + " ", {"its digest does not fit"});
  std::string bad = good;
  bad[bad.find("42")] = '5';
  expect_manifest_refused(bad, {"its digest does not fit"});
}

TEST(Manifest, RefusesWhatNoManifestHolds) {
  const auto refused = [](const std::string& from, const std::string& to, const std::vector<std::string>& parts) {
    SCOPED_TRACE(to.substr(0, 50));
    expect_manifest_refused(forged(from, to), parts);
  };
  for (const char* outside : {"../model.pt", "/etc/passwd", "a/b", ".hidden", ".", ".."}) {
    refused("model.pt", outside, {"a file outside the directory", outside});
  }
  for (const std::string& odd :
       {std::string(), std::string("a b"), std::string("-rf"), std::string("a\\u0000b"), std::string("\u00fc"),
        std::string(129, 'a'), std::string("a\\\\b"), std::string("a:b")}) {
    refused("model.pt", odd, {"a file of a name that no checkpoint has"});
  }
  for (const char* number : {"-1", "1.0", "1e300", "true", "null", "\"1\"", "18446744073709551615"}) {
    refused(": 123", cat(": ", number), {"'bytes' is not a whole number"});
    refused(": 42", cat(": ", number), {"'step' is not a whole number"});
  }
  refused(": 1,", ": 3,", {"format version 3"});
  refused(": 1,", ": 2,", {"it has no 'parts'"});
  for (const char* parts : {"0", "1", "2001"}) {
    refused(": 1,", cat(": 2,\n  \"parts\": ", parts, ","), {"'parts' is", "not 2 to 2000"});
  }
  refused(": 1,", ": -1,", {"'version' is not a whole number"});
  refused("hrm-checkpoint", "other", {"not a checkpoint manifest"});
  refused("\"full\"", "\"half\\u001b\"", {"unknown kind 'half\\x1B'"});
  refused("\"full\"", "1", {"'kind' is not a text"});
  refused("\"hrm\"", "{}", {"'model' is not a text"});
  refused("\"info\"", "\"other\"", {"it has no 'info'"});
  refused("\"info\": {", "\"info\": [], \"more\": {", {"'info' is not an object"});
  refused("\"note\"", "\"model\"", {"the key 'model' occurs twice"});
  refused("\"bytes\": 123", "\"bytes\": 123, \"bytes\": 123", {"the key 'bytes' occurs twice"});
  refused("\"bytes\": 123", "\"more\": {}", {"more than 3 deep"});
  refused("\"bytes\": 123", "\"more\": 1", {"it has no 'bytes'"});
  refused(kDigest, std::string(kDigest).substr(1), {"the digest of model.pt"});
  refused(kDigest, "0123456789ABCDEF0123456789ABCDEF", {"the digest of model.pt"});
  refused("42", "[", {"not valid JSON"});
}

TEST(Manifest, RefusesTooMuch) {
  std::string entries;
  for (int i = 0; i < 4096; ++i) entries += cat("\"", i, "\": \"\", ");
  expect_manifest_refused(forged("\"model\"", entries + "\"model\""), {"more than 4096 entries in 'info'"});
  // Before the digest is looked for, and computed.
  expect_manifest_refused(std::string((size_t{4} << 20) + 1, ' '), {"4.0 MiB", "at most 4.0 MiB"});
  expect_manifest_refused(forged("42", "42" + std::string(size_t{4} << 20, ' ')), {"4.0 MiB", "at most 4.0 MiB"});
}

// What it cannot read again must not be written: a checkpoint would be lost.
TEST(Manifest, TheWriterRefusesWhatTheReaderWould) {
  const auto refused = [](const std::function<void(Manifest&)>& change, const std::string& part) {
    Manifest manifest = sample();
    change(manifest);
    expect_error([&] { manifest_text(manifest); }, ExitCode::unexpected, {"manifest cannot hold", part});
  };
  refused([](Manifest& m) { m.step = -1; }, "the step -1");
  refused([](Manifest& m) { m.files["a/b"] = {1, kDigest}; }, "a file called 'a/b'");
  refused([](Manifest& m) { m.files["a"] = {1, "x"}; }, "the digest 'x' of a");
  refused([](Manifest& m) { m.files["a"] = {uint64_t{1} << 63, kDigest}; }, "9223372036854775808 bytes");
  refused([](Manifest& m) { m.info["a\n"] = ""; }, "a fact called 'a\\n'");
  refused([](Manifest& m) { m.info["a"] = std::string(size_t{4} << 20, ' '); }, "4.0 MiB of text");
  refused(
      [](Manifest& m) {
        for (int i = 0; i < 4096; ++i) m.info[std::to_string(i)] = "";
      },
      "so many entries");
}

}  // namespace
}  // namespace hrm::checkpoint
