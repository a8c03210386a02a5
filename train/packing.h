// Which samples a step sees, and how they lie in its micro-batches. A micro-batch has a fixed number of rows,
// `tokens`; samples lie in it one behind another, each a segment of its own that attends to no other.
//
// The order of an epoch follows from the seed and the epoch's number alone, and so do the pieces that it cuts
// documents into. So a position in the data is two numbers, and a run that goes on sees what it would have
// seen. Pieces are as long as a sample may be, or half, a quarter or an eighth of that, each for as much of
// the text; the first one ends anywhere. Short ones are cheap and have many beginnings, long ones teach what
// lies far behind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/data.h"

namespace oar::train {

// The rows of one micro-batch, as the graph takes them; all of one length.
struct PackedRows {
  std::vector<int32_t> tokens, positions, segments;
  std::vector<int32_t> types;    // of the token, 0 where its sample says none
  std::vector<int32_t> targets;  // what the row is to predict; -1: nothing
  int64_t learned = 0;           // rows that predict
  int64_t used = 0;              // rows that are no padding
};

// `samples` side by side, and padding up to `tokens` rows, into which they fit.
PackedRows pack_rows(std::span<const Sample* const> samples, int64_t tokens);

// What samples of an epoch are sorted by: the epoch's order. The epochs of training begin at 0.
uint64_t order_key(uint64_t seed, int64_t epoch, uint64_t sample);

// Places of [0, count) in the order of an epoch.
std::vector<uint32_t> order_of(uint64_t seed, int64_t epoch, size_t count);
// What --hold-out keeps of so many samples, below 1 a share and else how many, and the rest; both ascend.
struct Split {
  std::vector<size_t> held_out, rest;
};
Result<Split> draw_held_out(double wish, size_t count, uint64_t seed, const char* unit);

class Packer {
 public:
  // `files` outlive the packer. `length`: the most tokens of a piece. `shuffle` false: every sample once, in
  // order (held-out data, of which none is a document that is still to be cut).
  Packer(std::span<const FileSamples> files, int64_t tokens, int64_t length, uint64_t seed, bool shuffle);

  // Micro-batches of an epoch, from 0: each a list of samples that fit in together.
  int64_t batches(int64_t epoch);
  PackedRows rows(int64_t epoch, int64_t batch);
  // Which samples are in it, for people: "mine.jsonl 3, 17, 4".
  std::string describe(int64_t epoch, int64_t batch);

 private:
  struct Place {
    uint32_t file, sample, begin, end;  // tokens of it
  };
  void pack(int64_t epoch);
  const Sample& sample(Place p) const { return files_[p.file].samples[p.sample]; }
  std::vector<uint32_t> borders(const Sample& s, int64_t epoch, uint64_t index) const;
  std::span<const FileSamples> files_;
  const int64_t tokens_, length_;
  const uint64_t seed_;
  const bool shuffle_;
  int64_t packed_epoch_ = -1;
  std::vector<std::vector<Place>> packed_;
};

}  // namespace oar::train
