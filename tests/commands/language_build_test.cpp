#include <fcntl.h>
#include <sys/stat.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "commands/data/document_pieces.h"
#include "data/language/language_support.h"
#include "hrm/commands/data.h"

namespace hrm::data {
namespace {

namespace fs = std::filesystem;
using internal::DocumentPieces;
using internal::DocumentRules;
using internal::InputFile;
using internal::Piece;
using internal::PiecePosition;
using test::TempDir;

// The documents of some files, and in how many pieces they came.
std::vector<std::string> documents_of(const std::vector<InputFile>& files, const DocumentRules& rules,
                                      uint64_t piece_bytes = 1 << 20, int* pieces = nullptr) {
  DocumentPieces all(files, rules, 0, {}, piece_bytes);
  std::vector<std::string> documents;
  Piece piece;
  int count = 0;
  while (all.next(piece)) {
    ++count;
    if (piece.begins) documents.emplace_back();
    EXPECT_EQ(piece.document, static_cast<int64_t>(documents.size()) - 1);
    documents.back() += piece.text;
  }
  if (pieces != nullptr) *pieces = count;
  return documents;
}

std::vector<InputFile> text_files(const fs::path& folder, const std::vector<std::string>& texts) {
  std::vector<InputFile> files;
  for (const std::string& text : texts) {
    files.push_back({folder / (std::to_string(files.size()) + ".txt"), text.size()});
    write_text(files.back().path, text);
  }
  return files;
}

TEST(DocumentPieces, FilesBlankLinesAndSeparators) {
  const TempDir dir;
  const auto files = text_files(dir.path(), {"one\ntwo\n\nthree\n \t\n\n\nfour", "", "\n\n five\r\n\r\nsix\n"});
  EXPECT_EQ(documents_of(files, {}),
            (std::vector<std::string>{"one\ntwo\n\nthree\n \t\n\n\nfour", "\n\n five\r\n\r\nsix\n"}));
  EXPECT_EQ(documents_of(files, {.blank_lines = true}),
            (std::vector<std::string>{"one\ntwo", "three", "four", " five", "six"}));
  const auto separated = text_files(dir.path(), {"a<|end|>b<|end|><|end|>c", "<|end|>d<|end|>"});
  EXPECT_EQ(documents_of(separated, {.separator = "<|end|>"}), (std::vector<std::string>{"a", "b", "c", "d"}));
}

TEST(DocumentPieces, ByteOrderMarksAreNoText) {
  const TempDir dir;
  const std::string mark = "\xEF\xBB\xBF";
  const auto files =
      text_files(dir.path(), {mark + "one\n\n" + mark + "two", mark, mark + mark + "x", "\xEF\xBB" + std::string("y")});
  const auto good = std::vector(files.begin(), files.end() - 1);
  EXPECT_EQ(documents_of(good, {.blank_lines = true}), (std::vector<std::string>{"one", mark + "two", mark + "x"}))
      << "one at the beginning of each file; inside it is a character";
  EXPECT_EQ(documents_of(good, {}, 9), (std::vector<std::string>{"one\n\n" + mark + "two", mark + "x"}));
  const auto bad = std::vector(files.end() - 1, files.end());
  DocumentPieces damaged(bad, {}, 0, {});
  Piece piece;
  test::expect_error(ExitCode::data, {"the document at byte 0 is not valid UTF-8"}, [&] { damaged.next(piece); });
}

TEST(DocumentPieces, LargeDocumentsAreCutWhereLinesBegin) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "line " + std::to_string(i) + "\n";
  text += std::string(100, 'x');
  for (int i = 0; i < 30; ++i) text += "\xC3\xA9";  // two bytes each
  int pieces = 0;
  const auto files = text_files(dir.path(), {text});
  EXPECT_EQ(documents_of(files, {}, 33, &pieces), (std::vector<std::string>{text}));
  EXPECT_GT(pieces, 15);
  DocumentPieces all(files, {}, 0, {}, 33);
  Piece piece;
  while (all.next(piece)) {
    EXPECT_LE(piece.text.size(), 33u);
    EXPECT_NE(static_cast<unsigned char>(piece.text[0]) & 0xC0, 0x80) << "cut inside a character";
    if (piece.text.find("line 4") != std::string::npos) {
      EXPECT_EQ(piece.text.substr(0, 5), "line ");
    }
  }
}

TEST(DocumentPieces, GoOnFromAnyPosition) {
  const TempDir dir;
  const auto files = text_files(dir.path(), {"one two three four\n\nfive", "six seven eight nine ten eleven"});
  for (const bool blank : {false, true}) {
    const DocumentRules rules{.blank_lines = blank};
    std::vector<std::pair<std::string, PiecePosition>> straight;  // and the position behind each piece
    DocumentPieces all(files, rules, 0, {}, 9);
    Piece piece;
    while (all.next(piece)) straight.emplace_back(std::string(piece.text), all.position());
    for (size_t k = 0; k + 1 < straight.size(); ++k) {
      DocumentPieces rest(files, rules, 0, straight[k].second, 9);
      for (size_t i = k + 1; i < straight.size(); ++i) {
        ASSERT_TRUE(rest.next(piece));
        EXPECT_EQ(piece.text, straight[i].first);
      }
      EXPECT_FALSE(rest.next(piece));
      EXPECT_EQ(rest.done(), 55u);
    }
  }
}

TEST(DocumentPieces, OtherThanUtf8IsMalformed) {
  const TempDir dir;
  const auto files = text_files(dir.path(), {"one\n\n\xFF\n\ntwo\n\n\xC0\xAF"});
  expect_error(ExitCode::data, {"0.txt: the document at byte 5 is not valid UTF-8", "--max-malformed: 0"},
               [&] { documents_of(files, {.blank_lines = true}); });
  DocumentPieces all(files, {.blank_lines = true}, 2, {});
  Piece piece;
  std::string text;
  while (all.next(piece)) text += std::string(piece.text) + "|";
  EXPECT_EQ(text, "one|two|");
  EXPECT_EQ(all.position().malformed, 2u);
}

TEST(ValidationDraw, TakesOneOfEachBlock) {
  const internal::ValidationDraw draw(0.1, 5, 0), other(0.1, 6, 0), none(0, 5, 0), few(0.01, 5, 4);
  int total = 0, same = 0;
  for (int block = 0; block < 50; ++block) {
    int here = 0;
    for (int i = block * 10; i < (block + 1) * 10; ++i) {
      here += draw(i);
      same += draw(i) && other(i);
      EXPECT_FALSE(none(i));
    }
    EXPECT_EQ(here, 1);
    total += here;
  }
  EXPECT_LT(same, total);
  EXPECT_EQ(few(0) + few(1) + few(2) + few(3), 1);
}

TextCommand text_command(const fs::path& input, const fs::path& out) {
  TextCommand command;
  command.inputs = {input};
  command.out = out;
  return command;
}

std::string run_build(const TextCommand& command) {
  std::ostringstream out;
  run_data_text(command, out);
  return out.str();
}

// All documents of a split, as text.
std::multiset<std::string> texts_of(const fs::path& folder, const std::string& split) {
  const TokenDataset data(folder, split);
  data.verify();
  std::multiset<std::string> texts;
  for (int64_t i = 0; i < data.num_documents(); ++i) {
    std::vector<int32_t> ids(data.document_end(i) - data.document_begin(i));
    data.tokens(data.document_begin(i), static_cast<int64_t>(ids.size()), ids.data());
    EXPECT_EQ(ids.back(), 257);
    texts.insert(byte_encoder().decode(ids));
  }
  return texts;
}

// Files of a folder, but for the state.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = read_all(entry.path());
  return files;
}

