// Constraints as requests ask for them: every kind through the compiler and its cache, structural tags, and
// texts that random walks of masks write.
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/grammar/constraint_compiler.h"
#include "tests/support/catch.h"
#include "tests/text/grammar_schema.h"

namespace {

using namespace oar;
using namespace oar::grammar;
using Kind = ConstraintSpec::Kind;

ConstraintSpec spec(Kind kind, std::string text, std::vector<std::string> choices = {}) {
  return {kind, std::move(text), std::move(choices), "field"};
}

bool spec_accepts(const ConstraintSpec& s, std::string_view text) {
  const auto automaton = grammar::compile(s);
  INFO(automaton.status().message());
  REQUIRE(automaton.ok());
  return testing::accepts(*automaton, text);
}

TEST_CASE("Constraints: every kind compiles", "[grammar]") {
  REQUIRE(spec_accepts(spec(Kind::kJsonObject, ""), R"({"a": [1, {"b": null}]})"));
  REQUIRE(!spec_accepts(spec(Kind::kJsonObject, ""), "[]"));
  REQUIRE(spec_accepts(spec(Kind::kJsonSchema, R"({"type": "integer"})"), "-5"));
  REQUIRE(spec_accepts(spec(Kind::kRegex, "a+b|c"), "aab"));
  REQUIRE(!spec_accepts(spec(Kind::kRegex, "a+b|c"), "xc"));
  REQUIRE(spec_accepts(spec(Kind::kGrammar, "root ::= \"a\" root | \"b\""), "aaab"));
  REQUIRE(spec_accepts(spec(Kind::kChoice, "", {"yes", "no", "yesterday"}), "yes"));
  REQUIRE(!spec_accepts(spec(Kind::kChoice, "", {"yes", "no", "yesterday"}), "yest"));
}

TEST_CASE("Constraints: thousands of alternatives are followed", "[grammar]") {
  std::string plain, quoted = "root ::= ";
  for (int i = 0; i < 4'500; ++i) {
    const std::string text = "c" + std::to_string(i * 7);
    plain += (i > 0 ? "|" : "") + text;
    quoted += (i > 0 ? " | \"" : "\"") + text + "\"";
  }
  const std::pair<ConstraintSpec, std::string> kAll[] = {
      {spec(Kind::kRegex, plain), ""},
      {spec(Kind::kRegex, "(?:" + plain + "|x[0-9]+)"), ""},
      {spec(Kind::kGrammar, quoted), ""},
      {spec(Kind::kJsonSchema,
            json::serialize(json::object{{"type", "string"}, {"pattern", "^(" + plain + ")$"}})),
       "\""}};
  for (const auto& [s, quote] : kAll) {
    REQUIRE(spec_accepts(s, quote + "c0" + quote));
    REQUIRE(spec_accepts(s, quote + "c31493" + quote));
    REQUIRE(!spec_accepts(s, quote + "c1" + quote));
    REQUIRE(!spec_accepts(s, quote + "c3149" + quote));
  }
  REQUIRE(spec_accepts(kAll[1].first, "x12"));
}

TEST_CASE("Constraints: faults name the field", "[grammar]") {
  const std::pair<ConstraintSpec, const char*> kFaults[] = {
      {spec(Kind::kJsonSchema, "{"), "the schema"},
      {spec(Kind::kJsonSchema, R"({"not": {}})"), "$.not is not supported"},
      {spec(Kind::kRegex, "(", {}), "without its )"},
      {spec(Kind::kGrammar, "x ::= \"a\""), "no rule \"root\""},
      {spec(Kind::kGrammar, "root ::= root"), "no text satisfies"},
      {spec(Kind::kChoice, ""), "is empty"},
      {spec(Kind::kChoice, "", {"a", ""}), "is empty"},
      {spec(Kind::kStructuralTag, "{}"), "\"format\" or \"structures\""},
      {spec(Kind::kRegex, std::string(5 << 20, 'a')), "at most"},
  };
  for (const auto& [s, message] : kFaults) {
    const auto a = grammar::compile(s);
    REQUIRE(!a.ok());
    INFO(a.status().message());
    REQUIRE(a.status().code() == StatusCode::kInvalidArgument);
    REQUIRE(a.status().param() == "field");
    REQUIRE(a.status().message().starts_with("field: "));
    REQUIRE(a.status().message().find(message) != std::string::npos);
  }
}

TEST_CASE("Structural tags: free text, and what tags hold", "[grammar]") {
  const auto s = spec(Kind::kStructuralTag, R"({"structures": [
    {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
    {"begin": "<f=b>", "schema": {"type": "null"}, "end": "</f>"}], "triggers": ["<f="]})");
  for (const char* fine :
       {"", "hello <b> <f", "x <f=a>12</f> y <f=b>null</f>", "<<f=a>1</f>", "<f<f=b>null</f>"}) {
    INFO(fine);
    REQUIRE(spec_accepts(s, fine));
  }
  for (const char* wrong : {"<f=", "<f=c>", "<f=a>null</f>", "x<f=a>1", "<<f=a>x"}) {
    INFO(wrong);
    REQUIRE(!spec_accepts(s, wrong));
  }
  const auto f =
      spec(Kind::kStructuralTag, R"({"type": "structural_tag", "format": {"type": "sequence", "elements": [
    {"type": "tag", "begin": "<think>", "content": {"type": "regex", "pattern": "[a-z ]*"}, "end": "</think>"},
    {"type": "triggered_tags", "triggers": ["<t"], "at_least_one": true, "stop_after_first": true, "tags": [
      {"begin": "<t>", "content": {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "</t>"}]}]}})");
  REQUIRE(spec_accepts(f, "<think>so it is</think>then <t>true</t>"));
  REQUIRE(!spec_accepts(f, "<think>so it is</think>then"));
  REQUIRE(!spec_accepts(f, "<think>so it is</think><t>true</t> more"));
  const auto list =
      spec(Kind::kStructuralTag, R"x({"format": {"type": "tags_with_separator", "separator": ",", "tags": [
      {"begin": "(", "content": {"type": "or", "elements": [{"type": "const_string", "value": "x"},
       {"type": "grammar", "grammar": "root ::= [0-9]+"}]}, "end": ")"
}]
}
})x");
  REQUIRE(spec_accepts(list, ""));
  REQUIRE(spec_accepts(list, "(x),(12)"));
  REQUIRE(!spec_accepts(list, "(x)(12)"));
  const auto error = [](const char* text) {
    return grammar::compile(spec(Kind::kStructuralTag, text)).status().message();
  };
  REQUIRE(error(R"({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<b"]})")
              .find("has no trigger") != std::string::npos);
  REQUIRE(error(R"({"structures": [{"begin": "<a>", "schema": {"not": 1}, "end": ""}], "triggers": ["<a"]})")
              .find("$.structures[0].schema: $.not is not supported") != std::string::npos);
  REQUIRE(error(R"({"format": {"type": "qwen"}})").find("$.format.type \"qwen\" is not supported") !=
          std::string::npos);
}

