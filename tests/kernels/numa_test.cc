// Where workers go on machines of several nodes, told by folders as the system has them.
#include <filesystem>
#include <fstream>

#include "kernels/numa.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

using Ints = std::vector<int>;

class FakeSystem {
 public:
  FakeSystem() {
    std::string pattern = (std::filesystem::temp_directory_path() / "oar-numa-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(root_) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

Ints nodes_of(const std::vector<WorkerPlace>& places) {
  Ints out;
  for (const WorkerPlace& p : places) out.push_back(static_cast<int>(p.node));
  return out;
}
Ints processors_of(const std::vector<WorkerPlace>& places) {
  Ints out;
  for (const WorkerPlace& p : places) out.push_back(p.processor);
  return out;
}

}  // namespace

TEST_CASE("numa: lists of processors") {
  CHECK(parse_processor_list("0") == Ints{0});
  CHECK(parse_processor_list("0-3,8,10-11") == Ints{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_processor_list("2,5\n") == Ints{2, 5});
  CHECK(parse_processor_list("").empty());
  CHECK(parse_processor_list("x").empty());
  CHECK(parse_processor_list("1,x") == Ints{1});
  CHECK(parse_processor_list("3-1").empty());
  CHECK(parse_processor_list("-4").empty());
  CHECK(parse_processor_list("1-").empty());
  CHECK(parse_processor_list("0-99999999999").empty());
  CHECK(parse_processor_list("0-2000000000").empty());
}

TEST_CASE("numa: nodes are those of the processors that may be used") {
  FakeSystem system;
  system.write("online", "0-2");
  system.write("node0/cpulist", "0-1,4-5");
  system.write("node1/cpulist", "2-3,6-7");
  system.write("node2/cpulist", "");  // memory without processors
  const Ints all{0, 1, 2, 3, 4, 5, 6, 7}, some{1, 2, 6}, one{3}, unknown{0, 99};
  auto nodes = numa_nodes(all, system.root());
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[0].id == 0);
  CHECK(nodes[0].processors == Ints{0, 1, 4, 5});
  CHECK(nodes[1].processors == Ints{2, 3, 6, 7});
  nodes = numa_nodes(some, system.root());
  REQUIRE(nodes.size() == 2);
  CHECK(nodes[0].processors == Ints{1});
  CHECK(nodes[1].processors == Ints{2, 6});
  nodes = numa_nodes(one, system.root());
  REQUIRE(nodes.size() == 1);
  CHECK(nodes[0].id == 1);
  // A system that knows only some of them, or says nothing: one node.
  for (const std::string& root : {system.root(), system.root() + "/absent"}) {
    nodes = numa_nodes(unknown, root);
    REQUIRE(nodes.size() == 1);
    CHECK(nodes[0].processors == unknown);
  }
  CHECK(numa_nodes({}, system.root()).empty());
}

TEST_CASE("numa: workers are spread in proportion, node after node") {
  const std::vector<NumaNode> two{{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}},
      uneven{{0, {0, 1, 2, 3, 4, 5}}, {3, {6, 7}}};
  CHECK(nodes_of(place_workers(two, 8)) == Ints{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(processors_of(place_workers(two, 8)) == Ints{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(nodes_of(place_workers(two, 4)) == Ints{0, 0, 1, 1});
  CHECK(nodes_of(place_workers(two, 2)) == Ints{0, 1});
  CHECK(nodes_of(place_workers(two, 16)) == Ints{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(nodes_of(place_workers(uneven, 4)) == Ints{0, 0, 0, 1});
  CHECK(nodes_of(place_workers(uneven, 8)) == Ints{0, 0, 0, 0, 0, 0, 1, 1});
  CHECK(place_workers({}, 3).empty());
}

TEST_CASE("numa: this machine") {
  const Ints allowed = allowed_processors();
  REQUIRE(!allowed.empty());
  size_t processors = 0;
  for (const NumaNode& n : numa_nodes(allowed)) processors += n.processors.size();
  CHECK(processors == allowed.size());
}
