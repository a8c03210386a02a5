#include "tests/text/reply_styles.h"

#include "engine/base/json.h"

namespace oar_test {

const std::vector<StyledReply>& styled_replies() {
  static const std::vector<StyledReply> replies = {
      // ---- hermes ----
      {"hermes",
       "think",
       false,
       "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})"}}},
      {"hermes",
       "think",
       false,
       "<think>\nThe user asks, so I look.\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": "
       "\"get_weather\", \"arguments\": "
       "{\"city\": \"São \\\"Paulo\\\" </tool_call> {\", \"days\": "
       "3}}\n</tool_call>\n<tool_call>\n{\"arguments\": {\"query\": \"a\"}, "
       "\"name\": \"find\"}\n</tool_call>",
       "The user asks, so I look.",
       "Let me see.",
       {{"get_weather", R"({"city": "São \"Paulo\" </tool_call> {", "days": 3})"},
        {"find", R"({"query": "a"})"}}},
      {"hermes", "think", true, "I think.\n</think>\n\nHello.\n", "I think.", "Hello.\n", {}},
      {"hermes",
       "think",
       false,
       "\nHello, \n\n 1 < 2 <tool <b>x</b> \n",
       "",
       "\nHello, \n\n 1 < 2 <tool <b>x</b> \n",
       {}},
      {"hermes", "none", false, "<think>kept</think> a", "", "<think>kept</think> a", {}},
      // Arguments as a string, no arguments, the form of OpenAI's own messages, an array.
      {"hermes",
       "none",
       false,
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": "
       "\\\"\\u00e9\\n\\\"}\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call>"
       "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}},\"id\":7}</"
       "tool_call>"
       "<tool_call>[{\"name\":\"h\",\"arguments\":{\"a\":[1,{}]}}]</tool_call>",
       "",
       "",
       {{"f", "{\"a\": \"\u00e9\n\"}"}, {"now", "{}"}, {"g", "{}"}, {"h", R"({"a":[1,{}]})"}}},
      // No call after all; a call that is cut before its name; brackets that are missing; text behind a call.
      {"hermes",
       "none",
       false,
       "<tool_call>not a call</tool_call> and",
       "",
       "<tool_call>not a call</tool_call> and",
       {}},
      {"hermes", "none", false, "see <tool_call>\n{\"na", "", "see <tool_call>\n{\"na", {}},
      {"hermes",
       "none",
       false,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1\n</tool_call>\n Done. ",
       "",
       "Done.",
       {{"f", "{\"a\": 1\n"}}},
      {"hermes",
       "none",
       false,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b",
       "",
       "",
       {{"f", "{\"a\": \"b"}}},
      {"hermes",
       "think_response",
       true,
       "因为\n</think>\n\n\n<response>\n你好\n</response>\n",
       "因为",
       "你好",
       {}},
      {"hermes",
       "think_response",
       true,
       "hm\n</think>\n\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n",
       "hm",
       "",
       {{"now", "{}"}}},
      // ---- qwen3_coder and its like ----
      {"qwen3_coder",
       "none",
       false,
       "I will look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis "
       "\"x\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
       "</function>\n</tool_call>\n<tool_call>\n<function=find>\n<parameter=query>\nline 1\n\n<b> "
       "</para\n</parameter>\n<parameter=options>\n"
       "{\"deep\": [1, 2]}\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n</function>\n</tool_call>",
       "",
       "I will look.",
       {{"get_weather", R"({"city":"Paris \"x\"","days":3})"},
        {"find", R"({"query":"line 1\n\n<b> </para","options":{"deep": [1, 2]},"exact":true})"}}},
      {"qwen3_coder", "none", false, "<function=now>\n</function>\n</tool_call>", "", "", {{"now", "{}"}}},
      {"qwen3_coder", "none", false, "<tool_call>\nno function", "", "<tool_call>\nno function", {}},
      {"qwen3_coder",
       "none",
       false,
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
       "",
       "",
       {{"get_weather", "{\"city\":\"Par"}}},
      {"qwen3_coder",
       "none",
       false,
       "<tool_call>\n<function=other>\n<parameter=a>\n12\n</parameter>\n<parameter=b>\nx "
       "y\n</parameter>\n</function>\n</tool_call>",
       "",
       "",
       {{"other", R"({"a":12,"b":"x y"})"}}},
      {"seed_oss",
       "seed_oss",
       false,
       "<seed:think>\nhm\n</seed:think>\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</"
       "parameter>\n<parameter=days>2"
       "</parameter>\n</function>\n</seed:tool_call>",
       "hm",
       "",
       {{"get_weather", R"({"city":"Paris","days":2})"}}},
      {"minimax_m2",
       "think",
       true,
       "hm\n</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">San "
       "Francisco</parameter>\n</invoke>\n"
       "<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
       "hm",
       "",
       {{"get_weather", R"({"city":"San Francisco"})"}, {"now", "{}"}}},
      // ---- glm ----
      {"glm",
       "think",
       false,
       "\n<think>Look.</think>\nOne "
       "moment.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</"
       "arg_value>\n<arg_key>days</arg_key>\n"
       "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
       "Look.",
       "One moment.",
       {{"get_weather", R"({"city":"Paris","days":3})"}, {"now", "{}"}}},
      {"glm",
       "think",
       true,
       "a</think><tool_call>find<arg_key>query</arg_key><arg_value>x\n</arg_value><arg_key>options</arg_key>"
       "<arg_value>{\"a\":null}</arg_value></tool_call><tool_call>now</tool_call>",
       "a",
       "",
       {{"find", R"({"query":"x\n","options":{"a":null}})"}, {"now", "{}"}}},
      // ---- deepseek ----
      {"deepseek_v3",
       "think",
       true,
       "First.\n</"
       "think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"
       "\"city\": \"Paris\"}\n```"
       "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<"
       "｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "First.",
       "",
       {{"get_weather", R"({"city": "Paris"})"}, {"now", "{}"}}},
      {"deepseek_v31",
       "think",
       false,
       "Looking. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": "
       "\"｜<\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now"
       "<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       "Looking.",
       {{"get_weather", R"({"city": "｜<"})"}, {"now", "{}"}}},
      {"deepseek_v32",
       "think",
       true,
       "hm</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter "
       "name=\"query\" string=\"true\">12</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"options\" string=\"false\">{\"a\": "
       "1}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "hm",
       "",
       {{"find", R"({"query":"12","options":{"a": 1}})"}}},
      // ---- kimi ----
      {"kimi_k2",
       "think",
       false,
       "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_"
       "begin|>{\"city\": \"Beijing\"}"
       "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|"
       "tool_calls_section_end|>",
       "",
       "Sure.",
       {{"get_weather", R"({"city": "Beijing"})", "functions.get_weather:0"},
        {"now", "{}", "functions.now:1"}}},
      {"kimi_k2",
       "think",
       true,
       "I must look "
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_"
       "call_end|>"
       "<|tool_calls_section_end|>",
       "I must look",
       "",
       {{"now", "{}", "functions.now:0"}}},
      // ---- mistral ----
      {"mistral",
       "mistral",
       false,
       "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": "
       "\"call00001\"}, "
       "{\"name\": \"now\", \"arguments\": {}}]",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})"}, {"now", "{}"}}},
      {"mistral",
       "mistral",
       false,
       "[THINK]Hm.[/THINK]Let me see.[TOOL_CALLS]get_weather[ARGS]{\"city\": "
       "\"[TOOL_CALLS]\"}[TOOL_CALLS]now[ARGS]{}",
       "Hm.",
       "Let me see.",
       {{"get_weather", R"({"city": "[TOOL_CALLS]"})"}, {"now", "{}"}}},
      {"mistral",
       "none",
       false,
       "[TOOL_CALLS]get_weather[CALL_ID]call00001[ARGS]{\"city\": \"Paris\"}",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})", "call00001"}}},
      {"mistral", "none", false, "a [TOOL list", "", "a [TOOL list", {}},
      // ---- llama ----
      {"llama3_json",
       "none",
       false,
       "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"now\", "
       "\"parameters\": {}}",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})"}, {"now", "{}"}}},
      {"llama3_json",
       "none",
       false,
       "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}",
       "",
       "",
       {{"now", "{}"}}},
      // An answer in JSON is an answer.
      {"llama3_json",
       "none",
       false,
       "{\"name\": \"Bob\", \"age\": 3}",
       "",
       "{\"name\": \"Bob\", \"age\": 3}",
       {}},
      {"llama3_json", "none", false, "{\"a\": {\"b\": 1}}\n", "", "{\"a\": {\"b\": 1}}\n", {}},
      {"llama3_json", "none", false, "It is {\"name\": \"now\"}", "", "It is {\"name\": \"now\"}", {}},
      {"llama4_pythonic",
       "none",
       false,
       "<|python_start|>[get_weather(city='Par\\'is', days=3), now()]<|python_end|>",
       "",
       "",
       {{"get_weather", R"({"city":"Par'is","days":3})"}, {"now", "{}"}}},
      {"llama4_pythonic",
       "none",
       false,
       "[find(query=\"a, b)\\n\\u00e9\", options={'deep': [1, -2.5e3, None, (True,)], \"x\": {}}, "
       "exact=False)]",
       "",
       "",
       {{"find", R"({"query":"a, b)\né","options":{"deep":[1,-2.5e3,null,[true]],"x":{}},"exact":false})"}}},
      {"llama4_pythonic", "none", false, "[link](http://x) [1]", "", "[link](http://x) [1]", {}},
      {"pythonic",
       "none",
       false,
       "[get_weather(city=\"Paris\")]",
       "",
       "",
       {{"get_weather", R"({"city":"Paris"})"}}},
      {"pythonic",
       "none",
       false,
       "<|python_tag|>brave_search.call(query=\"x\")",
       "",
       "",
       {{"brave_search", R"({"query":"x"})"}}},
      // ---- harmony ----
      {"harmony",
       "harmony",
       false,
       "<|channel|>analysis<|message|>Need to use "
       "function.<|end|><|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
       "<|start|>assistant<|channel|>commentary to=functions.get_weather "
       "<|constrain|>json<|message|>{\"city\":\"Tokyo\"}<|call|>",
       "Need to use function.",
       "I look it up.",
       {{"get_weather", R"({"city":"Tokyo"})"}}},
      {"harmony",
       "harmony",
       false,
       "<|channel|>analysis<|message|>2 + 2 < 5.<|end|><|start|>assistant<|channel|>final<|message|>2 + 2 = "
       "4.<|return|>",
       "2 + 2 < 5.",
       "2 + 2 = 4.",
       {}},
      {"harmony",
       "harmony",
       false,
       " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
       "",
       "",
       {{"now", "{}"}}},
      {"harmony",
       "harmony",
       false,
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|"
       "start|>ass",
       "a\nb",
       "",
       {}},
      {"none", "harmony", false, "<|channel|>final<|message|>Hi \n", "", "Hi \n", {}},
      {"harmony", "harmony", false, "no header", "", "no header", {}},
      // ---- gemma ----
      {"gemma4",
       "gemma4",
       false,
       "<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:get_weather{city:<|\"|>Par\"is, "
       "{x}<|\"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>",
       "Hm.",
       "Yes.",
       {{"get_weather", R"({"city":"Par\"is, {x}","days":3})"}, {"now", "{}"}}},
      {"gemma4",
       "none",
       false,
       "<|tool_call>call:find{options:{deep:[1,<|\"|>a<|\"|>,{k:true}],y:{}},exact:false}<tool_call|>",
       "",
       "",
       {{"find", R"({"options":{"deep":[1,"a",{"k":true}],"y":{}},"exact":false})"}}},
      {"functiongemma",
       "none",
       false,
       "<start_function_call>call:get_weather{city:<escape>Tokyo<escape>,days:2}<end_function_call>",
       "",
       "",
       {{"get_weather", R"({"city":"Tokyo","days":2})"}}},
      // ---- granite, command, functionary ----
      {"granite",
       "none",
       false,
       "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"now\", "
       "\"arguments\": {}}]",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})"}, {"now", "{}"}}},
      {"granite",
       "think_response",
       false,
       "<think>Hm.</think><response>Hi there.</response>",
       "Hm.",
       "Hi there.",
       {}},
      {"command_r7b",
       "command_r7b",
       true,
       "I will look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
       "\"get_weather\", \"parameters\": "
       "{\"city\": \"Paris\"}}\n]<|END_ACTION|>",
       "I will look.",
       "",
       {{"get_weather", R"({"city": "Paris"})"}}},
      {"command_r7b",
       "command_r7b",
       true,
       "<|END_THINKING|><|START_RESPONSE|>Hello.<|END_RESPONSE|>",
       "",
       "Hello.",
       {}},
      {"functionary_v31",
       "none",
       false,
       "<function=get_weather>{\"city\": \"Paris\"}</function>",
       "",
       "",
       {{"get_weather", R"({"city": "Paris"})"}}},
  };
  return replies;
}

std::vector<oar::tools::Tool> sample_tools() {
  const auto list = oar::parse_json(R"([
    {"type":"function","function":{"name":"get_weather","description":"Current weather","parameters":{"type":"object",
      "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
    {"type":"function","function":{"name":"find","parameters":{"type":"object","properties":{"query":{"type":"string"},
      "options":{"type":"object"},"exact":{"type":"boolean"}}}}},
    {"type":"function","function":{"name":"now"}}])",
                                    "tools");
  return *oar::tools::read_tools(list->get_array(), "tools");
}

std::shared_ptr<const oar::ReplyFormat> format_of(const StyledReply& reply) {
  auto format = std::make_shared<oar::ReplyFormat>();
  format->calls = *oar::tools::find_tool_style(reply.tool_style, {});
  format->reasoning = *oar::tools::find_reasoning_style(reply.reasoning_style, {});
  format->in_reasoning = reply.in_reasoning;
  if (format->calls) format->tools = sample_tools();
  return format;
}

}  // namespace oar_test
