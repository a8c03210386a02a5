#include "engine/graph/graph_json.h"

#include <algorithm>
#include <bit>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/tensor/element.h"

namespace oar {
namespace {

constexpr int kMostNested = 64;  // subgraphs; as deep as evaluation goes

Status damaged(std::string_view what) { return data_loss(cat("a stored graph's ", what, " is damaged")); }

// Doubles as their bits: exact, and there is no JSON for NaN.
int64_t bits(double x) { return std::bit_cast<int64_t>(x); }

// An attribute: a letter for its type and the value, lists with capital letters.
json::value attr_to_json(const AttrValue& value) {
  json::array out;
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        json::array list;
        if constexpr (std::is_same_v<T, int64_t>) out = {"i", v};
        else if constexpr (std::is_same_v<T, double>) out = {"f", bits(v)};
        else if constexpr (std::is_same_v<T, std::string>) out = {"s", json_bytes(v)};
        else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          list = json::array(v.begin(), v.end());
          out = {"I", std::move(list)};
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          for (const double x : v) list.emplace_back(bits(x));
          out = {"F", std::move(list)};
        } else {
          for (const std::string& s : v) list.emplace_back(json_bytes(s));
          out = {"S", std::move(list)};
        }
      },
      value);
  return out;
}

Result<AttrValue> attr_from_json(const json::value& v) {
  const json::array* pair = v.if_array();
  if (!pair || pair->size() != 2 || !(*pair)[0].is_string() || (*pair)[0].get_string().size() != 1) {
    return damaged("attribute");
  }
  const char type = (*pair)[0].get_string()[0];
  const json::value& value = (*pair)[1];
  const json::array* list = value.if_array();
  const bool integers =
      list && std::all_of(list->begin(), list->end(), [](const auto& e) { return e.is_int64(); });
  if (type == 'i' && value.is_int64()) return AttrValue(value.get_int64());
  if (type == 'f' && value.is_int64()) return AttrValue(std::bit_cast<double>(value.get_int64()));
  if (type == 's') {
    OAR_ASSIGN(std::string s, bytes_of_json(value));
    return AttrValue(std::move(s));
  }
  if (type == 'I' && integers) {
    std::vector<int64_t> out;
    for (const auto& e : *list) out.push_back(e.get_int64());
    return AttrValue(std::move(out));
  }
  if (type == 'F' && integers) {
    std::vector<double> out;
    for (const auto& e : *list) out.push_back(std::bit_cast<double>(e.get_int64()));
    return AttrValue(std::move(out));
  }
  if (type == 'S' && list) {
    std::vector<std::string> out;
    for (const auto& e : *list) {
      OAR_ASSIGN(std::string s, bytes_of_json(e));
      out.push_back(std::move(s));
    }
    return AttrValue(std::move(out));
  }
  return damaged("attribute");
}

// Values in the order in which they are made again: inputs, constants that are used, results.
std::vector<ValueId> renumber(const Graph& g, std::vector<ValueId>& constants) {
  std::vector<ValueId> to(g.num_values(), kNoValue);
  ValueId next = 0;
  for (const ValueId v : g.inputs()) to[v] = next++;
  const auto constant = [&](ValueId v) {
    if (v == kNoValue || to[v] != kNoValue || g.value(v).kind != ValueKind::kConstant) return;
    to[v] = next++;
    constants.push_back(v);
  };
  for (const Node& n : g.nodes()) std::for_each(n.inputs.begin(), n.inputs.end(), constant);
  for (const auto& o : g.outputs()) constant(o.value);
  for (const Node& n : g.nodes()) {
    for (const ValueId v : n.outputs) to[v] = next++;
  }
  return to;
}

