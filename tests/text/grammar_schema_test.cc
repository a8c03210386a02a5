// One row a keyword: a schema, texts that it allows and texts that it does not. And what is refused by name.
#include <string>
#include <vector>

#include "engine/text/grammar/json_schema.h"
#include "engine/text/grammar/matcher.h"
#include "engine/text/grammar/schema_shape.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/text/grammar_schema.h"

namespace {

using namespace oar;
using namespace oar::grammar;
using namespace oar::grammar::testing;

struct Row {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

const Row kRows[] = {
    {"true", {"1", "\"a\"", "[]", "{\"a\": [null]}", "-0.5e+07"}, {"", "01", "tru", "[1,]", "{\"a\"}", " 1"}},
    {"{}", {"{}", "{ }", "{\n  \"a\": 1\n}"}, {"{  \"a\":1}", "{\"a\":1,}"}},
    {R"({"type": "null"})", {"null"}, {"0", "nul", "\"null\""}},
    {R"({"type": "boolean"})", {"true", "false"}, {"1", "null"}},
    {R"({"type": "integer"})", {"0", "-12", "999999999999999999"}, {"1.5", "01", "1e3", "+1", "-", "\"1\""}},
    {R"({"type": "number"})", {"0", "-1.25", "1E9", "2.5e-3"}, {".5", "1.", "1e", "1e400", "NaN"}},
    {R"({"type": "string"})",
     {R"("")", R"("é\n\"\u00e9\ud83d\ude00")"},
     {"a", R"("\x")", "\"a\nb\"", R"("\ud83d")"}},
    {R"({"type": ["string", "null"]})", {"null", "\"x\""}, {"1", "true"}},
    {R"({"type": "array"})", {"[]", "[1, [2], {}]"}, {"{}", "[1 ,2]"}},
    {R"({"type": "object"})", {"{}", R"({"a":{"b":[]}})"}, {"[]", R"({a:1})"}},
    {R"({"enum": ["red", 1, null, [1, "a"], {"k": true}]})",
     {"\"red\"", "1", "null", "[1,\"a\"]", "[ 1, \"a\"]", "{\"k\":true}"},
     {"\"re\"", "2", "\"reds\"", "[1]", "{}"}},
    {R"({"type": "string", "enum": ["a", 1, "bb"], "maxLength": 1})", {"\"a\""}, {"1", "\"bb\""}},
    {R"({"const": "a\"b"})", {R"("a\"b")"}, {R"("ab")"}},
    {R"({"const": 2.0})", {"2"}, {"2.5", "3"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
         "required": ["a"], "additionalProperties": false})",
     {R"({"a":1})", R"({"a": 1, "b": "x"})"},
     {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,"c":2})", R"({"a":"1"})", R"({"a":1,"a":2})"}},
    {R"({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})",
     {"{}", R"({"a":1,"b":true,"aa":false,"":true})", R"({"b":true})", "[]", "3"},
     {R"({"a":true})", R"({"b":1})", R"({"b":true,"a":1})"}},
    {R"({"properties": {"a": true}})", {R"({"b": 1})", R"({"a":1,"b":2})"}, {R"({"b":1,"a":2})"}},
    {R"({"type": "object", "required": ["x", "y"]})",
     {R"({"x":1,"y":2})", R"({"x":1,"y":2,"z":3})"},
     {R"({"x":1})", "{}", R"({"z":1,"x":1,"y":1})"}},
    {R"({"type": "object", "patternProperties": {"^n_": {"type": "integer"}, "_s$": {"type": "integer", "minimum": 5}},
         "additionalProperties": false})",
     {"{}", R"({"n_a":1})", R"({"x_s":7})", R"({"n_s":6,"n_":0})"},
     {R"({"n_s":1})", R"({"x_s":4})", R"({"q":1})"}},
    {R"({"type": "object", "patternProperties": {"^a": {"type": "integer"}}})",
     {R"({"a1":1,"b":"s"})"},
     {R"({"a1":"s"})"}},
    {R"({"properties": {"a": {"type": "integer"}, "no": false}, "patternProperties": {"a": {"minimum": 3}}})",
     {R"({"a":3})", "{}"},
     {R"({"a":2})", R"({"no":1})"}},
    {R"({"type": "array", "items": {"type": "integer"}})",
     {"[]", "[1]", "[1,2, 3]"},
     {"[\"a\"]", "[1,]", "[,1]"}},
    {R"({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}})",
     {"[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
     {"[\"a\"]", "[1,2]", "[1,\"a\",1]"}},
    {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})", {"[]", "[1]"}, {"[1,2]"}},
    {R"({"type": "array", "items": [{"type": "integer"}], "additionalItems": false})",
     {"[]", "[1]"},
     {"[1,2]"}},
    {R"({"type": "array", "minItems": 2, "maxItems": 3})", {"[1,2]", "[1,2,3]"}, {"[]", "[1]", "[1,2,3,4]"}},
    {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
    {R"({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "minItems": 1, "maxItems": 3})",
     {"[1]", "[1,2]", "[1,2,3]"},
     {"[]", "[2]", "[1,2,3,4]"}},
    {R"({"type": "array", "minItems": 70000, "maxItems": 60000})", {}, {"[]"}},
    {R"({"type": "string", "minLength": 2, "maxLength": 3})",
     {"\"ab\"", "\"\\n\\n\\n\"", "\"\xC3\xA9\\ud83d\\ude00\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {R"({"type": "integer", "minimum": -3, "maximum": 12})",
     {"-3", "0", "9", "10", "12"},
     {"-4", "13", "100", "-0"}},
    {R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10})", {"1", "9"}, {"0", "10", "-1"}},
    {R"({"enum": [18446744073709551615, -9223372036854775808, 1e16, 0.30000000000000004]})",
     {"18446744073709551615", "-9223372036854775808", "10000000000000000", "3.0000000000000004E-1"},
     {"18446744073709551614", "1E16"}},
    {R"({"type": "integer", "minimum": 18446744073709551610, "maximum": 18446744073709551615})",
     {"18446744073709551610", "18446744073709551615"},
     {"18446744073709551609", "18446744073709551616"}},
    {R"({"type": "integer", "minimum": 0, "maximum": 79228162514264337593543950335})",
     {"0", "79228162514250000000000000000"},
     {"-1", "79228162514264337593543950336"}},
    {R"({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308})",
     {"0", "-1.5", "123456789012345678901"},
     {"-"}},
    {R"({"type": "integer", "minimum": 95})", {"95", "99", "100", "123456789"}, {"94", "9", "0", "-95"}},
    {R"({"type": "integer", "maximum": -95})", {"-95", "-100"}, {"-94", "95", "-9", "0"}},
    {R"({"type": "number", "minimum": 0.5, "exclusiveMaximum": 2})",
     {"0.5", "0.50", "1", "1.999", "0.51"},
     {"0.4", "0.49", "2", "2.0", "-1", "5e-1"}},
    {R"({"type": "number", "exclusiveMinimum": -1.5, "maximum": -0.25})",
     {"-1.4", "-0.25", "-1", "-0.250"},
     {"-1.5", "-0.2", "0", "-1.50", "-2"}},
    {R"({"type": "integer", "minimum": 1.5, "maximum": 3.5})", {"2", "3"}, {"1", "4"}},
    {R"({"type": "integer", "multipleOf": 7})", {"0", "7", "-14", "700", "49"}, {"1", "8", "-0", "71"}},
    {R"({"type": "integer", "multipleOf": 2500})",
     {"0", "2500", "-5000", "107500", "999999999999997500"},
     {"250", "25000001", "2501", "12500500", "-0"}},
    {R"({"type": "integer", "multipleOf": 1000000, "minimum": 5})",
     {"1000000", "33000000"},
     {"0", "100000", "1100000"}},
    {R"({"type": "integer", "multipleOf": 86400, "maximum": 99999999999})",
     {"86400", "0", "31536000", "-86400"},
     {"8640", "86401", "100000051200"}},
    {R"({"type": "integer", "multipleOf": 5, "minimum": -7, "exclusiveMaximum": 15})",
     {"-5", "0", "5", "10"},
     {"-10", "15", "3"}},
    {R"({"multipleOf": 3, "minimum": 1000})", {"1002", "30000", "\"x\""}, {"999", "1000", "1002.5"}},
    {R"({"type": "string", "pattern": "^[a-z]{2,4}$"})",
     {"\"ab\"", "\"abcd\""},
     {"\"a\"", "\"abcde\"", "\"AB\""}},
    {R"({"type": "string", "pattern": "b+"})", {"\"abc\"", "\"b\""}, {"\"ac\"", "\"\""}},
    {R"({"type": "string", "pattern": "\"\\\\"})", {R"("x\"\\y")"}, {R"("x")"}},
    {R"({"type": "string", "pattern": "^a*$", "minLength": 2, "maxLength": 4})",
     {"\"aa\"", "\"aaaa\""},
     {"\"a\"", "\"aaaaa\"", "\"ab\""}},
    {R"({"allOf": [{"pattern": "a"}, {"pattern": "b$"}], "type": "string"})",
     {"\"ab\"", "\"xayb\""},
     {"\"ba\"", "\"b\""}},
    {R"({"type": "string", "format": "date"})",
     {"\"2024-02-29\"", "\"2023-12-31\""},
     {"\"2023-02-29\"", "\"2023-04-31\"", "\"2023-1-01\""}},
    {R"({"type": "string", "format": "time"})",
     {"\"23:59:59Z\"", "\"00:00:00.5+02:00\"", "\"23:59:60Z\"", "\"15:59:60.5-08:00\"", "\"05:29:60+05:30\"",
      "\"00:59:60+01:00\"", "\"20:29:60-03:30\"", "\"23:59:60-00:00\""},
     {"\"24:00:00Z\"", "\"10:00:00\"", "\"15:59:60-07:00\"", "\"22:59:60Z\"", "\"05:29:60-05:30\"",
      "\"23:58:60Z\"", "\"23:59:61Z\""}},
    {R"({"type": "string", "format": "date-time"})",
     {"\"2023-05-06T07:08:09Z\""},
     {"\"2023-05-06 07:08:09Z\"", "\"2023-13-06T07:08:09Z\""}},
    {R"({"type": "string", "format": "uuid"})",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\""}},
    {R"({"type": "string", "format": "email"})",
     {"\"a.b+c@example.org\""},
     {"\"a@\"", "\"@b\"", "\"a b@c\"", "\"a..b@c\""}},
    {R"({"type": "string", "format": "ipv4"})",
     {"\"192.168.0.255\""},
     {"\"256.1.1.1\"", "\"1.1.1\"", "\"01.1.1.1\""}},
    {R"({"type": "string", "format": "ipv6"})",
     {"\"::1\"", "\"2001:db8::ff00:42:8329\"", "\"::ffff:1.2.3.4\"", "\"1:2:3:4:5:6:7:8\""},
     {"\"1::2::3\"", "\"12345::\"", "\"1:2:3\""}},
    {R"({"type": "string", "format": "uri"})",
     {"\"https://a.example/b?c=d#e\"", "\"mailto:x@y.z\"", "\"urn:a:b\""},
     {"\"/relative\"", "\"a b:c\"", "\"x\""}},
    {R"({"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "maxLength": 1}]})",
     {"5", "\"a\""},
     {"4", "\"ab\"", "null"}},
    {R"({"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]})", {"2", "4"}, {"1", "5", "\"a\""}},
    {R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}, "b": true}}],
         "type": "object", "additionalProperties": true})",
     {R"({"a":3,"b":0})", R"({"a":4})"},
     {R"({"a":2})", "{}"}},
    {R"({"allOf": [{"properties": {"a": true}, "additionalProperties": false}, {"properties": {"b": true}}], "type": "object"})",
     {R"({"a":1})", "{}"},
     {R"({"b":1})"}},
    {R"({"oneOf": [{"type": "integer"}, {"type": "string"}]})", {"1", "\"a\""}, {"null"}},
    {R"({"type": "object", "oneOf": [{"properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k"]},
         {"properties": {"k": {"const": "b"}, "x": {"type": "string"}}, "required": ["k"]}]})",
     {R"({"k":"a","x":1})", R"({"k":"b","x":"s"})"},
     {R"({"k":"a","x":"s"})", R"({"k":"c"})", "{}"}},
    {R"({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}]})",
     {"3", "4"},
     {"\"a\""}},
    {R"({"anyOf": [{"minimum": 3}, {"type": "string"}], "type": ["integer", "string"], "maximum": 9})",
     {"3", "9", "\"a\""},
     {"2", "10"}},
    {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
         "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": false}}})",
     {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":null}})"},
     {R"({"next":null})", R"({"v":1,"next":{}})"}},
    {R"({"properties": {"self": {"$ref": "#"}}, "additionalProperties": false})",
     {"{}", R"({"self":{"self":{}}})"},
     {R"({"self":{"x":1}})"}},
    {R"({"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"const": 1}}})", {"1"}, {"2"}},
    {R"({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "null"}}})", {"null"}, {"1"}},
    {R"({"$ref": "#/$defs/i", "maximum": 3, "$defs": {"i": {"type": "integer"}}})", {"3"}, {"4", "\"a\""}},
    {R"({"type": "array", "items": {"$ref": "#"}, "maxItems": 2})",
     {"[]", "[[],[[]]]"},
     {"[[],[],[]]", "[1]"}},
    {R"({"title": "t", "description": "d", "default": 1, "examples": [], "$schema": "https://json-schema.org/draft/2020-12/schema",
         "$id": "x", "$comment": "c", "deprecated": true, "readOnly": false, "writeOnly": false, "type": "null"})",
     {"null"},
     {"1"}},
    {R"({"properties": {"\u0001\"\\": {"type": "integer"}}, "additionalProperties": false})",
     {R"({"\u0001\"\\":1})"},
     {R"({"":1})"}},
};

