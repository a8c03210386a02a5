// Small Paddle programs written by hand: protobuf messages field by field, PIR json as text, parameter
// records. Nothing here uses the readers' code.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace oar_test::pd {

inline std::string varint(uint64_t v) {
  std::string s;
  do {
    s += static_cast<char>((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
    v >>= 7;
  } while (v);
  return s;
}
inline std::string num(int field, int64_t v) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(v));
}
inline std::string msg(int field, const std::string& body) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(body.size()) + body;
}
template <class T>
std::string raw(T v) {
  std::string s(sizeof v, '\0');
  memcpy(s.data(), &v, sizeof v);
  return s;
}
inline std::string f32(int field, float v) { return varint(static_cast<uint64_t>(field) << 3 | 5) + raw(v); }
inline std::string f64(int field, double v) { return varint(static_cast<uint64_t>(field) << 3 | 1) + raw(v); }

inline std::string tensor_desc(int dtype, const std::vector<int64_t>& dims, bool packed = false) {
  std::string s = num(1, dtype), list;
  for (int64_t d : dims) packed ? list += varint(static_cast<uint64_t>(d)) : s += num(2, d);
  return packed ? s + msg(2, list) : s;
}
// A dense tensor variable of f32.
inline std::string var(const std::string& name, const std::vector<int64_t>& dims, bool persistable = false) {
  return msg(3, msg(1, name) + msg(2, num(1, 7) + msg(3, msg(1, tensor_desc(5, dims)))) +
                    (persistable ? num(3, 1) : ""));
}
// The feed and fetch holders.
inline std::string holder(const std::string& name, int type) {
  return msg(3, msg(1, name) + msg(2, num(1, type)) + num(3, 1));
}
inline std::string slot(int field, const std::string& name, const std::vector<std::string>& values) {
  std::string s = msg(1, name);
  for (const auto& v : values) s += msg(2, v);
  return msg(field, s);
}
inline std::string attr(const std::string& name, int type, const std::string& value) {
  return msg(4, msg(1, name) + num(2, type) + value);
}
inline std::string op(const std::string& type, const std::string& slots_and_attrs) {
  return msg(4, slots_and_attrs + msg(3, type));
}
inline std::string feed(const std::string& name, int col) {
  return op("feed", slot(1, "X", {"feed"}) + slot(2, "Out", {name}) + attr("col", 0, num(3, col)));
}
inline std::string fetch(const std::string& name, int col) {
  return op("fetch", slot(1, "X", {name}) + slot(2, "Out", {"fetch"}) + attr("col", 0, num(3, col)));
}
inline std::string block(int idx, int parent, const std::string& body) {
  return msg(1, num(1, idx) + num(2, parent) + body);
}
inline std::string version(int64_t v) { return msg(4, num(1, v)); }

inline std::string record(int dtype, const std::vector<int64_t>& dims, const std::string& values,
                          bool packed = false) {
  const std::string desc = tensor_desc(dtype, dims, packed);
  return raw<uint32_t>(0) + raw<uint64_t>(0) + raw<uint32_t>(0) + raw(static_cast<int32_t>(desc.size())) +
         desc + values;
}
inline std::string floats(const std::vector<float>& v) {
  std::string s(v.size() * sizeof(float), '\0');
  memcpy(s.data(), v.data(), s.size());
  return s;
}

// y = x * w + b (matmul_v2, elementwise_add): two inputs of the file's order b, w; x is fed, y fetched.
inline std::string small_program() {
  return block(0, -1,
               holder("feed", 9) + holder("fetch", 10) + var("x", {-1, 2}) + var("w", {2, 3}, true) +
                   var("b", {3}, true) + var("t", {-1, 3}) + var("y", {-1, 3}) + feed("x", 0) +
                   op("matmul_v2", slot(1, "X", {"x"}) + slot(1, "Y", {"w"}) + slot(2, "Out", {"t"}) +
                                       attr("trans_x", 6, num(10, 0)) + attr("op_role", 0, num(3, 1))) +
                   op("elementwise_add", slot(1, "X", {"t"}) + slot(1, "Y", {"b"}) + slot(2, "Out", {"y"}) +
                                             attr("axis", 0, num(3, -1))) +
                   fetch("y", 0)) +
         version(2002002);
}
inline std::string small_parameters() {
  return record(5, {3}, floats({10, 20, 30})) + record(5, {2, 3}, floats({1, 2, 3, 4, 5, 6}), true);
}

// PIR json around a list of ops of the main block.
inline std::string pir(const std::string& ops, int version = 1) {
  return "{\"base_code\":{\"magic\":\"pir\",\"version\":" + std::to_string(version) +
         ",\"trainable\":false},\"program\":{\"regions\":[{\"#\":\"region_0\",\"blocks\":[{\"#\":\"block_0\","
         "\"args\":[],\"ops\":[" +
         ops + "]}]}]}}";
}
inline std::string pir_type(const std::string& dims, const std::string& dtype = "t_f32") {
  return "{\"#\":\"0.t_dtensor\",\"D\":[{\"#\":\"0." + dtype + "\"}," + dims + ",\"NCHW\",[],0]}";
}
inline std::string pir_out(int id, const std::string& dims) {
  return "{\"%\":" + std::to_string(id) + ",\"TT\":" + pir_type(dims) + "}";
}
inline std::string pir_attr(const std::string& name, const std::string& type, const std::string& value) {
  return "{\"N\":\"" + name + "\",\"AT\":{\"#\":\"" + type + "\"," + value + "}}";
}
inline std::string pir_op(const std::string& name, const std::string& in, const std::string& out,
                          const std::string& attrs = "", const std::string& rest = "") {
  return "{\"#\":\"" + name + "\",\"I\":[" + in + "],\"O\":[" + out + "],\"A\":[" + attrs + "]" + rest + "}";
}
inline std::string pir_data(int id, const std::string& name, const std::string& dims) {
  return pir_op("1.data", "", pir_out(id, dims), pir_attr("name", "0.a_str", "\"D\":\"" + name + "\""));
}
inline std::string pir_fetch(int in, int id, const std::string& name) {
  return pir_op(
      "1.fetch", "{\"%\":" + std::to_string(in) + "}", pir_out(id, "[-1]"),
      pir_attr("name", "0.a_str", "\"D\":\"" + name + "\"") + "," + pir_attr("col", "0.a_i32", "\"D\":0"));
}
inline std::string pir_parameter(int id, const std::string& name, const std::string& dims) {
  return "{\"#\":\"p\",\"A\":[0,1,1,\"" + name + "\"],\"DA\":[],\"O\":" + pir_out(id, dims) + ",\"QA\":[]}";
}

}  // namespace oar_test::pd
