// Ops of rows that read bf16 and round what they make: the numbers of those that do not; attention by
// products of bf16 against its definition.

#include "tests/train/one_op.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

Tensor rounded(const Tensor& t) {
  Tensor out = Tensor::allocate(t.shape(), Format::bf16()).value();
  Format::bf16().encode_row(t.values<float>().data(), t.numel(), out.mutable_data());
  return out;
}
Tensor numbers(const Shape& shape, uint32_t seed) {
  return f32(shape, random_values(static_cast<size_t>(shape.numel()), seed));
}
Attrs rounding(Attrs attrs, int64_t results) {
  attrs.set("rounded", results);
  return attrs;
}

}  // namespace

TEST_CASE("a result that an op rounds is the f32 one rounded, and bf16 is read as what it stands for") {
  struct Case {
    const char* name;
    const OpDef& op;
    std::vector<Tensor> operands;
    std::vector<size_t> either;  // operands that may be f32 or bf16, each alone
    Attrs attrs = {};
    size_t results = 1;
  };
  for (const int64_t T : {1, 9, 70}) {
    const int64_t heads = 2, D = 10, E = heads * D, N = 33, r = 5;
    std::vector<int32_t> at, one(static_cast<size_t>(T), 3);
    for (int32_t t = 0; t < T; ++t) at.push_back(t);
    const Tensor q = numbers({T, heads, D}, 1), k = numbers({T, 1, D}, 2), v = numbers({T, 1, D}, 3),
                 d_heads = numbers({T, heads, D}, 4), positions = i32(at), segments = i32(one),
                 x = numbers({T, E}, 5), y = numbers({T, E}, 6), dx = numbers({T, E}, 7),
                 dn = numbers({T, N}, 8), w = numbers({N, E}, 9), a = numbers({r, E}, 10),
                 b = numbers({N, r}, 11), norm = numbers({E}, 12), bias = numbers({N}, 14);
    const Attrs attention{{"scale", 0.3}, {"window", int64_t{0}}, {"softcap", 0.0}}, lora{{"factor", 0.5}},
        epsilon{{"epsilon", 1e-3}};
    const std::vector<Case> cases{
        {"linear", op_rows_linear, {x, w, bias}, {}},
        {"linear of bf16", op_rows_linear, {rounded(x), w, bias}, {}},
        {"linear back", op_rows_product, {dn, w}, {}},
        {"linear of bf16 back", op_rows_product, {rounded(dn), w}, {}},
        {"lora", op_lora_linear, {x, w, bias, a, b}, {}, lora, 2},
        {"lora of bf16", op_lora_linear, {rounded(x), rounded(w), bias, a, b}, {}, lora, 2},
        {"lora back", op_lora_back, {dn, w, a, b}, {}, lora, 2},
        {"lora of bf16 back", op_lora_back, {rounded(dn), rounded(w), a, b}, {}, lora, 2},
        {"gate", op_rows_swiglu, {x, y}, {0, 1}},
        {"gate back", op_rows_swiglu_back, {x, y, dx}, {0, 1, 2}, {}, 2},
        {"norm", op_rows_rms_norm, {x, norm}, {0}, epsilon},
        {"norm back", op_rows_rms_norm_back, {x, norm, dx}, {0, 2}, epsilon},
        {"rotate", op_rotate, {q, positions, numbers({D / 2}, 13)}, {0}},
        {"sum", op_rows_add, {x, y}, {0, 1}},
        {"attention", op_segment_attention, {q, k, v, positions, segments}, {}, attention},
        {"attention of bf16",
         op_segment_attention,
         {rounded(q), rounded(k), rounded(v), positions, segments},
         {},
         attention},
        {"attention back",
         op_segment_attention_back,
         {q, k, v, positions, segments, d_heads},
         {},
         attention,
         3},
        {"attention of bf16 back",
         op_segment_attention_back,
         {rounded(q), rounded(k), rounded(v), positions, segments, rounded(d_heads)},
         {},
         attention,
         3}};
    for (const Case& c : cases) {
      const int64_t all = (1 << c.results) - 1;
      std::vector<Tensor> first;
      for (const auto& [isa, threads] : runs()) {
        if (threads == 1) first.clear();
        INFO(c.name << ", " << T << " rows, " << isa_name(isa) << ", threads " << threads);
        const auto wide = OneOp(c.op, c.operands, 9, c.attrs).run(threads, isa),
                   narrow = OneOp(c.op, c.operands, 9, rounding(c.attrs, all)).run(threads, isa);
        for (size_t n = 0; n < c.results; ++n) {
          REQUIRE(narrow[n].format() == Format::bf16());
          CHECK(same_bits(narrow[n], rounded(wide[n])));
        }
        if (first.empty()) first = narrow;
        for (size_t n = 0; n < c.results; ++n) CHECK(same_bits(narrow[n], first[n]));
        for (const size_t k_narrow : c.either) {
          std::vector<Tensor> as_read = c.operands, stored = c.operands;
          stored[k_narrow] = rounded(c.operands[k_narrow]);
          as_read[k_narrow] = to_f32(stored[k_narrow]).value();
          const auto got = OneOp(c.op, stored, 9, c.attrs).run(threads, isa),
                     want = OneOp(c.op, as_read, 9, c.attrs).run(threads, isa);
          for (size_t n = 0; n < got.size(); ++n) CHECK(same_bits(got[n], want[n]));
        }
      }
      // The definition says the same.
      const auto want = defined_results(c.op, c.operands, rounding(c.attrs, all));
      for (size_t n = 0; n < c.results; ++n) {
        double largest = 0;
        for (const double number : want[n].f) largest = std::max(largest, std::abs(number));
        CHECK(farthest(to_f32(first[n]).value(), want[n].f) <= 0x1p-6 * largest);
      }
    }
  }
}

