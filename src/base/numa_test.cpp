#include "base/numa.h"

#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <numeric>

#include "base/cpu_quota.h"
#include "base/huge_memory.h"
#include "base/test_machine.h"
#include "base/thread_team.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> cpus_between(int first, int last) {
  std::vector<int> cpus(static_cast<size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

class Numa : public TestMachine {
 protected:
  void node(int id, const std::string& cpus) {
    put("sys/devices/system/node/node" + std::to_string(id) + "/cpulist", cpus + "\n");
  }
  void online(const std::string& nodes) { put("sys/devices/system/node/online", nodes + "\n"); }

  // The nodes' ids and CPUs.
  std::map<int, std::vector<int>> nodes(const std::vector<int>& allowed) const {
    std::map<int, std::vector<int>> found;
    for (const NumaNode& n : numa_nodes(allowed, root_.path())) found[n.id] = n.cpus;
    return found;
  }
  std::string shares(int threads, const std::vector<int>& allowed) const {
    return NodeShares(threads, numa_nodes(allowed, root_.path())).describe();
  }
  using Nodes = std::map<int, std::vector<int>>;
};

TEST_F(Numa, NothingIsKnownWithoutFiles) {
  EXPECT_THAT(nodes({0, 1}), IsEmpty());
  EXPECT_EQ(shares(16, cpus_between(0, 15)), "one memory node");
}

TEST_F(Numa, OneNode) {
  online("0");
  node(0, "0-15");
  EXPECT_EQ(nodes({0, 3}), (Nodes{{0, {0, 3}}}));
  EXPECT_EQ(shares(16, cpus_between(0, 15)), "one memory node");
}

TEST_F(Numa, TwoNodesOfEight) {
  online("0-1");
  node(0, "0-7");
  node(1, "8-15");
  const std::vector<int> all = cpus_between(0, 15);
  EXPECT_EQ(nodes(all), (Nodes{{0, cpus_between(0, 7)}, {1, cpus_between(8, 15)}}));
  EXPECT_EQ(shares(16, all), "2 memory nodes: threads 0 to 7 on node 0, 8 to 15 on node 1");
  EXPECT_EQ(shares(10, all), "2 memory nodes: threads 0 to 4 on node 0, 5 to 9 on node 1");
  EXPECT_EQ(shares(9, all), "2 memory nodes: threads 0 to 3 on node 0, 4 to 8 on node 1");
  EXPECT_EQ(shares(40, all), "2 memory nodes: threads 0 to 19 on node 0, 20 to 39 on node 1");
  EXPECT_EQ(shares(1, all), "one memory node");
}

TEST_F(Numa, ListsWithGaps) {  // two threads of a core are numbered far apart
  online("0,2");
  node(0, "0-3,8-11");
  node(2, "4-7,12,13-15");
  EXPECT_EQ(nodes(cpus_between(0, 15)),
            (Nodes{{0, {0, 1, 2, 3, 8, 9, 10, 11}}, {2, {4, 5, 6, 7, 12, 13, 14, 15}}}));
  EXPECT_EQ(shares(16, cpus_between(0, 15)),
            "2 memory nodes: threads 0 to 7 on node 0, 8 to 15 on node 2");
}

TEST_F(Numa, ACpusetOfAllOfOneNodeAndHalfOfAnother) {
  online("0-1");
  node(0, "0-7");
  node(1, "8-15");
  const std::vector<int> allowed = cpus_between(4, 15);
  EXPECT_EQ(nodes(allowed), (Nodes{{0, {4, 5, 6, 7}}, {1, cpus_between(8, 15)}}));
  EXPECT_EQ(shares(12, allowed), "2 memory nodes: threads 0 to 3 on node 0, 4 to 11 on node 1");
  EXPECT_EQ(shares(8, cpus_between(8, 15)), "one memory node");
}

TEST_F(Numa, NodesWithoutCpusAreLeftOut) {  // memory alone, as of CXL cards
  online("0-2");
  node(0, "0-7");
  node(1, "");
  node(2, "8-15");
  EXPECT_EQ(shares(16, cpus_between(0, 15)),
            "2 memory nodes: threads 0 to 7 on node 0, 8 to 15 on node 2");
}

TEST_F(Numa, NodesWithoutMemoryCount) {  // the kernel gives their threads the nearest
  online("0-1");
  put("sys/devices/system/node/has_memory", "0\n");
  node(0, "0-7");
  node(1, "8-15");
  EXPECT_EQ(shares(16, cpus_between(0, 15)),
            "2 memory nodes: threads 0 to 7 on node 0, 8 to 15 on node 1");
}

TEST_F(Numa, OfflineCpusAndNodes) {
  online("0,3");
  node(0, "0-7");  // 2 and 3 are offline: not in the affinity mask
  node(1, "16-23");
  node(3, "8-15");
  const std::vector<int> allowed = {0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  EXPECT_EQ(shares(14, allowed), "2 memory nodes: threads 0 to 5 on node 0, 6 to 13 on node 3");
  // A CPU that no node has: the files are not those of this machine.
  EXPECT_THAT(nodes({0, 16}), IsEmpty());
}

TEST_F(Numa, ANodeThatGetsNoThreadIsNoPart) {
  online("0-1");
  node(0, "0");
  node(1, "1-63");
  EXPECT_EQ(shares(8, cpus_between(0, 63)), "one memory node");
  EXPECT_EQ(shares(64, cpus_between(0, 63)),
            "2 memory nodes: threads 0 to 0 on node 0, 1 to 63 on node 1");
}

TEST_F(Numa, OddTextMeansNothingIsKnown) {
  for (const char* text : {"", "x", "-", "0-", "-5--1", "0-2147483647", "99999999999999999999"}) {
    online(text);
    node(0, "0-7");
    EXPECT_LE(nodes(cpus_between(0, 7)).size(), 1u) << text;
    online("0");
    node(0, text);
    EXPECT_LE(nodes(cpus_between(0, 7)).size(), 1u) << text;
  }
  EXPECT_THAT(nodes({}), IsEmpty());
}

TEST(NodeShares, CoverWhatTheyDivide) {
  const NodeShares three(12, {{0, {0, 1}}, {1, {2, 3, 4, 5}}, {5, cpus_between(6, 11)}});
  ASSERT_EQ(three.parts().size(), 3u);
  EXPECT_EQ(three.begin(1200, 1), 200);
  EXPECT_EQ(three.begin(1200, 2), 600);
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{1000}, INT64_MAX}) {
    EXPECT_EQ(three.begin(n, 0), 0);
    EXPECT_LE(three.begin(n, 1), three.begin(n, 2));
    EXPECT_LE(three.begin(n, 2), n);
    EXPECT_EQ(three.begin(n, 3), n);
  }
  EXPECT_EQ(NodeShares().begin(7, 1), 7);
}

