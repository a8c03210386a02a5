#include "engine/import/onnx_proto.h"

#include <charconv>

#include "engine/base/format.h"
#include "engine/base/wire_reader.h"

namespace oar::onnx {
namespace {

using Field = WireReader::Field;
// Messages nest (a graph in an attribute of a node of a graph ...); the reader is recursive.
constexpr int kMaxDepth = 100;

// Reads messages of one file; the first damage ends it.
class Reader {
 public:
  explicit Reader(std::string_view file) : file_(file) {}

  size_t offset_of(std::string_view part) const {
    return part.data() ? static_cast<size_t>(part.data() - file_.data()) : 0;
  }
  void fail(std::string_view at, std::string_view what) {
    if (status_.ok()) {
      status_ = data_loss(cat(what, " at byte ", offset_of(at), " is damaged or truncated"));
    }
  }
  const Status& status() const { return status_; }

  template <class F>
  void fields(std::string_view bytes, const char* what, F&& f) {
    if (++depth_ > kMaxDepth) fail(bytes, "a message nested too deeply");
    WireReader r(bytes);
    while (status_.ok()) {
      const auto field = r.next();
      if (!field) break;
      f(*field);
    }
    if (!r.ok()) fail(bytes, what);
    --depth_;
  }

  void text(const Field& f, std::string_view& out) {
    if (f.is_bytes()) out = f.bytes;
    else fail({}, "a string");
  }
  void ints(const Field& f, std::vector<int64_t>& out) {
    if (f.is_varint()) return out.push_back(static_cast<int64_t>(f.value));
    if (!f.is_bytes()) return fail({}, "a list of integers");
    // A packed list is varints without tags.
    uint64_t v = 0;
    int shift = 0;
    for (const char c : f.bytes) {
      const auto b = static_cast<unsigned char>(c);
      if (shift < 64) v |= static_cast<uint64_t>(b & 0x7F) << shift;
      shift += 7;
      if (b & 0x80) {
        if (shift > 63) return fail(f.bytes, "a list of integers");
        continue;
      }
      out.push_back(static_cast<int64_t>(v));
      v = 0, shift = 0;
    }
    if (shift != 0) fail(f.bytes, "a list of integers");
  }
  template <class T>
  void fixed(const Field& f, std::vector<T>& out) {
    if (f.is_bytes()) {
      if (f.bytes.size() % sizeof(T) != 0) return fail(f.bytes, "a list of floats");
      const size_t n = f.bytes.size() / sizeof(T), at = out.size();
      out.resize(at + n);
      if (n > 0) std::memcpy(out.data() + at, f.bytes.data(), f.bytes.size());
      return;
    }
    if constexpr (sizeof(T) == 4) out.push_back(f.as_float());
    else out.push_back(f.as_double());
  }

  TensorMsg tensor(std::string_view bytes) {
    TensorMsg t;
    t.offset = offset_of(bytes);
    fields(bytes, "a tensor", [&](const Field& f) {
      switch (f.number) {
        case 1: return ints(f, t.dims);
        case 2: t.type = static_cast<int64_t>(f.value); return;
        case 4: return fixed(f, t.floats);
        case 5:
        case 7:
        case 11: return ints(f, t.ints);
        case 6: t.strings.push_back(f.bytes); return;
        case 8: return text(f, t.name);
        case 9: t.has_raw = true; return text(f, t.raw);
        case 10: return fixed(f, t.doubles);
        case 13: return external(f.bytes, t);
        case 14: t.external = f.value == 1; return;
        default: return;
      }
    });
    return t;
  }

  SparseMsg sparse(std::string_view bytes) {
    SparseMsg s;
    fields(bytes, "a sparse tensor", [&](const Field& f) {
      if (f.number == 1) s.values = tensor(f.bytes);
      if (f.number == 2) s.indices = tensor(f.bytes);
      if (f.number == 3) ints(f, s.dims);
    });
    return s;
  }

