#include "engine/loader/sealed_file.h"

#include <atomic>
#include <bit>
#include <cstring>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"
#include "engine/tensor/load_threads.h"
#include "engine/tensor/mapped_file.h"

namespace oar {
namespace {

constexpr uint64_t kBlock = 1 << 20;

// The parts of a safetensors file that is to have, or has, sums at its end.
struct Layout {
  uint64_t data = 0;  // where the header ends
  uint64_t sums = 0;  // where the sums begin
  // The first sum is of the header, then one for each block of the data.
  uint64_t count() const { return 1 + (sums - data + kBlock - 1) / kBlock; }
};

Result<Layout> layout_of(const MappedFile& file) {
  uint64_t header = 0;
  if (file.size() < sizeof header) return data_loss("it is too short");
  std::memcpy(&header, file.data(), sizeof header);
  // The size fixes how many sums there are: data + 8 * (1 + blocks of data) bytes follow the header.
  if (header > file.size() - sizeof header) return data_loss("its header is longer than the file");
  const uint64_t data = sizeof header + header, rest = file.size() - data;
  if (rest < 8) return data_loss("it has no sums");
  const uint64_t blocks = (rest - 8 + kBlock + 7) / (kBlock + 8);
  if (rest < 8 * (1 + blocks)) return data_loss("it has no sums");
  return Layout{data, file.size() - 8 * (1 + blocks)};
}

std::vector<uint64_t> sums_of(const MappedFile& file, const Layout& layout, int threads) {
  std::vector<uint64_t> sizes{layout.data}, sums(layout.count());
  for (uint64_t at = layout.data; at < layout.sums; at += kBlock) {
    sizes.push_back(std::min(kBlock, layout.sums - at));
  }
  for_each_largest_first(threads, sizes, [&](size_t k) {
    const uint64_t at = k == 0 ? 0 : layout.data + (k - 1) * kBlock;
    sums[k] = block_sum(file.data() + at, sizes[k]);
  });
  return sums;
}

}  // namespace

// Four chains of multiplications, so that the sum waits for memory and not for them. Each step is a bijection
// of its chain and, the chain given, of its word. Constants: odd numbers without a pattern (xxHash's primes,
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
uint64_t block_sum(const void* data, uint64_t size) {
  constexpr uint64_t kFirst = 0x9e3779b185ebca87u, kSecond = 0xc2b2ae3d27d4eb4fu;
  uint64_t lanes[4] = {kFirst, kSecond, kFirst + kSecond, size};
  const auto step = [](uint64_t lane, uint64_t word) {
    return std::rotl(lane + word * kSecond, 31) * kFirst;
  };
  const auto* p = static_cast<const std::byte*>(data);
  uint64_t left = size;
  for (; left >= 32; p += 32, left -= 32) {
    uint64_t words[4];
    std::memcpy(words, p, sizeof words);
    for (int k = 0; k < 4; ++k) lanes[k] = step(lanes[k], words[k]);
  }
  uint64_t words[4] = {};
  if (left > 0) std::memcpy(words, p, left);
  for (int k = 0; k < 4; ++k) lanes[k] = step(lanes[k], words[k]);
  uint64_t sum = size;
  for (const uint64_t lane : lanes) sum = step(sum, lane ^ lane >> 29);
  return sum ^ sum >> 32;
}

Status write_sealed(const std::string& path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata, int threads,
                    const std::function<Status(SafetensorsWriter&)>& write) {
  uint64_t bytes = 0;
  for (const SafetensorsEntry& e : entries) bytes += e.bytes;
  const uint64_t count = Layout{0, bytes}.count();
  entries.push_back({kSealTensor, "U64", {static_cast<int64_t>(count)}, count * 8});
  return replace_file(path, [&](const std::string& temporary) -> Status {
    OAR_ASSIGN(SafetensorsWriter writer,
               SafetensorsWriter::open(temporary, entries, metadata, false, kSealTensor));
    OAR_RETURN_IF_ERROR(write(writer));
    {
      OAR_ASSIGN(const auto file, MappedFile::open(temporary, {.will_need = false}));
      OAR_ASSIGN(const Layout layout, layout_of(*file));
      const std::vector<uint64_t> sums = sums_of(*file, layout, threads);
      OAR_CHECK(sums.size() == count);
      OAR_RETURN_IF_ERROR(writer.write(kSealTensor, sums.data(), sums.size() * 8));
    }
    return writer.sync();
  });
}

Result<Safetensors> open_sealed(const std::string& path, int threads) {
  OAR_ASSIGN(const auto file, MappedFile::open(path));
  OAR_ASSIGN(const Layout layout, layout_of(*file));
  const std::vector<uint64_t> sums = sums_of(*file, layout, threads);
  for (size_t k = 0; k < sums.size(); ++k) {
    uint64_t sealed;
    std::memcpy(&sealed, file->data() + layout.sums + 8 * k, sizeof sealed);
    if (sealed == sums[k]) continue;
    return data_loss(
        k == 0 ? std::string("its header is not what was written")
               : cat("the block at byte ", layout.data + (k - 1) * kBlock, " is not what was written"));
  }
  OAR_ASSIGN(Safetensors out, parse_safetensors(file_slice(file, 0, file->size()), path));
  out.tensors.erase(std::string(kSealTensor));
  return out;
}

}  // namespace oar
