// Collects the keywords of schemas into shapes.
#include "engine/text/grammar/schema_shape.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "engine/base/format.h"

namespace oar::grammar {
namespace {

// Work for one schema: ten tools of a hundred fields take 20,000 schemas.
constexpr size_t kMaxWork = 6'000'000, kSchemaWork = 20;
constexpr size_t kMaxReferences = 1'000;  // schemas that one place passes through: each takes stack
constexpr size_t kMaxPath = 200;          // bytes, of the places that messages name
constexpr size_t kMaxShapes = 256;        // alternatives of one value

constexpr std::array<std::string_view, 36> kKeywords = {
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "items",
    "prefixItems", "additionalItems", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "anyOf", "allOf", "oneOf",
    "$ref",
    // Without effect on what is valid:
    "$defs", "definitions", "$schema", "$id", "$anchor", "$comment", "title", "description", "default",
    "examples", "deprecated"};
constexpr std::array<std::string_view, 2> kMoreAnnotations = {"readOnly", "writeOnly"};

Status wrong(const std::string& path, std::string_view what) {
  return invalid_argument(cat(path, " ", what));
}

bool known_keyword(std::string_view key) {
  return std::find(kKeywords.begin(), kKeywords.end(), key) != kKeywords.end() ||
         std::find(kMoreAnnotations.begin(), kMoreAnnotations.end(), key) != kMoreAnnotations.end();
}

Status unknown_keyword(const std::string& path) {
  return wrong(path, "is not supported; leave the keyword out or say it with supported ones");
}

Result<uint64_t> count_of(const json::value& v, const std::string& path) {
  if (v.is_int64() && v.get_int64() >= 0) return static_cast<uint64_t>(v.get_int64());
  if (v.is_uint64()) return v.get_uint64();
  if (v.is_double() && v.get_double() >= 0 && v.get_double() < 9e15 &&
      std::floor(v.get_double()) == v.get_double())
    return static_cast<uint64_t>(v.get_double());
  return wrong(path, cat("must be an integer of at least 0, got ", json::serialize(v)));
}

void tighten(std::optional<Bound>& bound, Bound other, int sign) {
  if (bound) {
    const int c = compare(bound->value, other.value) * sign;
    if (c > 0 || (c == 0 && bound->exclusive)) return;
  }
  bound = std::move(other);
}

std::optional<uint8_t> type_bits(std::string_view name) {
  if (name == "null") return Shape::kNull;
  if (name == "boolean") return Shape::kBoolean;
  if (name == "integer") return Shape::kInteger;
  if (name == "number") return static_cast<uint8_t>(Shape::kInteger | Shape::kFraction);
  if (name == "string") return Shape::kString;
  if (name == "array") return Shape::kArray;
  if (name == "object") return Shape::kObject;
  return std::nullopt;
}

constexpr std::string_view kRounded =
    "is a number that 64 bits do not hold exactly; write one of fewer digits, or an integer below 2^64 "
    "without "
    "a point or exponent";

}  // namespace

bool exact(const json::value& v) {
  if (!v.is_double() || std::abs(v.get_double()) < 0x1p53) return true;
  if (std::abs(v.get_double()) >= 0x1p64) return false;
  char text[40];
  const auto r = std::to_chars(text, std::end(text), v.get_double(), std::chars_format::scientific);
  return std::string_view(text, r.ptr).find('e') <=
         (v.get_double() < 0 ? 17 : 16);  // 15 digits and the point
}

std::optional<Decimal> decimal(const json::value& v) {
  char text[400];
  std::to_chars_result r{};
  if (v.is_int64()) r = std::to_chars(text, std::end(text), v.get_int64());
  else if (v.is_uint64()) r = std::to_chars(text, std::end(text), v.get_uint64());
  else if (v.is_double() && std::isfinite(v.get_double()))
    r = std::to_chars(text, std::end(text), v.get_double(), std::chars_format::fixed);
  else return std::nullopt;
  std::string_view s(text, static_cast<size_t>(r.ptr - text));
  Decimal d;
  if (s.starts_with("-")) {
    d.negative = true;
    s.remove_prefix(1);
  }
  const size_t point = std::min(s.find('.'), s.size());
  d.digits = s.substr(0, point);
  if (point < s.size()) d.fraction = s.substr(point + 1);
  d.digits.erase(0, std::min(d.digits.find_first_not_of('0'), d.digits.size()));
  while (d.fraction.ends_with('0')) d.fraction.pop_back();
  if (d.zero()) d.negative = false;
  return d;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int sign = a.negative ? -1 : 1;
  if (a.digits.size() != b.digits.size()) return a.digits.size() < b.digits.size() ? -sign : sign;
  if (const int c = a.digits.compare(b.digits)) return c < 0 ? -sign : sign;
  const int c = a.fraction.compare(b.fraction);
  return c == 0 ? 0 : c < 0 ? -sign : sign;
}

SchemaDocument::SchemaDocument(const json::value& root) : root_(root) {
  paths_[&root] = "$";
  if (const auto* o = root.if_object())
    if (const auto* s = o->if_contains("$schema"); s != nullptr && s->is_string())
      for (const std::string_view draft : {"draft-03", "draft-04", "draft-06", "draft-07"})
        references_stand_alone_ |= std::string_view(s->get_string()).find(draft) != std::string_view::npos;
  index(root, false, 0);
}

// Finds anchors, and references that an $id below the root gives another base.
void SchemaDocument::index(const json::value& value, bool embedded, int depth) {
  if (const auto* a = value.if_array())
    for (const auto& v : *a) index(v, embedded, depth + 1);
  const auto* o = value.if_object();
  if (o == nullptr) return;
  if (const auto* id = o->if_contains("$id"); id != nullptr && id->is_string() && depth > 0) {
    const std::string_view name = id->get_string();
    if (name.starts_with("#")) anchors_.try_emplace(std::string(name.substr(1)), &value);  // draft 6
    else embedded = true;
  }
  if (const auto* a = o->if_contains("$anchor"); a != nullptr && a->is_string())
    anchors_.try_emplace(std::string(a->get_string()), &value);
  if (embedded) embedded_[&value] = true;
  for (const auto& member : *o)
    if (member.key() != "enum" && member.key() != "const") index(member.value(), embedded, depth + 1);
}

std::string SchemaDocument::path(const json::value* schema) const {
  const auto it = paths_.find(schema);
  return it == paths_.end() ? "$" : it->second;
}

const json::value* SchemaDocument::child(const json::value& parent, std::string_view key,
                                         const json::value& value) {
  if (!paths_.contains(&value)) {
    std::string place = path(&parent);
    if (place.size() < kMaxPath) {
      size_t end = std::min(key.size(), kMaxPath);
      while (end < key.size() && (key[end] & 0xC0) == 0x80) --end;  // whole characters
      place = cat(place, key.starts_with("[") ? "" : ".", key.substr(0, end), end < key.size() ? "..." : "");
    }
    paths_[&value] = std::move(place);
  }
  return &value;
}

Status SchemaDocument::within_work(const std::string& path) const {
  if (work_ <= kMaxWork) return ok_status();
  return wrong(path,
               "makes the schema too large: too many combinations of its parts; use fewer alternatives, "
               "constants or patterns");
}

void SchemaDocument::insert(SchemaSet& set, const json::value* schema) {
  if (schema->is_bool() && schema->get_bool()) return;
  if (schema->is_object() && schema->get_object().empty()) return;
  const auto it = std::lower_bound(set.begin(), set.end(), schema);
  if (it == set.end() || *it != schema) set.insert(it, schema);
}

Result<const json::value*> SchemaDocument::resolve(const json::value& schema, std::string_view reference) {
  const std::string where = cat(path(&schema), ".$ref");
  std::string_view rest = reference;
  if (!rest.starts_with("#")) {
    const auto* id = root_.is_object() ? root_.get_object().if_contains("$id") : nullptr;
    const std::string_view base = id != nullptr && id->is_string() ? std::string_view(id->get_string()) : "";
    if (base.empty() || !rest.starts_with(base) || (rest.size() > base.size() && rest[base.size()] != '#'))
      return wrong(where, cat("\"", reference,
                              "\" is not in this schema; only references to its own parts (#/...) "
                              "are supported"));
    rest.remove_prefix(base.size());
  } else if (embedded_.contains(&schema)) {
    return wrong(where, "stands within a schema with an $id of its own, which is not supported");
  }
  if (rest.starts_with("#")) rest.remove_prefix(1);
  std::string text;  // without %-escapes
  for (size_t i = 0; i < rest.size(); ++i) {
    unsigned value = 0;
    if (rest[i] == '%' && i + 2 < rest.size() &&
        std::from_chars(rest.data() + i + 1, rest.data() + i + 3, value, 16).ptr == rest.data() + i + 3) {
      text += static_cast<char>(value);
      i += 2;
    } else {
      text += rest[i];
    }
  }
  const json::value* at = &root_;
  if (!text.empty() && text[0] != '/') {
    const auto it = anchors_.find(text);
    if (it == anchors_.end()) return wrong(where, cat("\"", reference, "\" names nothing in this schema"));
    at = it->second;
  } else {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('/', begin + 1), text.size());
      std::string key;
      for (size_t i = begin + 1; i < end; ++i) {
        if (text[i] == '~' && i + 1 < end && (text[i + 1] == '0' || text[i + 1] == '1'))
          key += text[++i] == '0' ? '~' : '/';
        else key += text[i];
      }
      const json::value* next = nullptr;
      if (const auto* o = at->if_object()) next = o->if_contains(key);
      size_t n = 0;
      if (const auto* a = at->if_array();
          a != nullptr && !key.empty() &&
          std::from_chars(key.data(), key.data() + key.size(), n).ec == std::errc())
        next = n < a->size() ? &(*a)[n] : nullptr;
      if (next == nullptr) return wrong(where, cat("\"", reference, "\" names nothing in this schema"));
      at = child(*at, key, *next);
      begin = end;
    }
  }
  paths_.try_emplace(at, cat("$ (", reference, ")"));
  return at;
}

