// Replies as models write them, one or more of each style, with what they say: the examples that vendors
// publish, and the corners of each notation.
#pragma once

#include <string>
#include <vector>

#include "engine/text/tools/reply_parser.h"

namespace oar_test {

struct ExpectedCall {
  std::string name, arguments, id;  // arguments as JSON; id only where the model writes one
};
struct StyledReply {
  std::string tool_style, reasoning_style;  // "none" for neither
  bool in_reasoning = false;                // the prompt has ended with the opening marker
  std::string text;
  std::string reasoning, content;
  std::vector<ExpectedCall> calls;
};

const std::vector<StyledReply>& styled_replies();
// get_weather(city: string, days: integer), find(query: string, options: object, exact: boolean), now().
std::vector<oar::tools::Tool> sample_tools();
std::shared_ptr<const oar::ReplyFormat> format_of(const StyledReply& reply);

}  // namespace oar_test
