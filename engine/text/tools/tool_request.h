// Which tools a request offers and how they may be called: `tools`, `tool_choice`, `parallel_tool_calls` as
// OpenAI's clients send them, whatever carried them here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/tools/tool_set.h"

namespace oar::tools {

struct ToolRequest {
  enum class Mode {
    kNone,      // no call is looked for, and the model does not hear of the tools
    kAuto,      // the model decides
    kRequired,  // at least one call
  };
  Mode mode = Mode::kNone;
  json::array definitions;           // what the chat template gets; of allowed_tools only those
  std::vector<Tool> tools;           // the same, read
  std::optional<std::string> named;  // the one tool that must be called
  bool parallel = true;              // several calls in one reply

  bool active() const { return mode != Mode::kNone; }
  // Whether what the model may write must be constrained: it must call, or call with arguments as declared.
  bool constrained() const;
};

// Null for what was not sent. INVALID_ARGUMENT names the field: tools, tool_choice and their parts.
Result<ToolRequest> read_tool_request(const json::value* tools, const json::value* tool_choice,
                                      bool parallel_tool_calls);

}  // namespace oar::tools
