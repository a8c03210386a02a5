// Writes shapes as rules. A set of schemas that hold together has one rule, so recursion closes by itself;
// sets wait in a list, so that a long chain of references needs no deep stack.
#include "engine/text/grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>

#include "engine/base/format.h"
#include "engine/text/grammar/configurations.h"
#include "engine/text/grammar/decimal_grammar.h"
#include "engine/text/grammar/schema_shape.h"

namespace oar::grammar {
namespace {

constexpr size_t kMaxKeyPatterns = 5;  // patternProperties of one object: each may hold or not
// Members in a row of which any may come next: each is a place, and some are left for what else may come.
constexpr size_t kMaxOptionalInARow = Configurations::kMaxPlaces - 96;

// How JSON is written around values: one rule each, made at first use.
class JsonWords {
 public:
  explicit JsonWords(Grammar& g) : g_(g) {}

  // Nothing, one space, or a line break and what indents the next line.
  Expr space() {
    if (!space_) {
      space_ = g_.add_rule("white space");
      const Expr indent =
          g_.repeat(g_.chars(CodePointRanges(' ', ' ').united({'\t', '\t'}), Coding::kUtf8), 0, 64);
      g_.define(*space_, g_.choice({g_.empty(), g_.text(" "), g_.sequence({g_.text("\n"), indent})}));
    }
    return g_.use(*space_);
  }
  Expr any_string(uint64_t low, uint64_t high) {
    const auto bounded = [](uint64_t n) {
      return static_cast<uint32_t>(std::min<uint64_t>(n, kNoLimit - 1));
    };
    const Expr c = g_.chars(CodePointRanges::all(), Coding::kJsonAnyEscape);
    return quoted(g_.repeat(c, bounded(low), high == UINT64_MAX ? kNoLimit : bounded(high)));
  }
  Expr quoted(Expr inside) { return g_.sequence({g_.text("\""), inside, g_.text("\"")}); }
  Expr colon() { return g_.sequence({g_.text(":"), space()}); }
  Expr comma() { return g_.sequence({g_.text(","), space()}); }

  Expr any() {
    if (!any_) {
      any_ = g_.add_rule("any value");
      const Expr atoms = g_.choice(
          {any_string(0, UINT64_MAX), any_number(g_), g_.text("true"), g_.text("false"), g_.text("null")});
      g_.define(*any_, g_.choice({use_object(), list(g_.use(*any_), 0, UINT64_MAX), atoms}));
    }
    return g_.use(*any_);
  }
  Expr use_object() {
    if (!object_) {
      object_ = g_.add_rule("any object");
      const Expr member = g_.sequence({any_string(0, UINT64_MAX), colon(), any()});
      g_.define(*object_, enclosed("{", member, "}", 0, UINT64_MAX));
    }
    return g_.use(*object_);
  }
  Rule object_rule() {
    use_object();
    return *object_;
  }
  Expr list(Expr item, uint64_t low, uint64_t high) { return enclosed("[", item, "]", low, high); }

  // The text of a constant, white space as elsewhere.
  Expr constant(const json::value& v) {
    std::vector<Expr> parts;
    if (const auto* a = v.if_array()) {
      if (a->empty()) return g_.sequence({g_.text("["), space(), g_.text("]")});
      for (const auto& item : *a) {
        parts.push_back(parts.empty() ? g_.sequence({g_.text("["), space()}) : comma());
        parts.push_back(constant(item));
      }
      parts.push_back(g_.sequence({space(), g_.text("]")}));
      return g_.sequence(parts);
    }
    if (const auto* o = v.if_object()) {
      if (o->empty()) return g_.sequence({g_.text("{"), space(), g_.text("}")});
      for (const auto& m : *o) {
        parts.push_back(parts.empty() ? g_.sequence({g_.text("{"), space()}) : comma());
        parts.push_back(g_.sequence({g_.text(text(json::value(m.key()))), colon()}));
        parts.push_back(constant(m.value()));
      }
      parts.push_back(g_.sequence({space(), g_.text("}")}));
      return g_.sequence(parts);
    }
    return g_.text(text(v));
  }
  // A string, number or word.
  static std::string text(const json::value& v) {
    const auto d = v.is_double() ? decimal(v) : std::nullopt;
    if (d && d->fraction.empty() && d->digits.size() <= 18)
      return cat(d->negative ? "-" : "", d->digits.empty() ? "0" : d->digits);
    if (!v.is_string()) return json::serialize(v);
    std::string out = "\"";  // the escapes of Coding::kJson
    for (const char c : std::string_view(v.get_string())) {
      constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
      const size_t at = kShort.find(c);
      if (at != std::string_view::npos) out += {'\\', kLetters[at]};
      else if (static_cast<uint8_t>(c) < 0x20)
        out += {'\\', 'u', '0', '0', static_cast<char>('0' + (c >> 4)), "0123456789abcdef"[c & 15]};
      else out += c;
    }
    return out += '"';
  }

