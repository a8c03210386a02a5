// What a person or a pipe says, message by message: on a terminal with editing, a history across runs and
// pasted blocks as one message; otherwise one message per line.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace oar::cli {

class LineInput {
 public:
  enum class End { kMessage, kInterrupt, kEof };
  virtual ~LineInput() = default;
  // Blocks. kInterrupt takes the flag back; what was typed so far is dropped.
  virtual End next(std::string& message) = 0;
};

// Lines of standard input. Polls `interrupted`, so that it is seen whichever thread got the signal.
std::unique_ptr<LineInput> piped_lines(std::atomic<bool>& interrupted);

// A terminal on standard input, the prompt on standard error. Alt-Enter, or \ at the end of a line, goes on
// in the next line. `history` is the file that keeps what was said, readable by its owner alone; empty: none.
// Null when the terminal cannot be driven. Sets the locale's LC_CTYPE, for characters beyond ASCII.
std::unique_ptr<LineInput> edited_lines(std::atomic<bool>& interrupted, const std::string& history);

// $XDG_STATE_HOME/oar/history, or ~/.local/state/oar/history; empty without a home.
std::string default_history();

}  // namespace oar::cli
