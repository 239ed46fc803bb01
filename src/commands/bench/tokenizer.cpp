// hrm_train bench tokenizer.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands/bench/timer.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/data/tokenizer.h"
#include "hrm/formats/zip.h"

namespace hrm::commands {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDocument = size_t{64} << 10;
constexpr size_t kTogether = 64;  // documents whose ids are held at a time

// Each at least of this size, to the end of its last line. scripts/bench/tokenizer_speed.py cuts in the same way.
std::vector<std::string_view> cut_documents(std::string_view text) {
  std::vector<std::string_view> documents;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_end = begin + kDocument < text.size() ? text.find('\n', begin + kDocument) : text.npos;
    const size_t end = line_end == text.npos ? text.size() : line_end + 1;
    documents.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return documents;
}

}  // namespace

int run_bench_tokenizer(const BenchTokenizerOptions& options) {
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Clock::time_point loading = Clock::now();
  const data::Tokenizer tokenizer = data::Tokenizer::load(options.tokenizer);
  const double load_s = seconds_since(loading);
  const MappedFile file(options.text);
  const std::string_view text = without_byte_order_mark(as_text(file.bytes()));
  require(!text.empty(), ExitCode::data, options.text, ": is empty, so there is nothing to time");
  const std::vector<std::string_view> documents = cut_documents(text);

  int64_t tokens = 0;
  uint32_t checksum = 0;
  // The first pass also brings the file into memory and takes the checksum of all ids, for comparisons.
  const auto pass = [&](bool first) {
    double seconds = 0;
    for (size_t begin = 0; begin < documents.size(); begin += kTogether) {
      const size_t count = std::min(kTogether, documents.size() - begin);
      const Clock::time_point start = Clock::now();
      const auto ids =
          tokenizer.encode_batch(std::span(documents).subspan(begin, count), static_cast<int>(options.threads));
      seconds += seconds_since(start);
      if (!first) continue;
      for (const std::vector<int32_t>& document : ids) {
        tokens += static_cast<int64_t>(document.size());
        checksum = crc32(std::as_bytes(std::span(document)), checksum);
      }
    }
    return seconds;
  };
  pass(/*first=*/true);
  std::vector<double> seconds, cpu_seconds;
  for (int64_t i = 0; i < options.passes; ++i) {
    const std::clock_t before = std::clock();
    seconds.push_back(pass(/*first=*/false));
    cpu_seconds.push_back(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC);
  }
  const double median = spread_of(seconds).median;
  Json json;
  for (const auto& [key, value] : build_info()) json["build"][key] = value;
  json["tokenizer"] = tokenizer.digest();
  json["threads"] = options.threads;
  json["bytes"] = text.size();
  json["documents"] = documents.size();
  json["tokens"] = tokens;
  json["ids_crc32"] = checksum;
  json["load_s"] = load_s;
  json["seconds_each"] = seconds;
  json["cpu_seconds_each"] = cpu_seconds;  // of all threads: what counts on a machine that others use, too
  json["mb_per_s"] = static_cast<double>(text.size()) / 1e6 / median;
  std::cout << std::fixed << std::setprecision(1) << "text          " << human_bytes(text.size()) << ", " << tokens
            << " tokens\n"
            << "throughput    " << json["mb_per_s"].get<double>() << " MB/s, "
            << static_cast<double>(tokens) / median / 1e6 << " million tokens/s (" << options.threads
            << (options.threads == 1 ? " thread" : " threads") << ", median of " << options.passes << ")\n";
  if (!options.json_out.empty()) write_text_atomic(options.json_out, json.dump(2) + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
