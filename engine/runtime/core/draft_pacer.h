// DraftPacer: how many drafts to verify. A row of a draft costs time, and brings a token as often as drafts
// of its sequence have been right. The pacer learns both, how often and how long steps of so many rows take,
// and chooses the numbers of rows that promise the most tokens per second: none where that does not pay. A
// sequence nothing is known of, or whose drafts were wrong, is tried with a single one now and then.
//
// Where a model drafts, each position of the drafts costs a pass of it, with a row for every sequence that
// has a draft there. The first sequence at a position pays most of that, others join for little.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace oar {

// How often drafts of one sequence were right, the latest counting most.
struct DraftChance {
  double right = 0, tried = 0;
  bool trial = false;  // what is in flight was not expected to pay
};

// Engine thread only. No clock: times are told.
class DraftPacer {
 public:
  struct Candidate {
    DraftChance* chance;
    int64_t available;  // drafts
    int64_t take;       // of them, chosen by plan()
  };
  // For a step that holds `rows` rows already, and of which one row of each of `decodes` sequences brings a
  // token. At most `most` drafts in all.
  void plan(std::span<Candidate> candidates, int64_t rows, int64_t decodes, int64_t most);
  // Of `drafts` that were verified the first `accepted` were right.
  void verified(DraftChance& chance, int64_t accepted, int64_t drafts);
  // A step of decodes and drafts alone took `seconds`, a draft model's passes apart.
  void ran(int64_t rows, double seconds);
  // A draft model's pass took `seconds`. Without one drafts cost nothing before they are verified.
  void drafted(int64_t rows, double seconds) { passes_.ran(rows, seconds); }

 private:
  // Steps are alike up to 256 rows when they have the same number, beyond within a quarter of a power of two.
  static constexpr size_t kExact = 256, kKinds = kExact + 4 * 24;
  static size_t kind_of(int64_t rows);
  static int64_t rows_of(size_t kind);
  // How long runs of so many rows take.
  class Times {
   public:
    void ran(int64_t rows, double seconds);
    // By what was seen; 0: nothing was.
    double seconds(int64_t rows) const;
    bool empty() const { return runs_ == 0; }

   private:
    double by_others(int64_t rows) const;  // by steps of more and fewer rows; 0: there were none
    static constexpr int64_t kRunsBetweenDoubts = 128;
    std::array<double, kKinds> seconds_{};
    std::array<bool, kKinds> seen_{};  // since the last doubt
    int64_t runs_ = 0;
  };
  // Rows that may be lost to finding out whether drafts pay: two at first, and then this share of all rows.
  static constexpr double kTrialShare = 0.019;

  double probability(const DraftChance& chance) const;
  double pass_for_one_more(int64_t position);
  // Tokens per second if all drafts were right, at the best.
  double rate_if_right(std::span<const Candidate> candidates, int64_t rows, int64_t decodes,
                       int64_t most) const;

  Times steps_, passes_;
  std::vector<int64_t> at_;       // [positions] sequences that have a draft there
  DraftChance all_;               // of all sequences together
  double trial_ = 2;              // rows that may be lost now: a trial takes one
  std::vector<double> gain_;      // [candidates] what one more draft would bring
  std::vector<int64_t> most_of_;  // [candidates] drafts at most
  std::vector<size_t> order_;     // candidates as drafts were added
};

}  // namespace oar
