// Low-rank adapters on the device against the reference: rows of several, of none, of one that leaves the
// layer alone; a row is the same alone and in any company, whether rows of x are aligned or not.
#include "kernels/lora.h"

#include <algorithm>

#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

struct LoraSize {
  int64_t R, K, n;
};
const std::vector<int32_t> kSlotRanks = {1, 8, 0, 5};  // of slots

class LoraCase {
 public:
  LoraCase(std::vector<int32_t> rows, const LoraSize& size, Format format, int64_t between)
      : index_(std::move(rows)), format_(format) {
    a_.T = static_cast<int64_t>(index_.size());
    a_.R = size.R;
    a_.K = size.K;
    a_.n = size.n;
    a_.ldx = size.K + between;
    a_.ldy = size.n + 3;
    a_.format = format;
    const auto slots = static_cast<int64_t>(kSlotRanks.size());
    x_ = random_values(static_cast<size_t>(a_.T * a_.ldx), Values::kNormal, 1);
    y_ = random_values(static_cast<size_t>(a_.T * a_.ldy), Values::kNormal, 2);
    // What lies behind an adapter's own rank is not read.
    low_ = encoded(random_values(static_cast<size_t>(slots * size.R * size.K), Values::kNormal, 3), size.K,
                   [&](int64_t r, int64_t k) { return r * size.K + k; });
    high_ = encoded(random_values(static_cast<size_t>(slots * size.R * size.n), Values::kNormal, 4), size.n,
                    [&](int64_t r, int64_t j) { return lora_b_at(size.R, size.n, r, j); });
  }

  std::vector<float> reference() {
    std::vector<float> y = y_;
    LoraArgs a = a_;
    a.y = y.data();
    a.x = x_.data();
    a.index = index_.data();
    a.ranks = kSlotRanks.data();
    a.a = low_.data();
    a.b = high_.data();
    run_reference(KernelFamily::kLora, format_, &a);
    return y;
  }
  // Rows [begin, end).
  std::vector<float> on_device(int64_t begin, int64_t end) {
    DeviceArray x(x_), y(y_);
    DeviceCopy<int32_t> index(index_), ranks(kSlotRanks);
    DeviceCopy<char> low(low_), high(high_);
    LoraArgs a = a_;
    a.T = end - begin;
    a.y = y.data() + begin * a.ldy;
    a.x = x.data() + begin * a.ldx;
    a.index = index.data() + begin;
    a.ranks = ranks.data();
    a.a = low.data();
    a.b = high.data();
    launch_on_device(KernelFamily::kLora, format_.name(), &a);
    return y.host();
  }
  // Of one element, as float_sum_bound() has it.
  double bound(int64_t t, int64_t j) const {
    const auto at = [&](const std::vector<char>& all, int64_t i) {
      return format_ == Format::f32()
                 ? static_cast<double>(reinterpret_cast<const float*>(all.data())[i])
                 : static_cast<double>(to_f32(reinterpret_cast<const bf16*>(all.data())[i]));
    };
    double sum = std::fabs(y_[static_cast<size_t>(t * a_.ldy + j)]);
    const int64_t slot = index_[static_cast<size_t>(t)];
    for (int64_t r = 0; slot >= 0 && r < kSlotRanks[static_cast<size_t>(slot)]; ++r) {
      double inner = 0;
      for (int64_t k = 0; k < a_.K; ++k)
        inner += std::fabs(at(low_, (slot * a_.R + r) * a_.K + k) * x_[static_cast<size_t>(t * a_.ldx + k)]);
      sum += inner * std::fabs(at(high_, slot * a_.R * a_.n + lora_b_at(a_.R, a_.n, r, j)));
    }
    return float_sum_bound(a_.K + a_.R + 1, sum);
  }

  const LoraArgs& args() const { return a_; }
  int32_t slot(int64_t t) const { return index_[static_cast<size_t>(t)]; }
  const std::vector<float>& before() const { return y_; }

 private:
  // Slots one after the other, each of R ranks of `cols` numbers, which lie in it as at(rank, column) says.
  template <class At>
  std::vector<char> encoded(const std::vector<float>& values, int64_t cols, At at) const {
    const auto n = static_cast<int64_t>(values.size());
    const int64_t width = format_.stride(1);
    std::vector<char> out(static_cast<size_t>(n * width));
    format_.encode_row(values.data(), n, reinterpret_cast<uint8_t*>(out.data()));
    // What a slot's rank leaves out.
    for (int64_t r = 0; r < n / cols; ++r) {
      const int64_t slot = r / a_.R;
      for (int64_t c = 0; c < cols && r % a_.R >= kSlotRanks[static_cast<size_t>(slot)]; ++c)
        std::fill_n(out.begin() + (slot * a_.R * cols + at(r % a_.R, c)) * width, width, '\xff');
    }
    return out;
  }

  std::vector<int32_t> index_;
  Format format_;
  LoraArgs a_;
  std::vector<float> x_, y_;
  std::vector<char> low_, high_;
};

}  // namespace

TEST_CASE("cuda: adapters against the reference, rows alone and in company", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Format format : {Format::f32(), Format::bf16()}) {
    for (const LoraSize& size : {LoraSize{8, 1, 1}, {8, 7, 33}, {8, 64, 257}, {9, 130, 64}, {16, 200, 96}}) {
      for (const int64_t between : {0, 4, 5}) {
        for (const int64_t rows : {1, 9, 21}) {
          INFO(format.name() << " R " << size.R << " K " << size.K << " n " << size.n << " rows " << rows
                             << " between " << between);
          std::vector<int32_t> index;
          for (int64_t t = 0; t < rows; ++t) index.push_back(static_cast<int32_t>(t / 3 * 7 % 5) - 1);
          LoraCase p(index, size, format, between);
          const std::vector<float> want = p.reference(), got = p.on_device(0, rows);
          const int64_t ldy = p.args().ldy;
          check_close(got, want, [&](size_t i) {
            const auto t = static_cast<int64_t>(i) / ldy, j = static_cast<int64_t>(i) % ldy;
            return j < size.n ? p.bound(t, j) : 0;
          });
          for (int64_t t = 0; t < rows; ++t) {
            const auto begin = static_cast<std::ptrdiff_t>(t * ldy), end = begin + ldy;
            const int32_t slot = p.slot(t);
            if (slot < 0 || kSlotRanks[static_cast<size_t>(slot)] == 0)
              CHECK(std::equal(got.begin() + begin, got.begin() + end, p.before().begin() + begin));
            if (t % 4 != 0) continue;
            const std::vector<float> alone = p.on_device(t, t + 1);
            CHECK(std::equal(got.begin() + begin, got.begin() + end, alone.begin() + begin));
          }
        }
      }
    }
  }
}