Status SchemaDocument::collect(const json::value& schema, const Link* from, Draft& draft) {
  spend(kSchemaWork + draft.seen.size() / 128);
  OAR_RETURN_IF_ERROR(within_work(path(&schema)));
  size_t passed = 0;
  for (const Link* l = from; l != nullptr; l = l->from, ++passed)
    if (l->schema == &schema) return wrong(path(&schema), "refers to itself without end");
  if (passed > kMaxReferences)
    return wrong(path(&schema), cat("makes the schema too large: more than ", kMaxReferences,
                                    " references and alternatives lead to it; use fewer"));
  if (std::find(draft.seen.begin(), draft.seen.end(), &schema) != draft.seen.end()) return ok_status();
  draft.seen.push_back(&schema);
  if (draft.shape.path.empty()) draft.shape.path = path(&schema);
  if (schema.is_bool()) {
    if (!schema.get_bool()) draft.shape.types = 0;
    return ok_status();
  }
  if (!schema.is_object())
    return wrong(path(&schema), cat("must be a schema, an object or a boolean, got ",
                                    json::serialize(schema).substr(0, 40)));
  const Link* const link = &links_.emplace_back(Link{&schema, from});
  const auto& object = schema.get_object();
  if (const auto* ref = object.if_contains("$ref"); ref != nullptr && references_stand_alone_)
    return keyword("$ref", *ref, schema, link, draft);
  // Its own members come before those of schemas that it refers to.
  OAR_RETURN_IF_ERROR(object_keywords(schema, draft));
  OAR_RETURN_IF_ERROR(array_keywords(schema, draft));
  for (const auto& member : object)
    OAR_RETURN_IF_ERROR(keyword(member.key(), member.value(), schema, link, draft));
  return ok_status();
}

