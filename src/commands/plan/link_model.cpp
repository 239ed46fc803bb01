#include "commands/plan/link_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/text.h"
#include "hrm/formats/json.h"

namespace hrm::commands {
namespace {

using LinkJson = nlohmann::json;
using Kind = parallel::CommOperation::Kind;

// NCCL's own model of a tree in its protocol for short messages (src/graph/tuning.cc, baseLat and hwLat), microseconds.
constexpr double kStartUs = 4.4, kNvlinkHopUs = 0.52, kPciHopUs = 1.0, kNetworkHopUs = 5.0;
// One adapter of 400 Gbit/s for each GPU, as in DGX H100 and H200 (their data sheets: eight ConnectX-7).
constexpr double kNetworkBytesPerS = 50e9;

double factor_of(Kind kind) {
  return kind == Kind::all_reduce ? 2 : 1;
}

double log2_up(int64_t n) {
  return std::bit_width(static_cast<uint64_t>(n - 1));
}

double transfer_seconds(const Link& link, double bytes) {
  if (link.measured.empty()) return bytes / link.bytes_per_s;
  const auto above = std::find_if(link.measured.begin(), link.measured.end(),
                                  [&](const Link::Point& point) { return point.bytes >= bytes; });
  if (above == link.measured.begin()) return 0;
  const Link::Point& low = *(above - 1);
  if (above == link.measured.end()) return low.seconds + (bytes - low.bytes) / link.bytes_per_s;
  return low.seconds + (above->seconds - low.seconds) * (bytes - low.bytes) / (above->bytes - low.bytes);
}

double hops_seconds(const Links& links, Kind kind, const RankLayout& layout) {
  const auto ranks = static_cast<double>(layout.ranks), nodes = static_cast<double>(layout.nodes);
  const bool tree = kind == Kind::all_reduce;
  const double in_node = tree ? 2 * (static_cast<double>(layout.per_node()) - 1) : ranks - nodes;
  const double between = tree ? 2 * log2_up(layout.nodes) : nodes - 1;
  return in_node * links.node.hop_s + between * links.network.hop_s;
}

// A result of `bench comm`.
struct MeasuredLink {
  std::filesystem::path file;
  std::string device;
  RankLayout layout;
  double shortest_s = 0;  // of the shortest message
  std::vector<Link::Point> points;
  bool between_nodes() const { return layout.nodes > 1; }
  std::string origin() const {
    return cat("measured, ", layout.ranks, " ranks on ", layout.nodes, layout.nodes == 1 ? " node (" : " nodes (",
               printable(file.string()), ")");
  }
};

MeasuredLink read_measured(const std::filesystem::path& file) {
  const std::string name = cat("--bandwidths '", printable(file.string()), "'");
  const std::string text = read_text(file, ExitCode::usage);
  MeasuredLink out;
  out.file = file;
  std::string transport;
  std::vector<std::pair<double, double>> rows;  // bytes of the tensor, s
  try {
    const LinkJson json = parse_json(text, name, ExitCode::usage);
    out.layout = {json.at("ranks").get<int64_t>(), json.at("nodes").get<int64_t>()};
    out.device = json.at("device").get<std::string>();
    transport = json.at("transport").get<std::string>();
    for (const LinkJson& row : json.at("all_reduce")) {
      rows.emplace_back(row.at("bytes").get<double>(), 1e-6 * row.at("time_us").get<double>());
    }
  } catch (const LinkJson::exception& error) {
    fail(ExitCode::usage, name,
         " is not a result of 'hrm_train bench comm --json': ", printable(std::string(error.what()).substr(0, 200)));
  }
  const RankLayout& layout = out.layout;
  require(layout.ranks > 1 && layout.nodes >= 1 && layout.ranks % layout.nodes == 0, ExitCode::usage, name,
          " was measured with ", layout.ranks, " ranks on ", layout.nodes,
          " nodes; measure with several ranks, as many on each node");
  require(transport == "nccl", ExitCode::usage, name, " was measured between CPUs (", printable(transport),
          "), but GPUs are planned; measure by 'hrm_train bench comm' on GPUs");
  require(layout.nodes == 1 || layout.per_node() == 1, ExitCode::usage, name, " was measured with ", layout.per_node(),
          " ranks on each of ", layout.nodes,
          " nodes, which does not tell the network from the links of a node; measure the network with one rank on each "
          "node, a node by itself");
  require(rows.size() >= 2, ExitCode::usage, name, " has fewer than two sizes; measure again");
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool larger = i == 0 ? rows[i].first > 0 : rows[i].first > rows[i - 1].first;
    require(larger && rows[i].second > 0 && std::isfinite(rows[i].second), ExitCode::usage, name,
            ": sizes must grow and take a time, but row ", i + 1, " has ", rows[i].first, " bytes and ",
            1e6 * rows[i].second, " us; measure again");
  }
  // Larger messages that were faster by chance count as fast as the smaller ones.
  out.shortest_s = rows.front().second;
  out.points.push_back({0, 0});
  for (const auto& [bytes, seconds] : rows) {
    const LinkBytes sent = link_bytes({Kind::all_reduce, static_cast<int64_t>(bytes)}, layout);
    out.points.push_back(
        {layout.nodes > 1 ? sent.network : sent.node, std::max(seconds - out.shortest_s, out.points.back().seconds)});
  }
  return out;
}

void use(const MeasuredLink& measured, Link& link, const std::string& name) {
  const Link::Point& last = measured.points.back();
  require(last.seconds > measured.shortest_s, ExitCode::usage, name,
          ": its largest size takes hardly longer than its smallest, which says nothing of bandwidth; measure larger "
          "ones, too");
  link.measured = measured.points;
  link.bytes_per_s = last.bytes / (last.seconds + measured.shortest_s);
  link.origin = measured.origin();
}

}  // namespace

