// Each composite's kernel against its own definition run in double, on every instruction-set level of this
// machine. The definitions themselves are held to an independent implementation by the logits of
// tests/models.
#include "tests/graph/graph_fixture.h"

namespace {
using namespace oar;
using oar_test::GraphFixture;

void check(GraphFixture& f, double bound) {
  const auto expected = f.reference();
  for (const Isa isa : {Isa::kReference, Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, best_isa()}) {
    if (isa > best_isa()) continue;
    INFO(isa_name(isa));
    CHECK(oar_test::distance(f.planned(isa), expected) < bound);
  }
}

// f32 arithmetic in any order over at most 100 terms: 100 * 2^-24, doubled for the elementary functions' own
// error.
constexpr double kF32 = 2.0 * 100 / (1 << 24);

}  // namespace

TEST_CASE("activations equal their definitions") {
  for (const char* name : {"relu", "silu", "gelu", "gelu tanh"}) {
    GraphFixture f;
    INFO(name);
    const bool by_tanh = std::string(name) == "gelu tanh";
    f.output(f.b.op(by_tanh ? "gelu" : name, {f.input("x", {37})},
                    by_tanh ? Attrs{{"approximate", std::string("tanh")}} : Attrs()));
    check(f, kF32);
  }
  GraphFixture f;
  f.output(f.b.op("swiglu", {f.input("g", {37}), f.input("u", {37})}));
  check(f, kF32);
}

TEST_CASE("norms equal their definitions") {
  GraphFixture rms;
  rms.output(rms.b.op("rms_norm", {rms.input("x", {96}), rms.constant("w", {96})}, {{"epsilon", 1e-6}}));
  check(rms, kF32);
  GraphFixture layer;
  layer.output(layer.b.op("layer_norm",
                          {layer.input("x", {96}), layer.constant("w", {96}), layer.constant("b", {96})},
                          {{"epsilon", 1e-5}}));
  check(layer, kF32);
  GraphFixture sum;
  const auto out = sum.b.ops(
      "add_rms_norm", std::vector<Val>{sum.input("x", {96}), sum.input("r", {96}), sum.constant("w", {96})},
      {{"epsilon", 1e-6}});
  sum.output(sum.b.op("add", {out[0], out[1]}));
  check(sum, kF32);
}

TEST_CASE("rope equals its definition in both layouts, partial and with head norms") {
  for (const int64_t interleaved : {0, 1}) {
    for (const int64_t half : {8, 5}) {
      for (const bool norm : {false, true}) {
        GraphFixture f;
        auto freq = Tensor::allocate({half}, Format::f32());
        for (int64_t k = 0; k < half; ++k)
          freq->mutable_values<float>()[k] = std::pow(10000.f, -static_cast<float>(k) / half);
        const Val inv_freq = f.b.constant("inv_freq", std::move(*freq));
        const Val x = f.input("x", {3, 16}), pos = f.positions();
        f.output(f.b.op("rope", {x, pos, inv_freq, norm ? f.constant("w", {16}) : Val{}},
                        {{"interleaved", interleaved}, {"mscale", 1.25}, {"norm_eps", 1e-6}}));
        // The angle is position * frequency in f32 operands: at position 136 half an ulp of the product is
        // 136 * 2^-24.
        check(f, kF32 + 136.0 / (1 << 24));
      }
    }
  }
}

TEST_CASE("attention within segments equals its definition, with a window and without") {
  for (const int64_t window : {0, 7}) {  // positions are 3 apart
    GraphFixture f;
    INFO(window);
    HostValue segments;
    segments.shape = Shape({f.rows}), segments.dtype = DType::kI32;
    for (int64_t k = 0; k < f.rows; ++k) segments.i.push_back(k / 5);
    f.inputs["segments"] = segments;
    const Val by{f.graph.add_input("segments", {Format::i32(), {f.graph.dim(f.T)}})};
    const Val q = f.input("q", {4, 8}), k = f.input("k", {2, 8}), v = f.input("v", {2, 8});
    f.output(f.b.op("attention", {q, k, v, f.positions(), by},
                    {{"scale", 0.4}, {"causal", int64_t{0}}, {"window", window}}));
    check(f, kF32);
  }
}

TEST_CASE("what has no kernel runs by its definition") {
  GraphFixture f;
  f.output(f.b.op("swiglu", {f.input("g", {33}), f.input("u", {33})}, {{"alpha", 1.5}}));
  check(f, kF32);
}
