// A program as ProgramDesc (framework.proto; field numbers as in import/paddle_protobuf.cc). Operands get
// their names, computed attributes that are constants become attributes, and PIR's control flow becomes
// blocks that write variables around them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "engine/base/format.h"
#include "engine/export/paddle_schema.h"
#include "engine/export/paddle_writer.h"
#include "engine/export/proto_writer.h"

namespace oar::paddle {
namespace {

// major 10^6 + minor 10^3 + patch, of the Paddle whose ops are written.
constexpr int64_t kProgramVersion = 2006000;

enum : int64_t { kLodTensor = 7, kFeedMinibatch = 9, kFetchList = 10, kStepScopes = 11 };  // VarType.Type
enum : int64_t {                                                                           // AttrType
  kInt = 0,
  kFloat,
  kString,
  kInts,
  kFloats,
  kBoolean = 6,
  kBlock = 8,
  kLong,
  kLongs = 11
};

struct DescBlock {
  int32_t parent = -1;
  ProtoWriter vars, ops;  // fields of the BlockDesc
};

class DescWriter {
 public:
  explicit DescWriter(const ProgramWriter& file)
      : program_(file.program), names_(program_.values.size()), taken_(file.taken) {
    for (size_t v = 0; v < names_.size(); ++v) names_[v] = program_.values[v].name;
  }

  Result<std::string> write() {
    find_attributes();
    blocks_.resize(program_.blocks.size());
    for (size_t b = 0; b < blocks_.size(); ++b) blocks_[b].parent = program_.blocks[b].parent;
    const std::string feed = unique("feed"), fetch = unique("fetch");
    DescBlock& main = blocks_[0];
    main.vars.message(3, holder(feed, kFeedMinibatch)).message(3, holder(fetch, kFetchList));
    for (const ValueIndex v : program_.parameters) declare(0, v);
    for (size_t k = 0; k < program_.inputs.size(); ++k) {
      const ValueIndex v = program_.inputs[k].value;
      declare(0, v);
      emit(0, "feed", {{"X", {feed}}}, {{"Out", {name(v)}}}, {number("col", kInt, static_cast<int64_t>(k))});
    }
    OAR_RETURN_IF_ERROR(write_ops(0));
    for (size_t k = 0; k < program_.outputs.size(); ++k) {
      emit(0, "fetch", {{"X", {name(program_.outputs[k].value)}}}, {{"Out", {fetch}}},
           {number("col", kInt, static_cast<int64_t>(k))});
    }
    ProtoWriter desc;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      ProtoWriter block;
      block.number(1, static_cast<int64_t>(b)).number(2, blocks_[b].parent);
      block.raw(blocks_[b].vars.bytes()).raw(blocks_[b].ops.bytes());
      desc.message(1, block);
    }
    desc.message(4, ProtoWriter().number(1, kProgramVersion));
    if (desc.bytes().size() > INT32_MAX)
      return unimplemented(cat("the program would have ", desc.bytes().size(),
                               " bytes, and no protobuf message may have 2 GiB"));
    return desc.bytes();
  }

 private:
  struct Names {
    std::string_view slot;
    std::vector<std::string> names;
  };

  static size_t at(ValueIndex v) { return static_cast<size_t>(v); }
  const std::string& name(ValueIndex v) const { return names_[at(v)]; }
  std::string unique(std::string_view wanted) {
    std::string name(wanted);
    for (int n = 2; !taken_.insert(name).second; ++n) name = cat(wanted, "_", n);
    return name;
  }

  // ---- variables

