// mbarriers and box copies of the emulated device: what arrives where, and that misuse is found.
#include <vector>

#include "kernels/cuda/tensor_map.h"
#include "tests/cuda/box_kernels.h"
#include "tests/cuda/emulated.h"

namespace emulation = oar::cuda::emulation;
using namespace oar_test;
using oar::cuda::TensorBoxes;
using oar::cuda::TensorMap;

namespace {

constexpr size_t kBoxSharedBytes = 40 << 10;

// Bytes that differ from their neighbours and from row to row.
class DeviceBytes : public DeviceValues<uint8_t> {
 public:
  explicit DeviceBytes(size_t n) : DeviceValues(n) {
    for (size_t i = 0; i < n; ++i) data()[i] = static_cast<uint8_t>(i * 7 + i / 256 + i / 65536 + 1);
  }
  std::vector<uint8_t> host() { return {data(), data() + size()}; }
};

// What lies at byte `c` of row `r` of a swizzled box, by the PTX manual's tables of 16-byte pieces: piece p
// of row r is at p ^ (r % 8) for rows of 128 bytes, p ^ (r / 2 % 4) for 64, p ^ (r / 4 % 2) for 32.
uint32_t place_in_row(uint32_t r, uint32_t c, uint32_t swizzle) {
  const uint32_t piece = c / 16;
  const uint32_t to = swizzle == 128  ? piece ^ (r % 8)
                      : swizzle == 64 ? piece ^ (r / 2 % 4)
                      : swizzle == 32 ? piece ^ (r / 4 % 2)
                                      : piece;
  return to * 16 + c % 16;
}

TensorMap map_of(const TensorBoxes& boxes) {
  TensorMap map{};
  REQUIRE(oar::cuda::make_tensor_map(map, boxes).ok());
  return map;
}

uint32_t bytes_of(const TensorBoxes& b) {
  return b.element_bytes * b.box[0] * b.box[1] * (b.rank == 3 ? b.box[2] : 1);
}

// Visits each byte of the box at (x, y, z): its offset in shared memory, and in the tensor, or -1 outside.
void each_byte(const TensorBoxes& b, int x, int y, int z, const std::function<void(size_t, int64_t)>& visit) {
  const uint32_t row = b.box[0] * b.element_bytes;
  const uint32_t rows = b.box[1] * (b.rank == 3 ? b.box[2] : 1);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t c = 0; c < row; ++c) {
      const int64_t i = x + int64_t{c / b.element_bytes}, j = y + int64_t{r % b.box[1]},
                    k = z + int64_t{r / b.box[1]};
      const bool inside = i >= 0 && i < int64_t(b.size[0]) && j >= 0 && j < int64_t(b.size[1]) &&
                          (b.rank == 2 || (k >= 0 && k < int64_t(b.size[2])));
      const int64_t at = i * b.element_bytes + c % b.element_bytes + j * int64_t(b.stride[0]) +
                         (b.rank == 3 ? k * int64_t(b.stride[1]) : 0);
      visit(r * row + place_in_row(r, c, b.swizzle), inside ? at : -1);
    }
  }
}

TensorBoxes plain(uint8_t* base) {
  return {.base = base, .element_bytes = 1, .size = {16, 96, 1}, .stride = {16, 0}, .box = {16, 16, 1}};
}

// What the emulator says of a run of each kernel, or that the result is wrong; empty: all is well.
std::string reads(BoxFault fault) {
  DeviceBytes in(16 * 96), out(256);
  const TensorMap map = map_of(plain(in.data()));
  emulation::run_grid(1, kBoxThreads, kBoxSharedBytes,
                      [&] { reads_box(out.data(), map, 2, 0, 0, 0, 256, false, fault); });
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  const auto want = in.host();
  return out.host() == std::vector<uint8_t>(want.begin(), want.begin() + 256) ? "" : "wrong";
}
std::string sums(BoxFault fault) {
  DeviceBytes in(16 * 96), out(256);
  const TensorMap map = map_of(plain(in.data()));
  auto* result = reinterpret_cast<uint32_t*>(out.data());
  emulation::run_grid(1, kBoxThreads, kBoxSharedBytes,
                      [&] { sums_boxes(result, map, 6, false, false, fault); });
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  for (int t = 0; t < 64; ++t) {
    uint32_t sum = 0;
    for (int i = 0; i < 6; ++i) sum += reinterpret_cast<const uint32_t*>(in.data())[i * 64 + t];
    if (result[t] != sum) return "wrong";
  }
  return "";
}
std::string writes(BoxFault fault) {
  DeviceBytes to(16 * 96);
  const TensorMap map = map_of(plain(to.data()));
  emulation::run_grid(1, kBoxThreads, kBoxSharedBytes, [&] { writes_box(map, 2, 0, 0, 0, 256, fault); });
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  for (int i = 0; i < 256; ++i) {
    if (to.data()[i] != i % 251) return "wrong";
  }
  return "";
}

}  // namespace

