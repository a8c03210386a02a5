#include "engine/text/tools/call_grammar.h"

#include "engine/base/format.h"
#include "engine/text/grammar/json_schema.h"
#include "engine/text/grammar/token_vocabulary.h"
#include "engine/text/utf8.h"

namespace oar::tools {
namespace {

using grammar::Coding;
using grammar::Expr;
using grammar::Grammar;
using grammar::kNoLimit;

class CallWriter {
 public:
  CallWriter(const ToolStyle& style, const Tokenizer& tokenizer, Grammar& g)
      : style_(style), tokenizer_(tokenizer), g_(g) {}

  // Nothing but calls.
  Result<Expr> calls(const std::vector<const Tool*>& tools, bool parallel) {
    OAR_ASSIGN(const Expr rest, behind_marker(tools, parallel));
    if (style_.syntax == CallSyntax::kHarmony) return g_.sequence({messages_before(), rest});
    const Expr one = g_.sequence({style_.bare ? g_.empty() : mark(style_.call_begin), rest});
    if (is_list() || style_.bare) return one;
    Expr all = one;
    if (parallel)
      all = g_.sequence({one, g_.repeat(g_.sequence({g_.text(style_.between), one}), 0, kNoLimit)});
    if (style_.section_begin.empty()) return all;
    const Expr space = g_.text(style_.between);
    return g_.sequence({mark(style_.section_begin), space, all, space, mark(style_.section_end)});
  }

  // Text in which a call, once begun, is one of these.
  Result<Expr> text_and_calls(const std::vector<const Tool*>& tools, bool parallel) {
    OAR_ASSIGN(const Expr rest, behind_marker(tools, parallel));
    const Expr any = g_.repeat(g_.chars(CodePointRanges::all(), Coding::kUtf8), 0, kNoLimit);
    if (style_.syntax == CallSyntax::kHarmony)
      return g_.sequence({messages_before(), g_.choice({rest, message("final")})});
    if (style_.bare) {
      const char32_t opening = style_.syntax == CallSyntax::kPythonic ? '[' : '{';
      const CodePointRanges space = CodePointRanges('\t', '\n').united({'\r', '\r'}).united({' ', ' '});
      const Expr spaces = g_.repeat(g_.chars(space, Coding::kUtf8), 0, kNoLimit);
      const Expr other = g_.chars(space.united({opening, opening}).complement(), Coding::kUtf8);
      const Expr call = g_.sequence({g_.optional(mark(style_.call_begin)), rest});
      return g_.sequence({spaces, g_.optional(g_.choice({call, g_.sequence({other, any})}))});
    }
    if (!is_control(style_.call_begin)) return until(style_.call_begin, rest);
    std::vector<Expr> marked = {g_.sequence({mark(style_.call_begin), rest})};
    for (const std::string_view marker : {style_.section_begin, style_.section_end})
      if (!marker.empty()) marked.push_back(mark(marker));
    const grammar::Rule text = g_.add_rule("text with calls");
    g_.define(text, g_.sequence({any, g_.optional(g_.sequence({g_.choice(marked), g_.use(text)}))}));
    return g_.use(text);
  }

  // What `answer` allows, or calls; no tools: the answer alone.
  Result<Expr> calls_or_answer(const std::vector<const Tool*>& tools, bool parallel, grammar::Rule answer) {
    const bool harmony = style_.syntax == CallSyntax::kHarmony;
    Expr said = g_.use(answer);
    if (harmony) {
      const Expr type = g_.sequence({g_.text(" "), mark("<|constrain|>"), g_.text("json")});
      said =
          g_.sequence({mark("<|channel|>"), g_.text("final"), g_.optional(type), mark("<|message|>"), said});
    }
    if (tools.empty()) return harmony ? g_.sequence({messages_before(), said}) : said;
    if (!harmony) {
      OAR_ASSIGN(const Expr all, calls(tools, parallel));
      return g_.choice({all, said});
    }
    OAR_ASSIGN(const Expr rest, behind_marker(tools, parallel));
    return g_.sequence({messages_before(), g_.choice({rest, said})});
  }

 private:
  bool is_control(std::string_view marker) const {
    const std::optional<int32_t> id = tokenizer_.token_to_id(marker);
    return id && tokenizer_.is_special(*id);
  }
  // A marker is its control token, or text. Empty: nothing.
  Expr mark(std::string_view marker) {
    return g_.text(is_control(marker) ? grammar::special_text(marker) : std::string(marker));
  }
  // Calls that share their markers are a list between them.
  bool is_list() const { return style_.array || style_.syntax == CallSyntax::kPythonic; }

