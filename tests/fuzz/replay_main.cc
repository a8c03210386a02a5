// Runs a fuzz target without libFuzzer, so that every build and sanitizer meets its seeds: each file of the
// folders given, and mutations of each (a number of random edits, from a fixed seed, so a failure repeats).
// What libFuzzer itself finds is stored as one more seed.
//
//   replay TARGET [--mutations N] FOLDER|FILE...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#define OAR_REGISTER(name) int fuzz_##name(const uint8_t* data, size_t size);
#include "oar_fuzz_targets.inc"
#undef OAR_REGISTER

namespace {

struct Target {
  const char* name;
  int (*run)(const uint8_t*, size_t);
};
constexpr Target kTargets[] = {
#define OAR_REGISTER(name) {#name, fuzz_##name},
#include "oar_fuzz_targets.inc"
#undef OAR_REGISTER
};

// An allocation of its own, so that a sanitizer sees a read past the end.
void run(const Target& target, const std::string& bytes) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  target.run(exact.data(), exact.size());
}

void mutate(std::string& bytes, std::mt19937_64& random) {
  static constexpr uint64_t kNumbers[] = {0,          1,          0x7f,      0xff,      0x7fffffff,
                                          0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX};
  for (uint64_t edits = 1 + random() % 4; edits > 0 && !bytes.empty(); --edits) {
    const size_t at = random() % bytes.size();
    switch (random() % 6) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
      case 1: bytes[at] = static_cast<char>(random()); break;
      case 2: bytes.erase(at, 1 + random() % 16); break;
      case 3: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 64)); break;
      case 4: bytes.resize(at); break;
      default: {
        const uint64_t v = kNumbers[random() % std::size(kNumbers)];
        const size_t width = std::min<size_t>(size_t{1} << random() % 4, bytes.size() - at);
        bytes.replace(at, width, reinterpret_cast<const char*>(&v), width);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  const Target* const target = std::find_if(std::begin(kTargets), std::end(kTargets), [&](const Target& t) {
    return argc > 1 && t.name == std::string(argv[1]);
  });
  if (target == std::end(kTargets)) {
    std::fprintf(stderr, "replay TARGET [--mutations N] FOLDER|FILE...; targets:");
    for (const Target& t : kTargets) std::fprintf(stderr, " %s", t.name);
    std::fprintf(stderr, "\n");
    return 2;
  }
  int mutations = 0;
  std::vector<fs::path> files;
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "--mutations" && i + 1 < argc) {
      mutations = std::stoi(argv[++i]);
    } else if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
    } else {
      files.emplace_back(argv[i]);
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "no seeds: name a folder or files\n");
    return 2;
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string seed(std::istreambuf_iterator<char>(in), {});
    run(*target, seed);
    std::mt19937_64 random(1);
    for (int i = 0; i < mutations; ++i) {
      std::string bytes = seed;
      mutate(bytes, random);
      run(*target, bytes);
    }
  }
  std::printf("%zu seeds, %d mutations of each: passed\n", files.size(), mutations);
  return 0;
}
