// Whole files, so that a reader never meets half a one, and an error of the disk that names the file and what
// to do. Weights of a size that should not be held in memory go through SafetensorsWriter.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar {

// "<what> <path>: <words for the errno>": RESOURCE_EXHAUSTED with the remedy where the disk is full or a
// limit is reached, else UNAVAILABLE.
Status io_error(const std::string& what, const std::string& path, int error);
// All of it. Returns 0 or the errno.
int write_at(int fd, const void* data, uint64_t size, uint64_t offset);

// The pieces one after another into a new file, on the disk when it returns. Errors call it `named`.
Status write_file(const std::string& path, std::span<const std::string_view> pieces,
                  const std::string& named);
// `write` fills a file of a temporary name beside `path`, on the disk when it returns; the file then takes
// the place of `path`, durably, so that a reader never meets half a one. After an error nothing of it is
// left. The folder must exist.
Status replace_file(const std::string& path,
                    const std::function<Status(const std::string& temporary)>& write);
// The same with bytes at hand.
Status write_file_atomically(const std::string& path, std::span<const std::string_view> pieces);
Status write_file_atomically(const std::string& path, std::string_view contents);
// What replace_file() had begun in this folder when its process ended: removed. Files that are still being
// written, by any process, stay.
void remove_orphans(const std::string& folder);
// Makes renames and new names within a folder durable.
Status sync_folder(const std::string& folder);
// `write` fills a folder beside it, which takes the name `folder` once it is whole. ALREADY_EXISTS where one
// is there that is not empty; errors advise another value of `option`.
Status write_folder(const std::string& folder, std::string_view option,
                    const std::function<Status(const std::string& partial)>& write);

}  // namespace oar
