// PIR json (inference.json, model.json), versions 1 to 4:
//
//   {"base_code": {"magic": "pir", "version": 4, "trainable": false}, "program": {"regions": [Region]}}
//   Region {"#", "blocks": [Block]}      Block {"#", "args": [{"#": -1, "TT": Type}], "ops": [Op]}
//   Op     {"#": "1.conv2d", "I": [{"%": id}], "O": [{"%": id, "TT": Type}], "A": [{"N", "AT"}], "regions"}
//   "p"    a parameter: "O" is one object, "A" a plain list with the name last
//
// The versions differ in attribute widths and defaults only, so any integer is read where an integer is meant
// and any number where a float is; what a file leaves out is filled in where the op is imported. A non-finite
// float is {"#": "0.a_f64", "VD": "NaN" | "INF" | "-INF"}: Paddle's own reader takes -INF for the smallest
// positive float, which makes an attention mask vanish. Here it is minus infinity.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/import/paddle_program.h"
#include "engine/loader/byte_reader.h"

namespace oar::paddle {
namespace {

constexpr int64_t kNewestVersion = 4;
constexpr size_t kMaxJsonDepth = 512;  // each nested region takes four levels
constexpr int kMaxRegionDepth = 64;

std::string_view text_of(const json::value& v) {
  return v.is_string() ? std::string_view(v.get_string().data(), v.get_string().size()) : std::string_view();
}

// The field `key` of an object, or null.
const json::value* field(const json::value* v, std::string_view key) {
  const json::object* o = v ? v->if_object() : nullptr;
  return o ? o->if_contains(key) : nullptr;
}
const json::array* list(const json::value* v) { return v ? v->if_array() : nullptr; }

std::optional<int64_t> integer(const json::value& v) {
  if (const int64_t* i = v.if_int64()) return *i;
  if (const uint64_t* u = v.if_uint64()) {
    if (*u <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(*u);
  }
  return std::nullopt;
}
// The id in a value, an operand or a result, or INT64_MIN.
int64_t id_of(const json::value* v, std::string_view key) {
  const json::value* id = field(v, key);
  return id ? integer(*id).value_or(INT64_MIN) : INT64_MIN;
}
std::optional<double> number(const json::value& v) {
  if (const double* d = v.if_double()) return *d;
  if (const uint64_t* u = v.if_uint64()) return static_cast<double>(*u);
  if (const auto i = integer(v)) return static_cast<double>(*i);
  return std::nullopt;
}

std::optional<double> nonfinite(std::string_view word) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (word == "NaN" || word == "NAN" || word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "INF" || word == "inf") return kInf;
  if (word == "-INF" || word == "-inf") return -kInf;
  return std::nullopt;
}

// "1.conv2d" -> "conv2d", "0.combine" -> "builtin.combine"; names of other dialects stay as they are.
std::string op_name(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::string(name);
  const std::string_view dialect = name.substr(0, dot), rest = name.substr(dot + 1);
  if (dialect == "1" || dialect == "pd_op") return std::string(rest);
  if (dialect == "0") return cat("builtin.", rest);
  if (dialect == "2") return cat("cf.", rest);
  if (dialect == "3") return cat("custom_op.", rest);
  if (dialect == "4") return cat("pd_dist.", rest);
  return std::string(name);
}

// "0.a_f32" -> "a_f32".
std::string_view kind_name(const json::value* v) {
  const std::string_view name = v ? text_of(*v) : std::string_view();
  return name.substr(name.find('.') + 1);  // npos + 1 is 0
}

std::string_view element_word(std::string_view type) {
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"t_bool", "bool"},         {"t_bf16", "bfloat16"},
      {"t_f16", "float16"},       {"t_f32", "float32"},
      {"t_f64", "float64"},       {"t_i8", "int8"},
      {"t_ui8", "uint8"},         {"t_i16", "int16"},
      {"t_i32", "int32"},         {"t_i64", "int64"},
      {"t_index", "int64"},       {"t_c64", "complex64"},
      {"t_c128", "complex128"},   {"t_f8e4m3fn", "float8_e4m3fn"},
      {"t_f8e5m2", "float8_e5m2"}};
  for (const auto& [t, word] : kWords) {
    if (type == t) return word;
  }
  return {};
}

