#include "clients/cli/faults.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/command.h"
#include "engine/tensor/mapped_file.h"

namespace oar::cli {
namespace {

// Only async-signal-safe calls from here on.
void say(const char* text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return;  // nobody to tell
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const char* path = mapped_file_at(info->si_addr);
  if (path == nullptr) {
    signal(number, SIG_DFL);  // the instruction runs again and ends the process
    return;
  }
  say("oar: ");
  say(path);
  say(" was truncated while it was in use, or its disk has failed. Replace models by renaming a new file "
      "over the "
      "old one, or load them with --no-mmap; restart the server.\n");
  _exit(kFailure);
}

}  // namespace

void install_fault_handler() {
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace oar::cli
