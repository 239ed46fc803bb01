// The input as a list of hosts and as a list of tasks per node.
#include "fuzz/fuzz.h"
#include "hrm/formats/host_list.h"

using namespace hrm;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::parses(ExitCode::environment, [&] {
    const std::vector<std::string> hosts = expand_hostlist(text);
    fuzz::check(!hosts.empty() && hosts.size() <= 65536, "as many hosts as allowed");
    std::string list;
    for (const std::string& host : hosts) {
      fuzz::check(!host.empty() && host.size() <= 253, "a name of allowed length");
      list += (list.empty() ? "" : ",") + host;
    }
    if (list.size() <= (size_t{1} << 17)) fuzz::check(expand_hostlist(list) == hosts, "the long form is the same list");
  });
  fuzz::parses(ExitCode::environment, [&] {
    const std::vector<int> counts = expand_counts(text);
    fuzz::check(!counts.empty() && counts.size() <= 65536, "as many nodes as allowed");
    for (const int count : counts) fuzz::check(count >= 0 && count <= 1 << 20, "as many tasks as allowed");
  });
  return 0;
}
