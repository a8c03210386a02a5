// Replies that a style's grammar allows read back as the calls that it demands. Texts are drawn from the
// masks alone, so what is checked is whatever the grammar allows.
#include "engine/text/tools/call_grammar.h"

#include <algorithm>
#include <random>

#include "engine/text/grammar/automaton.h"
#include "engine/text/grammar/matcher.h"
#include "engine/text/tools/reply_parser.h"
#include "tests/support/catch.h"

namespace {

namespace json = oar::json;
using oar::tools::ToolRequest;

// Every printable ASCII character and the line's end, and the style's markers as control tokens or not at
// all.
oar::TokenizerPtr characters(const oar::tools::ToolStyle& style, bool control) {
  json::object vocab;
  int next = 0;
  for (char c = ' '; c <= '~'; ++c) vocab[std::string(1, c)] = next++;
  vocab["\n"] = next++;
  for (const char* c : {"｜", "▁"}) vocab[c] = next++;
  json::array added;
  const auto add = [&](std::string_view text) {
    if (text.empty() || vocab.contains(text)) return;
    added.push_back(json::object{{"id", next++},
                                 {"content", json::string(text)},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
  };
  oar::ReplyFormat format;
  format.calls = &style;
  if (control) {
    for (const std::string_view m : format.markers())
      if (m.starts_with('<') && m.ends_with('>') && m.find('\n') == m.npos) add(m);
  }
  add("</s>");
  const json::object file{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", json::object{{"type", "Fuse"}}},
      {"model", json::object{{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array{}}}}};
  auto made = oar::tokenizer_from_json(json::serialize(file));
  REQUIRE_OK(made);
  return *made;
}

const char* const kTools = R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","additionalProperties":false,
    "properties":{"city":{"type":"string","maxLength":6},"days":{"type":"integer","minimum":0,"maximum":99}},"required":["city"]}}},
  {"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{},"additionalProperties":false}}}])";

ToolRequest request(const char* choice, bool parallel) {
  const auto list = *oar::parse_json(kTools, "tools"), asked = *oar::parse_json(choice, "tool_choice");
  auto r = oar::tools::read_tool_request(&list, &asked, parallel);
  REQUIRE_OK(r);
  return *r;
}

std::shared_ptr<const oar::Constraint> constraint_of(const oar::tools::ToolStyle& style,
                                                     const ToolRequest& asked,
                                                     const oar::TokenizerPtr& tokenizer,
                                                     const oar::grammar::ConstraintSpec* answer = nullptr) {
  oar::grammar::Grammar g;
  const auto root = oar::tools::add_reply(style, asked, answer, *tokenizer, g);
  INFO(style.name);
  REQUIRE_OK(root);
  g.set_root(*root);
  auto automaton = oar::grammar::Automaton::compile(g);
  REQUIRE_OK(automaton);
  return std::make_shared<oar::grammar::Matcher>(*automaton, oar::grammar::TokenVocabulary::make(tokenizer));
}

// A text drawn from the masks: it ends where it may, sooner and sooner.
std::string draw(const oar::Constraint& constraint, const oar::Tokenizer& tokenizer, uint64_t seed,
                 std::string_view end, bool& whole) {
  std::mt19937_64 random(seed);
  const auto cursor = constraint.start();
  std::vector<int32_t> ids;
  std::vector<uint32_t> bits(static_cast<size_t>(tokenizer.vocab_size() + 31) / 32);
  whole = false;
  std::string_view closing;
  while (ids.size() < 600) {
    if (cursor->must_end() || (cursor->may_end() && random() % 4 == 0)) {
      whole = true;
      break;
    }
    cursor->mask(bits);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < tokenizer.vocab_size(); ++t)
      if (bits[static_cast<size_t>(t / 32)] >> (t % 32) & 1) allowed.push_back(t);
    if (allowed.empty()) {
      whole = cursor->may_end();
      CHECK(whole);
      break;
    }
    // Characters that close things are rare among all; so they are preferred now and then.
    int32_t pick = allowed[random() % allowed.size()];
    // What ends free text comes in one go, now and then.
    if (closing.empty() && random() % 8 == 0) closing = end;
    if (!closing.empty()) {
      const auto next = std::find_if(allowed.begin(), allowed.end(), [&](int32_t t) {
        return closing.starts_with(tokenizer.token_bytes(t)) && !tokenizer.token_bytes(t).empty();
      });
      if (next != allowed.end()) {
        REQUIRE(cursor->advance(*next));
        ids.push_back(*next);
        closing.remove_prefix(tokenizer.token_bytes(*next).size());
        continue;
      }
      closing = {};
    }
    if (random() % 2 == 0) {
      for (const int32_t t : allowed) {
        const std::string_view text = tokenizer.token_bytes(t);
        if (text == "\"" || text == "}" || text == "<" || text == "/" || text == ">" || text.size() > 3)
          pick = t;
      }
    }
    REQUIRE(cursor->advance(pick));
    ids.push_back(pick);
  }
  return tokenizer.decode(ids, false);
}