fs::path corpus(const fs::path& folder, int files, int documents) {
  for (int i = 0; i < files; ++i) {
    std::string text;
    for (int k = 0; k < documents; ++k) {
      text += "document " + std::to_string(k) + " of file " + std::to_string(i) + "\nsecond line\n\n";
    }
    write_text(folder / ("sub" + std::to_string(i % 2)) / (std::to_string(i) + ".txt"), text);
  }
  write_text(folder / "notes.md", "not a text");
  write_text(folder / ".hidden" / "x.txt", "hidden");
  write_text(folder / ".x.txt", "hidden");
  return folder;
}

TEST(DataText, EveryDocumentOnceInOneOfTheSplits) {
  const TempDir dir;
  TextCommand command = text_command(corpus(dir / "in", 6, 10), dir / "out");
  command.patterns = {"*.txt"};
  command.split_blank_lines = true;
  command.validation = 0.1;
  command.shard_tokens = 300;
  const std::string summary = run_build(command);
  EXPECT_NE(summary.find("val: "), std::string::npos) << summary;
  EXPECT_NE(summary.find("uint16"), std::string::npos) << summary;
  std::multiset<std::string> want, got = texts_of(dir / "out", "train");
  const auto val = texts_of(dir / "out", "val");
  EXPECT_EQ(got.size(), 54u);
  EXPECT_EQ(val.size(), 6u);
  got.insert(val.begin(), val.end());
  for (int i = 0; i < 6; ++i) {
    for (int k = 0; k < 10; ++k) want.insert(cat("document ", k, " of file ", i, "\nsecond line"));
  }
  EXPECT_EQ(got, want);
  EXPECT_GT(TokenDataset(dir / "out", "train").num_shards(), 5);
  EXPECT_EQ(read_language_meta(dir / "out").tokenizer_file, "bytes");
  // Once more: nothing to do. With other options: refused.
  EXPECT_NE(run_build(command).find("is finished already"), std::string::npos);
  command.validation = 0.2;
  expect_error(ExitCode::usage, {"made from other files or with other options"}, [&] { run_build(command); });
}