Result<Tensor> constant_from_json(const json::value& v, const NamedTensors& tensors, std::string& name) {
  const json::object* c = v.if_object();
  const json::value* type = c ? c->if_contains("type") : nullptr;
  const json::value* dims = c ? c->if_contains("shape") : nullptr;
  const json::value* label = c ? c->if_contains("name") : nullptr;
  if (!type || !type->is_string() || !dims || !dims->is_array() || !label) return damaged("constant");
  OAR_ASSIGN(name, bytes_of_json(*label));
  const auto dtype = parse_dtype(std::string_view(type->get_string()));
  std::vector<int64_t> shape;
  for (const auto& d : dims->get_array()) {
    if (!d.is_int64() || d.get_int64() < 0) return damaged("constant");
    shape.push_back(d.get_int64());
  }
  if (!dtype || shape.size() > Shape::kMaxRank || !Shape(shape).checked_numel()) return damaged("constant");
  const Shape s{std::span<const int64_t>(shape)};
  const json::value* stored = c->if_contains("tensor");
  if (!stored) return Tensor::without_bytes(s, element_format(*dtype));
  const auto it = stored->is_string() ? tensors.find(std::string_view(stored->get_string())) : tensors.end();
  if (it == tensors.end() || !(it->second.shape() == s) || !(it->second.format() == element_format(*dtype))) {
    return damaged("constant");
  }
  return it->second;
}

Result<std::vector<ValueId>> ids_from_json(const json::value* v, size_t known, bool optional) {
  const json::array* list = v ? v->if_array() : nullptr;
  if (!list) return damaged("node");
  std::vector<ValueId> out;
  for (const auto& e : *list) {
    if (!e.is_int64() || e.get_int64() < (optional ? -1 : 0) ||
        e.get_int64() >= static_cast<int64_t>(known)) {
      return damaged("operand");
    }
    out.push_back(static_cast<ValueId>(e.get_int64()));
  }
  return out;
}

Result<std::shared_ptr<Graph>> from_json(const json::value& v, const NamedTensors& tensors,
                                         const std::function<ValueId(Graph&, size_t)>& input, int depth) {
  const json::object* o = v.if_object();
  const json::value* inputs = o ? o->if_contains("inputs") : nullptr;
  const json::value* constants = o ? o->if_contains("constants") : nullptr;
  const json::value* nodes = o ? o->if_contains("nodes") : nullptr;
  const json::value* outputs = o ? o->if_contains("outputs") : nullptr;
  if (!inputs || !inputs->is_array() || !constants || !constants->is_array() || !nodes ||
      !nodes->is_array() || !outputs || !outputs->is_array() || depth > kMostNested) {
    return damaged("frame");
  }
  auto g = std::make_shared<Graph>();
  for (size_t k = 0; k < inputs->get_array().size(); ++k) {
    if (input) {
      input(*g, k);
      continue;
    }
    OAR_ASSIGN(std::string name, bytes_of_json(inputs->get_array()[k]));
    g->add_input(std::move(name), TensorType::unknown());
  }
  if (g->num_values() != inputs->get_array().size()) return damaged("list of inputs");
  for (const auto& c : constants->get_array()) {
    std::string name;
    OAR_ASSIGN(Tensor t, constant_from_json(c, tensors, name));
    g->add_constant(std::move(name), std::move(t));
  }
  for (const auto& n : nodes->get_array()) {
    const json::object* node = n.if_object();
    const json::value* op = node ? node->if_contains("op") : nullptr;
    const json::value* results = node ? node->if_contains("results") : nullptr;
    const json::value* attrs = node ? node->if_contains("attrs") : nullptr;
    const json::value* name = node ? node->if_contains("name") : nullptr;
    if (!op || !op->is_string() || !results || !results->is_int64() || results->get_int64() < 0 ||
        results->get_int64() > 1 << 20 || !attrs || !attrs->is_object() || !name) {
      return damaged("node");
    }
    const OpDef* def = find_op(std::string_view(op->get_string()));
    if (!def || !def->evaluate) return damaged("op");
    OAR_ASSIGN(std::vector<ValueId> operands, ids_from_json(node->if_contains("in"), g->num_values(), true));
    Attrs made;
    for (const auto& a : attrs->get_object()) {
      OAR_ASSIGN(AttrValue value, attr_from_json(a.value()));
      made.set(std::string_view(a.key()), std::move(value));
    }
    std::vector<std::shared_ptr<const Graph>> subgraphs;
    if (const json::value* inner = node->if_contains("subgraphs")) {
      if (!inner->is_array()) return damaged("node");
      for (const auto& s : inner->get_array()) {
        OAR_ASSIGN(auto sub, from_json(s, tensors, {}, depth + 1));
        subgraphs.push_back(std::move(sub));
      }
    }
    OAR_ASSIGN(std::string label, bytes_of_json(*name));
    g->append(def, std::move(operands), static_cast<size_t>(results->get_int64()), std::move(made),
              std::move(subgraphs), std::move(label));
  }
  for (const auto& e : outputs->get_array()) {
    const json::object* out = e.if_object();
    const json::value* name = out ? out->if_contains("name") : nullptr;
    if (!name) return damaged("output");
    OAR_ASSIGN(std::string label, bytes_of_json(*name));
    OAR_ASSIGN(const auto ids, ids_from_json(out->if_contains("of"), g->num_values(), false));
    if (ids.size() != 1) return damaged("output");
    g->add_output(std::move(label), ids[0]);
  }
  return g;
}

}  // namespace

