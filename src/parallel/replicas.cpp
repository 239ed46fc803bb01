#include "hrm/parallel/replicas.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/state/tensor_bytes.h"

namespace hrm::parallel {
namespace {

constexpr char kBetween = '\t';  // in lines that ranks exchange: name, boxes, ...

// What tells an entry from others: its name and, if ranks share it out, its boxes.
std::string entry_key(const TensorEntry& entry) {
  return cat(entry.name, kBetween, part_text(entry.part));
}

// For each key of an entry that ranks share out: the ranks that hold it.
using Holders = std::map<std::string, std::vector<int>>;

Holders holders_of(const StateListing& listing, Comm& comm) {
  std::ostringstream own;
  for (const TensorEntry& entry : listing.tensors) {
    if (entry.part.split) own << entry_key(entry) << '\n';
  }
  const std::vector<std::string> all = comm.all_gather_text(own.str());
  Holders holders;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    for (std::string line; std::getline(lines, line);) holders[line].push_back(static_cast<int>(rank));
  }
  return holders;
}

// A digest of each entry that other ranks hold, too, as lines "name, boxes, digest".
std::string digests(const StateListing& listing, const Holders& holders) {
  std::ostringstream out;
  for (const TensorEntry& entry : listing.tensors) {
    const std::string key = entry_key(entry);
    if (const auto found = holders.find(key); found != holders.end() && found->second.size() == 1) continue;
    const at::Tensor host = host_tensor(entry.tensor);
    out << key << kBetween << digest_hex(bytes_of(host)) << '\n';
  }
  for (const auto& [name, value] : listing.integers) out << name << kBetween << kBetween << value << '\n';
  for (const auto& [name, value] : listing.reals) {
    out << name << kBetween << kBetween << std::hexfloat << value << '\n';
  }
  return out.str();
}

// By key what the rank says of the entry.
std::map<std::string, std::string> lines_of(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.rfind(kBetween);
    out[line.substr(0, at)] = line.substr(at + 1);
  }
  return out;
}

[[noreturn]] void differs(size_t rank, size_t first, const std::string& key) {
  fail(ExitCode::rank_failed, "rank ", rank, " has another state than rank ", first, ", first in '",
       key.substr(0, key.find(kBetween)),
       "': its memory, its GPU or its build may be at fault; start again without that machine");
}

bool is_whole(const std::string& key) {
  return key.back() == kBetween;
}

}  // namespace

OwnedEntries owned_entries(Stateful& state, Comm& comm) {
  const StateListing listing = list_state(state);
  OwnedEntries owned;
  owned.scalars = comm.main();
  const Holders holders = comm.alone() ? Holders() : holders_of(listing, comm);
  std::set<std::string> split;
  for (const auto& [key, ranks] : holders) {
    // What all hold alike is whole.
    if (ranks.size() < static_cast<size_t>(comm.ranks())) split.insert(key.substr(0, key.find(kBetween)));
  }
  owned.any_split = !split.empty();
  bool split_weights = false;
  std::string contradiction;
  for (const TensorEntry& entry : listing.tensors) {
    if (split.count(entry.name) == 0) {
      if (comm.main()) owned.names.insert(entry.name);
      continue;
    }
    if (!entry.part.split) {
      contradiction = cat("rank ", comm.rank(), " holds all of '", entry.name, "', of which another rank holds a part");
      continue;
    }
    split_weights = split_weights || entry.role == StateRole::weight || entry.role == StateRole::ema;
    if (holders.at(entry_key(entry)).front() == comm.rank()) owned.names.insert(entry.name);
  }
  if (comm.alone()) return owned;
  constexpr const char* kSplit = "split weights";
  for (const std::string& text : comm.all_gather_text(!contradiction.empty() ? contradiction
                                                      : split_weights        ? kSplit
                                                                             : "")) {
    require(text.empty() || text == kSplit, ExitCode::unexpected, text);
    owned.split_weights = owned.split_weights || !text.empty();
  }
  return owned;
}

void OwnedState::visit_state(StateVisitor& visitor) {
  class Filter : public StateVisitor {
   public:
    Filter(StateVisitor& inner, const OwnedEntries& owned) : inner_(inner), owned_(owned) {}
    void tensor(const std::string& name, at::Tensor& tensor, StateRole role, const StatePart& part) override {
      if (owned_.names.count(name) > 0) inner_.tensor(name, tensor, role, part);
    }
    void integer(const std::string& name, int64_t& value) override {
      if (owned_.scalars) inner_.integer(name, value);
    }
    void real(const std::string& name, double& value) override {
      if (owned_.scalars) inner_.real(name, value);
    }

   private:
    StateVisitor& inner_;
    const OwnedEntries& owned_;
  };
  Filter filter(visitor, owned_);
  state_.visit_state(filter);
}

void check_replicas(Stateful& state, Comm& comm) {
  if (comm.alone()) return;
  const StateListing listing = list_state(state);
  const Holders holders = holders_of(listing, comm);
  const std::vector<std::string> all = comm.all_gather_text(digests(listing, holders));
  std::vector<std::map<std::string, std::string>> parsed(all.size());  // when it is needed
  const auto lines_of_rank = [&](size_t rank) -> const std::map<std::string, std::string>& {
    if (parsed[rank].empty()) parsed[rank] = lines_of(all[rank]);
    return parsed[rank];
  };
  const std::map<std::string, std::string>& first = lines_of_rank(0);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::map<std::string, std::string>& lines = lines_of_rank(rank);
    // In the order of the state: where much differs the first entry says most.
    std::istringstream ordered(all[rank]);
    for (std::string line; std::getline(ordered, line);) {
      const std::string key = line.substr(0, line.rfind(kBetween));
      if (const auto found = holders.find(key); found != holders.end()) {
        const auto from = static_cast<size_t>(found->second.front());
        if (from < rank && lines_of_rank(from).at(key) != lines.at(key)) differs(rank, from, key);
      } else if (const auto there = first.find(key); there == first.end() || there->second != lines.at(key)) {
        differs(rank, 0, key);
      }
    }
    for (const auto& [key, value] : first) {
      if (is_whole(key) && lines.count(key) == 0) differs(rank, 0, key);
    }
  }
}

}  // namespace hrm::parallel