Status SchemaDocument::keyword(std::string_view key, const json::value& value, const json::value& schema,
                               const Link* link, Draft& draft) {
  Shape& s = draft.shape;
  const auto where = [&] { return cat(path(&schema), ".", key); };
  if (key == "type") {
    uint8_t types = 0;
    const auto add = [&](const json::value& name) {
      const auto bits = name.is_string() ? type_bits(std::string_view(name.get_string())) : std::nullopt;
      if (bits) types |= *bits;
      return bits.has_value();
    };
    bool known = true;
    if (const auto* list = value.if_array()) {
      for (const auto& v : *list) known &= add(v);
    } else {
      known = add(value);
    }
    if (!known) return wrong(where(), cat("is no type of JSON, or a list of them: ", json::serialize(value)));
    s.types &= types;
  } else if (key == "enum" || key == "const") {
    std::vector<const json::value*> list;
    if (key == "const") list.push_back(&value);
    else if (!value.is_array()) return wrong(where(), "must be an array");
    else
      for (const auto& v : value.get_array()) list.push_back(&v);
    auto& fresh = constants_[&value];
    if (fresh == nullptr) fresh = constants(std::move(list));
    if (inexact_) return wrong(where(), key == "enum" ? cat("has what ", kRounded) : std::string(kRounded));
    if (s.values == nullptr) {
      s.values = fresh;
    } else if (s.values != fresh) {
      spend(fresh->list.size());
      std::vector<const json::value*> both = fresh->list;
      std::erase_if(both, [&](const json::value* v) { return !s.values->has(id(*v)); });
      s.values = constants(std::move(both));
    }
  } else if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" || key == "exclusiveMaximum") {
    auto d = decimal(value);
    if (!d) return wrong(where(), cat("must be a number, got ", json::serialize(value)));
    const bool low = key.ends_with("inimum");
    if (!exact(value)) {
      // Above a very large number lies nothing that is sure to be valid. Below one, all but the next number.
      if (d->negative != low) return wrong(where(), kRounded);
      d = decimal(json::value(std::nextafter(value.get_double(), 0.0)));
    }
    tighten(low ? s.low : s.high, {*d, key.starts_with("exclusive")}, low ? 1 : -1);
  } else if (key == "multipleOf") {
    const auto d = decimal(value);
    if (!d || d->negative || d->zero())
      return wrong(where(), cat("must be a number above 0, got ", json::serialize(value)));
    uint64_t m = 0;
    if (!d->fraction.empty() ||
        std::from_chars(d->digits.data(), d->digits.data() + d->digits.size(), m).ec != std::errc() ||
        m > 1'000'000)
      return wrong(where(),
                   cat("is supported for integers of at most 1000000, got ", json::serialize(value)));
    s.multiple = std::lcm(s.multiple, m);
    if (s.multiple > 1'000'000) return wrong(where(), "has with others a multiple that is not supported");
    s.types &= static_cast<uint8_t>(~Shape::kFraction);
  } else if (key == "minLength" || key == "maxLength" || key == "minItems" || key == "maxItems") {
    OAR_ASSIGN(const uint64_t n, count_of(value, where()));
    if (key == "minLength") s.min_length = std::max(s.min_length, n);
    else if (key == "maxLength") s.max_length = std::min(s.max_length, n);
    else if (key == "minItems") s.min_items = std::max(s.min_items, n);
    else s.max_items = std::min(s.max_items, n);
  } else if (key == "pattern") {
    if (!value.is_string()) return wrong(where(), "must be a string");
    s.patterns.push_back(child(schema, key, value));
  } else if (key == "format") {
    if (!value.is_string()) return wrong(where(), "must be a string");
    const std::string_view name = value.get_string();
    if (format_pattern(name) == nullptr)
      return wrong(where(), cat("\"", name, "\" is not supported; supported are ", known_formats()));
    if (std::find(s.formats.begin(), s.formats.end(), name) == s.formats.end()) s.formats.emplace_back(name);
  } else if (key == "required") {
    if (!value.is_array()) return wrong(where(), "must be an array of strings");
    std::vector<std::string> fresh;
    for (const auto& v : value.get_array()) {
      if (!v.is_string()) return wrong(where(), "must be an array of strings");
      spend(1);
      fresh.emplace_back(v.get_string());
    }
    s.required.insert(s.required.end(), fresh.begin(), fresh.end());
  } else if (key == "$ref") {
    if (!value.is_string()) return wrong(where(), "must be a string");
    OAR_ASSIGN(const json::value* target, resolve(schema, value.get_string()));
    return collect(*target, link, draft);
  } else if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    if (!value.is_array() || value.get_array().empty()) return wrong(where(), "must be an array of schemas");
    const auto& list = value.get_array();
    for (size_t i = 0; i < list.size(); ++i) child(schema, cat(key, "[", i, "]"), list[i]);
    if (key != "allOf") {
      child(schema, key, value);
      draft.branches.push_back({&value, link, key == "oneOf"});
      return ok_status();
    }
    for (const auto& part : list) OAR_RETURN_IF_ERROR(collect(part, link, draft));
  } else if (!known_keyword(key)) {
    return unknown_keyword(where());
  }
  return ok_status();
}

