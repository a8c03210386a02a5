#include "train/packing.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "engine/base/format.h"
#include "engine/base/random.h"

namespace oar::train {
namespace {

// How many samples that wait are looked through for one that still fits.
constexpr size_t kLookAhead = 64;
constexpr uint64_t kCuts = 0x63757473;  // keys of pieces, beside those of their order

}  // namespace

// 64 bits of stream (seed, epoch).
uint64_t order_key(uint64_t seed, int64_t epoch, uint64_t index) {
  const auto r = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                             static_cast<uint32_t>(epoch), 0x7061636bu},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<uint64_t>(r[0]) << 32 | r[1];
}

std::vector<uint32_t> order_of(uint64_t seed, int64_t epoch, size_t count) {
  std::vector<uint64_t> keys(count);
  for (size_t k = 0; k < count; ++k) keys[k] = order_key(seed, epoch, k);
  std::vector<uint32_t> out(count);
  std::iota(out.begin(), out.end(), 0u);
  std::sort(out.begin(), out.end(),
            [&](uint32_t a, uint32_t b) { return keys[a] != keys[b] ? keys[a] < keys[b] : a < b; });
  return out;
}

Result<Split> draw_held_out(double wish, size_t count, uint64_t seed, const char* unit) {
  constexpr int64_t kEpoch = -1;  // whose first samples are held out
  const auto n =
      static_cast<size_t>(wish < 1 ? std::lround(wish * static_cast<double>(count)) : std::llround(wish));
  if (n < 1 || n >= count)
    return invalid_argument(cat("--hold-out ", wish, " of ", count, " ", unit, " leaves none to ",
                                n < 1 ? "hold out" : "train on"));
  const std::vector<uint32_t> drawn = order_of(seed, kEpoch, count);
  const auto border = drawn.begin() + static_cast<ptrdiff_t>(n);
  Split out{{drawn.begin(), border}, {border, drawn.end()}};
  std::sort(out.held_out.begin(), out.held_out.end()), std::sort(out.rest.begin(), out.rest.end());
  return out;
}

Packer::Packer(std::span<const FileSamples> files, int64_t tokens, int64_t length, uint64_t seed,
               bool shuffle)
    : files_(files), tokens_(tokens), length_(length), seed_(seed), shuffle_(shuffle) {}

// Where the pieces of a sample begin, and its end. `index`: of the epoch's first piece of it.
std::vector<uint32_t> Packer::borders(const Sample& s, int64_t epoch, uint64_t index) const {
  const auto end = static_cast<uint32_t>(s.tokens.size());
  if (!s.document) return {0, end};
  const auto most = static_cast<uint32_t>(length_ - (s.bos >= 0 ? 1 : 0));
  std::vector<uint32_t> out{0};
  for (; out.back() < end; ++index) {
    const uint64_t drawn = order_key(seed_ ^ kCuts, epoch, index), share = drawn % 15;
    const uint32_t piece = out.size() == 1 ? static_cast<uint32_t>(1 + (drawn >> 4) % most)
                                           : most >> (share < 8    ? 3
                                                      : share < 12 ? 2
                                                      : share < 14 ? 1
                                                                   : 0);
    out.push_back(out.back() + std::min(end - out.back(), std::max(2u, piece)));
  }
  return out;
}

int64_t Packer::batches(int64_t epoch) {
  pack(epoch);
  return static_cast<int64_t>(packed_.size());
}

