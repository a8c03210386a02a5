// Replies of every style, whole and cut at every byte, at every token, byte by byte: what is put together is
// always the same, and what the style's vendor means by it.
#include "engine/text/tools/reply_parser.h"

#include "engine/base/format.h"
#include "tests/support/catch.h"
#include "tests/text/reply_styles.h"

namespace {

using namespace oar_test;  // NOLINT

struct Reply {
  std::string content, reasoning;
  std::vector<oar::ToolCallDelta> calls;
  bool operator==(const Reply& o) const {
    if (content != o.content || reasoning != o.reasoning || calls.size() != o.calls.size()) return false;
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto &a = calls[i], &b = o.calls[i];
      if (a.index != b.index || a.id != b.id || a.name != b.name || a.arguments != b.arguments) return false;
    }
    return true;
  }
};

void add(const oar::ReplyDelta& d, Reply& out) {
  out.content += d.content;
  out.reasoning += d.reasoning;
  for (const oar::ToolCallDelta& call : d.calls) {
    if (!call.name.empty()) {
      REQUIRE(call.index == static_cast<int32_t>(out.calls.size()));
      out.calls.push_back(call);
      continue;
    }
    REQUIRE(call.index + 1 == static_cast<int32_t>(out.calls.size()));  // one call after the other
    CHECK(call.id.empty());
    out.calls.back().arguments += call.arguments;
  }
}

template <class Pieces>
Reply parse(const std::shared_ptr<const oar::ReplyFormat>& format, const Pieces& pieces) {
  oar::ReplyParser parser(format);
  Reply out;
  for (const auto& piece : pieces) {
    oar::ReplyDelta d;
    parser.push(piece, d);
    add(d, out);
  }
  oar::ReplyDelta d;
  parser.finish(d);
  add(d, out);
  CHECK(parser.calls() == static_cast<int32_t>(out.calls.size()));
  return out;
}

std::vector<std::string_view> cut(std::string_view text, size_t at) {
  return {text.substr(0, at), text.substr(at)};
}
std::vector<std::string_view> bytes(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < text.size(); ++i) out.push_back(text.substr(i, 1));
  return out;
}

// Equal as JSON where they are JSON, else as text: calls that were cut.
bool same_arguments(const std::string& a, const std::string& b) {
  const auto x = oar::parse_json(a, "a"), y = oar::parse_json(b, "b");
  return x.ok() && y.ok() ? *x == *y : a == b;
}

TEST_CASE("replies of every style say what they mean") {
  for (const StyledReply& r : styled_replies()) {
    INFO(r.tool_style << ", " << r.reasoning_style << ": " << r.text);
    const Reply whole = parse(format_of(r), std::vector<std::string_view>{r.text});
    CHECK(whole.content == r.content);
    CHECK(whole.reasoning == r.reasoning);
    REQUIRE(whole.calls.size() == r.calls.size());
    for (size_t i = 0; i < r.calls.size(); ++i) {
      CHECK(whole.calls[i].name == r.calls[i].name);
      INFO(whole.calls[i].arguments);
      CHECK(same_arguments(whole.calls[i].arguments, r.calls[i].arguments));
      CHECK(whole.calls[i].id == r.calls[i].id);
    }
  }
}

TEST_CASE("where a reply is cut into pieces has no influence") {
  for (const StyledReply& r : styled_replies()) {
    INFO(r.tool_style << ", " << r.reasoning_style << ": " << r.text);
    const auto format = format_of(r);
    const Reply whole = parse(format, std::vector<std::string_view>{r.text});
    CHECK(parse(format, bytes(r.text)) == whole);
    for (size_t at = 0; at <= r.text.size(); ++at) {
      INFO("cut at " << at);
      CHECK(parse(format, cut(r.text, at)) == whole);
    }
  }
}

TEST_CASE("a reply that ends anywhere is the same in pieces as whole") {
  for (const StyledReply& r : styled_replies()) {
    const auto format = format_of(r);
    for (size_t end = 0; end < r.text.size(); ++end) {
      const std::string_view text = std::string_view(r.text).substr(0, end);
      INFO(r.tool_style << ", " << r.reasoning_style << ": " << text);
      CHECK(parse(format, bytes(text)) == parse(format, std::vector<std::string_view>{text}));
    }
  }
}

TEST_CASE("every style on every other style's replies: nothing is lost to the cut") {
  for (const auto& style : oar::tools::tool_styles()) {
    for (StyledReply r : styled_replies()) {
      r.tool_style = style.name;
      INFO(r.tool_style << ", " << r.reasoning_style << ": " << r.text);
      const auto format = format_of(r);
      CHECK(parse(format, bytes(r.text)) == parse(format, std::vector<std::string_view>{r.text}));
    }
  }
}

