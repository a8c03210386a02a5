// engine/ops/dtypes.txt says which element types an op takes: for each op a call is looked for among small
// operands, and repeated with its tensors in every type. Ops that need state, a device or a body have no such
// call and are the list's word alone.
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/evaluate.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

namespace {
using namespace oar;

const std::vector<std::pair<const char*, std::vector<DType>>>& groups() {
  static const std::vector<std::pair<const char*, std::vector<DType>>> all{
      {"floats", {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}},
      {"integers",
       {DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32, DType::kU32, DType::kI64,
        DType::kU64}},
      {"bool", {DType::kBool}},
      {"narrow", {DType::kE4M3, DType::kE5M2, DType::kE2M1, DType::kI4, DType::kU4}},
      {"text", {DType::kString}}};
  return all;
}

// A kind of operand: of the type in question, or integers and bits whose type an op prescribes.
struct Kind {
  Shape shape;
  std::optional<DType> fixed = std::nullopt;
};
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{{{2, 3}},
                                     {{3}},
                                     {{}},
                                     {{1, 2, 3, 3}},
                                     {{1, 2, 4}},
                                     {{1, 4, 2}},
                                     {{2, 3}, DType::kI64},
                                     {{1}, DType::kI64},
                                     {{2}, DType::kI64},
                                     {{}, DType::kI64},
                                     {{2, 3}, DType::kBool},
                                     {{3}, DType::kBool}};
  return all;
}

Attrs attrs_of(std::string_view op) {
  using Ints = std::vector<int64_t>;
  if (op == "transpose") return {{"perm", Ints{1, 0}}};
  if (op == "reshape" || op == "expand") return {{"shape", Ints{2, 3}}};
  if (op == "slice") return {{"starts", Ints{0}}, {"ends", Ints{1}}, {"axes", Ints{0}}};
  if (op == "einsum") return {{"equation", std::string("ij->ji")}};
  if (op == "cast") return {{"to", std::string("f32")}};
  if (op == "bit_cast") return {{"to", std::string("u8")}};
  if (op == "unsqueeze") return {{"axes", Ints{0}}};
  if (op.ends_with("pool")) return {{"kernel_shape", Ints{2, 2}}};
  if (op == "pad") return {{"pads", Ints{0, 0, 0, 0}}};
  if (op == "depth_to_space" || op == "space_to_depth") return {{"blocksize", int64_t{1}}};
  if (op == "rope") return {{"rows", std::string("packed")}};
  return {};
}

class Call {
 public:
  Call(const OpDef& op, std::vector<size_t> which) : op_(&op), which_(std::move(which)) {}
  bool works(DType dtype) const {
    std::vector<Datum> operands;
    for (const size_t k : which_) {
      auto t = allocate_elements(kinds()[k].shape, kinds()[k].fixed.value_or(dtype));
      if (!t.ok()) return false;
      if (!kinds()[k].fixed) {  // ones: there is an index 1, and integers are divided
        dispatch_number(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          for (int64_t i = 0; i < t->numel(); ++i)
            mutable_elements<T>(*t)[i] = Element<T>::store(static_cast<typename Element<T>::Compute>(1));
        });
      }
      operands.emplace_back(std::move(*t));
    }
    std::vector<const Datum*> pointers;
    Node node{op_, {}, {0}, attrs_of(op_->name), {}, {}};
    for (const Datum& d : operands) {
      pointers.push_back(&d);
      node.inputs.push_back(static_cast<ValueId>(node.inputs.size()));
    }
    EvalOptions options;
    options.tensor_limit = 1 << 16;
    return evaluate_op(node, pointers, options).ok();
  }
  // With the type in question; `first`: in its first operand.
  bool varies(bool first) const {
    const auto free = [](size_t k) { return !kinds()[k].fixed; };
    return first ? free(which_[0]) : std::any_of(which_.begin(), which_.end(), free);
  }

 private:
  const OpDef* op_;
  std::vector<size_t> which_;
};

// The shortest, for an operand more may be one that nobody reads, and of these the one that works in most
// types, for an operand may be integers or bits whatever the others are; the first operand varies where it
// may.
std::optional<Call> call_of(const OpDef& op, bool first) {
  std::optional<Call> best;
  size_t most = 0;
  for (size_t count = 1; count <= 3 && !best; ++count) {
    std::vector<size_t> which(count, 0);
    while (true) {
      const Call call(op, which);
      size_t works = 0;
      for (const DType dtype : {DType::kF32, DType::kU8, DType::kBool, DType::kE4M3, DType::kString})
        works += call.varies(first) && call.works(dtype) ? 1 : 0;
      if (works > most) most = works, best = call;
      size_t k = 0;
      while (k < count && ++which[k] == kinds().size()) which[k++] = 0;
      if (k == count) break;
    }
  }
  return best;
}

std::string taken(const Call& call) {
  std::string out;
  for (const auto& [name, members] : groups()) {
    const auto some = std::count_if(members.begin(), members.end(), [&](DType d) { return call.works(d); });
    if (some == 0) continue;
    if (!out.empty()) out += ", ";
    if (some == static_cast<std::ptrdiff_t>(members.size())) {
      out += name;
      continue;
    }
    std::string list;
    for (const DType d : members) {
      if (call.works(d)) list += cat(list.empty() ? "" : " ", dtype_name(d));
    }
    out += list;
  }
  return out;
}

}  // namespace

TEST_CASE("ops take the element types that the list says") {
  std::map<std::string, std::string> listed;
  std::ifstream file(OAR_SOURCE_DIR "/engine/ops/dtypes.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t at = line.find(": ");
    REQUIRE(at != std::string::npos);
    listed[line.substr(0, at)] = line.substr(at + 2);
  }
  int called = 0;
  oar_test::Sample sample(3);
  for (const OpDef* op : all_ops()) {
    INFO(op->name);
    REQUIRE(listed.contains(op->name));
    if (!sample.take()) continue;
    const std::string_view name = op->name;
    if (op->evaluate == nullptr || op->impure || name == "if" || name == "loop" || name == "scan" ||
        name == "sequence_map")
      continue;
    // Those two begin with a condition and with a shape.
    auto call = call_of(*op, name != "where" && name != "constant_of_shape");
    if (!call) call = call_of(*op, false);
    if (!call) continue;
    ++called;
    CHECK(listed[op->name] == taken(*call));
  }
  CHECK(listed.size() == all_ops().size());
  CHECK(called > (oar_test::kSlow ? 50 : 150));
}