std::vector<std::string> byte_vocabulary() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* t : {"\"", "{\"", "\":", "\": ", "\",\"", "\"}", "true", "null", "12", ", ", "},", "[{",
                        "abc", "\xC3\xA9", " \"", "\\n"})
    tokens.emplace_back(t);
  return tokens;
}

TEST_CASE("Constraints: the cache is bounded, and any thread may ask", "[grammar]") {
  ConstraintCompiler compiler(TokenVocabulary::make(byte_vocabulary()),
                              {.max_entries = 4, .max_bytes = 64 << 20});
  const auto first = compiler.compile(spec(Kind::kRegex, "a0"));
  REQUIRE(first.ok());
  REQUIRE(*compiler.compile(spec(Kind::kRegex, "a0")) == *first);
  REQUIRE(*compiler.compile(spec(Kind::kNone, "")) == nullptr);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&compiler] {
      for (int i = 0; i < 40; ++i) {
        const auto c = compiler.compile(spec(Kind::kRegex, "a" + std::to_string(i % 7)));
        const auto cursor = (*c)->start();
        if (!cursor->advance('a') || !cursor->advance('0' + i % 7) || !cursor->must_end()) std::abort();
      }
    });
  for (std::thread& t : threads) t.join();
  REQUIRE(compiler.entries() == 4);
  const auto cursor = (*first)->start();  // long gone from the cache
  REQUIRE(cursor->advance('a'));
}

// A schema of a few levels, of what JSON Schema has.
json::value random_schema(std::mt19937& random, int depth) {
  const auto pick = [&](unsigned n) { return static_cast<int>(random() % n); };
  switch (pick(depth > 0 ? 9 : 6)) {
    case 0: return json::object{{"type", "integer"}, {"minimum", pick(20) - 10}, {"maximum", 10 + pick(500)}};
    case 1:
      return json::object{
          {"type", "number"}, {"exclusiveMinimum", -pick(3) - 0.5}, {"maximum", pick(9) + 0.25}};
    case 2: return json::object{{"type", "string"}, {"minLength", pick(3)}, {"maxLength", 3 + pick(6)}};
    case 3: return json::object{{"enum", json::array{"red", pick(9), nullptr, "gr\"een"}}};
    case 4: return json::object{{"type", "string"}, {"pattern", "^[a-c]{1,3}(-[0-9]+)?$"}};
    case 5: return json::object{{"type", json::array{"boolean", "null"}}};
    case 6: {
      json::object properties;
      json::array required;
      for (int i = pick(4); i >= 0; --i) {
        const std::string key = "k" + std::to_string(i);
        properties[key] = random_schema(random, depth - 1);
        if (pick(2) == 0) required.emplace_back(key);
      }
      json::object out{{"type", "object"}, {"properties", properties}, {"required", required}};
      if (pick(3) > 0)
        out["additionalProperties"] = pick(2) == 0 ? json::value(false) : random_schema(random, depth - 1);
      return out;
    }
    case 7:
      return json::object{{"type", "array"},
                          {"items", random_schema(random, depth - 1)},
                          {"minItems", pick(2)},
                          {"maxItems", 1 + pick(3)}};
    default:
      return json::object{
          {"anyOf", json::array{random_schema(random, depth - 1), random_schema(random, depth - 1)}}};
  }
}

