// What needs an answer while a schema is read: whether a constant satisfies it, which schemas a member has,
// and whether two shapes have no value in common.
#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/text/grammar/schema_shape.h"
#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

// Looks so deep into members to tell alternatives apart, and constants so deep.
constexpr int kMaxApartDepth = 4;
constexpr int kMaxValueDepth = 64;

uint8_t type_of(const json::value& v) {
  if (v.is_null()) return Shape::kNull;
  if (v.is_bool()) return Shape::kBoolean;
  if (v.is_string()) return Shape::kString;
  if (v.is_array()) return Shape::kArray;
  if (v.is_object()) return Shape::kObject;
  const auto d = decimal(v);
  return d && d->fraction.empty() ? Shape::kInteger : Shape::kFraction;
}

uint64_t length(std::string_view s) {
  return static_cast<uint64_t>(std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

uint64_t modulo(const std::string& digits, uint64_t m) {
  uint64_t r = 0;
  for (const char c : digits) r = (r * 10 + static_cast<uint64_t>(c - '0')) % m;
  return r;
}

bool below(const std::optional<Bound>& high, const Decimal& d) {
  if (!high) return true;
  const int c = compare(d, high->value);
  return c < 0 || (c == 0 && !high->exclusive);
}
bool above(const std::optional<Bound>& low, const Decimal& d) {
  if (!low) return true;
  const int c = compare(d, low->value);
  return c > 0 || (c == 0 && !low->exclusive);
}
// No number lies above a's low and below b's high.
bool passed(const std::optional<Bound>& low, const std::optional<Bound>& high) {
  if (!low || !high) return false;
  const int c = compare(low->value, high->value);
  return c > 0 || (c == 0 && (low->exclusive || high->exclusive));
}

}  // namespace

bool Constants::has(uint32_t id) const {
  const auto it = std::lower_bound(by_id.begin(), by_id.end(), Entry{id, nullptr});
  return it != by_id.end() && it->first == id;
}

uint32_t SchemaDocument::id(const json::value& v) {
  if (const auto it = id_of_.find(&v); it != id_of_.end()) return it->second;
  spend(1);
  std::string text;  // parts by their ids, so that each value is read once
  if (v.is_number()) {
    inexact_ |= !exact(v);
    const Decimal d = decimal(v).value_or(Decimal{});
    text = cat("0", d.negative ? "-" : "", d.digits, ".", d.fraction);
  } else if (v.is_string()) {
    text = cat("\"", std::string_view(v.get_string()));
  } else if (const auto* a = v.if_array()) {
    text = "[";
    for (const auto& item : *a) text += cat(id(item), ",");
  } else if (const auto* o = v.if_object()) {
    std::map<std::string_view, uint32_t> members;
    for (const auto& m : *o) members[m.key()] = id(m.value());
    text = "{";
    for (const auto& [key, member] : members) text += cat(key.size(), ":", key, member, ",");
  } else {
    text = json::serialize(v);
  }
  const auto fresh = static_cast<uint32_t>(ids_.size());
  return id_of_[&v] = ids_.try_emplace(std::move(text), fresh).first->second;
}

std::shared_ptr<const Constants> SchemaDocument::constants(std::vector<const json::value*> list) {
  Constants out{std::move(list), {}};
  for (const json::value* v : out.list) out.by_id.push_back({id(*v), v});
  std::sort(out.by_id.begin(), out.by_id.end());
  return std::make_shared<const Constants>(std::move(out));
}

Result<const Language*> SchemaDocument::pattern(std::string_view pattern, const std::string& path) {
  const auto it = languages_.find(pattern);
  if (it != languages_.end()) return &it->second;
  auto regex = Regex::parse(pattern, Regex::Match::kSearch);
  if (!regex.ok()) return invalid_argument(cat(path, ": ", regex.status().message()));
  auto language = Language::of(*regex);
  if (!language.ok()) return invalid_argument(cat(path, ": ", language.status().message()));
  spend(language->work());
  OAR_RETURN_IF_ERROR(within_work(path));
  return &languages_.emplace(std::string(pattern), std::move(*language)).first->second;
}

Result<Language> SchemaDocument::strings(const Shape& s) {
  const auto named = [&](Result<Language> l) -> Result<Language> {
    if (l.ok()) return l;
    return invalid_argument(cat(s.path, ": pattern, format and length together: ", l.status().message()));
  };
  std::optional<Language> all;
  const auto meet = [&](const Language& other) -> Status {
    if (!all) {
      spend(other.work() / 4);  // a copy
      all = other;
      return ok_status();
    }
    OAR_ASSIGN(all, named(all->intersected(other)));
    spend(all->work());
    return within_work(s.path);
  };
  for (const json::value* p : s.patterns) {
    OAR_ASSIGN(const Language* l, pattern(p->get_string(), path(p)));
    OAR_RETURN_IF_ERROR(meet(*l));
  }
  for (const std::string& f : s.formats) {
    OAR_ASSIGN(const Language* l, pattern(cat("^(?:", format_pattern(f), ")$"), cat(s.path, ".format")));
    OAR_RETURN_IF_ERROR(meet(*l));
  }
  if (s.min_length > 0 || s.max_length != UINT64_MAX || !all) {
    OAR_ASSIGN(const Language lengths, named(Language::of_lengths(s.min_length, s.max_length)));
    OAR_RETURN_IF_ERROR(meet(lengths));
  }
  return std::move(*all);
}

Result<SchemaSet> SchemaDocument::member(const Shape& shape, std::string_view key) {
  SchemaSet out;
  spend(shape.objects.size());
  for (const ObjectRule& rule : shape.objects) {
    bool named = false;
    if (rule.properties != nullptr) {
      if (const auto* v = rule.properties->if_contains(key)) {
        insert(out, v);
        named = true;
      }
    }
    if (rule.patterns != nullptr) {
      for (const auto& p : *rule.patterns) {
        OAR_ASSIGN(const Language* l, pattern(p.key(), cat(shape.path, ".patternProperties")));
        spend(1 + key.size() / 4);
        if (!l->contains(key)) continue;
        insert(out, &p.value());
        named = true;
      }
    }
    if (!named && rule.additional != nullptr) insert(out, rule.additional);
  }
  return out;
}

SchemaSet SchemaDocument::item(const Shape& shape, size_t index) {
  SchemaSet out;
  spend(shape.arrays.size() / 8);
  for (const ArrayRule& rule : shape.arrays) {
    if (index < rule.prefix.size()) insert(out, rule.prefix[index]);
    else if (rule.rest != nullptr) insert(out, rule.rest);
  }
  return out;
}

Result<bool> SchemaDocument::admits(const SchemaSet& set, const json::value& value, int depth) {
  if (set.empty()) return true;
  OAR_ASSIGN(const std::vector<Shape> ways, shapes(set));
  for (const Shape& s : ways) {
    OAR_ASSIGN(const bool fits, admits(s, value, depth));
    if (fits) return true;
  }
  return false;
}

Result<bool> SchemaDocument::admits(const Shape& s, const json::value& v, int depth) {
  spend(1);
  OAR_RETURN_IF_ERROR(within_work(s.path));
  if (depth > kMaxValueDepth || (type_of(v) & s.types) == 0) return false;
  if (s.values != nullptr && !s.values->has(id(v))) return false;
  if (v.is_number()) {
    const Decimal d = *decimal(v);
    return above(s.low, d) && below(s.high, d) && modulo(d.digits, s.multiple) == 0;
  }
  if (v.is_string()) {
    const std::string_view text = v.get_string();
    spend(text.size() * (s.patterns.size() + s.formats.size()) / 4 + text.size() / 64);
    if (length(text) < s.min_length || length(text) > s.max_length) return false;
    for (const json::value* p : s.patterns) {
      OAR_ASSIGN(const Language* l, pattern(p->get_string(), path(p)));
      if (!l->contains(text)) return false;
    }
    for (const std::string& f : s.formats) {
      OAR_ASSIGN(const Language* l, pattern(cat("^(?:", format_pattern(f), ")$"), cat(s.path, ".format")));
      if (!l->contains(text)) return false;
    }
    return true;
  }
  if (const auto* a = v.if_array()) {
    if (a->size() < s.min_items || a->size() > s.max_items) return false;
    for (size_t i = 0; i < a->size() && !s.arrays.empty(); ++i) {
      OAR_ASSIGN(const bool fits, admits(item(s, i), (*a)[i], depth + 1));
      if (!fits) return false;
    }
    return true;
  }
  if (const auto* o = v.if_object()) {
    spend(s.required.size());
    for (const std::string& key : s.required)
      if (!o->contains(key)) return false;
    for (const auto& m : *o) {
      OAR_ASSIGN(const SchemaSet set, member(s, m.key()));
      OAR_ASSIGN(const bool fits, admits(set, m.value(), depth + 1));
      if (!fits) return false;
    }
  }
  return true;
}

// Whether it is certain that no value has both shapes.
Result<bool> SchemaDocument::disjoint(const Shape& a, const Shape& b, int depth) {
  spend(1);
  OAR_RETURN_IF_ERROR(within_work(a.path));
  const uint8_t types = a.types & b.types;
  if (types == 0) return true;
  if (a.values != nullptr || b.values != nullptr) {
    std::vector<const json::value*> both;  // of equal values one stands for all
    if (a.values != nullptr && b.values != nullptr) {
      spend((a.values->by_id.size() + b.values->by_id.size()) / 16);
      auto theirs = b.values->by_id.begin();
      for (const auto& [id, v] : a.values->by_id) {
        while (theirs != b.values->by_id.end() && theirs->first < id) ++theirs;
        if (theirs != b.values->by_id.end() && theirs->first == id) both.push_back(v);
      }
    } else {
      both = (a.values != nullptr ? a : b).values->list;
    }
    for (const json::value* v : both) {
      OAR_ASSIGN(const bool here, admits(a, *v, 0));
      if (!here) continue;
      OAR_ASSIGN(const bool there, admits(b, *v, 0));
      if (there) return false;
    }
    return true;
  }
  if ((types & (Shape::kNull | Shape::kBoolean)) != 0) return false;
  if ((types & (Shape::kInteger | Shape::kFraction)) != 0 && !passed(a.low, b.high) && !passed(b.low, a.high))
    return false;
  if ((types & Shape::kString) != 0 && a.min_length <= b.max_length && b.min_length <= a.max_length) {
    if ((a.patterns.empty() && a.formats.empty()) || (b.patterns.empty() && b.formats.empty())) return false;
    OAR_ASSIGN(const Language x, strings(a));
    OAR_ASSIGN(const Language y, strings(b));
    const auto both = x.intersected(y);
    spend(both.ok() ? both->work() : Language::kMaxEdges);
    if (!both.ok() || !both->empty()) return false;
  }
  if ((types & Shape::kArray) != 0 && a.min_items <= b.max_items && b.min_items <= a.max_items) {
    bool found = false;
    for (size_t i = 0; !found && i < std::min<uint64_t>({a.min_items, b.min_items, 8}); ++i) {
      OAR_ASSIGN(found, apart(item(a, i), item(b, i), depth));
    }
    if (!found) return false;
  }
  if ((types & Shape::kObject) != 0) {
    bool found = false;
    for (const auto& [one, other] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
      for (const std::string& key : one->required) {
        spend(1 + other->required.size() / 16);
        OAR_RETURN_IF_ERROR(within_work(other->path));
        OAR_ASSIGN(const SchemaSet theirs, member(*other, key));
        // Where only one requires the member, the other may do without, unless it forbids it.
        const bool shared =
            std::find(other->required.begin(), other->required.end(), key) != other->required.end();
        const bool forbidden = std::any_of(theirs.begin(), theirs.end(), [](const json::value* v) {
          return v->is_bool() && !v->get_bool();
        });
        if (forbidden) found = true;
        if (found || !shared) continue;
        OAR_ASSIGN(const SchemaSet ours, member(*one, key));
        OAR_ASSIGN(found, apart(ours, theirs, depth));
      }
    }
    if (!found) return false;
  }
  return true;
}

Result<bool> SchemaDocument::apart(const SchemaSet& a, const SchemaSet& b, int depth) {
  if (a.empty() || b.empty() || depth >= kMaxApartDepth) return false;
  OAR_ASSIGN(const std::vector<Shape> ours, shapes(a));
  OAR_ASSIGN(const std::vector<Shape> theirs, shapes(b));
  for (const Shape& x : ours) {
    for (const Shape& y : theirs) {
      OAR_ASSIGN(const bool no_value, disjoint(x, y, depth + 1));
      if (!no_value) return false;
    }
  }
  return true;
}

namespace {

struct Format {
  const char* name;
  const char* pattern;
};

#define OAR_YEAR_NOT_100 "[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
#define OAR_DATE                                                                                       \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)" \
  "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:" OAR_YEAR_NOT_100 "|(?:[02468][048]|[13579][26])00)-02-29)"
#define OAR_PART "(?:\\.[0-9]{1,18})?"
#define OAR_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]" OAR_PART "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define OAR_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define OAR_IPV4 OAR_BYTE "(?:\\." OAR_BYTE "){3}"
#define OAR_H16 "[0-9A-Fa-f]{1,4}"
#define OAR_LS32 "(?:" OAR_H16 ":" OAR_H16 "|" OAR_IPV4 ")"
#define OAR_IPV6                                                                                            \
  "(?:(?:" OAR_H16 ":){6}" OAR_LS32 "|::(?:" OAR_H16 ":){5}" OAR_LS32 "|(?:" OAR_H16 ")?::(?:" OAR_H16      \
  ":){4}" OAR_LS32 "|(?:(?:" OAR_H16 ":){0,1}" OAR_H16 ")?::(?:" OAR_H16 ":){3}" OAR_LS32 "|(?:(?:" OAR_H16 \
  ":){0,2}" OAR_H16 ")?::(?:" OAR_H16 ":){2}" OAR_LS32 "|(?:(?:" OAR_H16 ":){0,3}" OAR_H16 ")?::" OAR_H16   \
  ":" OAR_LS32 "|(?:(?:" OAR_H16 ":){0,4}" OAR_H16 ")?::" OAR_LS32 "|(?:(?:" OAR_H16 ":){0,5}" OAR_H16      \
  ")?::" OAR_H16 "|(?:(?:" OAR_H16 ":){0,6}" OAR_H16 ")?::)"
// Without the bound of 63 characters: a count here makes every position of a name one of its own.
#define OAR_LABEL "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
#define OAR_ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OAR_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"

// RFC 3339, 4122, 5321, 2673, 4291, 3986.
constexpr Format kFormats[] = {
    {"date", OAR_DATE},
    {"time", nullptr},  // see format_pattern()
    {"date-time", nullptr},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"email", "(?:" OAR_ATEXT "(?:\\." OAR_ATEXT ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" OAR_LABEL
              "(?:\\." OAR_LABEL ")*|\\[(?:" OAR_IPV4 "|IPv6:" OAR_IPV6 ")\\])"},
    {"ipv4", OAR_IPV4},
    {"ipv6", OAR_IPV6},
    {"uri",
     "[A-Za-z][A-Za-z0-9+.-]*:(?://(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?(?:\\[" OAR_IPV6
     "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?(?:/" OAR_PCHAR "*)*|/(?:" OAR_PCHAR
     "+(?:/" OAR_PCHAR "*)*)?|" OAR_PCHAR "+(?:/" OAR_PCHAR "*)*)?(?:\\?(?:" OAR_PCHAR
     "|[/?])*)?(?:#(?:" OAR_PCHAR "|[/?])*)?"},
};

// A leap second is 23:59:60 in UTC: another minute in zones that are whole or half hours away.
std::string time_pattern() {
  std::string out = "(?:" OAR_TIME;
  const auto two = [](int n) { return cat(n / 10, n % 10); };
  for (int h = 0; h < 24; ++h)
    out += cat("|", two(h), ":(?:29:60" OAR_PART "(?:\\+", two(h), "|-", two(23 - h),
               "):30|59:60" OAR_PART "(?:", h == 23 ? "[Zz]|" : "", "(?:\\+", two((h + 1) % 24), "|-",
               two(23 - h), "):00))");
  return out + ")";
}

}  // namespace

const char* format_pattern(std::string_view format) {
  static const std::string kTime = time_pattern(), kDateTime = OAR_DATE "[Tt]" + kTime;
  if (format == "time") return kTime.c_str();
  if (format == "date-time") return kDateTime.c_str();
  for (const Format& f : kFormats)
    if (format == f.name) return f.pattern;
  return nullptr;
}

std::string known_formats() {
  std::string out;
  for (const Format& f : kFormats) out += cat(out.empty() ? "" : ", ", f.name);
  return out;
}

}  // namespace oar::grammar