TEST_CASE(
    "attention of bf16: its definition's numbers but for the roundings of weights and their gradients") {
  struct Case {
    int64_t H, K, D, window;
    double softcap;
    std::vector<int64_t> segments;
    bool causal = true, sinks = false;
  };
  for (const Case& c :
       {Case{4, 2, 8, 0, 0, {1}}, Case{4, 2, 8, 0, 0, {5, 1, 9}}, Case{3, 3, 5, 4, 2.0, {7, 6}},
        Case{2, 1, 64, 0, 0, {130, 3}}, Case{2, 2, 4, 70, 3.0, {65, 150}}, Case{3, 1, 16, 40, 0, {201}},
        Case{4, 2, 8, 0, 0, {77, 9}, false}, Case{2, 1, 4, 40, 3.0, {65, 70}, true, true}}) {
    std::vector<int32_t> positions, segments;
    for (size_t s = 0; s < c.segments.size(); ++s)
      for (int64_t k = 0; k < c.segments[s]; ++k)
        positions.push_back(static_cast<int32_t>(k)), segments.push_back(static_cast<int32_t>(7 - s));
    const auto T = static_cast<int64_t>(positions.size());
    std::vector<Tensor> forward{rounded(numbers({T, c.H, c.D}, 1)), rounded(numbers({T, c.K, c.D}, 2)),
                                rounded(numbers({T, c.K, c.D}, 3)), i32(positions), i32(segments)};
    std::vector<Tensor> backward = forward;
    backward.push_back(rounded(numbers({T, c.H, c.D}, 4)));
    if (c.sinks) forward.push_back(numbers({c.H}, 5)), backward.push_back(numbers({c.H}, 5));
    const Attrs attrs{
        {"scale", 0.4}, {"window", c.window}, {"softcap", c.softcap}, {"causal", int64_t{c.causal}}};
    const auto in_double = [](std::vector<Tensor> operands) {
      for (Tensor& t : operands)
        if (t.format() == Format::bf16()) t = to_f32(t).value();
      return operands;
    };
    auto want = defined_results(op_segment_attention, in_double(forward), attrs);
    for (HostValue& v : defined_results(op_segment_attention_back, in_double(backward), attrs))
      want.push_back(std::move(v));
    std::vector<Tensor> first;
    for (const auto& [isa, threads] : runs()) {
      if (threads == 1) first.clear();
      INFO(isa_name(isa) << ", threads " << threads << ", D " << c.D << ", T " << T);
      auto got = OneOp(op_segment_attention, forward, 9, attrs).run(threads, isa);
      for (Tensor& t : OneOp(op_segment_attention_back, backward, 9, attrs).run(threads, isa))
        got.push_back(std::move(t));
      REQUIRE(got.size() == want.size());
      for (size_t n = 0; n < got.size(); ++n) {
        // Independent roundings of a part in 512 at most, and of products of sums that nearly cancel.
        double off = 0, size = 0;
        for (size_t i = 0; i < want[n].f.size(); ++i) {
          off += std::pow(static_cast<double>(got[n].values<float>()[i]) - want[n].f[i], 2);
          size += want[n].f[i] * want[n].f[i];
        }
        INFO("result " << n);
        CHECK(std::sqrt(off) <= 0x1p-8 * std::sqrt(size) + 1e-6);
      }
      if (first.empty()) first = got;
      for (size_t n = 0; n < got.size(); ++n) CHECK(same_bits(got[n], first[n]));
    }
  }
}
