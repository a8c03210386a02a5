// MappedFile: the bytes of a file as one read-only Buffer, by mmap or, where asked, by reading it whole into
// aligned memory.
//
// A mapping shares the file: if another process truncates it while it is mapped, touching the lost pages
// raises SIGBUS, which no check here can prevent. still_whole() tells loaders, after they have parsed,
// whether the size is still the one they checked against; files that may be rewritten in place should be
// loaded with `mmap = false`. Replacing a model by rename() is always safe: the mapping keeps the old file.
// A program may install a SIGBUS handler that asks mapped_file_at() which file it was; the library installs
// none, signals belong to the program.
//
// A path may also be one of embedded_files.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/tensor/buffer.h"

namespace oar {

struct FileOptions {
  bool mmap = true;        // false: read into aligned memory
  bool will_need = true;   // ask the kernel to start reading ahead
  bool huge_pages = true;  // ask for transparent huge pages (file systems without them ignore it)
  Progress progress = {};  // told the path and the bytes read so far; a mapping is done at once
};

// Immutable after open(); any thread.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (not a regular file), UNAVAILABLE (I/O) or CANCELLED (by
  // `progress`), each with the path and the reason. An empty file opens and has size 0.
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path,
                                                        const FileOptions& options = {});
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  // True when the pages are the file's own (or the program's); false for a private copy.
  bool mapped() const { return mapped_; }

  // DATA_LOSS when the file on disk no longer has the size it was opened with. Always ok for a private copy.
  Status still_whole() const;

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  int fd_ = -1;
  bool mapped_ = false;
  Buffer copy_;
};

// The path of the mapped file that holds this address, or null. Async-signal-safe.
const char* mapped_file_at(const void* address) noexcept;

// Bytes [offset, offset + size) of the file; the Buffer keeps the file alive.
Buffer file_slice(const std::shared_ptr<const MappedFile>& file, uint64_t offset, uint64_t size);

// A whole small file (configuration, tokenizer) as a string; RESOURCE_EXHAUSTED beyond max_size.
Result<std::string> read_small_file(const std::string& path, uint64_t max_size);

bool is_regular_file(const std::string& path);
bool is_folder(const std::string& path);
// The regular files of a folder (model.safetensors, not its path), sorted; none when it cannot be read.
std::vector<std::string> files_in(const std::string& folder);

}  // namespace oar
