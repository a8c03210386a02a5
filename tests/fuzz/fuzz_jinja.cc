// Any text as a chat template: a parse error, or a render that ends within its limits. The conversation is
// fixed and holds every JSON type, so a template can reach all operations on it.
#include <cstdlib>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/jinja/value.h"
#include "engine/text/utf8.h"
#include "tests/fuzz/target.h"

namespace {

const boost::json::value& conversation() {
  static const boost::json::value v = boost::json::parse(R"([
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": [{"type": "text", "text": "  Grüße, 世界 <b>&amp;</b>\n"}, {"type": "image"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
      "function": {"name": "f", "arguments": {"city": "Paris", "n": [1, -2.5, 1e300, true, null, {}]}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "{\"t\": 21}"}])");
  return v;
}

}  // namespace

OAR_FUZZ_TARGET(jinja) {
  const auto t = oar::ChatTemplate::parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!t.ok()) return 0;
  oar::jinja::Limits limits;
  limits.max_steps = 100'000;
  limits.max_memory = size_t{8} << 20;
  limits.max_output = size_t{1} << 20;
  oar::ChatTemplateOptions options;
  options.now = std::tm{};
  const auto& messages = conversation().get_array();
  const auto text = t->render(messages, &messages, options, limits);
  if (text.ok() && (text->text.size() > limits.max_output || !oar::is_valid_utf8(text->text))) std::abort();
  return 0;
}