TEST_CASE("without parallel calls a reply ends with its first") {
  for (const StyledReply& r : styled_replies()) {
    if (r.calls.size() < 2) continue;
    INFO(r.tool_style << ": " << r.text);
    auto format = std::make_shared<oar::ReplyFormat>(*format_of(r));
    format->parallel_calls = false;
    oar::ReplyParser parser(format);
    Reply out;
    oar::ReplyDelta d;
    parser.push(r.text, d);
    CHECK(parser.done());
    add(d, out);
    REQUIRE(out.calls.size() == 1);
    CHECK(same_arguments(out.calls[0].arguments, r.calls[0].arguments));
    CHECK(parse(std::shared_ptr<const oar::ReplyFormat>(format), bytes(r.text)) == out);
  }
}

TEST_CASE("half a marker behind a call is no text, and where calls alone are allowed nothing is") {
  for (const StyledReply& r : styled_replies()) {
    if (r.calls.empty() || !r.content.empty() || r.tool_style == "none") continue;
    auto format = std::make_shared<oar::ReplyFormat>(*format_of(r));
    format->only_calls = true;
    const std::string_view end = format->calls->call_end;
    const size_t ends = end.empty() ? std::string::npos : r.text.find(end);
    for (size_t cut = 0; cut < r.text.size(); ++cut) {
      const std::string_view text = std::string_view(r.text).substr(0, cut);
      INFO(r.tool_style << ", " << r.reasoning_style << ": " << text);
      const Reply alone = parse(std::shared_ptr<const oar::ReplyFormat>(format), bytes(text));
      CHECK(alone.content.empty());
      const Reply free = parse(format_of(r), bytes(text));
      CHECK(free.reasoning == alone.reasoning);
      REQUIRE(free.calls.size() == alone.calls.size());
      if (cut > ends && cut < ends + end.size()) CHECK(free.content.empty());
    }
  }
}

TEST_CASE("reasoning that is not wanted is dropped, and only that") {
  for (const StyledReply& r : styled_replies()) {
    auto format = std::make_shared<oar::ReplyFormat>(*format_of(r));
    format->show_reasoning = false;
    const Reply out =
        parse(std::shared_ptr<const oar::ReplyFormat>(format), std::vector<std::string_view>{r.text});
    CHECK(out.reasoning.empty());
    CHECK(out.content == r.content);
    CHECK(out.calls.size() == r.calls.size());
  }
}

// search_markers() takes the first of several; that is well-defined while none begins another.
TEST_CASE("no marker of a style is the beginning of another") {
  for (const auto& style : oar::tools::tool_styles()) {
    for (const std::string_view a : {style.section_begin, style.call_begin}) {
      for (const std::string_view b : {style.section_begin, style.call_begin}) {
        INFO(style.name << ": " << a << " " << b);
        CHECK((a.empty() || b.empty() || a == b || !b.starts_with(a)));
      }
    }
  }
}

TEST_CASE("styles are found by name and by what a template writes") {
  using oar::tools::find_reasoning_style, oar::tools::find_tool_style;
  CHECK((*find_tool_style("auto", "... <tool_call>\\n ..."))->name == "hermes");
  CHECK((*find_tool_style("", "<tool_call> <function= <parameter="))->name == "qwen3_coder");
  CHECK(*find_tool_style("auto", "{{ messages }}") == nullptr);
  CHECK(*find_tool_style("none", "<tool_call>") == nullptr);
  const auto wrong = find_tool_style("hermse", "");
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.status().message().find("tool-parser is hermse; it is one of auto, none, harmony") == 0);
  CHECK((*find_reasoning_style("auto", "split('</think>')"))->name == "think");
  CHECK_FALSE(find_reasoning_style("thnik", "").ok());
}

TEST_CASE("tools are checked") {
  const auto read = [](const char* json) {
    return oar::tools::read_tools(oar::parse_json(json, "tools")->get_array(), "tools").status();
  };
  CHECK(read(R"([{"type":"function","function":{"name":"f"}}])").ok());
  const std::pair<const char*, const char*> wrong[] = {
      {R"([1])", "tools[0] must be an object"},
      {R"([{"type":"custom"}])", "tools[0].type must be"},
      {R"([{"type":"function"}])", "tools[0].function must be"},
      {R"([{"type":"function","function":{}}])", "tools[0].function.name is missing"},
      {R"([{"type":"function","function":{"name":"a b"}}])",
       "tools[0].function.name must be 1 to 256 letters"},
      {R"([{"type":"function","function":{"name":"f","parameters":[]}}])",
       "tools[0].function.parameters must be"},
      {R"([{"type":"function","function":{"name":"f","strict":1}}])", "tools[0].function.strict must be"},
      {R"([{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])",
       "tools[1].function.name is f, as of"},
  };
  for (const auto& [json, message] : wrong) {
    INFO(json);
    CHECK(read(json).message().find(message) == 0);
  }
}

TEST_CASE("ids of calls") {
  const std::string a = oar::make_call_id(oar::tools::CallIds::kRandom);
  CHECK(a.size() == 29);
  CHECK(a.starts_with("call_"));
  CHECK(a != oar::make_call_id(oar::tools::CallIds::kRandom));
  CHECK(oar::make_call_id(oar::tools::CallIds::kNine).size() == 9);
}

}  // namespace
