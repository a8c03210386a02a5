// The processes of a Group (engine/tensor/group.h): this program again with the same arguments, once a rank.
// The first starts the others and waits for them at its end; they find their rank in the environment.
#pragma once

#include <memory>
#include <vector>

#include "engine/tensor/group.h"

namespace oar::cli {

class RankProcesses {
 public:
  // In the first process starts `ranks` - 1 others; in those, joins the group. To be called once the
  // process's signals are watched (signals.h), and before the work begins. UNAVAILABLE where the system
  // starts no process.
  static Result<std::unique_ptr<RankProcesses>> start(int ranks);
  // The first process waits for the others to end; those that do not within some seconds are killed.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  const std::shared_ptr<Group>& group() const { return group_; }

 private:
  RankProcesses() = default;
  std::shared_ptr<Group> group_;
  std::vector<int> processes_;
};

// Whether this process was started by another one's RankProcesses.
bool is_started_rank();

}  // namespace oar::cli