TEST(NodeShares, RanksBelongToPartsAndCpus) {
  const std::vector<NumaNode> nodes = {{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}};
  const NodeShares full(8, nodes);
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(full.part_of(rank), rank < 4 ? 0u : 1u);
  EXPECT_THAT(full.cpus_of(2), ElementsAre(4));
  EXPECT_THAT(full.cpus_of(4), ElementsAre(2));
  EXPECT_THAT(full.cpus_of(7), ElementsAre(7));
  const NodeShares half(4, nodes);  // which CPU of its node is left to the system
  EXPECT_THAT(half.cpus_of(1), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(half.cpus_of(2), ElementsAre(2, 3, 6, 7));
  EXPECT_THAT(NodeShares().cpus_of(3), IsEmpty());
}

TEST(NodeShares, SmallTeamsHaveOnePart) {
  EXPECT_EQ(ThreadTeam::nodes_for(ThreadTeam::kPinnedFrom - 1).parts().size(), 1u);
  EXPECT_EQ(ThreadTeam(2).nodes().describe(), "one memory node");
}

TEST(RunOn, MovesThisThreadAndBack) {
  const std::vector<int> before = allowed_cpus();
  {
    const std::vector<int> last(1, before.back());
    const RunOn one(last);
    EXPECT_EQ(allowed_cpus(), last);
  }
  EXPECT_EQ(allowed_cpus(), before);
  {
    const RunOn none({});
    const std::vector<int> no_such_cpus = {1022, 1023, -1, 5000};
    const RunOn refused(no_such_cpus);
    EXPECT_EQ(allowed_cpus(), before);
  }
  EXPECT_EQ(allowed_cpus(), before);
}

// The one thing about placement that any machine can show: pages come from a node that was asked
// for. Node 1 may not be there.
TEST(Interleave, PagesLieOnTheNodes) {
  const size_t bytes = size_t{8} << 20;
  const auto memory = map_huge_memory(bytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_FALSE(interleave(memory.get(), bytes, {}));
  const NodeShares shares(8, {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}});
  EXPECT_FALSE(interleave(memory.get(), 100, shares));
  if (!interleave(memory.get(), bytes, shares)) GTEST_SKIP() << "the system refuses";
  for (size_t i = 0; i < bytes; i += 4096) memory.get()[i] = std::byte{1};
#if defined(SYS_move_pages)
  for (size_t i = 0; i < bytes; i += size_t{1} << 20) {
    void* page = memory.get() + i;
    int node = -1;
    if (::syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0) != 0) {
      GTEST_SKIP() << "the system does not say where pages are";
    }
    EXPECT_THAT(node, testing::AnyOf(0, 1)) << i;
  }
#endif
}

TEST(Interleave, OddAddressesAndUnknownNodes) {
  const auto memory = map_huge_memory(1 << 20);
  const NodeShares shares(8, {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}});
  interleave(memory.get() + 100, 100000, shares);  // whole pages inside
  memory.get()[100] = std::byte{1};
  const NodeShares absent(8, {{900, {0, 1, 2, 3}}, {100000, {4, 5, 6, 7}}});
  EXPECT_FALSE(interleave(memory.get(), 1 << 20, absent));
}

}  // namespace
}  // namespace tidemill
