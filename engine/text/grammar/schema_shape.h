// What a set of schemas that hold together asks of one value: the keywords of all of them, sorted by the type
// they speak of. anyOf and oneOf make several shapes, one of which has to hold.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"
#include "engine/text/grammar/language.h"

namespace oar::grammar {

// Schemas of one document that have to hold for one value; null pointers never occur. Sorted.
using SchemaSet = std::vector<const json::value*>;

// A number as it is written, without exponent: digits and fraction have no superfluous zeros.
struct Decimal {
  bool negative = false;
  std::string digits, fraction;  // "0" has no digits
  bool zero() const { return digits.empty() && fraction.empty(); }
};
int compare(const Decimal& a, const Decimal& b);
// Whether a number is surely the one that was written: one that 64 bits do not hold is rounded when it is
// read.
bool exact(const json::value& v);
// Of a number of JSON; null for other values and for infinities.
std::optional<Decimal> decimal(const json::value& v);

struct Bound {
  Decimal value;
  bool exclusive = false;
};

// The values of an enum or const. Values that JSON Schema takes for equal have one id: 1 and 1.0.
struct Constants {
  using Entry = std::pair<uint32_t, const json::value*>;
  std::vector<const json::value*> list;  // as they are written
  std::vector<Entry> by_id;              // sorted
  bool has(uint32_t id) const;
};

struct ArrayRule {
  SchemaSet prefix;                   // one for each of the first items
  const json::value* rest = nullptr;  // of the others; null: anything
};
struct ObjectRule {
  const json::object* properties = nullptr;
  const json::object* patterns = nullptr;
  const json::value* additional = nullptr;  // null: anything
};

struct Shape {
  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are no integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAny = 127,
  };
  uint8_t types = kAny;
  std::shared_ptr<const Constants> values;  // enum, const; null: any
  std::optional<Bound> low, high;
  uint64_t multiple = 1;
  uint64_t min_length = 0, max_length = UINT64_MAX;
  std::vector<const json::value*> patterns;
  std::vector<std::string> formats;
  uint64_t min_items = 0, max_items = UINT64_MAX;
  std::vector<ArrayRule> arrays;
  std::vector<ObjectRule> objects;
  std::vector<std::string> required;
  std::string path;  // of the first schema, for messages

  // Whether it says anything of strings, arrays, objects, beyond their type.
  bool plain_string() const {
    return min_length == 0 && max_length == UINT64_MAX && patterns.empty() && formats.empty();
  }
};

// One document: finds references, remembers where schemas stand, makes shapes.
class SchemaDocument {
 public:
  explicit SchemaDocument(const json::value& root);

  // Refuses keywords that are not supported within `schema`, also where no value can reach them: in a
  // definition that nobody names, or in the properties of an integer. `schema` nests at most as deep as JSON
  // is read.
  Status keywords_known(const json::value& schema);
  Result<std::vector<Shape>> shapes(const SchemaSet& set);
  // The schemas that the value of a member has to satisfy, and those of an item.
  Result<SchemaSet> member(const Shape& shape, std::string_view key);
  SchemaSet item(const Shape& shape, size_t index);
  // Whether a value satisfies one of the shapes.
  Result<bool> admits(const SchemaSet& set, const json::value& value, int depth = 0);
  Result<bool> admits(const Shape& shape, const json::value& value, int depth);
  Result<const Language*> pattern(std::string_view pattern, const std::string& path);
  // All that is asked of a string but `values`.
  Result<Language> strings(const Shape& shape);

  // Work is counted, in steps of about 100 ns, so that no schema takes much longer than others of its size.
  void spend(size_t steps) { work_ += steps; }
  size_t work() const { return work_; }
  Status within_work(const std::string& path) const;

  std::string path(const json::value* schema) const;
  const json::value* child(const json::value& parent, std::string_view key, const json::value& value);
  static void insert(SchemaSet& set, const json::value* schema);

 private:
  struct Link {  // how a reference came here
    const json::value* schema;
    const Link* from;
  };
  struct Branch {  // anyOf, oneOf
    const json::value* alternatives;
    const Link* from;
    bool exclusive;
  };
  struct Draft {
    Shape shape;
    SchemaSet seen;
    std::vector<Branch> branches;
  };
  Status collect(const json::value& schema, const Link* from, Draft& draft);
  Status keyword(std::string_view key, const json::value& value, const json::value& schema, const Link* link,
                 Draft& draft);
  Status expand(Draft draft, std::vector<Shape>& out, size_t base);
  Status object_keywords(const json::value& schema, Draft& draft);
  Status array_keywords(const json::value& schema, Draft& draft);
  Result<const json::value*> resolve(const json::value& schema, std::string_view reference);
  Result<bool> disjoint(const Shape& a, const Shape& b, int depth);
  Result<bool> apart(const SchemaSet& a, const SchemaSet& b, int depth);
  void index(const json::value& value, bool embedded, int depth);
  uint32_t id(const json::value& value);
  std::shared_ptr<const Constants> constants(std::vector<const json::value*> list);

  const json::value& root_;
  bool references_stand_alone_ = false;  // draft 7 and before: what is beside $ref has no effect
  std::unordered_map<const json::value*, std::string> paths_;
  std::unordered_map<const json::value*, bool> embedded_;  // $ref inside a schema with an $id of its own
  std::map<std::string, const json::value*, std::less<>> anchors_;
  std::map<std::string, Language, std::less<>> languages_;
  std::deque<Link> links_;                         // of the value at hand
  bool inexact_ = false;                           // id() met a number that is
  std::unordered_map<std::string, uint32_t> ids_;  // of canonical texts
  std::unordered_map<const json::value*, uint32_t> id_of_;
  std::unordered_map<const json::value*, std::shared_ptr<const Constants>> constants_;
  size_t work_ = 0;
};

// The pattern of a supported format, without anchors; null where it is not known.
const char* format_pattern(std::string_view format);
std::string known_formats();

}  // namespace oar::grammar