Status SchemaDocument::keywords_known(const json::value& schema) {
  const auto* const object = schema.if_object();
  if (object == nullptr) return ok_status();
  const bool alone = references_stand_alone_ && object->contains("$ref");
  for (const auto& member : *object) {
    const std::string_view key = member.key();
    const json::value& value = member.value();
    const bool definitions = key == "$defs" || key == "definitions";
    if (alone && !definitions) continue;
    if (!known_keyword(key)) return unknown_keyword(cat(path(&schema), ".", key));
    const bool list = key == "anyOf" || key == "allOf" || key == "oneOf" || key == "prefixItems";
    const bool one = key == "items" || key == "additionalItems" || key == "additionalProperties";
    if ((list || one) && value.is_array()) {
      child(schema, key, value);
      size_t i = 0;
      for (const auto& v : value.get_array())
        OAR_RETURN_IF_ERROR(keywords_known(*child(value, cat("[", i++, "]"), v)));
    } else if ((definitions || key == "properties" || key == "patternProperties") && value.is_object()) {
      child(schema, key, value);
      for (const auto& v : value.get_object())
        OAR_RETURN_IF_ERROR(keywords_known(*child(value, v.key(), v.value())));
    } else if (one) {
      OAR_RETURN_IF_ERROR(keywords_known(*child(schema, key, value)));
    }
  }
  return ok_status();
}

