// Free text is an automaton over the triggers (Aho and Corasick): one rule for each beginning of a trigger,
// in which every character leads on, and the last character of a trigger leads into its tags.
#include "engine/text/grammar/structural_tag.h"

#include <algorithm>
#include <deque>
#include <map>

#include "engine/base/format.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/json_schema.h"
#include "engine/text/grammar/regex.h"
#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

constexpr int kMaxTagDepth = 32;
constexpr size_t kMaxTriggerBytes = 4096;  // of all triggers of one format

struct Tag {
  std::string begin;
  Expr content;
  std::string end;
};

class TagWriter {
 public:
  explicit TagWriter(Grammar& g) : g_(g) {}

  Result<Expr> structures(const json::object& o) {
    std::vector<Tag> tags;
    OAR_ASSIGN(const json::array* list, array(o, "structures", "$"));
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string path = cat("$.structures[", i, "]");
      OAR_ASSIGN(const json::object* s, object((*list)[i], path));
      OAR_RETURN_IF_ERROR(only(*s, {"begin", "schema", "end"}, path));
      Tag tag;
      OAR_ASSIGN(tag.begin, text(*s, "begin", path));
      OAR_ASSIGN(tag.end, text(*s, "end", path));
      const auto* schema = s->if_contains("schema");
      if (schema == nullptr) return invalid_argument(cat(path, ".schema is missing"));
      OAR_ASSIGN(tag.content, json_schema(*schema, cat(path, ".schema")));
      tags.push_back(std::move(tag));
    }
    OAR_ASSIGN(const auto triggers, texts(o, "triggers", "$"));
    return free_text(triggers, tags, false, false, "$.triggers");
  }

  Result<Expr> format(const json::value& v, const std::string& path, int depth) {
    if (depth > kMaxTagDepth) return invalid_argument(cat(path, " is nested too deeply"));
    OAR_ASSIGN(const json::object* found, object(v, path));
    const json::object& o = *found;
    OAR_ASSIGN(const std::string type, text(o, "type", path));
    const auto part = [&](std::string_view name) { return cat(path, ".", name); };
    if (type == "const_string") {
      OAR_RETURN_IF_ERROR(only(o, {"type", "value"}, path));
      OAR_ASSIGN(const std::string value, text(o, "value", path));
      return g_.text(value);
    }
    if (type == "json_schema") {
      OAR_RETURN_IF_ERROR(only(o, {"type", "json_schema"}, path));
      const auto* schema = o.if_contains("json_schema");
      if (schema == nullptr) return invalid_argument(cat(part("json_schema"), " is missing"));
      return json_schema(*schema, part("json_schema"));
    }
    if (type == "regex") {
      OAR_RETURN_IF_ERROR(only(o, {"type", "pattern"}, path));
      OAR_ASSIGN(const std::string pattern, text(o, "pattern", path));
      const auto regex = Regex::parse(pattern, Regex::Match::kWhole);
      if (!regex.ok()) return invalid_argument(cat(part("pattern"), ": ", regex.status().message()));
      return regex->to_grammar(g_, Coding::kUtf8);
    }
    if (type == "grammar") {
      OAR_RETURN_IF_ERROR(only(o, {"type", "grammar"}, path));
      OAR_ASSIGN(const std::string source, text(o, "grammar", path));
      const auto root = add_gbnf(source, g_);
      if (!root.ok()) return invalid_argument(cat(part("grammar"), ": ", root.status().message()));
      return g_.use(*root);
    }
    if (type == "any_text") {
      OAR_RETURN_IF_ERROR(only(o, {"type"}, path));
      return g_.repeat(g_.chars(CodePointRanges::all(), Coding::kUtf8), 0, kNoLimit);
    }
    if (type == "sequence" || type == "or") {
      OAR_RETURN_IF_ERROR(only(o, {"type", "elements"}, path));
      OAR_ASSIGN(const json::array* list, array(o, "elements", path));
      std::vector<Expr> parts;
      for (size_t i = 0; i < list->size(); ++i) {
        OAR_ASSIGN(const Expr e, format((*list)[i], cat(path, ".elements[", i, "]"), depth + 1));
        parts.push_back(e);
      }
      return type == "or" ? g_.choice(parts) : g_.sequence(parts);
    }
    if (type == "tag") {
      OAR_ASSIGN(const Tag t, tag(o, path, depth));
      return whole(t);
    }
    if (type != "triggered_tags" && type != "tags_with_separator")
      return invalid_argument(
          cat(part("type"), " \"", type,
              "\" is not supported; supported are const_string, json_schema, regex, grammar, "
              "any_text, sequence, or, tag, triggered_tags, tags_with_separator"));
    const bool triggered = type == "triggered_tags";
    OAR_RETURN_IF_ERROR(only(
        o, {"type", triggered ? "triggers" : "separator", "tags", "at_least_one", "stop_after_first"}, path));
    OAR_ASSIGN(const bool at_least_one, flag(o, "at_least_one", path));
    OAR_ASSIGN(const bool stop_after_first, flag(o, "stop_after_first", path));
    OAR_ASSIGN(const json::array* list, array(o, "tags", path));
    std::vector<Tag> tags;
    std::vector<Expr> ways;
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string where = cat(path, ".tags[", i, "]");
      OAR_ASSIGN(const json::object* t, object((*list)[i], where));
      OAR_ASSIGN(Tag read, tag(*t, where, depth));
      ways.push_back(whole(read));
      tags.push_back(std::move(read));
    }
    if (triggered) {
      OAR_ASSIGN(const auto triggers, texts(o, "triggers", path));
      return free_text(triggers, tags, at_least_one, stop_after_first, part("triggers"));
    }
    OAR_ASSIGN(const std::string separator, text(o, "separator", path));
    const Expr one = g_.choice(ways);
    const Expr more =
        stop_after_first ? g_.empty() : g_.repeat(g_.sequence({g_.text(separator), one}), 0, kNoLimit);
    const Expr some = g_.sequence({one, more});
    return at_least_one ? some : g_.optional(some);
  }

 private:
  // ---- reading ----
  static Status only(const json::object& o, std::initializer_list<std::string_view> names,
                     const std::string& path) {
    for (const auto& m : o)
      if (std::find(names.begin(), names.end(), m.key()) == names.end())
        return invalid_argument(cat(path, ".", m.key(), " is not supported"));
    return ok_status();
  }
  static Result<const json::object*> object(const json::value& v, const std::string& path) {
    if (const auto* o = v.if_object()) return o;
    return invalid_argument(cat(path, " must be an object"));
  }
  static Result<const json::array*> array(const json::object& o, std::string_view name,
                                          const std::string& path) {
    const auto* v = o.if_contains(name);
    if (v != nullptr && v->is_array() && !v->get_array().empty()) return &v->get_array();
    return invalid_argument(cat(path, ".", name, " must be an array that is not empty"));
  }
  static Result<std::string> text(const json::object& o, std::string_view name, const std::string& path) {
    const auto* v = o.if_contains(name);
    if (v != nullptr && v->is_string() && is_valid_utf8(v->get_string())) return std::string(v->get_string());
    return invalid_argument(cat(path, ".", name, " must be a string"));
  }
  static Result<std::vector<std::string>> texts(const json::object& o, std::string_view name,
                                                const std::string& path) {
    OAR_ASSIGN(const json::array* list, array(o, name, path));
    std::vector<std::string> out;
    size_t bytes = 0;
    for (const auto& v : *list) {
      if (!v.is_string() || v.get_string().empty() || !is_valid_utf8(v.get_string()))
        return invalid_argument(cat(path, ".", name, " must be an array of texts that are not empty"));
      out.emplace_back(v.get_string());
      bytes += out.back().size();
    }
    if (bytes > kMaxTriggerBytes)
      return invalid_argument(
          cat(path, ".", name, " has ", bytes, " bytes; at most ", kMaxTriggerBytes, " are accepted"));
    return out;
  }
  static Result<bool> flag(const json::object& o, std::string_view name, const std::string& path) {
    const auto* v = o.if_contains(name);
    if (v == nullptr) return false;
    if (v->is_bool()) return v->get_bool();
    return invalid_argument(cat(path, ".", name, " must be a boolean"));
  }
  Result<Tag> tag(const json::object& o, const std::string& path, int depth) {
    OAR_RETURN_IF_ERROR(only(o, {"type", "begin", "content", "end"}, path));
    Tag t;
    OAR_ASSIGN(t.begin, text(o, "begin", path));
    OAR_ASSIGN(t.end, text(o, "end", path));
    const auto* content = o.if_contains("content");
    if (content == nullptr) return invalid_argument(cat(path, ".content is missing"));
    OAR_ASSIGN(t.content, format(*content, cat(path, ".content"), depth + 1));
    return t;
  }
  Result<Expr> json_schema(const json::value& schema, const std::string& path) {
    const auto rule = add_json_schema(schema, g_);
    if (!rule.ok()) return invalid_argument(cat(path, ": ", rule.status().message()));
    return g_.use(*rule);
  }
  Expr whole(const Tag& t) { return g_.sequence({g_.text(t.begin), t.content, g_.text(t.end)}); }

  // ---- free text ----
  Result<Expr> free_text(const std::vector<std::string>& triggers, const std::vector<Tag>& tags,
                         bool at_least_one, bool stop_after_first, const std::string& path) {
    struct Node {
      std::map<char32_t, uint32_t> next;
      uint32_t fail = 0;
      int trigger = -1;
    };
    std::vector<Node> nodes(1);
    for (size_t t = 0; t < triggers.size(); ++t) {
      uint32_t at = 0;
      for (size_t i = 0; i < triggers[t].size();) {
        const CodePoint c = decode_utf8(triggers[t], i);
        i += c.length;
        const auto it = nodes[at].next.find(c.value);
        if (it != nodes[at].next.end()) {
          at = it->second;
          continue;
        }
        const auto fresh = static_cast<uint32_t>(nodes.size());
        nodes[at].next[c.value] = fresh;
        nodes.emplace_back();
        at = fresh;
      }
      nodes[at].trigger = static_cast<int>(t);
    }
    for (const Tag& t : tags)
      if (std::none_of(triggers.begin(), triggers.end(),
                       [&](const auto& s) { return t.begin.starts_with(s); }))
        return invalid_argument(cat(path, ": the tag that begins with \"", t.begin, "\" has no trigger"));
    for (size_t i = 0; i < triggers.size(); ++i)
      for (size_t j = 0; j < triggers.size(); ++j)
        if (i != j && triggers[j].find(triggers[i]) != std::string::npos)
          return invalid_argument(cat(path, ": \"", triggers[j], "\" contains \"", triggers[i],
                                      "\", so that it can never be read; keep one of them"));
    // Breadth first: where a character leads that continues no trigger from here.
    const auto step = [&](uint32_t at, char32_t c) {
      for (;; at = nodes[at].fail) {
        const auto it = nodes[at].next.find(c);
        if (it != nodes[at].next.end()) return it->second;
        if (at == 0) return uint32_t{0};
      }
    };
    std::deque<uint32_t> queue;
    for (const auto& [c, n] : nodes[0].next) queue.push_back(n);
    while (!queue.empty()) {
      const uint32_t at = queue.front();
      queue.pop_front();
      for (const auto& [c, n] : nodes[at].next) {
        nodes[n].fail = step(nodes[at].fail, c);
        queue.push_back(n);
      }
    }
    CodePointRanges known;  // all characters of triggers; any other leads to the root
    for (const Node& n : nodes)
      for (const auto& [c, to] : n.next) known = known.united({c, c});
    // The text before the first tag, where one is required, is a copy that may not end.
    std::vector<Rule> rules, open;
    for (size_t i = 0; i < nodes.size(); ++i) rules.push_back(g_.add_rule("free text"));
    for (size_t i = 0; i < nodes.size() && at_least_one; ++i)
      open.push_back(g_.add_rule("text before a tag"));
    const auto define = [&](const std::vector<Rule>& self, bool may_end) {
      for (uint32_t i = 0; i < nodes.size() && !g_.full(); ++i) {
        if (nodes[i].trigger >= 0) {
          std::vector<Expr> ways;
          const std::string& trigger = triggers[static_cast<size_t>(nodes[i].trigger)];
          for (const Tag& t : tags) {
            if (!t.begin.starts_with(trigger)) continue;
            const Expr after = stop_after_first ? g_.empty() : g_.use(rules[0]);
            ways.push_back(
                g_.sequence({g_.text(t.begin.substr(trigger.size())), t.content, g_.text(t.end), after}));
          }
          g_.define(self[i], g_.choice(ways));
          continue;
        }
        std::map<uint32_t, CodePointRanges> to = {{0u, known.complement()}};
        for (const auto& r : known.ranges())
          for (char32_t c = r.first; c <= r.last; ++c) {
            CodePointRanges& set = to[step(i, c)];
            set = set.united({c, c});
          }
        std::vector<Expr> ways;
        Expr stay = g_.empty();
        for (const auto& [target, set] : to) {
          if (target == i) stay = g_.repeat(g_.chars(set, Coding::kUtf8), 0, kNoLimit);
          else ways.push_back(g_.sequence({g_.chars(set, Coding::kUtf8), g_.use(self[target])}));
        }
        if (may_end) ways.push_back(g_.empty());
        g_.define(self[i], g_.sequence({stay, g_.choice(ways)}));
      }
    };
    if (g_.full()) return g_.never();
    define(rules, true);
    if (at_least_one) define(open, false);
    return g_.use(at_least_one ? open[0] : rules[0]);
  }

  Grammar& g_;
};

}  // namespace

Result<Rule> add_structural_tag(const json::value& value, Grammar& g) {
  const auto* o = value.if_object();
  if (o == nullptr) return invalid_argument("$ must be an object");
  const Rule root = g.add_rule("the structural tag");
  TagWriter writer(g);
  for (const auto& m : *o)
    if (m.key() != "type" && m.key() != "structures" && m.key() != "triggers" && m.key() != "format")
      return invalid_argument(cat("$.", m.key(), " is not supported"));
  const auto* format = o->if_contains("format");
  if ((format == nullptr) == (o->if_contains("structures") == nullptr))
    return invalid_argument("$ needs either \"format\" or \"structures\" with \"triggers\"");
  OAR_ASSIGN(const Expr body,
             format != nullptr ? writer.format(*format, "$.format", 0) : writer.structures(*o));
  g.define(root, body);
  return root;
}

}  // namespace oar::grammar