TEST_CASE("JSON Schema: every keyword allows and refuses", "[grammar]") {
  for (const Row& row : kRows) {
    INFO(row.schema);
    const auto automaton = compile_schema(json::parse(row.schema));
    if (row.valid.empty()) {
      REQUIRE(!automaton.ok());
      REQUIRE(automaton.status().message().find("no text satisfies it") != std::string::npos);
      continue;
    }
    INFO(automaton.status().message());
    REQUIRE(automaton.ok());
    for (const char* text : row.valid) {
      INFO(text);
      REQUIRE(accepts(*automaton, text));
    }
    for (const char* text : row.invalid) {
      INFO(text);
      REQUIRE(!accepts(*automaton, text));
    }
  }
}

TEST_CASE("JSON Schema: bounds hold for every number nearby", "[grammar]") {
  for (const double low : {-120.5, -20.0, -1.0, 0.0, 0.25, 9.0, 99.0})
    for (const double high : {-100.0, -0.5, 0.0, 1.0, 10.0, 100.5, 123.0}) {
      if (low > high) continue;
      for (const bool integer : {true, false})
        for (const char* kind : {"", "exclusive"}) {
          const bool strict = *kind != 0;
          json::object schema = {{"type", integer ? "integer" : "number"}};
          schema[strict ? "exclusiveMinimum" : "minimum"] = low;
          schema[strict ? "exclusiveMaximum" : "maximum"] = high;
          const auto automaton = compile_schema(schema);
          INFO(json::serialize(schema));
          oar_test::Sample sample;
          for (int n = -1300; n <= 1300; ++n) {
            if (!sample.take()) continue;
            const double value = integer ? n : n / 10.0;
            std::string text = std::to_string(n / (integer ? 1 : 10));
            if (!integer) {
              text = n < 0 && n > -10 ? "-0" : text;
              if (n % 10 != 0) text += "." + std::to_string(std::abs(n % 10));
            }
            const bool inside = strict ? value > low && value < high : value >= low && value <= high;
            INFO(text);
            REQUIRE((automaton.ok() && accepts(*automaton, text)) == inside);
          }
        }
    }
}