Status SchemaDocument::object_keywords(const json::value& schema, Draft& draft) {
  const auto& object = schema.get_object();
  ObjectRule rule;
  for (const auto& [name, place] :
       {std::pair{"properties", &rule.properties}, {"patternProperties", &rule.patterns}}) {
    const auto* v = object.if_contains(name);
    if (v == nullptr) continue;
    if (!v->is_object()) return wrong(cat(path(&schema), ".", name), "must be an object of schemas");
    *place = &v->get_object();
    child(schema, name, *v);
    for (const auto& member : **place) child(*v, member.key(), member.value());
  }
  if (const auto* v = object.if_contains("additionalProperties"))
    rule.additional = child(schema, "additionalProperties", *v);
  if (rule.properties != nullptr || rule.patterns != nullptr || rule.additional != nullptr)
    draft.shape.objects.push_back(rule);
  return ok_status();
}

Status SchemaDocument::array_keywords(const json::value& schema, Draft& draft) {
  const auto& object = schema.get_object();
  ArrayRule rule;
  const auto list = [&](std::string_view name, const json::value& v) {
    child(schema, name, v);
    size_t i = 0;
    for (const auto& item : v.get_array()) rule.prefix.push_back(child(v, cat("[", i++, "]"), item));
  };
  const json::value* prefix = object.if_contains("prefixItems");
  const json::value* items = object.if_contains("items");
  if (prefix != nullptr) {
    if (!prefix->is_array()) return wrong(cat(path(&schema), ".prefixItems"), "must be an array of schemas");
    list("prefixItems", *prefix);
  }
  if (items != nullptr && items->is_array()) {  // draft 7 and before
    if (prefix != nullptr) return wrong(cat(path(&schema), ".items"), "must be a schema beside prefixItems");
    list("items", *items);
    if (const auto* rest = object.if_contains("additionalItems"))
      rule.rest = child(schema, "additionalItems", *rest);
  } else if (items != nullptr) {
    rule.rest = child(schema, "items", *items);
  }
  if (!rule.prefix.empty() || rule.rest != nullptr) draft.shape.arrays.push_back(std::move(rule));
  return ok_status();
}

// One shape for each way through the alternatives. `base`: where this value's shapes begin in `out`.
Status SchemaDocument::expand(Draft draft, std::vector<Shape>& out, size_t base) {
  if (draft.branches.empty()) {
    if (out.size() - base >= kMaxShapes)
      return wrong(draft.shape.path, cat("has more than ", kMaxShapes, " combinations of alternatives"));
    out.push_back(std::move(draft.shape));
    return ok_status();
  }
  const json::value& branch = *draft.branches.back().alternatives;
  const Link* const from = draft.branches.back().from;
  const bool exclusive = draft.branches.back().exclusive;
  draft.branches.pop_back();
  std::vector<std::vector<Shape>> ways;
  for (const auto& alternative : branch.get_array()) {
    spend(draft.seen.size() / 16 + draft.shape.required.size());
    Draft copy = draft;
    OAR_RETURN_IF_ERROR(collect(alternative, from, copy));
    auto& way = ways.emplace_back();
    OAR_RETURN_IF_ERROR(expand(std::move(copy), way, 0));
  }
  for (size_t i = 0; exclusive && i < ways.size(); ++i) {
    for (size_t j = i + 1; j < ways.size(); ++j) {
      for (const Shape& a : ways[i]) {
        for (const Shape& b : ways[j]) {
          OAR_ASSIGN(const bool apart, disjoint(a, b, 0));
          if (!apart)
            return wrong(path(&branch),
                         cat("is supported where no value satisfies two of its schemas; [", i, "] and [", j,
                             "] may both hold: use anyOf, or tell them apart by a const"));
        }
      }
    }
  }
  for (auto& way : ways) {
    for (Shape& s : way) {
      if (out.size() - base >= kMaxShapes)
        return wrong(path(&branch), cat("makes more than ", kMaxShapes, " combinations of alternatives"));
      out.push_back(std::move(s));
    }
  }
  return ok_status();
}

Result<std::vector<Shape>> SchemaDocument::shapes(const SchemaSet& set) {
  links_.clear();
  Draft draft;
  for (const json::value* schema : set) OAR_RETURN_IF_ERROR(collect(*schema, nullptr, draft));
  std::vector<Shape> out;
  OAR_RETURN_IF_ERROR(expand(std::move(draft), out, 0));
  return out;
}

}  // namespace oar::grammar
