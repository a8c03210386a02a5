// The styles. Facts are from the vendors' chat templates and model cards.
#include "engine/text/tools/style.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::tools {
namespace {

// Most telling signs first: a template is of the first style whose signs it has.
constexpr ToolStyle kToolStyles[] = {
    // gpt-oss. <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    {.name = "harmony",
     .signs = {"<|channel|>", "<|message|>"},
     .syntax = CallSyntax::kHarmony,
     .end_tokens = {"<|call|>", "<|return|>"}},
    // Kimi K2. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}
    {.name = "kimi_k2",
     .signs = {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
     .syntax = CallSyntax::kNamedJson,
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call_begin = "<|tool_call_begin|>",
     .call_end = "<|tool_call_end|>",
     .name_end = "<|tool_call_argument_begin|>",
     .ends_reasoning = true,
     .numbered = true},
    // DeepSeek V3.2. <｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>
    {.name = "deepseek_v32",
     .signs = {"｜DSML｜", "invoke"},
     .syntax = CallSyntax::kParameters,
     .section_begin = "<｜DSML｜function_calls>",
     .section_end = "</｜DSML｜function_calls>",
     .call_begin = "<｜DSML｜invoke name=\"",
     .call_end = "</｜DSML｜invoke>",
     .name_end = "\">",
     .key_begin = "<｜DSML｜parameter name=\"",
     .key_end = "\"",
     .value_begin = ">",
     .value_end = "</｜DSML｜parameter>",
     .between = "\n",
     .lines = true},
    // DeepSeek V3 and R1.
    // <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{...}\n```<｜tool▁call▁end｜>
    {.name = "deepseek_v3",
     .signs = {"<｜tool▁calls▁begin｜>", "```json"},
     .syntax = CallSyntax::kNamedJson,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .name_begin = "<｜tool▁sep｜>",
     .name_end = "\n",
     .between = "\n",
     .fenced = true},
    // DeepSeek V3.1. <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
    {.name = "deepseek_v31",
     .signs = {"<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"},
     .syntax = CallSyntax::kNamedJson,
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .name_end = "<｜tool▁sep｜>"},
    // GLM 4.5 and later. <tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>
    {.name = "glm",
     .signs = {"<arg_key>", "<arg_value>"},
     .syntax = CallSyntax::kParameters,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .name_end = "\n",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>",
     .between = "\n",
     .lines = true,
     .end_tokens = {"<|observation|>"}},
    // Seed-OSS: Qwen3-Coder's notation between other markers.
    {.name = "seed_oss",
     .signs = {"<seed:tool_call>", "<function="},
     .syntax = CallSyntax::kParameters,
     .section_begin = "<seed:tool_call>",
     .section_end = "</seed:tool_call>",
     .call_begin = "<function=",
     .call_end = "</function>",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .between = "\n",
     .lines = true},
    // MiniMax M2. <minimax:tool_call><invoke name="f"><parameter name="a">x</parameter></invoke>
    {.name = "minimax_m2",
     .signs = {"<minimax:tool_call>", "<invoke"},
     .syntax = CallSyntax::kParameters,
     .section_begin = "<minimax:tool_call>",
     .section_end = "</minimax:tool_call>",
     .call_begin = "<invoke name=\"",
     .call_end = "</invoke>",
     .name_end = "\">",
     .key_begin = "<parameter name=\"",
     .key_end = "\">",
     .value_end = "</parameter>",
     .between = "\n",
     .lines = true},
    // Gemma 4. <|tool_call>call:f{a:<|"|>x<|"|>,n:1}<tool_call|>
    {.name = "gemma4",
     .signs = {"<|tool_call>", "<tool_call|>"},
     .syntax = CallSyntax::kBraces,
     .call_begin = "<|tool_call>",
     .call_end = "<tool_call|>",
     .name_begin = "call:",
     .quote = "<|\"|>",
     .ends_reasoning = true,
     .end_tokens = {"<|tool_response>"}},
    // FunctionGemma. <start_function_call>call:f{a:<escape>x<escape>}<end_function_call>
    {.name = "functiongemma",
     .signs = {"<start_function_call>", "<escape>"},
     .syntax = CallSyntax::kBraces,
     .call_begin = "<start_function_call>",
     .call_end = "<end_function_call>",
     .name_begin = "call:",
     .quote = "<escape>",
     .end_tokens = {"<start_function_response>"}},
    // Command R7B and later. <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]
    {.name = "command_r7b",
     .signs = {"<|START_ACTION|>", "<|END_ACTION|>"},
     .syntax = CallSyntax::kJson,
     .call_begin = "<|START_ACTION|>",
     .call_end = "<|END_ACTION|>",
     .members = "\"tool_call_id\": \"0\", ",
     .name_key = "tool_name",
     .arguments_key = "parameters",
     .array = true},
    // Mistral since version 11 of its tokenizer. [TOOL_CALLS]f[ARGS]{...}
    {.name = "mistral",
     .signs = {"[TOOL_CALLS]", "[ARGS]"},
     .syntax = CallSyntax::kNamedJson,
     .call_begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .id_begin = "[CALL_ID]",
     .ids = CallIds::kNine},
    // Mistral before. [TOOL_CALLS][{"name": "f", "arguments": {...}}]
    {.name = "mistral_v3",
     .signs = {"[TOOL_CALLS]", ""},
     .syntax = CallSyntax::kNamedJson,
     .call_begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .ids = CallIds::kNine,
     .array = true},
    // Qwen3-Coder. <tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>
    {.name = "qwen3_coder",
     .signs = {"<function=", "<parameter="},
     .syntax = CallSyntax::kParameters,
     .section_begin = "<tool_call>",
     .section_end = "</tool_call>",
     .call_begin = "<function=",
     .call_end = "</function>",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .value_lines = true,
     .between = "\n",
     .lines = true},
    // Functionary 3.1. <function=f>{...}</function>
    {.name = "functionary_v31",
     .signs = {"<function=", "</function>"},
     .syntax = CallSyntax::kNamedJson,
     .call_begin = "<function=",
     .call_end = "</function>",
     .name_end = ">",
     .end_tokens = {"<|eom_id|>"}},
    // Granite 3. <|tool_call|>[{"name": "f", "arguments": {...}}]
    {.name = "granite",
     .signs = {"<|tool_call|>", ""},
     .syntax = CallSyntax::kJson,
     .call_begin = "<|tool_call|>",
     .array = true},
    // Hermes, Qwen 2.5 and 3, ERNIE 4.5 and X1, Granite 4, SmolLM3 and many more.
    // <tool_call>\n{"name": "f", "arguments": {...}}\n</tool_call>
    {.name = "hermes",
     .signs = {"<tool_call>", ""},
     .syntax = CallSyntax::kJson,
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .inside = "\n",
     .between = "\n"},
    // Llama 4. <|python_start|>[f(a="x")]<|python_end|>, often without the markers.
    {.name = "llama4_pythonic",
     .signs = {"<|header_start|>", "func_name1("},
     .syntax = CallSyntax::kPythonic,
     .call_begin = "<|python_start|>",
     .call_end = "<|python_end|>",
     .bare = true,
     .end_tokens = {"<|eom|>"}},
    // Llama 3.1 to 3.3, and 4 with its other template. {"name": "f", "parameters": {...}}
    {.name = "llama3_json",
     .signs = {"{\"name\": function name, \"parameters\":", ""},
     .syntax = CallSyntax::kJson,
     .call_begin = "<|python_tag|>",
     .bare = true,
     .between = "; ",
     .arguments_key = "parameters",
     .end_tokens = {"<|eom_id|>", "<|eom|>"}},
    // Llama 3.2 as its model card has it, Gemma 3 when a prompt asks for it.
    {.name = "pythonic",
     .signs = {"func_name1(", ""},
     .syntax = CallSyntax::kPythonic,
     .call_begin = "<|python_tag|>",
     .bare = true,
     .end_tokens = {"<|eom_id|>"}},
};

constexpr ReasoningStyle kReasoningStyles[] = {
    {.name = "harmony", .begin = "<|channel|>", .end = "<|message|>", .harmony = true},
    {.name = "seed_oss", .begin = "<seed:think>", .end = "</seed:think>"},
    {.name = "mistral", .begin = "[THINK]", .end = "[/THINK]"},
    {.name = "command_r7b",
     .begin = "<|START_THINKING|>",
     .end = "<|END_THINKING|>",
     .answer_begin = "<|START_RESPONSE|>",
     .answer_end = "<|END_RESPONSE|>"},
    {.name = "command",
     .begin = "<|START_THINKING|>",
     .end = "<|END_THINKING|>",
     .answer_begin = "<|START_TEXT|>",
     .answer_end = "<|END_TEXT|>"},
    {.name = "gemma4", .begin = "<|channel>thought", .end = "<channel|>"},
    {.name = "kimi_vl", .begin = "◁think▷", .end = "◁/think▷"},
    // ERNIE 4.5 and X1, Granite 3: the answer has markers too.
    {.name = "think_response",
     .begin = "<think>",
     .end = "</think>",
     .answer_begin = "<response>",
     .answer_end = "</response>"},
    // DeepSeek, Qwen 3, QwQ, GLM, Kimi K2, SmolLM3 and many more.
    {.name = "think", .begin = "<think>", .end = "</think>"},
};

template <class Style, class Fits>
Result<const Style*> find(std::span<const Style> styles, std::string_view name, std::string_view option,
                          Fits fits) {
  if (name == "none") return nullptr;
  const bool by_template = name.empty() || name == "auto";
  const auto it = std::find_if(styles.begin(), styles.end(),
                               [&](const Style& s) { return by_template ? fits(s) : s.name == name; });
  if (it != styles.end()) return &*it;
  if (by_template) return nullptr;
  std::string names;
  for (const Style& s : styles) names += cat(names.empty() ? "" : ", ", s.name);
  return invalid_argument(cat(option, " is ", name, "; it is one of auto, none, ", names),
                          std::string(option));
}

}  // namespace

std::span<const ToolStyle> tool_styles() { return kToolStyles; }
std::span<const ReasoningStyle> reasoning_styles() { return kReasoningStyles; }

Result<const ToolStyle*> find_tool_style(std::string_view name, std::string_view chat_template) {
  return find(tool_styles(), name, "tool-parser", [&](const ToolStyle& s) {
    return std::all_of(s.signs.begin(), s.signs.end(),
                       [&](std::string_view sign) { return chat_template.find(sign) != sign.npos; });
  });
}

// The closing tag is the sign: templates cut reasoning out of earlier turns, and not all write the opening
// one.
Result<const ReasoningStyle*> find_reasoning_style(std::string_view name, std::string_view chat_template) {
  return find(reasoning_styles(), name, "reasoning-parser", [&](const ReasoningStyle& s) {
    const auto has = [&](std::string_view sign) { return chat_template.find(sign) != sign.npos; };
    return has(s.end) && (!s.harmony || has(s.begin)) && has(s.answer_end);
  });
}

}  // namespace oar::tools