TEST(DataText, FilesAreDocumentsByDefault) {
  const TempDir dir;
  TextCommand command = text_command(corpus(dir / "in", 4, 3), dir / "out");
  run_build(command);
  EXPECT_EQ(texts_of(dir / "out", "train").size() + texts_of(dir / "out", "val").size(), 5u);  // and notes.md
  EXPECT_EQ(texts_of(dir / "out", "val").size(), 1u);
}

TEST(DataText, TakesTheFolderOfATokenizer) {
  const TempDir dir;
  fs::create_directories(dir / "model");
  fs::copy_file(fs::path(test::source_dir()) / "tests/fixtures/tokenizer/tokenizer.json",
                dir / "model" / "tokenizer.json");
  TextCommand command = text_command(corpus(dir / "in", 4, 3), dir / "out");
  command.tokenizer = dir / "model";
  command.eos = "<|endoftext|>";
  run_build(command);
  const LanguageMeta meta = read_language_meta(dir / "out");
  EXPECT_EQ(meta.tokenizer_file, "tokenizer.json");
  EXPECT_EQ(meta.vocab_size, 1505);
  EXPECT_EQ(encoder_of(meta, dir / "out")->id_of("<|endoftext|>"), meta.eos_id);
}

// Fails when it has encoded so many pieces: a build that is killed there.
OpenTokenizer failing(int pieces) {
  return [pieces](const fs::path&, const std::string&, const std::string&) {
    TextEncoder encoder = byte_encoder();
    auto left = std::make_shared<int>(pieces);
    encoder.encode = [left, inner = encoder.encode](std::string_view text) {
      if ((*left)-- == 0) throw std::runtime_error("killed");
      return inner(text);
    };
    return encoder;
  };
}

TEST(DataText, AStoppedBuildGoesOnWithTheSameResult) {
  const TempDir dir;
  corpus(dir / "in", 6, 10);
  TextCommand command = text_command(dir / "in", dir / "straight");
  command.split_blank_lines = true;
  command.validation = 0.1;
  command.shard_tokens = 150;
  command.tokenizer = "some file";
  command.open_tokenizer = failing(-1);
  run_build(command);
  command.out = dir / "stopped";
  int stops = 0;
  for (bool done = false; !done;) {
    command.open_tokenizer = failing(13);  // less than a third of all
    try {
      run_build(command);
      done = true;
    } catch (const std::runtime_error& error) {
      if (std::string(error.what()) != "killed") throw;
      ASSERT_LT(++stops, 50);
      EXPECT_FALSE(fs::exists(dir / "stopped" / "meta.json"));
    }
  }
  EXPECT_GE(stops, 3);
  auto want = contents(dir / "straight"), got = contents(dir / "stopped");
  EXPECT_FALSE(got.contains("building.json"));
  EXPECT_EQ(got, want);
}

