// Writes ONNX files for tests, field by field: independent of the reader it tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace oar_test {

// A protobuf message under construction.
struct Proto {
  std::string bytes;
  Proto& varint(uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes += static_cast<char>(v | 0x80);
    bytes += static_cast<char>(v);
    return *this;
  }
  Proto& number(int field, int64_t v) {
    return varint(static_cast<uint64_t>(field) << 3).varint(static_cast<uint64_t>(v));
  }
  Proto& text(int field, std::string_view s) {
    varint(static_cast<uint64_t>(field) << 3 | 2).varint(s.size());
    bytes += s;
    return *this;
  }
  Proto& message(int field, const Proto& p) { return text(field, p.bytes); }
};

inline Proto tensor_proto(const std::string& name, const std::vector<int64_t>& dims,
                          const std::vector<float>& values) {
  Proto t;
  for (int64_t d : dims) t.number(1, d);
  t.number(2, 1).text(8, name);
  return t.text(9, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}
inline Proto ints_proto(const std::string& name, const std::vector<int64_t>& values) {
  Proto t;
  t.number(1, static_cast<int64_t>(values.size())).number(2, 7).text(8, name);
  for (int64_t v : values) t.number(7, v);
  return t;
}
// Raw values of any element type of ONNX's numbering: 2 u8, 3 i8, 6 i32.
template <class T>
Proto raw_proto(const std::string& name, int64_t type, const std::vector<int64_t>& dims,
                const std::vector<T>& values) {
  Proto t;
  for (int64_t d : dims) t.number(1, d);
  t.number(2, type).text(8, name);
  return t.text(9, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}
inline Proto ints_attr(const std::string& name, const std::vector<int64_t>& values) {
  Proto p;
  p.text(1, name).number(20, 7);
  for (int64_t v : values) p.number(8, v);
  return p;
}
inline Proto int_attr(const std::string& name, int64_t v) {
  return Proto().text(1, name).number(3, v).number(20, 2);
}
inline Proto float_attr(const std::string& name, float v) {
  Proto p;
  p.text(1, name).varint(2 << 3 | 5).bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
  return p.number(20, 1);
}
inline Proto text_attr(const std::string& name, const std::string& v) {
  return Proto().text(1, name).text(4, v).number(20, 3);
}
inline Proto graph_attr(const std::string& name, const Proto& graph) {
  return Proto().text(1, name).message(6, graph).number(20, 5);
}
inline Proto node_proto(const std::string& op, const std::vector<std::string>& in,
                        const std::vector<std::string>& out, const std::vector<Proto>& attrs = {},
                        const std::string& domain = "") {
  Proto n;
  for (const auto& s : in) n.text(1, s);
  for (const auto& s : out) n.text(2, s);
  n.text(3, "the_" + op).text(4, op);
  for (const auto& a : attrs) n.message(5, a);
  if (!domain.empty()) n.text(7, domain);
  return n;
}
// A float input or output; -1: a symbol named `batch`.
inline Proto value_proto(const std::string& name, const std::vector<int64_t>& dims, int type = 1) {
  Proto shape;
  for (int64_t d : dims) shape.message(1, d < 0 ? Proto().text(2, "batch") : Proto().number(1, d));
  return Proto().text(1, name).message(2, Proto().message(1, Proto().number(1, type).message(2, shape)));
}
inline Proto name_proto(const std::string& name) { return Proto().text(1, name); }
inline Proto graph_proto(const std::vector<Proto>& nodes, const std::vector<Proto>& initializers,
                         const std::vector<Proto>& inputs, const std::vector<Proto>& outputs) {
  Proto g;
  for (const auto& n : nodes) g.message(1, n);
  g.text(2, "g");
  for (const auto& t : initializers) g.message(5, t);
  for (const auto& v : inputs) g.message(11, v);
  for (const auto& v : outputs) g.message(12, v);
  return g;
}
inline std::string model_bytes(const Proto& graph, int64_t opset = 17,
                               const std::vector<Proto>& functions = {},
                               const std::vector<std::string>& domains = {}) {
  Proto m;
  m.number(1, 8).text(2, "test").message(7, graph).message(8, Proto().number(2, opset));
  for (const auto& d : domains) m.message(8, Proto().text(1, d).number(2, 1));
  for (const auto& f : functions) m.message(25, f);
  return m.bytes;
}

}  // namespace oar_test