  AttrMsg attribute(std::string_view bytes) {
    AttrMsg a;
    AttrType seen = AttrType::kUndefined;  // files before 2017 leave `type` out
    fields(bytes, "an attribute", [&](const Field& f) {
      switch (f.number) {
        case 1: return text(f, a.name);
        case 2:
          a.f = f.as_float();
          seen = AttrType::kFloat;
          return;
        case 3:
          a.i = static_cast<int64_t>(f.value);
          seen = AttrType::kInt;
          return;
        case 4: seen = AttrType::kString; return text(f, a.s);
        case 5:
          a.tensors.push_back(tensor(f.bytes));
          seen = AttrType::kTensor;
          return;
        case 6:
          a.graphs.push_back(graph(f.bytes));
          seen = AttrType::kGraph;
          return;
        case 7: seen = AttrType::kFloats; return fixed(f, a.floats);
        case 8: seen = AttrType::kInts; return ints(f, a.ints);
        case 9:
          a.strings.push_back(f.bytes);
          seen = AttrType::kStrings;
          return;
        case 10:
          a.tensors.push_back(tensor(f.bytes));
          seen = AttrType::kTensors;
          return;
        case 11:
          a.graphs.push_back(graph(f.bytes));
          seen = AttrType::kGraphs;
          return;
        case 14: seen = AttrType::kType; return text(f, a.type_proto);
        case 20: a.type = f.value <= 14 ? static_cast<AttrType>(f.value) : AttrType::kUndefined; return;
        case 21: return text(f, a.ref);
        case 22:
          a.sparse.push_back(sparse(f.bytes));
          seen = AttrType::kSparse;
          return;
        default: return;
      }
    });
    if (a.type == AttrType::kUndefined) a.type = seen;
    const bool has = (a.type != AttrType::kTensor || !a.tensors.empty()) &&
                     (a.type != AttrType::kGraph || !a.graphs.empty()) &&
                     (a.type != AttrType::kSparse || !a.sparse.empty());
    if (!has && a.ref.empty()) fail(bytes, "an attribute without its value");
    return a;
  }

  NodeMsg node(std::string_view bytes) {
    NodeMsg n;
    n.offset = offset_of(bytes);
    fields(bytes, "a node", [&](const Field& f) {
      switch (f.number) {
        case 1: n.inputs.push_back(f.bytes); return;
        case 2: n.outputs.push_back(f.bytes); return;
        case 3: return text(f, n.name);
        case 4: return text(f, n.op);
        case 5: n.attrs.push_back(attribute(f.bytes)); return;
        case 7: return text(f, n.domain);
        case 8: return text(f, n.overload);
        default: return;
      }
    });
    return n;
  }

  TypeMsg type(std::string_view bytes) {
    TypeMsg t;
    fields(bytes, "a type", [&](const Field& f) {
      if (f.number == 1 && f.is_bytes()) {
        t.kind = TypeMsg::kTensor;
        fields(f.bytes, "a tensor type", [&](const Field& g) {
          if (g.number == 1) t.elem = static_cast<int64_t>(g.value);
          if (g.number == 2) shape(g.bytes, t);
        });
      } else if (f.number == 4 || f.number == 9) {
        t.kind = f.number == 4 ? TypeMsg::kSequence : TypeMsg::kOptional;
        fields(f.bytes, "a container type", [&](const Field& g) {
          if (g.number != 1) return;
          const TypeMsg inner = type(g.bytes);
          // An optional sequence is told from an optional tensor by its value.
          t.elem = inner.elem;
        });
      } else if (f.number == 5 || f.number == 7 || f.number == 8) {
        t.kind = TypeMsg::kOther;
      }
    });
    return t;
  }

  void shape(std::string_view bytes, TypeMsg& t) {
    t.ranked = true;
    fields(bytes, "a shape", [&](const Field& f) {
      if (f.number != 1) return;
      DimMsg d;
      fields(f.bytes, "an extent", [&](const Field& g) {
        if (g.number == 1) d.value = static_cast<int64_t>(g.value);
        if (g.number == 2) text(g, d.param);
      });
      t.dims.push_back(d);
    });
  }

  ValueMsg value(std::string_view bytes) {
    ValueMsg v;
    fields(bytes, "a value", [&](const Field& f) {
      if (f.number == 1) text(f, v.name);
      if (f.number == 2) v.type = type(f.bytes);
    });
    return v;
  }

