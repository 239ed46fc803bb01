#include "hrm/data/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/token_decoder.h"
#include "data/tokenizer/unicode.h"
#include "hrm/base/file.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"
#include "hrm/formats/tokenizer_folder.h"

namespace hrm::data {

namespace {

constexpr size_t kMostBytes = size_t{256} << 20;  // of all tokens

}  // namespace

struct Tokenizer::State {
  State(TokenizerJson from, const std::string& origin, ExitCode code);

  // The state of one thread, reused by the next one with its cached words.
  struct Worker {
    explicit Worker(const State& state)
        : normalizer(state.normalizer), pre_tokenizer(state.pre_tokenizer), bpe(state.model) {}

    Normalizer::Worker normalizer;
    PreTokenizer::Worker pre_tokenizer;
    BpeEncoder bpe;
  };
  std::unique_ptr<Worker> take_worker() const;
  void give_worker(std::unique_ptr<Worker> worker) const;

  void encode(Worker& worker, std::string_view text, std::vector<int32_t>& out, bool add_special) const;

  TokenizerJson json;
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokenFinder raw, normalized;
  TokenDecoder decoder;
  bool plain_bytes = false;  // decoding concatenates the bytes of the tokens

  struct Token {
    std::string text;   // as in tokenizer.json
    std::string bytes;  // the bytes that it represents
    bool special = false;
  };
  // Null for an unused id.
  const Token* find(int32_t id) const {
    const bool known = id >= 0 && static_cast<size_t>(id) < places.size() && places[static_cast<size_t>(id)] >= 0;
    return known ? &tokens[static_cast<size_t>(places[static_cast<size_t>(id)])] : nullptr;
  }

  const Token& at(int32_t id) const {
    const Token* token = find(id);
    require(token != nullptr, ExitCode::data, "the tokenizer has no token with the id ", id, " (its ids go to ",
            places.size() - 1, ")");
    return *token;
  }

