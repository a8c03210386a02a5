// A program as PIR json of version 4 (its keys: import/paddle_pir.cc). Lists that an op takes or yields are
// put together and taken apart by builtin.combine and builtin.split here; ids count from 1 over the whole
// file, absent operands are 0.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/export/paddle_schema.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

constexpr int kPirVersion = 4;

const char* pir_element(std::string_view word) {
  constexpr std::pair<std::string_view, const char*> kNames[] = {{"bool", "0.t_bool"},
                                                                 {"bfloat16", "0.t_bf16"},
                                                                 {"float16", "0.t_f16"},
                                                                 {"float32", "0.t_f32"},
                                                                 {"float64", "0.t_f64"},
                                                                 {"int8", "0.t_i8"},
                                                                 {"uint8", "0.t_ui8"},
                                                                 {"int16", "0.t_i16"},
                                                                 {"int32", "0.t_i32"},
                                                                 {"int64", "0.t_i64"},
                                                                 {"float8_e4m3fn", "0.t_f8e4m3fn"},
                                                                 {"float8_e5m2", "0.t_f8e5m2"}};
  for (const auto& [w, name] : kNames)
    if (w == word) return name;
  return "";
}

json::object typed(const char* kind, json::value data) { return {{"#", kind}, {"D", std::move(data)}}; }

json::value tensor_type(const ValueType& t) {
  json::array dims;
  for (const int64_t d : t.dims) dims.push_back(d);
  return typed("0.t_dtensor", json::array{json::object{{"#", pir_element(t.dtype)}}, std::move(dims), "NCHW",
                                          json::array{}, 0});
}

json::object float_value(const char* kind, double v) {
  if (std::isfinite(v)) return typed(kind, v);
  return {{"#", kind}, {"VD", std::isnan(v) ? "NaN" : v > 0 ? "INF" : "-INF"}};
}

double number_of(const AttrData& d) {
  if (const auto* v = std::get_if<double>(&d)) return *v;
  if (const auto* v = std::get_if<int64_t>(&d)) return static_cast<double>(*v);
  const auto* b = std::get_if<bool>(&d);
  return b && *b ? 1 : 0;
}
int64_t integer_of(const AttrData& d) {
  if (const auto* v = std::get_if<int64_t>(&d)) return *v;
  return static_cast<int64_t>(number_of(d));
}

template <class T, class F>
json::array each(const AttrData& d, F&& one) {
  json::array out;
  if (const auto* list = std::get_if<std::vector<T>>(&d))
    for (const T& v : *list) out.push_back(one(v));
  return out;
}

json::value pir_value(char type, const AttrData& d) {
  switch (type) {
    case 'b': return typed("0.a_bool", number_of(d) != 0);
    case 'i': return typed("0.a_i32", integer_of(d));
    case 'l': return typed("0.a_i64", integer_of(d));
    case 'f': return float_value("0.a_f32", static_cast<double>(static_cast<float>(number_of(d))));
    case 'd': return float_value("0.a_f64", number_of(d));
    case 'I': return typed("0.a_array", each<int64_t>(d, [](int64_t v) { return typed("0.a_i32", v); }));
    case 'L': return typed("0.a_array", each<int64_t>(d, [](int64_t v) { return typed("0.a_i64", v); }));
    case 'D': return typed("0.a_array", each<double>(d, [](double v) { return float_value("0.a_f64", v); }));
    case 'A': return typed("1.a_intarray", each<int64_t>(d, [](int64_t v) { return json::value(v); }));
    case 't': return typed("1.a_dtype", json::value(std::get<std::string>(d)));
    case 'p': return typed("1.a_place", json::array{0, 0, ""});
    case 'q': return typed("1.a_place", json::array{1, 0, ""});
    default: return typed("0.a_str", json::value(std::get<std::string>(d)));
  }
}

class PirText {
 public:
  explicit PirText(const ProgramWriter& file) : program_(file.program), ids_(program_.values.size(), 0) {}