TEST_CASE("JSON Schema: multiples are those that division finds", "[grammar]") {
  for (const int m : {2, 7, 12, 40, 96, 125, 375, 1024, 2048, 6000}) {
    for (const int low : {0, 5, 1234}) {
      const auto automaton = compile_schema(
          json::object{{"type", "integer"}, {"multipleOf", m}, {"minimum", low}, {"maximum", 3'000'000'000}});
      INFO(m << " from " << low << automaton.status().message());
      REQUIRE(automaton.ok());
      int wrong = 0;
      oar_test::Sample sample(11);
      for (int n = 0; n < 25'000; ++n)
        if (sample.take())
          wrong += accepts(*automaton, std::to_string(n)) != (n >= low && n % m == 0) ? 1 : 0;
      REQUIRE(wrong == 0);
    }
  }
}

std::string refusal(std::string_view schema) {
  const auto automaton = compile_schema(json::parse(schema));
  return automaton.ok() ? "" : automaton.status().message();
}

TEST_CASE("JSON Schema: what is not supported is refused with its path", "[grammar]") {
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"uniqueItems": true})", "$.uniqueItems is not supported"},
      {R"({"properties": {"a": {"items": {"not": {}}}}})", "$.properties.a.items.not is not supported"},
      {R"({"anyOf": [{"if": {}}]})", "$.anyOf[0].if is not supported"},
      // Where no value comes.
      {R"({"type": "integer", "$defs": {"a": {"if": {}}}})", "$.$defs.a.if is not supported"},
      {R"({"type": "integer", "definitions": {"a": {"items": [{"if": {}}]}}})",
       "$.definitions.a.items[0].if is not supported"},
      {R"({"type": "integer", "properties": {"a": {"oneOf": [{"if": {}}]}}})",
       "$.properties.a.oneOf[0].if is not supported"},
      {R"({"type": "string", "additionalProperties": {"patternProperties": {"b": {"if": {}}}}})",
       "$.additionalProperties.patternProperties.b.if is not supported"},
      {R"({"prefixItems": [true, {"minContains": 1}]})", "$.prefixItems[1].minContains is not supported"},
      {R"({"type": "strng"})", "$.type is no type of JSON"},
      {R"({"type": "string", "format": "hostname"})",
       "$.format \"hostname\" is not supported; supported are date"},
      {R"x({"type": "string", "pattern": "a(?!b)"})x", "$.pattern: in the pattern at byte"},
      {R"({"multipleOf": 0.01})", "$.multipleOf is supported for integers"},
      {R"({"minLength": -1})", "$.minLength must be an integer of at least 0, got -1"},
      {R"({"properties": 3})", "$.properties must be an object"},
      {R"({"items": 3})", "$.items must be a schema"},
      {R"({"$ref": "https://example.com/x"})", "\"https://example.com/x\" is not in this schema"},
      {R"({"$ref": "#/$defs/none"})", "\"#/$defs/none\" names nothing"},
      {R"({"$ref": "#"})", "$ refers to itself without end"},
      {R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "refers to itself without end"},
      {R"({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})",
       "refers to itself without end"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"})",
       "no text satisfies it"},
      {"false", "no text satisfies it"},
      {R"({"type": "integer", "minimum": 5, "maximum": 4})", "no text satisfies it"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
       "$.oneOf is supported where no value satisfies two"},
      {R"({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]})", "[0] and [1] may both hold"},
      {"[]", "$ must be a schema"},
      {R"({"const": 18446744073709551617})", "$.const is a number that 64 bits do not hold exactly"},
      {R"({"properties": {"a": {"enum": [1, [-36893488147419103233]]}}})",
       "$.properties.a.enum has what is a num"},
      {R"({"type": "integer", "minimum": 36893488147419103233, "maximum": 36893488147419103239})",
       "$.minimum is a number that 64 bits do not hold exactly"},
      {R"({"exclusiveMaximum": -1e30})", "$.exclusiveMaximum is a number that"},
      {R"({"const": 9007199254740993.0})", "$.const is a number that"},
      {R"({"type": "integer", "multipleOf": 10007})",
       "$.multipleOf 10007 tells more than 2000 remainders apart"},
  };
  for (const auto& [schema, message] : kCases) {
    INFO(schema << ": " << refusal(schema));
    REQUIRE(refusal(schema).find(message) != std::string::npos);
  }
}

TEST_CASE("JSON Schema: what explodes is refused, and soon", "[grammar]") {
  // 100,000 members; alternatives that multiply; a pattern whose automaton grows without end.
  json::object members;
  for (int i = 0; i < 100'000; ++i)
    members["field" + std::to_string(i)] = json::object{{"type", "string"}, {"maxLength", i}};
  const json::value wide = json::object{{"type", "object"}, {"properties", members}};
  auto automaton = compile_schema(wide);
  REQUIRE(!automaton.ok());
  INFO(automaton.status().message());
  REQUIRE(automaton.status().message().find("$.properties.field") != std::string::npos);
  REQUIRE(automaton.status().message().find("too large") != std::string::npos);

  // Members that may all be missing: 4,000 in a row are followed at once, one more is named.
  const auto optional = [](int count, const json::array& required) {
    json::object nulls;
    for (int i = 0; i < count; ++i) nulls["p" + std::to_string(i)] = json::object{{"type", "null"}};
    return json::value(
        json::object{{"properties", nulls}, {"required", required}, {"additionalProperties", false}});
  };
  const auto at_once = compile_schema(optional(4'000, {}));
  REQUIRE(at_once.ok());
  REQUIRE(accepts(*at_once, R"({"p0":null,"p1999":null,"p3999":null})"));
  const auto in_two_rows = compile_schema(optional(8'001, {"p4000"}));
  REQUIRE(in_two_rows.ok());
  REQUIRE(accepts(*in_two_rows, R"({"p3999":null,"p4000":null,"p8000":null})"));
  REQUIRE(!accepts(*in_two_rows, R"({"p3999":null,"p8000":null})"));
  const std::string why = refusal(json::serialize(optional(4'001, {})));
  INFO(why);
  REQUIRE(why.find("$.properties.p0 makes the schema too large") != std::string::npos);
  REQUIRE(why.find("required") != std::string::npos);

  json::array all;
  for (int i = 0; i < 30; ++i)
    all.push_back(
        json::object{{"anyOf", json::array{json::object{{"minimum", i}}, json::object{{"maxLength", i}}}}});
  REQUIRE(refusal(json::serialize(json::object{{"allOf", all}})).find("combinations") != std::string::npos);

  REQUIRE(refusal(R"({"type": "string", "pattern": "(a|b)*a(a|b){30}$", "maxLength": 100})")
              .find("too complex") != std::string::npos);
  REQUIRE(refusal(R"({"type": "string", "pattern": "x", "maxLength": 4000000})").find("too complex") !=
          std::string::npos);
  REQUIRE(refusal(json::serialize(json::object{{"pattern", std::string(1 << 20, 'a')}})).find("too long") !=
          std::string::npos);
  json::object keys;
  for (int i = 0; i < 9; ++i) keys["^" + std::to_string(i)] = json::object{{"minimum", i}};
  REQUIRE(refusal(json::serialize(json::object{{"patternProperties", keys}})).find("at most 5") !=
          std::string::npos);

  // Patterns that each alternative of oneOf is told apart by; one string against many patterns.
  json::array apart, either, values;
  for (int i = 0; i < 200; ++i) {
    apart.push_back(json::object{{"pattern", "^" + std::to_string(i) + "(a|b)*a(a|b){9}$"}});
    either.push_back(json::object{{"pattern", std::to_string(i) + "y$"}});
  }
  for (auto& a : apart) a.as_object()["type"] = "string";
  for (int i = 0; i < 20'000; ++i) values.push_back(json::value(std::string(40, 'x') + std::to_string(i)));
  json::array many;  // parts of one place
  for (int i = 0; i < 100'000; ++i) many.push_back(json::object{{"minLength", i}});
  json::object chain;  // each refers to the next
  for (int i = 0; i < 50'000; ++i)
    chain[std::to_string(i)] = json::object{{"$ref", "#/$defs/" + std::to_string(i + 1)}};
  chain["50000"] = true;
  const json::value kTooMuch[] = {
      json::object{{"oneOf", apart}}, json::object{{"enum", values}, {"anyOf", either}},
      json::object{{"allOf", many}}, json::object{{"$ref", "#/$defs/0"}, {"$defs", chain}}};
  for (const json::value& schema : kTooMuch) {
    const std::string why = refusal(json::serialize(schema));
    INFO(why);
    REQUIRE(why.starts_with("$"));
    REQUIRE(why.find("makes the schema too large") != std::string::npos);
    REQUIRE(why.find("use fewer") != std::string::npos);
  }
  // A name of a megabyte is not repeated for each of its members.
  json::object inner;
  for (int i = 0; i < 20; ++i) inner["p" + std::to_string(i)] = json::object{{"not", true}};
  const json::object long_name{{std::string(1 << 20, 'n'), json::object{{"properties", inner}}}};
  REQUIRE(refusal(json::serialize(json::object{{"properties", long_name}})).size() < 1'000);
}

// Steps of work that reading a schema takes, and asking for each of its constants whether they satisfy it.
size_t work(const json::value& schema, size_t shapes) {
  SchemaDocument document(schema);
  const auto all = document.shapes({&schema});
  INFO(all.status().message());
  REQUIRE(all.ok());
  REQUIRE(all->size() == shapes);
  for (const Shape& s : *all)
    for (const json::value* v : s.values->list) {
      const auto fits = document.admits(s, *v, 0);
      REQUIRE((fits.ok() && *fits));
    }
  return document.work();
}

TEST_CASE("JSON Schema: the work that constants take grows with their number alone", "[grammar]") {
  const auto numbers = [](int from, int to) {
    json::array out;
    for (int i = from; i < to; ++i) out.push_back(i);
    return out;
  };
  const auto texts = [](int count, int group) {
    json::array out;
    for (int i = 0; i < count; ++i)
      out.push_back(json::value(std::to_string(group) + "v" + std::to_string(i)));
    return out;
  };
  const auto list = [&](int n) { return work(json::object{{"enum", numbers(0, n)}}, 1); };
  REQUIRE(list(20'000) >= 40'000);  // it does count
  REQUIRE(list(40'000) <= list(20'000) * 21 / 10);
  REQUIRE(work(json::object{{"enum", texts(100'000, 0)}}, 1) <= 400'000);
  const auto both = [&](int n) {
    return work(json::object{{"allOf", json::array{json::object{{"enum", numbers(0, n)}},
                                                   json::object{{"enum", numbers(n / 2, 2 * n)}}}}},
                1);
  };
  REQUIRE(both(8'000) <= both(4'000) * 21 / 10);
  json::array one;
  for (int g = 0; g < 200; ++g) one.push_back(json::object{{"enum", texts(200, g)}});
  REQUIRE(work(json::object{{"oneOf", one}}, 200) <= 1'000'000);
  json::array objects;
  for (int g = 0; g < 700; ++g) objects.push_back(json::object{{"k" + std::to_string(g), numbers(0, 300)}});
  REQUIRE(work(json::object{{"enum", objects}}, 1) <= 1'000'000);
  // Equal values, however they are written, are one.
  REQUIRE(refusal(R"({"oneOf": [{"enum": [1, [{"a": 2, "b": 3}]]}, {"enum": [[{"b": 3.0, "a": 2}]]}]})")
              .find("may both hold") != std::string::npos);
  REQUIRE(refusal(R"({"oneOf": [{"enum": [1, "a"]}, {"enum": ["1", true, null, [], {}, 1.5]}]})").empty());
}

}  // namespace
