#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "hrm/base/hash.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/formats/file_kind.h"
#include "hrm/formats/jsonl.h"

namespace hrm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexMagic = "hrmjidx1";
constexpr size_t kDigest = 32;  // hex digits
// Magic, size, time, three digests, two counts.
constexpr size_t kHeader = 8 + 8 + 8 + 3 * kDigest + 8 + 8;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kProbes = 64;
constexpr size_t kShownLines = 3;  // of the malformed ones, in an error

int64_t modified_ns(const fs::path& path, ExitCode code) {
  struct stat facts {};
  require(::stat(path.c_str(), &facts) == 0, code, "'", path.string(), "' cannot be looked at: ", std::strerror(errno));
  return int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

// Pages at equal distances, including the first and the last. They show most changes that left size and mtime as they
// were, without reading everything.
std::string probe_of(std::span<const std::byte> bytes) {
  Hasher hasher;
  const uint64_t last = bytes.size() > kPage ? bytes.size() - kPage : 0;
  for (uint64_t i = 0; i < kProbes; ++i) {
    const uint64_t at = last / (kProbes - 1) * i + (i + 1 == kProbes ? last % (kProbes - 1) : 0);
    hasher.update(bytes.subspan(at, std::min<uint64_t>(kPage, bytes.size() - at)));
  }
  return hasher.hex();
}

template <class T>
void append_values(std::string& out, const T* values, size_t count) {
  out.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <class T>
void take(std::string_view& from, T* values, size_t count) {
  if (count > 0) std::memcpy(values, from.data(), count * sizeof(T));
  from.remove_prefix(count * sizeof(T));
}

bool is_index_digest(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void check_offsets(const std::vector<uint64_t>& offsets, uint64_t file_bytes, ExitCode code) {
  for (size_t i = 0; i < offsets.size(); ++i) {
    require(offsets[i] < file_bytes && (i == 0 || offsets[i] > offsets[i - 1]), code,
            "an offset of the index points out of its file");
  }
}

std::string reason_of(std::string_view line, const JsonlCheck& check, uint64_t line_bytes) {
  try {
    check_jsonl_line(line, ExitCode::data, line_bytes);
    check(line);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

[[noreturn]] void fail_malformed(const std::vector<std::string>& lines, uint64_t allowed, ExitCode code) {
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kShownLines); ++i) text += (i == 0 ? "" : "; ") + lines[i];
  fail(code, text, "; malformed lines allowed by data.max_malformed: ", allowed);
}

JsonlIndex read_all(const MappedFile& file, const JsonlCheck& check, const JsonlIndexOptions& options) {
  const auto bytes = file.bytes();
  JsonlIndex index;
  Hasher hasher;
  JsonlLines lines(bytes);
  JsonlLine line;
  std::vector<std::string> shown;
  uint64_t hashed = 0, next_progress = uint64_t{1} << 28;
  while (lines.next(line)) {
    JsonlFacts facts;
    try {
      check_jsonl_line(line.text, options.code, options.line_bytes);
      facts = check(line.text);
      index.offsets.push_back(line.offset);
      index.facts.push_back(facts);
    } catch (const Error& error) {
      index.malformed.push_back(line.offset);
      if (shown.size() < kShownLines) shown.push_back(cat(file.path().string(), ":", line.number, ": ", error.what()));
      if (index.malformed.size() > options.max_malformed) fail_malformed(shown, options.max_malformed, options.code);
    }
    if (lines.offset() - hashed >= (uint64_t{1} << 20)) {
      hasher.update(bytes.subspan(hashed, lines.offset() - hashed));
      hashed = lines.offset();
    }
    if (options.progress && lines.offset() >= next_progress) {
      log::progress(
          cat("indexing ", file.path().string(), ": ", human_bytes(lines.offset()), " of ", human_bytes(bytes.size())));
      next_progress += uint64_t{1} << 28;
    }
  }
  hasher.update(bytes.subspan(hashed));
  index.content = hasher.hex();
  if (options.progress && next_progress > (uint64_t{1} << 28)) log::progress_done();
  return index;
}

}  // namespace

std::string jsonl_index_bytes(const JsonlIndex& index) {
  std::string out(kIndexMagic);
  const uint64_t counts[] = {index.offsets.size(), index.malformed.size()};
  require(index.facts.size() == index.offsets.size(), ExitCode::unexpected, "an index without facts of each record");
  append_values(out, &index.file_bytes, 1);
  append_values(out, &index.modified_ns, 1);
  for (const std::string* digest : {&index.probe, &index.content, &index.rules}) {
    require(digest->size() == kDigest, ExitCode::unexpected, "a digest of ", digest->size(), " characters");
    out += *digest;
  }
  append_values(out, counts, 2);
  append_values(out, index.offsets.data(), index.offsets.size());
  append_values(out, index.facts.data(), index.facts.size());
  append_values(out, index.malformed.data(), index.malformed.size());
  return out + digest_hex(as_bytes(out));
}

JsonlIndex parse_jsonl_index(std::span<const std::byte> bytes, ExitCode code) {
  std::string_view text = as_text(bytes);
  require(text.size() >= kHeader + kDigest && text.starts_with(kIndexMagic), code, "is not an index of a JSONL file");
  const std::string_view digest = text.substr(text.size() - kDigest);
  text.remove_suffix(kDigest);
  require(digest == digest_hex(as_bytes(text)), code, "the index is damaged");
  text.remove_prefix(kIndexMagic.size());
  JsonlIndex index;
  uint64_t counts[2];
  take(text, &index.file_bytes, 1);
  take(text, &index.modified_ns, 1);
  for (std::string* to : {&index.probe, &index.content, &index.rules}) {
    *to = text.substr(0, kDigest);
    require(is_index_digest(*to), code, "the index is damaged");
    text.remove_prefix(kDigest);
  }
  take(text, counts, 2);
  // Compared with what is there before anything is allocated.
  constexpr uint64_t kRecord = sizeof(uint64_t) + sizeof(JsonlFacts);
  require(counts[0] <= text.size() / kRecord && counts[1] <= text.size() / sizeof(uint64_t) &&
              counts[0] * kRecord + counts[1] * sizeof(uint64_t) == text.size(),
          code, "the index is damaged");
  index.offsets.resize(counts[0]);
  index.facts.resize(counts[0]);
  index.malformed.resize(counts[1]);
  take(text, index.offsets.data(), counts[0]);
  take(text, index.facts.data(), counts[0]);
  take(text, index.malformed.data(), counts[1]);
  check_offsets(index.offsets, index.file_bytes, code);
  check_offsets(index.malformed, index.file_bytes, code);
  return index;
}

std::vector<std::string> malformed_jsonl_lines(const MappedFile& file, const JsonlIndex& index, const JsonlCheck& check,
                                               uint64_t line_bytes, size_t most) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(most, index.malformed.size()); ++i) {
    const JsonlLine line = jsonl_line_at(file.bytes(), index.malformed[i]);
    lines.push_back(cat(file.path().string(), ":", jsonl_line_number(file.bytes(), index.malformed[i]), ": ",
                        reason_of(line.text, check, line_bytes)));
  }
  return lines;
}