  Result<std::string> write() {
    for (const Block& block : program_.blocks)
      for (const Op& op : block.ops)
        for (const Slot& s : op.inputs) used_.insert(s.values.begin(), s.values.end());
    for (const Port& port : program_.outputs) used_.insert(port.value);
    json::array ops;
    for (const ValueIndex v : program_.parameters) {
      ops.push_back(json::object{{"#", "p"},
                                 {"A", json::array{0, 1, 1, program_.values[at(v)].name}},
                                 {"DA", json::array{}},
                                 {"O", result(v)},
                                 {"OA", json::array{1, 1, 0}},  // persistable, stop_gradient, trainable
                                 {"QA", json::array{}}});
    }
    for (const Port& port : program_.inputs) {
      const ValueType& t = program_.values[at(port.value)].type;
      json::array attrs;
      attrs.push_back(attribute("name", 's', port.name));
      attrs.push_back(attribute("shape", 'A', t.dims));
      attrs.push_back(attribute("dtype", 't', t.dtype));
      attrs.push_back(attribute("place", 'p', {}));
      ops.push_back(op_json("1.data", std::move(attrs), {}, one(result(port.value))));
    }
    OAR_RETURN_IF_ERROR(write_ops(0, ops));
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      const Port& port = program_.outputs[k];
      json::array attrs;
      attrs.push_back(attribute("name", 's', port.name));
      attrs.push_back(attribute("col", 'i', static_cast<int64_t>(k)));
      const json::object fetched{{"%", next_++}, {"TT", tensor_type(program_.values[at(port.value)].type)}};
      ops.push_back(op_json("1.fetch", std::move(attrs), one(use(port.value)), one(fetched)));
    }
    json::object document{
        {"base_code", json::object{{"magic", "pir"}, {"trainable", true}, {"version", kPirVersion}}},
        {"program", json::object{{"regions", json::array{region(json::array{}, std::move(ops))}}}}};
    return json::serialize(document);
  }

 private:
  static size_t at(ValueIndex v) { return static_cast<size_t>(v); }
  json::object use(ValueIndex v) const { return {{"%", ids_[at(v)]}}; }
  json::object result(ValueIndex v) {
    ids_[at(v)] = next_++;
    return {{"%", ids_[at(v)]}, {"TT", tensor_type(program_.values[at(v)].type)}};
  }
  static json::object attribute(std::string_view name, char type, const AttrData& d) {
    return {{"N", name}, {"AT", pir_value(type, d)}};
  }

  static json::array one(json::object v) {
    json::array list;
    list.push_back(std::move(v));
    return list;
  }
  // What an op says of its results beside its attributes.
  static json::object per_result(const char* name, size_t results) {
    json::array flags;
    for (size_t k = 0; k < results; ++k) flags.push_back(typed("0.a_bool", true));
    return {{"N", name}, {"AT", typed("0.a_array", std::move(flags))}};
  }
  static json::object op_json(std::string_view name, json::array attrs, json::array in, json::array out) {
    json::array beside;
    if (name == "1.fetch") beside.push_back(per_result("persistable", out.size()));
    if (!out.empty()) beside.push_back(per_result("stop_gradient", out.size()));
    return {{"#", name},
            {"A", std::move(attrs)},
            {"I", std::move(in)},
            {"O", std::move(out)},
            {"OA", std::move(beside)}};
  }
  json::object region(json::array args, json::array ops) {
    const int64_t k = regions_++;
    json::object block{{"#", cat("block_", k)}, {"args", std::move(args)}, {"ops", std::move(ops)}};
    return {{"#", cat("region_", k)}, {"blocks", json::array{std::move(block)}}};
  }
  json::value list_type(const std::vector<ValueIndex>& values) const {
    json::array types;
    for (const ValueIndex v : values) types.push_back(tensor_type(program_.values[at(v)].type));
    return typed("0.t_vec", std::move(types));
  }

  static Result<json::array> attributes(const OpSchema& schema, const Op& op) {
    json::array out;
    Status status;
    each_schema_word(schema.attrs, [&](std::string_view word) {
      const SchemaAttr a = pir_attr(word);
      if (const Attr* given = op.attr(a.name)) return out.push_back(attribute(a.name, a.type, given->data));
      if (!a.has_value && a.type != 'p' && a.type != 'q')
        status = internal_error(cat("op ", op.type, " is written without '", a.name, "'"));
      out.push_back(attribute(a.name, a.type, default_of(a)));
    });
    if (!status.ok()) return status;
    return out;
  }
  static AttrData default_of(const SchemaAttr& a) {
    double number = 0;
    std::from_chars(a.value.data(), a.value.data() + a.value.size(), number);
    switch (a.type) {
      case 's':
      case 't': return std::string(a.value);
      case 'I':
      case 'L':
      case 'A': return std::vector<int64_t>{};
      case 'D': return std::vector<double>{};
      default: return number;
    }
  }

  Status write_ops(int32_t block, json::array& ops) {
    for (const Op& op : program_.blocks[static_cast<size_t>(block)].ops)
      OAR_RETURN_IF_ERROR(write_op(op, ops));
    return ok_status();
  }

  Status write_op(const Op& op, json::array& ops) {
    if (op.type == "cf.yield") {
      json::array in;
      for (const Slot& s : op.inputs) in.push_back(use(s.values[0]));
      ops.push_back(op_json("2.yield", {}, std::move(in), {}));
      return ok_status();
    }
    const OpSchema* schema = find_schema(op.type);
    if (schema == nullptr) return internal_error(cat("op ", op.type, " has no line in the table"));
    json::array in, out, regions;
    std::vector<SchemaSlot> slots;
    each_schema_word(schema->inputs, [&](std::string_view word) { slots.push_back(schema_slot(word)); });
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      const std::vector<ValueIndex>& values = op.inputs[k].values;
      if (values.empty()) in.push_back(json::object{{"%", 0}});
      else if (k < slots.size() && slots[k].list) in.push_back(combine(values, ops));
      else in.push_back(use(values[0]));
    }
    OAR_ASSIGN(json::array attrs, attributes(*schema, op));
    // A result is numbered before what its regions hold.
    std::vector<std::pair<int64_t, const Slot*>> lists;
    size_t k = 0;
    each_schema_word(schema->outputs, [&](std::string_view word) {
      if (word[0] == '+' || k >= op.outputs.size()) return;
      const Slot& slot = op.outputs[k++];
      if (!schema_slot(word).list) return out.push_back(result(slot.values[0]));
      lists.emplace_back(next_, &slot);
      out.push_back(json::object{{"%", next_++}, {"TT", list_type(slot.values)}});
    });
    for (; k < op.outputs.size(); ++k) out.push_back(result(op.outputs[k].values[0]));  // if, while
    for (const int32_t b : op.blocks) {
      json::array args, body;
      for (const ValueIndex v : program_.blocks[static_cast<size_t>(b)].args) {
        ids_[at(v)] = next_arg_--;
        args.push_back(json::object{{"#", ids_[at(v)]}, {"TT", tensor_type(program_.values[at(v)].type)}});
      }
      OAR_RETURN_IF_ERROR(write_ops(b, body));
      regions.push_back(region(std::move(args), std::move(body)));
    }
    json::object written = op_json(cat("1.", op.type), std::move(attrs), std::move(in), std::move(out));
    if (!regions.empty()) written["regions"] = std::move(regions);
    ops.push_back(std::move(written));
    for (const auto& [id, slot] : lists) {
      const auto& values = slot->values;  // of a list that nobody reads, nothing is taken
      if (std::any_of(values.begin(), values.end(), [&](ValueIndex v) { return used_.count(v) != 0; }))
        take_apart(id, values, ops);
    }
    return ok_status();
  }

  json::object combine(const std::vector<ValueIndex>& values, json::array& ops) {
    json::array in;
    for (const ValueIndex v : values) in.push_back(use(v));
    const int64_t id = next_++;
    ops.push_back(op_json("0.combine", {}, std::move(in), one({{"%", id}, {"TT", list_type(values)}})));
    return {{"%", id}};
  }
  void take_apart(int64_t id, const std::vector<ValueIndex>& values, json::array& ops) {
    json::array out;
    for (const ValueIndex v : values) out.push_back(result(v));
    ops.push_back(op_json("0.split", {}, one({{"%", id}}), std::move(out)));
  }

  const Program& program_;
  std::vector<int64_t> ids_;  // by value
  std::set<ValueIndex> used_;
  int64_t next_ = 1, next_arg_ = -1, regions_ = 0;
};

}  // namespace

Result<std::string> pir_text(const ProgramWriter& file) { return PirText(file).write(); }

}  // namespace oar::paddle