TEST(DataText, DocumentsGoAcrossShards) {
  const TempDir dir;
  std::string large;
  while (large.size() < (5u << 20)) large += "many lines of one document\n";
  write_text(dir / "in" / "a.txt", large);
  TextCommand command = text_command(dir / "in", dir / "out");
  command.validation = 0;
  command.shard_tokens = 2000000;
  run_build(command);
  const TokenDataset data(dir / "out", "train");
  EXPECT_EQ(data.num_shards(), 3);
  EXPECT_EQ(data.num_documents(), 1);
  EXPECT_EQ(texts_of(dir / "out", "train"), (std::multiset<std::string>{large}));
  EXPECT_FALSE(has_token_split(dir / "out", "val"));
}

TEST(DataText, Refusals) {
  const TempDir dir;
  write_text(dir / "in" / "a.txt", "one\n\ntwo");
  const auto refused = [&](ExitCode code, const std::vector<std::string>& parts, const TextCommand& command) {
    expect_error(code, parts, [&] { run_build(command); });
    EXPECT_FALSE(fs::exists(dir / "out" / "meta.json"));
    fs::remove_all(dir / "out");
  };
  TextCommand command = text_command(dir / "in", dir / "out");
  refused(ExitCode::usage, {"one file is one document", "--validation 0"}, command);
  command.inputs = {dir / "nothing"};
  refused(ExitCode::data, {"nothing' does not exist"}, command);
  command = text_command(dir / "in", dir / "out");
  command.patterns = {"*.md"};
  refused(ExitCode::data, {"holds no file to read", "--pattern"}, command);
  command = text_command(dir / "in", dir / "out");
  command.split_blank_lines = true;
  refused(ExitCode::data, {"none of the 2 documents was drawn", "--validation"}, command);
  command.validation = 0.7;
  refused(ExitCode::usage, {"--validation 0.7"}, command);
  command.validation = 0;
  command.tokenizer = "t.json";
  refused(ExitCode::data, {"t.json"}, command);
  command.tokenizer = "bytes";
  command.eos = "<eos>";
  refused(ExitCode::usage, {"bytes have their own"}, command);
  command.eos = "";
  write_text(dir / "in" / "a.txt", " \n\n ");
  refused(ExitCode::data, {"hold no text to train on"}, command);
  write_text(dir / "in" / "a.txt", "one\xFF");
  refused(ExitCode::data, {"a.txt: the document at byte 0 is not valid UTF-8"}, command);
  // A tokenizer whose ids are not its vocabulary's.
  write_text(dir / "in" / "a.txt", "one");
  command.tokenizer = "t.json";
  command.open_tokenizer = [](const fs::path&, const std::string&, const std::string&) {
    TextEncoder encoder = byte_encoder();
    encoder.encode = [](std::string_view) { return std::vector<int32_t>{259}; };
    return encoder;
  };
  refused(ExitCode::data, {"the tokenizer gave id 259", "259"}, command);
  command.open_tokenizer = [](const fs::path&, const std::string&, const std::string&) {
    TextEncoder encoder = byte_encoder();
    encoder.meta.eos_id = -1;
    return encoder;
  };
  refused(ExitCode::usage, {"end-of-text token", "--eos"}, command);
}

JsonlCommand jsonl_command(const fs::path& input, const fs::path& out) {
  JsonlCommand command;
  command.inputs = {input};
  command.out = out;
  command.validation = 0.25;
  return command;
}

std::string run_build(const JsonlCommand& command) {
  std::ostringstream out;
  run_data_jsonl(command, out);
  return out.str();
}

TEST(DataJsonl, PromptsResponsesAndTexts) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += cat("{\"prompt\": \"p", i, "\", \"response\": \"r\\u00e9\", \"id\": ", i, "}\n\n");
  text += "{\"text\": \"abcd\"}\n";
  write_text(dir / "in" / "a.jsonl", text);
  JsonlCommand command = jsonl_command(dir / "in", dir / "out");
  const std::string summary = run_build(command);
  EXPECT_NE(summary.find("train: 7 records\nval: 2 records"), std::string::npos) << summary;
  std::set<std::string> prompts;
  for (const char* split : {"train", "val"}) {
    const TripleDataset data(dir / "out", split);
    EXPECT_EQ(data.meta().vocab_size, 259);
    for (int64_t i = 0; i < data.num_samples(1); ++i) {
      const TripleDataset::Record record = data.record(i);
      const std::string prompt = byte_encoder().decode(record.encoder_ids);
      prompts.insert(prompt);
      const std::string answer = prompt == "ab" ? "cd" : "r\xC3\xA9";
      EXPECT_EQ(byte_encoder().decode(record.decoder_ids), answer);
      EXPECT_EQ(byte_encoder().decode(record.labels), answer);
      EXPECT_EQ(record.decoder_ids.front(), 256);
      EXPECT_EQ(record.labels.back(), 257);
    }
  }
  EXPECT_EQ(prompts.size(), 9u);
  EXPECT_NE(run_build(command).find("is finished already"), std::string::npos);
}