  std::vector<Token> tokens;
  std::vector<int32_t> places;  // index into tokens by id; -1: unused. The last id of a file may be very large
  std::unordered_map<std::string_view, int32_t> ids;
  std::string digest;

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Worker>> workers;
};

Tokenizer::State::State(TokenizerJson from, const std::string& origin, ExitCode code)
    : json(std::move(from)),
      model(json),
      normalizer(json.normalizers, origin, code),
      pre_tokenizer(json.pre_tokenizer, origin, code),
      raw(json.added_tokens, /*normalized=*/false, normalizer),
      normalized(json.added_tokens, /*normalized=*/true, normalizer),
      decoder(json.decoder),
      plain_bytes(json.decoder == std::vector{DecoderStep()}) {
  int32_t largest = 0;
  for (const VocabularyEntry& entry : json.vocabulary) largest = std::max(largest, entry.id);
  for (const AddedToken& token : json.added_tokens) largest = std::max(largest, token.id);
  places.resize(static_cast<size_t>(largest) + 1, -1);
  tokens.reserve(json.vocabulary.size() + json.added_tokens.size());  // `ids` holds views of the tokens
  size_t bytes = 0;
  const auto add = [&](int32_t id, const std::string& text, bool special) {
    places[static_cast<size_t>(id)] = static_cast<int32_t>(tokens.size());
    // As in the library's ByteLevel decoder, a token with a character outside the alphabet is used unchanged.
    tokens.push_back({text, decoder.bytes_of(text), special});
    bytes += tokens.back().bytes.size();
    require(bytes <= kMostBytes, code, origin, ": the decoder makes more than ", human_bytes(kMostBytes),
            " of the tokens");
    ids.emplace(tokens.back().text, id);
  };
  for (const VocabularyEntry& entry : json.vocabulary) add(entry.id, entry.token, false);
  for (const AddedToken& token : json.added_tokens) {
    const int32_t place = places[static_cast<size_t>(token.id)];
    if (place < 0) {
      add(token.id, token.content, token.special);
    } else {
      tokens[static_cast<size_t>(place)].special = token.special;
    }
  }
  digest = digest_hex(as_bytes(tokenizer_json_text(json)));
}

std::unique_ptr<Tokenizer::State::Worker> Tokenizer::State::take_worker() const {
  {
    const std::lock_guard lock(mutex);
    if (!workers.empty()) {
      std::unique_ptr<Worker> worker = std::move(workers.back());
      workers.pop_back();
      return worker;
    }
  }
  return std::make_unique<Worker>(*this);
}

void Tokenizer::State::give_worker(std::unique_ptr<Worker> worker) const {
  const std::lock_guard lock(mutex);
  workers.push_back(std::move(worker));
}

void Tokenizer::State::encode(Worker& worker, std::string_view text, std::vector<int32_t>& out,
                              bool add_special) const {
  const size_t valid = utf8_prefix(text);
  require(valid == text.size(), ExitCode::data, "the text is not UTF-8 at byte ", valid, " of ", text.size());
  const auto add_token = [&](int32_t id) { out.push_back(id); };
  const auto add_text = [&](std::string_view part) {
    bool leads = part.data() == text.data();
    part = worker.normalizer.normalize(part, leads);
    const char* begin = part.data();
    const auto add_words = [&](std::string_view words) {
      worker.pre_tokenizer.words(
          words, [&](std::string_view word, const char* readable) { worker.bpe.encode(word, readable, out); },
          leads && words.data() == begin);
    };
    normalized.split(part, add_words, add_token);
  };
  if (!add_special || !json.has_template) return raw.split(text, add_text, add_token);
  for (const TemplatePiece& piece : json.single) {
    if (piece.sequence) {
      raw.split(text, add_text, add_token);
    } else {
      out.insert(out.end(), piece.ids.begin(), piece.ids.end());
    }
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& path, ExitCode code) {
  const FolderTokenizer found = read_tokenizer(path, code);
  const std::string origin = found.file.string();
  return Tokenizer(parse_tokenizer_json(found.text, origin, code), origin, code);
}

Tokenizer::Tokenizer(TokenizerJson json, const std::string& origin, ExitCode code)
    : state_(std::make_shared<const State>(std::move(json), origin, code)) {}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> out;
  encode(text, out, add_special);
  return out;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& out, bool add_special) const {
  std::unique_ptr<State::Worker> worker = state_->take_worker();
  state_->encode(*worker, text, out, add_special);
  state_->give_worker(std::move(worker));
}

std::vector<std::vector<int32_t>> Tokenizer::encode_batch(std::span<const std::string_view> texts, int threads,
                                                          bool add_special) const {
  require(threads >= 1, ExitCode::unexpected, "encode_batch over ", threads, " threads");
  std::vector<std::vector<int32_t>> out(texts.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  size_t failed = texts.size();
  std::exception_ptr failure;
  // Texts are started in order, so the first failing one is deterministic.
  const auto work = [&] {
    std::unique_ptr<State::Worker> worker = state_->take_worker();
    size_t i = 0;
    try {
      while ((i = next.fetch_add(1)) < texts.size()) {
        try {
          state_->encode(*worker, texts[i], out[i], add_special);
        } catch (const Error& error) {
          fail(error.code(), "text ", i, ": ", error.what());
        }
      }
      state_->give_worker(std::move(worker));
    } catch (...) {
      next = texts.size();
      const std::lock_guard lock(mutex);
      if (i < failed) {
        failed = i;
        failure = std::current_exception();
      }
    }
  };
  const size_t helpers = std::min(static_cast<size_t>(threads), std::max<size_t>(texts.size(), 1)) - 1;
  std::vector<std::jthread> pool;
  for (size_t i = 0; i < helpers; ++i) pool.emplace_back(work);
  work();
  pool.clear();
  if (failure) std::rethrow_exception(failure);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  TokenDecoder::Stream stream(state_->decoder);
  for (const int32_t id : ids) {
    const State::Token& token = state_->at(id);
    if (skip_special && token.special) continue;
    if (state_->plain_bytes) {
      bytes += token.bytes;
    } else {
      stream.push(token.text, text);
    }
  }
  if (state_->plain_bytes) {
    append_utf8_lossy(bytes, /*complete=*/true, text);
  } else {
    stream.finish(text);
  }
  return text;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  return state_->at(id).bytes;
}

std::pair<int64_t, int64_t> Tokenizer::white_ends(int32_t id, bool first) const {
  const State::Token& token = state_->at(id);
  if (!state_->json.trims_offsets) return {};
  // Each character of the token's text is one character of the decoded text. U+0120 is a space in GPT-2's alphabet.
  const UnicodeTable& table = UnicodeTable::get();
  int64_t begin = 0, end = 0;
  bool all_white = true;
  size_t leading = 0;
  for (size_t at = 0; at < token.text.size();) {
    const Character one = character_at(token.text.data() + at);
    at += one.bytes;
    const bool byte_space = one.code == 0x120;
    if (!byte_space && (table.classes(one.code) & kSpace) == 0) {
      all_white = false;
      end = 0;
      continue;
    }
    const int64_t bytes = byte_space ? 1 : one.bytes;
    end += bytes;
    if (!all_white) continue;
    if (++leading > 1 || !first || !state_->json.first_space_counts) begin += bytes;
  }
  return {begin, end};
}

int32_t Tokenizer::vocab_size() const {
  return static_cast<int32_t>(state_->places.size());
}

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = state_->ids.find(token);
  return found == state_->ids.end() ? std::nullopt : std::optional(found->second);
}

const std::string& Tokenizer::token_of(int32_t id) const {
  return state_->at(id).text;
}

bool Tokenizer::has(int32_t id) const {
  return state_->find(id) != nullptr;
}

bool Tokenizer::is_special(int32_t id) const {
  const State::Token* token = state_->find(id);
  return token != nullptr && token->special;
}

const std::string& Tokenizer::digest() const {
  return state_->digest;
}

const TokenizerJson& Tokenizer::json() const {
  return state_->json;
}

struct StreamDecoder::State {
  State(Tokenizer with, bool skip)
      : tokenizer(std::move(with)), skip_special(skip), stream(tokenizer.state_->decoder) {}

  Tokenizer tokenizer;
  bool skip_special;
  TokenDecoder::Stream stream;
};

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special)
    : state_(std::make_unique<State>(std::move(tokenizer), skip_special)) {}
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(int32_t id) {
  const std::string& token = state_->tokenizer.token_of(id);
  std::string text;
  if (!state_->skip_special || !state_->tokenizer.is_special(id)) state_->stream.push(token, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  state_->stream.finish(text);
  return text;
}

}  // namespace hrm::data
