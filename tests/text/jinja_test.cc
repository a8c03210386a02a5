// Chat templates: vendors' templates against reference renderings, small snippets against a golden that
// Python's jinja2 wrote (jinja_oracle.py), and hostile templates against the limits.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/json.h"
#include "engine/text/chat_template.h"
#include "engine/text/jinja/value.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"

namespace oar {
namespace {

json::value parse(std::string_view text) {
  auto v = parse_json(text, "test data");
  REQUIRE(v.ok());
  return std::move(v).value();
}

std::vector<json::value> parse_lines(const std::string& text) {
  std::vector<json::value> rows;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = std::min(text.find('\n', pos), text.size());
    if (end > pos) rows.push_back(parse(std::string_view(text).substr(pos, end - pos)));
    pos = end + 1;
  }
  return rows;
}

std::string string_of(const json::value& v) { return {v.as_string().data(), v.as_string().size()}; }

std::tm time_of(int year, int month, int day, int hour, int minute, int second) {
  std::tm t{};
  t.tm_year = year - 1900;
  t.tm_mon = month - 1;
  t.tm_mday = day;
  t.tm_hour = hour;
  t.tm_min = minute;
  t.tm_sec = second;
  return t;
}

Result<std::string> render(const std::string& source, const ChatTemplateOptions& options = {},
                           const json::array& messages = {}, const json::array* tools = nullptr) {
  auto t = ChatTemplate::parse(source);
  if (!t.ok()) return t.status();
  OAR_ASSIGN(ChatPrompt prompt, t->render(messages, tools, options));
  return std::move(prompt.text);
}

std::string must_render(const std::string& source, const json::array& messages = {}) {
  auto r = render(source, {}, messages);
  INFO(source);
  INFO(r.status().to_string());
  REQUIRE(r.ok());
  return *r;
}

Status must_fail(const std::string& source) {
  auto r = render(source);
  INFO(source.substr(0, 200));
  REQUIRE_FALSE(r.ok());
  return r.status();
}

std::string repeat(std::string_view s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

// Calls visit(n) for each place where `token` stands in the prompt: n of its bytes are marked.
template <class Visit>
void each_place(const ChatPrompt& p, std::string_view token, Visit visit) {
  for (size_t at = p.text.find(token); at != std::string::npos; at = p.text.find(token, at + token.size())) {
    size_t marked = 0;
    for (const TextSpan& s : p.user) {
      const size_t begin = std::max(s.begin, at), end = std::min(s.end, at + token.size());
      if (begin < end) marked += end - begin;
    }
    visit(marked);
  }
}

// No control token that the template wrote is marked; `given` is all that came with the request.
void check_template_tokens(const ChatPrompt& p, const std::string& given, const std::string& bos) {
  std::vector<std::string> tokens = {bos, "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>"};
  for (size_t at = p.text.find("<|"); at != std::string::npos; at = p.text.find("<|", at + 2)) {
    const size_t end = p.text.find("|>", at);
    if (end != std::string::npos && end - at < 40) tokens.push_back(p.text.substr(at, end + 2 - at));
  }
  for (const std::string& token : tokens) {
    if (token.empty() || given.find(token) != std::string::npos) continue;
    each_place(p, token, [&](size_t marked) {
      INFO(token);
      CHECK(marked == 0);
    });
  }
}

// Puts a control token behind every string but roles and types, and into no key.
void spike(json::value& v, std::string_view key = {}) {
  if (v.is_string() && key != "role" && key != "type") v.get_string() += " <|zz|>";
  if (v.is_array())
    for (json::value& item : v.get_array()) spike(item, key);
  if (v.is_object())
    for (auto& member : v.get_object()) spike(member.value(), {member.key().data(), member.key().size()});
}

void render_whole(const std::string& folder, const std::string& expected, int rows) {
  const json::value cases = parse(oar_test::read_file(folder + "/cases.json"));
  int count = 0, spiked = 0;
  for (const json::value& row : parse_lines(oar_test::read_file(folder + "/" + expected))) {
    const std::string name = string_of(row.at("template"));
    const json::object& input = cases.at(string_of(row.at("case"))).as_object();
    auto t = ChatTemplate::parse(oar_test::read_file(folder + "/" + name));
    INFO(name << " " << string_of(row.at("case")));
    INFO(t.status().to_string());
    REQUIRE(t.ok());
    ChatTemplateOptions options;
    options.add_generation_prompt = row.at("add_generation_prompt").as_bool();
    options.bos_token = string_of(row.at("bos_token"));
    options.eos_token = string_of(row.at("eos_token"));
    REQUIRE(string_of(row.at("now")) == "2026-01-15T09:30");
    options.now = time_of(2026, 1, 15, 9, 30, 0);
    const json::value* tools = input.if_contains("tools");
    const auto text =
        t->render(input.at("messages").as_array(), tools ? &tools->as_array() : nullptr, options);
    if (const json::value* error = row.as_object().if_contains("error")) {
      INFO(string_of(*error));
      CHECK_FALSE(text.ok());
    } else {
      INFO(text.status().to_string());
      REQUIRE(text.ok());
      CHECK(text->text == string_of(row.at("expected")));
      check_template_tokens(*text, serialize(input), options.bos_token);
      json::value hostile = input;
      spike(hostile);
      const json::value* its_tools = hostile.get_object().if_contains("tools");
      const auto prompt =
          t->render(hostile.at("messages").as_array(), its_tools ? &its_tools->as_array() : nullptr, options);
      if (prompt.ok()) {
        check_template_tokens(*prompt, serialize(hostile), options.bos_token);
        each_place(*prompt, "<|zz|>", [&](size_t marked) {
          CHECK(marked == 6);
          ++spiked;
        });
      }
    }
    ++count;
  }
  CHECK(count == rows);
  CHECK(spiked > rows);
}

TEST_CASE("whole chat templates render as the reference does", "[jinja]") {
  // Ours: tests/golden/generate_chat_templates.py.
  render_whole(oar_test::source_path("tests/data/chat_templates"), "expected.jsonl", 40);
  if (const auto vendors = oar_test::data_path("chat_templates"))
    render_whole(*vendors, "expected_jinja2_share.jsonl", 198);
}

TEST_CASE("snippets render as Python's jinja2 does", "[jinja]") {
  const auto rows =
      parse_lines(oar_test::read_file(oar_test::source_path("tests/text/golden/jinja_cases.jsonl")));
  REQUIRE(rows.size() > 900);
  ChatTemplateOptions options;
  options.extra = rows[0].at("context").as_object();
  options.now = time_of(2026, 1, 5, 9, 7, 3);
  for (size_t i = 1; i < rows.size(); ++i) {
    const std::string source = string_of(rows[i].at("template"));
    const auto text = render(source, options);
    INFO(source);
    if (const json::value* error = rows[i].as_object().if_contains("error")) {
      INFO(string_of(*error));
      INFO((text.ok() ? *text : std::string()));
      CHECK_FALSE(text.ok());
    } else {
      INFO(text.status().to_string());
      CHECK(text.ok());
      if (text.ok()) CHECK(*text == string_of(rows[i].at("expected")));
    }
  }
}

// --- limits: a hostile template ends with RESOURCE_EXHAUSTED (or a plain error), quickly and in bounded
// memory ---

// The limits of most of these tests: the defaults only take longer to reach.
jinja::Limits small_limits() {
  jinja::Limits limits;
  limits.max_steps = 1'000'000;
  limits.max_memory = size_t{16} << 20;
  limits.max_output = size_t{4} << 20;
  return limits;
}

void must_exhaust(const std::string& source, const jinja::Limits& limits = small_limits()) {
  auto t = ChatTemplate::parse(source);
  REQUIRE(t.ok());
  const auto r = t->render({}, nullptr, {}, limits);  // steps are counted: a hang ends the test's own limit
  INFO(source.substr(0, 200));
  REQUIRE_FALSE(r.ok());
  INFO(r.status().to_string());
  CHECK(r.status().code() == StatusCode::kResourceExhausted);
}

TEST_CASE("the default limits end a hostile render", "[jinja]") {
  jinja::Limits of_steps;
  if (oar_test::kSlow) of_steps.max_steps /= 10;
  must_exhaust("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", of_steps);
  must_exhaust(
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
      jinja::Limits{});
}

TEST_CASE("endless work runs out of steps", "[jinja]") {
  const std::string loop = "{% for i in range(100000) %}";
  must_exhaust(loop + loop + loop + "{% endfor %}{% endfor %}{% endfor %}");
  must_exhaust(loop + loop + "{% if i in range(100000) %}{% endif %}{% endfor %}{% endfor %}");
  must_exhaust("{% set s = 'ab' * 100000 %}" + loop +
               "{{ s|length }}{{ s.find('ba' * 5000 ~ 'c') }}{% endfor %}");
  must_exhaust("{% set s = 'a' * 100000 %}" + loop + "{% if s|upper == s|lower %}{% endif %}{% endfor %}");
  must_exhaust("{% set l = range(100000)|list %}" + loop + "{% if l == l + [] %}{% endif %}{% endfor %}");
  must_exhaust("{% set s = 'a' * 100000 %}" + loop +
               "{{ s[-50000] }}{{ s[50000] }}{{ s[::-1][0] }}{% endfor %}");
  must_exhaust("{% set l = range(50000)|list %}" + loop + "{% set _ = l.insert(0, l.pop()) %}{% endfor %}");
  must_exhaust("{% set s = 'a ' * 100000 %}" + loop +
               "{% set _ = s.split() %}{{ s.strip('a ') }}{% endfor %}");
}

TEST_CASE("big values run out of memory before they exist", "[jinja]") {
  must_exhaust("{{ 'x' * 500000000 }}");
  must_exhaust("{{ 'x' * 170141183460469231731687303715884105727 }}");
  must_exhaust("{{ [0] * 1000000000 }}");
  must_exhaust("{{ ('x' * 2000000).replace('x', 'xxxxxxxxxx') }}");
  must_exhaust("{{ ('x' * 100000)|replace('', 'y' * 100000) }}");
  must_exhaust("{{ 'x'.ljust(99999999999) }}");
  must_exhaust("{{ 'x'.zfill(99999999999) }}");
  must_exhaust("{{ 'x'|center(99999999999) }}");
  must_exhaust(
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
  must_exhaust(
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}");
  must_exhaust(
      "{% set ns = namespace(s=['x']) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}");
  must_exhaust(
      "{% set ns = namespace(s=['x']) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
      "{{ ns.s }}");
  must_exhaust(
      "{% set ns = namespace(s=['x']) %}{% for i in range(30) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
      "{{ ns.s|tojson }}");
  must_exhaust("{% set s = 'x' * 5000000 %}{{ [s, s, s, s]|join }}");
  must_exhaust("{% set s = 'x' * 5000000 %}{{ ','.join([s, s, s, s]) }}");
  must_exhaust("{% set s = 'x' * 5000000 %}{{ '%s%s%s'|format(s, s, s) }}");
  must_exhaust("{% set s = 'x' * 5000000 %}{{ '{0}{0}{0}'.format(s) }}");
  must_exhaust("{{ ('\n' * 100000)|indent(10000, blank=true) }}");
  must_exhaust("{{ ('x' * 5000000)|list }}");
  must_exhaust("{{ ('x' * 5000000).split('x') }}");
  must_exhaust(
      "{% set l = [] %}{% for i in range(100000) %}{% for j in range(100000) %}{% set _ = l.append(i) %}"
      "{% endfor %}{% endfor %}");
  // Output, also where it is captured.
  must_exhaust("{% set s = 'x' * 100000 %}{% for i in range(100) %}{{ s }}{% endfor %}");
  must_exhaust(
      "{% set s = 'x' * 100000 %}{% set t %}{% for i in range(100) %}{{ s }}{% endfor %}{% endset %}");
  must_exhaust("{% macro m(n) %}{% set s = 'x' * 100000 %}{{ s }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}");
  CHECK(must_fail("{{ range(1000000000) }}").message().find("Range too big") != std::string::npos);
}

// Refused by the parser, for being too deep.
void must_reject(const std::string& source) {
  const Status s = must_fail(source);
  INFO(source.substr(0, 200));
  INFO(s.to_string());
  CHECK(s.message().find("levels") != std::string::npos);
}

TEST_CASE("recursion is bounded, parsing and running", "[jinja]") {
  must_exhaust("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  must_exhaust(
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{% if true %}{{ [a()]|map('upper')|join }}{% "
      "endif %}"
      "{% endmacro %}{{ a() }}");
  must_exhaust("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
  must_exhaust("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}");
  must_exhaust("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}");
  must_exhaust(
      "{% set l = [] %}{% set _ = l.append(l) %}{% set m = [] %}{% set _ = m.append(m) %}{{ l == m }}");
  must_exhaust(
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l "
      "}}");
  must_exhaust(
      "{% set ns = namespace(l=()) %}{% for i in range(5000) %}{% set ns.l = (ns.l,) %}{% endfor %}"
      "{{ {ns.l: 1} }}");
  for (const int n : {1000, 20000}) {
    must_reject("{{ " + repeat("(", n) + "1" + repeat(")", n) + " }}");
    must_reject("{{ " + repeat("[", n) + repeat("]", n) + " }}");
    must_reject("{{ " + repeat("{1:", n) + "1" + repeat("}", n) + " }}");
    must_reject("{{ " + repeat("not ", n) + "1 }}");
    must_reject("{{ " + repeat("-", n) + "1 }}");
    must_reject("{{ x" + repeat("[x", n) + repeat("]", n) + " }}");
    must_reject("{{ x" + repeat("(x", n) + repeat(")", n) + " }}");
    must_reject("{{ x" + repeat("|f(x", n) + repeat(")", n) + " }}");
    must_reject("{{ 1" + repeat(" + 1", n) + " }}");
    must_reject("{{ x" + repeat(".a", n) + " }}");
    must_reject("{{ x" + repeat("|upper", n) + " }}");
    must_reject("{{ 1" + repeat(" if 1 else 1", n) + " }}");
    must_reject("{{ 1" + repeat(" is divisibleby 1", n) + " }}");
    must_reject(repeat("{% if 1 %}", n) + repeat("{% endif %}", n));
    must_reject(repeat("{% for x in [1] %}", n) + repeat("{% endfor %}", n));
    must_reject(repeat("{% macro m() %}", n) + repeat("{% endmacro %}", n));
    must_reject("{% set " + repeat("(", n) + "a" + repeat(")", n) + " = 1 %}");
  }
  // What real templates need is far inside the bounds.
  CHECK(must_render("{{ " + repeat("(", 60) + "1" + repeat(")", 60) + " }}") == "1");
  CHECK(must_render("{{ 1" + repeat(" + 1", 300) + " }}") == "301");
  CHECK(must_render("{{ 'a'" + repeat(" ~ 'a'", 5000) + " }}") == repeat("a", 5001));
  CHECK(must_render("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% else %}x{% endif %}") == "x");
  CHECK(
      must_render(
          "{% macro m(n) %}{% if n %}{% for i in [1] %}<{{ m(n - 1) }}>{% endfor %}{% endif %}{% endmacro %}"
          "{{ m(50) }}") == repeat("<", 50) + repeat(">", 50));
}

TEST_CASE("sharing long strings is cheap", "[jinja]") {
  // 4000 messages of 1 KB: slices and splits share storage, so this stays far below the limits.
  json::array messages;
  const std::string content = repeat("some words of a message ", 42);
  for (int i = 0; i < 4000; ++i)
    messages.push_back(json::object{{"role", i % 2 ? "assistant" : "user"}, {"content", content}});
  const std::string text = must_render(
      "{% for m in messages %}{% set c = m.content.split('</think>')[-1]|trim %}{{ m.role + ': ' + c[0:5] + "
      "c[5:] + '\n' }}"
      "{% if not loop.last and messages[loop.index].role == m.role %}{{ raise_exception('x') }}{% endif %}{% "
      "endfor %}",
      messages);
  CHECK(text.size() > 4'000'000);
}

TEST_CASE("what a template lets go of is no longer counted", "[jinja]") {
  // For each of 2,000 messages Gemma's newest template looks back for the last one that is no tool's, through
  // a range and a namespace of its own: two million variables and 64 MB of ranges, of which few live at a
  // time.
  json::array messages;
  for (int i = 0; i < 2000; ++i)
    messages.push_back(json::object{{"role", i % 2 ? "assistant" : "user"}, {"content", "words"}});
  const std::string text = must_render(
      "{% for m in messages %}{% set before = namespace(role=None, found=false) %}"
      "{% for j in range(loop.index0 - 1, -1, -1) %}{% if not before.found %}{% if messages[j].role != "
      "'tool' %}"
      "{% set before.role = messages[j].role %}{% set before.found = true %}{% endif %}{% endif %}{% endfor "
      "%}"
      "{{ before.role }},{% endfor %}",
      messages);
  CHECK(text.starts_with("None,user,assistant,user,"));

  jinja::Limits limits = small_limits();
  limits.max_memory = size_t{64} << 10;
  const auto within = [&](const std::string& source) {
    auto t = ChatTemplate::parse(source);
    REQUIRE_OK(t);
    return t->render({}, nullptr, {}, limits);
  };
  // Each turn makes and drops some hundred bytes, 500 times: lists, dicts, namespaces, macros, cycles.
  for (const char* body :
       {"{% set x = [1, 2, 3] %}", "{% set x = {'a': [1], 'b': {}} %}", "{% set x = range(9) %}",
        "{% set x = namespace(a=[1]) %}", "{% set x = [[[[]]]] %}", "{% set x = 'a,b'.split(',') %}",
        "{% set x = [3, 1] | sort | list %}", "{% set x = {'a': 1}.items() | list %}",
        "{% for a in [1, 2] %}{% set x = loop %}{% endfor %}", "{% set x = [1, 1] | unique | list %}",
        "{% set x = joiner() %}{{ x() }}", "{% set x = cycler(1, 2) %}{% set y = x.next() %}"}) {
    INFO(body);
    const auto r = within(std::string("{% for i in range(500) %}") + body + "{% endfor %}");
    CHECK(r.status().message() == "");
  }
  // What is still held counts, in a cycle too.
  for (const char* body : {"{% set _ = kept.append([1]) %}", "{% set x = [] %}{% set _ = x.append(x) %}",
                           "{% set x = namespace() %}{% set x.self = x %}"}) {
    INFO(body);
    const auto r =
        within(std::string("{% set kept = [] %}{% for i in range(500) %}") + body + "{% endfor %}");
    CHECK(r.status().code() == StatusCode::kResourceExhausted);
  }
  // A value that owns the one that takes its place.
  CHECK(
      must_render(
          "{% set ns = namespace(x=[['a']]) %}{% set ns.x = ns.x[0] %}{% set ns.x = ns.x[0] %}{{ ns.x }}") ==
      "a");
  CHECK(must_render(
            "{% set d = {'a': {'b': 'c'}} %}{% set _ = d.update(d.a) %}{{ d.pop('a').b }}{{ d.b }}") == "cc");
  // A chain as long as memory allows is let go of without recursion.
  CHECK(must_render(
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}"
            "{% set ns.x = 1 %}{{ ns.x }}") == "1");
}

TEST_CASE("errors name the line", "[jinja]") {
  CHECK(must_fail("a\nb\n{{ 1 + }}").message() == "chat template, line 3: unexpected '}}'");
  CHECK(must_fail("a\n{% if x %}\nb").message() ==
        "chat template, line 3: unexpected end of the template: {% if %} of line 2 is not closed");
  CHECK(must_fail("a\n\n{{ raise_exception('No system role') }}").message() ==
        "chat template, line 3: No system role");
  CHECK(must_fail("{% macro m() %}\n{{ nope.x }}\n{% endmacro %}\n\n{{ m() }}").message() ==
        "chat template, line 2: 'nope' is undefined");
  CHECK(must_fail("x\n{# \n #}{{\n'a' + 1 }}").message() ==
        "chat template, line 4: can only concatenate str (not \"int\") to str");
  CHECK(must_fail("\n{% include 'x' %}").message() ==
        "chat template, line 2: {% include %} is not supported: a chat template is one file; put the text in "
        "its place");
  CHECK(must_fail("{{ messages[0].content }}").message() ==
        "chat template, line 1: list object has no element 0");
  CHECK(must_fail("{{ 'x'|frobnicate }}").message() == "chat template, line 1: no filter named 'frobnicate'");
  CHECK(ChatTemplate::parse("a\xff").status().message() == "chat template: the text is not valid UTF-8");
  CHECK_FALSE(ChatTemplate::parse(std::string(2 << 20, 'x')).ok());
}

TEST_CASE("a request cannot replace what the server defines", "[jinja]") {
  for (const char* name :
       {"messages", "tools", "add_generation_prompt", "bos_token", "raise_exception", "chat_template"}) {
    ChatTemplateOptions options;
    options.extra[name] = "x";
    const auto r = render("{{ messages }}", options);
    REQUIRE_FALSE(r.ok());
    CHECK(r.status().code() == StatusCode::kInvalidArgument);
    CHECK(r.status().param() == "chat_template_kwargs");
    CHECK(r.status().message().find(name) != std::string::npos);
  }
  ChatTemplateOptions options;
  options.extra["enable_thinking"] = false;
  options.extra["unused"] = parse("[1]");
  const auto r = render("{{ enable_thinking }}{{ bos_token }}{{ tools is defined }}", options);
  REQUIRE(r.ok());
  CHECK(*r == "FalseFalse");
}

TEST_CASE("JSON numbers, null and depth reach the template intact", "[jinja]") {
  const json::value v = parse(
      R"([{"role":"user","content":null,"a":18446744073709551615,"b":-9223372036854775808,"c":1e2,"d":[{"é":"\u0000"}]}])");
  CHECK(
      must_render("{{ messages[0]|tojson }}", v.as_array()) ==
      R"({"role": "user", "content": null, "a": 18446744073709551615, "b": -9223372036854775808, "c": 100.0, "d": [{"é": "\u0000"}]})");
  json::value deep = json::array{};
  for (int i = 0; i < 1000; ++i) deep = json::array{deep};
  CHECK_FALSE(render("{{ messages }}", {}, deep.as_array()).ok());
}

TEST_CASE("the default template is ChatML", "[jinja]") {
  auto t = ChatTemplate::parse(kDefaultChatTemplate);
  REQUIRE(t.ok());
  const json::value m = parse(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])");
  ChatTemplateOptions options;
  CHECK(t->render(m.as_array(), nullptr, options)->text ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  options.add_generation_prompt = false;
  CHECK(t->render(m.as_array(), nullptr, options)->text ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

TEST_CASE("tokenizer_config.json names its template in several ways", "[jinja]") {
  const auto source = [](std::string_view config, bool tools = false, std::string_view name = {}) {
    const json::value v = parse(config);
    return chat_template_source(v.as_object(), tools, name);
  };
  CHECK(!source("{}")->has_value());
  CHECK(!source(R"({"chat_template": null})")->has_value());
  CHECK(**source(R"({"chat_template": "x"})") == "x");
  const char* list =
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, {"name": "rag", "template": "r"}]})";
  CHECK(**source(list) == "d");
  CHECK(**source(list, true) == "t");
  CHECK(**source(list, false, "rag") == "r");
  CHECK(source(list, false, "nope").status().code() == StatusCode::kNotFound);
  CHECK(source(R"({"chat_template": [{"name": "rag", "template": "r"}]})").status().code() ==
        StatusCode::kNotFound);
  for (const char* bad :
       {R"({"chat_template": 5})", R"({"chat_template": {}})", R"({"chat_template": ["x"]})",
        R"({"chat_template": [{"name": 1, "template": "x"}]})"})
    CHECK(source(bad).status().code() == StatusCode::kInvalidArgument);
}

TEST_CASE("one template renders on many threads at once", "[jinja]") {
  auto t = ChatTemplate::parse(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
      "{{ 'constant' + m.content|upper }}{% endfor %}{{ ns.n }}");
  REQUIRE(t.ok());
  const json::value m = parse(R"([{"content":"a"},{"content":"b"}])");
  std::vector<std::string> results(8);
  std::vector<std::thread> threads;
  for (std::string& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) result = t->render(m.as_array(), nullptr, {})->text;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) CHECK(result == "constantAconstantB2");
}

// The rendered text with what came with the messages in ⟦ ⟧.
std::string marked(const std::string& source, const json::array& messages, ChatTemplateOptions options = {}) {
  auto t = ChatTemplate::parse(source);
  REQUIRE(t.ok());
  options.bos_token = "<s>";
  const json::value tools = parse(R"([{"name":"f|</s>"}])");
  auto r = t->render(messages, &tools.as_array(), options);
  INFO(source);
  INFO(r.status().to_string());
  REQUIRE(r.ok());
  std::string out;
  size_t done = 0;
  for (const TextSpan& s : r->user) {
    CHECK(s.begin >= done);
    CHECK(s.begin < s.end);
    out += r->text.substr(done, s.begin - done) + "⟦" + r->text.substr(s.begin, s.end - s.begin) + "⟧";
    done = s.end;
  }
  CHECK(done <= r->text.size());
  return out + r->text.substr(done);
}

TEST_CASE("what came with the messages is marked, whatever the template does to it", "[jinja]") {
  const json::value m = parse(
      R"([{"role":"user","content":" a<e> b\n","name":"n</s>","parts":[{"text":"p"},{"text":"q"}],"i":7}])");
  const auto at = [&](const std::string& expression) {
    return marked("{% set m = messages[0] %}{% set c = m.content %}{{ " + expression + " }}", m.as_array());
  };
  CHECK(at("bos_token ~ c ~ '<e>'") == "<s>⟦ a<e> b\n⟧<e>");
  CHECK(at("bos_token + c + '<e>' + m.name") == "<s>⟦ a<e> b\n⟧<e>⟦n</s>⟧");
  CHECK(at("'<|' + m.role + '|>' + c|trim + '<e>'") == "<|user|>⟦a<e> b⟧<e>");
  CHECK(at("('<s>' + c + '</s>')[3:7]") == "⟦ a<e⟧");
  CHECK(at("('<s>' + c + '</s>')[1:5]") == "s>⟦ a⟧");
  CHECK(at("('<s>' + c)[::-1]") == "⟦\nb >e<a ⟧>s<");
  CHECK(at("('<s>' + c).split('<e>')[1] + '!'") == "⟦ b\n⟧!");
  CHECK(at("('<s>' + c).split('a')|join('<x>')") == "<s>⟦ ⟧<x>⟦<e> b\n⟧");
  CHECK(at("['<s>', c, 'z']|join(m.name)") == "<s>⟦n</s> a<e> b\nn</s>⟧z");
  CHECK(at("'-'.join(['<s>', c])") == "<s>-⟦ a<e> b\n⟧");
  CHECK(at("m.parts|map(attribute='text')|join('<i>')") == "⟦p⟧<i>⟦q⟧");
  CHECK(at("('<s>' + c).replace('<e>', '<t>')") == "<s>⟦ a⟧<t>⟦ b\n⟧");
  CHECK(at("'<s>x<e>'.replace('x', m.name)") == "<s>⟦n</s>⟧<e>");
  CHECK(at("'<s>%s<e>%d' % (m.name, m.i)") == "<s>⟦n</s>⟧<e>7");
  CHECK(at("'<s>%-6s<e>' % m.name") == "<s>⟦n</s> ⟧<e>");
  CHECK(at("'<s>{}<e>{n:>7}'.format(m.role, n=m.name)") == "<s>user<e>⟦  n</s>⟧");
  CHECK(at("c.format('<s>')") == "⟦ a<e> b\n⟧");
  CHECK(at("m.name * 2 + '<s>' * 2") == "⟦n</s>n</s>⟧<s><s>");
  CHECK(at("m.name|upper + '<s>'|upper") == "⟦N</S>⟧<S>");
  CHECK(at("('<s>' + c)|indent(2)") == "<s>⟦ a<e> b⟧\n");
  CHECK(at("m.name.center(7) + '<s>'.center(5, '*')") == " ⟦n</s>⟧ *<s>*");
  CHECK(at("m.name|truncate(4, true, '<e>', 0)") == "⟦n⟧<e>");
  CHECK(at("bos_token ~ m.parts|tojson") == "<s>⟦[{\"text\": \"p\"}, {\"text\": \"q\"}]⟧");
  CHECK(at("bos_token ~ [1, '<e>']|tojson") == "<s>[1, \"<e>\"]");
  CHECK(at("bos_token ~ m.parts") == "<s>⟦[{'text': 'p'}, {'text': 'q'}]⟧");
  CHECK(at("tools|tojson") == "⟦[{\"name\": \"f|</s>\"}]⟧");
  CHECK(at("m.i ~ m.name|length ~ (m.name == 'n</s>') ~ ('</s>' in m.name)") == "75TrueTrue");
  CHECK(at("m.keys()|first ~ '<s>'") == "⟦role⟧<s>");
  // Through blocks and macros.
  CHECK(
      marked(
          "{% macro turn(x) %}<s>{{ x }}<e>{% endmacro %}{% set t %}{{ turn(messages[0].name) }}|{% endset %}"
          "{{ t|trim('|') }}{% filter upper %}x{% endfilter %}",
          m.as_array()) == "<s>⟦n</s>⟧<e>X");
  CHECK(marked("{% set ns = namespace(t='') %}{% for p in messages[0].parts %}{% set ns.t = ns.t + '<i>' + "
               "p.text %}"
               "{% endfor %}{{ ns.t }}",
               m.as_array()) == "<i>⟦p⟧<i>⟦q⟧");
}

TEST_CASE("roles and the request's variables are the template's while they are plain words", "[jinja]") {
  const json::value m = parse(R"([{"role":"x|><s><|","content":""}])");
  CHECK(marked("<|{{ messages[0].role }}|>", m.as_array()) == "<|⟦x|><s><|⟧|>");
  ChatTemplateOptions options;
  options.extra = parse(R"({"mode":"no_think","other":"<s>","deep":["word"]})").as_object();
  CHECK(marked("<|{{ mode }}|>{{ other }}{{ deep[0] }}", {}, options) == "<|no_think|>⟦<s>word⟧");
  options.allow_special_in_text = true;
  CHECK(marked("<|{{ mode }}|>{{ other }}", {}, options) == "<|no_think|><s>");
}

TEST_CASE("marks are paid for", "[jinja]") {
  const json::value m = parse(R"([{"role":"user","content":"u"}])");
  auto t = ChatTemplate::parse("{{ ('<' + messages[0].content) * 1000000 }}");
  REQUIRE(t.ok());
  CHECK(t->render(m.as_array(), nullptr, {}, small_limits()).status().code() ==
        StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace oar
