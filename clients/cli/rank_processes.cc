#include "clients/cli/rank_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "engine/base/format.h"

extern char** environ;

namespace oar::cli {
namespace {

constexpr const char* kVariable = "OAR_RANK";  // DESCRIPTOR:RANK, of processes that start() made

// Words that end in 0, as /proc has them.
std::vector<std::string> words_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> out;
  for (std::string word; std::getline(file, word, '\0');) out.push_back(word);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& w : words) out.push_back(w.data());
  out.push_back(nullptr);
  return out;
}

Result<int> start_rank(int rank, int fd) {
  std::vector<std::string> arguments = words_of("/proc/self/cmdline"), environment;
  for (char** e = environ; *e != nullptr; ++e) environment.emplace_back(*e);
  environment.push_back(cat(kVariable, "=", fd, ":", rank));
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, fd, fd);  // which keeps it open
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = 0;
  const int error = posix_spawn(&process, "/proc/self/exe", &files, nullptr, pointers(arguments).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    return unavailable(cat("--ranks: rank ", rank, " cannot be started: ", std::strerror(error)));
  return static_cast<int>(process);
}

}  // namespace

bool is_started_rank() { return std::getenv(kVariable) != nullptr; }

Result<std::unique_ptr<RankProcesses>> RankProcesses::start(int ranks) {
  std::unique_ptr<RankProcesses> out(new RankProcesses());
  if (const char* const told = std::getenv(kVariable); told != nullptr) {
    int fd = -1, rank = -1;
    if (std::sscanf(told, "%d:%d", &fd, &rank) != 2)
      return invalid_argument(cat(kVariable, " is '", told, "', which is for processes of --ranks alone"));
    OAR_ASSIGN(out->group_, Group::join(fd, rank));
    return out;
  }
  OAR_ASSIGN(out->group_, Group::create(ranks));
  for (int r = 1; r < ranks; ++r) {
    OAR_ASSIGN(const int process, start_rank(r, out->group_->fd()));
    out->processes_.push_back(process);
  }
  return out;
}

RankProcesses::~RankProcesses() {
  group_.reset();  // others that wait for this rank learn that it has left
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (const int process : processes_) {
    while (waitpid(process, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace oar::cli
