#include "hrm/data/chat_split.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

// Uniform in [0, 1), a function of only its arguments.
double draw_share(uint64_t seed, const std::string& purpose, const std::string& key) {
  Hasher hasher;
  hasher.update(cat(seed, "\n", purpose, "\n"));
  hasher.update(key);
  const uint64_t bits = std::stoull(hasher.hex().substr(0, 16), nullptr, 16);
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

struct Group {
  std::string key;
  double draw = 0;
  double sum = 0;  // sum of its examples' values
  int64_t count = 0;
  std::vector<int64_t> members = {};
};

std::vector<Group> groups_of(const std::vector<std::string>& keys, std::span<const int64_t> members,
                             const SplitOptions& options) {
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> places;
  for (const int64_t member : members) {
    require(member >= 0 && member < static_cast<int64_t>(keys.size()), ExitCode::unexpected, "example ", member, " of ",
            keys.size());
    const std::string& key = keys[member];
    const auto [found, is_new] = places.emplace(key, groups.size());
    if (is_new) groups.push_back({.key = key, .draw = draw_share(options.seed, options.purpose, key)});
    Group& group = groups[found->second];
    group.members.push_back(member);
    if (options.values.empty() || std::isnan(options.values[member])) continue;
    group.sum += options.values[member];
    ++group.count;
  }
  return groups;
}

// Cumulative shares, e.g. 0.9, 1, 1.
std::vector<double> ends_of(const std::vector<double>& shares) {
  double sum = 0;
  std::vector<double> ends;
  for (const double share : shares) {
    require(std::isfinite(share) && share >= 0, ExitCode::usage, "a share of the data is ", share,
            "; it must be 0 or more");
    ends.push_back(sum += share);
  }
  require(!shares.empty() && std::abs(sum - 1) < 1e-6, ExitCode::usage, "the shares of the data add up to ", sum,
          "; they must add up to 1");
  // The rounding error goes to the last side that has a share.
  for (size_t i = ends.size(); i-- > 0;) {
    ends[i] = 1;
    if (shares[i] > 0) break;
  }
  return ends;
}

// Group indices of each stratum.
std::vector<std::vector<size_t>> strata_of(const std::vector<Group>& groups) {
  std::vector<double> means;
  for (const Group& group : groups) {
    if (group.count > 0) means.push_back(group.sum / static_cast<double>(group.count));
  }
  const std::vector<double> edges = means.empty() ? std::vector<double>{} : quartile_edges(means);
  std::vector<std::vector<size_t>> strata(edges.size() + 1);
  for (size_t i = 0; i < groups.size(); ++i) {
    size_t stratum = edges.size();  // the stratum of groups without a value
    if (groups[i].count > 0) {
      // Quartiles include their upper edge; the first one also includes its lower edge.
      const double mean = groups[i].sum / static_cast<double>(groups[i].count);
      stratum = std::max<size_t>(1, std::lower_bound(edges.begin(), edges.end(), mean) - edges.begin()) - 1;
    }
    strata[stratum].push_back(i);
  }
  return strata;
}

}  // namespace

std::vector<double> quartile_edges(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<double> edges;
  for (int quarter = 0; quarter <= 4; ++quarter) {
    const double place = static_cast<double>(values.size() - 1) * quarter / 4;
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, values.size() - 1);
    edges.push_back(values[below] + (values[above] - values[below]) * (place - static_cast<double>(below)));
  }
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, std::span<const int64_t> members,
                                               const SplitOptions& options) {
  const std::vector<double> ends = ends_of(options.shares);
  require(options.values.empty() || options.values.size() == keys.size(), ExitCode::unexpected, options.values.size(),
          " values for ", keys.size(), " examples");
  const std::vector<Group> groups = groups_of(keys, members, options);
  std::vector<std::vector<int64_t>> sides(ends.size());
  std::vector<int64_t> counts(ends.size());
  const auto put = [&](const Group& group, size_t side) {
    sides[side].insert(sides[side].end(), group.members.begin(), group.members.end());
    ++counts[side];
  };
  if (options.values.empty()) {
    for (const Group& group : groups) {
      put(group, std::upper_bound(ends.begin(), ends.end(), group.draw) - ends.begin());
    }
  } else {
    for (std::vector<size_t>& stratum : strata_of(groups)) {
      std::sort(stratum.begin(), stratum.end(), [&](size_t a, size_t b) {
        return groups[a].draw != groups[b].draw ? groups[a].draw < groups[b].draw : groups[a].key < groups[b].key;
      });
      for (size_t i = 0, side = 0; i < stratum.size(); ++i) {
        while (static_cast<int64_t>(i) >= std::llround(ends[side] * static_cast<double>(stratum.size()))) ++side;
        put(groups[stratum[i]], side);
      }
    }
  }
  const auto wanted = static_cast<size_t>(
      std::count_if(options.shares.begin(), options.shares.end(), [](double share) { return share > 0; }));
  const std::string way_out =
      groups.size() < wanted ? cat("each of the ", wanted,
                                   " sides needs one: give more prompts, or chat.val_share=0 and chat.test_share=0")
                             : "choose a larger share or another seed, or none with "
                               "chat.val_share=0 and chat.test_share=0";
  for (size_t side = 0; side < sides.size(); ++side) {
    require(counts[side] > 0 || options.shares[side] == 0, ExitCode::data,
            groups.size() == 1 ? "the only prompt was not" : cat("none of the ", groups.size(), " prompts was"),
            " drawn for a share of ", options.shares[side], "; ", way_out);
    std::sort(sides[side].begin(), sides[side].end());
  }
  check_disjoint(keys, sides);
  return sides;
}

std::vector<std::vector<int64_t>> split_groups(const std::vector<std::string>& keys, const SplitOptions& options) {
  std::vector<int64_t> members(keys.size());
  std::iota(members.begin(), members.end(), int64_t{0});
  return split_groups(keys, members, options);
}

void check_disjoint(const std::vector<std::string>& keys, const std::vector<std::vector<int64_t>>& sides) {
  std::unordered_map<std::string_view, size_t> side_of;
  std::vector<bool> seen(keys.size());
  for (size_t side = 0; side < sides.size(); ++side) {
    for (const int64_t member : sides[side]) {
      const std::string& key = keys[member];
      require(!seen[member], ExitCode::data, "example ", member, " of '", printable_start(key), "' is split off twice");
      seen[member] = true;
      const size_t other = side_of.try_emplace(key, side).first->second;
      require(other == side, ExitCode::data, "the prompt '", printable_start(key), "' is on two sides of the split, ",
              other, " and ", side);
    }
  }
}

}  // namespace hrm::data