  static ProtoWriter tensor_desc(const ValueType& t) {
    ProtoWriter desc;
    desc.number(1, var_type_of(t.dtype));
    for (const int64_t d : t.dims) desc.number(2, d);
    return desc;
  }
  static ProtoWriter variable(const std::string& name, const ValueType& t, bool persistable) {
    ProtoWriter type, var;
    type.number(1, kLodTensor).message(3, ProtoWriter().message(1, tensor_desc(t)).number(2, 0));
    var.text(1, name).message(2, type).number(3, persistable);
    if (persistable) var.number(5, 1);
    return var;
  }
  static ProtoWriter holder(const std::string& name, int64_t type) {
    return ProtoWriter()
        .text(1, name)
        .message(2, ProtoWriter().number(1, type))
        .number(3, type != kStepScopes);
  }
  void declare(int32_t block, ValueIndex v) {
    const Value& value = program_.values[at(v)];
    blocks_[static_cast<size_t>(block)].vars.message(3, variable(name(v), value.type, value.parameter));
  }
  // A variable of the same type that no value of the program is.
  std::string extra(int32_t block, std::string_view wanted, const ValueType& t) {
    const std::string n = unique(wanted);
    blocks_[static_cast<size_t>(block)].vars.message(3, variable(n, t, false));
    return n;
  }

  // ---- attributes

  static ProtoWriter attribute(std::string_view name, int64_t type) {
    return ProtoWriter().text(1, name).number(2, type);
  }
  static ProtoWriter number(std::string_view name, int64_t type, int64_t v) {
    constexpr std::pair<int64_t, int> kFields[] = {{kInt, 3}, {kBoolean, 10}, {kBlock, 12}, {kLong, 13}};
    ProtoWriter a = attribute(name, type);
    for (const auto& [t, field] : kFields)
      if (t == type) a.number(field, v);
    return a;
  }
  static double number_in(const AttrData& d) {
    if (const auto* v = std::get_if<double>(&d)) return *v;
    if (const auto* v = std::get_if<int64_t>(&d)) return static_cast<double>(*v);
    const auto* b = std::get_if<bool>(&d);
    return b && *b ? 1 : 0;
  }
  static std::vector<int64_t> ints_in(const AttrData& d) {
    const auto* list = std::get_if<std::vector<int64_t>>(&d);
    return list ? *list : std::vector<int64_t>{};
  }
  // By the table's letters; PIR's wide ones are narrow here unless the table's last column says otherwise.
  static ProtoWriter attribute_of(std::string_view name, char type, const AttrData& d) {
    const auto* word = std::get_if<std::string>(&d);
    switch (type) {
      case 'b': return number(name, kBoolean, number_in(d) != 0);
      case 'i': return number(name, kInt, static_cast<int64_t>(number_in(d)));
      case 'l': return number(name, kLong, static_cast<int64_t>(number_in(d)));
      case 't': return number(name, kInt, word ? var_type_of(*word) : static_cast<int64_t>(number_in(d)));
      case 'f': return attribute(name, kFloat).fixed32(4, static_cast<float>(number_in(d)));
      case 's': return attribute(name, kString).text(5, word ? *word : std::string());
      case 'F': {
        ProtoWriter a = attribute(name, kFloats);
        if (const auto* list = std::get_if<std::vector<double>>(&d))
          for (const double v : *list) a.fixed32(7, static_cast<float>(v));
        return a;
      }
      case 'L': {
        ProtoWriter a = attribute(name, kLongs);
        for (const int64_t v : ints_in(d)) a.number(15, v);
        return a;
      }
      default: {
        ProtoWriter a = attribute(name, kInts);
        for (const int64_t v : ints_in(d)) a.number(6, std::clamp<int64_t>(v, INT32_MIN, INT32_MAX));
        return a;
      }
    }
  }
  static char narrow(char type) {
    switch (type) {
      case 'L':
      case 'A': return 'I';
      case 'D': return 'F';
      case 'd': return 'f';
      default: return type;
    }
  }
  static AttrData parsed(const SchemaAttr& a) {
    if (a.type == 's' || a.type == 't') return std::string(a.value);
    double v = 0;
    std::from_chars(a.value.data(), a.value.data() + a.value.size(), v);
    return a.value.empty() ? AttrData() : AttrData(v);
  }

