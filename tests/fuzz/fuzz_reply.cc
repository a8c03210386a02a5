// Any text as a model's reply, in any style: no crash, and what comes out byte by byte is what comes out
// whole. The first bytes choose: style of calls, style of reasoning, flags.
#include <cstdlib>
#include <string>

#include "engine/base/json.h"
#include "engine/text/tools/reply_parser.h"
#include "tests/fuzz/target.h"

namespace {

struct Reply {
  std::string content, reasoning;
  std::vector<oar::ToolCallDelta> calls;

  void add(const oar::ReplyDelta& d) {
    content += d.content;
    reasoning += d.reasoning;
    for (const oar::ToolCallDelta& call : d.calls) {
      if (!call.name.empty()) {
        if (call.index != static_cast<int32_t>(calls.size())) std::abort();
        calls.push_back(call);
      } else {
        if (call.index + 1 != static_cast<int32_t>(calls.size())) std::abort();
        calls.back().arguments += call.arguments;
      }
    }
  }
  bool operator==(const Reply& o) const {
    if (content != o.content || reasoning != o.reasoning || calls.size() != o.calls.size()) return false;
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto &a = calls[i], &b = o.calls[i];
      if (a.id != b.id || a.name != b.name || a.arguments != b.arguments) return false;
    }
    return true;
  }
};

Reply read(const std::shared_ptr<const oar::ReplyFormat>& format, std::string_view text, size_t piece) {
  oar::ReplyParser parser(format);
  Reply out;
  for (size_t i = 0; i < text.size(); i += piece) {
    oar::ReplyDelta d;
    parser.push(text.substr(i, piece), d);
    out.add(d);
  }
  oar::ReplyDelta d;
  parser.finish(d);
  out.add(d);
  return out;
}

const std::vector<oar::tools::Tool>& offered() {
  static const auto tools = [] {
    const auto list =
        boost::json::parse(R"([{"type":"function","function":{"name":"f","parameters":{"properties":{
      "s":{"type":"string"},"n":{"type":["string","null"]},"i":{"type":"integer"}}}}}])");
    return *oar::tools::read_tools(list.get_array(), "tools");
  }();
  return tools;
}

}  // namespace

OAR_FUZZ_TARGET(reply) {
  if (size < 3) return 0;
  const auto styles = oar::tools::tool_styles();
  const auto reasonings = oar::tools::reasoning_styles();
  auto format = std::make_shared<oar::ReplyFormat>();
  if (const size_t i = data[0] % (styles.size() + 1); i < styles.size()) format->calls = &styles[i];
  if (const size_t i = data[1] % (reasonings.size() + 1); i < reasonings.size())
    format->reasoning = &reasonings[i];
  format->parallel_calls = data[2] & 1;
  format->in_reasoning = data[2] & 2;
  format->show_reasoning = !(data[2] & 4);
  format->tools = offered();
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  const Reply whole = read(format, text, size);
  if (!(read(format, text, 1) == whole) || !(read(format, text, 7) == whole)) std::abort();
  return 0;
}