JsonlIndex index_jsonl(const MappedFile& file, const JsonlCheck& check, const JsonlIndexOptions& options) {
  refuse_foreign_file(file.bytes(), file.path().string(), options.code);
  const fs::path beside = file.path().string() + ".idx";
  const int64_t modified = modified_ns(file.path(), options.code);
  const std::string probe = probe_of(file.bytes());
  const std::string rules = digest_hex(as_bytes(cat(options.rules, "\nline_bytes ", options.line_bytes)));
  JsonlIndex index;
  bool fits = false;
  std::error_code ignored;
  if (fs::exists(beside, ignored)) {
    try {
      index = parse_jsonl_index(MappedFile(beside, options.code).bytes(), options.code);
      fits = index.file_bytes == file.bytes().size() && index.modified_ns == modified && index.probe == probe &&
             index.rules == rules;
    } catch (const Error& error) {
      log::info(beside.string(), ": ", error.what(), "; it is made again");
    }
  }
  if (!fits) {
    index = read_all(file, check, options);
    index.file_bytes = file.bytes().size();
    index.modified_ns = modified;
    index.probe = probe;
    index.rules = rules;
    try {
      write_text_atomic(beside, jsonl_index_bytes(index));
    } catch (const Error& error) {
      log::info("the index of ", file.path().string(),
                " is not kept, so that each start reads all of it: ", error.what());
    }
  }
  if (index.malformed.size() > options.max_malformed) {
    fail_malformed(malformed_jsonl_lines(file, index, check, options.line_bytes, kShownLines), options.max_malformed,
                   options.code);
  }
  require(index.records() > 0, options.code, file.path().string(), ": has no record");
  return index;
}

}  // namespace hrm
