// Reads node<N>/cpulist below /sys/devices/system/node.
#include "kernels/numa.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace oar {

std::vector<int> parse_processor_list(std::string_view text) {
  constexpr int kMost = 1 << 16;  // hostile or not, no machine has more
  std::vector<int> list;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) break;
    int last = first;
    if (read.ptr < end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      if (read.ec != std::errc()) break;
    }
    if (first < 0 || last < first || last >= kMost) break;
    for (int p = first; p <= last; ++p) list.push_back(p);
    if (read.ptr == end || *read.ptr != ',') break;
    at = read.ptr + 1;
  }
  return list;
}

std::vector<int> allowed_processors() {
  std::vector<int> list;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
  for (int p = 0; p < CPU_SETSIZE; ++p) {
    if (CPU_ISSET(p, &set)) list.push_back(p);
  }
  return list;
}

std::vector<NumaNode> numa_nodes(std::span<const int> allowed, const std::string& root) {
  const auto read_list = [](const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return parse_processor_list(line);
  };
  std::vector<NumaNode> nodes;
  size_t found = 0;
  for (const int id : read_list(root + "/online")) {
    NumaNode node{id, {}};
    for (const int p : read_list(root + "/node" + std::to_string(id) + "/cpulist")) {
      if (std::find(allowed.begin(), allowed.end(), p) != allowed.end()) node.processors.push_back(p);
    }
    found += node.processors.size();
    if (!node.processors.empty()) nodes.push_back(std::move(node));
  }
  if (found != allowed.size()) nodes.clear();  // half a truth is none
  if (nodes.empty() && !allowed.empty()) nodes.push_back({0, {allowed.begin(), allowed.end()}});
  return nodes;
}

std::vector<WorkerPlace> place_workers(std::span<const NumaNode> nodes, int workers) {
  std::vector<WorkerPlace> all;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (const int p : nodes[n].processors) all.push_back({n, p});
  }
  std::vector<WorkerPlace> places;
  if (all.empty()) return places;
  const auto count = static_cast<size_t>(workers);
  for (size_t w = 0; w < count; ++w) places.push_back(all[(2 * w + 1) * all.size() / (2 * count)]);
  return places;
}

}  // namespace oar