  // Harmony: a message on a channel, its text free and its end left open.
  Expr message(std::string_view channel) {
    const Expr any = g_.repeat(g_.chars(CodePointRanges::all(), Coding::kUtf8), 0, kNoLimit);
    return g_.sequence({mark("<|channel|>"), g_.text(channel), mark("<|message|>"), any});
  }
  // Reasoning and preambles, before a call or the answer.
  Expr messages_before() {
    const Expr one = g_.sequence({g_.choice({message("analysis"), message("commentary")}), mark("<|end|>"),
                                  mark("<|start|>"), g_.text("assistant")});
    return g_.repeat(one, 0, kNoLimit);
  }

  // A call, or a list of them, up to the end marker.
  Result<Expr> behind_marker(const std::vector<const Tool*>& tools, bool parallel) {
    std::vector<Expr> ways;
    for (const Tool* tool : tools) {
      OAR_ASSIGN(const Expr one, body(*tool));
      ways.push_back(one);
    }
    const Expr one = g_.choice(ways), space = g_.text(style_.inside);
    const Expr end = style_.bare ? g_.empty() : mark(style_.call_end);
    if (!is_list()) return g_.sequence({space, one, space, end});
    const Expr more = parallel ? g_.repeat(g_.sequence({g_.text(", "), one}), 0, kNoLimit) : g_.empty();
    return g_.sequence({g_.text("["), one, more, g_.text("]"), end});
  }

  Result<Expr> body(const Tool& tool) {
    switch (style_.syntax) {
      case CallSyntax::kJson: {
        OAR_ASSIGN(const Expr arguments, schema(tool.parameters, tool));
        return g_.sequence({g_.text(cat("{", style_.members, "\"", style_.name_key, "\": \"", tool.name,
                                        "\", \"", style_.arguments_key, "\": ")),
                            arguments, g_.text("}")});
      }
      case CallSyntax::kNamedJson: {
        OAR_ASSIGN(const Expr arguments, schema(tool.parameters, tool));
        if (style_.array)
          return g_.sequence(
              {g_.text(cat("{\"name\": \"", tool.name, "\", \"arguments\": ")), arguments, g_.text("}")});
        const Expr number = g_.repeat(g_.chars({'0', '9'}, Coding::kUtf8), 1, 3);
        const Expr name = style_.numbered ? g_.sequence({g_.text(cat("functions.", tool.name, ":")), number})
                                          : g_.text(tool.name);
        const Expr prefix = style_.name_begin.empty()
                                ? g_.empty()
                                : g_.sequence({g_.text("function"), mark(style_.name_begin)});
        const Expr fence = g_.text(style_.fenced ? "```json\n" : ""),
                   close = g_.text(style_.fenced ? "\n```" : "");
        return g_.sequence({prefix, name, mark(style_.name_end), fence, arguments, close});
      }
      case CallSyntax::kParameters: return parameters(tool);
      case CallSyntax::kPythonic:
      case CallSyntax::kBraces: return literals(tool);
      case CallSyntax::kHarmony: {
        OAR_ASSIGN(const Expr arguments, schema(tool.parameters, tool));
        return g_.sequence({mark("<|channel|>"), g_.text(cat("commentary to=functions.", tool.name, " ")),
                            mark("<|constrain|>"), g_.text("json"), mark("<|message|>"), arguments});
      }
    }
    return internal_error("a style without a notation");
  }

  Result<Expr> schema(const json::object& schema, const Tool& tool) {
    if (schema.empty()) return g_.use(grammar::add_json_object(g_));
    const auto rule = grammar::add_json_schema(schema, g_);
    if (!rule.ok() && !tool.strict)
      return g_.use(grammar::add_json_object(g_));  // its keywords are hints then
    if (!rule.ok())
      return invalid_argument(cat("tools: the parameters of ", tool.name, ": ", rule.status().message()),
                              "tools");
    return g_.use(*rule);
  }

