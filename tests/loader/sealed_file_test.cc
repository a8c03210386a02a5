// Sealed files: any change is noticed, and what ended processes left behind is removed.
#include "engine/loader/sealed_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "engine/loader/file_writer.h"
#include "tests/loader/builders.h"
#include "tests/support/catch.h"

namespace oar {
namespace {

using oar_test::Contains;
using oar_test::read_file;
using oar_test::temp_dir;
using oar_test::write_file;

// Tensors of these sizes, of random bytes.
std::string write(const std::string& path, const std::vector<uint64_t>& sizes) {
  std::mt19937_64 random(3);
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::string> bytes;
  for (const uint64_t size : sizes) {
    const std::string name = cat("t", bytes.size());
    entries.push_back({name, "U8", {static_cast<int64_t>(size)}, size});
    for (std::string& b = bytes[name]; b.size() < size;) b += static_cast<char>(random());
  }
  REQUIRE_OK(write_sealed(path, entries, {{"kind", "test"}}, 2, [&](SafetensorsWriter& writer) -> Status {
    for (const auto& [name, b] : bytes) OAR_RETURN_IF_ERROR(writer.write(name, b.data(), b.size()));
    return ok_status();
  }));
  return read_file(path);
}

TEST_CASE("sealed files: what was written is read, at every length around a block") {
  const std::string path = temp_dir() + "/sealed";
  constexpr uint64_t kBlock = 1 << 20;
  for (const std::vector<uint64_t>& sizes : {std::vector<uint64_t>{},
                                             {0},
                                             {1},
                                             {kBlock - 8},
                                             {kBlock - 1},
                                             {kBlock},
                                             {kBlock + 1},
                                             {3 * kBlock, 64, 7, 0}}) {
    write(path, sizes);
    const auto file = open_sealed(path, 2);
    REQUIRE_OK(file);
    CHECK(file->metadata.at("kind") == "test");
    CHECK(file->tensors.size() == sizes.size());
    for (size_t k = 0; k < sizes.size(); ++k) CHECK(file->tensors.at(cat("t", k)).bytes() == sizes[k]);
    // It is a safetensors file as any other.
    CHECK(open_safetensors(path)->tensors.contains(kSealTensor));
  }
}

TEST_CASE("sealed files: a changed byte anywhere is DATA_LOSS") {
  const std::string path = temp_dir() + "/sealed";
  const std::string whole = write(path, {(2 << 20) + 100, 4096, 33});
  const auto refused = [&](const std::string& bytes) {
    std::filesystem::remove(path);
    write_file(path, bytes);
    const auto file = open_sealed(path, 2);
    return !file.ok() && file.status().code() == StatusCode::kDataLoss;
  };
  CHECK_FALSE(refused(whole));
  std::string zeroed = whole;  // as a disk that has lost some sectors
  std::fill_n(zeroed.begin() + 1'000'000, 64 << 10, '\0');
  CHECK(refused(zeroed));
  std::mt19937 random(5);
  for (int k = 0; k < 200; ++k) {
    std::string flipped = whole;
    flipped[random() % whole.size()] ^= static_cast<char>(1 << random() % 8);
    CHECK(refused(flipped));
  }
  // Of two words, the highest bits and the halves swapped: what weaker sums miss.
  for (const size_t apart : {size_t{8}, size_t{32}, size_t{64}}) {
    std::string flipped = whole;
    flipped[1'000'007] ^= '\x80', flipped[1'000'007 + apart] ^= '\x80';
    CHECK(refused(flipped));
    std::string swapped = whole;
    std::swap_ranges(swapped.begin() + 1'000'000, swapped.begin() + 1'000'008,
                     swapped.begin() + 1'000'000 + static_cast<std::ptrdiff_t>(apart));
    CHECK(refused(swapped));
  }
  for (size_t size = 0; size < whole.size(); size += 1 + size / 3) CHECK(refused(whole.substr(0, size)));
  CHECK(refused(whole + '\0'));
  CHECK(refused(whole + whole));
}

TEST_CASE("sealed files: orphans go, and what is being written stays") {
  const std::string folder = temp_dir() + "/orphans", path = folder + "/entry";
  std::filesystem::create_directories(folder);
  write_file(folder + "/entry.tmp-4242-0", "of a process that was killed");
  write_file(folder + "/other", "not ours");
  REQUIRE_OK(replace_file(path, [&](const std::string& temporary) -> Status {
    OAR_RETURN_IF_ERROR(write_file_atomically(folder + "/second", "also ours"));
    remove_orphans(folder);
    CHECK(std::filesystem::exists(temporary));
    write_file(temporary, "whole");
    return ok_status();
  }));
  CHECK(read_file(path) == "whole");
  CHECK(std::filesystem::exists(folder + "/other"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 3);
}

}  // namespace
}  // namespace oar