TEST(DataJsonl, MalformedLinesAndABuildThatGoesOn) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 40; ++i) text += cat("{\"prompt\": \"p", i, "\", \"response\": \"r\"}\n");
  write_text(dir / "in" / "a.jsonl", text);
  write_text(
      dir / "in" / "b.jsonl",
      "{\"prompt\": 1, \"response\": \"r\"}\n{\"prompt\": \"\", \"response\": \"r\"}\n{\"a\": 1}\n\xFF\n[\n" + text);
  JsonlCommand command = jsonl_command(dir / "in", dir / "out");
  expect_error(ExitCode::data, {"b.jsonl:1: 'prompt' is not a text", "--max-malformed: 0"},
               [&] { run_build(command); });
  EXPECT_FALSE(fs::exists(dir / "out" / "meta.json"));
  write_text(dir / "array" / "a.json", "\xEF\xBB\xBF [{\"prompt\": \"p\", \"response\": \"r\"}]");
  expect_error(ExitCode::data, {"a.json: is one JSON array, and each line must be a record", "jq -c '.[]'"},
               [&] { run_build(jsonl_command(dir / "array", dir / "of_array")); });
  write_text(dir / "named" / "a.jsonl", "{\"question\": \"q\", \"answer\": \"a\"}\n");
  expect_error(ExitCode::data, {"a.jsonl:1: has neither 'prompt' with 'response' nor 'text'", "--prompt-field"},
               [&] { run_build(jsonl_command(dir / "named", dir / "of_named")); });
  command.max_malformed = 4;
  expect_error(ExitCode::data, {"b.jsonl:5: record: is not valid JSON", "--max-malformed: 4"},
               [&] { run_build(command); });
  command.max_malformed = 5;
  const std::string summary = run_build(command);
  EXPECT_NE(summary.find("5 malformed lines were skipped"), std::string::npos) << summary;
  EXPECT_EQ(TripleDataset(dir / "out", "train").num_samples(1) + TripleDataset(dir / "out", "val").num_samples(1), 80);
}

TEST(DataJsonl, AStoppedBuildGoesOnWithTheSameResult) {
  const TempDir dir;
  for (const char* name : {"a", "b", "c"}) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += cat("{\"prompt\": \"", name, i, "\", \"response\": \"r\"}\n\n");
    write_text(dir / "in" / name, text + "malformed\n");
  }
  JsonlCommand command = jsonl_command(dir / "in", dir / "straight");
  command.tokenizer = "some file";
  command.max_malformed = 3;
  command.save_bytes = 300;
  command.open_tokenizer = failing(-1);
  const std::string summary = run_build(command);
  EXPECT_NE(summary.find("train: 68 records\nval: 22 records\n3 malformed"), std::string::npos) << summary;
  command.out = dir / "stopped";
  int stops = 0;
  for (bool done = false; !done;) {
    command.open_tokenizer = failing(50);  // of 180
    try {
      const std::string again = run_build(command);
      EXPECT_EQ(again.substr(again.find("train"), 60), summary.substr(summary.find("train"), 60));
      done = true;
    } catch (const std::runtime_error& error) {
      if (std::string(error.what()) != "killed") throw;
      ASSERT_LT(++stops, 50);
      EXPECT_FALSE(fs::exists(dir / "stopped" / "meta.json"));
    }
  }
  EXPECT_GE(stops, 3);
  EXPECT_EQ(contents(dir / "stopped"), contents(dir / "straight"));
  // Outputs that are shorter than the state says are not gone on with.
  fs::create_directories(dir / "short");
  command.out = dir / "short";
  command.open_tokenizer = failing(50);
  EXPECT_THROW(run_build(command), std::runtime_error);
  // Lines are numbered from the beginning of their file.
  command.max_malformed = 0;
  command.open_tokenizer = failing(-1);
  expect_error(ExitCode::data, {"a:61: "}, [&] { run_build(command); });
  fs::resize_file(dir / "short" / "train.jsonl", 3);
  expect_error(ExitCode::data, {"train.jsonl' is shorter than building.json says"}, [&] { run_build(command); });
  write_text(dir / "short" / "building.json", "{}");
  expect_error(ExitCode::usage, {"the beginning of a data set from other files"}, [&] { run_build(command); });
}