RankLayout layout_of(int64_t ranks, int64_t per_node) {
  if (ranks <= per_node) return {ranks, 1};
  require(ranks % per_node == 0, ExitCode::usage, ranks, " ranks do not fill nodes of ", per_node,
          "; plan a multiple of that, or set --ranks-per-node");
  return {ranks, ranks / per_node};
}

LinkBytes link_bytes(const parallel::CommOperation& operation, const RankLayout& layout) {
  const double bytes = factor_of(operation.kind) * static_cast<double>(operation.bytes);
  const auto ranks = static_cast<double>(layout.ranks), nodes = static_cast<double>(layout.nodes);
  const double per_node = ranks / nodes;
  // To one neighbour, over a link of the node where there is one.
  if (operation.kind == Kind::exchange) return {per_node > 1 ? bytes : 0, per_node > 1 ? 0 : bytes};
  return {bytes * (per_node - 1) / per_node, bytes * (nodes - 1) / ranks};
}

Links make_links(const GpuFacts& gpu, const LinkOptions& options) {
  const auto by_option = [](double value) { return value > 0; };
  const auto origin = [](bool said, const std::string& data_sheet) {
    return said ? std::string("as the command line says") : data_sheet;
  };
  Links links;
  links.start_s = 1e-6 * kStartUs;
  links.node.bytes_per_s = by_option(options.node_gbs) ? 1e9 * options.node_gbs : gpu.link_bytes_per_s;
  links.node.origin = origin(by_option(options.node_gbs),
                             cat("data sheet of the ", gpu.name, ", ", gpu.nvlink ? "NVLink" : "PCI Express"));
  links.node.hop_s = 1e-6 * (by_option(options.node_hop_us) ? options.node_hop_us
                             : gpu.nvlink                   ? kNvlinkHopUs
                                                            : kPciHopUs);
  links.network.bytes_per_s = by_option(options.network_gbs) ? 1e9 * options.network_gbs : kNetworkBytesPerS;
  links.network.origin =
      origin(by_option(options.network_gbs), "data sheet of a 400 Gbit/s adapter for each GPU, as in a DGX H100");
  links.network.hop_s = 1e-6 * (by_option(options.network_hop_us) ? options.network_hop_us : kNetworkHopUs);

  // The node first: what starts an operation there does so over the network, too.
  std::vector<MeasuredLink> files;
  for (const auto& file : options.measured) files.push_back(read_measured(file));
  std::stable_sort(files.begin(), files.end(),
                   [](const MeasuredLink& a, const MeasuredLink& b) { return a.between_nodes() < b.between_nodes(); });
  for (const MeasuredLink& measured : files) {
    const std::string name = cat("--bandwidths '", printable(measured.file.string()), "'");
    Link& link = measured.between_nodes() ? links.network : links.node;
    require(link.measured.empty(), ExitCode::usage, name, " is the second file about ",
            measured.between_nodes() ? "the network" : "the links of a node", "; give one");
    require(!by_option(measured.between_nodes() ? options.network_gbs : options.node_gbs), ExitCode::usage, name,
            " and ", measured.between_nodes() ? "--network-gbs" : "--link-gbs", " say the same; give one of them");
    require(measured.between_nodes() || measured.device.find(gpu.name) != std::string::npos, ExitCode::usage, name,
            " was measured on ", printable(measured.device), ", but an ", gpu.name,
            " is planned; measure there, or choose the GPU by --gpu");
    use(measured, link, name);
    if (measured.between_nodes()) {
      if (!by_option(options.network_hop_us)) {
        link.hop_s = std::max(measured.shortest_s - links.start_s, 0.0) / (2 * log2_up(measured.layout.nodes));
      }
    } else {
      links.start_s =
          std::max(measured.shortest_s - 2 * static_cast<double>(measured.layout.ranks - 1) * links.node.hop_s, 0.0);
    }
  }
  return links;
}

double collective_seconds(const Links& links, const parallel::CommOperation& operation, const RankLayout& layout) {
  if (layout.ranks == 1) return 0;
  const LinkBytes bytes = link_bytes(operation, layout);
  return links.start_s + hops_seconds(links, operation.kind, layout) +
         std::max(transfer_seconds(links.node, bytes.node), transfer_seconds(links.network, bytes.network));
}

}  // namespace hrm::commands