 private:
  Expr enclosed(std::string_view open, Expr item, std::string_view close, uint64_t low, uint64_t high) {
    const Expr none = low == 0 ? g_.empty() : g_.never();
    const auto less = [](uint64_t n) {
      return static_cast<uint32_t>(std::min<uint64_t>(n - 1, kNoLimit - 1));
    };
    Expr some = g_.never();
    if (high > 0)
      some = g_.sequence({item,
                          g_.repeat(g_.sequence({comma(), item}), low == 0 ? 0 : less(low),
                                    high == UINT64_MAX ? kNoLimit : less(high)),
                          space()});
    return g_.sequence({g_.text(open), space(), g_.choice({some, none}), g_.text(close)});
  }

  Grammar& g_;
  std::optional<Rule> space_, any_, object_;
};

class SchemaWriter {
 public:
  SchemaWriter(const json::value& root, Grammar& g) : root_(root), document_(root), g_(g), words_(g) {}

  Result<Rule> run() {
    OAR_RETURN_IF_ERROR(document_.keywords_known(root_));
    const Rule root = g_.add_rule("$");
    SchemaSet all;
    SchemaDocument::insert(all, &root_);
    g_.define(root, value(all));
    while (!waiting_.empty() && !g_.full()) {
      const auto [rule, set] = std::move(waiting_.front());
      waiting_.pop_front();
      OAR_ASSIGN(const std::vector<Shape> shapes, document_.shapes(*set));
      std::vector<Expr> ways;
      for (const Shape& s : shapes) {
        OAR_ASSIGN(const Expr e, write(s));
        ways.push_back(e);
        if (g_.full()) return too_large(s.path);
        OAR_RETURN_IF_ERROR(document_.within_work(s.path));
      }
      g_.define(rule, g_.choice(ways));
    }
    if (g_.full()) return too_large("$");
    return root;
  }

 private:
  static Status too_large(const std::string& path) {
    return invalid_argument(
        cat(path, " makes the schema too large: its grammar has more than ", Grammar::kMaxExprs, " parts"));
  }

  Expr value(const SchemaSet& set) {
    if (set.empty()) return words_.any();
    document_.spend(set.size() / 8);
    const auto [it, fresh] = rules_.try_emplace(set, Rule{0});
    if (fresh) {
      it->second = g_.add_rule(document_.path(set.front()));
      waiting_.push_back({it->second, &it->first});
    }
    return g_.use(it->second);
  }

  Result<Expr> write(const Shape& s) {
    if (s.values) return constants(s);
    std::vector<Expr> ways;
    if (s.types & Shape::kObject) {
      OAR_ASSIGN(const Expr e, object(s));
      ways.push_back(e);
    }
    if (s.types & Shape::kArray) ways.push_back(array(s));
    if (s.types & Shape::kString) {
      OAR_ASSIGN(const Expr e, string(s));
      ways.push_back(e);
    }
    if (s.types & (Shape::kInteger | Shape::kFraction)) {
      OAR_ASSIGN(const Expr e, bounded_number(g_, s, (s.types & Shape::kFraction) == 0));
      ways.push_back(e);
    }
    if (s.types & Shape::kBoolean) ways.push_back(g_.choice({g_.text("true"), g_.text("false")}));
    if (s.types & Shape::kNull) ways.push_back(g_.text("null"));
    return g_.choice(ways);
  }

  Result<Expr> constants(const Shape& s) {
    std::vector<std::string> texts;
    std::vector<Expr> ways;
    for (const json::value* v : s.values->list) {
      OAR_ASSIGN(const bool fits, document_.admits(s, *v, 0));
      if (!fits) continue;
      if (v->is_structured()) ways.push_back(words_.constant(*v));
      else texts.push_back(JsonWords::text(*v));
    }
    ways.push_back(g_.one_of(std::move(texts)));
    return g_.choice(ways);
  }