  std::vector<ProtoWriter> attributes(const OpSchema& schema, const Op& op) {
    std::vector<ProtoWriter> out;
    std::map<std::string_view, SchemaAttr> renamed;
    std::vector<SchemaAttr> more;
    each_schema_word(schema.legacy_attrs, [&](std::string_view word) {
      const SchemaAttr a = legacy_attr(word);
      if (word[0] == '+') more.push_back(a);
      else renamed[a.name] = a;
    });
    each_schema_word(schema.attrs, [&](std::string_view word) {
      const SchemaAttr a = pir_attr(word);
      if (a.type == 'p' || a.type == 'q') return;
      const auto it = renamed.find(a.name);
      if (it != renamed.end() && it->second.other == "-") return;
      const Attr* given = op.attr(a.name);
      const char type = it != renamed.end() && it->second.type ? it->second.type : narrow(a.type);
      out.push_back(attribute_of(it == renamed.end() ? a.name : it->second.other, type,
                                 given ? given->data : parsed(a)));
    });
    for (const SchemaAttr& a : more) {
      const Attr* given = op.attr(a.name);
      out.push_back(attribute_of(a.other, a.type, given ? given->data : parsed(a)));
    }
    if (op.type == "full") out.push_back(attribute("str_value", kString).text(5, exact_text(op)));
    return out;
  }
  static std::string exact_text(const Op& op) {
    const Attr* value = op.attr("value");
    const double v = value ? number_in(value->data) : 0;
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v > 0 ? "inf" : "-inf";
    char buffer[64];
    const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, v);
    return error == std::errc() ? std::string(buffer, end) : std::string("0");
  }

  // ---- operands that are attributes here

  // The op that makes a constant of an operand, or null.
  const Op* constant_behind(const Slot& s) const {
    const auto it = s.values.size() == 1 ? constants_.find(s.values[0]) : constants_.end();
    return it == constants_.end() ? nullptr : it->second;
  }
  bool becomes_attribute(const SchemaSlot& slot, const Slot& s) const {
    const Op* c = slot.attr.empty() ? nullptr : constant_behind(s);
    if (c == nullptr) return false;
    const double v = number_in(c->attr("value")->data);
    // A float there: a number that needs more stays a tensor, where there is a place for one.
    return slot.attr_type != 'f' || slot.slot == "-" || !std::isfinite(v) ||
           static_cast<double>(static_cast<float>(v)) == v;
  }
  void find_attributes() {
    for (const Block& block : program_.blocks)
      for (const Op& op : block.ops)
        if (op.type == "full" || op.type == "full_int_array") constants_[op.outputs[0].values[0]] = &op;
    for (const Block& block : program_.blocks) {
      for (const Op& op : block.ops) {
        std::vector<SchemaSlot> slots;
        if (const OpSchema* schema = find_schema(op.type))
          each_schema_word(schema->inputs, [&](std::string_view w) { slots.push_back(schema_slot(w)); });
        for (size_t k = 0; k < op.inputs.size(); ++k) {
          if (k < slots.size() && becomes_attribute(slots[k], op.inputs[k])) continue;
          for (const ValueIndex v : op.inputs[k].values) needed_.insert(v);
        }
      }
    }
    for (const Port& port : program_.outputs) needed_.insert(port.value);
  }

  // ---- ops

  void emit(int32_t block, std::string_view type, const std::vector<Names>& in, const std::vector<Names>& out,
            const std::vector<ProtoWriter>& attrs) {
    ProtoWriter op;
    const auto slots = [&](int field, const std::vector<Names>& list) {
      for (const Names& n : list) {
        ProtoWriter slot;
        slot.text(1, n.slot);
        for (const std::string& s : n.names) slot.text(2, s);
        op.message(field, slot);
      }
    };
    slots(1, in);
    slots(2, out);
    op.text(3, type);
    for (const ProtoWriter& a : attrs) op.message(4, a);
    blocks_[static_cast<size_t>(block)].ops.message(4, op);
  }
  void assign(int32_t block, const std::string& from, const std::string& to) {
    emit(block, "assign", {{"X", {from}}}, {{"Out", {to}}}, {});
  }

  Status write_ops(int32_t block) {
    for (const Op& op : program_.blocks[static_cast<size_t>(block)].ops) {
      if (op.type == "cf.yield") continue;
      const ValueIndex first = op.outputs.empty() ? kAbsent : op.outputs[0].values[0];
      if (constants_.count(first) && !needed_.count(first)) continue;
      if (op.type == "if") OAR_RETURN_IF_ERROR(write_if(block, op));
      else if (op.type == "while") OAR_RETURN_IF_ERROR(write_while(block, op));
      else OAR_RETURN_IF_ERROR(write_op(block, op));
    }
    return ok_status();
  }

