#include "clients/cli/check_device_case.h"
#include "engine/base/format.h"
#include "engine/runtime/core/sampler.h"
#include "kernels/lora.h"
#include "kernels/quantize.h"
#include "kernels/sample.h"

namespace oar::cli {
namespace {

// Rows of three adapters, of which one leaves the layer alone, and a row without any.
void adapters(std::vector<DeviceCase>& cases) {
  constexpr int64_t kT = 6, kK = 200, kOut = 96, kRank = 8;
  // A product of three magnitudes in [0, 1) is an eighth in the mean and of so many at most a third.
  constexpr double kBound = kTimes * kRank * kK * (kRank + kK + 8) * kUnit / 3;
  for (const Format format : {Format::f32(), Format::bf16()}) {
    cases.push_back({cat("adapters ", format.name()), kBound, 2.0 * kT * kRank * (kK + kOut), [=](Side& s) {
                       const std::vector<int32_t> ranks{kRank, 0, 5};
                       const auto numbers = [&](int64_t each, uint64_t seed) {
                         const auto n = static_cast<int64_t>(ranks.size()) * kRank * each;
                         std::vector<uint8_t> bytes(count(format.stride(n)));
                         format.encode_row(Side::random(count(n), seed).data(), n, bytes.data());
                         return s.put(bytes);
                       };
                       LoraArgs a;
                       a.y = s.result(kT * kOut, 0.f);
                       a.x = s.floats(kT * kK, 1);
                       a.index = s.put<int32_t>({0, 0, -1, 2, 1, 2});
                       a.ranks = s.put(ranks);
                       a.a = numbers(kK, 2);
                       a.b = numbers(kOut, 3);
                       a.T = kT;
                       a.K = a.ldx = kK;
                       a.n = a.ldy = kOut;
                       a.R = kRank;
                       a.format = format;
                       s.launch({KernelFamily::kLora, format}, &a);
                     }});
  }
}

// Each chain draws one token in a way of its own, from the same kind of row.
struct Draws {
  static constexpr int64_t kVocab = 5000;
  std::vector<SamplingParams> params;
  std::vector<SamplerState> states;
  std::vector<float> logits;
  SampleSpec spec;

  Draws() : params(6), states(6), logits(Side::random(params.size() * kVocab, 7)) {
    for (float& l : logits) l *= 8;
    params[0].temperature = 0;
    params[2].top_k = 40;
    params[3].top_p = 0.9f;
    params[4].min_p = 0.05f;
    params[5].repetition_penalty = 1.3f;
    params[5].presence_penalty = 0.5f;
    params[5].logit_bias = {{17, 4.f}, {4999, -2.f}};
    const std::vector<int32_t> prompt{3, 17, 3, 4000};
    for (size_t i = 0; i < params.size(); ++i) {
      states[i].start(params[i], 11 + i, prompt, 16);
      SampleSpec::Chain chain;
      chain.params = &params[i];
      chain.state = &states[i];
      chain.logit_row = static_cast<int32_t>(i);
      spec.chains.push_back(chain);
    }
  }
};

// Tokens that are drawn and fed to the next step, as numbers. The processor has a sampler instead of kernels;
// its draws are the device's to the bit.
void draws(std::vector<DeviceCase>& cases) {
  cases.push_back({"sample and feed_tokens", 0, 0, [](Side& s) {
                     Draws asked;
                     const size_t rows = asked.params.size();
                     float* const numbers = s.result(rows + 1);
                     constexpr int32_t kKnown = 41;  // a token that is no draw
                     if (s.backend().memory() == MemoryKind::kHost) {
                       SampleResult drawn;
                       Sampler(Draws::kVocab).draw(asked.spec, asked.logits, drawn);
                       for (size_t i = 0; i < rows; ++i)
                         numbers[i] = static_cast<float>(drawn.tokens_of(i).front());
                       numbers[rows] = kKnown;
                       return;
                     }
                     SampleRows told(Draws::kVocab);
                     told.make(asked.spec);
                     SampleArgs a;
                     a.draws = static_cast<SampleDraw*>(s.pages(rows * sizeof(SampleDraw)));
                     a.logits = s.put(asked.logits);
                     a.rows = s.put(std::vector<SampleRow>(told.rows().begin(), told.rows().end()));
                     a.words = s.put(std::vector<int32_t>(told.words().begin(), told.words().end()));
                     a.num_rows = static_cast<int64_t>(rows);
                     a.V = Draws::kVocab;
                     std::vector<int32_t> tokens;
                     for (size_t i = 0; i < rows; ++i) tokens.push_back(~static_cast<int32_t>(i));
                     tokens.push_back(kKnown);
                     FeedTokensArgs feed;
                     feed.tokens = const_cast<int32_t*>(s.put(tokens));
                     feed.draws = a.draws;
                     feed.T = static_cast<int64_t>(tokens.size());
                     QuantizeArgs q;
                     q.n = feed.T;
                     q.codes = feed.tokens;
                     q.values = numbers;
                     q.to_values = true;
                     if (s.launch({KernelFamily::kSample}, &a) &&
                         s.launch({KernelFamily::kFeedTokens}, &feed))
                       s.launch(integers_key(), &q);
                   }});
}

}  // namespace

void serving_device_cases(std::vector<DeviceCase>& cases) {
  adapters(cases);
  draws(cases);
}

}  // namespace oar::cli