  Result<Expr> string(const Shape& s) {
    const bool any_length = s.min_length == 0 && s.max_length == UINT64_MAX;
    if (s.plain_string()) return words_.any_string(0, UINT64_MAX);
    if (s.min_length > s.max_length) return g_.never();
    if (s.patterns.empty() && s.formats.empty()) return words_.any_string(s.min_length, s.max_length);
    if (any_length && s.patterns.size() + s.formats.size() == 1) {  // counts stay counts
      const bool is_pattern = !s.patterns.empty();
      if (!is_pattern && formats_.contains(s.formats[0])) return g_.use(formats_[s.formats[0]]);
      const std::string pattern =
          is_pattern ? std::string(s.patterns[0]->get_string()) : std::string(format_pattern(s.formats[0]));
      const std::string where = is_pattern ? document_.path(s.patterns[0]) : cat(s.path, ".format");
      const auto regex = Regex::parse(pattern, is_pattern ? Regex::Match::kSearch : Regex::Match::kWhole);
      if (!regex.ok()) return invalid_argument(cat(where, ": ", regex.status().message()));
      const Expr text = words_.quoted(regex->to_grammar(g_, Coding::kJson));
      if (is_pattern) return text;
      const Rule rule = g_.add_rule(s.formats[0]);  // once, however many members have it
      if (g_.full()) return g_.never();
      g_.define(rule, text);
      formats_[s.formats[0]] = rule;
      return g_.use(rule);
    }
    OAR_ASSIGN(const Language language, document_.strings(s));
    return words_.quoted(language.to_grammar(g_, Coding::kJson, s.path));
  }

  Expr array(const Shape& s) {
    if (s.min_items > s.max_items) return g_.never();
    size_t fixed = 0;  // items with a place of their own
    for (const ArrayRule& r : s.arrays) fixed = std::max(fixed, r.prefix.size());
    fixed = static_cast<size_t>(std::min<uint64_t>(fixed, s.max_items));
    const uint64_t above = s.max_items == UINT64_MAX ? UINT64_MAX : s.max_items - fixed;
    const uint64_t below = s.min_items > fixed ? s.min_items - fixed : 0;
    if (fixed == 0) return words_.list(value(document_.item(s, 0)), s.min_items, s.max_items);
    // after: what may follow item i; a rule each, from the last to the first.
    const Expr end = g_.sequence({words_.space(), g_.text("]")});
    const auto bounded = [](uint64_t n) {
      return static_cast<uint32_t>(std::min<uint64_t>(n, kNoLimit - 1));
    };
    Expr after = end;
    if (above > 0) {
      const Expr item = g_.sequence({words_.comma(), value(document_.item(s, fixed))});
      after = g_.sequence(
          {g_.repeat(item, bounded(below), above == UINT64_MAX ? kNoLimit : bounded(above)), end});
    } else if (below > 0) {
      return g_.never();
    }
    for (size_t i = fixed; i-- > 0 && !g_.full() && document_.within_work(s.path).ok();) {
      const Expr item = g_.sequence({value(document_.item(s, i)), after});
      if (i == 0) {
        const Expr none = s.min_items == 0 ? g_.text("]") : g_.never();
        return g_.sequence({g_.text("["), words_.space(), g_.choice({item, none})});
      }
      const Rule rule = g_.add_rule(s.path);
      if (g_.full()) break;
      g_.define(rule, g_.choice({g_.sequence({words_.comma(), item}), s.min_items <= i ? end : g_.never()}));
      after = g_.use(rule);
    }
    return g_.never();
  }

  // Members in the order in which the schemas name them, then those that only `required` names, then others.
  Result<Expr> object(const Shape& s) {
    if (s.objects.empty() && s.required.empty()) return words_.use_object();
    std::vector<std::string_view> keys;
    std::map<std::string_view, bool> known;  // whether it is required
    const auto add_key = [&](std::string_view key) {
      if (known.try_emplace(key, false).second) keys.push_back(key);
    };
    for (const ObjectRule& r : s.objects)
      if (r.properties != nullptr)
        for (const auto& m : *r.properties) add_key(m.key());
    for (const std::string& key : s.required) {
      add_key(key);
      known[key] = true;
    }
    OAR_ASSIGN(const Expr other, other_members(s, keys));
    const Expr end = g_.sequence({words_.space(), g_.text("}")});
    // item[i]: member i or, where it may be missing, a later one. Behind each a comma or the end.
    const Rule last = g_.add_rule(s.path);
    if (g_.full()) return too_large(s.path);
    Expr item = g_.never();
    if (other != g_.never()) {
      g_.define(last, g_.sequence({other, g_.choice({g_.sequence({words_.comma(), g_.use(last)}), end})}));
      item = g_.use(last);
    }
    bool may_end = true;  // nothing after is required
    size_t in_a_row = 0;  // members that may be missing, up to the next that is required
    for (size_t i = keys.size(); i-- > 0;) {
      OAR_RETURN_IF_ERROR(document_.within_work(s.path));
      OAR_ASSIGN(const SchemaSet set, document_.member(s, keys[i]));
      const bool required = known[keys[i]];
      in_a_row = required ? 0 : in_a_row + 1;
      if (in_a_row > kMaxOptionalInARow)
        return invalid_argument(cat(s.path, ".properties.", keys[i],
                                    " makes the schema too large: it and the ", kMaxOptionalInARow,
                                    " members behind it may all be missing; name some of them in `required`, "
                                    "or make objects of groups of them"));
      const Expr key = g_.text(JsonWords::text(json::value(keys[i])));
      const Expr follow = g_.choice({g_.sequence({words_.comma(), item}), may_end ? end : g_.never()});
      const Expr member = g_.sequence({key, words_.colon(), value(set), follow});
      const Rule rule = g_.add_rule(s.path);
      if (g_.full()) return too_large(cat(s.path, ".properties.", keys[i]));
      g_.define(rule, required ? member : g_.choice({member, item}));
      item = g_.use(rule);
      may_end = may_end && !required;
    }
    return g_.sequence(
        {g_.text("{"), words_.space(), g_.choice({item, may_end ? g_.text("}") : g_.never()})});
  }

