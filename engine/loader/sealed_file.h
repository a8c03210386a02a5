// Sealed safetensors: files that we write for ourselves to map at a later start, with a checksum of each
// block. So a byte that a disk, a crash or a person has changed since is noticed before anything is used. The
// checksums are a last tensor of the file, kSealTensor, so it stays a safetensors file.
//
// All of a file is read to check it, by several threads and at the speed of memory where it is cached. A
// model's weights are read before its first token anyway; reading them here brings them in. What it is not: a
// signature. Who can write to the folder can write sums as well.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/loader/safetensors.h"
#include "engine/loader/safetensors_writer.h"

namespace oar {

inline constexpr char kSealTensor[] = "oar.sums";

// A 64-bit sum of these bytes: any one changed word changes it, other changes all but surely.
uint64_t block_sum(const void* data, uint64_t size);

// Takes the place of `path` as replace_file() has it: `write` puts the tensors, then the file is sealed.
Status write_sealed(const std::string& path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata, int threads,
                    const std::function<Status(SafetensorsWriter&)>& write);

// The tensors less kSealTensor, mapped. DATA_LOSS when the file is not, byte for byte, what was sealed.
Result<Safetensors> open_sealed(const std::string& path, int threads);

}  // namespace oar