class Reader {
 public:
  explicit Reader(std::string_view file) { program_.file = file; }

  Result<Program> read(const json::value& document) {
    program_.kind = Program::Kind::kPir;
    const json::value* base = field(&document, "base_code");
    const json::value* magic = field(base, "magic");
    if (!magic || text_of(*magic) != "pir") {
      return invalid_argument(
          cat(program_.file, ": base_code.magic is not \"pir\"; this is no Paddle 3 program"));
    }
    const json::value* version = field(base, "version");
    const auto v = version ? integer(*version) : std::nullopt;
    if (!v) return data_loss(cat(program_.file, ": base_code.version is missing or no integer"));
    if (*v < 1 || *v > kNewestVersion) {
      return unimplemented(
          cat(program_.file, ": PIR version ", *v, "; versions 1 to ", kNewestVersion, " are read"));
    }
    program_.version = *v;
    const json::array* regions = list(field(field(&document, "program"), "regions"));
    if (!regions || regions->size() != 1) {
      return data_loss(cat(program_.file, ": program.regions must hold one region"));
    }
    OAR_RETURN_IF_ERROR(read_region((*regions)[0], -1, 0).status());
    std::stable_sort(fetches_.begin(), fetches_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [col, port] : fetches_) program_.outputs.push_back(std::move(port));
    auto& params = program_.parameters;
    const auto& values = program_.values;
    std::sort(params.begin(), params.end(),
              [&](ValueIndex a, ValueIndex b) { return values[a].name < values[b].name; });
    for (size_t k = 1; k < params.size(); ++k) {
      if (values[params[k]].name == values[params[k - 1]].name) {
        return data_loss(
            cat(program_.file, ": two parameters are called ", show_name(values[params[k]].name)));
      }
    }
    return std::move(program_);
  }

 private:
  Status wrong(const Op& op, std::string_view what) const {
    return data_loss(cat(program_.where(op), ": ", what));
  }

  // The index of the region's block in program_.blocks. Regions of inference programs have one block each.
  Result<int32_t> read_region(const json::value& region, int32_t parent, int depth) {
    const json::array* blocks = list(field(&region, "blocks"));
    if (!blocks || blocks->size() != 1)
      return data_loss(cat(program_.file, ": a region must hold one block"));
    if (depth > kMaxRegionDepth) {
      return unimplemented(cat(program_.file, ": regions nest deeper than ", kMaxRegionDepth));
    }
    const auto index = static_cast<int32_t>(program_.blocks.size());
    program_.blocks.emplace_back();
    program_.blocks[index].parent = parent;
    const size_t outer = defined_.size();
    if (const json::array* args = list(field(&(*blocks)[0], "args"))) {
      for (const json::value& arg : *args) {
        const int64_t id = id_of(&arg, "#");
        if (id == INT64_MIN || id >= 0)
          return data_loss(cat(program_.file, ": a block argument has no negative id"));
        OAR_ASSIGN(const ValueIndex v, define(id, field(&arg, "TT"), cat("block ", index)));
        program_.blocks[index].args.push_back(v);
      }
    }
    const json::array* ops = list(field(&(*blocks)[0], "ops"));
    if (!ops) return data_loss(cat(program_.file, ": block ", index, " has no ops"));
    for (const json::value& op : *ops) OAR_RETURN_IF_ERROR(read_op(op, index, depth));
    while (defined_.size() > outer) {  // what a region defines, nobody outside sees
      by_id_.erase(defined_.back());
      defined_.pop_back();
    }
    return index;
  }

