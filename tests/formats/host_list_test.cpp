#include "hrm/formats/host_list.h"

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Hosts = std::vector<std::string>;

TEST(HostList, Expanded) {
  EXPECT_EQ(expand_hostlist("login"), (Hosts{"login"}));
  EXPECT_EQ(expand_hostlist("gpu[01-03,7],login"), (Hosts{"gpu01", "gpu02", "gpu03", "gpu7", "login"}));
  EXPECT_EQ(expand_hostlist("r[1-2]n[08-10]"), (Hosts{"r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"}));
  EXPECT_EQ(expand_hostlist("a[099-101]-ib"), (Hosts{"a099-ib", "a100-ib", "a101-ib"}));
  EXPECT_EQ(expand_hostlist("n[0-65535]").size(), 65536u);
  EXPECT_EQ(expand_hostlist("n[0-255]m[0-255]").back(), "n255m255");
  EXPECT_EQ(expand_hostlist(std::string(253, 'a')).front().size(), 253u);
}

void expect_hosts_refused(const std::string& list, const std::string& why) {
  SCOPED_TRACE(list.substr(0, 60));
  expect_error([&] { expand_hostlist(list); }, ExitCode::environment, {"the list of nodes '", why});
}

TEST(HostList, Refused) {
  for (const char* empty : {"", ",", "a,,b", "a,"}) expect_hosts_refused(empty, "a name is empty");
  for (const char* open : {"gpu[1-", "gpu[", "a,gpu[1,2"}) expect_hosts_refused(open, "not closed");
  for (const char* odd : {"gpu[]", "gpu[3-1]", "gpu[a-b]", "gpu[1-2-3]", "gpu[[1]]", "gpu[1,]", "gpu[+1]"}) {
    expect_hosts_refused(odd, "brackets hold numbers");
  }
  for (const char* odd : {"a]b", "a b", "../a", "a\nb", "\xff", "a;b"}) expect_hosts_refused(odd, "letters, digits");
  expect_error([] { expand_hostlist("a\x1b[2J"); }, ExitCode::environment, {"'a\\x1B[2J'"});
}

// Each of these would be gigabytes, or would take minutes, if it were expanded first and counted afterwards.
TEST(HostList, LargeOnesAreRefusedBeforeTheyAreMade) {
  expect_hosts_refused("n[0-70000]", "too many nodes");
  expect_hosts_refused("n[0-999][0-999]", "too many nodes");
  expect_hosts_refused("n[0-999999999999999999]", "too many nodes");
  expect_hosts_refused("n[0-65535],m", "too many nodes");
  // 2^64 hosts, and 2^64 + 1: as a product and as a sum of 64 bits 0 and 1.
  expect_hosts_refused("n[0-65535][0-65535][0-65535][0-65535]", "too many nodes");
  std::string wraps = "n[0-446744073709551616";
  for (int i = 0; i < 18; ++i) wraps += ",0-999999999999999999";
  expect_hosts_refused(wraps + "]", "too many nodes");
  std::string ranges = "n[0-65535";
  while (ranges.size() < 100000) ranges += ",0-65535";
  expect_hosts_refused(ranges + "]", "too many nodes");
  expect_hosts_refused("n[0-65535]" + std::string(100000, 'a'), "longer than 253");
  expect_hosts_refused("n[" + std::string(100000, '0') + "-65535]", "more than 18 digits");
  expect_hosts_refused("n[1-1" + std::string(18, '0') + "]", "more than 18 digits");
  expect_hosts_refused(std::string(131073, 'a'), "longer than 128 KiB");
  std::string brackets = "n";
  for (int i = 0; i < 100; ++i) brackets += "[1]";
  expect_hosts_refused(brackets, "longer than 253");
}

TEST(TasksPerNode, Expanded) {
  EXPECT_EQ(expand_counts("4(x2),1"), (std::vector<int>{4, 4, 1}));
  EXPECT_EQ(expand_counts("8"), (std::vector<int>{8}));
  EXPECT_EQ(expand_counts("1048576(x65536)").size(), 65536u);
}

TEST(TasksPerNode, Refused) {
  for (const char* bad : {"", "x", "4(x2", "4(x0)", "4(x)", "4(x", "4,", "-1", "4(x99999999)", "1048577", "1(x65536),1",
                          "1(x18446744073709551615),1(x2)", "4 (x2)"}) {
    SCOPED_TRACE(bad);
    expect_error([&] { expand_counts(bad); }, ExitCode::environment, {"tasks per node", "cannot be read"});
  }
  expect_error([] { expand_counts(std::string(131072, '0') + "1"); }, ExitCode::environment, {"tasks per node"});
}

}  // namespace
}  // namespace hrm