// A validator of its own for what random_schema() writes.
bool valid(const json::value& schema, const json::value& v) {
  const auto& s = schema.as_object();
  if (const auto* any = s.if_contains("anyOf"))
    return std::any_of(any->as_array().begin(), any->as_array().end(),
                       [&](const auto& a) { return valid(a, v); });
  if (const auto* e = s.if_contains("enum"))
    return std::find(e->as_array().begin(), e->as_array().end(), v) != e->as_array().end();
  const json::value& type = s.at("type");
  if (type.is_array()) return v.is_bool() || v.is_null();
  if (type == "integer")
    return v.is_int64() && v.get_int64() >= s.at("minimum").to_number<int64_t>() &&
           v.get_int64() <= s.at("maximum").to_number<int64_t>();
  if (type == "number")
    return v.is_number() && v.to_number<double>() > s.at("exclusiveMinimum").to_number<double>() &&
           v.to_number<double>() <= s.at("maximum").to_number<double>();
  if (type == "string") {
    if (!v.is_string()) return false;
    const std::string_view text = v.get_string();
    const auto n = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (s.contains("pattern")) {
      size_t i = 0;
      while (i < text.size() && text[i] >= 'a' && text[i] <= 'c') ++i;
      if (i < 1 || i > 3) return false;
      if (i == text.size()) return true;
      return text[i] == '-' && i + 1 < text.size() &&
             text.find_first_not_of("0123456789", i + 1) == std::string_view::npos;
    }
    return n >= s.at("minLength").to_number<int64_t>() && n <= s.at("maxLength").to_number<int64_t>();
  }
  if (type == "array") {
    if (!v.is_array()) return false;
    const auto& a = v.get_array();
    if (a.size() < s.at("minItems").to_number<size_t>() || a.size() > s.at("maxItems").to_number<size_t>())
      return false;
    return std::all_of(a.begin(), a.end(), [&](const auto& i) { return valid(s.at("items"), i); });
  }
  if (!v.is_object()) return false;
  const auto& properties = s.at("properties").as_object();
  for (const auto& r : s.at("required").as_array())
    if (!v.get_object().contains(r.as_string())) return false;
  const auto* more = s.if_contains("additionalProperties");
  for (const auto& m : v.get_object()) {
    const auto* p = properties.if_contains(m.key());
    if (p != nullptr ? !valid(*p, m.value())
                     : more != nullptr && (more->is_bool() ? !more->get_bool() : !valid(*more, m.value())))
      return false;
  }
  return true;
}

TEST_CASE("Constraints: what walks of masks write, parses and is valid; what is cut has a completion",
          "[grammar]") {
  std::mt19937 random(2026);
  const auto tokens = byte_vocabulary();
  ConstraintCompiler compiler(TokenVocabulary::make(tokens), {});
  int whole = 0;
  for (int round = 0; round < 150; ++round) {
    const json::value schema = random_schema(random, 3);
    INFO(json::serialize(schema));
    const auto c = compiler.compile(spec(Kind::kJsonSchema, json::serialize(schema)));
    INFO(c.status().message());
    REQUIRE(c.ok());
    const auto cursor = (*c)->start();
    std::string text;
    std::vector<uint32_t> bits((tokens.size() + 31) / 32);
    // At random for a while; then whatever brings the end nearer: quotes, brackets, digits before anything
    // else.
    for (int step = 0; step < 3000 && !cursor->must_end(); ++step) {
      if (cursor->may_end() && random() % 4 == 0) break;
      cursor->mask(bits);
      std::vector<int32_t> allowed;
      for (size_t t = 0; t < tokens.size(); ++t)
        if ((bits[t / 32] >> (t % 32)) & 1) allowed.push_back(static_cast<int32_t>(t));
      INFO("after " << text);
      REQUIRE(!allowed.empty());  // never stuck: every prefix goes on
      int32_t next = allowed[random() % allowed.size()];
      if (step > 60)
        for (const char closing : std::string_view("\"}]0"))
          if (std::find(allowed.begin(), allowed.end(), closing) != allowed.end()) next = closing;
      REQUIRE(cursor->advance(next));
      text += tokens[static_cast<size_t>(next)];
    }
    if (!cursor->may_end()) continue;
    ++whole;
    INFO(text);
    const auto parsed = parse_json(text, "text");
    REQUIRE(parsed.ok());
    REQUIRE(valid(schema, *parsed));
  }
  REQUIRE(whole >= 140);
}

}  // namespace