  Status read_op(const json::value& v, int32_t block, int depth) {
    Op op;
    op.location = next_op_++;
    const json::value* name = field(&v, "#");
    if (!name || text_of(*name).empty())
      return data_loss(cat(program_.file, ": op ", op.location, " has no name"));
    if (text_of(*name) == "p") return read_parameter(v, op);
    op.type = op_name(text_of(*name));
    if (const json::array* inputs = list(field(&v, "I"))) {
      for (const json::value& in : *inputs) {
        OAR_ASSIGN(auto slot, read_operand(in, op));
        op.inputs.push_back(std::move(slot));
      }
    }
    if (const json::array* attrs = list(field(&v, "A"))) {
      for (const json::value& a : *attrs) OAR_RETURN_IF_ERROR(read_attr(a, op));
    }
    // Results are numbered before the regions' values, but no region may use them.
    if (const json::array* regions = list(field(&v, "regions"))) {
      for (const json::value& r : *regions) {
        OAR_ASSIGN(const int32_t b, read_region(r, block, depth + 1));
        op.blocks.push_back(b);
      }
    }
    if (const json::array* outputs = list(field(&v, "O"))) {
      for (const json::value& out : *outputs) {
        const int64_t id = id_of(&out, "%");
        if (id < 0) return wrong(op, "a result has no id");
        Slot slot;
        if (id != 0) {
          OAR_ASSIGN(const ValueIndex index, define(id, field(&out, "TT"), program_.where(op)));
          slot.values.push_back(index);
        }
        op.outputs.push_back(std::move(slot));
      }
    }
    return add_op(std::move(op), block);
  }

  Status add_op(Op op, int32_t block) {
    const bool data = op.type == "data" || op.type == "feed";
    if (block != 0 || (!data && op.type != "fetch")) {
      program_.blocks[block].ops.push_back(std::move(op));
      return ok_status();
    }
    const auto& slots = data ? op.outputs : op.inputs;
    const Attr* name = op.attr("name");
    const std::string* text = name ? std::get_if<std::string>(&name->data) : nullptr;
    if (!text || slots.empty() || slots[0].values.empty()) {
      return wrong(op, "an input or output needs attribute \"name\" and one value");
    }
    Port port{*text, slots[0].values[0]};
    if (data) {
      program_.values[port.value].name = *text;
      program_.inputs.push_back(std::move(port));
      return ok_status();
    }
    const Attr* col = op.attr("col");
    const int64_t* at = col ? std::get_if<int64_t>(&col->data) : nullptr;
    fetches_.emplace_back(at ? *at : static_cast<int64_t>(fetches_.size()), std::move(port));
    return ok_status();
  }

  Status read_parameter(const json::value& v, Op& op) {
    op.type = "builtin.parameter";
    const json::value* out = field(&v, "O");
    if (const json::array* as_list = list(out)) out = as_list->size() == 1 ? &(*as_list)[0] : nullptr;
    const int64_t id = id_of(out, "%");
    const json::array* attrs = list(field(&v, "A"));
    if (id <= 0 || !attrs || attrs->size() < 4 || !(*attrs)[3].is_string()) {
      return wrong(op, "a parameter needs a result id and its name as the fourth entry of \"A\"");
    }
    OAR_ASSIGN(const ValueIndex index, define(id, field(out, "TT"), program_.where(op)));
    Value& value = program_.values[index];
    value.name = text_of((*attrs)[3]);
    value.parameter = true;
    if (value.type.kind != ValueType::Kind::kTensor) {
      return unimplemented(
          cat(program_.where(op), ": parameter ", show_name(value.name), " is no dense tensor"));
    }
    program_.parameters.push_back(index);
    return ok_status();
  }

  Result<Slot> read_operand(const json::value& v, const Op& op) {
    const int64_t id = id_of(&v, "%");
    if (id == INT64_MIN) return wrong(op, "an operand has no id");
    Slot slot;
    if (id == 0) return slot;
    const auto it = by_id_.find(id);
    if (it == by_id_.end()) { return wrong(op, cat("operand %", id, " is not defined before it is used")); }
    slot.values.push_back(it->second);
    return slot;
  }

