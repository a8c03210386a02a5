// Which processors share which memory. A page lies on the node of the thread that first writes it. Weights
// are packed by the workers that will read them: a pool divides the rows of a weight among its workers in
// order, at load as in every step. So all it takes is that a worker stays on its node. On a machine with one
// node, nothing is different.
//
// What it is not: weights read in place from a file lie where the page cache put them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace oar {

struct NumaNode {
  int id = 0;
  std::vector<int> processors;  // ascending, never empty
};

// Linux's notation of processors, "0-3,8,10-11"; what cannot be read ends the list.
std::vector<int> parse_processor_list(std::string_view text);

// Processors in this process's affinity mask, ascending.
std::vector<int> allowed_processors();

// The nodes that have some of the `allowed` processors, by id, with these. One node with all of them when the
// system does not say. `root`: another folder than the system's, for tests.
std::vector<NumaNode> numa_nodes(std::span<const int> allowed,
                                 const std::string& root = "/sys/devices/system/node");

// Places of `workers` workers among all processors of the nodes, node after node: ascending, evenly spread,
// so that each node gets workers in proportion to its processors.
struct WorkerPlace {
  size_t node;    // index into nodes
  int processor;  // where a pinned worker runs
};
std::vector<WorkerPlace> place_workers(std::span<const NumaNode> nodes, int workers);

}  // namespace oar