  struct Argument {
    std::string name;
    json::object schema;
    bool required;
  };
  // The declared ones, in their order. A part of a schema takes its definitions along.
  static std::vector<Argument> arguments_of(const Tool& tool) {
    std::vector<Argument> out;
    const json::value* properties = tool.parameters.if_contains("properties");
    if (!properties || !properties->is_object()) return out;
    const json::value* required = tool.parameters.if_contains("required");
    for (const auto& p : properties->get_object()) {
      Argument a{std::string(p.key()), {}, false};
      if (p.value().is_object()) a.schema = p.value().get_object();
      for (const char* defs : {"$defs", "definitions"})
        if (const json::value* d = tool.parameters.if_contains(defs)) a.schema.emplace(defs, *d);
      if (required && required->is_array()) {
        for (const json::value& name : required->get_array()) a.required |= name == json::value(p.key());
      }
      out.push_back(std::move(a));
    }
    return out;
  }

  Result<Expr> parameters(const Tool& tool) {
    std::vector<Expr> parts = {g_.text(tool.name), g_.text(style_.name_end)};
    const Expr line = g_.text(style_.lines ? "\n" : "");
    if (style_.lines && style_.name_end != "\n") parts.push_back(line);
    for (const Argument& a : arguments_of(tool)) {
      Expr value;
      std::string_view attribute;
      const bool text = argument_type(&tool, a.name) == ArgumentType::kString && !a.schema.contains("enum");
      if (text) value = until(style_.value_end, std::nullopt);
      else { OAR_ASSIGN(value, value_of(a, tool)); }
      if (style_.value_begin == ">")
        attribute = text || is_text(tool, a) ? " string=\"true\"" : " string=\"false\"";
      const Expr around = g_.text(style_.value_lines ? "\n" : "");
      const Expr one = g_.sequence(
          {g_.text(style_.key_begin), g_.text(a.name), g_.text(style_.key_end), g_.text(attribute),
           g_.text(style_.value_begin == "<arg_value>" && style_.lines ? "\n" : ""),
           g_.text(style_.value_begin), around, value,
           text ? g_.empty() : g_.sequence({around, g_.text(style_.value_end)}), line});
      parts.push_back(a.required ? one : g_.optional(one));
    }
    return g_.sequence(parts);
  }
  static bool is_text(const Tool& tool, const Argument& a) {
    return argument_type(&tool, a.name) == ArgumentType::kString;
  }

  // A value that is no free text: one of an enumeration without its quotes, or JSON.
  Result<Expr> value_of(const Argument& a, const Tool& tool) {
    if (!is_text(tool, a)) return schema(a.schema, tool);
    std::vector<std::string> texts;
    for (const json::value& v : a.schema.at("enum").as_array())
      if (v.is_string()) texts.emplace_back(v.get_string());
    return g_.one_of(std::move(texts));
  }

  // Any text up to the marker, and that: one rule for each beginning of the marker. With `then` the text may
  // end before, and behind the marker stands `then` and such a text again.
  Expr until(std::string_view marker, std::optional<Expr> then) {
    const std::vector<char32_t> code_points = to_code_points(marker);
    std::vector<grammar::Rule> rules;
    for (size_t i = 0; i < code_points.size(); ++i) rules.push_back(g_.add_rule("text up to a marker"));
    for (size_t i = 0; i < code_points.size(); ++i) {
      std::vector<Expr> ways;
      CodePointRanges known;
      for (size_t k = 0; k <= i; ++k) known = known.united({code_points[k], code_points[k]});
      for (const auto& r : known.ranges()) {
        for (char32_t c = r.first; c <= r.last; ++c) {
          const size_t to = next_match(code_points, i, c);
          const Expr one = g_.chars({c, c}, Coding::kUtf8);
          const bool whole = to == code_points.size();
          if (whole && then) ways.push_back(g_.sequence({one, *then, g_.use(rules[0])}));
          else ways.push_back(whole ? one : g_.sequence({one, g_.use(rules[to])}));
        }
      }
      ways.push_back(g_.sequence({g_.chars(known.complement(), Coding::kUtf8), g_.use(rules[0])}));
      if (then) ways.push_back(g_.empty());
      for (const std::string_view section : {style_.section_begin, style_.section_end}) {
        // A section's marker is text like other text, unless it is a control token.
        if (then && is_control(section)) ways.push_back(g_.sequence({mark(section), g_.use(rules[0])}));
      }
      g_.define(rules[i], g_.choice(ways));
    }
    return g_.use(rules[0]);
  }
  static std::vector<char32_t> to_code_points(std::string_view text) {
    std::vector<char32_t> out;
    for (size_t i = 0; i < text.size();) {
      const CodePoint c = decode_utf8(text, i);
      out.push_back(c.value);
      i += c.length;
    }
    return out;
  }
  // How much of the marker the text ends with, after `matched` of it and c.
  static size_t next_match(const std::vector<char32_t>& marker, size_t matched, char32_t c) {
    std::vector<char32_t> tail(marker.begin(), marker.begin() + static_cast<std::ptrdiff_t>(matched));
    tail.push_back(c);
    for (size_t n = std::min(tail.size(), marker.size()); n > 0; --n)
      if (std::equal(marker.begin(), marker.begin() + static_cast<std::ptrdiff_t>(n),
                     tail.end() - static_cast<std::ptrdiff_t>(n)))
        return n;
    return 0;
  }