  Status write_op(int32_t block, const Op& op) {
    const OpSchema* schema = find_schema(op.type);
    if (schema == nullptr || op.type == "full_int_array")
      return internal_error(cat("op ", op.type, " has no place in a ProgramDesc"));
    std::vector<Names> in, out;
    std::vector<ProtoWriter> attrs = attributes(*schema, op);
    size_t k = 0;
    each_schema_word(schema->inputs, [&](std::string_view word) {
      const SchemaSlot slot = schema_slot(word);
      const Slot empty, &s = k < op.inputs.size() ? op.inputs[k] : empty;
      ++k;
      const bool constant = becomes_attribute(slot, s);
      if (!slot.attr.empty())
        attrs.push_back(attribute_of(slot.attr, slot.attr_type,
                                     constant ? constant_behind(s)->attr("value")->data : AttrData()));
      if (constant || slot.slot == "-" || s.values.empty()) return;
      Names names{slot.slot, {}};
      for (const ValueIndex v : s.values) names.names.push_back(name(v));
      in.push_back(std::move(names));
    });
    k = 0;
    each_schema_word(schema->outputs, [&](std::string_view word) {
      if (word[0] == '+') {  // what gradients need: no element, then x's shape
        ValueType t = program_.values[at(op.inputs[0].values[0])].type;
        t.dims.insert(t.dims.begin(), 0);
        const std::string x = extra(block, cat(name(op.outputs[0].values[0]), ".xshape"), t);
        return out.push_back({word.substr(1), {x}});
      }
      if (k >= op.outputs.size()) return;
      const SchemaSlot slot = schema_slot(word);
      Names names{slot.slot, {}};
      for (const ValueIndex v : op.outputs[k++].values) {
        if (slot.alias >= 0) {
          names.names.push_back(name(op.inputs[static_cast<size_t>(slot.alias)].values[0]));
        } else {
          declare(block, v);
          names.names.push_back(name(v));
        }
      }
      out.push_back(std::move(names));
    });
    if (op.type == "shape64") {  // of i32 here
      ValueType narrow = program_.values[at(op.outputs[0].values[0])].type;
      narrow.dtype = "int32";
      const std::string small = extra(block, cat(out[0].names[0], ".i32"), narrow);
      emit(block, "shape", in, {{"Out", {small}}}, attrs);
      emit(block, "cast", {{"X", {small}}}, out,
           {number("in_dtype", kInt, var_type_of("int32")), number("out_dtype", kInt, var_type_of("int64"))});
      return ok_status();
    }
    emit(block, schema->legacy ? schema->legacy : schema->name, in, out, attrs);
    return ok_status();
  }

  // What a block and those in it read of the variables around it.
  void collect_reads(int32_t block, std::set<ValueIndex>& reads, std::set<ValueIndex>& made) const {
    const Block& b = program_.blocks[static_cast<size_t>(block)];
    made.insert(b.args.begin(), b.args.end());
    for (const Op& op : b.ops) {
      for (const Slot& s : op.inputs)
        for (const ValueIndex v : s.values)
          if (!constants_.count(v) || needed_.count(v)) reads.insert(v);
      for (const Slot& s : op.outputs) made.insert(s.values.begin(), s.values.end());
      for (const int32_t inner : op.blocks) collect_reads(inner, reads, made);
    }
  }
  std::vector<std::string> reads_of(int32_t block) const {
    std::set<ValueIndex> reads, made;
    collect_reads(block, reads, made);
    std::vector<std::string> out;
    for (const ValueIndex v : reads)
      if (!made.count(v)) out.push_back(name(v));
    return out;
  }
  const std::vector<Slot>& yields(int32_t block) const {
    return program_.blocks[static_cast<size_t>(block)].ops.back().inputs;
  }