  GraphMsg graph(std::string_view bytes) {
    GraphMsg g;
    fields(bytes, "a graph", [&](const Field& f) {
      switch (f.number) {
        case 1: g.nodes.push_back(node(f.bytes)); return;
        case 2: return text(f, g.name);
        case 5: g.initializers.push_back(tensor(f.bytes)); return;
        case 11: g.inputs.push_back(value(f.bytes)); return;
        case 12: g.outputs.push_back(value(f.bytes)); return;
        case 15: g.sparse.push_back(sparse(f.bytes)); return;
        default: return;
      }
    });
    return g;
  }

  OpsetMsg opset(std::string_view bytes) {
    OpsetMsg o;
    fields(bytes, "an operator set", [&](const Field& f) {
      if (f.number == 1) text(f, o.domain);
      if (f.number == 2) o.version = static_cast<int64_t>(f.value);
    });
    return o;
  }

  FunctionMsg function(std::string_view bytes) {
    FunctionMsg fn;
    fields(bytes, "a function", [&](const Field& f) {
      switch (f.number) {
        case 1: return text(f, fn.name);
        case 4: fn.inputs.push_back(f.bytes); return;
        case 5: fn.outputs.push_back(f.bytes); return;
        case 6: fn.attrs.push_back(f.bytes); return;
        case 7: fn.nodes.push_back(node(f.bytes)); return;
        case 9: fn.opsets.push_back(opset(f.bytes)); return;
        case 10: return text(f, fn.domain);
        case 11: fn.defaults.push_back(attribute(f.bytes)); return;
        case 13: return text(f, fn.overload);
        default: return;
      }
    });
    return fn;
  }

  ContainerMsg container(std::string_view bytes) {
    ContainerMsg c;
    fields(bytes, "a sequence or optional", [&](const Field& f) {
      if (f.number == 2) c.elem_type = static_cast<int64_t>(f.value);
      if (f.number == 3) c.tensors.push_back(tensor(f.bytes));
      if (f.number == 5 || f.number == 7) c.containers.push_back(container(f.bytes));
    });
    return c;
  }

 private:
  void external(std::string_view bytes, TensorMsg& t) {
    std::string_view key, value;
    fields(bytes, "an external data entry", [&](const Field& f) {
      if (f.number == 1) text(f, key);
      if (f.number == 2) text(f, value);
    });
    auto number = [&](uint64_t& out) {
      const auto r = std::from_chars(value.data(), value.data() + value.size(), out);
      if (r.ec != std::errc() || r.ptr != value.data() + value.size()) fail(bytes, "an external data entry");
    };
    if (key == "location") t.location = value;
    if (key == "offset") number(t.external_offset);
    if (key == "length") number(t.external_length), t.external_sized = true;
  }

  std::string_view file_;
  Status status_;
  int depth_ = 0;
};

}  // namespace

Result<ModelMsg> read_model(std::string_view file) {
  Reader r(file);
  ModelMsg m;
  r.fields(file, "the model", [&](const Field& f) {
    switch (f.number) {
      case 1: m.ir_version = static_cast<int64_t>(f.value); return;
      case 2: return r.text(f, m.producer);
      case 3: return r.text(f, m.producer_version);
      case 7:
        m.graph = r.graph(f.bytes);
        m.has_graph = true;
        return;
      case 8: m.opsets.push_back(r.opset(f.bytes)); return;
      case 14: {
        std::string_view key, value;
        r.fields(f.bytes, "a metadata entry", [&](const Field& g) {
          if (g.number == 1) r.text(g, key);
          if (g.number == 2) r.text(g, value);
        });
        m.metadata.emplace_back(key, value);
        return;
      }
      case 25: m.functions.push_back(r.function(f.bytes)); return;
      default: return;
    }
  });
  OAR_RETURN_IF_ERROR(r.status());
  return m;
}

Result<TensorMsg> read_tensor(std::string_view file) {
  Reader r(file);
  TensorMsg t = r.tensor(file);
  OAR_RETURN_IF_ERROR(r.status());
  return t;
}

Result<ContainerMsg> read_container(std::string_view file) {
  Reader r(file);
  ContainerMsg c = r.container(file);
  OAR_RETURN_IF_ERROR(r.status());
  return c;
}

TypeMsg read_type(std::string_view bytes) {
  Reader r(bytes);
  return r.type(bytes);
}

}  // namespace oar::onnx