TEST_CASE("a required call is what the style's reader reads") {
  for (const auto& style : oar::tools::tool_styles()) {
    for (const bool control : {true, false}) {
      const oar::TokenizerPtr tokenizer = characters(style, control);
      for (const char* choice :
           {"\"required\"", R"({"type":"function","function":{"name":"get_weather"}})"}) {
        const ToolRequest asked = request(choice, true);
        const auto constraint = constraint_of(style, asked, tokenizer);
        auto format = std::make_shared<oar::ReplyFormat>();
        format->calls = &style;
        format->tools = asked.tools;
        int read = 0;
        for (uint64_t seed = 0; seed < 60; ++seed) {
          bool whole = false;
          const std::string text = draw(*constraint, *tokenizer, seed, style.value_end, whole);
          if (!whole) continue;
          INFO(style.name << ", " << choice << ": " << text);
          oar::ReplyParser parser(format);
          oar::ReplyDelta reply;
          parser.push(text, reply);
          parser.finish(reply);
          // Harmony may say something before.
          CHECK((reply.content.empty() || style.syntax == oar::tools::CallSyntax::kHarmony));
          REQUIRE(!reply.calls.empty());
          for (const oar::ToolCallDelta& call : reply.calls) {
            CHECK((call.name == "get_weather" || (call.name == "now" && !asked.named)));
            INFO(call.arguments);
            const auto arguments = oar::parse_json(call.arguments, "arguments");
            REQUIRE_OK(arguments);
            REQUIRE(arguments->is_object());
            if (call.name != "get_weather") continue;
            REQUIRE(arguments->get_object().contains("city"));
            CHECK(arguments->at("city").is_string());
            if (const json::value* days = arguments->get_object().if_contains("days"))
              CHECK(days->is_int64());
          }
          ++read;
        }
        INFO(style.name << ", " << choice);
        CHECK(read > 5);
      }
    }
  }
}

TEST_CASE("with strict tools text is free, and a call in it is as declared") {
  for (const auto& style : oar::tools::tool_styles()) {
    const oar::TokenizerPtr tokenizer = characters(style, true);
    const auto constraint = constraint_of(style, request("\"auto\"", true), tokenizer);
    INFO(style.name);

    const auto cursor = constraint->start();
    const auto take = [&](const std::string& text) {
      const auto ids = tokenizer->encode(text, {.add_special_tokens = false});
      return std::all_of(ids->begin(), ids->end(), [&](int32_t id) { return cursor->advance(id); });
    };
    if (style.syntax == oar::tools::CallSyntax::kHarmony) {
      CHECK(take("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi."));
      continue;
    }
    CHECK(take("Hello, world. "));
    CHECK(cursor->may_end());
    if (style.bare) continue;
    CHECK(
        take(std::string(style.section_begin) + std::string(style.between) + std::string(style.call_begin)));
    CHECK_FALSE(cursor->may_end());
    CHECK_FALSE(take("Q"));
  }
}

TEST_CASE("with a constraint of the answer a reply is that answer, or calls") {
  using Kind = oar::grammar::ConstraintSpec::Kind;
  const oar::grammar::ConstraintSpec answer{Kind::kRegex, R"(\{"n": [0-9]{1,3}\})", {}, "regex"};
  int answers = 0, calls = 0;
  const auto check = [&](const oar::tools::ToolStyle& style, const ToolRequest& asked) {
    const oar::TokenizerPtr tokenizer = characters(style, true);
    const auto constraint = constraint_of(style, asked, tokenizer, &answer);
    auto format = std::make_shared<oar::ReplyFormat>();
    format->calls = &style;
    format->tools = asked.tools;
    // Harmony's answer is one of its messages.
    if (style.syntax == oar::tools::CallSyntax::kHarmony)
      format->reasoning = *oar::tools::find_reasoning_style("harmony", {});
    for (uint64_t seed = 0; seed < 40; ++seed) {
      bool whole = false;
      const std::string text = draw(*constraint, *tokenizer, seed, style.value_end, whole);
      if (!whole) continue;
      INFO(style.name << ": " << text);
      oar::ReplyParser parser(format);
      oar::ReplyDelta reply;
      parser.push(text, reply);
      parser.finish(reply);
      const size_t line = reply.content.rfind('\n');  // harmony's preambles are content, on lines before it
      const std::string last = line == std::string::npos ? reply.content : reply.content.substr(line + 1);
      const bool is_answer = last.starts_with("{\"n\": ") && last.ends_with("}") && last.size() <= 10;
      if (reply.calls.empty()) CHECK(is_answer);
      else CHECK((reply.content.empty() || style.syntax == oar::tools::CallSyntax::kHarmony));
      ++(reply.calls.empty() ? answers : calls);
    }
  };
  for (const auto& style : oar::tools::tool_styles()) check(style, request("\"auto\"", true));
  CHECK(calls > 50);
  CHECK(answers > 50);
  calls = 0;
  check(**oar::tools::find_tool_style("harmony", {}), {});  // no tools: its messages all the same
  CHECK(calls == 0);
}

}  // namespace