  // f(a=1, b="x"), or call:f{a:1,b:<|"|>x<|"|>}: values as JSON but for strings between markers.
  Result<Expr> literals(const Tool& tool) {
    const bool braces = style_.syntax == CallSyntax::kBraces;
    const Expr separator = g_.text(braces ? "," : ", ");
    // Optional ones make the first of those that are there be any; so they are written from the last on.
    Expr rest = g_.empty(), rest_after = g_.empty();
    const std::vector<Argument> arguments = arguments_of(tool);
    for (auto a = arguments.rbegin(); a != arguments.rend(); ++a) {
      Expr value;
      if (braces && is_text(tool, *a) && !a->schema.contains("enum")) {
        const Expr inside =
            g_.repeat(g_.chars(CodePointRanges('<', '<').complement(), Coding::kUtf8), 0, kNoLimit);
        value = g_.sequence({mark(style_.quote), inside, mark(style_.quote)});
      } else {
        OAR_ASSIGN(value, schema(a->schema, tool));
      }
      const Expr one = g_.sequence({g_.text(cat(a->name, braces ? ":" : "=")), value});
      const Expr first = g_.sequence({one, rest_after}), later = g_.sequence({separator, one, rest_after});
      rest = a->required ? first : g_.choice({first, rest});
      rest_after = a->required ? later : g_.choice({later, rest_after});
    }
    return g_.sequence(
        {g_.text(cat(style_.name_begin, tool.name, braces ? "{" : "(")), rest, g_.text(braces ? "}" : ")")});
  }

  const ToolStyle& style_;
  const Tokenizer& tokenizer_;
  Grammar& g_;
};

}  // namespace

Result<grammar::Rule> add_reply(const ToolStyle& style, const ToolRequest& request,
                                const grammar::ConstraintSpec* answer, const Tokenizer& tokenizer,
                                grammar::Grammar& g) {
  std::vector<const Tool*> tools;
  for (const Tool& tool : request.tools)
    if (!request.named || *request.named == tool.name) tools.push_back(&tool);
  const grammar::Rule root = g.add_rule("tool calls");
  CallWriter writer(style, tokenizer, g);
  const bool parallel = request.parallel && !request.named;
  const bool required = request.mode == ToolRequest::Mode::kRequired;
  Expr reply;
  if (answer != nullptr && !required) {
    OAR_ASSIGN(const grammar::Rule said, grammar::add_constraint(*answer, g));
    OAR_ASSIGN(reply, writer.calls_or_answer(tools, parallel, said));
  } else {
    OAR_ASSIGN(reply, required ? writer.calls(tools, parallel) : writer.text_and_calls(tools, parallel));
  }
  g.define(root, reply);
  if (g.full())
    return invalid_argument("tools: their schemas are too large to be kept to; offer fewer, or simpler ones",
                            "tools");
  return root;
}

Result<std::shared_ptr<const Constraint>> compile_reply(const ToolStyle& style, const ToolRequest& request,
                                                        const grammar::ConstraintSpec* answer,
                                                        const Tokenizer& tokenizer,
                                                        grammar::ConstraintCompiler& compiler) {
  const bool required = request.mode == ToolRequest::Mode::kRequired;
  const std::string tools = json::serialize(request.definitions);
  std::string key = cat(style.name, " ", required, request.parallel, request.named.value_or(""), " ",
                        tools.size(), tools, answer ? answer->key() : std::string());
  const std::string field = required ? "tool_choice" : answer ? answer->field : "tools";
  auto made = compiler.compile(
      std::move(key), [&](grammar::Grammar& g) { return add_reply(style, request, answer, tokenizer, g); });
  if (made.ok() || !made.status().param().empty()) return made;
  return invalid_argument(cat(field, ": ", made.status().message()), field);
}

}  // namespace oar::tools