  Result<ValueIndex> define(int64_t id, const json::value* type, std::string_view where) {
    const auto index = static_cast<ValueIndex>(program_.values.size());
    if (!by_id_.emplace(id, index).second) {
      return data_loss(cat(where, ": value %", id, " is defined twice"));
    }
    defined_.push_back(id);
    Value value;
    value.name = cat("%", id);
    if (type) OAR_RETURN_IF_ERROR(read_type(*type, where, value.type));
    program_.values.push_back(std::move(value));
    return index;
  }

  Status read_type(const json::value& v, std::string_view where, ValueType& type) {
    using Kind = ValueType::Kind;
    const std::string_view name = kind_name(field(&v, "#"));
    if (name == "NULL" || name.empty()) return ok_status();
    if (name == "t_vec") type.kind = Kind::kVector;
    else if (name == "t_dtensor") type.kind = Kind::kTensor;
    else if (name == "t_dense_tensor_array") type.kind = Kind::kTensorArray;
    else type.kind = Kind::kOther;
    if (type.kind != Kind::kTensor && type.kind != Kind::kTensorArray) return ok_status();
    const json::array* d = list(field(&v, "D"));
    const json::array* dims = d && d->size() >= 2 ? list(&(*d)[1]) : nullptr;
    if (!dims) return data_loss(cat(where, ": a tensor type needs [element type, dims]"));
    type.dtype = element_word(kind_name(field(&(*d)[0], "#")));
    if (type.dtype.empty()) {
      return unimplemented(
          cat(where, ": element type ", show_name(kind_name(field(&(*d)[0], "#"))), " is not known"));
    }
    for (const json::value& e : *dims) {
      const auto n = integer(e);
      if (!n) return data_loss(cat(where, ": an extent is no integer"));
      type.dims.push_back(std::max<int64_t>(*n, -1));  // Paddle multiplies unknowns: -12 is unknown too
    }
    return ok_status();
  }

  Status read_attr(const json::value& v, Op& op) {
    const json::value* name = field(&v, "N");
    const json::value* at = field(&v, "AT");
    if (!name || text_of(*name).empty() || !at) return wrong(op, "an attribute has no name or no value");
    Attr attr{std::string(text_of(*name)), {}};
    const Status s = read_attr_data(*at, attr.data);
    if (!s.ok())
      return {s.code(), cat(program_.where(op), ": attribute ", show_name(attr.name), " ", s.message())};
    op.attrs.push_back(std::move(attr));
    return ok_status();
  }

