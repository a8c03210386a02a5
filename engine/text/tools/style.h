// How models write what is not plain text: tool calls and reasoning. Vendors differ in markers and in the
// notation between them; each way is one row of a table here, and one parser reads them all (reply_parser.h).
//
// Which row is a model's own is said by its chat template, which writes earlier calls in the same way.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::tools {

// What stands between a call's markers.
enum class CallSyntax {
  kJson,        // {"name": ..., "arguments": {...}}, or an array of such
  kNamedJson,   // a name, then a JSON object; or what kJson has
  kParameters,  // a name, then each argument between markers of its own
  kPythonic,    // [f(a=1, b='x'), g()]
  kBraces,      // name{key:value}, strings between markers
  kHarmony,     // messages with channels and recipients, each closed by a token
};

// How calls are identified when the model does not say.
enum class CallIds {
  kRandom,  // call_ and 24 letters and digits
  kNine,    // nine letters and digits: Mistral's templates refuse others
};

struct ToolStyle {
  std::string_view name;
  std::array<std::string_view, 2> signs;  // a template of this style has them all
  CallSyntax syntax = CallSyntax::kJson;
  std::string_view section_begin, section_end;  // around all calls; empty: there is no section
  std::string_view call_begin, call_end;        // around one
  std::string_view name_begin, name_end;        // where the name is not all there is up to the arguments
  std::string_view id_begin;                    // kNamedJson: between the name and the model's own id
  std::string_view key_begin, key_end, value_begin, value_end;  // kParameters
  std::string_view quote;                                       // kBraces: around strings
  bool value_lines = false;     // kParameters: a value stands on lines of its own
  bool bare = false;            // a call may begin the answer without its marker
  bool ends_reasoning = false;  // a call's marker ends reasoning that was left open
  CallIds ids = CallIds::kRandom;
  // How the model itself spaces and spells a call, for the grammar of forced ones; readers take other ways
  // too.
  std::string_view inside, between;  // between a call's markers and what is in it; between calls
  std::string_view members;          // kJson: before the name
  std::string_view name_key = "name", arguments_key = "arguments";
  bool array = false;                               // several calls are an array behind one marker
  bool fenced = false;                              // kNamedJson: the object stands in a fence of Markdown
  bool numbered = false;                            // kNamedJson: the name is functions.f:0
  bool lines = false;                               // kParameters: each on a line of its own
  std::array<std::string_view, 3> end_tokens = {};  // behind the last call, whatever the model's files say
};

struct ReasoningStyle {
  std::string_view name;
  std::string_view begin, end;
  std::string_view answer_begin, answer_end;  // around the answer, where there are such; they are dropped
  bool harmony = false;                       // begin and end are those of messages
};

std::span<const ToolStyle> tool_styles();
std::span<const ReasoningStyle> reasoning_styles();

// By name, as --tool-parser and --reasoning-parser take them: "none" and a template of no known style are
// null; "auto" is what the template says. INVALID_ARGUMENT lists the names.
Result<const ToolStyle*> find_tool_style(std::string_view name, std::string_view chat_template);
Result<const ReasoningStyle*> find_reasoning_style(std::string_view name, std::string_view chat_template);

}  // namespace oar::tools