void Packer::pack(int64_t epoch) {
  if (!shuffle_) epoch = 0;
  if (packed_epoch_ == epoch) return;
  packed_epoch_ = epoch;
  packed_.clear();
  struct Drawn {
    uint64_t key;
    uint64_t tie;
    Place place;
  };
  std::vector<Drawn> order;
  uint64_t index = 0;
  const auto by_key = [](const Drawn& a, const Drawn& b) {
    return a.key != b.key ? a.key < b.key : a.tie < b.tie;
  };
  for (uint32_t f = 0; f < files_.size(); ++f) {
    const FileSamples& file = files_[f];
    const double weight = shuffle_ ? file.file.weight : 1;
    const auto n = file.samples.size();
    const auto copies = static_cast<int64_t>(std::floor(weight));
    const auto draw = [&](size_t s) {
      const std::vector<uint32_t> at = borders(file.samples[s], epoch, index);
      for (size_t k = 1; k < at.size(); ++k, ++index)
        order.push_back({shuffle_ ? order_key(seed_, epoch, index) : index,
                         index,
                         {f, static_cast<uint32_t>(s), at[k - 1], at[k]}});
    };
    for (int64_t c = 0; c < copies; ++c)
      for (size_t s = 0; s < n; ++s) draw(s);
    // The share of a copy: those whose keys are the least.
    const double part = weight - std::floor(weight);
    const size_t first = order.size();
    for (size_t s = 0; part > 0 && s < n; ++s) draw(s);
    const size_t end =
        first + static_cast<size_t>(std::lround(part * static_cast<double>(order.size() - first)));
    const auto at = [&](size_t k) { return order.begin() + static_cast<ptrdiff_t>(k); };
    std::nth_element(at(first), at(end), order.end(), by_key);
    order.resize(end);
  }
  std::sort(order.begin(), order.end(), by_key);
  std::vector<bool> taken(order.size());
  size_t next = 0;
  while (next < order.size()) {
    std::vector<Place> batch;
    int64_t free = tokens_;
    size_t seen = 0;
    for (size_t k = next; k < order.size() && seen < kLookAhead && free > 1; ++k) {
      if (taken[k]) continue;
      ++seen;
      const Place& p = order[k].place;
      const int64_t length = p.end - p.begin + (sample(p).bos >= 0 ? 1 : 0);
      if (length > free) continue;
      taken[k] = true;
      free -= length;
      batch.push_back(order[k].place);
    }
    while (next < order.size() && taken[next]) ++next;
    packed_.push_back(std::move(batch));
  }
}

std::string Packer::describe(int64_t epoch, int64_t batch) {
  pack(epoch);
  std::string out;
  int64_t file = -1, named = 0;
  for (const Place p : packed_[static_cast<size_t>(batch)]) {
    if (++named > 16) return out + " and more";
    if (file != p.file) out += cat(out.empty() ? "" : "; ", files_[p.file].file.path, " ", p.sample + 1);
    else out += cat(", ", p.sample + 1);
    file = p.file;
  }
  return out;
}

PackedRows Packer::rows(int64_t epoch, int64_t batch) {
  pack(epoch);
  std::deque<Sample> pieces;
  std::vector<const Sample*> samples;
  for (const Place p : packed_[static_cast<size_t>(batch)]) {
    const Sample& s = sample(p);
    const auto piece = std::span(s.tokens).subspan(p.begin, p.end - p.begin);
    samples.push_back(s.document ? &pieces.emplace_back(piece_of(piece, s.bos)) : &s);
  }
  return pack_rows(samples, tokens_);
}

PackedRows pack_rows(std::span<const Sample* const> samples, int64_t tokens) {
  PackedRows out;
  const auto n = static_cast<size_t>(tokens);
  for (auto* v : {&out.tokens, &out.positions, &out.segments, &out.types, &out.targets}) v->reserve(n);
  int32_t segment = 0;
  for (const Sample* const sample : samples) {
    const Sample& s = *sample;
    for (size_t k = 0; k < s.tokens.size(); ++k) {
      out.tokens.push_back(s.tokens[k]);
      out.positions.push_back(static_cast<int32_t>(k));
      out.segments.push_back(segment);
      out.types.push_back(s.types.empty() ? 0 : s.types[k]);
      const bool next = s.labels.empty() && k + 1 < s.tokens.size() && s.learned[k + 1] != 0;
      out.targets.push_back(!s.labels.empty() ? s.labels[k] : next ? s.tokens[k + 1] : -1);
      out.learned += out.targets.back() >= 0;
    }
    ++segment;
  }
  out.used = static_cast<int64_t>(out.tokens.size());
  // Padding is a segment of its own that nothing is learned from.
  for (int32_t k = 0; out.tokens.size() < n; ++k) {
    out.tokens.push_back(0);
    out.positions.push_back(k);
    out.segments.push_back(segment);
    out.types.push_back(0);
    out.targets.push_back(-1);
  }
  return out;
}

}  // namespace oar::train