TEST_CASE(
    "emulated device: boxes of 2 and 3 dimensions arrive swizzled, inside, across and beyond the edges") {
  for (const uint32_t swizzle : {0u, 32u, 64u, 128u}) {
    for (const uint32_t element : {1u, 2u, 4u}) {
      for (const int rank : {2, 3}) {
        const uint32_t row = swizzle == 0 ? 48 : swizzle;
        DeviceBytes tensor(5 * 11 * 304);
        const TensorBoxes boxes{.base = tensor.data(),
                                .rank = rank,
                                .element_bytes = element,
                                .size = {299 / element, 11, 5},
                                .stride = {304, 11 * 304},
                                .box = {row / element, 9, 3},
                                .swizzle = swizzle};
        const TensorMap map = map_of(boxes);
        const uint32_t bytes = bytes_of(boxes);
        for (const auto& at :
             {std::array{0, 0, 0}, {5, 3, 1}, {-3, -2, -1}, {250 / int(element), 8, 4}, {1000, 50, 9}}) {
          INFO("swizzle " << swizzle << ", " << element << " bytes, rank " << rank << ", at " << at[0] << " "
                          << at[1]);
          in_every_order([&] {
            DeviceBytes got(bytes);
            emulation::run_grid(1, kBoxThreads, kBoxSharedBytes, [&] {
              reads_box(got.data(), map, rank, at[0], at[1], at[2], static_cast<int>(bytes), at[0] == 5,
                        BoxFault::kNone);
            });
            REQUIRE(emulation::take_error() == "");
            std::vector<uint8_t> want(bytes);
            each_byte(boxes, at[0], at[1], at[2],
                      [&](size_t k, int64_t from) { want[k] = from < 0 ? 0 : tensor.data()[from]; });
            REQUIRE(got.host() == want);
          });
          DeviceBytes target(5 * 11 * 304);
          std::vector<uint8_t> want = target.host();
          each_byte(boxes, at[0], at[1], at[2], [&](size_t k, int64_t to) {
            if (to >= 0) want[static_cast<size_t>(to)] = static_cast<uint8_t>(k % 251);
          });
          TensorBoxes of_target = boxes;
          of_target.base = target.data();
          const TensorMap back = map_of(of_target);
          emulation::run_grid(1, kBoxThreads, kBoxSharedBytes, [&] {
            writes_box(back, rank, at[0], at[1], at[2], static_cast<int>(bytes), BoxFault::kNone);
          });
          REQUIRE(emulation::take_error() == "");
          REQUIRE(target.host() == want);
        }
      }
    }
  }
}

TEST_CASE("emulated device: misuse of mbarriers, box copies and the proxies is found in every order") {
  using Kernel = std::string (*)(BoxFault);
  const struct {
    const char* name;
    Kernel kernel;
    BoxFault fault;
    const char* says;
    const char* or_says = nullptr;  // in another order of threads
    bool late_only = false;
  } cases[] = {
      {"no fence behind init", reads, BoxFault::kNoFenceBehindInit, "may not see its mbarrier"},
      {"no barrier behind init", reads, BoxFault::kNoBarrierBehindInit, "mbarrier"},
      {"no wait", reads, BoxFault::kNoWait, "race"},
      {"the other parity", reads, BoxFault::kOtherParity, "race", "never ends"},
      {"too few bytes", reads, BoxFault::kTooFewBytes, "never ends"},
      {"too many bytes", reads, BoxFault::kTooManyBytes, "never ends"},
      {"too many arrivals", reads, BoxFault::kTooManyArrivals, "more arrivals"},
      {"a misaligned box", reads, BoxFault::kMisaligned, "misaligned"},
      {"no wait for empty", sums, BoxFault::kNoWaitForEmpty, "race: a box copy", "more arrivals"},
      {"the other parity of empty", sums, BoxFault::kOtherEmptyParity, "race: a box copy", "more arrivals"},
      {"no arrival", sums, BoxFault::kNoArrival, "never ends"},
      {"one warp does not arrive", sums, BoxFault::kOneWarpDoesNotArrive, "never ends"},
      {"no fence before a store", writes, BoxFault::kNoFenceBeforeStore, "no proxy fence"},
      {"no barrier before a store", writes, BoxFault::kNoBarrierBeforeStore, "race"},
      {"no wait for a store", writes, BoxFault::kNoWaitForStore, "has not waited for"},
      {"overwritten before it is stored", writes, BoxFault::kOverwritesBeforeStored, "wrong", nullptr, true},
  };
  for (const auto& c : cases) {
    INFO(c.name);
    in_every_order([&] {
      CHECK(c.kernel(BoxFault::kNone) == "");
      if (c.late_only && !emulation::options().late_copies) return;
      const std::string said = c.kernel(c.fault);
      INFO(said);
      CHECK((said.find(c.says) != std::string::npos ||
             (c.or_says != nullptr && said.find(c.or_says) != std::string::npos)));
    });
  }
}

TEST_CASE("emulated device: descriptions of tensors that a device does not take are refused") {
  DeviceBytes memory(1 << 12);
  TensorBoxes good = plain(memory.data());
  const std::function<void(TensorBoxes&)> wrong[] = {
      [&](TensorBoxes& b) { b.base = nullptr; },   [&](TensorBoxes& b) { b.base = memory.data() + 8; },
      [](TensorBoxes& b) { b.rank = 1; },          [](TensorBoxes& b) { b.rank = 4; },
      [](TensorBoxes& b) { b.element_bytes = 3; }, [](TensorBoxes& b) { b.size[1] = 0; },
      [](TensorBoxes& b) { b.stride[0] = 24; },    [](TensorBoxes& b) { b.box[1] = 257; },
      [](TensorBoxes& b) { b.box[0] = 0; },        [](TensorBoxes& b) { b.box[0] = 20; },
      [](TensorBoxes& b) { b.swizzle = 16; },      [](TensorBoxes& b) { b.swizzle = 32; },
  };
  TensorMap map{};
  CHECK(oar::cuda::make_tensor_map(map, good).ok());
  for (const auto& spoil : wrong) {
    TensorBoxes bad = good;
    spoil(bad);
    CHECK_FALSE(oar::cuda::make_tensor_map(map, bad).ok());
  }
}