  // Either branch under its own condition writes variables out here; select_input takes those that were
  // written.
  Status write_if(int32_t block, const Op& op) {
    const std::string yes = name(op.inputs[0].values[0]);
    ValueType flag = program_.values[at(op.inputs[0].values[0])].type;
    const std::string no = extra(block, cat(yes, ".not"), flag);
    emit(block, "logical_not", {{"X", {yes}}}, {{"Out", {no}}}, {});
    flag.dtype = "int32";
    const std::string mask = extra(block, cat(yes, ".mask"), flag);
    emit(block, "cast", {{"X", {yes}}}, {{"Out", {mask}}},
         {number("in_dtype", kInt, var_type_of("bool")), number("out_dtype", kInt, var_type_of("int32"))});
    std::vector<std::string> written[2];
    for (size_t k = 0; k < 2; ++k) {
      const int32_t b = op.blocks[k];
      OAR_RETURN_IF_ERROR(write_ops(b));
      for (const Slot& s : yields(b)) {
        const ValueIndex v = s.values[0];
        written[k].push_back(extra(block, cat(name(v), ".out"), program_.values[at(v)].type));
        assign(b, name(v), written[k].back());
      }
      const std::string scope = unique(cat(yes, ".scope"));
      blocks_[static_cast<size_t>(block)].vars.message(3, holder(scope, kStepScopes));
      emit(block, "conditional_block", {{"Cond", {k == 0 ? yes : no}}, {"Input", reads_of(b)}},
           {{"Out", written[k]}, {"Scope", {scope}}},
           {number("sub_block", kBlock, b), number("is_scalar_condition", kBoolean, 1)});
    }
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      declare(block, op.outputs[k].values[0]);
      emit(block, "select_input", {{"X", {written[1][k], written[0][k]}}, {"Mask", {mask}}},
           {{"Out", {name(op.outputs[k].values[0])}}}, {});
    }
    return ok_status();
  }

  // The loop's results are its variables: they start as copies of the operands, and the body ends with
  // writing them, all read before the first is written.
  Status write_while(int32_t block, const Op& op) {
    const int32_t b = op.blocks[0];
    const ValueIndex first = op.inputs[0].values[0];
    const std::string condition = extra(block, cat(name(first), ".go"), program_.values[at(first)].type);
    assign(block, name(first), condition);
    std::vector<std::string> variables;
    const std::vector<ValueIndex>& args = program_.blocks[static_cast<size_t>(b)].args;
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      const ValueIndex v = op.outputs[k].values[0];
      declare(block, v);
      assign(block, name(op.inputs[k + 1].values[0]), name(v));
      names_[at(args[k])] = name(v);
      variables.push_back(name(v));
    }
    OAR_RETURN_IF_ERROR(write_ops(b));
    std::vector<std::string> next;
    for (const Slot& s : yields(b)) {
      const ValueIndex v = s.values[0];
      next.push_back(extra(b, cat(name(v), ".next"), program_.values[at(v)].type));
      assign(b, name(v), next.back());
    }
    assign(b, next[0], condition);
    for (size_t k = 0; k < variables.size(); ++k) assign(b, next[k + 1], variables[k]);
    const std::string scopes = unique(cat(condition, ".scopes"));
    blocks_[static_cast<size_t>(block)].vars.message(3, holder(scopes, kStepScopes));
    std::vector<std::string> read = reads_of(b);
    read.insert(read.end(), variables.begin(), variables.end());
    variables.push_back(condition);
    emit(block, "while", {{"X", read}, {"Condition", {condition}}},
         {{"Out", variables}, {"StepScopes", {scopes}}},
         {number("sub_block", kBlock, b), number("is_test", kBoolean, 1)});
    return ok_status();
  }

  const Program& program_;
  std::vector<std::string> names_;  // of the variable that a value is
  std::set<std::string, std::less<>> taken_;
  std::vector<DescBlock> blocks_;
  std::map<ValueIndex, const Op*> constants_;  // full, full_int_array
  std::set<ValueIndex> needed_;                // values that some op reads as a tensor
};

}  // namespace

Result<std::string> program_desc_bytes(const ProgramWriter& file) { return DescWriter(file).write(); }

}  // namespace oar::paddle
