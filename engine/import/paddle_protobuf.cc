// ProgramDesc (framework.proto, proto2), the .pdmodel and __model__ files, by a bounded wire reader: field
// numbers and enums below are the schema's. Unknown fields are skipped as protobuf demands; a known field of
// another wire type, an index outside its list or a name nobody declared is an error with its byte offset.
#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "engine/base/wire_reader.h"
#include "engine/import/paddle_program.h"
#include "engine/import/paddle_wire.h"
#include "engine/loader/byte_reader.h"

namespace oar::paddle {
namespace {

// VarType.Type beyond the tensor elements.
enum : int64_t {
  kLodTensor = 7,
  kSelectedRows = 8,
  kFeedMinibatch = 9,
  kFetchList = 10,
  kStepScopes = 11,
  kLodTensorArray = 13,
  kRaw = 17,
};

// OpDesc.Attr.type
enum : int64_t {
  kInt = 0,
  kFloat,
  kString,
  kInts,
  kFloats,
  kStrings,
  kBoolean,
  kBooleans,
  kBlock,
  kLong,
  kBlocks,
  kLongs,
  kFloat64s,
  kVar,
  kVars,
  kFloat64,
  kScalar,
  kScalars,
};

using Field = WireReader::Field;

int32_t as_i32(const Field& f) { return static_cast<int32_t>(f.value); }
int64_t as_i64(const Field& f) { return static_cast<int64_t>(f.value); }

struct AttrMsg {
  std::string_view name;
  int64_t type = -1;
  bool has_type = false;
  int64_t i = 0, block = -1;
  double f = 0;
  std::string_view s, var;
  bool b = false;
  std::vector<int64_t> ints, blocks;
  std::vector<double> floats;
  std::vector<std::string> strings;
  std::vector<std::string_view> vars;
  std::vector<AttrData> scalars;
};

struct BlockMsg {
  int64_t idx = 0, parent = -1;
  std::vector<std::string_view> vars, ops;
};

class Reader {
 public:
  Reader(std::string_view bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  Result<Program> read() {
    program_.kind = Program::Kind::kLegacy;
    program_.file = file_;
    std::vector<BlockMsg> blocks;
    OAR_RETURN_IF_ERROR(walk(bytes_, "ProgramDesc", [&](const Field& f) -> Status {
      if (f.number == 1) {
        OAR_RETURN_IF_ERROR(want_bytes(f, "blocks"));
        OAR_ASSIGN(auto block, read_block(f.bytes));
        blocks.push_back(std::move(block));
      } else if (f.number == 4) {
        OAR_RETURN_IF_ERROR(want_bytes(f, "version"));
        return walk(f.bytes, "version", [&](const Field& v) -> Status {
          if (v.number == 1) program_.version = as_i64(v);
          return ok_status();
        });
      }
      return ok_status();
    }));
    if (blocks.empty()) return data_loss(cat(file_, ": a program without blocks; this is no Paddle program"));
    if (program_.version < 0 || program_.version > 3'999'999) {
      return unimplemented(
          cat(file_, ": program version ", program_.version, " is not one of 0 to 3.999.999"));
    }
    program_.blocks.resize(blocks.size());
    scopes_.resize(blocks.size());
    block_used_.resize(blocks.size());
    for (size_t k = 0; k < blocks.size(); ++k) {
      const int64_t parent = blocks[k].parent;
      // A parent comes before its children, so the chain of parents always ends.
      if (k == 0 ? parent != -1 : parent < 0 || parent >= static_cast<int64_t>(k)) {
        return data_loss(cat(file_, ": block ", k, " has parent ", parent));
      }
      program_.blocks[k].parent = static_cast<int32_t>(parent);
      for (std::string_view var : blocks[k].vars) OAR_RETURN_IF_ERROR(add_var(k, var));
    }
    for (size_t k = 0; k < blocks.size(); ++k) {
      for (std::string_view op : blocks[k].ops) OAR_RETURN_IF_ERROR(add_op(k, op));
    }
    OAR_RETURN_IF_ERROR(order_ports(program_.inputs, feeds_, "feed"));
    OAR_RETURN_IF_ERROR(order_ports(program_.outputs, fetches_, "fetch"));
    std::sort(program_.parameters.begin(), program_.parameters.end(),
              [&](ValueIndex a, ValueIndex b) { return program_.values[a].name < program_.values[b].name; });
    return std::move(program_);
  }

 private:
  uint64_t offset_of(std::string_view part) const {
    return static_cast<uint64_t>(part.data() - bytes_.data());
  }

  template <class F>
  Status walk(std::string_view message, std::string_view what, F&& on_field) {
    WireReader reader(message);
    while (const auto f = reader.next()) OAR_RETURN_IF_ERROR(on_field(*f));
    if (reader.ok()) return ok_status();
    return data_loss(cat(file_, ": ", what, " at byte ", offset_of(message),
                         " is damaged or truncated; this is no whole Paddle program"));
  }
  Status want_bytes(const Field& f, std::string_view what) {
    if (f.is_bytes()) return ok_status();
    return data_loss(cat(file_, ": ", what, " has wire type ", f.wire_type, " instead of 2"));
  }
  Status want_varint(const Field& f, std::string_view what) {
    if (f.is_varint()) return ok_status();
    return data_loss(cat(file_, ": ", what, " has wire type ", f.wire_type, " instead of 0"));
  }
  // A repeated integer, packed or one key per element.
  Status integers(const Field& f, std::string_view what, std::vector<int64_t>& out, bool narrow = false) {
    if (f.is_varint()) {
      out.push_back(narrow ? as_i32(f) : as_i64(f));
      return ok_status();
    }
    OAR_RETURN_IF_ERROR(want_bytes(f, what));
    const size_t first = out.size();
    if (unpack_varints(f.bytes, out)) {
      if (narrow) {
        for (size_t k = first; k < out.size(); ++k) out[k] = static_cast<int32_t>(out[k]);
      }
      return ok_status();
    }
    return data_loss(cat(file_, ": packed ", what, " at byte ", offset_of(f.bytes), " is damaged"));
  }
  template <class T>
  Status floats(const Field& f, std::string_view what, std::vector<double>& out) {
    if (sizeof(T) == 4 ? f.is_fixed32() : f.is_fixed64()) {
      out.push_back(sizeof(T) == 4 ? f.as_float() : f.as_double());
      return ok_status();
    }
    OAR_RETURN_IF_ERROR(want_bytes(f, what));
    if (f.bytes.size() % sizeof(T) != 0) {
      return data_loss(cat(file_, ": packed ", what, " at byte ", offset_of(f.bytes), " is damaged"));
    }
    for (size_t k = 0; k < f.bytes.size(); k += sizeof(T)) {
      T v;
      memcpy(&v, f.bytes.data() + k, sizeof(T));
      out.push_back(v);
    }
    return ok_status();
  }

  Result<BlockMsg> read_block(std::string_view bytes) {
    BlockMsg m;
    OAR_RETURN_IF_ERROR(walk(bytes, "block", [&](const Field& f) -> Status {
      switch (f.number) {
        case 1: m.idx = as_i32(f); return want_varint(f, "block index");
        case 2: m.parent = as_i32(f); return want_varint(f, "parent index");
        case 3: m.vars.push_back(f.bytes); return want_bytes(f, "variable");
        case 4: m.ops.push_back(f.bytes); return want_bytes(f, "op");
        default: return ok_status();
      }
    }));
    return m;
  }

  Status read_tensor_desc(std::string_view bytes, ValueType& type) {
    return walk(bytes, "tensor description", [&](const Field& f) -> Status {
      if (f.number == 1) {
        type.dtype = dtype_word(as_i32(f));
        return want_varint(f, "data type");
      }
      if (f.number == 2) return integers(f, "dims", type.dims);
      return ok_status();
    });
  }

  Status add_var(size_t block, std::string_view bytes) {
    std::string_view name, type_bytes;
    bool persistable = false;
    OAR_RETURN_IF_ERROR(walk(bytes, "variable", [&](const Field& f) -> Status {
      switch (f.number) {
        case 1: name = f.bytes; return want_bytes(f, "variable name");
        case 2: type_bytes = f.bytes; return want_bytes(f, "variable type");
        case 3: persistable = f.value != 0; return want_varint(f, "persistable");
        default: return ok_status();
      }
    }));
    Value value;
    value.name = name;
    int64_t type = -1;
    OAR_RETURN_IF_ERROR(walk(type_bytes, "variable type", [&](const Field& f) -> Status {
      switch (f.number) {
        case 1: type = as_i32(f); return want_varint(f, "variable type");
        case 2: return want_bytes(f, "selected rows");
        case 3:
        case 4:
          OAR_RETURN_IF_ERROR(want_bytes(f, "tensor type"));
          return walk(f.bytes, "tensor type", [&](const Field& t) -> Status {
            if (t.number != 1) return ok_status();
            OAR_RETURN_IF_ERROR(want_bytes(t, "tensor description"));
            return read_tensor_desc(t.bytes, value.type);
          });
        default: return ok_status();
      }
    }));
    using Kind = ValueType::Kind;
    value.type.kind = type == kLodTensor        ? Kind::kTensor
                      : type == kLodTensorArray ? Kind::kTensorArray
                                                : Kind::kOther;
    value.parameter =
        block == 0 && persistable && type != kFeedMinibatch && type != kFetchList && type != kRaw;
    if (value.parameter && value.type.kind != Kind::kTensor) {
      return unimplemented(cat(file_, ": parameter ", show_name(name), " has variable type ", type,
                               "; only dense tensors (7) are read"));
    }
    const auto index = static_cast<ValueIndex>(program_.values.size());
    if (!scopes_[block].emplace(value.name, index).second) {
      return data_loss(cat(file_, ": block ", block, " declares variable ", show_name(name), " twice"));
    }
    if (value.parameter) program_.parameters.push_back(index);
    program_.values.push_back(std::move(value));
    return ok_status();
  }

  // The variable that `name` means in `block`, from there outwards; -1 when none is declared.
  ValueIndex lookup(int32_t block, std::string_view name) const {
    for (; block >= 0; block = program_.blocks[block].parent) {
      const auto it = scopes_[block].find(name);
      if (it != scopes_[block].end()) return it->second;
    }
    return -1;
  }

  Status read_slot(int32_t block, std::string_view op, std::string_view bytes, std::vector<Slot>& out) {
    Slot slot;
    std::vector<std::string_view> names;
    OAR_RETURN_IF_ERROR(walk(bytes, "operand", [&](const Field& f) -> Status {
      if (f.number == 1) slot.name = f.bytes;
      if (f.number == 2) names.push_back(f.bytes);
      return f.number <= 2 ? want_bytes(f, "operand") : ok_status();
    }));
    for (std::string_view name : names) OAR_RETURN_IF_ERROR(add_value(block, op, slot, name));
    out.push_back(std::move(slot));
    return ok_status();
  }
  Status add_value(int32_t block, std::string_view op, Slot& slot, std::string_view name) {
    if (name == "@EMPTY@") return ok_status();
    const ValueIndex v = lookup(block, name);
    if (v < 0) {
      return data_loss(cat(file_, ": op at byte ", offset_of(op), ", operand ", show_name(slot.name),
                           ": no variable ", show_name(name), " is declared"));
    }
    slot.values.push_back(v);
    return ok_status();
  }

  Result<AttrData> read_scalar(std::string_view bytes) {
    int64_t type = -1, i = 0;
    bool b = false;
    double r = 0;
    OAR_RETURN_IF_ERROR(walk(bytes, "scalar", [&](const Field& f) -> Status {
      switch (f.number) {
        case 1: type = as_i32(f); return want_varint(f, "scalar type");
        case 2: b = f.value != 0; return want_varint(f, "scalar");
        case 3: i = as_i64(f); return want_varint(f, "scalar");
        case 4:
          r = f.as_double();
          return f.is_fixed64() ? ok_status() : data_loss(cat(file_, ": scalar at byte ", offset_of(bytes)));
        default: return ok_status();
      }
    }));
    switch (type) {
      case 1: return AttrData(b);
      case 2: return AttrData(i);
      case 3: return AttrData(r);
      default:
        return unimplemented(cat(file_, ": scalar of type ", type, " at byte ", offset_of(bytes),
                                 "; boolean, long and float64 (1 to 3) are read"));
    }
  }

  Status read_attr_fields(std::string_view bytes, AttrMsg& m) {
    return walk(bytes, "attribute", [&](const Field& f) -> Status {
      switch (f.number) {
        case 1: m.name = f.bytes; return want_bytes(f, "attribute name");
        case 2: m.type = as_i32(f), m.has_type = true; return want_varint(f, "attribute type");
        case 3: m.i = as_i32(f); return want_varint(f, "i");
        case 4:
          m.f = f.as_float();
          return f.is_fixed32() ? ok_status()
                                : data_loss(cat(file_, ": attribute at byte ", offset_of(bytes)));
        case 5: m.s = f.bytes; return want_bytes(f, "s");
        case 6: return integers(f, "ints", m.ints, true);
        case 7: return floats<float>(f, "floats", m.floats);
        case 8: m.strings.emplace_back(f.bytes); return want_bytes(f, "strings");
        case 10: m.b = f.value != 0; return want_varint(f, "b");
        case 11: return integers(f, "bools", m.ints);
        case 12: m.block = as_i32(f); return want_varint(f, "block_idx");
        case 13: m.i = as_i64(f); return want_varint(f, "l");
        case 14: return integers(f, "blocks_idx", m.blocks, true);
        case 15: return integers(f, "longs", m.ints);
        case 16: return floats<double>(f, "float64s", m.floats);
        case 17: m.var = f.bytes; return want_bytes(f, "var_name");
        case 18: m.vars.push_back(f.bytes); return want_bytes(f, "vars_name");
        case 19:
          m.f = f.as_double();
          return f.is_fixed64() ? ok_status()
                                : data_loss(cat(file_, ": attribute at byte ", offset_of(bytes)));
        case 20:
        case 21: {
          OAR_RETURN_IF_ERROR(want_bytes(f, "scalar"));
          OAR_ASSIGN(auto s, read_scalar(f.bytes));
          m.scalars.push_back(std::move(s));
          return ok_status();
        }
        default: return ok_status();
      }
    });
  }

  Status add_attr(int32_t block, std::string_view op_bytes, std::string_view bytes, Op& op) {
    AttrMsg m;
    OAR_RETURN_IF_ERROR(read_attr_fields(bytes, m));
    if (is_noise(m.name)) return ok_status();
    if (!m.has_type)
      return data_loss(
          cat(file_, ": attribute ", show_name(m.name), " at byte ", offset_of(bytes), " has no type"));
    Attr attr{std::string(m.name), {}};
    switch (m.type) {
      case kInt:
      case kLong: attr.data = m.i; break;
      case kFloat:
      case kFloat64: attr.data = m.f; break;
      case kString: attr.data = std::string(m.s); break;
      case kInts:
      case kBooleans:
      case kLongs: attr.data = std::move(m.ints); break;
      case kFloats:
      case kFloat64s: attr.data = std::move(m.floats); break;
      case kStrings: attr.data = std::move(m.strings); break;
      case kBoolean: attr.data = m.b; break;
      case kBlock: m.blocks = {m.block}; [[fallthrough]];
      case kBlocks:
        for (int64_t b : m.blocks) {
          // A block runs inside its parent, so no chain of ops can lead back to where it came from.
          if (b <= 0 || b >= static_cast<int64_t>(program_.blocks.size()) ||
              program_.blocks[b].parent != block) {
            return data_loss(cat(file_, ": attribute ", show_name(m.name), " at byte ", offset_of(bytes),
                                 " names block ", b, ", which is no child of block ", block));
          }
          if (block_used_[static_cast<size_t>(b)]) {
            return data_loss(cat(file_, ": attribute ", show_name(m.name), " at byte ", offset_of(bytes),
                                 " names block ", b, ", which belongs to another op"));
          }
          block_used_[static_cast<size_t>(b)] = true;
          op.blocks.push_back(static_cast<int32_t>(b));
        }
        return ok_status();
      case kVar: m.vars = {m.var}; [[fallthrough]];
      case kVars: {  // an attribute that is computed: an operand of that name
        Slot slot{attr.name, {}};
        for (std::string_view v : m.vars) OAR_RETURN_IF_ERROR(add_value(block, op_bytes, slot, v));
        op.inputs.push_back(std::move(slot));
        return ok_status();
      }
      case kScalar:
        if (m.scalars.size() != 1)
          return data_loss(
              cat(file_, ": attribute ", show_name(m.name), " at byte ", offset_of(bytes), " has no value"));
        attr.data = m.scalars[0];
        break;
      case kScalars: attr.data = scalar_list(m.scalars); break;
      default:
        return unimplemented(cat(file_, ": attribute ", show_name(m.name), " at byte ", offset_of(bytes),
                                 " has type ", m.type, "; 0 to 17 are known"));
    }
    op.attrs.push_back(std::move(attr));
    return ok_status();
  }
  // Integers while all are integers, else floats.
  static AttrData scalar_list(const std::vector<AttrData>& scalars) {
    std::vector<int64_t> ints;
    std::vector<double> reals;
    for (const AttrData& s : scalars) {
      const auto* i = std::get_if<int64_t>(&s);
      const auto* r = std::get_if<double>(&s);
      const int64_t whole = i ? *i : r ? 0 : std::get<bool>(s);
      if (!r) ints.push_back(whole);
      reals.push_back(r ? *r : static_cast<double>(whole));
    }
    if (ints.size() == scalars.size()) return ints;
    return reals;
  }

  Status add_op(size_t block, std::string_view bytes) {
    const auto b = static_cast<int32_t>(block);
    Op op;
    op.location = offset_of(bytes);
    OAR_RETURN_IF_ERROR(walk(bytes, "op", [&](const Field& f) -> Status {
      if (f.number >= 1 && f.number <= 4) OAR_RETURN_IF_ERROR(want_bytes(f, "op"));
      switch (f.number) {
        case 1: return read_slot(b, bytes, f.bytes, op.inputs);
        case 2: return read_slot(b, bytes, f.bytes, op.outputs);
        case 3: op.type = f.bytes; return ok_status();
        case 4: return add_attr(b, bytes, f.bytes, op);
        default: return ok_status();
      }
    }));
    if (op.type.empty()) return data_loss(cat(file_, ": op at byte ", op.location, " has no type"));
    if (block == 0 && (op.type == "feed" || op.type == "fetch")) return add_port(op);
    program_.blocks[block].ops.push_back(std::move(op));
    return ok_status();
  }

  struct Fed {
    int64_t col;
    Port port;
  };
  Status add_port(const Op& op) {
    const bool feed = op.type == "feed";
    const Slot* slot = feed ? op.output("Out") : op.input("X");
    if (!slot || slot->values.size() != 1) {
      return data_loss(cat(program_.where(op), ": exactly one variable is fed or fetched"));
    }
    const Attr* col = op.attr("col");
    const int64_t* at = col ? std::get_if<int64_t>(&col->data) : nullptr;
    auto& list = feed ? feeds_ : fetches_;
    list.push_back({at ? *at : static_cast<int64_t>(list.size()),
                    {program_.values[slot->values[0]].name, slot->values[0]}});
    return ok_status();
  }
  Status order_ports(std::vector<Port>& ports, std::vector<Fed>& list, std::string_view what) {
    std::stable_sort(list.begin(), list.end(), [](const Fed& a, const Fed& b) { return a.col < b.col; });
    for (size_t k = 0; k < list.size(); ++k) {
      if (list[k].col != static_cast<int64_t>(k)) {
        return data_loss(cat(file_, ": ", what, " columns are not 0 to ", list.size() - 1, ": ", list[k].col,
                             " stands at ", k));
      }
      ports.push_back(std::move(list[k].port));
    }
    return ok_status();
  }

  std::string_view bytes_;
  std::string file_;
  Program program_;
  std::vector<std::map<std::string, ValueIndex, std::less<>>> scopes_;  // by block
  std::vector<bool> block_used_;  // by an op: a second one could make a program grow exponentially
  std::vector<Fed> feeds_, fetches_;
};

}  // namespace

Result<Program> parse_program_desc(std::string_view bytes, std::string_view file) {
  return Reader(bytes, file).read();
}

}  // namespace oar::paddle