TEST(DataArithmetic, SumsAreDisjointAndRight) {
  const TempDir dir;
  ArithmeticCommand command;
  command.samples = 2000;
  command.seed = 4;
  command.out = dir / "sums";
  std::ostringstream out;
  run_data_arithmetic(command, out);
  const auto tokenizer = nlohmann::json::parse(read_all(dir / "sums" / "tokenizer.json"));
  std::map<int32_t, std::string> characters;
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items())
    characters[id] = token == "\xC4\xA0" ? " " : token;
  std::map<std::string, std::set<std::pair<int, int>>> pairs;
  for (const char* split : {"train", "val"}) {
    const TripleDataset data(dir / "sums", split);
    EXPECT_EQ(data.num_samples(1), std::string(split) == "train" ? 2000 : 200);
    EXPECT_EQ(data.meta().vocab_size, static_cast<int64_t>(characters.size()));
    std::set<std::pair<int, int>> ordered;
    for (int64_t i = 0; i < data.num_samples(1); ++i) {
      const auto record = data.record(i);
      const auto text = [&](const std::vector<int32_t>& ids) {
        std::string result;
        for (const int32_t id : ids) result += characters.at(id);
        return result;
      };
      int a = -1, b = -1, sum = -1;
      ASSERT_EQ(std::sscanf(text(record.encoder_ids).c_str(), "What is %d + %d?", &a, &b), 2);
      ASSERT_EQ(std::sscanf(text(record.labels).c_str(), "%d<eos>", &sum), 1);
      EXPECT_EQ(a + b, sum);
      EXPECT_EQ(text(record.decoder_ids), "<bos>" + std::to_string(sum));
      EXPECT_EQ(text(record.labels), std::to_string(sum) + "<eos>");
      EXPECT_TRUE(ordered.insert({a, b}).second) << "twice";
      pairs[split].insert(std::minmax(a, b));
    }
  }
  for (const auto& pair : pairs["val"]) EXPECT_FALSE(pairs["train"].contains(pair));
  const auto first = contents(dir / "sums");
  command.out = dir / "again";
  run_data_arithmetic(command, out);
  EXPECT_EQ(contents(dir / "again").at("train.jsonl"), first.at("train.jsonl"));
  command.seed = 5;
  run_data_arithmetic(command, out);
  EXPECT_NE(contents(dir / "again").at("train.jsonl"), first.at("train.jsonl"));
  command.digits = 1;
  expect_error(ExitCode::usage, {"--digits 1", "100 problems", "fewer --samples"},
               [&] { run_data_arithmetic(command, out); });
}

TEST(DataInspect, LanguageFolders) {
  const TempDir dir;
  TextCommand text = text_command(corpus(dir / "in", 4, 3), dir / "text");
  run_build(text);
  std::ostringstream out;
  InspectCommand command;
  command.path = dir / "text";
  run_data_inspect(command, out);
  EXPECT_NE(out.str().find("packed text, vocabulary 259, pad 258, bos 256, eos 257, tokenizer bytes"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("1 shards, digests right; 4 documents"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("second line"), std::string::npos) << out.str();
  command.example = 99;
  expect_error(ExitCode::usage, {"--example 99", "4 examples"}, [&] { run_data_inspect(command, out); });
  // A shard that was changed is found.
  std::string bytes = read_all(dir / "text" / "train-00000.npy");
  bytes[bytes.size() - 4] ^= 1;
  write_text(dir / "text" / "train-00000.npy", bytes);
  command.example = 0;
  expect_error(ExitCode::data, {"train-00000.npy: is damaged or was changed"}, [&] { run_data_inspect(command, out); });
  triple_folder(dir / "triples", 6);
  command.path = dir / "triples";
  std::ostringstream triples;
  run_data_inspect(command, triples);
  EXPECT_NE(triples.str().find("train: 6 records, 0 malformed lines; encoder ids 2 on average, 5 at most"),
            std::string::npos)
      << triples.str();
}

}  // namespace
}  // namespace hrm::data
