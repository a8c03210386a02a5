// A drafter that replays recorded texts: each of its tokens is the right one at a given rate, drawn by place.
#pragma once

#include <map>
#include <vector>

#include "engine/runtime/core/drafter.h"
#include "tests/runtime/fake_model.h"

namespace oar_test {

class ReplayDrafter : public oar::Drafter {
 public:
  ReplayDrafter(double rate, int32_t vocab) : rate_(rate), vocab_(vocab) {}
  // The text of a choice, by the stream of its draws. Before the engine starts.
  void record(uint64_t stream, std::vector<int32_t> tokens) { texts_[stream] = std::move(tokens); }

  // The share of all places but the first, which no draft stands in, that got the right token.
  double share_right() const {
    double right_ones = 0, places = 0;
    for (const auto& [stream, text] : texts_)
      for (size_t k = 1; k < text.size(); ++k, ++places) right_ones += right(stream, k);
    return places > 0 ? right_ones / places : 0;
  }

  void draft(const oar::Sequence& s, int64_t most, std::vector<int32_t>& out) override {
    const uint64_t stream = s.request->seed + static_cast<uint64_t>(s.index);
    const auto text = texts_.find(stream);
    if (text == texts_.end()) return;
    const size_t begin = s.output.size();
    for (size_t k = begin;
         k < text->second.size() && k < begin + static_cast<size_t>(std::max<int64_t>(most, 0)); ++k) {
      out.push_back(right(stream, k) ? text->second[k] : (text->second[k] + 1) % vocab_);
    }
  }

 private:
  bool right(uint64_t stream, size_t k) const {
    return static_cast<double>(mix(stream * 1'000'003 + k) >> 11) * 0x1p-53 < rate_;
  }

  double rate_;
  int32_t vocab_;
  std::map<uint64_t, std::vector<int32_t>> texts_;
};

}  // namespace oar_test
