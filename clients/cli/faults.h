// What cannot be checked beforehand: a model file that is truncated, or whose disk fails, while it is mapped.
#pragma once

namespace oar::cli {

// From now on a SIGBUS in a mapped file ends the process with kFailure and a message that names the file and
// the remedy; any other SIGBUS ends it as it does by default. The whole process, because a kernel in the
// middle of a matrix has no way back: a supervisor restarts the server, which then loads whatever the file is
// by now.
void install_fault_handler();

}  // namespace oar::cli