  // A member that no property names. Where keys have patterns: one alternative for each set of patterns that
  // a key may match together.
  Result<Expr> other_members(const Shape& s, const std::vector<std::string_view>& keys) {
    struct KeyPattern {
      const Language* language;
      const json::value* schema;
      size_t rule;
    };
    std::vector<KeyPattern> patterns;
    for (size_t r = 0; r < s.objects.size(); ++r) {
      if (s.objects[r].patterns == nullptr) continue;
      for (const auto& p : *s.objects[r].patterns) {
        OAR_ASSIGN(const Language* l, document_.pattern(p.key(), cat(s.path, ".patternProperties")));
        patterns.push_back({l, &p.value(), r});
      }
    }
    if (patterns.size() > kMaxKeyPatterns)
      return invalid_argument(cat(s.path, ".patternProperties has ", patterns.size(), " patterns; at most ",
                                  kMaxKeyPatterns, " for one object are supported"));
    const auto schemas = [&](uint32_t matched) {
      SchemaSet set;
      for (size_t r = 0; r < s.objects.size(); ++r) {
        bool any = false;
        for (size_t p = 0; p < patterns.size(); ++p) {
          if (patterns[p].rule != r || !((matched >> p) & 1)) continue;
          any = true;
          SchemaDocument::insert(set, patterns[p].schema);
        }
        if (!any && s.objects[r].additional != nullptr) SchemaDocument::insert(set, s.objects[r].additional);
      }
      return set;
    };
    const auto impossible = [](const SchemaSet& set) {
      return std::any_of(set.begin(), set.end(), [](const json::value* v) { return v->is_bool(); });
    };
    const auto member = [&](Expr key, const SchemaSet& set) {
      return g_.sequence({words_.quoted(key), words_.colon(), value(set)});
    };
    if (patterns.empty()) {
      const SchemaSet set = schemas(0);
      if (impossible(set)) return g_.never();
      std::vector<std::string> names;
      for (const std::string_view k : keys) {
        const std::string text = JsonWords::text(json::value(k));
        names.push_back(text.substr(1, text.size() - 2));
      }
      return member(g_.any_but(std::move(names), Coding::kJson), set);
    }
    std::vector<std::string> names(keys.begin(), keys.end());
    const auto named = [&](Result<Language> l) -> Result<Language> {
      if (l.ok()) return l;
      return invalid_argument(cat(s.path, ".patternProperties: ", l.status().message()));
    };
    OAR_ASSIGN(Language others, Language::of_lengths(0, UINT64_MAX));
    OAR_ASSIGN(others, named(others.without(Language::of_texts(names))));
    std::vector<Expr> ways;
    for (uint32_t matched = 0; matched < uint32_t{1} << patterns.size(); ++matched) {
      const SchemaSet set = schemas(matched);
      if (impossible(set)) continue;
      Language region = others;
      for (size_t p = 0; p < patterns.size() && !region.empty(); ++p) {
        const Language& l = *patterns[p].language;
        OAR_ASSIGN(region, named((matched >> p) & 1 ? region.intersected(l) : region.without(l)));
        document_.spend(region.work());
        OAR_RETURN_IF_ERROR(document_.within_work(s.path));
      }
      if (!region.empty()) ways.push_back(member(region.to_grammar(g_, Coding::kJson, s.path), set));
    }
    return g_.choice(ways);
  }

  const json::value& root_;
  SchemaDocument document_;
  Grammar& g_;
  JsonWords words_;
  std::map<SchemaSet, Rule> rules_;
  std::map<std::string, Rule> formats_;
  std::deque<std::pair<Rule, const SchemaSet*>> waiting_;
};

}  // namespace

Result<Rule> add_json_schema(const json::value& schema, Grammar& grammar) {
  return SchemaWriter(schema, grammar).run();
}

Rule add_json_object(Grammar& grammar) { return JsonWords(grammar).object_rule(); }

}  // namespace oar::grammar