json::value json_bytes(std::string_view bytes) {
  if (std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= ' ' && c < 0x7f; })) {
    return json::value(bytes);
  }
  std::string hex;
  for (const char c : bytes) {
    hex += "0123456789abcdef"[static_cast<uint8_t>(c) >> 4];
    hex += "0123456789abcdef"[static_cast<uint8_t>(c) & 15];
  }
  return json::object{{"hex", hex}};
}

Result<std::string> bytes_of_json(const json::value& v) {
  if (v.is_string()) return std::string(std::string_view(v.get_string()));
  const json::value* hex = v.is_object() ? v.get_object().if_contains("hex") : nullptr;
  if (!hex || !hex->is_string() || hex->get_string().size() % 2 != 0) return damaged("name");
  std::string out;
  const std::string_view s = hex->get_string();
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t k = 0; k < s.size(); k += 2) {
    const int high = digit(s[k]), low = digit(s[k + 1]);
    if (high < 0 || low < 0) return damaged("name");
    out += static_cast<char>(high << 4 | low);
  }
  return out;
}

Result<json::object> graph_to_json(const Graph& g, const std::string& prefix, NamedTensors& tensors) {
  std::vector<ValueId> constants;
  const std::vector<ValueId> to = renumber(g, constants);
  json::array inputs, stored, nodes, outputs;
  for (const ValueId v : g.inputs()) inputs.emplace_back(json_bytes(g.value(v).name));
  for (const ValueId v : constants) {
    const Tensor& t = g.value(v).constant;
    const DType dtype = t.format().dtype();
    if (dtype == DType::kString || !(t.format() == element_format(dtype))) {
      return unimplemented(
          cat("constant '", g.value(v).name, "' of ", t.format().name(), " cannot be stored"));
    }
    json::object c{{"type", dtype_name(dtype)},
                   {"shape", json::array(t.shape().begin(), t.shape().end())},
                   {"name", json_bytes(g.value(v).name)}};
    if (t.has_bytes()) {
      const std::string name = cat(prefix, "c", to[v]);
      c["tensor"] = name;
      tensors[name] = t;
    }
    stored.emplace_back(std::move(c));
  }
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& n = g.nodes()[i];
    json::array in;
    for (const ValueId v : n.inputs) in.emplace_back(v == kNoValue ? kNoValue : to[v]);
    json::object attrs;
    for (const auto& [name, value] : n.attrs.items()) attrs[name] = attr_to_json(value);
    json::object node{{"op", n.op->name},
                      {"in", std::move(in)},
                      {"results", static_cast<int64_t>(n.outputs.size())},
                      {"attrs", std::move(attrs)},
                      {"name", json_bytes(n.name)}};
    json::array subgraphs;
    for (size_t s = 0; s < n.subgraphs.size(); ++s) {
      OAR_ASSIGN(json::object sub, graph_to_json(*n.subgraphs[s], cat(prefix, i, ".", s, "/"), tensors));
      subgraphs.emplace_back(std::move(sub));
    }
    if (!subgraphs.empty()) node["subgraphs"] = std::move(subgraphs);
    nodes.emplace_back(std::move(node));
  }
  for (const auto& o : g.outputs()) {
    outputs.emplace_back(json::object{{"name", json_bytes(o.name)}, {"of", json::array{to[o.value]}}});
  }
  return json::object{{"inputs", std::move(inputs)},
                      {"constants", std::move(stored)},
                      {"nodes", std::move(nodes)},
                      {"outputs", std::move(outputs)}};
}

Result<std::shared_ptr<Graph>> graph_from_json(const json::value& v, const NamedTensors& tensors,
                                               const std::function<ValueId(Graph&, size_t)>& input) {
  return from_json(v, tensors, input, 0);
}

}  // namespace oar