  // Messages continue "attribute x ...".
  static Status read_attr_data(const json::value& v, AttrData& out) {
    const std::string_view kind = kind_name(field(&v, "#"));
    const json::value* d = field(&v, "D");
    if (kind == "NULL") return ok_status();
    if (const json::value* vd = field(&v, "VD")) {
      const auto value = nonfinite(text_of(*vd));
      if (!value || (kind != "a_f32" && kind != "a_f64")) {
        return data_loss(
            cat("has \"VD\" ", show_name(text_of(*vd)), "; NaN, INF and -INF exist, for floats"));
      }
      out = *value;
      return ok_status();
    }
    if (!d) return data_loss("has neither \"D\" nor \"VD\"");
    if (kind == "a_bool") {
      if (const bool* b = d->if_bool()) return out = *b, ok_status();
      if (const auto i = integer(*d)) return out = *i != 0, ok_status();
      return data_loss("is no boolean");
    }
    if (kind == "a_i32" || kind == "a_i64" || kind == "a_index") {
      if (const auto i = integer(*d)) return out = *i, ok_status();
      return data_loss("is no integer");
    }
    if (kind == "a_f32" || kind == "a_f64") {
      if (const auto x = number(*d)) return out = *x, ok_status();
      return data_loss("is no number; was it not finite when an older Paddle wrote it?");
    }
    if (kind == "a_str" || kind == "a_tensorname" || kind == "a_dtype" || kind == "a_layout") {
      if (!d->is_string()) return data_loss("is no string");
      return out = std::string(text_of(*d)), ok_status();
    }
    if (kind == "a_intarray") return read_ints(*d, out);
    if (kind == "a_scalar") return read_scalar(*d, out);
    if (kind == "a_array") return read_array(*d, out);
    if (kind == "a_c64" || kind == "a_c128") return read_complex(*d, 0, out);
    if (kind == "a_place" || kind == "a_type" || kind == "a_process_mesh" || kind == "a_tensor_dist" ||
        kind == "a_op_dist") {
      return ok_status();
    }
    return unimplemented(cat("has the unknown type ", show_name(kind)));
  }
  static Status read_ints(const json::value& v, AttrData& out) {
    const json::array* items = v.if_array();
    if (!items) return data_loss("is no list");
    std::vector<int64_t> ints;
    for (const json::value& e : *items) {
      const auto i = integer(e);
      if (!i) return data_loss("holds something that is no integer");
      ints.push_back(*i);
    }
    return out = std::move(ints), ok_status();
  }
  static Status read_complex(const json::value& v, size_t first, AttrData& out) {
    const json::array* items = v.if_array();
    const auto re = items && items->size() >= first + 2 ? number((*items)[first]) : std::nullopt;
    const auto im = re ? number((*items)[first + 1]) : std::nullopt;
    if (!im) return data_loss("is no [real, imaginary]");
    return out = std::vector<double>{*re, *im}, ok_status();
  }
  // ["float32", 1.5], a non-finite one as a word.
  static Status read_scalar(const json::value& v, AttrData& out) {
    const json::array* items = v.if_array();
    if (!items || items->size() < 2 || !(*items)[0].is_string()) return data_loss("is no [dtype, value]");
    const std::string_view dtype = text_of((*items)[0]);
    const json::value& x = (*items)[1];
    if (dtype.starts_with("complex")) return read_complex(v, 1, out);
    if (x.is_string()) {
      if (const auto value = nonfinite(text_of(x))) return out = *value, ok_status();
      return data_loss("is no number");
    }
    if (const bool* b = x.if_bool()) return out = *b, ok_status();
    const bool real = dtype.starts_with("float") || dtype.starts_with("bfloat");
    if (const auto i = integer(x); i && !real) {
      if (dtype == "bool") return out = *i != 0, ok_status();
      return out = *i, ok_status();
    }
    if (const auto d = number(x)) return out = *d, ok_status();
    return data_loss("is no number");
  }
  // A list of attributes of one kind each: strings, integers while all are, else floats.
  static Status read_array(const json::value& v, AttrData& out) {
    const json::array* items = v.if_array();
    if (!items) return data_loss("is no list");
    std::vector<int64_t> ints;
    std::vector<double> reals;
    std::vector<std::string> strings;
    for (const json::value& e : *items) {
      AttrData one;
      OAR_RETURN_IF_ERROR(read_attr_data(e, one));
      if (auto* s = std::get_if<std::string>(&one)) {
        strings.push_back(std::move(*s));
      } else if (const double* d = std::get_if<double>(&one)) {
        reals.push_back(*d);
      } else if (const int64_t* i = std::get_if<int64_t>(&one)) {
        ints.push_back(*i);
        reals.push_back(static_cast<double>(*i));
      } else if (const bool* b = std::get_if<bool>(&one)) {
        ints.push_back(*b);
        reals.push_back(*b);
      } else {
        return ok_status();  // lists of what no inference op reads
      }
    }
    if (!strings.empty() && strings.size() != items->size()) return data_loss("mixes strings and numbers");
    if (!strings.empty()) out = std::move(strings);
    else if (ints.size() == items->size()) out = std::move(ints);
    else out = std::move(reals);
    return ok_status();
  }

  Program program_;
  std::unordered_map<int64_t, ValueIndex> by_id_;  // what the op being read may use
  std::vector<int64_t> defined_;                   // its keys, in order of definition
  std::vector<std::pair<int64_t, Port>> fetches_;
  uint64_t next_op_ = 0;
};

}  // namespace

Result<Program> parse_pir(std::string_view text, std::string_view file) {
  JsonLimits limits;
  limits.max_depth = kMaxJsonDepth;
  OAR_ASSIGN(const json::value document, parse_json(text, file, limits));
  return Reader(file).read(document);
}

}  // namespace oar::paddle
